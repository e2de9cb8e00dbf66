/* What a reshard must give, the slow way: every element of the global tensor, every rank, straight from the rule of
 * heddle/reshard.h. Shares nothing with the code under test but heddle_layout_box. */
#include "runtime/verify/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- one element -------------------------------------------------------------------------------------------------- */

/* A float of `exponent` and `mantissa` bits. `finite`: no infinity, all ones is NaN (f8e4m3). */
typedef struct small_format {
    int exponent, mantissa, finite;
} small_format;

static int small_format_of(small_format *out, heddle_dtype dtype)
{
    switch (dtype) {
    case HEDDLE_F16:
        *out = (small_format){5, 10, 0};
        return 1;
    case HEDDLE_BF16:
        *out = (small_format){8, 7, 0};
        return 1;
    case HEDDLE_F8E4M3:
        *out = (small_format){4, 3, 1};
        return 1;
    case HEDDLE_F8E5M2:
        *out = (small_format){5, 2, 0};
        return 1;
    default:
        return 0;
    }
}

static double decode(unsigned bits, const small_format *f)
{
    unsigned exponent_mask = (1u << f->exponent) - 1, mantissa_mask = (1u << f->mantissa) - 1;
    unsigned e = bits >> f->mantissa & exponent_mask, m = bits & mantissa_mask;
    int smallest = 2 - (1 << (f->exponent - 1));
    double value = 0;
    if (f->finite ? (e == exponent_mask && m == mantissa_mask) : (e == exponent_mask && m != 0)) {
        value = NAN;
    } else if (!f->finite && e == exponent_mask) {
        value = INFINITY;
    } else {
        double digits = e == 0 ? m : (1u << f->mantissa) + m;
        value = ldexp(digits, smallest - f->mantissa + (e == 0 ? 0 : (int)e - 1));
    }
    return bits >> (f->exponent + f->mantissa) ? -value : value;
}

/* Round to nearest, ties to even. */
static unsigned encode(double value, const small_format *f)
{
    unsigned sign = signbit(value) ? 1u << (f->exponent + f->mantissa) : 0;
    unsigned infinity = ((1u << f->exponent) - 1) << f->mantissa;
    unsigned nan = f->finite ? infinity + (1u << f->mantissa) - 1 : infinity + (1u << (f->mantissa - 1));
    if (isnan(value)) {
        return sign | nan;
    }
    if (isinf(value)) {
        return sign | (f->finite ? nan : infinity);
    }
    int smallest = 2 - (1 << (f->exponent - 1)), exponent = 0;
    frexp(value, &exponent);
    exponent = value == 0 || exponent - 1 < smallest ? smallest : exponent - 1;
    double digits = nearbyint(ldexp(fabs(value), f->mantissa - exponent));
    double code = ldexp(exponent - smallest, f->mantissa) + digits;
    unsigned largest = f->finite ? nan - 1 : infinity - 1;
    return sign | (code > largest ? (f->finite ? nan : infinity) : (unsigned)code);
}

static unsigned load_bits(const void *at, size_t bytes)
{
    uint8_t one;
    uint16_t two;
    if (bytes == 1) {
        memcpy(&one, at, 1);
        return one;
    }
    memcpy(&two, at, 2);
    return two;
}

static void sum_small(void *out, const void *const *value, int n, const small_format *f, size_t bytes)
{
    float sum = (float)decode(load_bits(value[0], bytes), f);
    for (int i = 1; i < n; i++) {
        sum = sum + (float)decode(load_bits(value[i], bytes), f);
    }
    unsigned bits = encode(sum, f);
    if (bytes == 1) {
        memcpy(out, &(uint8_t){(uint8_t)bits}, 1);
    } else {
        memcpy(out, &(uint16_t){(uint16_t)bits}, 2);
    }
}

static void sum_integers(void *out, const void *const *value, int n, heddle_dtype dtype)
{
    size_t bytes = heddle_dtype_bytes(dtype);
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        uint64_t term = 0; /* little end first: the low bytes are all that modulo 2^n needs */
        memcpy(&term, value[i], bytes);
        sum = dtype == HEDDLE_BOOL ? (sum | term) : sum + term;
    }
    memcpy(out, &sum, bytes);
}

/* In the order given; one value is copied, none is zero. */
static void combine(void *out, const void *const *value, int n, heddle_dtype dtype)
{
    size_t bytes = heddle_dtype_bytes(dtype);
    small_format format;
    if (n < 2) {
        memset(out, 0, bytes);
        if (n == 1) {
            memcpy(out, value[0], bytes);
        }
    } else if (small_format_of(&format, dtype)) {
        sum_small(out, value, n, &format, bytes);
    } else if (dtype == HEDDLE_F32) {
        float sum, term;
        memcpy(&sum, value[0], sizeof sum);
        for (int i = 1; i < n; i++) {
            memcpy(&term, value[i], sizeof term);
            sum = sum + term;
        }
        memcpy(out, &sum, sizeof sum);
    } else if (dtype == HEDDLE_F64) {
        double sum, term;
        memcpy(&sum, value[0], sizeof sum);
        for (int i = 1; i < n; i++) {
            memcpy(&term, value[i], sizeof term);
            sum = sum + term;
        }
        memcpy(out, &sum, sizeof sum);
    } else {
        sum_integers(out, value, n, dtype);
    }
}

/* --- all ranks ---------------------------------------------------------------------------------------------------- */

