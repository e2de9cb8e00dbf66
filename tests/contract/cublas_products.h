/* Products of libheddle_cublas over the fake cuBLASLt: a device, arrays of one product, and what they come to in double
 * precision. */
#ifndef HD_TEST_CUBLAS_PRODUCTS_H
#define HD_TEST_CUBLAS_PRODUCTS_H

#include "case.h"
#include "device_sim.h"
#include "draw.h"
#include "kernels/small_float.h"
#include "runtime/device/device.h"
#include "runtime/device/products.h"

#include <heddle/heddle.h>
#include <math.h>
#include <stdio.h>

static inline int says(const char *wanted)
{
    return strstr(heddle_last_error(), wanted) != NULL;
}

typedef struct cublas_sim {
    void (*fail_at)(int64_t n, int status);
    void (*recommend)(const char *kinds);
    void (*recommend_few)(const char *kinds);
    int (*objects)(void);
    int64_t (*products)(void);
} cublas_sim;

/* From the library as heddle loads it. */
static inline cublas_sim get_sim(void)
{
    static const char *const names[] = {"cublassim_fail_at", "cublassim_recommend", "cublassim_recommend_few",
                                        "cublassim_objects", "cublassim_products"};
    cublas_sim out;
    void *library = dlopen(HEDDLE_CUBLAS_SIM "/libheddle_cublas.so", RTLD_NOW | RTLD_LOCAL);
    HD_OK(sim_functions(&out, library, names, sizeof names / sizeof names[0]));
    return out;
}

/* A device, and the products of cuBLAS on it. */
typedef struct fixture {
    cublas_sim sim;
    device_sim device_sim;
    hd_device *device;
    hd_products *products;
} fixture;

static inline fixture begin(const char *kinds)
{
    fixture f = {.sim = get_sim()};
    f.sim.recommend(kinds);
    f.sim.recommend_few(NULL);
    HD_OK(hd_device_open(&f.device, "cuda", HEDDLE_CUBLAS_SIM, 0));
    HD_OK(device_sim_get(&f.device_sim));
    HD_OK(hd_products_open(&f.products, f.device, NULL));
    return f;
}

static inline void end(fixture *f)
{
    hd_products_close(f->products);
    hd_device_close(f->device);
    assert_int_equal(f->sim.objects(), 0);
    assert_int_equal(f->device_sim.device_bytes(), 0);
}

static inline size_t type_bytes(heddle_dtype dtype)
{
    return dtype == HEDDLE_F32 ? 4 : 2;
}

static inline float value_at(const void *x, heddle_dtype dtype, int64_t i)
{
    return dtype == HEDDLE_F32    ? ((const float *)x)[i]
           : dtype == HEDDLE_BF16 ? hd_f32_from_bf16(((const uint16_t *)x)[i])
                                  : hd_f32_from_f16(((const uint16_t *)x)[i]);
}

static inline void *random_array(heddle_dtype dtype, int64_t n)
{
    char *x = calloc((size_t)n + 1, type_bytes(dtype));
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        const float value = symmetric();
        const uint16_t half = dtype == HEDDLE_BF16 ? hd_bf16_from_f32(value) : hd_f16_from_f32(value);
        memcpy(x + (size_t)i * type_bytes(dtype), dtype == HEDDLE_F32 ? (const void *)&value : (const void *)&half,
               type_bytes(dtype));
    }
    return x;
}

static inline void copy(const fixture *f, void *to, const void *from, size_t bytes)
{
    const int64_t all = (int64_t)bytes;
    HD_OK(f->device->library->copy(to, all, from, all, all, 1, f->device->number, HEDDLE_NO_STREAM));
    HD_OK(f->device->library->check(f->device->number));
}

static inline void *there(const fixture *f, const void *host, size_t bytes)
{
    void *to = NULL;
    HD_OK(hd_device_alloc(f->device, &to, bytes + 16, HD_DEVICE_FOR_OWN));
    copy(f, to, host, bytes);
    return to;
}

