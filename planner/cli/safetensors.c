#include "safetensors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_SHOWN = 80 };

/* The JSON header, read once from left to right. */
typedef struct reader {
    const char *text;
    size_t size, at;
    const uint8_t *data; /* behind the header */
    size_t data_bytes;
    char *error;
    size_t error_bytes;
} reader;

static int complain(reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int complain(reader *r, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->error, r->error_bytes, format, arguments);
    va_end(arguments);
    return -1;
}

static void skip_space(reader *r)
{
    while (r->at < r->size && strchr(" \t\r\n", r->text[r->at]) != NULL && r->text[r->at] != '\0') {
        r->at++;
    }
}

static int peek(reader *r)
{
    skip_space(r);
    return r->at < r->size ? (unsigned char)r->text[r->at] : -1;
}

static int expect(reader *r, char wanted)
{
    int found = peek(r);
    if (found != wanted) {
        return found < 0 ? complain(r, "the header ends at byte %zu where '%c' should stand", 8 + r->at, wanted)
                         : complain(r, "byte %zu of the header is 0x%02x where '%c' should stand", 8 + r->at,
                                    (unsigned)found, wanted);
    }
    r->at++;
    return 0;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* \uXXXX as UTF-8; a lone half of a pair becomes a question mark. */
static int take_escape(reader *r, char *out, size_t *length)
{
    static const char plain[] = "\"\\/bfnrt", meaning[] = "\"\\/\b\f\n\r\t";
    if (r->at >= r->size) {
        return complain(r, "the header ends within a string");
    }
    const char c = r->text[r->at++];
    const char *found = c == '\0' ? NULL : strchr(plain, c);
    if (found != NULL) {
        out[(*length)++] = meaning[found - plain];
        return 0;
    }
    unsigned code = 0;
    if (c != 'u' || r->size - r->at < 4) {
        return complain(r, "byte %zu of the header: unknown escape in a string", 8 + r->at);
    }
    for (int i = 0; i < 4; i++) {
        int digit = hex(r->text[r->at++]);
        if (digit < 0) {
            return complain(r, "byte %zu of the header: \\u wants four hexadecimal digits", 8 + r->at);
        }
        code = code * 16 + (unsigned)digit;
    }
    if (code == 0 || (code >= 0xd800 && code < 0xe000)) {
        code = '?';
    }
    if (code < 0x80) {
        out[(*length)++] = (char)code;
    } else if (code < 0x800) {
        out[(*length)++] = (char)(0xc0 | code >> 6);
        out[(*length)++] = (char)(0x80 | (code & 63));
    } else {
        out[(*length)++] = (char)(0xe0 | code >> 12);
        out[(*length)++] = (char)(0x80 | (code >> 6 & 63));
        out[(*length)++] = (char)(0x80 | (code & 63));
    }
    return 0;
}

/* A string on the heap; it never grows longer than its text. */
static int take_string(reader *r, char **out)
{
    *out = NULL;
    if (expect(r, '"') != 0) {
        return -1;
    }
    size_t end = r->at;
    while (end < r->size && r->text[end] != '"') {
        end += r->text[end] == '\\' ? 2 : 1;
    }
    if (end >= r->size) {
        return complain(r, "the string at byte %zu of the header does not end", 8 + r->at - 1);
    }
    char *text = malloc(end - r->at + 1);
    size_t length = 0;
    if (text == NULL) {
        return complain(r, "no memory for a name of %zu bytes", end - r->at);
    }
    while (r->at < end) {
        const char c = r->text[r->at++];
        if ((unsigned char)c < 0x20) {
            free(text);
            return complain(r, "byte %zu of the header: a string has the control character 0x%02x", 8 + r->at - 1,
                            (unsigned)(unsigned char)c);
        }
        if (c != '\\') {
            text[length++] = c;
        } else if (take_escape(r, text, &length) != 0) {
            free(text);
            return -1;
        }
    }
    r->at = end + 1;
    text[length] = '\0';
    *out = text;
    return 0;
}

static int take_number(reader *r, int64_t *out, const char *what)
{
    int64_t value = 0;
    peek(r);
    const size_t start = r->at;
    while (r->at < r->size && r->text[r->at] >= '0' && r->text[r->at] <= '9') {
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, r->text[r->at] - '0', &value)) {
            return complain(r, "%s at byte %zu of the header is larger than 2^63", what, 8 + start);
        }
        r->at++;
    }
    if (r->at == start) {
        return complain(r, "%s at byte %zu of the header is not a whole number", what, 8 + start);
    }
    *out = value;
    return 0;
}

