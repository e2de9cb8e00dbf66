/* NumPy array files: what is read. */
#include "runtime/files/npy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAGIC_BYTES = 6, MAX_HEADER_BYTES = 65536 };

static const char magic[] = "\x93NUMPY";

void npy_free(npy_array *array)
{
    free(array->data);
    array->data = NULL;
}

/* --- the header: a Python dict of three keys ---------------------------------------------------------------------- */

typedef struct header {
    const char *path;
    const char *text, *at, *end;
    char type[16];
    int has_type, has_order, has_shape;
    int fortran;
    int ndim;
    int64_t extent[HEDDLE_MAX_DIMS];
} header;

static heddle_status bad(const header *h, const char *what)
{
    return heddle_set_error(HEDDLE_ERR_PARSE, "%s: header, byte %td: %s", h->path, h->at - h->text, what);
}

static void skip_blanks(header *h)
{
    while (h->at < h->end && (*h->at == ' ' || *h->at == '\n' || *h->at == '\t' || *h->at == '\r')) {
        h->at++;
    }
}

static int take(header *h, char c)
{
    skip_blanks(h);
    if (h->at < h->end && *h->at == c) {
        h->at++;
        return 1;
    }
    return 0;
}

static int take_word(header *h, const char *word)
{
    size_t n = strlen(word);
    skip_blanks(h);
    if ((size_t)(h->end - h->at) >= n && memcmp(h->at, word, n) == 0) {
        h->at += n;
        return 1;
    }
    return 0;
}

/* A quoted string without escapes. */
static heddle_status read_string(char *out, size_t out_bytes, header *h)
{
    skip_blanks(h);
    char quote = h->at < h->end ? *h->at : 0;
    if (quote != '\'' && quote != '"') {
        return bad(h, "expected a quoted string");
    }
    const char *start = ++h->at;
    while (h->at < h->end && *h->at != quote) {
        h->at++;
    }
    size_t n = (size_t)(h->at - start);
    if (h->at == h->end || n >= out_bytes) {
        return bad(h, "a string does not end, or is longer than the format knows");
    }
    for (size_t i = 0; i < n; i++) {
        if (start[i] < 0x20 || start[i] > 0x7e) { /* a zero byte would end it early */
            h->at = start + i;
            return bad(h, "a string with a byte that is no letter, digit or sign");
        }
    }
    memcpy(out, start, n);
    out[n] = '\0';
    h->at++;
    return HEDDLE_OK;
}

static heddle_status read_shape(header *h)
{
    if (!take(h, '(')) {
        return bad(h, "expected '(' of the shape");
    }
    while (!take(h, ')')) {
        int64_t extent = 0;
        const char *start = h->at;
        for (; h->at < h->end && *h->at >= '0' && *h->at <= '9'; h->at++) {
            if (extent > (((int64_t)1 << 62) - 9) / 10) {
                return bad(h, "an extent is larger than 2^62");
            }
            extent = extent * 10 + (*h->at - '0');
        }
        if (h->at == start || (*start == '0' && h->at > start + 1)) {
            h->at = start;
            return bad(h, "expected an extent, a whole number from 0 on");
        }
        if (h->ndim == HEDDLE_MAX_DIMS) {
            return bad(h, "more than 8 dims");
        }
        h->extent[h->ndim++] = extent;
        take(h, 'L'); /* Python 2 */
        if (!take(h, ',')) {
            if (!take(h, ')')) {
                return bad(h, "expected ',' or ')' in the shape");
            }
            if (h->ndim == 1) {
                return bad(h, "one extent wants a comma behind it, as in (3,)");
            }
            break;
        }
        skip_blanks(h);
    }
    return HEDDLE_OK;
}

