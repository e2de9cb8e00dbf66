/* What a block holds, for whoever runs blocks one after the other: by what it is for, and for which way back. */
#ifndef HD_BLOCK_HELD_H
#define HD_BLOCK_HELD_H

#include <heddle/block.h>

/* When the way back of a forward follows: never; in the same call; or later, when other blocks, too, were called. */
enum { HD_BACK_NEVER, HD_BACK_NEXT, HD_BACK_LATER };

/* heddle_block_shard_attention, of a block whose forwards will have a way back as HD_BACK_... says. */
heddle_status hd_sharded_begin(heddle_block *block, heddle_comm *comm, const heddle_mesh *mesh,
                               const heddle_layout *layout, const char *method, int back);

/* Host memory of a block, by what it is for. */
typedef struct hd_block_held {
    int64_t parameters, gradients;
    int64_t products; /* what linear layers make of the weights, and their scratch */
    int64_t threads;  /* scratch of every thread */
    int64_t arrays;   /* of a box's rows, or the rows that are walked together */
    int64_t method, method_lent;
} hd_block_held;
/* Adds what is the block's own, or what it has with those that it shares its workspace with. */
void hd_block_measure(hd_block_held *sum, const heddle_block *block);
void hd_block_measure_shared(hd_block_held *sum, const heddle_block *block);

#endif
