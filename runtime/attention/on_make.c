/* Making an attention on a device: what is taken there, memory, lengths, and the ways between ranks. */
#include "runtime/attention/on.h"
#include "runtime/device/device.h"

#include <string.h>

heddle_status hd_attn_on_check(const hd_attn_problem *p, const heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    const heddle_attention_options *o = &p->options;
    const hd_device *device = NULL;
    HD_TRY(hd_on_device_need(&device, comm, o->space, o->device, p->dtype, "attention"));
    if (device == NULL) {
        return HEDDLE_OK;
    }
    if (p->dtype == HEDDLE_F64 || p->width > HD_DEVICE_MOST_HEAD || (p->dtype != HEDDLE_F32 && p->width % 8 != 0)) {
        return hd_fail(
            HEDDLE_ERR_UNSUPPORTED,
            "attention on device %s takes f32, bf16 and f16, heads of up to %d, and of bf16 and f16 multiples "
            "of 8; these are %s of %lld",
            device->name, HD_DEVICE_MOST_HEAD, heddle_dtype_name(p->dtype), (long long)p->width);
    }
    if (o->method == HEDDLE_ATTENTION_RSA || p->scale <= 0) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "attention on device %s: %s", device->name,
                       o->method == HEDDLE_ATTENTION_RSA ? "method rsa works in host memory only"
                                                         : "the scale has to be positive");
    }
out:
    return st;
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

int64_t hd_attn_on_rows(const struct hd_attn_on *on)
{
    return on->own->rows;
}

int64_t hd_attn_on_elems(const struct hd_attn_on *on, int64_t heads, int64_t rows)
{
    return heads * on->problem->batch * rows * on->problem->width;
}

hd_on_keys hd_attn_on_keys_of(const struct hd_attn_on *on, int member, const char *kv)
{
    hd_on_keys keys = {&on->problem->held[member], 0, kv};
    if (on->joined.seg != NULL) {
        return (hd_on_keys){&on->joined, 0, kv};
    }
    for (int m = 0; m < member; m++) {
        keys.first_run += on->problem->held[m].nsegs;
    }
    return keys;
}

static int runs_of_keys(const struct hd_attn_on *on)
{
    int runs = 0;
    for (int m = 0; m < on->members; m++) {
        runs += on->problem->held[m].nsegs;
    }
    return on->joined.seg != NULL ? on->joined.nsegs : runs;
}

static int64_t most_rows(const struct hd_attn_on *on)
{
    int64_t most = on->joined.rows;
    for (int m = 0; m < on->members; m++) {
        most = on->problem->held[m].rows > most ? on->problem->held[m].rows : most;
    }
    return most;
}

static int splits_keys(const hd_attn_problem *p)
{
    int64_t all = 0;
    for (int i = 0; i < p->spread; i++) {
        all += p->part[i].nkv;
    }
    return all > p->kv_heads;
}

static heddle_status describe(struct hd_attn_on *on)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = on->problem;
    const hd_head_part *part = &p->part[p->rank % p->spread];
    on->heads = part->nq;
    on->kv_heads = part->nkv;
    on->skipped_heads = (p->head_lo + part->q_lo) - (p->kv_lo + part->kv_lo) * p->group;
    on->members = p->ring;
    on->me = p->rank / p->spread;
    on->own = &p->held[on->me];
    on->splits_keys = splits_keys(p);
    HD_TRY(hd_alloc((void **)&on->row_counts, (size_t)p->ring, sizeof(int64_t), "an attention"));
    HD_TRY(hd_alloc((void **)&on->begun, (size_t)on->own->nsegs, sizeof(int), "an attention"));
    for (int m = 0; m < p->ring; m++) {
        on->row_counts[m] = p->held[m].rows;
    }
    if (p->options.method == HEDDLE_ATTENTION_GATHER_KV) {
        HD_TRY(hd_rows_join(&on->joined, p->held, p->ring));
    }
    on->is_single = runs_of_keys(on) <= 1;
    on->grad = on->is_single && on->joined.seg == NULL && on->members == 1 ? p->dtype : HEDDLE_F32;
