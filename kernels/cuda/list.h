/* A list of boxes as kernels read it: flat, in words of 8 bytes. Head, then one word per block, then the boxes. */
#ifndef HD_CUDA_LIST_H
#define HD_CUDA_LIST_H

#include "kernels/anywhere.h"
#include "kernels/table_device.h"

/* n / d for n < 2^31 */
typedef struct hd_divisor {
    uint32_t d, mul, shift, unused; /* mul 0: d is 1 */
} hd_divisor;

typedef struct hd_list_loop {
    hd_divisor count;
    int64_t src_stride_bytes, dst_stride_bytes;
} hd_list_loop;

/* Vectors are numbered in the order in which the loops walk them. */
typedef struct hd_list_box {
    int32_t peer, src_base, dst_base, nloops;
    uint32_t vectors, parts, width_bytes, unused; /* parts: blocks that share it */
    int64_t src_offset_bytes, dst_offset_bytes;
    hd_divisor run;                  /* vectors */
    hd_list_loop loop[HD_MAX_LOOPS]; /* innermost first; those it has not: once */
} hd_list_box;

typedef struct hd_list_block {
    int32_t box; /* -1: nothing to move */
    uint32_t part;
} hd_list_block;

typedef struct hd_list {
    int32_t nblocks, nboxes, nloops, nsrc, ndst, unused; /* nloops: of the box that has most */
    uint64_t bytes_of[HD_DEVICE_MAX_PEERS];
    uint32_t blocks_of[HD_DEVICE_MAX_PEERS];
} hd_list;

enum { HD_LIST_FEW_LOOPS = 3 };

#ifndef HD_CUDA_THREADS
#define HD_CUDA_THREADS 256 /* of a block; the emulator takes fewer */
#endif

HD_ANYWHERE const hd_list_block *hd_list_blocks(const hd_list *list)
{
    return (const hd_list_block *)(list + 1);
}

HD_ANYWHERE const hd_list_box *hd_list_boxes(const hd_list *list)
{
    return (const hd_list_box *)(hd_list_blocks(list) + list->nblocks);
}

#ifdef __cplusplus
extern "C" {
#endif
hd_divisor hd_divisor_of(int64_t d);
size_t hd_list_bytes(const hd_device_box *box, int nboxes, int blocks);
void hd_list_make(void *list, const hd_device_box *box, int nboxes, int blocks);
int hd_list_blocks_of(const void *list);
int hd_list_takes_gate(const void *list);
#ifdef __cplusplus
}
#endif

#endif