/* Arrays on either side. */
typedef struct problem {
    heddle_product of;
    int64_t rows, in, with_rows, dst_rows, out;
    char *host[4], *device[4], *workspace; /* src, with, bias, dst */
    size_t bytes[4];
} problem;

static inline problem problem_of(const fixture *f, const heddle_product *of, int64_t rows)
{
    const int is_outer = of->kind == HEDDLE_PRODUCT_OUTER, is_forward = of->kind == HEDDLE_PRODUCT_FORWARD;
    problem p = {.of = *of, .rows = rows, .in = is_forward ? of->k : of->n, .out = is_forward ? of->n : of->k};
    p.with_rows = is_outer ? rows : of->n;
    p.dst_rows = is_outer ? of->n : rows;
    const int64_t elems[4] = {rows * p.in, p.with_rows * of->k, of->n, p.dst_rows * p.out};
    for (int i = 0; i < 4; i++) {
        const heddle_dtype dtype = i < 2 ? of->dtype : of->dst_dtype;
        p.bytes[i] = (size_t)elems[i] * type_bytes(dtype);
        p.host[i] = random_array(dtype, elems[i]);
        p.device[i] = there(f, p.host[i], p.bytes[i]);
    }
    return p;
}

static inline void problem_end(const fixture *f, problem *p)
{
    for (int i = 0; i < 4; i++) {
        free(p->host[i]);
        hd_device_release(f->device, p->device[i]);
    }
    if (p->workspace != NULL) {
        hd_device_release(f->device, p->workspace);
    }
}

static inline heddle_product_call call_of(const fixture *f, problem *p, const hd_matmul *made, int add)
{
    if (p->workspace == NULL && made->workspace_bytes > 0) {
        HD_OK(hd_device_alloc(f->device, (void **)&p->workspace, (size_t)made->workspace_bytes, HD_DEVICE_FOR_OWN));
    }
    return (heddle_product_call){p->device[3], p->device[0], p->device[1], p->of.has_bias ? p->device[2] : NULL,
                                 p->rows,      add,          p->workspace};
}

static inline char *run(const fixture *f, problem *p, const hd_matmul *made, int add)
{
    const heddle_product_call call = call_of(f, p, made, add);
    char *got = malloc(p->bytes[3] + 1);
    assert_non_null(got);
    HD_OK(hd_matmul_run(made, &call, HEDDLE_NO_STREAM));
    copy(f, got, p->device[3], p->bytes[3]);
    return got;
}

static inline double wanted_at(const problem *p, int64_t row, int64_t column, int add, double *size)
{
    const int is_outer = p->of.kind == HEDDLE_PRODUCT_OUTER, is_forward = p->of.kind == HEDDLE_PRODUCT_FORWARD;
    double sum = p->of.has_bias ? (double)value_at(p->host[2], p->of.dst_dtype, column) : 0;
    sum += add ? (double)value_at(p->host[3], p->of.dst_dtype, row * p->out + column) : 0;
    *size = fabs(sum);
    for (int64_t i = 0; i < (is_outer ? p->rows : p->in); i++) {
        const double a = (double)value_at(p->host[0], p->of.dtype, is_outer ? i * p->in + row : row * p->in + i);
        const double b =
            (double)value_at(p->host[1], p->of.dtype, is_forward ? column * p->of.k + i : i * p->of.k + column);
        sum += a * b;
        *size += fabs(a * b);
    }
    return sum;
}

static inline void check(const problem *p, const char *got, int add)
{
    const double u = p->of.dst_dtype == HEDDLE_F32 ? 0x1p-24 : p->of.dst_dtype == HEDDLE_BF16 ? 0x1p-8 : 0x1p-11;
    for (int64_t at = 0; at < p->dst_rows * p->out; at++) {
        double size = 0;
        const double wanted = wanted_at(p, at / p->out, at % p->out, add, &size);
        const double value = (double)value_at(got, p->of.dst_dtype, at);
        assert_true(fabs(value - wanted) <= u * fabs(wanted) * 1.01 + size * 0x1p-24 * 400);
    }
}

#endif