out:
    return st;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static heddle_status take(void *out, heddle_attention *a, int64_t elems, heddle_dtype dtype, int is_saved)
{
    heddle_status st = HEDDLE_OK;
    const int64_t bytes = elems * (int64_t)heddle_dtype_bytes(dtype);
    HD_TRY(heddle_buffer_alloc(out, a->comm, (size_t)(bytes > 0 ? bytes : 1), HEDDLE_SPACE_DEVICE));
    *(is_saved ? &a->saved_bytes : &a->workspace_bytes) += bytes;
out:
    return st;
}

static heddle_status take_forward(heddle_attention *a, struct hd_attn_on *on)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = on->problem;
    const int64_t rows = hd_attn_on_rows(on), q = hd_attn_on_elems(on, on->heads, rows),
                  kv = hd_attn_on_elems(on, on->kv_heads, rows);
    const int64_t queries = q / p->width, mine = p->batch * p->member_rows[p->rank].rows;
    HD_TRY(take(&on->qkv, a, q + 2 * kv, p->dtype, 1));
    HD_TRY(take(&on->o, a, q, p->dtype, 1));
    HD_TRY(take(&on->stats, a, 2 * queries, HEDDLE_F32, 1));
    if (!on->is_single) {
        HD_TRY(take(&on->sums, a, q, HEDDLE_F32, 0));
        HD_TRY(take(&on->part, a, q, HEDDLE_F32, 0));
        HD_TRY(take(&on->part_stats, a, 2 * queries, HEDDLE_F32, 0));
    }
    if (p->spread > 1) {
        HD_TRY(take(&on->rows, a, p->packed_heads * mine * p->width, p->dtype, 0));
    }
    if (p->spread > 1 && p->options.log_sum_exp) {
        HD_TRY(take(&on->lse, a, queries, HEDDLE_F32, 0));
        HD_TRY(take(&on->lse_rows, a, p->heads * mine, HEDDLE_F32, 0));
    }
    if (on->joined.seg != NULL && on->members > 1) {
        HD_TRY(take(&on->all, a, 2 * hd_attn_on_elems(on, on->kv_heads, on->joined.rows), p->dtype, 1));
    }
    for (int i = 0; i < 2 && on->joined.seg == NULL && i < on->members - 1; i++) {
        HD_TRY(take(&on->travel[1 - i], a, 2 * hd_attn_on_elems(on, on->kv_heads, most_rows(on)), p->dtype, 0));
    }
out:
    return st;
}

static heddle_status take_backward(heddle_attention *a, struct hd_attn_on *on)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = on->problem;
    const int64_t rows = hd_attn_on_rows(on), q = hd_attn_on_elems(on, on->heads, rows),
                  kv = hd_attn_on_elems(on, on->kv_heads, rows);
    const int64_t most = hd_attn_on_elems(on, on->kv_heads, most_rows(on));
    HD_TRY(take(&on->d_o, a, q, p->dtype, 0));
    HD_TRY(take(&on->delta, a, q / p->width, HEDDLE_F32, 0));
    HD_TRY(take(&on->grads, a, q + 2 * kv, on->grad, 0));
    if (p->spread > 1 && on->grad != p->dtype) {
        HD_TRY(take(&on->narrow, a, q + 2 * kv, p->dtype, 0));
    }
    if (!on->is_single) {
        HD_TRY(take(&on->grad_part, a, q + 2 * most, HEDDLE_F32, 0));
    }
    if (on->splits_keys) {
        HD_TRY(take(&on->kv_wide, a, hd_attn_on_elems(on, p->kv_heads, p->member_rows[p->rank].rows), HEDDLE_F32, 0));
    }
    if (on->joined.seg != NULL && on->members > 1) {
        HD_TRY(take(&on->all_grads, a, 2 * most, HEDDLE_F32, 0));
    }
    for (int i = 0; i < 2 && on->joined.seg == NULL && on->members > 1; i++) {
        HD_TRY(take(&on->sum[i], a, 2 * most, HEDDLE_F32, 0));
    }
