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

    heddle_attention *attention; /* one of these */
    heddle_linear_attention *linear;
    int back;            /* HD_BACK_... that it was made for */
    int64_t moved_bytes; /* by objects that were replaced */

    uint64_t forwards; /* so far */
    uint64_t held;     /* number of the one that the object could go back from */
};

/* Makes the object, or replaces one that was made for less. Collective over the group. */
heddle_status hd_sharded_make(heddle_block *block, int back);
void hd_sharded_destroy_object(hd_block_sharded *sharded);
int64_t hd_sharded_moved_bytes(const hd_block_sharded *sharded); /* by its objects, so far */
extern const hd_block_mixer hd_mixer_sharded;

#endif
