/* Copy kernels with 32-byte vectors. */
#include "kernels/cpu/copy/walk.h"
#include "kernels/cpu/slots.h"

#if HD_X86

#include <immintrin.h>
#include <string.h>

#define VEC __m256i
#define VEC_BYTES 32
#define VEC_LOAD(at) _mm256_loadu_si256((const __m256i *)(const void *)(at))
#define VEC_STORE(at, v) _mm256_storeu_si256((__m256i *)(void *)(at), v)
#define VEC_STREAM(at, v) _mm256_stream_si256((__m256i *)(void *)(at), v)

#include "kernels/cpu/copy/stream.h"

/* Without masked loads the line that is being filled lies in memory: bytes start..fill of the line at `line` are in
 * `part`, between two lines of room, so that a long run's ends are put in with whole vectors. */
typedef struct stream {
    char *line;
    int64_t start, fill;
    _Alignas(HD_LINE_BYTES) char part[3 * HD_LINE_BYTES];
} stream;

HD_INLINE char *stream_part(stream *s)
{
    return s->part + HD_LINE_BYTES;
}

HD_INLINE void stream_flush(stream *s)
{
    copy_small(s->line + s->start, stream_part(s) + s->start, s->fill - s->start);
}

HD_INLINE void stream_open(stream *s, char *dst)
{
    s->fill = (int64_t)((uintptr_t)dst % HD_LINE_BYTES);
    s->start = s->fill;
    s->line = dst - s->fill;
}

/* Fills the line with the run's first bytes and sends it off. Returns how many bytes of the run that took. */
HD_INLINE int64_t stream_line(stream *s, const char *src, int64_t bytes)
{
    char *part = stream_part(s);
    if (bytes >= HD_LINE_BYTES) {
        line_copy(part + s->fill, src, 1);
    } else {
        copy_small(part + s->fill, src, HD_LINE_BYTES - s->fill);
    }
    if (s->start == 0) {
        line_stream(s->line, part, 1);
    } else { /* somebody else's bytes are in front */
        copy_small(s->line + s->start, part + s->start, HD_LINE_BYTES - s->start);
    }
    s->start = 0;
    s->line += HD_LINE_BYTES;
    return HD_LINE_BYTES - s->fill;
}

HD_INLINE void stream_append(stream *s, char *dst, const char *src, int64_t bytes, int prefetch)
{
    if (s->line + s->fill != dst) {
        stream_flush(s);
        stream_open(s, dst);
    }
    if (s->fill + bytes < HD_LINE_BYTES) {
        copy_small(stream_part(s) + s->fill, src, bytes);
        s->fill += bytes;
        return;
    }
    int64_t i = 0;
    if (s->fill > 0) {
        i = stream_line(s, src, bytes);
    }
    for (; i + HD_LINE_BYTES <= bytes; i += HD_LINE_BYTES) {
        if (prefetch) {
            prefetch_lines(src + i + HD_PREFETCH_BYTES, 1);
        }
        line_stream(s->line, src + i, 1);
        s->line += HD_LINE_BYTES;
    }
    if (prefetch) {
        prefetch_lines(src + i + HD_PREFETCH_BYTES, 1);
    }
    s->fill = bytes - i;
    if (bytes >= HD_LINE_BYTES) { /* the run's last line of bytes, the rest of it at the front */
        line_copy(stream_part(s) + s->fill - HD_LINE_BYTES, src + bytes - HD_LINE_BYTES, 1);
    } else {
        copy_small(stream_part(s), src + i, s->fill);
    }
}

#include "kernels/cpu/copy/merge.h"

const hd_kernels hd_copy_slots_avx2 = {
    .copy =
        {
            {"avx2", copy_plain, 1},
            {"avx2_pf", copy_plain_pf, 1},
            {"avx2_nt", copy_nt, 1},
            {"avx2_nt_pf", copy_nt_pf, 1},
            {"avx2_nt8", copy_nt8, 32768},
            {"avx2_nt8_pf", copy_nt8_pf, 32768},
            {"avx2_nt2", copy_nt2, 8192},
            {"avx2_merge", copy_merge, 1},
            {"avx2_merge_pf", copy_merge_pf, 1},
        },
};

#else
typedef int hd_no_avx2;
#endif
