/* Copy kernels with 32-byte vectors. */
#include "copy_internal.h"

#if HD_X86

#include <immintrin.h>
#include <string.h>

#define VEC __m256i
#define VEC_BYTES 32
#define VEC_LOAD(at) _mm256_loadu_si256((const __m256i *)(const void *)(at))
#define VEC_STORE(at, v) _mm256_storeu_si256((__m256i *)(void *)(at), v)
#define VEC_STREAM(at, v) _mm256_stream_si256((__m256i *)(void *)(at), v)

/* bytes < 64, by the bits of the length */
HD_INLINE void copy_small(char *dst, const char *src, int64_t bytes)
{
    for (int64_t part = 32; part > 0; part /= 2) {
        if (bytes & part) {
            memcpy(dst, src, (size_t)part);
            dst += part;
            src += part;
        }
    }
}

#include "copy_vector.h"

const hd_copy_kernel *hd_copy_family_avx2(int *count)
{
    static const hd_copy_kernel family[] = {
        {"avx2", copy_plain, 1, 1},       {"avx2_pf", copy_plain_pf, 1, 1}, {"avx2_nt", copy_nt, 1, 1},
        {"avx2_nt_pf", copy_nt_pf, 1, 1}, {"avx2_nt8", copy_nt8, 32768, 1}, {"avx2_nt8_pf", copy_nt8_pf, 32768, 1},
        {"avx2_nt2", copy_nt2, 8192, 1},
    };
    *count = (int)(sizeof(family) / sizeof(family[0]));
    return family;
}

#else
typedef int hd_no_avx2;
#endif
