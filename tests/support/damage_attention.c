/* Preloaded, spoils what attention and linear attention give back, so that a test sees whether a judge notices.
 *
 * HEDDLE_DAMAGE=attention-WHAT or linear-WHAT, on one rank (HEDDLE_DAMAGE_RANK; default the last), in every call:
 *   o lse dq dk dv de df state   the last element of the local array is wrong by 2048 roundings (bf16: by two ulps)
 *   nan                          the last element of o is NaN
 *   bytes messages               one more is counted forward;  back-bytes, back-messages: backward
 */
#include "damage.h"

#include <heddle/heddle.h>
#include <heddle/linear_attention.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of this thread, which is one rank: the local extents of its last object. */
typedef struct extents {
    heddle_dtype dtype;
    int64_t batch, rows, heads, kv_heads, dk, dv, projected;
    int chosen; /* this rank is the one */
    void *de, *df;
} extents;

static _Thread_local extents own;

static int asked(const char *what)
{
    const char *damage = getenv("HEDDLE_DAMAGE");
    return own.chosen && damage != NULL && strcmp(damage, what) == 0;
}

static void note(heddle_comm *comm, const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *layout,
                 heddle_placement placement, int64_t kv_heads)
{
    const char *rank = getenv("HEDDLE_DAMAGE_RANK");
    heddle_attention_rows rows;
    heddle_box box, kv_box;
    heddle_shape kv_shape = *shape;
    int me = heddle_comm_rank(comm);
    memset(&own, 0, sizeof own);
    kv_shape.dim[2].extent = kv_heads > 0 ? kv_heads : shape->dim[2].extent;
    if (heddle_attention_local_rows(&rows, shape, mesh, layout, placement, me) == HEDDLE_OK &&
        heddle_layout_box(&box, shape, mesh, layout, me) == HEDDLE_OK &&
        heddle_layout_box(&kv_box, &kv_shape, mesh, layout, me) == HEDDLE_OK) {
        own = (extents){.dtype = shape->dtype,
                        .batch = box.len[0],
                        .rows = rows.rows,
                        .heads = box.len[2],
                        .kv_heads = kv_box.len[2],
                        .dk = shape->dim[3].extent,
                        .dv = shape->dim[3].extent,
                        .chosen = me == (rank != NULL ? atoi(rank) : heddle_comm_size(comm) - 1)};
    }
}

/* --- one element -------------------------------------------------------------------------------------------------- */

static void spoil(void *array, heddle_dtype dtype, int64_t at, int with_nan)
{
    if (array == NULL || at < 0) {
        return;
    }
    if (dtype == HEDDLE_BF16) {
        uint16_t *x = (uint16_t *)array + at;
        *x = (uint16_t)(with_nan ? 0x7fc0 : *x + 2);
    } else if (dtype == HEDDLE_F32) {
        float *x = (float *)array + at;
        *x = with_nan ? NAN : *x + 0x1p-13f * fmaxf(fabsf(*x), 0.125f);
    } else {
        double *x = (double *)array + at;
        *x = with_nan ? (double)NAN : *x + 0x1p-42 * fmax(fabs(*x), 0.125);
    }
}

static void spoil_last(const heddle_attention_array *x, int64_t heads, int64_t width, int with_nan)
{
    const int64_t *s = x->stride_elems;
    if (own.batch * own.rows * heads * width > 0) {
        int64_t dense = own.batch * own.rows * heads * width - 1;
        int64_t last = (own.batch - 1) * s[0] + (own.rows - 1) * s[1] + (heads - 1) * s[2] + (width - 1) * s[3];
        spoil(x->data, own.dtype, last > 0 ? last : dense, with_nan);
    }
}

static void spoil_traffic(heddle_attention_traffic *measured, const char *prefix)
{
    static const char *const what[] = {"bytes", "messages", "back-bytes", "back-messages"};
    int64_t *const count[] = {&measured->forward_bytes, &measured->forward_messages, &measured->backward_bytes,
                              &measured->backward_messages};
    for (int i = 0; i < 4; i++) {
        char name[64];
        strcat(strcpy(name, prefix), what[i]);
        *count[i] += asked(name);
    }
}

static heddle_dtype real_dtype(void)
{
    return own.dtype == HEDDLE_F64 ? HEDDLE_F64 : HEDDLE_F32;
}

/* --- softmax attention -------------------------------------------------------------------------------------------- */

HEDDLE_API heddle_status heddle_attention_create(heddle_attention **out, heddle_comm *comm, const heddle_shape *shape,
                                                 const heddle_mesh *mesh, const heddle_layout *layout,
                                                 const heddle_attention_options *options)
{
    NEXT(heddle_attention_create)
    heddle_status st = real(out, comm, shape, mesh, layout, options);
    if (st == HEDDLE_OK) {
        note(comm, shape, mesh, layout, options->placement, options->kv_heads);
        own.projected = options->projected_length;
    }
    return st;
}

