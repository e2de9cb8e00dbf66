/* Inside of a ring: what is sent, and by which transfers. */
#ifndef HD_ATTENTION_RING_H
#define HD_ATTENTION_RING_H

#include "runtime/attention/attention_internal.h"
#include "runtime/move/move.h"

/* Blocks, or sums of them, from the rank before to the next; or blocks from their owners. Lent blocks are lent for a
 * whole call, lent sums from step to step. */
typedef struct hd_hop {
    hd_channel *channel;
    hd_transfer **transfer; /* by step; one where all members hold as many rows, or where blocks are lent */
    int ntransfers;
    int64_t *send_bytes; /* by step; lent blocks count as if they had been passed on */
    int64_t bytes_a_row; /* of a block */
    int lends;
    const void **at; /* [nranks] where the lent blocks of a member begin; NULL: not borrowed */
    int step;        /* in flight, or lent; -1 */
} hd_hop;

#endif
