/* Tensors of other frameworks, as DLPack hands them over (torch.Tensor.__dlpack__, CuPy, JAX, TVM): the address of a
 * DLTensor becomes a heddle_tensor. Header only; the layout of a DLTensor is written out below, so that no other header
 * is needed, and it goes together with dlpack.h.
 *
 *     DLManagedTensor *managed = PyCapsule_GetPointer(capsule, "dltensor");
 *     heddle_tensor x;
 *     st = heddle_tensor_from_dlpack(&x, &managed->dl_tensor, &shape, &mesh, &layout, heddle_comm_rank(comm));
 *     st = st ? st : heddle_session_enter(session, "s.attn", &x, NULL, stream);
 */
#ifndef HEDDLE_DLPACK_H
#define HEDDLE_DLPACK_H

#include <heddle/tensor.h>
#include <stddef.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__cplusplus) && defined(__GNUC__) && !defined(__CUDACC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast" /* inline functions for C and C++ alike */
#endif

/* What a DLTensor is in memory, the same in every version of DLPack up to 1.x. */
struct heddle_dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits; /* of an element */
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: dense, row-major */
    uint64_t byte_offset;
};

/* What a DLManagedTensor is: a tensor, and how to say that one has done with it (heddle/pool.h). */
struct heddle_dl_managed {
    struct heddle_dl_tensor tensor;
    void *context; /* the producer's */
    void (*deleter)(struct heddle_dl_managed *self);
};

/* The numbers of DLPack that mean something here. */
enum {
    HEDDLE_DL_CPU = 1,
    HEDDLE_DL_CUDA = 2,
    HEDDLE_DL_CUDA_HOST = 3, /* pinned: memory of the host */
    HEDDLE_DL_CUDA_MANAGED = 13
};

/* The pair (code, bits) of a dtype; 0 where it has none. */
static inline unsigned heddle_dl_type(heddle_dtype dtype)
{
    enum { INTEGER = 0, UNSIGNED = 1, FLOATING = 2, BFLOAT = 4, BOOLEAN = 6, E4M3FN = 10, E5M2 = 12 };
    switch (dtype) {
    case HEDDLE_F64:
        return FLOATING << 8 | 64;
    case HEDDLE_F32:
        return FLOATING << 8 | 32;
    case HEDDLE_F16:
        return FLOATING << 8 | 16;
    case HEDDLE_BF16:
        return BFLOAT << 8 | 16;
    case HEDDLE_F8E4M3:
        return E4M3FN << 8 | 8;
    case HEDDLE_F8E5M2:
        return E5M2 << 8 | 8;
    case HEDDLE_I64:
        return INTEGER << 8 | 64;
    case HEDDLE_I32:
        return INTEGER << 8 | 32;
    case HEDDLE_I8:
        return INTEGER << 8 | 8;
    case HEDDLE_U8:
        return UNSIGNED << 8 | 8;
    case HEDDLE_BOOL:
        return BOOLEAN << 8 | 8;
    default:
        return 0;
    }
}

/* Space and device of out, from where the DLTensor says that it lies. */
static inline heddle_status heddle_dl_place(heddle_tensor *out, const struct heddle_dl_tensor *from)
{
    const int type = from->device_type;
    if (type == HEDDLE_DL_CPU || type == HEDDLE_DL_CUDA_HOST) {
        out->space = HEDDLE_SPACE_HOST;
        out->device = 0;
        return HEDDLE_OK;
    }
    if (type == HEDDLE_DL_CUDA || type == HEDDLE_DL_CUDA_MANAGED) {
        if (from->device_id < 0) {
            return heddle_set_error(HEDDLE_ERR_ARG, "the DLTensor is on device %d, less than 0", (int)from->device_id);
        }
        out->space = HEDDLE_SPACE_DEVICE;
        out->device = (int)from->device_id;
        return HEDDLE_OK;
    }
    return heddle_set_error(HEDDLE_ERR_UNSUPPORTED,
                            "the DLTensor is on a device of DLPack's type %d; heddle takes 1 (CPU), 2 (CUDA), 3 "
                            "(pinned by CUDA) and 13 (managed by CUDA)",
                            type);
}

/* Strides and capacity of out. */
static inline heddle_status heddle_dl_strides(heddle_tensor *out, const struct heddle_dl_tensor *from,
                                              const heddle_box *box)
{
    int64_t bytes = 0;
    heddle_status st;
    heddle_box_strides(out->stride_elems, box, NULL);
    for (int d = 0; d < box->ndim; d++) {
        if (from->shape[d] != box->len[d]) {
            return heddle_set_error(HEDDLE_ERR_LAYOUT,
                                    "dim %d ('%s') of the DLTensor has %lld elements, this rank's part has %lld", d,
                                    out->shape.dim[d].name, (long long)from->shape[d], (long long)box->len[d]);
        }
        if (from->strides != NULL) {
            out->stride_elems[d] = from->strides[d];
        }
    }
    st = heddle_box_reach(&bytes, box, out->stride_elems, &out->shape, 0);
    out->capacity_bytes = (size_t)bytes;
    return st == HEDDLE_OK ? st : heddle_set_error(st, "the DLTensor: %s", heddle_last_error());
}

