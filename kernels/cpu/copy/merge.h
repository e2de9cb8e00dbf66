/* Merging copies: ragged rows whose destinations lie back to back go out as whole non-temporal lines. Included once per
 * instruction set, after its `stream` with stream_open, stream_append and stream_flush: a destination that grows by
 * runs of any length, and keeps the bytes of a line back until the line is full. */
/* 1 when a step's runs lie back to back in dst: then all lanes feed one stream. */
HD_INLINE int lanes_chain(const hd_rows *rows)
{
    for (int l = 0; l + 1 < rows->nlanes; l++) {
        if (rows->dst[l] + rows->bytes[l] != rows->dst[l + 1]) {
            return 0;
        }
    }
    return 1;
}

HD_INLINE void merge_chain(const hd_rows *rows, int prefetch)
{
    stream s;
    stream_open(&s, rows->dst[0]);
    for (int64_t i = 0; i < rows->steps; i++) {
        for (int l = 0; l < rows->nlanes; l++) {
            stream_append(&s, rows->dst[l] + i * rows->dst_stride[l], rows->src[l] + i * rows->src_stride[l],
                          rows->bytes[l], prefetch);
        }
    }
    stream_flush(&s);
}

HD_INLINE void merge_lanes(const hd_rows *rows, int prefetch)
{
    stream s[HD_WALK_LANES];
    for (int l = 0; l < rows->nlanes; l++) {
        stream_open(&s[l], rows->dst[l]);
    }
    for (int64_t i = 0; i < rows->steps; i++) {
        for (int l = 0; l < rows->nlanes; l++) {
            stream_append(&s[l], rows->dst[l] + i * rows->dst_stride[l], rows->src[l] + i * rows->src_stride[l],
                          rows->bytes[l], prefetch);
        }
    }
    for (int l = 0; l < rows->nlanes; l++) {
        stream_flush(&s[l]);
    }
}

HD_INLINE void merge_rows(const hd_rows *rows, hd_run_fn unused, int prefetch)
{
    (void)unused;
    if (rows->dst_stride[0] != rows->bytes[0] && lanes_chain(rows)) {
        merge_chain(rows, prefetch);
    } else {
        merge_lanes(rows, prefetch);
    }
}

static void copy_merge(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                       void *const *dst)
{
    hd_walk(lane, nlanes, nloops, count, src, dst, merge_rows, NULL, 0);
    _mm_sfence();
}

static void copy_merge_pf(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                          void *const *dst)
{
    hd_walk(lane, nlanes, nloops, count, src, dst, merge_rows, NULL, 1);
    _mm_sfence();
}