/* [1, 2, 3]; *count gets their number, at most `capacity`. */
static int take_numbers(reader *r, int64_t *out, int capacity, int *count, const char *what)
{
    *count = 0;
    if (expect(r, '[') != 0) {
        return -1;
    }
    if (peek(r) == ']') {
        r->at++;
        return 0;
    }
    for (;;) {
        if (*count == capacity) {
            return complain(r, "%s at byte %zu of the header has more than %d numbers", what, 8 + r->at, capacity);
        }
        if (take_number(r, &out[*count], what) != 0) {
            return -1;
        }
        (*count)++;
        if (peek(r) != ',') {
            return expect(r, ']');
        }
        r->at++;
    }
}

static int same_text(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

static size_t dtype_bytes(safetensors_dtype dtype)
{
    return dtype == SAFETENSORS_F32 ? 4 : dtype == SAFETENSORS_OTHER ? 0 : 2;
}

/* What an entry says about itself is consistent, and its data lies in the file. */
static int place(reader *r, safetensors_entry *e, const int64_t *offset, unsigned seen)
{
    if (seen != 7) {
        return complain(r, "tensor '%.*s' lacks its %s", (int)NAME_SHOWN, e->name,
                        !(seen & 1)   ? "dtype"
                        : !(seen & 2) ? "shape"
                                      : "data_offsets");
    }
    if (offset[0] > offset[1] || (uint64_t)offset[1] > r->data_bytes) {
        return complain(r, "tensor '%.*s' lies at %" PRId64 " to %" PRId64 " of the data, which has %zu bytes",
                        (int)NAME_SHOWN, e->name, offset[0], offset[1], r->data_bytes);
    }
    e->data = r->data + offset[0];
    e->bytes = (size_t)(offset[1] - offset[0]);
    int64_t elems = 1;
    for (int d = 0; d < e->ndim; d++) {
        if (__builtin_mul_overflow(elems, e->extent[d], &elems)) {
            return complain(r, "tensor '%.*s' has more than 2^63 elements", (int)NAME_SHOWN, e->name);
        }
    }
    const size_t each = dtype_bytes(e->dtype);
    if (each != 0 && (e->bytes % each != 0 || (uint64_t)elems != e->bytes / each)) {
        return complain(r, "tensor '%.*s' has %" PRId64 " elements of %s, but %zu bytes of data", (int)NAME_SHOWN,
                        e->name, elems, e->dtype_name, e->bytes);
    }
    return 0;
}

static int take_dtype(reader *r, safetensors_entry *e)
{
    char *text = NULL;
    if (take_string(r, &text) != 0) {
        return -1;
    }
    snprintf(e->dtype_name, sizeof(e->dtype_name), "%s", text);
    e->dtype = same_text(text, "F32")    ? SAFETENSORS_F32
               : same_text(text, "F16")  ? SAFETENSORS_F16
               : same_text(text, "BF16") ? SAFETENSORS_BF16
                                         : SAFETENSORS_OTHER;
    free(text);
    return 0;
}

/* {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} */
static int take_entry(reader *r, safetensors_entry *e)
{
    int64_t offset[2] = {0, 0};
    unsigned seen = 0;
    if (expect(r, '{') != 0) {
        return -1;
    }
    while (peek(r) != '}') {
        char *key = NULL;
        int bad = take_string(r, &key) != 0 || expect(r, ':') != 0;
        unsigned bit = 0;
        int count = 2;
        if (bad == 0 && same_text(key, "dtype")) {
            bit = 1;
            bad = take_dtype(r, e);
        } else if (bad == 0 && same_text(key, "shape")) {
            bit = 2;
            bad = take_numbers(r, e->extent, SAFETENSORS_MAX_DIMS, &e->ndim, "a shape");
        } else if (bad == 0 && same_text(key, "data_offsets")) {
            bit = 4;
            bad = take_numbers(r, offset, 2, &count, "data_offsets");
        } else if (bad == 0) {
            bad = complain(r, "tensor '%.*s' has the unknown field '%.20s'", (int)NAME_SHOWN, e->name, key);
        }
        if (bad == 0 && ((seen & bit) != 0 || count != 2)) {
            bad = complain(r, "tensor '%.*s': '%s' is given %s", (int)NAME_SHOWN, e->name, key,
                           count != 2 ? "with one number, not two" : "twice");
        }
        free(key);
        seen |= bit;
        if (bad != 0) {
            return -1;
        }
        if (peek(r) == ',') {
            r->at++;
            if (peek(r) == '}') {
                return complain(r, "byte %zu of the header: a comma before '}'", 8 + r->at);
            }
        } else if (peek(r) != '}') {
            return expect(r, '}');
        }
    }
    r->at++;
    return place(r, e, offset, seen);
}

/* "__metadata__": {"key": "value", ...} */
static int skip_metadata(reader *r)
{
    if (expect(r, '{') != 0) {
        return -1;
    }
    while (peek(r) != '}') {
        char *text = NULL;
        for (int i = 0; i < 2; i++) {
            if (take_string(r, &text) != 0) {
                return -1;
            }
            free(text);
            if (i == 0 && expect(r, ':') != 0) {
                return -1;
            }
        }
        if (peek(r) == ',') {
            r->at++;
        } else if (peek(r) != '}') {
            return expect(r, '}');
        }
    }
    r->at++;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const safetensors_entry *)a)->name, ((const safetensors_entry *)b)->name);
}

