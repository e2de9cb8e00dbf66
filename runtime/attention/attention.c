/* Forward and backward: a caller's arrays in and out, the heads exchange, and the core of the method between them. */
#include "runtime/attention/attention_private.h"

#include <string.h>

/* The arrays of a call in their order: names, which are of the key heads, and from which on they are written. */
typedef struct arrays {
    const char *name[4];
    int of_keys[4], first_written;
} arrays;

static const arrays of_forward = {{"q", "k", "v", "o"}, {0, 1, 1, 0}, 3};
static const arrays of_backward = {{"d_o", "dq", "dk", "dv"}, {0, 0, 1, 1}, 1};

/* A rank that holds nothing may leave arrays out. */
static heddle_status check_call(const heddle_attention *a, const heddle_attention_array **x, const arrays *of,
                                const char *function)
{
    static const heddle_attention_array nothing;
    const hd_attn_problem *p = &a->problem;
    const int64_t rows = p->member_rows[p->rank].rows;
    for (int i = 0; i < 4; i++) {
        const hd_object_array array = {function,
                                       of->name[i],
                                       x[i],
                                       &p->shape,
                                       {p->batch, rows, of->of_keys[i] ? p->kv_heads : p->heads, p->width},
                                       i >= of->first_written};
        heddle_status st = hd_object_check_array(&array, hd_comm_rank_name(a->comm, heddle_comm_rank(a->comm)));
        if (st != HEDDLE_OK) {
            return st;
        }
        x[i] = x[i] != NULL ? x[i] : &nothing;
    }
    return a->on != NULL ? hd_attn_on_check_arrays(a, x, of->name, function) : HEDDLE_OK;
}

/* --- a caller's arrays and dense ones ----------------------------------------------------------------------------- */

/* `count` heads of a caller's array, which has `heads`, in the order of the dense ones: [heads][batch][rows][width]. */
static hd_strided heads_of(const heddle_attention *a, const heddle_attention_array *array, int64_t heads, int64_t first,
                           int64_t count)
{
    const hd_attn_problem *p = &a->problem;
    const int64_t rows = p->member_rows[p->rank].rows;
    const int64_t dense[4] = {rows * heads * p->width, heads * p->width, p->width, 1};
    const int64_t *stride = hd_array_is_dense(array) ? dense : array->stride_elems;
    hd_strided x = {array->data, {count, p->batch, rows, p->width}, {stride[2], stride[0], stride[1], stride[3]}};
    if (count * p->batch * rows > 0) { /* else data may be NULL */
        x.data = (char *)x.data + first * x.stride[0] * p->elem_bytes;
    }
    return x;
}

/* A caller's q, k and v as the parts want them: for each part its query heads, key heads, value heads. */
static void pack_parts(const heddle_attention *a, char *dense, const heddle_attention_array *const *x)
{
    const hd_attn_problem *p = &a->problem;
    int64_t head_bytes = p->batch * p->member_rows[p->rank].rows * p->width * p->elem_bytes;
    for (int i = 0; i < p->spread; i++) {
        const hd_head_part *part = &p->part[i];
        for (int which = 0; which < 3; which++) {
            int64_t count = which == 0 ? part->nq : part->nkv;
            hd_strided heads = which == 0 ? heads_of(a, x[which], p->heads, part->q_lo, count)
                                          : heads_of(a, x[which], p->kv_heads, part->kv_lo, count);
            a->core.table->pack(dense, &heads, p->elem_bytes);
            dense += count * head_bytes;
        }
    }
}

/* Place of head h of q (0), k (1) or v (2) in the packed heads of part i; -1: the part has it not. */
static int64_t place_of(const hd_attn_problem *p, int i, int which, int64_t h, int64_t base)
{
    const hd_head_part *part = &p->part[i];
    int64_t first = which == 0 ? part->q_lo : part->kv_lo, count = which == 0 ? part->nq : part->nkv;
    int64_t before = which == 0 ? 0 : part->nq + (which == 2 ? part->nkv : 0);
    return h >= first && h < first + count ? base + before + h - first : -1;
}

/* Of an element: storage or arithmetic. */
static int64_t bytes_of(const hd_attn_problem *p, heddle_dtype dtype)
{
    return dtype == p->dtype ? p->elem_bytes : p->real_bytes;
}

