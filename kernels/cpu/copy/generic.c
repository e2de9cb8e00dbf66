/* Copy kernels for every CPU: the judge, and the string move of x86. */
#include "kernels/cpu/copy/walk.h"
#include "kernels/cpu/slots.h"

#include <string.h>

HD_INLINE void run_memcpy(char *dst, const char *src, int64_t bytes, const char *ahead, int prefetch)
{
    (void)ahead;
    (void)prefetch;
    memcpy(dst, src, (size_t)bytes);
}

static void copy_memcpy(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                        void *const *dst)
{
    hd_walk(lane, nlanes, nloops, count, src, dst, hd_run_rows, run_memcpy, 0);
}

#if HD_X86
HD_INLINE void run_movsb(char *dst, const char *src, int64_t bytes, const char *ahead, int prefetch)
{
    (void)ahead;
    (void)prefetch;
    __asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(bytes) : : "memory");
}

static void copy_movsb(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                       void *const *dst)
{
    hd_walk(lane, nlanes, nloops, count, src, dst, hd_run_rows, run_movsb, 0);
    /* Microcode may use stores without ownership inside; order them like other non-temporal stores. */
    __asm__ volatile("sfence" ::: "memory");
}
#endif

static void clear(void *dst, int64_t run_bytes, int nloops, const int64_t *count, const int64_t *stride_bytes)
{
    char *at = dst;
    int64_t index[HD_MAX_LOOPS] = {0};
    for (int k = 0; k >= 0;) {
        memset(at, 0, (size_t)run_bytes);
        for (k = nloops - 1; k >= 0; k--) {
            int64_t steps = ++index[k] < count[k] ? 1 : 1 - count[k];
            at += steps * stride_bytes[k];
            if (index[k] < count[k]) {
                break;
            }
            index[k] = 0;
        }
    }
}

const hd_kernels hd_copy_slots = {
    .copy =
        {
            {"memcpy", copy_memcpy, 1},
#if HD_X86
            {"movsb", copy_movsb, 1},
#endif
        },
    .clear = clear,
};
