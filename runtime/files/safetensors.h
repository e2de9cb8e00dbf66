/* Weights in the safetensors format: 8 bytes header length (little-endian), a JSON header, the data. */
#ifndef HD_FILES_SAFETENSORS_H
#define HD_FILES_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_MAX_DIMS = 8, SAFETENSORS_MAX_HEADER = 100 << 20 };

typedef enum safetensors_dtype {
    SAFETENSORS_F32,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_OTHER
} safetensors_dtype;

typedef struct safetensors_entry {
    char *name;          /* owned */
    char dtype_name[16]; /* as written, cut */
    safetensors_dtype dtype;
    int ndim;
    int64_t extent[SAFETENSORS_MAX_DIMS];
    const uint8_t *data; /* within the file's bytes, any alignment */
    size_t bytes;
} safetensors_entry;

typedef struct safetensors_file {
    safetensors_entry *entry; /* sorted by name */
    size_t count;
} safetensors_file;

/* The header is JSON as RFC 8259 has it, and the tensors cover the data without overlap or hole, as the format asks.
 * 0, or -1 with one sentence in `error` (no file name in it). `bytes` is borrowed. safetensors_close is legal after
 * either. */
int safetensors_parse(safetensors_file *out, const uint8_t *bytes, size_t size, char *error, size_t error_bytes);
void safetensors_close(safetensors_file *file);
const safetensors_entry *safetensors_find(const safetensors_file *file, const char *name);

/* The tensor as f32: it must be F32, F16 or BF16 with exactly these extents. 0, or -1 with a sentence that gives both
 * shapes. out may be NULL: only check. */
int safetensors_read_f32(float *out, const safetensors_file *file, const char *name, int ndim, const int64_t *extent,
                         char *error, size_t error_bytes);

float safetensors_half(uint16_t half); /* IEEE binary16 */

#endif