/* Gradients of q, k and v; that of a key head is the sum of those of the parts that use it. */
static void unpack_parts(const heddle_attention *a, const heddle_attention_array *const *x, const char *dense,
                         heddle_dtype dtype, const void **src)
{
    const hd_attn_problem *p = &a->problem;
    int64_t head_bytes = p->batch * p->member_rows[p->rank].rows * p->width * bytes_of(p, dtype);
    for (int which = 0; which < 3; which++) {
        int64_t heads = which == 0 ? p->heads : p->kv_heads;
        for (int64_t h = 0; h < heads; h++) {
            int64_t base = 0;
            int n = 0;
            for (int i = 0; i < p->spread; i++) {
                int64_t at = place_of(p, i, which, h, base);
                if (at >= 0) {
                    src[n++] = dense + at * head_bytes;
                }
                base += p->part[i].nq + 2 * p->part[i].nkv;
            }
            hd_strided head = heads_of(a, x[which], heads, h, 1);
            a->core.table->unpack(&head, p->dtype, src, n, dtype);
        }
    }
}

/* bf16 is computed in f32; of other types both arrays are one. */
static void widen(const heddle_attention *a, void *real, const void *storage, int64_t elems)
{
    if (real != storage) {
        a->core.table->convert(real, HEDDLE_F32, storage, HEDDLE_BF16, elems);
    }
}

static void narrow(const heddle_attention *a, void *storage, const void *real, int64_t elems)
{
    if (storage != real) {
        a->core.table->convert(storage, HEDDLE_BF16, real, HEDDLE_F32, elems);
    }
}

/* Where this call's arrays are; those that are one, unless bf16. */
static void take_place(heddle_attention *a)
{
    hd_room_place(&a->user);
    if (a->problem.dtype != HEDDLE_BF16) {
        a->wide_q = a->qkv;
        a->narrow_o = a->o;
        a->wide_d_o = a->d_o;
        a->narrow_grad = a->grad;
    }
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

static heddle_status run_forward(heddle_attention *a, const heddle_attention_array *const *x, void *lse)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = &a->problem;
    take_place(a);
    pack_parts(a, p->spread > 1 ? a->rows : a->qkv, x);
    if (p->spread > 1) {
        HD_TRY(hd_heads_move(&a->heads, HD_QKV_TO_HEADS, a->rows, a->qkv, HEDDLE_NO_STREAM));
    }
    widen(a, a->wide_q, a->qkv, a->q_elems);
    hd_core_forward call = {a->wide_q, (char *)a->qkv + a->q_elems * p->elem_bytes, a->o, a->top, a->log_sum, a->lse};
    a->core.going_back = 0;
    HD_TRY(a->method->forward(&a->core, &call));
    const void *o = a->o;
    const char *out_lse = a->lse;
    heddle_dtype type = p->real;
    if (p->spread > 1) {
        narrow(a, a->narrow_o, a->o, a->q_elems);
        HD_TRY(hd_heads_move(&a->heads, HD_O_TO_ROWS, a->narrow_o, a->rows, HEDDLE_NO_STREAM));
        o = a->rows;
        type = p->dtype;
        if (p->options.log_sum_exp) {
            HD_TRY(hd_heads_move(&a->heads, HD_LSE_TO_ROWS, a->lse, a->lse_rows, HEDDLE_NO_STREAM));
            out_lse = a->lse_rows;
        }
    }
    hd_strided all = heads_of(a, x[3], p->heads, 0, p->heads);
    a->core.table->unpack(&all, p->dtype, &o, 1, type);
    int64_t own = p->member_rows[p->rank].rows * p->real_bytes;
    for (int64_t b = 0; lse != NULL && b < p->batch; b++) { /* [h][b][rows] to [b][h][rows] */
        for (int64_t h = 0; h < p->heads; h++) {
            memcpy((char *)lse + (b * p->heads + h) * own, out_lse + (h * p->batch + b) * own, (size_t)own);
        }
    }
out:
    return st;
}

