#include "runtime/files/safetensors.h"
#include "runtime/files/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_SHOWN = 80 };

static int same_text(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

/* Bytes of an element, 0 for a type that this does not know. */
static size_t dtype_bytes(const char *name)
{
    static const struct {
        const char *name;
        size_t bytes;
    } known[] = {{"F64", 8},     {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1},
                 {"F8_E5M2", 1}, {"I64", 8}, {"I32", 4}, {"I16", 2},  {"I8", 1},
                 {"U64", 8},     {"U32", 4}, {"U16", 2}, {"U8", 1},   {"BOOL", 1}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (same_text(name, known[i].name)) {
            return known[i].bytes;
        }
    }
    return 0;
}

/* What an entry says about itself is consistent, and its data lies in the file. */
static int place(json_reader *r, safetensors_entry *e, const int64_t *offset, unsigned seen)
{
    if (seen != 7) {
        return json_complain(r, "tensor '%.*s' lacks its %s", (int)NAME_SHOWN, e->name,
                             !(seen & 1)   ? "dtype"
                             : !(seen & 2) ? "shape"
                                           : "data_offsets");
    }
    if (offset[0] > offset[1] || (uint64_t)offset[1] > r->data_bytes) {
        return json_complain(r, "tensor '%.*s' lies at %" PRId64 " to %" PRId64 " of the data, which has %zu bytes",
                             (int)NAME_SHOWN, e->name, offset[0], offset[1], r->data_bytes);
    }
    e->data = r->data + offset[0];
    e->bytes = (size_t)(offset[1] - offset[0]);
    int64_t elems = 1;
    for (int d = 0; d < e->ndim; d++) {
        if (__builtin_mul_overflow(elems, e->extent[d], &elems)) {
            return json_complain(r, "tensor '%.*s' has more than 2^63 elements", (int)NAME_SHOWN, e->name);
        }
    }
    const size_t each = dtype_bytes(e->dtype_name);
    if (each != 0 && (e->bytes % each != 0 || (uint64_t)elems != e->bytes / each)) {
        return json_complain(r, "tensor '%.*s' has %" PRId64 " elements of %s, but %zu bytes of data", (int)NAME_SHOWN,
                             e->name, elems, e->dtype_name, e->bytes);
    }
    return 0;
}

static int take_dtype(json_reader *r, safetensors_entry *e)
{
    char *text = NULL;
    if (json_string(r, &text) != 0) {
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
static int take_entry(json_reader *r, safetensors_entry *e)
{
    int64_t offset[2] = {0, 0};
    unsigned seen = 0;
    if (json_expect(r, '{') != 0) {
        return -1;
    }
    int more = json_peek(r) != '}';
    while (more) {
        char *key = NULL;
        int bad = json_string(r, &key) != 0 || json_expect(r, ':') != 0;
        unsigned bit = 0;
        int count = 2;
        if (bad == 0 && same_text(key, "dtype")) {
            bit = 1;
            bad = take_dtype(r, e);
        } else if (bad == 0 && same_text(key, "shape")) {
            bit = 2;
            bad = json_numbers(r, e->extent, SAFETENSORS_MAX_DIMS, &e->ndim, "a shape");
        } else if (bad == 0 && same_text(key, "data_offsets")) {
            bit = 4;
            bad = json_numbers(r, offset, 2, &count, "data_offsets");
        } else if (bad == 0) {
            bad = json_complain(r, "tensor '%.*s' has the unknown field '%.20s'", (int)NAME_SHOWN, e->name, key);
        }
        if (bad == 0 && ((seen & bit) != 0 || count != 2)) {
            bad = json_complain(r, "tensor '%.*s': '%s' is given %s", (int)NAME_SHOWN, e->name, key,
                                count != 2 ? "with one number, not two" : "twice");
        }
        free(key);
        seen |= bit;
        if (bad != 0) {
            return -1;
        }
        if (json_more(r, &more, '}') != 0) {
            return -1;
        }
    }
    r->at++;
    return place(r, e, offset, seen);
}

/* "__metadata__": {"key": "value", ...} */
static int skip_metadata(json_reader *r)
{
    if (json_expect(r, '{') != 0) {
        return -1;
    }
    int more = json_peek(r) != '}';
    while (more) {
        char *text = NULL;
        for (int i = 0; i < 2; i++) {
            if (json_string(r, &text) != 0) {
                return -1;
            }
            free(text);
            if (i == 0 && json_expect(r, ':') != 0) {
                return -1;
            }
        }
        if (json_more(r, &more, '}') != 0) {
            return -1;
        }
    }
    r->at++;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const safetensors_entry *)a)->name, ((const safetensors_entry *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const safetensors_entry *x = *(safetensors_entry *const *)a, *y = *(safetensors_entry *const *)b;
    return x->data != y->data ? (x->data < y->data ? -1 : 1) : x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Every byte of the data belongs to one tensor and to no other: what the format asks, so that nothing hides in it. */
static int check_cover(json_reader *r, const safetensors_file *file)
{
    size_t covered = 0;
    int bad = 0;
    const safetensors_entry **order = malloc((file->count + 1) * sizeof(*order));
    if (order == NULL) {
        return json_complain(r, "no memory for the order of %zu tensors", file->count);
    }
    for (size_t i = 0; i < file->count; i++) {
        order[i] = &file->entry[i];
    }
    qsort(order, file->count, sizeof(*order), by_place);
    for (size_t i = 0; i < file->count && !bad; i++) {
        const safetensors_entry *e = order[i];
        const size_t start = (size_t)(e->data - r->data);
        if (start > covered) {
            bad = json_complain(r, "bytes %zu to %zu of the data, before tensor '%.*s', belong to no tensor", covered,
                                start, (int)NAME_SHOWN, e->name);
        } else if (start < covered) {
            bad = json_complain(r, "tensor '%.*s' at %zu to %zu of the data overlaps tensor '%.*s', which ends at %zu",
                                (int)NAME_SHOWN, e->name, start, start + e->bytes, (int)NAME_SHOWN, order[i - 1]->name,
                                covered);
        }
        covered = start + e->bytes;
    }
    if (!bad && covered < r->data_bytes) {
        bad = json_complain(r, "bytes %zu to %zu of the data, behind the last tensor, belong to no tensor", covered,
                            r->data_bytes);
    }
    free(order);
    return bad;
}

static int take_one(json_reader *r, safetensors_file *out, size_t *capacity)
{
    char *name = NULL;
    if (json_string(r, &name) != 0) {
        return -1;
    }
    if (json_expect(r, ':') != 0) {
        free(name);
        return -1;
    }
    if (same_text(name, "__metadata__")) {
        free(name);
        return r->has_metadata++ ? json_complain(r, "'__metadata__' is there twice") : skip_metadata(r);
    }
    if (out->count == *capacity) {
        const size_t more = *capacity == 0 ? 64 : *capacity * 2;
        safetensors_entry *bigger = realloc(out->entry, more * sizeof(*bigger));
        if (bigger == NULL) {
            free(name);
            return json_complain(r, "no memory for a table of %zu tensors", more);
        }
        out->entry = bigger;
        *capacity = more;
    }
    safetensors_entry *e = &out->entry[out->count++];
    memset(e, 0, sizeof(*e));
    e->name = name;
    return take_entry(r, e);
}

/* {"name": {...}, ...} and blanks behind it. */
static int take_header(json_reader *r, safetensors_file *out)
{
    size_t capacity = 0;
    if (r->size > 0 && r->text[0] != '{') { /* no blanks before it, says the format */
        return json_complain(r, "byte 8 of the header is 0x%02x where '{' should stand", (unsigned char)r->text[0]);
    }
    if (json_expect(r, '{') != 0) {
        return -1;
    }
    int more = json_peek(r) != '}';
    while (more) {
        if (take_one(r, out, &capacity) != 0 || json_more(r, &more, '}') != 0) {
            return -1;
        }
    }
    r->at++;
    return json_peek(r) < 0
               ? 0
               : json_complain(r, "byte %zu of %s: something stands behind its end", r->before + r->at, r->part);
}

int safetensors_parse(safetensors_file *out, const uint8_t *bytes, size_t size, char *error, size_t error_bytes)
{
    json_reader r = {.part = "the header", .before = 8, .error = error, .error_bytes = error_bytes};
    uint64_t header = 0;
    memset(out, 0, sizeof(*out));
    if (size < 8) {
        return json_complain(&r, "not safetensors: %zu bytes, the length of the header alone takes 8", size);
    }
    for (int i = 7; i >= 0; i--) {
        header = header << 8 | bytes[i];
    }
    if (header > SAFETENSORS_MAX_HEADER || header > size - 8) {
        return json_complain(&r,
                             "the header is said to have %" PRIu64
                             " bytes, but the file has %zu behind its length (and %d is the most)",
                             header, size - 8, (int)SAFETENSORS_MAX_HEADER);
    }
    r.text = (const char *)bytes + 8;
    r.size = (size_t)header;
    r.data = bytes + 8 + header;
    r.data_bytes = size - 8 - (size_t)header;
    if (take_header(&r, out) != 0) {
        return -1;
    }
    if (out->count > 0) {
        qsort(out->entry, out->count, sizeof(*out->entry), by_name);
    }
    for (size_t i = 1; i < out->count; i++) {
        if (by_name(&out->entry[i - 1], &out->entry[i]) == 0) {
            return json_complain(&r, "tensor '%.*s' is there twice", (int)NAME_SHOWN, out->entry[i].name);
        }
    }
    return check_cover(&r, out);
}

void safetensors_close(safetensors_file *file)
{
    for (size_t i = 0; i < file->count; i++) {
        free(file->entry[i].name);
    }
    free(file->entry);
    memset(file, 0, sizeof(*file));
}
