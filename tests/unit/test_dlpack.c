/* DLPack's tensors as heddle's: every field, and every refusal with its numbers. */
#include "case.h"

#include <heddle/dlpack.h>
#include <heddle/heddle.h>
#include <string.h>

/* dlpack.h 1.1 as its users see it, written here once more: the judge of the header's own copy. */
typedef struct {
    int device_type; /* an enum in C, of int's size */
    int32_t device_id;
} DLDevice;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct problem {
    heddle_reshard_line line;
    int64_t extent[3], stride[3];
    float memory[64];
    DLTensor dl;
    heddle_tensor out;
} problem;

/* Rank 1 of 2 has rows 3..4 of t. */
static void make(problem *p)
{
    memset(p, 0, sizeof *p);
    HD_OK(heddle_reshard_parse(&p->line, "f32[t=5 s=4 c=2] on [sp=2]: t@sp -> s@sp"));
    memcpy(p->extent, (int64_t[]){2, 4, 2}, sizeof p->extent);
    memcpy(p->stride, (int64_t[]){1, 6, 2}, sizeof p->stride);
    p->dl = (DLTensor){p->memory, {1, 0}, 3, {2, 32, 1}, p->extent, NULL, 0};
}

static heddle_status take(problem *p)
{
    return heddle_tensor_from_dlpack(&p->out, &p->dl, &p->line.shape, &p->line.mesh, &p->line.from, 1);
}

HD_CASE(dense_and_strided)
{
    problem p;
    make(&p);
    HD_OK(take(&p));
    heddle_tensor wanted;
    HD_OK(heddle_tensor_init(&wanted, p.memory, &p.line.shape, &p.line.mesh, &p.line.from, NULL, 1));
    assert_ptr_equal(p.out.data, p.memory);
    assert_int_equal(p.out.capacity_bytes, wanted.capacity_bytes);
    assert_memory_equal(p.out.stride_elems, wanted.stride_elems, 3 * sizeof(int64_t));
    assert_memory_equal(&p.out.layout, &p.line.from, sizeof p.line.from);
    assert_int_equal(p.out.space, HEDDLE_SPACE_HOST);
    p.dl.strides = p.stride;
    p.dl.byte_offset = 12;
    HD_OK(take(&p));
    assert_ptr_equal(p.out.data, p.memory + 3);
    assert_int_equal(p.out.capacity_bytes, (1 * 1 + 3 * 6 + 1 * 2 + 1) * 4);
    assert_memory_equal(p.out.stride_elems, p.stride, sizeof p.stride);
}

HD_CASE(places)
{
    static const struct {
        int type;
        heddle_space space;
        int device;
    } known[] = {{1, HEDDLE_SPACE_HOST, 0},
                 {3, HEDDLE_SPACE_HOST, 0},
                 {2, HEDDLE_SPACE_DEVICE, 5},
                 {13, HEDDLE_SPACE_DEVICE, 5}};
    problem p;
    make(&p);
    for (int i = 0; i < 4; i++) {
        p.dl.device = (DLDevice){known[i].type, 5};
        HD_OK(take(&p));
        assert_int_equal(p.out.space, known[i].space);
        assert_int_equal(p.out.device, known[i].device);
    }
    p.dl.device.device_type = 10;
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, take(&p));
    assert_non_null(strstr(heddle_last_error(), "type 10"));
}

HD_CASE(every_dtype)
{
    static const DLDataType type[HEDDLE_DTYPE_COUNT] = {
        [HEDDLE_F64] = {2, 64, 1},  [HEDDLE_F32] = {2, 32, 1},    [HEDDLE_F16] = {2, 16, 1},
        [HEDDLE_BF16] = {4, 16, 1}, [HEDDLE_F8E4M3] = {10, 8, 1}, [HEDDLE_F8E5M2] = {12, 8, 1},
        [HEDDLE_I64] = {0, 64, 1},  [HEDDLE_I32] = {0, 32, 1},    [HEDDLE_I8] = {0, 8, 1},
        [HEDDLE_U8] = {1, 8, 1},    [HEDDLE_BOOL] = {6, 8, 1},
    };
    problem p;
    make(&p);
    for (int of = 0; of < HEDDLE_DTYPE_COUNT; of++) {
        for (int as = 0; as < HEDDLE_DTYPE_COUNT; as++) {
            p.dl.dtype = type[of];
            p.line.shape.dtype = (heddle_dtype)as;
            HD_FAILS(of == as ? HEDDLE_OK : HEDDLE_ERR_UNSUPPORTED, take(&p));
            assert_true(of != as || p.out.capacity_bytes == 16 * heddle_dtype_bytes((heddle_dtype)as));
        }
    }
    p.line.shape.dtype = HEDDLE_F32;
    p.dl.dtype = (DLDataType){2, 32, 4};
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, take(&p));
    assert_non_null(strstr(heddle_last_error(), "code 2, 32 bits, 4 lanes; f32 is code 2, 32 bits, 1 lane"));
}