out:
    return st;
}

/* How many keys of each run a sample's queries see. */
static heddle_status upload_lengths(heddle_attention *a, struct hd_attn_on *on)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = on->problem;
    int32_t *lengths = NULL;
    const int64_t runs = runs_of_keys(on), n = runs * p->batch;
    const int members = on->joined.seg != NULL ? 1 : on->members;
    if (p->key_lengths_hash == 0) {
        return HEDDLE_OK;
    }
    HD_TRY(take(&on->lengths, a, n, HEDDLE_I32, 0));
    HD_TRY(hd_alloc((void **)&lengths, (size_t)n, sizeof *lengths, "key lengths"));
    for (int m = 0; m < members; m++) {
        const hd_on_keys keys = hd_attn_on_keys_of(on, m, NULL);
        for (int64_t i = 0; i < keys.rows->nsegs * p->batch; i++) {
            const hd_seg *run = &keys.rows->seg[i / p->batch];
            const int64_t left = p->key_length[i % p->batch] - run->lo;
            lengths[keys.first_run * p->batch + i] = (int32_t)(left < 0 ? 0 : left < run->len ? left : run->len);
        }
    }
    st = hd_enqueued_upload(&on->used, on->lengths, lengths, n * (int64_t)sizeof *lengths, on->stream,
                            hd_comm_deadline_ns(on->comm, p->options.deadline_ms) + HD_DEVICE_GRACE_NS);
out:
    hd_free(lengths);
    return st;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

heddle_status hd_attn_on_take(heddle_attention *a)
{
    heddle_status st = HEDDLE_OK;
    struct hd_attn_on *on = NULL;
    HD_TRY(hd_alloc((void **)&on, 1, sizeof *on, "an attention on a device"));
    a->on = on;
    on->problem = &a->problem;
    on->comm = a->comm;
    on->ring = a->ring;
    on->device = hd_comm_device(a->comm);
    on->kernels = on->device->library->kernels;
    HD_TRY(hd_on_device_open(&on->used, &on->own_stream, a->comm, "attention"));
    on->stream = on->own_stream;
    HD_TRY(describe(on));
    HD_TRY(take_forward(a, on));
    HD_TRY(a->problem.options.forward_only ? HEDDLE_OK : take_backward(a, on));
    st = upload_lengths(a, on);
out:
    return st;
}

heddle_status hd_attn_on_make(heddle_attention *a, heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_comm_agree(a->comm, mine));
    st = hd_attn_on_hops_make(a->on);
out:
    return st;
}

const char *hd_attn_on_kernel(const struct hd_attn_on *on)
{
    return on->kernels->name;
}

void hd_attn_on_free(heddle_attention *a)
{
    struct hd_attn_on *on = a->on;
    if (on == NULL) {
        return;
    }
    const hd_sentence why = hd_sentence_keep();
    void *const all[] = {on->rows,       on->qkv,       on->o,         on->sums,      on->stats,  on->part,
                         on->part_stats, on->lse,       on->lse_rows,  on->d_o,       on->grads,  on->narrow,
                         on->delta,      on->grad_part, on->kv_wide,   on->travel[0], on->sum[0], on->all,
                         on->sum[1],     on->lengths,   on->travel[1], on->all_grads};
    const int is_idle = hd_on_device_is_idle(&on->used, on->comm);
    hd_attn_on_hops_free(on);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        hd_on_device_let_go(on->comm, all[i], is_idle);
    }
    hd_enqueued_close(&on->used);
    if (on->own_stream != HEDDLE_NO_STREAM) {
        on->device->library->stream_destroy(on->own_stream, on->device->number);
    }
    HD_FREE_ALL(on->joined.seg, on->begun, on->row_counts, on);
    a->on = NULL;
    heddle_ignore(hd_sentence_say(&why, HEDDLE_OK));
}
