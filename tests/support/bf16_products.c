/* kernels/gemm.h on a CPU with products of bf16, emulated: in the place of oneDNN's for rows of bf16 where
 * HEDDLE_TEST_BF16_PRODUCTS is set, so that the limits of judges are tried with such products on every CPU. Programs
 * link it with --wrap (CMakeLists.txt).
 *
 * An emulated layer is known by an odd address. */
#include "bf16_products.h"

#include "kernels/gemm.h"
#include "kernels/small_float.h"
#include "runtime/base/base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct layer {
    const hd_kernels *kernels;
    int64_t k, n;
    heddle_dtype dst_dtype;
    int whole, halves;
    int64_t seat_elems;
    float *weight; /* [halves][k, even][n] */
    float *bias;
    float *row; /* of a seat: sums [n], then the row [k, even] */
} layer;

static int emulates(void)
{
    return getenv("HEDDLE_TEST_BF16_PRODUCTS") != NULL;
}

static layer *layer_of(const void *address)
{
    return (uintptr_t)address & 1 ? (layer *)((uintptr_t)address - 1) : NULL;
}

static int64_t even(int64_t k)
{
    return k + (k & 1);
}

static float as_bf16(float x)
{
    return hd_f32_from_bf16(hd_bf16_from_f32(x));
}

#define REAL(type, name, ...)                                                                                          \
    type __real_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__);

REAL(heddle_status, hd_gemm_create, hd_gemm **out, const hd_kernels *kernels, int64_t k, int64_t n, heddle_dtype src,
     heddle_dtype dst, int seats)
REAL(void, hd_gemm_destroy, hd_gemm *gemm)
REAL(void, hd_gemm_whole_weights, hd_gemm *gemm)
REAL(heddle_status, hd_gemm_pack, hd_gemm *gemm, const float *weight, const float *bias)
REAL(heddle_status, hd_gemm_pack_transposed, hd_gemm *gemm, const float *weight)
REAL(heddle_status, hd_gemm_run, hd_gemm *gemm, int seat, void *dst, const void *src, int64_t rows)
REAL(int, hd_gemm_narrow, const hd_gemm *gemm)
REAL(int64_t, hd_gemm_bytes, const hd_gemm *gemm)
REAL(heddle_status, hd_gemm_outer_create, hd_gemm_outer **out, int seats)
REAL(void, hd_gemm_outer_destroy, hd_gemm_outer *outer)
REAL(heddle_status, hd_gemm_outer_run, hd_gemm_outer *outer, int seat, const hd_outer_product *product)

heddle_status __wrap_hd_gemm_create(hd_gemm **out, const hd_kernels *kernels, int64_t k, int64_t n, heddle_dtype src,
                                    heddle_dtype dst, int seats)
{
    if (!emulates() || src != HEDDLE_BF16) {
        return __real_hd_gemm_create(out, kernels, k, n, src, dst, seats);
    }
    heddle_status st = HEDDLE_OK;
    layer *made = NULL;
    HD_TRY(hd_alloc((void **)&made, 1, sizeof *made, "an emulated layer"));
    *made = (layer){.kernels = kernels, .k = k, .n = n, .dst_dtype = dst, .halves = 1, .seat_elems = n + even(k)};
    *out = (hd_gemm *)((uintptr_t)made + 1);
    HD_TRY(hd_alloc((void **)&made->weight, (size_t)(2 * even(k) * n), sizeof(float), "emulated weights"));
    HD_TRY(hd_alloc((void **)&made->bias, (size_t)n, sizeof(float), "an emulated bias"));
    HD_TRY(hd_alloc((void **)&made->row, (size_t)(seats * made->seat_elems), sizeof(float), "emulated rows"));
out:
    if (st != HEDDLE_OK && made != NULL) {
        __wrap_hd_gemm_destroy(*out);
        *out = NULL;
    }
    return st;
}

void __wrap_hd_gemm_destroy(hd_gemm *gemm)
{
    layer *l = layer_of(gemm);
    if (l == NULL) {
        __real_hd_gemm_destroy(gemm);
        return;
    }
    HD_FREE_ALL(l->weight, l->bias, l->row, l);
}

void __wrap_hd_gemm_whole_weights(hd_gemm *gemm)
{
    if (layer_of(gemm) != NULL) {
        layer_of(gemm)->whole = 1;
    } else {
        __real_hd_gemm_whole_weights(gemm);
    }
}

/* Weight (i, o) lies at i * in + o * out. */
static void pack(layer *l, const float *weight, const float *bias, int64_t in, int64_t out, int whole)
{
    l->halves = 1 + whole;
    memset(l->weight, 0, (size_t)(2 * even(l->k) * l->n) * sizeof(float));
    for (int64_t i = 0; i < l->k; i++) {
        for (int64_t o = 0; o < l->n; o++) {
            float value = weight[i * in + o * out], nearest = as_bf16(value);
            l->weight[i * l->n + o] = nearest;
            l->weight[(even(l->k) + i) * l->n + o] = whole ? as_bf16(value - nearest) : 0;
        }
    }
    for (int64_t o = 0; o < l->n; o++) {
        l->bias[o] = bias != NULL ? bias[o] : 0;
    }
}

