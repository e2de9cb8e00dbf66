#include "runtime/verify/judge_array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0x5a, MARGIN_BYTES = 64, PAD_ELEMS = 3 };

/* --- elements ----------------------------------------------------------------------------------------------------- */

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits & 0x7fffffffu) > 0x7f800000u ? (uint16_t)(bits >> 16 | 0x40u)
                                              : (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

enum { F16_DIGITS = 10, F16_SMALLEST = -14 /* exponent of normal numbers */, F16_INFINITY = 0x7c00 };

static uint16_t to_f16(double value)
{
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (!isfinite(value) || value == 0) {
        return (uint16_t)(sign | (value == 0 ? 0 : F16_INFINITY | (isnan(value) ? 0x200 : 0)));
    }
    const int e = ilogb(value) > F16_SMALLEST ? ilogb(value) : F16_SMALLEST;
    const double bits = rint(ldexp(fabs(value), F16_DIGITS - e)) + (double)((e - F16_SMALLEST) << F16_DIGITS);
    return (uint16_t)(sign | (bits < F16_INFINITY ? (unsigned)bits : F16_INFINITY));
}

static double from_f16(uint16_t bits)
{
    const int e = bits >> F16_DIGITS & 0x1f, rest = bits & 0x3ff;
    const double size = e == 0x1f ? (rest != 0 ? NAN : INFINITY)
                        : e == 0  ? ldexp(rest, F16_SMALLEST - F16_DIGITS)
                                  : ldexp(rest + 0x400, e - 1 + F16_SMALLEST - F16_DIGITS);
    return bits & 0x8000 ? -size : size;
}

void judge_store(char *to, heddle_dtype dtype, double value)
{
    float narrow = (float)value;
    uint16_t bits = dtype == HEDDLE_F16 ? to_f16(value) : to_bf16(narrow);
    const void *from = dtype == HEDDLE_F64 ? (const void *)&value : dtype == HEDDLE_F32 ? (const void *)&narrow : &bits;
    memcpy(to, from, heddle_dtype_bytes(dtype));
}

double judge_load(const char *from, heddle_dtype dtype)
{
    double value;
    float narrow;
    uint16_t bits;
    if (dtype == HEDDLE_F64) {
        memcpy(&value, from, sizeof value);
        return value;
    }
    if (dtype == HEDDLE_F32) {
        memcpy(&narrow, from, sizeof narrow);
        return narrow;
    }
    memcpy(&bits, from, sizeof bits);
    if (dtype == HEDDLE_F16) {
        return from_f16(bits);
    }
    uint32_t wide = (uint32_t)bits << 16;
    memcpy(&narrow, &wide, sizeof narrow);
    return narrow;
}

/* --- arrays ------------------------------------------------------------------------------------------------------- */

heddle_status judge_array_make(judge_array *out, const char *name, heddle_dtype dtype, const judge_part *part,
                               int storage)
{
    int64_t s = part->rows.rows, h = part->heads, d = part->width, padded = d + PAD_ELEMS, row = h * padded + PAD_ELEMS;
    const int64_t strides[JUDGE_STORAGES][4] = {{s * h * d, h * d, d, 1},
                                                {h * s * d, d, s * d, 1},
                                                {s * row, row, padded, 1},
                                                {s * h * d * 2, h * d * 2, d * 2, 2},
                                                {s * h * d, h * d, 1, h}};
    *out = (judge_array){.name = name, .dtype = dtype, .part = *part};
    memcpy(out->stride, strides[storage], sizeof out->stride);
    if (storage != JUDGE_DENSE) {
        memcpy(out->array.stride_elems, out->stride, sizeof out->stride);
    }
    int64_t elems = part->batch * s * (2 * h * d + h * PAD_ELEMS + PAD_ELEMS);
    out->bytes = (size_t)elems * heddle_dtype_bytes(dtype) + 2 * MARGIN_BYTES;
    out->memory = malloc(out->bytes);
    if (out->memory == NULL) {
        return judge_no_memory(name, (double)out->bytes);
    }
    out->array.data = out->memory + MARGIN_BYTES;
    judge_array_poison(out);
    return HEDDLE_OK;
}

void judge_array_free(judge_array *x)
{
    free(x->memory);
    x->memory = NULL;
}

void judge_array_poison(judge_array *x)
{
    memset(x->memory, POISON, x->bytes);
}

/* An element: where it lies here and in the whole array, and its index there. */
typedef struct element {
    int64_t row; /* of this rank's rows of width elements */
    char *here;
    int64_t whole, index[JUDGE_DIMS];
} element;

/* The first element of a row of this rank; 0 behind the last. */
static int row_at(element *e, const judge_array *x, int64_t row)
{
    const judge_part *p = &x->part;
    int64_t rows = p->rows.rows, all = p->width > 0 ? p->batch * rows * p->heads : 0;
    if (row >= all) {
        return 0;
    }
    int64_t h = row % p->heads, s = row / p->heads % rows, b = row / p->heads / rows, first = p->rows.len[0];
    *e = (element){
        .row = row,
        .here = x->memory + MARGIN_BYTES +
                (b * x->stride[0] + s * x->stride[1] + h * x->stride[2]) * (int64_t)heddle_dtype_bytes(x->dtype),
        .index = {p->batch_lo + b, s < first ? p->rows.lo[0] + s : p->rows.lo[1] + s - first, p->head_lo + h, 0}};
    e->whole = e->index[0] * p->whole_stride[0] + e->index[1] * p->whole_stride[1] + e->index[2] * p->whole_stride[2];
    return 1;
}

static int first_element(element *e, const judge_array *x)
{
    return row_at(e, x, 0);
}

static int next_element(element *e, const judge_array *x)
{
    if (++e->index[3] == x->part.width) {
        return row_at(e, x, e->row + 1);
    }
    e->here += x->stride[3] * (int64_t)heddle_dtype_bytes(x->dtype);
    e->whole++;
    return 1;
}

void judge_array_put(judge_array *x, const double *whole)
{
    element e;
    for (int more = first_element(&e, x); more; more = next_element(&e, x)) {
        judge_store(e.here, x->dtype, whole[e.whole]);
    }
}

void judge_array_get(const judge_array *x, double *whole)
{
    element e;
    for (int more = first_element(&e, x); more; more = next_element(&e, x)) {
        whole[e.whole] = judge_load(e.here, x->dtype);
    }
}

void judge_array_compare(judge_error *error, const judge_array *x, const double *whole, const double *size)
{
    element e;
    for (int more = first_element(&e, x); more; more = next_element(&e, x)) {
        judge_element(error, x->dtype, judge_load(e.here, x->dtype), whole[e.whole], size[e.whole], e.index);
    }
}

int judge_array_gaps_kept(judge_array *x)
{
    element e;
    size_t kept = 0;
    for (int more = first_element(&e, x); more; more = next_element(&e, x)) {
        memset(e.here, POISON, heddle_dtype_bytes(x->dtype));
    }
    while (kept < x->bytes && x->memory[kept] == POISON) {
        kept++;
    }
    return kept == x->bytes;
}

void judge_array_product(double *sum, double *size, const judge_array *x, const judge_array *y, const double *y_size)
{
    element a, b;
    for (int more = first_element(&a, x) && first_element(&b, y); more;
         more = next_element(&a, x) && next_element(&b, y)) {
        double left = judge_load(a.here, x->dtype);
        *sum += left * judge_load(b.here, y->dtype);
        *size += fabs(left) * y_size[b.whole];
    }
}
