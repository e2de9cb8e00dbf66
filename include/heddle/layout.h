/* Shapes, meshes, layouts and boxes: plain values, their text forms, and which part of a tensor a rank holds.
 *
 *   shape    bf16[b=2 t=30 s=1590 c=1152]     memory order as written, row-major
 *   mesh     [node=2 gpu=4]                   first axis is the major one: rank = node*4 + gpu
 *   layout   t@node,s@gpu   t@sp(12 9 9)   *   sum@sp
 *
 * A layout says for each mesh axis which dim it shards, or that the tensor is replicated over it, or that the ranks
 * along it hold partial sums. A rank's part of a tensor is always a box: one range per dim. Shards are balanced
 * (rank i of n gets L/n, the first L mod n ranks one more) unless explicit lengths are given. A dim on two axes is
 * nested: each shard of the axis that comes first in the mesh is split again by the second.
 *
 * Several axes may name the same dim: t@node,t@gpu nests. In text the entries of one dim stand in the mesh's order of
 * axes (t@gpu,t@node is refused: it nests no other way, and a move between the two would move nothing); a heddle_layout
 * has no order of its own. Explicit lengths may contain zeros, add up to the extent, and stand on the outermost axis of
 * a dim only. Extents may be 0 or smaller than the
 * number of ranks: some ranks are then empty. Nothing is ever padded.
 *
 * In text, blanks are free between tokens, names are [a-z][a-z0-9_]* of at most 15 characters, numbers are decimal, and
 * "sum" is no dim's name. Index arithmetic for kernels and device code is in heddle/sys/index.h.
 *
 * All functions are pure, may be called from any thread, write their outputs only on HEDDLE_OK and own nothing. An
 * output may be (part of) an input.
 */
#ifndef HEDDLE_LAYOUT_H
#define HEDDLE_LAYOUT_H

#include <heddle/export.h>
#include <heddle/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    HEDDLE_MAX_DIMS = 8,
    HEDDLE_MAX_AXES = 4,
    HEDDLE_NAME_BYTES = 16,        /* with the terminating 0; names are [a-z][a-z0-9_]* */
    HEDDLE_MAX_SHARDS = 128,       /* explicit shard lengths in one layout, all axes together */
    HEDDLE_MAX_RANKS = 1048576,    /* ranks of a mesh: one may be planned for that nobody has yet */
    HEDDLE_COMM_MAX_RANKS = 65536, /* ranks of a communicator */
    HEDDLE_LINE_BYTES = 6144       /* enough for any formatted text form */
};

/* name in text, bytes per element */
#define HEDDLE_DTYPE_LIST(X)                                                                                           \
    X(F64, "f64", 8)                                                                                                   \
    X(F32, "f32", 4)                                                                                                   \
    X(F16, "f16", 2)                                                                                                   \
    X(BF16, "bf16", 2)                                                                                                 \
    X(F8E4M3, "f8e4m3", 1)                                                                                             \
    X(F8E5M2, "f8e5m2", 1)                                                                                             \
    X(I64, "i64", 8)                                                                                                   \
    X(I32, "i32", 4)                                                                                                   \
    X(I8, "i8", 1)                                                                                                     \
    X(U8, "u8", 1)                                                                                                     \
    X(BOOL, "bool", 1)

typedef enum heddle_dtype {
#define HEDDLE_DTYPE_ENUM(name, text, bytes) HEDDLE_##name,
    HEDDLE_DTYPE_LIST(HEDDLE_DTYPE_ENUM)
#undef HEDDLE_DTYPE_ENUM
        HEDDLE_DTYPE_COUNT
} heddle_dtype;

typedef struct heddle_dim {
    char name[HEDDLE_NAME_BYTES];
    int64_t extent; /* >= 0 */
} heddle_dim;

/* The global tensor. dim[0] is the slowest in memory. Names differ; none is "sum". The product of the extents, with 1
 * for every 0, is at most 2^62 bytes. */
