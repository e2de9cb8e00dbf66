/* Copy kernels with 64-byte vectors, and the kernels that merge ragged rows into whole lines. */
#include "kernels/cpu/copy/walk.h"
#include "kernels/cpu/slots.h"

#if HD_X86

#include <immintrin.h>

#define VEC __m512i
#define VEC_BYTES 64
#define VEC_LOAD(at) _mm512_loadu_si512((const void *)(at))
#define VEC_STORE(at, v) _mm512_storeu_si512((void *)(at), v)
#define VEC_STREAM(at, v) _mm512_stream_si512((__m512i *)(void *)(at), v)
#define VEC_LOW(bytes) ((__mmask64)(((uint64_t)1 << (bytes)) - 1))
#define VEC_LOAD_LOW(at, bytes) _mm512_maskz_loadu_epi8(VEC_LOW(bytes), at)
#define VEC_STORE_LOW(at, bytes, v) _mm512_mask_storeu_epi8(at, VEC_LOW(bytes), v)

#include "kernels/cpu/copy/stream.h"

/* A destination that grows by runs of any length: bytes wait in `carry` until their line is full and can be streamed.
 * Bytes start..fill of the line at `line` are in carry. */
typedef struct stream {
    __m512i carry;
    char *line;
    int64_t start, fill;
} stream;

/* GCC makes shorter merges of a function than of the macro. */
HD_INLINE __mmask64 low_mask(int64_t bytes)
{
    return VEC_LOW(bytes);
}

HD_INLINE void stream_flush(stream *s)
{
    if (s->fill > s->start) {
        _mm512_mask_storeu_epi8(s->line, low_mask(s->fill) & ~low_mask(s->start), s->carry);
    }
}

HD_INLINE void stream_open(stream *s, char *dst)
{
    s->fill = (int64_t)((uintptr_t)dst % HD_LINE_BYTES);
    s->start = s->fill;
    s->line = dst - s->fill;
    s->carry = _mm512_setzero_si512();
}

/* The address `bytes` before `at`; it may lie outside the array, only masked lanes are read there. */
HD_INLINE const char *before(const char *at, int64_t bytes)
{
    return (const char *)((uintptr_t)at - (uintptr_t)bytes);
}

HD_INLINE void stream_append(stream *s, char *dst, const char *src, int64_t bytes, int prefetch)
{
    if (s->line + s->fill != dst) {
        stream_flush(s);
        stream_open(s, dst);
    }
    __m512i line = _mm512_mask_loadu_epi8(
        s->carry, bytes + s->fill < HD_LINE_BYTES ? low_mask(s->fill + bytes) & ~low_mask(s->fill) : ~low_mask(s->fill),
        before(src, s->fill));
    if (bytes + s->fill < HD_LINE_BYTES) {
        s->carry = line;
        s->fill += bytes;
        return;
    }
    char *at = s->line;
    if (s->start == 0) {
        VEC_STREAM(at, line);
    } else { /* somebody else's bytes are in front */
        _mm512_mask_storeu_epi8(at, ~low_mask(s->start), line);
    }
    int64_t i = HD_LINE_BYTES - s->fill;
    at += HD_LINE_BYTES;
    for (; i + HD_LINE_BYTES <= bytes; i += HD_LINE_BYTES) {
        if (prefetch) {
            prefetch_lines(src + i + HD_PREFETCH_BYTES, 1);
        }
        VEC_STREAM(at, VEC_LOAD(src + i));
        at += HD_LINE_BYTES;
    }
    if (prefetch) {
        prefetch_lines(src + i + HD_PREFETCH_BYTES, 1);
    }
    s->carry = _mm512_maskz_loadu_epi8(low_mask(bytes - i), src + i);
    s->fill = bytes - i;
    s->start = 0;
    s->line = at;
}

#include "kernels/cpu/copy/merge.h"

const hd_kernels hd_copy_slots_avx512 = {
    .copy =
        {
            {"avx512", copy_plain, 1},
            {"avx512_pf", copy_plain_pf, 1},
            {"avx512_nt", copy_nt, 1},
            {"avx512_nt_pf", copy_nt_pf, 1},
            {"avx512_nt8", copy_nt8, 32768},
            {"avx512_nt8_pf", copy_nt8_pf, 32768},
            {"avx512_nt2", copy_nt2, 8192},
            {"avx512_merge", copy_merge, 1},
            {"avx512_merge_pf", copy_merge_pf, 1},
        },
};

#else
typedef int hd_no_avx512;
#endif
