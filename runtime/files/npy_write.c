/* NumPy array files: what is written, format version 1. */
#include "runtime/files/npy.h"
#include "runtime/files/output.h"

#include <stdio.h>
#include <string.h>

enum { MAGIC_BYTES = 6, ALIGNMENT = 64 };

static const char magic[] = "\x93NUMPY";

const char *npy_type_of(heddle_dtype dtype)
{
    switch (dtype) {
    case HEDDLE_F64:
        return "<f8";
    case HEDDLE_F32:
        return "<f4";
    case HEDDLE_F16:
        return "<f2";
    case HEDDLE_BF16:
        return "<u2";
    case HEDDLE_I64:
        return "<i8";
    case HEDDLE_I32:
        return "<i4";
    case HEDDLE_I8:
        return "|i1";
    case HEDDLE_BOOL:
        return "|b1";
    default:
        return "|u1";
    }
}

/* The dict is padded with blanks so that the data starts on a multiple of 64. */
static int make_header(char *out, size_t out_bytes, const char *type, int ndim, const int64_t *extent)
{
    const int fixed = MAGIC_BYTES + 4;
    int n = fixed + snprintf(out + fixed, out_bytes - (size_t)fixed,
                             "{'descr': '%s', 'fortran_order': False, 'shape': (", type);
    for (int d = 0; d < ndim; d++) {
        n += snprintf(out + n, out_bytes - (size_t)n, "%lld,%s", (long long)extent[d], d + 1 < ndim ? " " : "");
    }
    n += snprintf(out + n, out_bytes - (size_t)n, "), }");
    while ((n + 1) % ALIGNMENT != 0) {
        out[n++] = ' ';
    }
    out[n++] = '\n';
    memcpy(out, magic, MAGIC_BYTES);
    out[6] = 1;
    out[7] = 0;
    out[8] = (char)((n - fixed) & 0xff);
    out[9] = (char)((n - fixed) >> 8);
    return n;
}

heddle_status npy_write(const char *path, const char *type, int ndim, const int64_t *extent, const void *data)
{
    char start[1024];
    size_t bytes = (size_t)(type[2] - '0');
    for (int d = 0; d < ndim; d++) {
        bytes *= (size_t)extent[d];
    }
    file_output file;
    heddle_status st = file_output_open(&file, path);
    if (st != HEDDLE_OK) {
        return st;
    }
    size_t start_bytes = (size_t)make_header(start, sizeof start, type, ndim, extent);
    if (fwrite(start, 1, start_bytes, file.file) == start_bytes && bytes > 0) {
        fwrite(data, 1, bytes, file.file); /* closing looks at the file's error */
    }
    return file_output_close(&file, HEDDLE_OK);
}
