/* A caller's arrays and those of parts, on a device. */
#include "runtime/attention/on.h"

heddle_status hd_attn_on_arrange(struct hd_attn_on *on, const hd_device_arrange *of)
{
    return hd_device_launched(on->device, on->kernels->arrange(of, on->stream), "arrange");
}

/* Of [heads][batch][rows][width], whose batch is `inner` fibres beside one another for each that is not. */
hd_device_tokens hd_attn_on_packed(const struct hd_attn_on *on, const void *data, int64_t rows, int64_t inner)
{
    const int64_t fibre = rows * on->problem->width;
    return (hd_device_tokens){(void *)(uintptr_t)data, inner * fibre, fibre, on->problem->width,
                              on->problem->batch * fibre};
}

static int64_t own_rows(const struct hd_attn_on *on)
{
    return on->problem->member_rows[on->problem->rank].rows;
}

static hd_device_tokens from_head(const hd_device_tokens *x, int64_t head, int64_t elem_bytes)
{
    hd_device_tokens at = *x;
    if (at.data != NULL) {
        at.data = (char *)at.data + head * x->head * elem_bytes;
    }
    return at;
}

static hd_device_arrange own_arrangement(const struct hd_attn_on *on, int64_t inner, int64_t heads)
{
    const hd_attn_problem *p = on->problem;
    return (hd_device_arrange){.outer = p->batch / inner,
                               .inner = inner,
                               .heads = heads,
                               .n = own_rows(on),
                               .d = p->width,
                               .dst_dtype = p->dtype,
                               .src_dtype = p->dtype};
}

/* Heads [first, first + count) of one of a caller's arrays, and the place behind them among the packed ones. */
typedef struct stretch {
    int which;
    int64_t first, count;
} stretch;

static stretch stretch_of(const hd_head_part *part, int which)
{
    return (stretch){which, which == 0 ? part->q_lo : part->kv_lo, which == 0 ? part->nq : part->nkv};
}

heddle_status hd_attn_on_pack(struct hd_attn_on *on, const hd_on_arrays *x)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = on->problem;
    char *dense = p->spread > 1 ? on->rows : on->qkv;
    for (int i = 0; i < 3 * p->spread; i++) {
        const stretch s = stretch_of(&p->part[i / 3], i % 3);
        hd_device_arrange of = own_arrangement(on, x->inner, s.count);
        of.dst = hd_attn_on_packed(on, dense, own_rows(on), x->inner);
        of.src = from_head(&x->at[s.which], s.first, p->elem_bytes);
        HD_TRY(hd_attn_on_arrange(on, &of));
        dense += hd_attn_on_elems(on, s.count, own_rows(on)) * p->elem_bytes;
    }
out:
    return st;
}

/* Key heads that several parts have: the sums of theirs, rounded once. `from`: the parts' packed heads. */
static heddle_status unpack_split(struct hd_attn_on *on, const hd_on_arrays *x, int which, const char *from)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = on->problem;
    const int64_t head_elems = hd_attn_on_elems(on, 1, own_rows(on));
    hd_device_arrange of = own_arrangement(on, x->inner, p->kv_heads);
    of.dst = hd_attn_on_packed(on, on->kv_wide, own_rows(on), x->inner);
    of.dst_dtype = HEDDLE_F32;
    HD_TRY(hd_attn_on_arrange(on, &of)); /* zeros */
    of.adds = 1;
    for (int i = 0; i < p->spread; i++) {
        const hd_head_part *part = &p->part[i];
        of.heads = part->nkv;
        of.dst = hd_attn_on_packed(on, on->kv_wide + part->kv_lo * head_elems, own_rows(on), x->inner);
        of.src = hd_attn_on_packed(on, from + (part->nq + (which - 1) * part->nkv) * head_elems * p->elem_bytes,
                                   own_rows(on), x->inner);
        HD_TRY(hd_attn_on_arrange(on, &of));
        from += (part->nq + 2 * part->nkv) * head_elems * p->elem_bytes;
    }
    hd_device_arrange out = own_arrangement(on, x->inner, p->kv_heads);
    out.src = hd_attn_on_packed(on, on->kv_wide, own_rows(on), x->inner);
    out.src_dtype = HEDDLE_F32;
    out.dst = x->at[1 + which];
    st = hd_attn_on_arrange(on, &out);
out:
    return st;
}

heddle_status hd_attn_on_unpack(struct hd_attn_on *on, const hd_on_arrays *x, const char *from, heddle_dtype dtype)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = on->problem;
    const char *dense = from;
    for (int i = 0; i < 3 * p->spread; i++) {
        const stretch s = stretch_of(&p->part[i / 3], i % 3);
        hd_device_arrange of = own_arrangement(on, x->inner, s.count);
        of.src = hd_attn_on_packed(on, dense, own_rows(on), x->inner);
        of.src_dtype = dtype;
        of.dst = from_head(&x->at[1 + s.which], s.first, p->elem_bytes);
        HD_TRY(s.which > 0 && on->splits_keys ? HEDDLE_OK : hd_attn_on_arrange(on, &of));
        dense += hd_attn_on_elems(on, s.count, own_rows(on)) * (int64_t)heddle_dtype_bytes(dtype);
    }
    for (int which = 1; which < 3 && on->splits_keys; which++) {
        HD_TRY(unpack_split(on, x, which, from));
    }
out:
    return st;
}

heddle_status hd_attn_on_take_in(struct hd_attn_on *on, char *dense, const hd_device_tokens *x, int64_t inner)
{
    hd_device_arrange of = own_arrangement(on, inner, on->problem->heads);
    of.dst = hd_attn_on_packed(on, dense, own_rows(on), inner);
    of.src = *x;
    return hd_attn_on_arrange(on, &of);
}

heddle_status hd_attn_on_give_out(struct hd_attn_on *on, const hd_device_tokens *x, int64_t inner, const char *dense)
{
    hd_device_arrange of = own_arrangement(on, inner, on->problem->heads);
    of.dst = *x;
    of.src = hd_attn_on_packed(on, dense, own_rows(on), inner);
    return hd_attn_on_arrange(on, &of);
}