heddle_status __wrap_hd_gemm_pack(hd_gemm *gemm, const float *weight, const float *bias)
{
    layer *l = layer_of(gemm);
    if (l == NULL) {
        return __real_hd_gemm_pack(gemm, weight, bias);
    }
    pack(l, weight, bias, 1, l->k, l->whole);
    return HEDDLE_OK;
}

heddle_status __wrap_hd_gemm_pack_transposed(hd_gemm *gemm, const float *weight)
{
    layer *l = layer_of(gemm);
    if (l == NULL) {
        return __real_hd_gemm_pack_transposed(gemm, weight);
    }
    pack(l, weight, NULL, l->n, 1, 0);
    return HEDDLE_OK;
}

static void add_pairs(float *sum, const float *x, const float *weight, int64_t k, int64_t n)
{
    for (int64_t i = 0; i < k; i += 2) {
        for (int64_t o = 0; o < n; o++) {
            const float pair[] = {weight[i * n + o], weight[(i + 1) * n + o]};
            sum[o] = bf16_pair(sum[o], x + i, pair);
        }
    }
}

heddle_status __wrap_hd_gemm_run(hd_gemm *gemm, int seat, void *dst, const void *src, int64_t rows)
{
    layer *l = layer_of(gemm);
    if (l == NULL) {
        return __real_hd_gemm_run(gemm, seat, dst, src, rows);
    }
    float *sum = l->row + seat * l->seat_elems, *x = sum + l->n;
    for (int64_t r = 0; r < rows; r++) {
        memset(sum, 0, (size_t)l->n * sizeof *sum);
        l->kernels->convert(x, HEDDLE_F32, (const uint16_t *)src + r * l->k, HEDDLE_BF16, l->k);
        for (int half = 0; half < l->halves; half++) {
            add_pairs(sum, x, l->weight + half * even(l->k) * l->n, even(l->k), l->n);
        }
        for (int64_t o = 0; o < l->n; o++) {
            sum[o] += l->bias[o];
        }
        l->kernels->convert((char *)dst + (size_t)(r * l->n) * heddle_dtype_bytes(l->dst_dtype), l->dst_dtype, sum,
                            HEDDLE_F32, l->n);
    }
    return HEDDLE_OK;
}

int __wrap_hd_gemm_narrow(const hd_gemm *gemm)
{
    return layer_of(gemm) != NULL ? 1 : __real_hd_gemm_narrow(gemm);
}

int64_t __wrap_hd_gemm_bytes(const hd_gemm *gemm)
{
    const layer *l = layer_of(gemm);
    return l != NULL ? 2 * even(l->k) * l->n * (int64_t)sizeof(float) : __real_hd_gemm_bytes(gemm);
}

/* --- gradients of weights ----------------------------------------------------------------------------------------- */

static char any_outer[2];

heddle_status __wrap_hd_gemm_outer_create(hd_gemm_outer **out, int seats)
{
    if (!emulates()) {
        return __real_hd_gemm_outer_create(out, seats);
    }
    *out = (hd_gemm_outer *)(void *)any_outer;
    return HEDDLE_OK;
}

void __wrap_hd_gemm_outer_destroy(hd_gemm_outer *outer)
{
    if ((void *)outer != (void *)any_outer) {
        __real_hd_gemm_outer_destroy(outer);
    }
}

heddle_status __wrap_hd_gemm_outer_run(hd_gemm_outer *outer, int seat, const hd_outer_product *p)
{
    if ((void *)outer != (void *)any_outer) {
        return __real_hd_gemm_outer_run(outer, seat, p);
    }
    const uint16_t *dy = p->dy, *x = p->x;
    for (int64_t i = 0; i < p->n; i++) {
        for (int64_t j = 0; j < p->k; j++) {
            float sum = 0;
            for (int64_t r = 0; r < p->rows; r += 2) {
                int more = r + 1 < p->rows;
                const float a[] = {hd_f32_from_bf16(dy[r * p->dy_stride + i]),
                                   more ? hd_f32_from_bf16(dy[(r + 1) * p->dy_stride + i]) : 0};
                const float b[] = {hd_f32_from_bf16(x[r * p->k + j]),
                                   more ? hd_f32_from_bf16(x[(r + 1) * p->k + j]) : 0};
                sum = bf16_pair(sum, a, b);
            }
            p->dw[i * p->k + j] = sum + (p->add ? p->dw[i * p->k + j] : 0);
        }
    }
    return HEDDLE_OK;
}
