/* Finding tensors and turning them into f32. */
#include "runtime/files/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const safetensors_entry *safetensors_find(const safetensors_file *file, const char *name)
{
    size_t low = 0, high = file->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(file->entry[middle].name, name);
        if (order == 0) {
            return &file->entry[middle];
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

static void format_extents(char *out, size_t out_bytes, int ndim, const int64_t *extent)
{
    size_t at = 0;
    at += (size_t)snprintf(out, out_bytes, "[");
    for (int d = 0; d < ndim && at < out_bytes; d++) {
        at += (size_t)snprintf(out + at, out_bytes - at, "%s%" PRId64, d > 0 ? ", " : "", extent[d]);
    }
    if (at < out_bytes) {
        snprintf(out + at, out_bytes - at, "]");
    }
}

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

float safetensors_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31) {
        return from_bits(sign | 0x7f800000 | fraction << 13);
    }
    if (exponent == 0) {
        const float value = (float)fraction * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static void convert(float *out, const safetensors_entry *e)
{
    if (e->dtype == SAFETENSORS_F32) {
        memcpy(out, e->data, e->bytes);
        return;
    }
    for (size_t i = 0; i < e->bytes / 2; i++) {
        const uint16_t half = (uint16_t)(e->data[2 * i] | e->data[2 * i + 1] << 8);
        out[i] = e->dtype == SAFETENSORS_F16 ? safetensors_half(half) : from_bits((uint32_t)half << 16);
    }
}

int safetensors_read_f32(float *out, const safetensors_file *file, const char *name, int ndim, const int64_t *extent,
                         char *error, size_t error_bytes)
{
    const safetensors_entry *e = safetensors_find(file, name);
    char wanted[256], found[256];
    format_extents(wanted, sizeof(wanted), ndim, extent);
    if (e == NULL) {
        snprintf(error, error_bytes, "tensor '%s' %s is missing among the file's %zu", name, wanted, file->count);
        return -1;
    }
    int same = e->ndim == ndim;
    for (int d = 0; same && d < ndim; d++) {
        same = e->extent[d] == extent[d];
    }
    if (!same) {
        format_extents(found, sizeof(found), e->ndim, e->extent);
        snprintf(error, error_bytes, "tensor '%s' is %s, the model needs %s", name, found, wanted);
        return -1;
    }
    if (e->dtype == SAFETENSORS_OTHER) {
        snprintf(error, error_bytes, "tensor '%s' has dtype %s; F32, F16 and BF16 are read", name, e->dtype_name);
        return -1;
    }
    if (out != NULL) {
        convert(out, e);
    }
    return 0;
}
