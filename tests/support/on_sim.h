/* Arrays of a type in the emulated device's memory, at any address that the type allows, and their comparison. */
#ifndef HD_TEST_ON_SIM_H
#define HD_TEST_ON_SIM_H

#include "case.h"
#include "cudasim.h"
#include "draw.h"
#include "kernels/small_float.h"
#include "kernels/table.h"
#include "kernels/table_device.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) assert_int_equal(call, cudaSuccess)

static const heddle_dtype float_types[] = {HEDDLE_F32, HEDDLE_BF16, HEDDLE_F16};

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

static inline void value_set(void *x, heddle_dtype dtype, int64_t i, float value)
{
    if (dtype == HEDDLE_F32) {
        ((float *)x)[i] = value;
    } else {
        ((uint16_t *)x)[i] = dtype == HEDDLE_BF16 ? hd_bf16_from_f32(value) : hd_f16_from_f32(value);
    }
}

/* Host memory for n elements; random values as the type has them. */
static inline void *host_array(heddle_dtype dtype, int64_t n)
{
    void *x = calloc((size_t)n + 1, type_bytes(dtype));
    assert_non_null(x);
    return x;
}

static inline void *random_array(heddle_dtype dtype, int64_t n, float scale)
{
    void *x = host_array(dtype, n);
    for (int64_t i = 0; i < n; i++) {
        value_set(x, dtype, i, scale * (symmetric() + symmetric()));
    }
    return x;
}

/* As f32, which has every value of the types. */
static inline float *widened(const void *x, heddle_dtype dtype, int64_t n)
{
    float *out = host_array(HEDDLE_F32, n);
    for (int64_t i = 0; i < n; i++) {
        out[i] = value_at(x, dtype, i);
    }
    return out;
}

/* On the device, `shift` elements behind an address of 256 bytes. */
static inline void *sim_array(const void *host, heddle_dtype dtype, int64_t n, int shift)
{
    char *memory = NULL;
    OK(cudaMalloc((void **)&memory, ((size_t)(n + shift) + 1) * type_bytes(dtype)));
    if (host != NULL) {
        OK(cudaMemcpy(memory + (size_t)shift * type_bytes(dtype), host, (size_t)n * type_bytes(dtype),
                      cudaMemcpyHostToDevice));
    }
    return memory + (size_t)shift * type_bytes(dtype);
}

static inline void *from_sim(const void *device, heddle_dtype dtype, int64_t n)
{
    void *x = host_array(dtype, n);
    OK(cudaMemcpy(x, device, (size_t)n * type_bytes(dtype), cudaMemcpyDeviceToHost));
    return x;
}

static inline void sim_free(void *device, heddle_dtype dtype, int shift)
{
    OK(cudaFree((char *)device - (size_t)shift * type_bytes(dtype)));
}

/* f32: within `error`, relative to 1 + |wanted|; the others besides that one rounding. */
static inline void check_values(const char *what, const void *got, heddle_dtype dtype, const float *wanted, int64_t n,
                                double error)
{
    const double rounding = dtype == HEDDLE_F32 ? 0 : dtype == HEDDLE_BF16 ? 0x1p-8 : 0x1p-11;
    for (int64_t i = 0; i < n; i++) {
        const double value = (double)value_at(got, dtype, i), target = (double)wanted[i];
        const double limit = (rounding * 1.01 + error) * fabs(target) + error + (dtype == HEDDLE_F16 ? 0x1p-25 : 0);
        if (!(fabs(value - target) <= limit) && !(isnan(value) && isnan(target))) {
            fail_msg("%s of %s: element %lld of %lld is %.9g, wanted %.9g", what, heddle_dtype_name(dtype),
                     (long long)i, (long long)n, value, target);
        }
    }
}

static const hd_kernels *cpu;
static const hd_device_kernels *device;

/* Of every case, before a launch. */
static inline void begin(void)
{
    cpu = hd_kernels_named("generic");
    device = &hd_kernels_cuda;
    OK(device->load());
    assert_int_equal(hd_sim_unloaded(), 0);
}

#endif