HEDDLE_API heddle_status heddle_attention_set_projection(heddle_attention *attention, const void *e, const void *f,
                                                         void *de, void *df)
{
    NEXT(heddle_attention_set_projection)
    own.de = de;
    own.df = df;
    return real(attention, e, f, de, df);
}

HEDDLE_API heddle_status heddle_attention_forward(heddle_attention *attention, const heddle_attention_array *q,
                                                  const heddle_attention_array *k, const heddle_attention_array *v,
                                                  const heddle_attention_array *o, void *lse, heddle_stream stream)
{
    NEXT(heddle_attention_forward)
    heddle_status st = real(attention, q, k, v, o, lse, stream);
    if (asked("attention-o") || asked("attention-nan")) {
        spoil_last(o, own.heads, own.dv, asked("attention-nan"));
    }
    if (asked("attention-lse")) {
        spoil(lse, real_dtype(), own.batch * own.heads * own.rows - 1, 0);
    }
    return st;
}

HEDDLE_API heddle_status heddle_attention_backward(heddle_attention *attention, const heddle_attention_array *d_o,
                                                   const heddle_attention_array *dq, const heddle_attention_array *dk,
                                                   const heddle_attention_array *dv, heddle_stream stream)
{
    NEXT(heddle_attention_backward)
    heddle_status st = real(attention, d_o, dq, dk, dv, stream);
    if (asked("attention-dq")) {
        spoil_last(dq, own.heads, own.dk, 0);
    }
    if (asked("attention-dk") || asked("attention-dv")) {
        spoil_last(asked("attention-dk") ? dk : dv, own.kv_heads, own.dk, 0);
    }
    if (asked("attention-de") || asked("attention-df")) {
        spoil(asked("attention-de") ? own.de : own.df, own.dtype, own.projected * own.rows - 1, 0);
    }
    return st;
}

HEDDLE_API heddle_status heddle_attention_get_info(heddle_attention_info *out, const heddle_attention *attention)
{
    NEXT(heddle_attention_get_info)
    heddle_status st = real(out, attention);
    spoil_traffic(&out->measured, "attention-");
    return st;
}

/* --- linear attention --------------------------------------------------------------------------------------------- */

HEDDLE_API heddle_status heddle_linear_attention_create(heddle_linear_attention **out, heddle_comm *comm,
                                                        const heddle_shape *shape, const heddle_mesh *mesh,
                                                        const heddle_layout *layout,
                                                        const heddle_linear_attention_options *options)
{
    NEXT(heddle_linear_attention_create)
    heddle_status st = real(out, comm, shape, mesh, layout, options);
    if (st == HEDDLE_OK) {
        note(comm, shape, mesh, layout, HEDDLE_PLACEMENT_CONTIGUOUS, 0);
        own.dv = options->dv > 0 ? options->dv : own.dv;
    }
    return st;
}

HEDDLE_API heddle_status heddle_linear_attention_forward(heddle_linear_attention *attention,
                                                         const heddle_attention_array *q,
                                                         const heddle_attention_array *k,
                                                         const heddle_attention_array *v,
                                                         const heddle_attention_array *o, heddle_stream stream)
{
    NEXT(heddle_linear_attention_forward)
    heddle_status st = real(attention, q, k, v, o, stream);
    if (asked("linear-o") || asked("linear-nan")) {
        spoil_last(o, own.heads, own.dv, asked("linear-nan"));
    }
    return st;
}

HEDDLE_API heddle_status heddle_linear_attention_backward(
    heddle_linear_attention *attention, const heddle_attention_array *q, const heddle_attention_array *k,
    const heddle_attention_array *v, const heddle_attention_array *d_o, const heddle_attention_array *dq,
    const heddle_attention_array *dk, const heddle_attention_array *dv, heddle_stream stream)
{
    NEXT(heddle_linear_attention_backward)
    heddle_status st = real(attention, q, k, v, d_o, dq, dk, dv, stream);
    if (asked("linear-dq") || asked("linear-dk")) {
        spoil_last(asked("linear-dq") ? dq : dk, own.heads, own.dk, 0);
    }
    if (asked("linear-dv")) {
        spoil_last(dv, own.heads, own.dv, 0);
    }
    return st;
}

HEDDLE_API heddle_status heddle_linear_attention_state(void *out, const heddle_linear_attention *attention,
                                                       heddle_linear_state convention, heddle_stream stream)
{
    NEXT(heddle_linear_attention_state)
    heddle_status st = real(out, attention, convention, stream);
    if (asked("linear-state")) {
        spoil(out, real_dtype(), own.batch * own.heads * own.dk * own.dv - 1, 0);
    }
    return st;
}

HEDDLE_API heddle_status heddle_linear_attention_get_info(heddle_linear_attention_info *out,
                                                          const heddle_linear_attention *attention)
{
    NEXT(heddle_linear_attention_get_info)
    heddle_status st = real(out, attention);
    spoil_traffic(&out->measured, "linear-");
    return st;
}