static int take_one(reader *r, safetensors_file *out, size_t *capacity)
{
    char *name = NULL;
    if (take_string(r, &name) != 0) {
        return -1;
    }
    if (expect(r, ':') != 0) {
        free(name);
        return -1;
    }
    if (same_text(name, "__metadata__")) {
        free(name);
        return skip_metadata(r);
    }
    if (out->count == *capacity) {
        const size_t more = *capacity == 0 ? 64 : *capacity * 2;
        safetensors_entry *bigger = realloc(out->entry, more * sizeof(*bigger));
        if (bigger == NULL) {
            free(name);
            return complain(r, "no memory for a table of %zu tensors", more);
        }
        out->entry = bigger;
        *capacity = more;
    }
    safetensors_entry *e = &out->entry[out->count++];
    memset(e, 0, sizeof(*e));
    e->name = name;
    return take_entry(r, e);
}

int safetensors_parse(safetensors_file *out, const uint8_t *bytes, size_t size, char *error, size_t error_bytes)
{
    reader r = {NULL, 0, 0, NULL, 0, error, error_bytes};
    uint64_t header = 0;
    size_t capacity = 0;
    memset(out, 0, sizeof(*out));
    if (size < 8) {
        return complain(&r, "not safetensors: %zu bytes, the length of the header alone takes 8", size);
    }
    for (int i = 7; i >= 0; i--) {
        header = header << 8 | bytes[i];
    }
    if (header > SAFETENSORS_MAX_HEADER || header > size - 8) {
        return complain(&r,
                        "the header is said to have %" PRIu64 " bytes, but the file has %zu behind its length (and "
                        "%d is the most)",
                        header, size - 8, (int)SAFETENSORS_MAX_HEADER);
    }
    r.text = (const char *)bytes + 8;
    r.size = (size_t)header;
    r.data = bytes + 8 + header;
    r.data_bytes = size - 8 - (size_t)header;
    if (expect(&r, '{') != 0) {
        return -1;
    }
    while (peek(&r) != '}') {
        if (take_one(&r, out, &capacity) != 0) {
            return -1;
        }
        if (peek(&r) == ',') {
            r.at++;
        } else if (peek(&r) != '}') {
            return expect(&r, '}');
        }
    }
    r.at++;
    if (peek(&r) >= 0) {
        return complain(&r, "byte %zu of the header: something stands behind its end", 8 + r.at);
    }
    if (out->count > 0) {
        qsort(out->entry, out->count, sizeof(*out->entry), by_name);
    }
    for (size_t i = 1; i < out->count; i++) {
        if (by_name(&out->entry[i - 1], &out->entry[i]) == 0) {
            return complain(&r, "tensor '%.*s' is there twice", (int)NAME_SHOWN, out->entry[i].name);
        }
    }
    return 0;
}

void safetensors_close(safetensors_file *file)
{
    for (size_t i = 0; i < file->count; i++) {
        free(file->entry[i].name);
    }
    free(file->entry);
    memset(file, 0, sizeof(*file));
}
