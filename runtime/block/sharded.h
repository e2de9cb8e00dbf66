/* Attention of a block over a mixed dim that is sharded: the group of ranks that share it and the object on it. */
#ifndef HD_BLOCK_SHARDED_H
#define HD_BLOCK_SHARDED_H

#include "runtime/block/block_internal.h"

#include <heddle/linear_attention.h>

struct hd_block_sharded {
    heddle_comm *comm;  /* all ranks; borrowed */
    heddle_box box;     /* this rank's, the only one the block works on */
    heddle_comm *group; /* ranks that differ in the mixed dim only; NULL: one rank, nothing communicates */
    heddle_comm *owned; /* the group unless it is all of comm */

    /* The attention as the group sees it: [fibres, mixed extent, heads, d], the second dim on the group's axes. */
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    int rank;
    int64_t fibres;                   /* 0: nobody of the group holds anything, nothing is made and nothing done */
    heddle_attention_options options; /* ATTENTION */
    heddle_linear_attention_options linear_options; /* LINEAR; decay is the block's */
    heddle_attention_traffic planned;

    heddle_attention *attention; /* one of these; softmax attention is made forward-only until a tape is kept */
    heddle_linear_attention *linear;
    int for_backward;
    int64_t moved_bytes; /* by objects that were replaced */

    uint64_t forwards; /* so far */
    uint64_t held;     /* number of the one that the object could go back from */
    void *work; /* [rows][c]: LINEAR's results before their norm, or their gradient; bf16 ATTENTION's gradients */
    size_t work_bytes;
};

/* Makes or replaces the object. Collective over the group. */
heddle_status hd_sharded_make(heddle_block *block, int for_backward);
extern const hd_block_mixer hd_mixer_sharded;

#endif
