/* Row copies over one vector type, included once per instruction set with VEC, VEC_BYTES, VEC_LOAD and VEC_STORE (both
 * unaligned) defined before; where a vector is a line and has masks, VEC_LOAD_LOW and VEC_STORE_LOW besides: its first
 * 0..63 bytes. */
enum { LINE_VECS = HD_LINE_BYTES / VEC_BYTES, BLOCK_BYTES = 4 * HD_LINE_BYTES };

/* Line by line: all loads of a block first, then all its stores, is slower both in the cache and out of it. */
HD_INLINE void line_copy(char *dst, const char *src, int lines)
{
    for (int i = 0; i < lines; i++) {
        VEC v[LINE_VECS];
        for (int k = 0; k < LINE_VECS; k++) {
            v[k] = VEC_LOAD(src + i * HD_LINE_BYTES + k * VEC_BYTES);
        }
        for (int k = 0; k < LINE_VECS; k++) {
            VEC_STORE(dst + i * HD_LINE_BYTES + k * VEC_BYTES, v[k]);
        }
    }
}

/* bytes < 64; without masks by the bits of the length */
HD_INLINE void copy_small(char *dst, const char *src, int64_t bytes)
{
#ifdef VEC_LOAD_LOW
    VEC_STORE_LOW(dst, bytes, VEC_LOAD_LOW(src, bytes));
#else
    for (int64_t part = 32; part > 0; part /= 2) {
        if (bytes & part) {
            memcpy(dst, src, (size_t)part);
            dst += part;
            src += part;
        }
    }
#endif
}

HD_INLINE void prefetch_lines(const char *at, int lines)
{
    for (int i = 0; i < lines; i++) {
        __builtin_prefetch(at + i * HD_LINE_BYTES, 0, 3);
    }
}

/* Where to prefetch when the read is at `done`: further on in this run, at its end in the row to come. */
HD_INLINE const char *prefetch_at(const char *src, int64_t done, int64_t bytes, const char *ahead)
{
    if (bytes < 2 * HD_PREFETCH_BYTES) {
        return ahead + done;
    }
    int64_t to = done + HD_PREFETCH_BYTES;
    return to < bytes ? src + to : ahead + (to - bytes);
}

HD_INLINE void run_plain(char *dst, const char *src, int64_t bytes, const char *ahead, int prefetch)
{
    int64_t i = 0;
    for (; i + BLOCK_BYTES <= bytes; i += BLOCK_BYTES) {
        if (prefetch) {
            prefetch_lines(prefetch_at(src, i, bytes, ahead), 4);
        }
        line_copy(dst + i, src + i, 4);
    }
    for (; i + HD_LINE_BYTES <= bytes; i += HD_LINE_BYTES) {
        if (prefetch) {
            prefetch_lines(prefetch_at(src, i, bytes, ahead), 1);
        }
        line_copy(dst + i, src + i, 1);
    }
    if (i == bytes) {
        return;
    }
    if (prefetch) {
        prefetch_lines(prefetch_at(src, i, bytes, ahead), 1);
    }
    if (bytes >= HD_LINE_BYTES) { /* one line back over what is written already: no branches on the tail's length */
        line_copy(dst + bytes - HD_LINE_BYTES, src + bytes - HD_LINE_BYTES, 1);
    } else {
        copy_small(dst, src, bytes);
    }
}

/* Run lengths in lines, the last one perhaps a part of one, that get a row of their own: head dims of 64 to 128
 * elements and their halves. */
#define SHORT_RUNS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(8) X(9) X(10) X(12) X(16) X(18)

/* One constant number of lines, the last one over what is written already: the row is straight code. In the cache a
 * loop takes half as long again for rows of two lines and a bit. */
HD_INLINE void run_short(char *dst, const char *src, int64_t bytes, const char *ahead, int lines, int prefetch)
{
    for (int i = 0; i < lines; i++) {
        if (prefetch) {
            prefetch_lines(ahead + i * HD_LINE_BYTES, 1);
        }
        int64_t at = i + 1 < lines ? i * (int64_t)HD_LINE_BYTES : bytes - HD_LINE_BYTES;
        line_copy(dst + at, src + at, 1);
    }
}

#define SHORT_RUN(lines)                                                                                               \
    HD_INLINE void run_plain_##lines(char *dst, const char *src, int64_t bytes, const char *ahead, int prefetch)       \
    {                                                                                                                  \
        run_short(dst, src, bytes, ahead, lines, prefetch);                                                            \
    }
SHORT_RUNS(SHORT_RUN)
#undef SHORT_RUN

/* The number of lines that every run takes; 0: they differ, or are less than a line. */
static int common_lines(const hd_lane *lane, int nlanes)
{
    int64_t bytes = 0;
    for (int l = 0; l < nlanes; l++) {
        if (lane[l].run_bytes <= 0) {
            continue;
        }
        if (bytes != 0 && lane[l].run_bytes != bytes) {
            return 0;
        }
        bytes = lane[l].run_bytes;
    }
    return bytes < HD_LINE_BYTES || bytes > 18 * HD_LINE_BYTES ? 0 : (int)((bytes + HD_LINE_BYTES - 1) / HD_LINE_BYTES);
}

HD_INLINE void walk_plain(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                          void *const *dst, int prefetch)
{
    switch (common_lines(lane, nlanes)) {
#define SHORT_CASE(lines)                                                                                              \
    case lines:                                                                                                        \
        hd_walk(lane, nlanes, nloops, count, src, dst, hd_run_short_rows, run_plain_##lines, prefetch);                \
        break;
        SHORT_RUNS(SHORT_CASE)
#undef SHORT_CASE
    default:
        hd_walk(lane, nlanes, nloops, count, src, dst, hd_run_rows, run_plain, prefetch);
    }
}

static void copy_plain(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                       void *const *dst)
{
    walk_plain(lane, nlanes, nloops, count, src, dst, 0);
}

static void copy_plain_pf(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                          void *const *dst)
{
    walk_plain(lane, nlanes, nloops, count, src, dst, 1);
}
