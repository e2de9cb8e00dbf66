/* A stage on a device whose last kernel, gate and residual, is left to whoever moves its rows on. */
#ifndef HD_BLOCK_GATE_H
#define HD_BLOCK_GATE_H

#include "kernels/device_rows.h"

#include <heddle/block.h>

/* From now on calls of heddle_block_forward, and _tape, leave what x still gets in *left, where that can be left; NULL:
 * they do it. left->y NULL: nothing was left. */
void hd_block_leave_gate(heddle_block *block, hd_device_gate *left);
/* What was left is enqueued in `stream`, too: y lies in the block's workspace. */
heddle_status hd_block_gate_is_enqueued(heddle_block *block, heddle_stream stream);

#endif
