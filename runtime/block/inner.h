/* For whoever runs blocks one after the other: what they hold, by what it is for and for which way back; and on a
 * device the last kernel of a stage, gate and residual, left to whoever moves its rows on, and a pass, which uses one
 * workspace. */
#ifndef HD_BLOCK_INNER_H
#define HD_BLOCK_INNER_H

#include "kernels/device_rows.h"

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

/* --- on a device: blocks of the host have nothing of it ----------------------------------------------------------- */

/* heddle_block_forward, and _tape, leave what x still gets in *left, where that can be left, until this is called with
 * NULL: they do it. left->y NULL: nothing was left. */
void hd_block_leave_gate(heddle_block *block, hd_device_gate *left);
/* What was left is enqueued in `stream`, too: y lies in the block's workspace. */
heddle_status hd_block_gate_is_enqueued(heddle_block *block, heddle_stream stream);

/* While it is 1 calls of blocks that share this one's workspace, and what would free it, are refused by name, on every
 * rank: what the stage before has left to the switch lies there, of this rank or of another one. */
void hd_block_hold(heddle_block *block, int is_held);
int hd_block_is_held(const heddle_block *block);
heddle_status hd_block_need_free(const heddle_block *block, const char *function);

/* Until the end calls of blocks that share this one's workspace go in `stream`, which is captured or not all the while:
 * what they enqueue has one event behind all of it, and one more where somebody asks for it before. With a call in
 * another stream, which comes between them, that is over: each has its own. */
heddle_status hd_block_pass_begin(heddle_block *block, heddle_stream stream);
heddle_status hd_block_pass_end(heddle_block *block, heddle_stream stream, heddle_status st); /* st: of the pass */

#endif
