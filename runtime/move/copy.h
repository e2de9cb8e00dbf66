/* One copy between two arrays as loops over runs: pure geometry, no pointers, no ranks. */
#ifndef HD_MOVE_COPY_H
#define HD_MOVE_COPY_H

#include "kernels/table.h"

#include <heddle/sys/transport.h>

/* A strided copy without pointers: loops over runs; offsets and strides in bytes. */
typedef struct hd_copy {
    int64_t src_offset_bytes, dst_offset_bytes, run_bytes;
    int nloops; /* outermost first */
    int64_t count[HEDDLE_MAX_DIMS];
    int64_t src_stride_bytes[HEDDLE_MAX_DIMS], dst_stride_bytes[HEDDLE_MAX_DIMS];
} hd_copy;

typedef enum hd_side { HD_SIDE_SRC, HD_SIDE_DST } hd_side;

int64_t hd_copy_bytes(const hd_copy *copy);
/* Bytes that lie together on one side, whatever the loops of the other side. */
int64_t hd_copy_stretch(const hd_copy *copy, hd_side side);
/* Order the loops by the strides of one side (largest outermost) and merge neighbours. */
void hd_copy_walk(hd_copy *copy, hd_side side);
/* The order in which the bytes of a copy travel: that of the side that lies together, so that only the other is packed.
 */
void hd_copy_stream(hd_copy *copy);
/* Replace one side by a dense array in loop order, at `offset_bytes`. */
void hd_copy_make_dense(hd_copy *copy, hd_side side, int64_t offset_bytes);
/* Do both walk the same destination, alike? Terms of one sum do. */
int hd_copy_same_place(const hd_copy *a, const hd_copy *b);
/* One side of a copy as a message. */
heddle_message hd_copy_message(const hd_copy *copy, hd_side side, int peer);

/* The kernels that the rule of thumb gives a copy: chosen once, before it is carried out. */
typedef struct hd_copy_by {
    hd_copy_fn lines, ragged; /* for a destination at the start of a cache line; elsewhere */
} hd_copy_by;
hd_copy_by hd_copy_choose(const hd_copy *copy, int64_t shared_cache_bytes);
/* Carry it out within this process. */
void hd_copy_execute(const hd_copy *copy, const hd_copy_by *by, void *dst, const void *src);
/* Zeros in the place of its destination. */
void hd_copy_clear(const hd_kernels *kernels, const hd_copy *copy, void *dst);

#endif