static heddle_status read_entry(header *h)
{
    char key[32];
    heddle_status st = read_string(key, sizeof key, h);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (!take(h, ':')) {
        return bad(h, "expected ':' after a key");
    }
    if (strcmp(key, "descr") == 0) {
        h->has_type++;
        skip_blanks(h);
        if (h->at < h->end && *h->at == '[') {
            return bad(h, "a structured dtype; a plain one is needed");
        }
        return read_string(h->type, sizeof h->type, h);
    }
    if (strcmp(key, "fortran_order") == 0) {
        h->has_order++;
        h->fortran = take_word(h, "True");
        return h->fortran || take_word(h, "False") ? HEDDLE_OK : bad(h, "expected True or False");
    }
    if (strcmp(key, "shape") == 0) {
        h->has_shape++;
        h->ndim = 0;
        return read_shape(h);
    }
    return bad(h, "a key other than descr, fortran_order and shape");
}

static heddle_status read_dict(header *h)
{
    if (!take(h, '{')) {
        return bad(h, "expected '{'");
    }
    while (!take(h, '}')) {
        heddle_status st = read_entry(h);
        if (st != HEDDLE_OK) {
            return st;
        }
        if (!take(h, ',')) {
            if (!take(h, '}')) {
                return bad(h, "expected ',' or '}' after an entry");
            }
            break;
        }
    }
    skip_blanks(h);
    if (h->at != h->end) {
        return bad(h, "something follows the closing '}'");
    }
    if (h->has_type != 1 || h->has_order != 1 || h->has_shape != 1) {
        return bad(h, "descr, fortran_order and shape are needed, once each");
    }
    return HEDDLE_OK;
}

/* --- what the header means ---------------------------------------------------------------------------------------- */

static heddle_status accept_type(npy_array *out, const header *h)
{
    static const char *const known[] = {"<f4", "<f8", "<f2", "<i4", "<i8", "<u2", "|i1", "|u1", "|b1"};
    char order = h->type[0];
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        int same_end = order == known[i][0] || order == '=' || (known[i][0] == '|' && order == '<');
        if (same_end && strcmp(h->type + 1, known[i] + 1) == 0) {
            memcpy(out->type, known[i], 4);
            out->item_bytes = (size_t)(known[i][2] - '0');
            return HEDDLE_OK;
        }
    }
    return heddle_set_error(HEDDLE_ERR_PARSE,
                            "%s: dtype '%s' is not supported; these are: <f8 <f4 <f2 <i8 <i4 <u2 |i1 |u1 |b1%s",
                            h->path, h->type, order == '>' ? " (little end first)" : "");
}

static heddle_status accept_header(npy_array *out, const header *h, int64_t left_bytes)
{
    heddle_status st = accept_type(out, h);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (h->fortran) {
        return heddle_set_error(HEDDLE_ERR_PARSE, "%s: stored in Fortran order; save it with np.ascontiguousarray",
                                h->path);
    }
    int64_t bytes = (int64_t)out->item_bytes, span = bytes;
    out->ndim = h->ndim;
    for (int d = 0; d < h->ndim; d++) {
        out->extent[d] = h->extent[d];
        int64_t factor = h->extent[d] > 0 ? h->extent[d] : 1;
        if (span > ((int64_t)1 << 62) / factor) {
            return heddle_set_error(HEDDLE_ERR_PARSE, "%s: the shape in the header means more than 2^62 bytes",
                                    h->path);
        }
        span *= factor;
        bytes *= h->extent[d];
    }
    if (bytes != left_bytes) {
        return heddle_set_error(HEDDLE_ERR_PARSE, "%s: %s: the header promises %lld bytes of data, the file has %lld",
                                h->path, bytes > left_bytes ? "truncated" : "too long", (long long)bytes,
                                (long long)left_bytes);
    }
    out->data_bytes = (size_t)bytes;
    return HEDDLE_OK;
}

