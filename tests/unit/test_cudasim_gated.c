/* Rows that a push gives their change on the way: the bits of gate_residual and a push behind it. One rank. */
#include "case.h"
#include "cudasim.h"
#include "draw.h"
#include "kernels/table_device.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) assert_int_equal(call, cudaSuccess)

enum { MOST_PARTS = 4, VECTORS = 6 };

static const hd_device_kernels *device;
static cudaStream_t stream;

/* Activations [samples][t][s][c] whose s is dealt to parts, as the switch t -> s does. */
typedef struct problem {
    heddle_dtype dtype;
    int64_t samples, t, s, c, elem, bytes, rows;
    int parts, has_gate, has_keep;
    int64_t cut[MOST_PARTS + 1];
    hd_device_box box[MOST_PARTS];
    char *x, *kept, *apart, *there; /* x, where it is kept, and where the parts lie */
    float *y, *vector;
    hd_device_gate gate;
} problem;

static void *random_on_device(int64_t elems, heddle_dtype dtype)
{
    const size_t elem = heddle_dtype_bytes(dtype), bytes = (size_t)elems * elem;
    char *host = malloc(bytes + 1);
    void *memory = NULL;
    for (int64_t i = 0; i < elems; i++) {
        const float value = (float)(below(2001) - 1000) / 256.0F;
        uint32_t bits = 0;
        memcpy(&bits, &value, sizeof bits);
        bits = dtype == HEDDLE_BF16 ? bits >> 16 : dtype == HEDDLE_F16 ? 0x3000U + (uint32_t)below(0x1000) : bits;
        memcpy(host + (size_t)i * elem, &bits, elem);
    }
    OK(cudaMalloc(&memory, bytes + 1));
    OK(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice));
    free(host);
    return memory;
}

static void cut(problem *p)
{
    p->cut[p->parts] = p->s;
    for (int i = 1; i < p->parts; i++) {
        p->cut[i] = between((int)p->cut[i - 1], (int)p->s); /* some get nothing */
    }
    for (int i = 0; i < p->parts; i++) {
        const int64_t row = p->c * p->elem, length = p->cut[i + 1] - p->cut[i];
        p->box[i] = (hd_device_box){.run_bytes = length * row,
                                    .nloops = 2,
                                    .src_offset_bytes = p->cut[i] * row,
                                    .dst_offset_bytes = p->samples * p->t * p->cut[i] * row,
                                    .count = {p->samples, p->t},
                                    .src_stride_bytes = {p->t * p->s * row, p->s * row},
                                    .dst_stride_bytes = {p->t * length * row, length * row}};
    }
}

static void problem_make(problem *p)
{
    static const heddle_dtype dtypes[] = {HEDDLE_F32, HEDDLE_BF16, HEDDLE_F16};
    memset(p, 0, sizeof *p);
    p->dtype = dtypes[below(3)];
    p->elem = (int64_t)heddle_dtype_bytes(p->dtype);
    p->samples = between(1, 3);
    p->t = between(1, 4);
    p->s = between(1, 9);
    p->c = 16 / p->elem * between(1, 20);
    p->rows = p->samples * p->t * p->s;
    p->bytes = p->rows * p->c * p->elem;
    p->parts = between(1, MOST_PARTS);
    p->has_gate = below(3) > 0;
    p->has_keep = below(2);
    cut(p);
    p->x = random_on_device(p->rows * p->c, p->dtype);
    p->y = random_on_device(p->rows * p->c, HEDDLE_F32);
    p->vector = random_on_device(p->samples * VECTORS * p->c, HEDDLE_F32);
    OK(cudaMalloc((void **)&p->kept, (size_t)p->bytes));
    OK(cudaMalloc((void **)&p->apart, (size_t)p->bytes));
    OK(cudaMalloc((void **)&p->there, (size_t)p->bytes));
    OK(cudaMemset(p->there, 0x5a, (size_t)p->bytes));
    p->gate = (hd_device_gate){.rows = {p->dtype, p->rows, p->c, below(4) > 0 ? p->t * p->s : 0, VECTORS * p->c},
                               .y = p->y,
                               .gate = p->has_gate ? p->vector + 2 * p->c : NULL,
                               .keep = p->has_keep ? p->kept : NULL};
}

