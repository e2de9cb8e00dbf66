/* Arrays of an attention problem, and the values in them. */
#include "runtime/verify/attention_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

attention_extents attention_extents_of(const attention_case *c)
{
    const heddle_shape *s = &c->shape;
    int64_t heads = s->dim[2].extent;
    return (attention_extents){.batch = s->dim[0].extent,
                               .sequence = s->dim[1].extent,
                               .heads = heads,
                               .kv_heads = c->options.kv_heads > 0 ? c->options.kv_heads : heads,
                               .width = s->dim[3].extent,
                               .projected = c->options.projected_length,
                               .key_lengths = c->has_key_lengths ? c->key_length : NULL,
                               .causal = c->options.causal,
                               .scale = c->options.scale != 0 ? c->options.scale : 1 / sqrt((double)s->dim[3].extent)};
}

double attention_bytes(const attention_extents *n)
{
    double rows = (double)n->batch * (double)n->sequence, e = (double)n->projected * (double)n->sequence;
    double q = rows * (double)n->heads * (double)n->width, k = rows * (double)n->kv_heads * (double)n->width;
    return 8 * (4 * q + 4 * k + rows * (double)n->heads + 2 * e + 2 * (double)n->batch * (double)n->kv_heads * e);
}

heddle_status attention_alloc(attention_arrays *out, const attention_extents *n)
{
    int64_t q = n->batch * n->sequence * n->heads * n->width, k = n->batch * n->sequence * n->kv_heads * n->width;
    int64_t lse = n->batch * n->heads * n->sequence, e = n->projected * n->sequence;
    int64_t de = (n->batch > 0 ? n->batch : 1) * n->kv_heads * e; /* room for their sum, too */
    double **place[] = {&out->q,  &out->d_o, &out->o, &out->dq, &out->k,  &out->v, &out->dk,
                        &out->dv, &out->lse, &out->e, &out->f,  &out->de, &out->df};
    const int64_t elems[] = {q, q, q, q, k, k, k, k, lse, e, e, de, de};
    for (size_t i = 0; i < sizeof elems / sizeof elems[0]; i++) {
        *place[i] = calloc((size_t)elems[i] + 1, sizeof(double));
        if (*place[i] == NULL) {
            return judge_no_memory("arrays of the reference", attention_bytes(n));
        }
    }
    return HEDDLE_OK;
}

void attention_free(attention_arrays *a)
{
    double *all[] = {a->q, a->d_o, a->o, a->dq, a->k, a->v, a->dk, a->dv, a->lse, a->e, a->f, a->de, a->df};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
    memset(a, 0, sizeof *a);
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    return random_bits(&(random_source){x});
}

/* Values in -1..1 that the dtype holds exactly, different for every array. */
static void fill(double *out, int64_t elems, uint64_t seed, heddle_dtype dtype)
{
    for (int64_t i = 0; i < elems; i++) {
        char rounded[8];
        judge_store(rounded, dtype, (double)(int64_t)(mix(seed + (uint64_t)i) >> 11) * 0x1p-52 - 1);
        out[i] = judge_load(rounded, dtype);
    }
}

void attention_fill(attention_arrays *x, const attention_extents *n, const attention_case *c)
{
    int64_t q = n->batch * n->sequence * n->heads * n->width, k = n->batch * n->sequence * n->kv_heads * n->width;
    uint64_t seed = mix(c->seed);
    fill(x->q, q, mix(seed + 1), c->shape.dtype);
    fill(x->k, k, mix(seed + 2), c->shape.dtype);
    fill(x->v, k, mix(seed + 3), c->shape.dtype);
    fill(x->d_o, q, mix(seed + 4), c->shape.dtype);
    if (c->nan_at > 0 && k > 0) {
        x->k[c->nan_at * 3 % k] = NAN;
        x->v[c->nan_at % k] = NAN;
    }
    fill(x->e, n->projected * n->sequence, mix(seed + 5), c->shape.dtype);
    fill(x->f, n->projected * n->sequence, mix(seed + 6), c->shape.dtype);
}
