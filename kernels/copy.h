/* Strided copies. */
#ifndef HD_KERNELS_COPY_H
#define HD_KERNELS_COPY_H

#include <heddle/layout.h>
#include <stddef.h>
#include <stdint.h>

enum { HD_MAX_LOOPS = HEDDLE_MAX_DIMS, HD_LINE_BYTES = 64 /* of a cache */ };

/* One stream of rows of a strided copy. Several lanes share the loops: for each step of the outer loops every lane
 * copies one run, so that the interleaved side is walked in row order (lane = peer). A lane has no address: it begins
 * behind one of those that a call is given, so that it is made once, wherever the arrays will lie. */
typedef struct hd_lane {
    int src_base, dst_base; /* which */
    int64_t src_offset_bytes, dst_offset_bytes;
    int64_t run_bytes;
    int64_t src_stride_bytes[HD_MAX_LOOPS]; /* loop 0 is the outermost */
    int64_t dst_stride_bytes[HD_MAX_LOOPS];
} hd_lane;

/* nloops 0: one run per lane. src, dst: the addresses that the lanes' bases count. Non-temporal kernels fence before
 * they return. */
typedef void (*hd_copy_fn)(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                           void *const *dst);

typedef struct hd_copy_kernel {
    const char *name; /* "rows_nt_avx512" */
    hd_copy_fn copy;
    int64_t min_run_bytes; /* of every lane; addresses and strides may be any */
} hd_copy_kernel;

/* Kernels this CPU can run; index 0 is the reference (scalar). Never empty. */
const hd_copy_kernel *hd_copy_kernels(int *count);
const hd_copy_kernel *hd_copy_kernel_named(const char *name); /* NULL: unknown or not for this CPU */

/* What the choice depends on, besides the lanes. */
typedef struct hd_copy_hint {
    int64_t footprint_bytes; /* src + dst of all ranks that share the cache */
    int64_t shared_cache_bytes;
} hd_copy_hint;

/* The rule of thumb, and the candidates worth timing (best guess first; returns how many, at most `capacity`), as if
 * every base were the start of a line. */
int hd_copy_candidates(const hd_copy_kernel **out, int capacity, const hd_lane *lane, int nlanes, int nloops,
                       const hd_copy_hint *hint);

#endif
