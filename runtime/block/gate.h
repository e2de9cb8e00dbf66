/* Stages on a device, one behind the other: the last kernel of one, gate and residual, left to whoever moves its rows
 * on; and a pass of them, which uses one workspace. Blocks of the host have nothing of it. */
#ifndef HD_BLOCK_GATE_H
#define HD_BLOCK_GATE_H

#include "kernels/device_rows.h"

#include <heddle/block.h>

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