/* Reads the fixed part; *bytes gets the length of the dict that follows. */
static heddle_status read_prefix(uint32_t *bytes, FILE *file, const char *path, int64_t file_bytes)
{
    unsigned char start[MAGIC_BYTES + 6];
    size_t got = fread(start, 1, MAGIC_BYTES + 4, file);
    if (got < MAGIC_BYTES || memcmp(start, magic, MAGIC_BYTES) != 0) {
        return heddle_set_error(HEDDLE_ERR_PARSE, "%s: not a .npy file (the first %d bytes of %lld are not its magic)",
                                path, MAGIC_BYTES, (long long)file_bytes);
    }
    if (got < MAGIC_BYTES + 4) {
        return heddle_set_error(HEDDLE_ERR_PARSE, "%s: truncated: %lld bytes, the header alone needs more", path,
                                (long long)file_bytes);
    }
    int version = start[MAGIC_BYTES], minor = start[MAGIC_BYTES + 1];
    if (version < 1 || version > 3 || minor != 0) {
        return heddle_set_error(HEDDLE_ERR_PARSE, "%s: .npy format version %d.%d, known are 1.0, 2.0 and 3.0", path,
                                version, minor);
    }
    *bytes = start[8] | (uint32_t)start[9] << 8;
    if (version > 1) {
        if (fread(start + 10, 1, 2, file) != 2) {
            return heddle_set_error(HEDDLE_ERR_PARSE, "%s: truncated: %lld bytes, the header alone needs more", path,
                                    (long long)file_bytes);
        }
        *bytes |= (uint32_t)start[10] << 16 | (uint32_t)start[11] << 24;
    }
    if (*bytes > MAX_HEADER_BYTES) {
        return heddle_set_error(HEDDLE_ERR_PARSE, "%s: a header of %lu bytes, at most %d are accepted", path,
                                (unsigned long)*bytes, MAX_HEADER_BYTES);
    }
    return HEDDLE_OK;
}

static heddle_status read_header(npy_array *out, FILE *file, const char *path)
{
    struct stat info;
    if (fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode)) {
        return heddle_set_error(HEDDLE_ERR_PARSE, "%s: not a regular file", path);
    }
    uint32_t bytes = 0;
    heddle_status st = read_prefix(&bytes, file, path, (int64_t)info.st_size);
    if (st != HEDDLE_OK) {
        return st;
    }
    char *text = malloc((size_t)bytes + 1);
    if (text == NULL) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "%s: no memory for a header of %lu bytes", path,
                                (unsigned long)bytes);
    }
    size_t got = fread(text, 1, bytes, file);
    if (got != bytes) {
        st = heddle_set_error(HEDDLE_ERR_PARSE,
                              "%s: truncated: the header has %lu bytes, the file ends after %zu of them", path,
                              (unsigned long)bytes, got);
    } else {
        header h = {.path = path, .text = text, .at = text, .end = text + bytes};
        st = read_dict(&h);
        st = st != HEDDLE_OK ? st : accept_header(out, &h, (int64_t)info.st_size - (int64_t)ftell(file));
    }
    free(text);
    return st;
}

static heddle_status read_file(npy_array *out, const char *path, int with_data)
{
    npy_array array;
    memset(&array, 0, sizeof array);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return heddle_set_error(HEDDLE_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    }
    heddle_status st = read_header(&array, file, path);
    if (st == HEDDLE_OK && with_data) {
        array.data = malloc(array.data_bytes > 0 ? array.data_bytes : 1);
        if (array.data == NULL) {
            st = heddle_set_error(HEDDLE_ERR_NOMEM, "%s: no memory for its %zu bytes", path, array.data_bytes);
        } else if (fread(array.data, 1, array.data_bytes, file) != array.data_bytes) {
            st = heddle_set_error(HEDDLE_ERR_IO, "%s: its %zu bytes of data could not be read: %s", path,
                                  array.data_bytes, ferror(file) ? strerror(errno) : "it ends early");
        }
    }
    fclose(file);
    if (st != HEDDLE_OK) {
        npy_free(&array);
        return st;
    }
    *out = array;
    return HEDDLE_OK;
}

heddle_status npy_read(npy_array *out, const char *path)
{
    return read_file(out, path, 1);
}

heddle_status npy_read_header(npy_array *out, const char *path)
{
    return read_file(out, path, 0);
}