heddle_status heddle_attention_forward(heddle_attention *attention, const heddle_attention_array *q,
                                       const heddle_attention_array *k, const heddle_attention_array *v,
                                       const heddle_attention_array *o, void *lse, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    heddle_attention *a = attention;
    const heddle_attention_array *x[] = {q, k, v, o};
    if (a == NULL) {
        return HD_NEED(attention);
    }
    if (hd_object_is_broken(&a->broken, a->comm)) {
        return hd_broken_say(&a->broken);
    }
    if (a->problem.options.projected_length > 0 && !a->has_projection) {
        return hd_fail(HEDDLE_ERR_ARG, "attention: forward before heddle_attention_set_projection");
    }
    if (lse != NULL && !a->problem.options.log_sum_exp) {
        return hd_object_refuse(a->comm, a->problem.nranks,
                                hd_fail(HEDDLE_ERR_ARG, "attention: lse is asked for, but not in the options"));
    }
    st = check_call(a, x, &of_forward, __func__);
    if (st != HEDDLE_OK) {
        return hd_object_refuse(a->comm, a->problem.nranks, st);
    }
    a->has_forward = 0;
    HD_TRY(a->on != NULL ? hd_attn_on_forward(a, x, lse, stream) : run_forward(a, x, lse));
    a->has_forward = 1;
    a->forwards++;
out:
    return st == HEDDLE_OK ? HEDDLE_OK : hd_object_give_up(&a->broken, a->comm, a->problem.nranks, st);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

static heddle_status run_backward(heddle_attention *a, const heddle_attention_array *const *x)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = &a->problem;
    int64_t all_elems = a->q_elems + 2 * a->kv_elems;
    hd_strided all = heads_of(a, x[0], p->heads, 0, p->heads);
    take_place(a);
    a->core.table->pack(p->spread > 1 ? a->rows : a->d_o, &all, p->elem_bytes);
    if (p->spread > 1) {
        HD_TRY(hd_heads_move(&a->heads, HD_O_TO_HEADS, a->rows, a->d_o, HEDDLE_NO_STREAM));
    }
    widen(a, a->wide_d_o, a->d_o, a->q_elems);
    a->core.kernels->row_dots(a->delta, a->o, a->wide_d_o, a->row_elems, p->width);
    memset(a->grad, 0, (size_t)(all_elems * p->real_bytes));
    hd_core_backward call = {.q = a->wide_q,
                             .kv = (char *)a->qkv + a->q_elems * p->elem_bytes,
                             .top = a->top,
                             .log_sum = a->log_sum,
                             .d_o = a->wide_d_o,
                             .delta = a->delta,
                             .dq = a->grad,
                             .dkv = (char *)a->grad + a->q_elems * p->real_bytes};
    a->core.going_back = 1;
    HD_TRY(a->method->backward(&a->core, &call));
    const char *grad = a->grad;
    heddle_dtype type = p->real;
    if (p->spread > 1) {
        narrow(a, a->narrow_grad, a->grad, all_elems);
        HD_TRY(hd_heads_move(&a->heads, HD_QKV_TO_ROWS, a->narrow_grad, a->rows, HEDDLE_NO_STREAM));
        grad = a->rows;
        type = p->dtype;
    }
    unpack_parts(a, x + 1, grad, type, a->sources);
out:
    return st;
}

heddle_status heddle_attention_backward(heddle_attention *attention, const heddle_attention_array *d_o,
                                        const heddle_attention_array *dq, const heddle_attention_array *dk,
                                        const heddle_attention_array *dv, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    heddle_attention *a = attention;
    const heddle_attention_array *x[] = {d_o, dq, dk, dv};
    if (a == NULL) {
        return HD_NEED(attention);
    }
    if (hd_object_is_broken(&a->broken, a->comm)) {
        return hd_broken_say(&a->broken);
    }
    if (!a->has_forward || a->problem.options.forward_only) {
        return hd_fail(HEDDLE_ERR_ARG, "attention: backward %s",
                       a->problem.options.forward_only ? "of an object made forward-only" : "before forward");
    }
    st = check_call(a, x, &of_backward, __func__);
    if (st != HEDDLE_OK) {
        return hd_object_refuse(a->comm, a->problem.nranks, st);
    }
    HD_TRY(a->on != NULL ? hd_attn_on_backward(a, x, stream) : run_backward(a, x));
    a->backwards++;
out:
    return st == HEDDLE_OK ? HEDDLE_OK : hd_object_give_up(&a->broken, a->comm, a->problem.nranks, st);
}

heddle_status heddle_attention_set_projection(heddle_attention *attention, const void *e, const void *f, void *de,
                                              void *df)
{
    heddle_attention *a = attention;
    if (a == NULL) {
        return HD_NEED(attention);
    }
    if (a->problem.options.projected_length == 0) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_attention_set_projection: no projected length in the options");
    }
    if ((e == NULL || f == NULL) && a->problem.member_rows[a->problem.rank].rows > 0) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "heddle_attention_set_projection: %s is NULL on rank %d, which holds %lld columns of it",
                       e == NULL ? "e" : "f", hd_comm_rank_name(a->comm, heddle_comm_rank(a->comm)),
                       (long long)a->problem.member_rows[a->problem.rank].rows);
    }
    a->core.e = e;
    a->core.f = f;
    a->core.de = de;
    a->core.df = df;
    a->has_projection = 1;
    return HEDDLE_OK;
}
