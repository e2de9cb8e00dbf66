/* Inside of a link. */
#ifndef HD_COMM_LINK_H
#define HD_COMM_LINK_H

#include "runtime/comm/comm_private.h"

typedef struct hd_cell {
    _Alignas(HD_LINE_PAIR_BYTES) _Atomic uint64_t sequence;
    _Atomic uint64_t word[HD_LINK_WORDS];
} hd_cell;

/* What a cell holds already, as its writer knows. Words that stay the same are not stored again: a peer that spins on
 * the flag takes the line away between the words and the flag, and it has to come back twice. */
typedef struct hd_known {
    int nwords;
    uint64_t word[HD_LINK_WORDS];
} hd_known;

struct hd_link {
    heddle_comm *comm;
    hd_breaker *breaker; /* NULL: nobody, or a part of other calls, whose posts and waits do not count */
    hd_renewal renewal;
    const char *call, *line; /* hd_link_serves */
    hd_block *inbox;
    uint64_t in_base;   /* generation of the inbox, shifted */
    hd_cell **in;       /* by rank: HD_LINK_SLOTS cells that it writes; NULL: not linked */
    hd_cell **out;      /* by rank: the cells that this rank writes */
    uint64_t *out_base; /* by rank */
    hd_window *window;  /* by rank; no bytes: not linked */
    hd_known *known;    /* by rank and slot: of the cells that this rank writes */
};

#endif