static void problem_free(problem *p)
{
    void *const memory[] = {p->x, p->y, p->vector, p->kept, p->apart, p->there};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        OK(cudaFree(memory[i]));
    }
}

static char *fetched(const void *from, int64_t bytes)
{
    char *host = malloc((size_t)bytes);
    OK(cudaMemcpy(host, from, (size_t)bytes, cudaMemcpyDeviceToHost));
    return host;
}

/* gate: NULL, what is there is pushed as it is. */
static int push(const problem *p, void *dst, const hd_device_gate *gate)
{
    const int blocks = below(9);
    const size_t bytes = device->list_bytes(p->box, p->parts, blocks);
    const void *src = p->x;
    void *list = malloc(bytes), *on_device = NULL;
    device->list_make(list, p->box, p->parts, blocks);
    assert_true(device->takes_gate(list));
    OK(cudaMalloc(&on_device, bytes));
    OK(cudaMemcpy(on_device, list, bytes, cudaMemcpyHostToDevice));
    const hd_device_move move = {list, on_device, 1, 1, &src, &dst, NULL};
    const int code = gate != NULL ? device->push_gated(&move, gate, stream) : device->push(&move, stream);
    OK(cudaStreamSynchronize(stream));
    OK(cudaFree(on_device));
    free(list);
    return code;
}

static void begin(void)
{
    device = &hd_kernels_cuda;
    OK(device->load());
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
}

HD_CASE(a_gated_push_has_the_bits_of_two_launches)
{
    begin();
    for (int round = 0; round < hd_rounds(60); round++) {
        problem p;
        problem_make(&p);
        char *before = fetched(p.x, p.bytes);
        OK(push(&p, p.there, &p.gate));
        char *got = fetched(p.there, p.bytes), *left = fetched(p.x, p.bytes), *kept = fetched(p.kept, p.bytes);
        assert_memory_equal(left, before, (size_t)p.bytes);
        if (p.has_keep) {
            assert_memory_equal(kept, before, (size_t)p.bytes);
        }
        OK(device->gate_residual(&p.gate.rows, p.x, p.y, HEDDLE_F32, p.gate.gate, NULL, stream));
        OK(push(&p, p.apart, NULL));
        char *wanted = fetched(p.apart, p.bytes);
        assert_memory_equal(got, wanted, (size_t)p.bytes);
        free(before);
        free(got);
        free(left);
        free(kept);
        free(wanted);
        problem_free(&p);
    }
    OK(cudaStreamDestroy(stream));
    assert_int_equal(hd_sim_device_bytes(), 0);
}

/* Rows, or what goes with them, beside multiples of 16, and boxes of narrower vectors, are not begun with. */
HD_CASE(what_no_gated_push_takes_is_refused)
{
    begin();
    problem p;
    problem_make(&p);
    hd_device_gate gate = p.gate;
    gate.y = p.y + 1;
    assert_int_equal(push(&p, p.there, &gate), cudaErrorInvalidValue);
    gate = p.gate;
    gate.gate = p.vector + 1;
    assert_int_equal(push(&p, p.there, &gate), cudaErrorInvalidValue);
    gate = p.gate;
    gate.rows.c -= 1;
    assert_int_equal(push(&p, p.there, &gate), cudaErrorInvalidValue);
    gate = p.gate;
    gate.rows.dtype = HEDDLE_F64;
    assert_int_equal(push(&p, p.there, &gate), cudaErrorInvalidValue);
    hd_device_box box = {.run_bytes = 24, .src_offset_bytes = 16};
    void *list = calloc(1, device->list_bytes(&box, 1, 1));
    device->list_make(list, &box, 1, 1);
    assert_false(device->takes_gate(list));
    free(list);
    problem_free(&p);
    OK(cudaStreamDestroy(stream));
}
