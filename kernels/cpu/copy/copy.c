/* The table of copy kernels, and which of them are worth trying for given lanes. */
#include "kernels/cpu/copy/walk.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

const hd_copy_kernel *hd_copy_kernels(int *count)
{
    /* Misspelt: whoever made a plan was told; what copies without one gets on with the plainest. */
    int isa = hd_cpu_isa();
    const hd_kernels *kernels = hd_kernels_of(isa < 0 ? HD_ISA_GENERIC : isa);
    *count = kernels->copies;
    return kernels->copy;
}

const hd_copy_kernel *hd_copy_kernel_named(const char *name)
{
    int count;
    const hd_copy_kernel *kernel = hd_copy_kernels(&count);
    for (int i = 0; i < count; i++) {
        if (strcmp(kernel[i].name, name) == 0) {
            return &kernel[i];
        }
    }
    return NULL;
}

/* What the rule looks at. */
typedef struct shape_of_runs {
    int64_t shortest_bytes; /* of the lanes that copy anything; 0: none does */
    int whole_lines;        /* every run is whole lines of dst */
} shape_of_runs;

static shape_of_runs look_at(const hd_lane *lane, int nlanes, int nloops)
{
    shape_of_runs out = {0, 0};
    uintptr_t dst_bits = 0;
    for (int l = 0; l < nlanes; l++) {
        if (lane[l].run_bytes <= 0) {
            continue;
        }
        if (out.shortest_bytes == 0 || lane[l].run_bytes < out.shortest_bytes) {
            out.shortest_bytes = lane[l].run_bytes;
        }
        dst_bits |= (uintptr_t)lane[l].dst_offset_bytes | (uintptr_t)lane[l].run_bytes;
        for (int k = 0; k < nloops; k++) {
            dst_bits |= (uintptr_t)lane[l].dst_stride_bytes[k];
        }
    }
    out.whole_lines = dst_bits % HD_LINE_BYTES == 0;
    return out;
}

/* Names without the instruction set are tried with the widest one there is. */
static const hd_copy_kernel *widest(const char *name)
{
    static const char *const prefix[] = {"avx512", "avx2", ""};
    for (int i = 0; i < 3; i++) {
        char full[32];
        size_t bytes = strlen(prefix[i]);
        memcpy(full, prefix[i], bytes);
        strcpy(full + bytes, name);
        const hd_copy_kernel *kernel = hd_copy_kernel_named(full);
        if (kernel) {
            return kernel;
        }
    }
    return NULL;
}

enum { LONG_BYTES = 32768, STRING_BYTES = 65536, RAGGED_STREAM_BYTES = 4096 };

/* Best guess first. "" is the plain kernel of the widest instruction set. About as large as the cache, a tensor wants
 * plain stores or streams by what other programs leave of it, so each list has some of both. avx2_pf is for CPUs that
 * write whole lines without fetching them first: there plain stores beat non-temporal ones by a seventh, and 32 bytes
 * beat 64. */
static const char *const *names_to_try(const shape_of_runs *runs, const hd_copy_hint *hint)
{
    static const char *const streamed_long[] = {"_nt", "avx2_pf", "movsb", "_merge", "_nt_pf", "_nt8_pf", NULL};
    static const char *const streamed_lines[] = {"_nt_pf", "avx2_pf", "movsb", "", "_merge_pf", "_nt", NULL};
    static const char *const streamed_ragged[] = {"_merge_pf", "avx2_pf", "", "_merge", "_nt_pf", NULL};
    static const char *const streamed_short[] = {"_merge_pf", "avx2_pf", "", "_merge", "_nt", NULL};
    static const char *const cached_long[] = {"movsb", "memcpy", "", "_pf", "_nt_pf", NULL};
    static const char *const cached_lines[] = {"", "memcpy", "_pf", "movsb", "_nt_pf", NULL};
    static const char *const cached_ragged[] = {"", "memcpy", "_pf", "_merge_pf", NULL};
    if (hint->footprint_bytes > hint->shared_cache_bytes) {
        if (runs->shortest_bytes >= LONG_BYTES) {
            return streamed_long;
        }
        if (runs->whole_lines) {
            return streamed_lines;
        }
        return runs->shortest_bytes >= RAGGED_STREAM_BYTES ? streamed_ragged : streamed_short;
    }
    if (runs->shortest_bytes >= STRING_BYTES) { /* below, the start of a string is felt */
        return cached_long;
    }
    return runs->whole_lines ? cached_lines : cached_ragged;
}

int hd_copy_candidates(const hd_copy_kernel **out, int capacity, const hd_lane *lane, int nlanes, int nloops,
                       const hd_copy_hint *hint)
{
    shape_of_runs runs = look_at(lane, nlanes, nloops);
    int n = 0;
    for (const char *const *name = names_to_try(&runs, hint); *name && n < capacity; name++) {
        const hd_copy_kernel *kernel = widest(*name);
        int skip = kernel == NULL || runs.shortest_bytes < kernel->min_run_bytes;
        for (int i = 0; i < n; i++) {
            skip |= out[i] == kernel; /* two names, one kernel: where the widest set is AVX2 */
        }
        if (!skip) {
            out[n++] = kernel;
        }
    }
    if (n == 0 && capacity > 0) {
        int all;
        out[n++] = hd_copy_kernels(&all);
    }
    return n;
}
