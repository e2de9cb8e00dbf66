/* A stage on a device whose last kernel, gate and residual, is left to whoever moves its rows on. */
#ifndef HD_BLOCK_GATE_H
#define HD_BLOCK_GATE_H

#include "kernels/device_rows.h"

#include <heddle/block.h>

/* The next call of heddle_block_forward, or _tape, leaves what x still gets in *left, where that can be left; NULL: it
 * does it. left->y NULL: nothing was left. */
void hd_block_leave_gate(heddle_block *block, hd_device_gate *left);
/* What was left is enqueued in `stream`, too: y lies in the block's workspace. */
heddle_status hd_block_gate_is_enqueued(heddle_block *block, heddle_stream stream);

#endif
