/* Non-temporal row copies over one vector type: as vector.h, with VEC_STREAM (aligned) defined besides.
 *
 * They write whole 64-byte lines only; the ragged ends are ordinary stores. A line must never get both kinds (it costs
 * 20 times as much), so rows that share lines belong to the plain or the merging kernels. */
#include "kernels/cpu/copy/vector.h"

HD_INLINE void line_stream(char *dst, const char *src, int lines)
{
    for (int i = 0; i < lines; i++) {
        VEC v[LINE_VECS];
        for (int k = 0; k < LINE_VECS; k++) {
            v[k] = VEC_LOAD(src + i * HD_LINE_BYTES + k * VEC_BYTES);
        }
        for (int k = 0; k < LINE_VECS; k++) {
            VEC_STREAM(dst + i * HD_LINE_BYTES + k * VEC_BYTES, v[k]);
        }
    }
}

/* Bytes up to the next line of dst, at most `bytes`. */
HD_INLINE int64_t head_bytes(const char *dst, int64_t bytes)
{
    int64_t head = (int64_t)(-(uintptr_t)dst & (HD_LINE_BYTES - 1));
    return head < bytes ? head : bytes;
}

HD_INLINE void run_nt(char *dst, const char *src, int64_t bytes, const char *ahead, int prefetch)
{
    int64_t i = head_bytes(dst, bytes);
    if (i > 0) {
        copy_small(dst, src, i);
    }
    /* Without prefetch a loop of one line is the fastest; prefetches are worth a block. */
    for (; prefetch && i + BLOCK_BYTES <= bytes; i += BLOCK_BYTES) {
        if (prefetch) {
            prefetch_lines(prefetch_at(src, i, bytes, ahead), 4);
        }
        line_stream(dst + i, src + i, 4);
    }
    for (; i + HD_LINE_BYTES <= bytes; i += HD_LINE_BYTES) {
        if (prefetch) {
            prefetch_lines(prefetch_at(src, i, bytes, ahead), 1);
        }
        line_stream(dst + i, src + i, 1);
    }
    if (i < bytes) {
        copy_small(dst + i, src + i, bytes - i);
    }
}

/* Streams `pages` pages side by side, a few lines of each in turn: more rows of the memory are open at once. */
HD_INLINE void run_pages(char *dst, const char *src, int64_t bytes, int pages, int prefetch)
{
    int64_t i = head_bytes(dst, bytes);
    if (i > 0) {
        copy_small(dst, src, i);
    }
    int64_t group_bytes = (int64_t)pages * HD_PAGE_BYTES;
    for (; i + group_bytes <= bytes; i += group_bytes) {
        for (int64_t o = 0; o < HD_PAGE_BYTES; o += 2 * HD_LINE_BYTES) {
            for (int p = 0; p < pages; p++) {
                const char *from = src + i + p * (int64_t)HD_PAGE_BYTES + o;
                if (prefetch) {
                    prefetch_lines(from + HD_PREFETCH_BYTES / 2, 2);
                }
                line_stream(dst + i + p * (int64_t)HD_PAGE_BYTES + o, from, 2);
            }
        }
    }
    run_nt(dst + i, src + i, bytes - i, src + bytes, prefetch);
}

HD_INLINE void run_nt8(char *dst, const char *src, int64_t bytes, const char *ahead, int prefetch)
{
    (void)ahead;
    run_pages(dst, src, bytes, 8, prefetch);
}

HD_INLINE void run_nt2(char *dst, const char *src, int64_t bytes, const char *ahead, int prefetch)
{
    (void)ahead;
    run_pages(dst, src, bytes, 2, prefetch);
}

/* Whole aligned lines of one constant length: the row is straight code. */
HD_INLINE void run_lines(char *dst, const char *src, const char *ahead, int lines, int prefetch)
{
    int i = 0;
    for (; i + 4 <= lines; i += 4) {
        if (prefetch) {
            prefetch_lines(ahead + i * HD_LINE_BYTES, 4);
        }
        line_stream(dst + i * HD_LINE_BYTES, src + i * HD_LINE_BYTES, 4);
    }
    for (; i < lines; i++) {
        if (prefetch) {
            prefetch_lines(ahead + i * HD_LINE_BYTES, 1);
        }
        line_stream(dst + i * HD_LINE_BYTES, src + i * HD_LINE_BYTES, 1);
    }
}

#define SHORT_RUN(lines)                                                                                               \
    HD_INLINE void run_nt_##lines(char *dst, const char *src, int64_t bytes, const char *ahead, int prefetch)          \
    {                                                                                                                  \
        (void)bytes;                                                                                                   \
        run_lines(dst, src, ahead, lines, prefetch);                                                                   \
    }
SHORT_RUNS(SHORT_RUN)

/* The number of lines when all runs are that many whole lines of dst, else 0. */
static int whole_lines(const hd_lane *lane, int nlanes, int nloops, void *const *dst)
{
    uintptr_t bits = 0;
    int64_t bytes = nlanes > 0 ? lane[0].run_bytes : 0;
    for (int l = 0; l < nlanes; l++) {
        bits |= (uintptr_t)dst[lane[l].dst_base] + (uintptr_t)lane[l].dst_offset_bytes;
        bits |= (uintptr_t)lane[l].run_bytes;
        for (int k = 0; k < nloops; k++) {
            bits |= (uintptr_t)lane[l].dst_stride_bytes[k];
        }
        if (lane[l].run_bytes != bytes) {
            return 0;
        }
    }
    return bits % HD_LINE_BYTES || bytes > 18 * HD_LINE_BYTES ? 0 : (int)(bytes / HD_LINE_BYTES);
}

HD_INLINE void walk_nt(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                       void *const *dst, int prefetch)
{
    switch (whole_lines(lane, nlanes, nloops, dst)) {
#define SHORT_CASE(lines)                                                                                              \
    case lines:                                                                                                        \
        hd_walk(lane, nlanes, nloops, count, src, dst, hd_run_rows, run_nt_##lines, prefetch);                         \
        break;
        SHORT_RUNS(SHORT_CASE)
#undef SHORT_CASE
    default:
        hd_walk(lane, nlanes, nloops, count, src, dst, hd_run_rows, run_nt, prefetch);
    }
    _mm_sfence();
}

static void copy_nt(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                    void *const *dst)
{
    walk_nt(lane, nlanes, nloops, count, src, dst, 0);
}

static void copy_nt_pf(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                       void *const *dst)
{
    walk_nt(lane, nlanes, nloops, count, src, dst, 1);
}

static void copy_nt8(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                     void *const *dst)
{
    hd_walk(lane, nlanes, nloops, count, src, dst, hd_run_rows, run_nt8, 0);
    _mm_sfence();
}

static void copy_nt8_pf(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                        void *const *dst)
{
    hd_walk(lane, nlanes, nloops, count, src, dst, hd_run_rows, run_nt8, 1);
    _mm_sfence();
}

static void copy_nt2(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                     void *const *dst)
{
    hd_walk(lane, nlanes, nloops, count, src, dst, hd_run_rows, run_nt2, 1);
    _mm_sfence();
}