typedef struct world {
    const heddle_reshard_line *line;
    int nranks;
    heddle_box *from, *to;         /* [nranks] */
    int (*coord)[HEDDLE_MAX_AXES]; /* [nranks] */
    const void **inner, **outer;   /* [nranks] values to combine */
    uint64_t *partial;             /* [nranks] results of the inner sums */
    const void *const *src;
    void *const *dst;
} world;

/* Partial sums that end up replicated are completed first, within the ranks that differ on such axes only. */
static int completes_first(const heddle_reshard_line *line, int axis)
{
    return line->from.dim_of_axis[axis] == HEDDLE_PARTIAL && line->to.dim_of_axis[axis] == HEDDLE_REPLICATED;
}

static int same_group(const world *w, int a, int b)
{
    for (int x = 0; x < w->line->mesh.naxes; x++) {
        if (!completes_first(w->line, x) && w->coord[a][x] != w->coord[b][x]) {
            return 0;
        }
    }
    return 1;
}

/* May rank d take values from rank s at all? */
static int may_send(const world *w, int s, int d)
{
    for (int x = 0; x < w->line->mesh.naxes; x++) {
        int from = w->line->from.dim_of_axis[x], to = w->line->to.dim_of_axis[x];
        int own = w->coord[s][x] == w->coord[d][x];
        if (completes_first(w->line, x) || from == HEDDLE_REPLICATED || to == HEDDLE_PARTIAL) {
            if (!own) {
                return 0;
            }
        }
        if (to == HEDDLE_PARTIAL && from == HEDDLE_REPLICATED && w->coord[d][x] != 0) {
            return 0;
        }
    }
    return 1;
}

static int holds(const heddle_box *box, const int64_t *at)
{
    for (int d = 0; d < box->ndim; d++) {
        if (at[d] < box->lo[d] || at[d] >= box->lo[d] + box->len[d]) {
            return 0;
        }
    }
    return 1;
}

static size_t position(const heddle_box *box, const heddle_order *order, const int64_t *at)
{
    int64_t position = 0;
    for (int i = 0; i < box->ndim; i++) {
        int d = order->ndim > 0 ? order->dim[i] : i;
        position = position * box->len[d] + at[d] - box->lo[d];
    }
    return (size_t)position;
}

static void element_of_rank(world *w, const int64_t *at, int d)
{
    const heddle_reshard_line *line = w->line;
    size_t bytes = heddle_dtype_bytes(line->shape.dtype);
    int nouter = 0;
    for (int s = 0; s < w->nranks; s++) {
        if (!may_send(w, s, d) || !holds(&w->from[s], at)) {
            continue;
        }
        int ninner = 0;
        for (int r = 0; r < w->nranks; r++) {
            if (same_group(w, r, s)) {
                w->inner[ninner++] = (const char *)w->src[r] + position(&w->from[r], &line->from_order, at) * bytes;
            }
        }
        combine(&w->partial[s], w->inner, ninner, line->shape.dtype);
        w->outer[nouter++] = &w->partial[s];
    }
    combine((char *)w->dst[d] + position(&w->to[d], &line->to_order, at) * bytes, w->outer, nouter, line->shape.dtype);
}

static void all_elements(world *w)
{
    const heddle_shape *shape = &w->line->shape;
    int64_t at[HEDDLE_MAX_DIMS] = {0};
    for (int d = 0; d < shape->ndim; d++) {
        if (shape->dim[d].extent == 0) {
            return;
        }
    }
    for (;;) {
        for (int r = 0; r < w->nranks; r++) {
            if (holds(&w->to[r], at)) {
                element_of_rank(w, at, r);
            }
        }
        int d = shape->ndim - 1;
        while (d >= 0 && ++at[d] == shape->dim[d].extent) {
            at[d--] = 0;
        }
        if (d < 0) {
            return;
        }
    }
}

static void *room(heddle_status *st, size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    if (memory == NULL) {
        *st = heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %zu times %zu bytes of an oracle", count, bytes);
    }
    return memory;
}

heddle_status oracle_reshard(const heddle_reshard_line *line, const void *const *src, void *const *dst)
{
    heddle_status st = HEDDLE_OK;
    size_t n = (size_t)heddle_mesh_size(&line->mesh);
    world w = {line, (int)n, NULL, NULL, NULL, NULL, NULL, NULL, src, dst};
    w.from = room(&st, n, sizeof *w.from);
    w.to = room(&st, n, sizeof *w.to);
    w.coord = room(&st, n, sizeof *w.coord);
    w.inner = room(&st, n, sizeof *w.inner);
    w.outer = room(&st, n, sizeof *w.outer);
    w.partial = room(&st, n, sizeof *w.partial);
    for (int r = 0; r < w.nranks && st == HEDDLE_OK; r++) {
        st = heddle_layout_box(&w.from[r], &line->shape, &line->mesh, &line->from, r);
        st = st == HEDDLE_OK ? heddle_layout_box(&w.to[r], &line->shape, &line->mesh, &line->to, r) : st;
        st = st == HEDDLE_OK ? heddle_mesh_coords(w.coord[r], &line->mesh, r) : st;
    }
    if (st == HEDDLE_OK) {
        all_elements(&w);
    }
    free(w.from);
    free(w.to);
    free(w.coord);
    free(w.inner);
    free(w.outer);
    free(w.partial);
    return st;
}
