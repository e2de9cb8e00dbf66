/* Index arithmetic shared by host and device code: shards, meshes, strides.
 *
 * Header only; compiles as C11, C17, C++17 and CUDA. Nothing here fails: arguments must be in range (the callers in
 * heddle/layout.h check). All functions are pure; all sizes are 64-bit.
 */
#ifndef HEDDLE_INDEX_H
#define HEDDLE_INDEX_H

#include <stdint.h>

#ifndef HEDDLE_HOST_DEVICE
#ifdef __CUDACC__
#define HEDDLE_HOST_DEVICE __host__ __device__
#else
#define HEDDLE_HOST_DEVICE
#endif
#endif

#if defined(__cplusplus) && defined(__GNUC__) && !defined(__CUDACC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast" /* inline functions for C and C++ alike */
#endif

/* --- balanced shards: shard i of n has extent / n elements, the first extent % n shards one more ------------------ */

HEDDLE_HOST_DEVICE static inline int64_t heddle_shard_len(int64_t extent, int n, int i)
{
    return extent / n + (i < extent % n ? 1 : 0);
}

HEDDLE_HOST_DEVICE static inline int64_t heddle_shard_start(int64_t extent, int n, int i)
{
    int64_t rest = extent % n;
    return i * (extent / n) + (i < rest ? i : rest);
}

/* The shard that holds `index`, 0 <= index < extent. */
HEDDLE_HOST_DEVICE static inline int heddle_shard_owner(int64_t extent, int n, int64_t index)
{
    int64_t small = extent / n;
    int64_t rest = extent % n;
    int64_t large_end = rest * (small + 1);
    if (index < large_end) {
        return (int)(index / (small + 1));
    }
    return (int)(rest + (index - large_end) / small); /* small > 0 here: index < extent */
}

/* --- explicit shards: lengths len[0..n-1], zeros allowed ---------------------------------------------------------- */

HEDDLE_HOST_DEVICE static inline int64_t heddle_split_start(const int64_t *len, int i)
{
    int64_t start = 0;
    for (int k = 0; k < i; k++) {
        start += len[k];
    }
    return start;
}

/* The shard that holds `index`, 0 <= index < the sum of all lengths. Never an empty shard. */
HEDDLE_HOST_DEVICE static inline int heddle_split_owner(const int64_t *len, int n, int64_t index)
{
    int i = 0;
    while (i < n - 1 && index >= len[i]) {
        index -= len[i];
        i++;
    }
    return i;
}

/* --- ranges: nested shards narrow a range step by step ------------------------------------------------------------ */

/* Replace the range lo, len by shard i of n of it; `split` holds explicit lengths or is NULL for balanced ones. */
HEDDLE_HOST_DEVICE static inline void heddle_range_narrow(int64_t *lo, int64_t *len, const int64_t *split, int n, int i)
{
    if (split) {
        *lo += heddle_split_start(split, i);
        *len = split[i];
    } else {
        *lo += heddle_shard_start(*len, n, i);
        *len = heddle_shard_len(*len, n, i);
    }
}

/* The shard of the range lo, len that holds global index `index`, lo <= index < lo + len. */
HEDDLE_HOST_DEVICE static inline int heddle_range_owner(int64_t lo, int64_t len, const int64_t *split, int n,
                                                        int64_t index)
{
    return split ? heddle_split_owner(split, n, index - lo) : heddle_shard_owner(len, n, index - lo);
}

/* Intersect lo, len with other_lo, other_len in place; an empty result has len 0. */
HEDDLE_HOST_DEVICE static inline void heddle_range_intersect(int64_t *lo, int64_t *len, int64_t other_lo,
                                                             int64_t other_len)
{
    int64_t end = *lo + *len < other_lo + other_len ? *lo + *len : other_lo + other_len;
    *lo = *lo > other_lo ? *lo : other_lo;
    *len = end > *lo ? end - *lo : 0;
}

/* --- mixed radix: digit 0 is the most significant ----------------------------------------------------------------- */

/* rank = ((coord[0] * size[1] + coord[1]) * size[2] + coord[2]) ... */
HEDDLE_HOST_DEVICE static inline int heddle_mesh_rank_of(const int *coord, const int *size, int naxes)
{
    int rank = 0;
    for (int a = 0; a < naxes; a++) {
        rank = rank * size[a] + coord[a];
    }
    return rank;
}

HEDDLE_HOST_DEVICE static inline void heddle_mesh_coords_of(int *coord, const int *size, int naxes, int rank)
{
    for (int a = naxes - 1; a >= 0; a--) {
        coord[a] = rank % size[a];
        rank /= size[a];
    }
}

/* Position in a row-major box of lengths len[] -> coordinates within it. No length may be 0. */
HEDDLE_HOST_DEVICE static inline void heddle_index_unravel(int64_t *coord, const int64_t *len, int ndim,
                                                           int64_t position)
{
    for (int d = ndim - 1; d >= 0; d--) {
        coord[d] = position % len[d];
        position /= len[d];
    }
}

HEDDLE_HOST_DEVICE static inline int64_t heddle_index_ravel(const int64_t *coord, const int64_t *len, int ndim)
{
    int64_t position = 0;
    for (int d = 0; d < ndim; d++) {
        position = position * len[d] + coord[d];
    }
    return position;
}

/* --- strides ------------------------------------------------------------------------------------------------------ */

/* Offset of global coordinate coord[] in a local array that starts at lo[]; in the unit of the strides. */
HEDDLE_HOST_DEVICE static inline int64_t heddle_index_offset(const int64_t *coord, const int64_t *lo,
                                                             const int64_t *stride, int ndim)
{
    int64_t offset = 0;
    for (int d = 0; d < ndim; d++) {
        offset += (coord[d] - lo[d]) * stride[d];
    }
    return offset;
}

#if defined(__cplusplus) && defined(__GNUC__) && !defined(__CUDACC__)
#pragma GCC diagnostic pop
#endif

#endif
