/* NumPy array files, format versions 1 to 3, little end first, C order. */
#ifndef HD_FILES_NPY_H
#define HD_FILES_NPY_H

#include <heddle/layout.h>
#include <heddle/status.h>

typedef struct npy_array {
    char type[4];      /* "<f4" "<f8" "<f2" "<i4" "<i8" "<u2" "|i1" "|u1" "|b1" */
    size_t item_bytes; /* of one element */
    int ndim;          /* 0: a single number */
    int64_t extent[HEDDLE_MAX_DIMS];
    size_t data_bytes;
    void *data; /* npy_free; NULL after npy_read_header */
} npy_array;

/* Read a regular file. HEDDLE_ERR_IO: it cannot be read. HEDDLE_ERR_PARSE: the sentence names the file, what is wrong
 * and both numbers (bad magic, version, header, byte order, Fortran order, truncated, bytes left over).
 * HEDDLE_ERR_NOMEM: too large. */
heddle_status npy_read(npy_array *out, const char *path);
/* Everything but the data; the file's size is checked against the header all the same. */
heddle_status npy_read_header(npy_array *out, const char *path);
void npy_free(npy_array *array); /* also for a zeroed one */

/* Write a dense row-major array; `type` as above. Errors are those of file_output_open and _close. */
heddle_status npy_write(const char *path, const char *type, int ndim, const int64_t *extent, const void *data);

/* How a dtype is stored: floats and integers as what they are, bf16 as raw <u2, f8 as raw |u1. */
const char *npy_type_of(heddle_dtype dtype);

#endif
