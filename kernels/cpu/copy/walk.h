/* Shared by the copy kernels: the walk over lanes that every family inlines its row into. */
#ifndef HD_COPY_INTERNAL_H
#define HD_COPY_INTERNAL_H

#include "kernels/inline.h"
#include "kernels/table.h"

#if defined(__x86_64__)
#define HD_X86 1
#else
#define HD_X86 0
#endif

#define HD_INLINE static inline HD_ALWAYS_INLINE

enum {
    HD_WALK_LANES = 64,       /* lanes walked together; more are walked in groups */
    HD_PREFETCH_BYTES = 1024, /* how far ahead of the read */
    HD_PAGE_BYTES = 4096,
    HD_SHORT_BYTES = 1024 /* of a lane in one go, where runs are shorter */
};

/* Copies one run. `ahead` is where this lane reads next (see hd_rows.ahead), to be prefetched if that is asked for. */
typedef void (*hd_run_fn)(char *dst, const char *src, int64_t bytes, const char *ahead, int prefetch);

/* The lanes of one group that have anything to copy, at one step of the outer loops. */
typedef struct hd_rows {
    int nlanes;
    int64_t steps; /* of the innermost loop */
    const char *src[HD_WALK_LANES];
    char *dst[HD_WALK_LANES];
    int64_t bytes[HD_WALK_LANES];
    int64_t src_stride[HD_WALK_LANES];
    int64_t dst_stride[HD_WALK_LANES];
    int64_t ahead[HD_WALK_LANES]; /* distance from a run to the one to prefetch with it */
    int lane[HD_WALK_LANES];      /* index into the caller's lanes */
} hd_rows;

/* The next group from lane *first on; 0 when none is left. */
HD_INLINE int hd_rows_group(hd_rows *rows, int *first, const hd_lane *lane, int nlanes, int nloops,
                            const int64_t *count)
{
    rows->nlanes = 0;
    rows->steps = nloops > 0 ? count[nloops - 1] : 1;
    while (*first < nlanes && rows->nlanes < HD_WALK_LANES) {
        const hd_lane *from = &lane[*first];
        if (from->run_bytes > 0) {
            int l = rows->nlanes++;
            rows->lane[l] = *first;
            rows->bytes[l] = from->run_bytes;
            rows->src_stride[l] = nloops > 0 ? from->src_stride_bytes[nloops - 1] : 0;
            rows->dst_stride[l] = nloops > 0 ? from->dst_stride_bytes[nloops - 1] : 0;
            int64_t rows_ahead = from->run_bytes < HD_PREFETCH_BYTES ? HD_PREFETCH_BYTES / from->run_bytes : 1;
            rows->ahead[l] = rows_ahead * rows->src_stride[l];
        }
        ++*first;
    }
    return rows->nlanes > 0;
}

/* Points the rows at outer step `at` (one index per loop but the innermost). */
HD_INLINE void hd_rows_point(hd_rows *rows, const hd_lane *lane, int nouter, const int64_t *at, const void *const *src,
                             void *const *dst)
{
    for (int l = 0; l < rows->nlanes; l++) {
        const hd_lane *from = &lane[rows->lane[l]];
        int64_t src_bytes = from->src_offset_bytes;
        int64_t dst_bytes = from->dst_offset_bytes;
        for (int k = 0; k < nouter; k++) {
            src_bytes += at[k] * from->src_stride_bytes[k];
            dst_bytes += at[k] * from->dst_stride_bytes[k];
        }
        rows->src[l] = (const char *)src[from->src_base] + src_bytes;
        rows->dst[l] = (char *)dst[from->dst_base] + dst_bytes;
    }
}

/* Next outer step; 0 after the last. */
HD_INLINE int hd_next_step(int64_t *at, int nouter, const int64_t *count)
{
    for (int k = nouter - 1; k >= 0; k--) {
        if (++at[k] < count[k]) {
            return 1;
        }
        at[k] = 0;
    }
    return 0;
}

HD_INLINE int hd_no_steps(int nloops, const int64_t *count)
{
    for (int k = 0; k < nloops; k++) {
        if (count[k] <= 0) {
            return 1;
        }
    }
    return 0;
}

/* What is done with the rows at one step of the outer loops; `run` and `prefetch` are the caller's own. */
typedef void (*hd_rows_fn)(const hd_rows *rows, hd_run_fn run, int prefetch);

/* All steps of all groups of lanes. `each` and `run` are inlined: a call through a pointer per row costs more than half
 * of what a short row takes. */
HD_INLINE void hd_walk(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                       void *const *dst, hd_rows_fn each, hd_run_fn run, int prefetch)
{
    if (hd_no_steps(nloops, count)) {
        return;
    }
    hd_rows rows;
    int first = 0;
    int nouter = nloops > 0 ? nloops - 1 : 0;
    while (hd_rows_group(&rows, &first, lane, nlanes, nloops, count)) {
        int64_t at[HD_MAX_LOOPS] = {0};
        do {
            hd_rows_point(&rows, lane, nouter, at, src, dst);
            each(&rows, run, prefetch);
        } while (hd_next_step(at, nouter, count));
    }
}

/* Every lane's run of every step, lanes innermost. */
HD_INLINE void hd_run_rows(const hd_rows *rows, hd_run_fn run, int prefetch)
{
    for (int64_t i = 0; i < rows->steps; i++) {
        for (int l = 0; l < rows->nlanes; l++) {
            const char *src = rows->src[l] + i * rows->src_stride[l];
            run(rows->dst[l] + i * rows->dst_stride[l], src, rows->bytes[l],
                (const char *)((uintptr_t)src + (uintptr_t)rows->ahead[l]), prefetch);
        }
    }
}

/* A few steps of one lane, then as many of the next: what a lane needs stays in registers, which short runs in the
 * cache spend a third of their time on. Lanes that copy equally long runs. */
HD_INLINE void hd_run_short_rows(const hd_rows *rows, hd_run_fn run, int prefetch)
{
    int64_t together = rows->bytes[0] < HD_SHORT_BYTES ? HD_SHORT_BYTES / rows->bytes[0] : 1;
    for (int64_t first = 0; first < rows->steps; first += together) {
        int64_t steps = rows->steps - first < together ? rows->steps - first : together;
        for (int l = 0; l < rows->nlanes; l++) {
            const char *src = rows->src[l] + first * rows->src_stride[l];
            char *dst = rows->dst[l] + first * rows->dst_stride[l];
            for (int64_t i = 0; i < steps; i++) {
                run(dst, src, rows->bytes[l], (const char *)((uintptr_t)src + (uintptr_t)rows->ahead[l]), prefetch);
                src += rows->src_stride[l];
                dst += rows->dst_stride[l];
            }
        }
    }
}

#endif