/* Where the elements of out begin. */
static inline heddle_status heddle_dl_data(heddle_tensor *out, const struct heddle_dl_tensor *from)
{
    const uint64_t elem_bytes = heddle_dtype_bytes(out->shape.dtype);
    const uint64_t begin = (uintptr_t)from->data, at = begin + from->byte_offset;
    out->data = NULL;
    if (from->data == NULL) {
        return out->capacity_bytes == 0
                   ? HEDDLE_OK
                   : heddle_set_error(HEDDLE_ERR_ARG, "the DLTensor's data is NULL, this rank's part has %zu bytes",
                                      out->capacity_bytes);
    }
    if (at < begin || at + out->capacity_bytes < at || at + out->capacity_bytes > UINTPTR_MAX) {
        return heddle_set_error(
            HEDDLE_ERR_ARG,
            "the DLTensor's data is at %p, its byte_offset is %llu: %zu bytes behind that end beyond "
            "the last address",
            from->data, (unsigned long long)from->byte_offset, out->capacity_bytes);
    }
    if (out->capacity_bytes > 0 && at % elem_bytes != 0) {
        return heddle_set_error(
            HEDDLE_ERR_ARG,
            "the DLTensor's elements begin at %p + %llu bytes, which is no multiple of the %zu bytes "
            "of %s",
            from->data, (unsigned long long)from->byte_offset, (size_t)elem_bytes, heddle_dtype_name(out->shape.dtype));
    }
    out->data = (char *)from->data + from->byte_offset;
    return HEDDLE_OK;
}

/* *out becomes what a DLTensor says: this rank's part of a tensor of `shape` in `layout`, its dims in the order of
 * `shape`, its extents those of heddle_layout_box for `rank`. Memory, strides, space and device are the DLTensor's. It
 * stays the owner: keep it alive, and call its deleter. Memory pinned by CUDA is the host's, managed by CUDA the
 * device's. Pure; any thread; out is unchanged on failure.
 *   HEDDLE_ERR_ARG          a pointer is NULL (data: although the part has elements; shape: although there are dims),
 *                           no such rank, strides that heddle_box_reach refuses of what is read, elements that do not
 *                           begin at a multiple of their size or lie beyond the last address (data + byte_offset), a
 *                           device below 0
 *   HEDDLE_ERR_LAYOUT       shape, mesh or layout are not valid; another number of dims or other extents
 *   HEDDLE_ERR_UNSUPPORTED  another dtype than the shape's (vectors, lanes > 1, among them), or a device of a kind that
 *                           heddle does not know; the sentence has both */
static inline heddle_status heddle_tensor_from_dlpack(heddle_tensor *out, const void *dl_tensor,
                                                      const heddle_shape *shape, const heddle_mesh *mesh,
                                                      const heddle_layout *layout, int rank)
{
    const struct heddle_dl_tensor *from = (const struct heddle_dl_tensor *)dl_tensor;
    heddle_tensor made;
    heddle_box box;
    heddle_status st;
    if (out == NULL || from == NULL || shape == NULL || mesh == NULL || layout == NULL) {
        return heddle_set_error(HEDDLE_ERR_ARG, "heddle_tensor_from_dlpack: %s is NULL",
                                out == NULL     ? "out"
                                : from == NULL  ? "dl_tensor"
                                : shape == NULL ? "shape"
                                : mesh == NULL  ? "mesh"
                                                : "layout");
    }
    st = heddle_layout_box(&box, shape, mesh, layout, rank);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (from->ndim != shape->ndim) {
        return heddle_set_error(HEDDLE_ERR_LAYOUT, "the DLTensor has %d dims, the shape has %d", (int)from->ndim,
                                shape->ndim);
    }
    if (((unsigned)from->code << 8 | from->bits) != heddle_dl_type(shape->dtype) || from->lanes != 1) {
        return heddle_set_error(HEDDLE_ERR_UNSUPPORTED,
                                "the DLTensor's elements are of DLPack's code %d, %d bits, %d lanes; %s is code %u, %u "
                                "bits, 1 lane",
                                from->code, from->bits, from->lanes, heddle_dtype_name(shape->dtype),
                                heddle_dl_type(shape->dtype) >> 8, heddle_dl_type(shape->dtype) & 255);
    }
    if (from->shape == NULL && from->ndim > 0) {
        return heddle_set_error(HEDDLE_ERR_ARG, "the DLTensor has %d dims, but its shape is NULL", (int)from->ndim);
    }
    memset(&made, 0, sizeof made);
    made.shape = *shape;
    made.layout = *layout;
    st = heddle_dl_place(&made, from);
    st = st != HEDDLE_OK ? st : heddle_dl_strides(&made, from, &box);
    st = st != HEDDLE_OK ? st : heddle_dl_data(&made, from);
    if (st != HEDDLE_OK) {
        return st;
    }
    *out = made;
    return HEDDLE_OK;
}

#if defined(__cplusplus) && defined(__GNUC__) && !defined(__CUDACC__)
#pragma GCC diagnostic pop
#endif

#ifdef __cplusplus
}
#endif

#endif