typedef struct heddle_shape {
    heddle_dtype dtype;
    int ndim; /* 1..8 */
    heddle_dim dim[HEDDLE_MAX_DIMS];
} heddle_shape;

typedef struct heddle_axis {
    char name[HEDDLE_NAME_BYTES];
    int size; /* >= 1 */
} heddle_axis;

/* rank = ((c0 * size1 + c1) * size2 + c2) ...; names differ, sizes multiply to at most HEDDLE_MAX_RANKS. */
typedef struct heddle_mesh {
    int naxes; /* 1..4 */
    heddle_axis axis[HEDDLE_MAX_AXES];
} heddle_mesh;

/* Values of dim_of_axis besides a dim index */
enum { HEDDLE_REPLICATED = -1, HEDDLE_PARTIAL = -2 };

/* dim_of_axis[a]: the dim that axis a shards, HEDDLE_REPLICATED or HEDDLE_PARTIAL; entries from naxes on mean nothing.
 * Explicit shard lengths are kept in shard_len[], those of axis 0 first: axis a owns nshards[a] of them (the axis's
 * size), 0 = balanced. Fill in after heddle_layout_replicated(), or parse a text. */
typedef struct heddle_layout {
    int dim_of_axis[HEDDLE_MAX_AXES];
    int nshards[HEDDLE_MAX_AXES];
    int64_t shard_len[HEDDLE_MAX_SHARDS];
} heddle_layout;

/* Memory order of a local array: dim[0] is the slowest. ndim == 0 means the shape's own order. */
typedef struct heddle_order {
    int ndim;
    int dim[HEDDLE_MAX_DIMS];
} heddle_order;

/* Half-open ranges lo[d] <= i < lo[d] + len[d] in global coordinates, per dim of the shape. */
typedef struct heddle_box {
    int ndim;
    int64_t lo[HEDDLE_MAX_DIMS];
    int64_t len[HEDDLE_MAX_DIMS];
} heddle_box;

/* 0 and "unknown" for a value outside the list. */
HEDDLE_API size_t heddle_dtype_bytes(heddle_dtype dtype);
HEDDLE_API const char *heddle_dtype_name(heddle_dtype dtype);

/* Text to value. The whole text must be consumed. The sentence begins with "shape, column N: ", N counted from 1.
 * HEDDLE_ERR_PARSE: the text does not follow the form, or a number in it is beyond 2^62; N is the first wrong
 * character.
 * HEDDLE_ERR_LAYOUT: well formed, but it contradicts itself, the shape or the mesh (unknown or repeated name, shard
 * lengths that do not add up or stand on an inner axis, more than 2^62 bytes or HEDDLE_MAX_RANKS ranks, ...).
 * HEDDLE_ERR_ARG: a pointer is NULL. Shard lengths that are the balanced ones are dropped. */
HEDDLE_CHECKED heddle_status heddle_shape_parse(heddle_shape *out, const char *text);
HEDDLE_CHECKED heddle_status heddle_mesh_parse(heddle_mesh *out, const char *text);
HEDDLE_CHECKED heddle_status heddle_layout_parse(heddle_layout *out, const char *text, const heddle_shape *shape,
                                                 const heddle_mesh *mesh);

/* Value to text, 0-terminated, in the shortest form, entries of a layout in the mesh's order of axes; reading it back
 * gives an equal value. HEDDLE_ERR_ARG: out is NULL or out_bytes too few (HEDDLE_LINE_BYTES always do).
 * HEDDLE_ERR_LAYOUT: the value is not valid, see the checks below. */
HEDDLE_CHECKED heddle_status heddle_shape_format(char *out, size_t out_bytes, const heddle_shape *shape);
HEDDLE_CHECKED heddle_status heddle_mesh_format(char *out, size_t out_bytes, const heddle_mesh *mesh);
HEDDLE_CHECKED heddle_status heddle_layout_format(char *out, size_t out_bytes, const heddle_layout *layout,
                                                  const heddle_shape *shape, const heddle_mesh *mesh);

