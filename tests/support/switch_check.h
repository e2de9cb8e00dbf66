/* One reshard, checked against nothing but the definition of a layout: every element carries its global index, so the
 * right value of every destination element is known. For tests of transports; layouts without partial sums. */
#ifndef SWITCH_CHECK_H
#define SWITCH_CHECK_H

#include <heddle/heddle.h>

enum { SWITCH_TEXT_BYTES = 1024 };

/* Creates, executes twice, checks every element of dst, canaries behind both buffers, and that the bytes planned, those
 * of heddle_reshard_sends and those measured agree per peer. Returns 0, or -1 with `text` saying what is wrong. The
 * bytes sent to each peer are added to total_to[size] unless it is NULL. Collective. */
int switch_check(heddle_comm *comm, const char *line, int64_t *total_to, char *text);

/* Lines for `nranks` ranks that between them use every kind of move: switch, gather, split, order, uneven, empty ranks,
 * 2-D meshes, elements of every size. NULL past the end. `room` holds the line. */
const char *switch_line(int index, int nranks, char room[SWITCH_TEXT_BYTES]);

#endif
