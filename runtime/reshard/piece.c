/* A piece of a reshard as loops over contiguous runs. */
#include "runtime/reshard/compile.h"

#include <string.h>

typedef struct loop {
    int64_t count, src_stride_bytes, dst_stride_bytes;
} loop;

typedef int64_t (*loop_key)(const loop *);

static int64_t src_stride(const loop *l)
{
    return l->src_stride_bytes;
}

static int64_t dst_stride(const loop *l)
{
    return l->dst_stride_bytes;
}

/* Largest stride first; stable. */
static void sort_loops(loop *loops, int n, loop_key key)
{
    for (int i = 1; i < n; i++) {
        loop moving = loops[i];
        int k = i;
        for (; k > 0 && key(&loops[k - 1]) < key(&moving); k--) {
            loops[k] = loops[k - 1];
        }
        loops[k] = moving;
    }
}

/* Does one side see the piece as one contiguous range? */
static int is_dense(const loop *loops, int n, loop_key key, int64_t elem_bytes)
{
    loop sorted[HEDDLE_MAX_DIMS];
    memcpy(sorted, loops, sizeof sorted);
    sort_loops(sorted, n, key);
    int64_t expected = elem_bytes;
    for (int i = n - 1; i >= 0; i--) {
        if (key(&sorted[i]) != expected) {
            return 0;
        }
        expected *= sorted[i].count;
    }
    return 1;
}

/* Loops that continue one another on both sides become one; returns how many are left. */
static int merge_loops(loop *loops, int n)
{
    for (int outer = 0; outer < n; outer++) {
        for (int inner = 0; inner < n; inner++) {
            if (inner == outer || loops[outer].src_stride_bytes != loops[inner].src_stride_bytes * loops[inner].count ||
                loops[outer].dst_stride_bytes != loops[inner].dst_stride_bytes * loops[inner].count) {
                continue;
            }
            loops[inner].count *= loops[outer].count;
            memmove(&loops[outer], &loops[outer + 1], (size_t)(n - outer - 1) * sizeof *loops);
            return merge_loops(loops, n - 1);
        }
    }
    return n;
}

/* Takes the loop over neighbouring elements, if there is one, as the run. */
static int take_run(int64_t *run_bytes, loop *loops, int n, int64_t elem_bytes)
{
    *run_bytes = elem_bytes;
    for (int i = 0; i < n; i++) {
        if (loops[i].src_stride_bytes == elem_bytes && loops[i].dst_stride_bytes == elem_bytes) {
            *run_bytes = loops[i].count * elem_bytes;
            memmove(&loops[i], &loops[i + 1], (size_t)(n - i - 1) * sizeof *loops);
            return n - 1;
        }
    }
    return n;
}

static void put_loops(hd_copy *out, const loop *loops, int n)
{
    out->nloops = n;
    for (int i = 0; i < n; i++) {
        out->count[i] = loops[i].count;
        out->src_stride_bytes[i] = loops[i].src_stride_bytes;
        out->dst_stride_bytes[i] = loops[i].dst_stride_bytes;
    }
}

/* Where the copy begins in both arrays, and a loop for every dim of more than one element. */
static int take_loops(hd_copy *out, loop loops[HEDDLE_MAX_DIMS], const hd_piece *piece, const hd_array *src,
                      const hd_array *dst, int64_t elem_bytes)
{
    const heddle_box *box = &piece->box;
    int n = 0;
    memset(out, 0, sizeof *out);
    memset(loops, 0, HEDDLE_MAX_DIMS * sizeof *loops);
    for (int d = 0; d < box->ndim; d++) {
        out->src_offset_bytes += (box->lo[d] - src->box.lo[d]) * src->stride_elems[d] * elem_bytes;
        out->dst_offset_bytes += (box->lo[d] - dst->box.lo[d]) * dst->stride_elems[d] * elem_bytes;
        if (box->len[d] > 1) {
            loops[n++] = (loop){box->len[d], src->stride_elems[d] * elem_bytes, dst->stride_elems[d] * elem_bytes};
        }
    }
    return n;
}

void hd_piece_copy(hd_copy *out, const hd_piece *piece, const hd_array *src, const hd_array *dst, size_t elem_bytes)
{
    int64_t elem = (int64_t)elem_bytes;
    loop loops[HEDDLE_MAX_DIMS];
    if (heddle_box_elems(&piece->box) == 0) {
        memset(out, 0, sizeof *out);
        return;
    }
    int n = take_loops(out, loops, piece, src, dst, elem);
    /* Rows follow the interleaved side; if both are, the one that is written. */
    int by_src = is_dense(loops, n, dst_stride, elem) && !is_dense(loops, n, src_stride, elem);
    n = merge_loops(loops, n);
    n = take_run(&out->run_bytes, loops, n, elem);
    sort_loops(loops, n, by_src ? dst_stride : src_stride);
    sort_loops(loops, n, by_src ? src_stride : dst_stride);
    put_loops(out, loops, n);
}

void hd_piece_rows(hd_copy *out, const hd_piece *piece, const hd_array *src, const hd_array *dst, size_t elem_bytes)
{
    loop loops[HEDDLE_MAX_DIMS];
    int n = take_loops(out, loops, piece, src, dst, (int64_t)elem_bytes);
    out->run_bytes = (int64_t)elem_bytes;
    sort_loops(loops, n, dst_stride);
    put_loops(out, loops, n);
}