/* Check a value made by hand. HEDDLE_ERR_LAYOUT says what is wrong, HEDDLE_ERR_ARG: a pointer is NULL. The layout's
 * check includes those of shape and mesh. */
HEDDLE_CHECKED heddle_status heddle_shape_check(const heddle_shape *shape);
HEDDLE_CHECKED heddle_status heddle_mesh_check(const heddle_mesh *mesh);
HEDDLE_CHECKED heddle_status heddle_layout_check(const heddle_layout *layout, const heddle_shape *shape,
                                                 const heddle_mesh *mesh);

/* A layout that is replicated over every axis. */
HEDDLE_API heddle_layout heddle_layout_replicated(void);
/* 1 when both put every element on the same ranks in the same way; explicit lengths that are the balanced ones equal
 * none. Both must be valid on the mesh. 0 when a pointer is NULL. */
HEDDLE_API int heddle_layout_equal(const heddle_layout *a, const heddle_layout *b, const heddle_mesh *mesh);

/* The layout of a gradient of something in `layout`: replicated becomes partial sums and the other way round, the rest
 * stays. The adjoint of a reshard goes from the dual of `to` to the dual of `from`. Pure.
 * NULL: partial sums over every axis, the dual of replicated. */
HEDDLE_API heddle_layout heddle_layout_dual(const heddle_layout *layout);

HEDDLE_API int heddle_mesh_size(const heddle_mesh *mesh); /* ranks; NULL: 0 */
/* coords[0..naxes-1]; room for HEDDLE_MAX_AXES always does. HEDDLE_ERR_ARG: NULL, rank is not in 0..size-1. */
HEDDLE_CHECKED heddle_status heddle_mesh_coords(int *coords, const heddle_mesh *mesh, int rank);
HEDDLE_API int heddle_dim_index(const heddle_shape *shape, const char *name); /* -1: no such dim, or NULL */
HEDDLE_API int heddle_axis_index(const heddle_mesh *mesh, const char *name);  /* -1: no such axis, or NULL */

/* The part of the tensor that `rank` holds; with partial sums, the part it holds addends of. Empty ranges (len 0) are
 * legal. HEDDLE_ERR_ARG: NULL, no such rank; HEDDLE_ERR_LAYOUT: the values are not valid. */
HEDDLE_CHECKED heddle_status heddle_layout_box(heddle_box *out, const heddle_shape *shape, const heddle_mesh *mesh,
                                               const heddle_layout *layout, int rank);
HEDDLE_API int64_t heddle_box_elems(const heddle_box *box); /* NULL: 0 */

/* Strides in elements, per dim of the shape (not of the order), of the dense local array of `box` in memory order
 * `order` (NULL = the shape's): stride_elems[0..ndim-1]. An extent of 0 counts as 1. The order must be a permutation.
 * Nothing is done when stride_elems or box is NULL. stride_elems may be box->len. */
HEDDLE_API void heddle_box_strides(int64_t *stride_elems, const heddle_box *box, const heddle_order *order);

/* *out_bytes: from the first element of a local array of `box` with these strides (in elements, per dim of the shape)
 * to behind its last one; 0 where the box is empty. A stride of a dim with one element or none means nothing. This is
 * the check of strides of every call that takes some. HEDDLE_ERR_ARG: NULL; a box that is not of the shape; a negative
 * stride; an array that reaches beyond 2^62 bytes; is_written, and elements share memory: in ascending order each
 * stride has to step over all that the smaller ones reach. HEDDLE_ERR_LAYOUT: the shape is not valid. */
HEDDLE_API heddle_status heddle_box_reach(int64_t *out_bytes, const heddle_box *box, const int64_t *stride_elems,
                                          const heddle_shape *shape, int is_written);

#ifdef __cplusplus
}
#endif

#endif
