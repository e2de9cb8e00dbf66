/* NumPy array files, format versions 1 to 3, little end first, C order. */
#ifndef HD_CLI_NPY_H
#define HD_CLI_NPY_H

#include "cli.h"

typedef struct npy_array {
    char type[4];      /* "<f4" "<f8" "<f2" "<i4" "<i8" "<u2" "|i1" "|u1" "|b1" */
    size_t item_bytes; /* of one element */
    int ndim;          /* 0: a single number */
    int64_t extent[HEDDLE_MAX_DIMS];
    size_t data_bytes;
    void *data; /* npy_free; NULL after npy_read_header */
} npy_array;

/* Read a regular file. CLI_OK, or an exit code after one sentence that names the file, what is wrong and both numbers
 * (bad magic, version, header, byte order, Fortran order, truncated, bytes left over, too large for memory). */
int npy_read(npy_array *out, const char *path);
/* Everything but the data; the file's size is checked against the header all the same. */
int npy_read_header(npy_array *out, const char *path);
void npy_free(npy_array *array); /* also for a zeroed one */

/* Write a dense row-major array; `type` as above. CLI_OK or an exit code (complained). */
int npy_write(const char *path, const char *type, int ndim, const int64_t *extent, const void *data);

/* How a dtype is stored: floats and integers as what they are, bf16 as raw <u2, f8 as raw |u1. */
const char *npy_type_of(heddle_dtype dtype);

#endif