HD_CASE(refusals)
{
    problem p;
    make(&p);
    p.out.device = 77; /* stays */
    p.dl.ndim = 2;
    HD_FAILS(HEDDLE_ERR_LAYOUT, take(&p));
    assert_non_null(strstr(heddle_last_error(), "2 dims, the shape has 3"));
    make(&p);
    p.out.device = 77;
    p.extent[1] = 5;
    HD_FAILS(HEDDLE_ERR_LAYOUT, take(&p));
    assert_non_null(strstr(heddle_last_error(), "dim 1 ('s') of the DLTensor has 5 elements, this rank's part has 4"));
    make(&p);
    p.out.device = 77;
    p.dl.strides = p.stride;
    p.stride[2] = -1;
    HD_FAILS(HEDDLE_ERR_ARG, take(&p));
    assert_non_null(strstr(heddle_last_error(), "the DLTensor: stride of dim c is -1 elements, less than 0"));
    p.dl.strides = NULL;
    p.dl.data = NULL;
    HD_FAILS(HEDDLE_ERR_ARG, take(&p));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_tensor_from_dlpack(&p.out, &p.dl, &p.line.shape, &p.line.mesh, &p.line.from, 2));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_tensor_from_dlpack(&p.out, NULL, &p.line.shape, &p.line.mesh, &p.line.from, 1));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_tensor_from_dlpack(&p.out, &p.dl, NULL, &p.line.mesh, &p.line.from, 1));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_tensor_from_dlpack(&p.out, &p.dl, &p.line.shape, NULL, &p.line.from, 1));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_tensor_from_dlpack(&p.out, &p.dl, &p.line.shape, &p.line.mesh, NULL, 1));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_tensor_from_dlpack(NULL, &p.dl, &p.line.shape, &p.line.mesh, &p.line.from, 1));
    assert_int_equal(p.out.device, 77);
}

/* What a producer of wrong numbers may hand over: refused in a sentence, nothing is written. */
HD_CASE(nonsense)
{
    static const int64_t far[][3] = {{INT64_MAX, 6, 2},
                                     {(int64_t)1 << 62, 6, 2},
                                     {1, (int64_t)1 << 62, 2},
                                     {1, (int64_t)1 << 61, 2},
                                     {1, 6148914691236517206, 2}}; /* 3 times that is 2 + 2^64 */
    const struct {
        const char *why;
        int far; /* row of `far`, -1: as they are */
        int64_t *shape;
        int is_cuda, device;
        uint64_t byte_offset;
    } row[] = {
        {"3 dims, but its shape is NULL", -1, NULL, 0, 0, 0},
        {"stride of dim t is 9223372036854775807 elements", 0, (int64_t *)1, 0, 0, 0},
        {"stride of dim t is 4611686018427387904 elements", 1, (int64_t *)1, 0, 0, 0},
        {"stride of dim s is 4611686018427387904 elements", 2, (int64_t *)1, 0, 0, 0},
        {"stride of dim s is 2305843009213693952 elements", 3, (int64_t *)1, 0, 0, 0},
        {"stride of dim s is 6148914691236517206 elements", 4, (int64_t *)1, 0, 0, 0},
        {"no multiple of the 4 bytes of f32", -1, (int64_t *)1, 0, 0, 1},
        {"beyond the last address", -1, (int64_t *)1, 0, 0, UINT64_MAX - 3}, /* before data, if it wrapped */
        {"on device -7", -1, (int64_t *)1, 1, -7, 0},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        problem p;
        make(&p);
        p.out.device = 77; /* stays */
        p.dl.shape = row[i].shape == NULL ? NULL : p.extent;
        if (row[i].far >= 0) {
            memcpy(p.stride, far[row[i].far], sizeof p.stride);
            p.dl.strides = p.stride;
        }
        p.dl.byte_offset = row[i].byte_offset;
        p.dl.device = row[i].is_cuda ? (DLDevice){2, row[i].device} : p.dl.device;
        HD_FAILS(HEDDLE_ERR_ARG, take(&p));
        assert_non_null(strstr(heddle_last_error(), row[i].why));
        assert_int_equal(p.out.device, 77);
    }
}

/* A rank whose part is empty may have no memory. */
HD_CASE(empty_part)
{
    problem p;
    make(&p);
    HD_OK(heddle_reshard_parse(&p.line, "f32[t=1 s=4 c=2] on [sp=2]: t@sp -> s@sp"));
    p.extent[0] = 0;
    p.dl.data = NULL;
    HD_OK(take(&p));
    assert_null(p.out.data);
    assert_int_equal(p.out.capacity_bytes, 0);
}
