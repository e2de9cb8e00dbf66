/* Geometry of one copy: order of its loops, what lies together, dense and message forms. */
#include "runtime/move/copy.h"

#include <string.h>

int64_t hd_copy_bytes(const hd_copy *copy)
{
    int64_t bytes = copy->run_bytes;
    for (int i = 0; i < copy->nloops; i++) {
        bytes *= copy->count[i];
    }
    return bytes;
}

static const int64_t *side_strides(const hd_copy *copy, hd_side side)
{
    return side == HD_SIDE_SRC ? copy->src_stride_bytes : copy->dst_stride_bytes;
}

int64_t hd_copy_stretch(const hd_copy *copy, hd_side side)
{
    const int64_t *stride = side_strides(copy, side);
    int64_t together = copy->run_bytes;
    unsigned used = 0;
    for (int found = 1; found;) {
        found = 0;
        for (int i = 0; i < copy->nloops; i++) {
            if ((used & 1u << i) == 0 && (stride[i] == together || copy->count[i] == 1)) {
                together *= copy->count[i];
                used |= 1u << i;
                found = 1;
            }
        }
    }
    return together;
}

static void drop_loop(hd_copy *copy, int i)
{
    size_t tail = (size_t)(copy->nloops - i - 1) * sizeof(int64_t);
    memmove(copy->count + i, copy->count + i + 1, tail);
    memmove(copy->src_stride_bytes + i, copy->src_stride_bytes + i + 1, tail);
    memmove(copy->dst_stride_bytes + i, copy->dst_stride_bytes + i + 1, tail);
    copy->nloops--;
}

static void swap_loops(hd_copy *copy, int a, int b)
{
    hd_copy old = *copy;
    copy->count[a] = old.count[b], copy->count[b] = old.count[a];
    copy->src_stride_bytes[a] = old.src_stride_bytes[b], copy->src_stride_bytes[b] = old.src_stride_bytes[a];
    copy->dst_stride_bytes[a] = old.dst_stride_bytes[b], copy->dst_stride_bytes[b] = old.dst_stride_bytes[a];
}

static void merge_loops(hd_copy *copy)
{
    for (int i = copy->nloops - 1; i > 0; i--) { /* loop i-1 continues loop i */
        if (copy->src_stride_bytes[i - 1] == copy->count[i] * copy->src_stride_bytes[i] &&
            copy->dst_stride_bytes[i - 1] == copy->count[i] * copy->dst_stride_bytes[i]) {
            copy->count[i] *= copy->count[i - 1];
            drop_loop(copy, i - 1);
        }
    }
    while (copy->nloops > 0 && copy->src_stride_bytes[copy->nloops - 1] == copy->run_bytes &&
           copy->dst_stride_bytes[copy->nloops - 1] == copy->run_bytes) {
        copy->run_bytes *= copy->count[copy->nloops - 1];
        copy->nloops--;
    }
}

void hd_copy_walk(hd_copy *copy, hd_side side)
{
    for (int i = copy->nloops - 1; i >= 0; i--) {
        if (copy->count[i] == 1) {
            drop_loop(copy, i);
        }
    }
    const int64_t *key = side_strides(copy, side), *tie = side_strides(copy, 1 - side);
    for (int i = 1; i < copy->nloops; i++) {
        for (int j = i; j > 0 && (key[j] > key[j - 1] || (key[j] == key[j - 1] && tie[j] > tie[j - 1])); j--) {
            swap_loops(copy, j, j - 1);
        }
    }
    merge_loops(copy);
}

void hd_copy_stream(hd_copy *copy)
{
    hd_copy_walk(copy,
                 hd_copy_stretch(copy, HD_SIDE_DST) >= hd_copy_stretch(copy, HD_SIDE_SRC) ? HD_SIDE_DST : HD_SIDE_SRC);
}

void hd_copy_make_dense(hd_copy *copy, hd_side side, int64_t offset_bytes)
{
    int64_t *stride = side == HD_SIDE_SRC ? copy->src_stride_bytes : copy->dst_stride_bytes;
    int64_t next = copy->run_bytes;
    for (int i = copy->nloops - 1; i >= 0; i--) {
        stride[i] = next;
        next *= copy->count[i];
    }
    *(side == HD_SIDE_SRC ? &copy->src_offset_bytes : &copy->dst_offset_bytes) = offset_bytes;
    merge_loops(copy);
}

int hd_copy_same_place(const hd_copy *a, const hd_copy *b)
{
    size_t bytes = (size_t)a->nloops * sizeof(int64_t);
    return a->nloops == b->nloops && a->run_bytes == b->run_bytes && a->dst_offset_bytes == b->dst_offset_bytes &&
           memcmp(a->count, b->count, bytes) == 0 && memcmp(a->dst_stride_bytes, b->dst_stride_bytes, bytes) == 0;
}

heddle_message hd_copy_message(const hd_copy *copy, hd_side side, int peer)
{
    hd_copy one = *copy;
    memcpy(side == HD_SIDE_SRC ? one.dst_stride_bytes : one.src_stride_bytes, side_strides(copy, side),
           sizeof one.src_stride_bytes);
    merge_loops(&one);
    heddle_message m = {.peer = peer,
                        .is_send = side == HD_SIDE_SRC,
                        .offset_bytes = side == HD_SIDE_SRC ? one.src_offset_bytes : one.dst_offset_bytes,
                        .run_bytes = one.run_bytes,
                        .nloops = one.nloops};
    memcpy(m.count, one.count, sizeof m.count);
    memcpy(m.stride_bytes, side_strides(&one, side), sizeof m.stride_bytes);
    return m;
}
