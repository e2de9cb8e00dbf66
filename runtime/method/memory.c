/* What an attention object holds on one member, and the products that one call of it takes. Where a method differs, its
 * file has a function; docs/attention.md has the formulas in words. */
#include "runtime/method/method.h"

/* Elements of a member's arrays once the heads are dealt. */
typedef struct dealt {
    __int128 rows, q, kv; /* rows of all heads and fibres; kv: of keys alone */
} dealt;

static dealt dealt_to(const hd_method_group *group, int spread, int member)
{
    hd_head_part part = hd_group_part(group, spread, member % spread);
    __int128 rows = (__int128)group->fibres * hd_group_rows(group, member / spread * spread, spread);
    return (dealt){part.nq * rows, part.nq * rows * group->width, part.nkv * rows * group->width};
}

/* q, k, v and o, what weights are made from, and their gradients; where heads are exchanged the packed rows. */
static void hold_softmax(hd_memory *out, const hd_method *method, const hd_method_group *group, int member)
{
    int spread = hd_group_spread(method, group);
    int narrow = group->elem_bytes < group->real_bytes;
    const dealt d = dealt_to(group, spread, member);
    const __int128 elem = group->elem_bytes, real = group->real_bytes, all = d.q + 2 * d.kv;
    __int128 own = (__int128)group->fibres * hd_group_rows(group, member, 1);
    out->saved_bytes += all * elem + d.q * real + (narrow ? d.q * real : 0);
    out->saved_bytes += method->keeps_weights && group->projected_length == 0 ? 0 : 2 * d.rows * real;
    out->workspace_bytes += group->log_sum_exp ? d.rows * real : 0;
    if (spread > 1) {
        out->workspace_bytes += hd_group_packed_heads(group, spread) * own * group->width * elem;
        out->workspace_bytes += group->log_sum_exp ? group->heads * own * real : 0;
        out->workspace_bytes += narrow ? d.q * elem : 0;
    }
    if (!group->forward_only) {
        out->workspace_bytes += d.q * elem + d.rows * real + all * real;
        out->workspace_bytes += narrow ? d.q * real + (spread > 1 ? all * elem : 0) : 0;
    }
}

void hd_hold_ring(hd_memory *out, const hd_method_group *group, int member, int spread, int arrays)
{
    int ring = group->n / spread;
    int64_t most = spread == 1 ? group->rows_most : group->segment_rows_most;
    __int128 block =
        (__int128)arrays * hd_group_part(group, spread, member % spread).nkv * group->fibres * most * group->width;
    int again = group->all_reduce && !group->forward_only;
    if (ring > 1) {
        int64_t passed_bytes = again ? group->real_bytes : group->lends ? 0 : group->elem_bytes;
        out->workspace_bytes += (ring > 2 ? 2 : 1) * block * passed_bytes;
        int sums = (ring > 2 ? 2 : 1) + !group->lends; /* those that are made, the one that arrives */
        out->workspace_bytes += group->forward_only ? 0 : sums * block * group->real_bytes;
    }
}

/* States at the borders of chunks, those that travel, and of bf16 the first half of a result in f32. */
static void hold_linear(hd_memory *out, const hd_method *method, const hd_method_group *group, int member)
{
    const int64_t rows = hd_group_rows(group, member, 1), chunk = hd_group_chunk_rows(group, rows);
    const int ways = group->stage.causal ? 1 : 2;
    const __int128 heads = (__int128)group->fibres * group->heads, real = group->real_bytes;
    const __int128 borders = heads * ((rows + chunk - 1) / chunk) * group->width * group->padded_width_v * real;
    const __int128 state = heads * group->width * group->width_v * real;
    out->saved_bytes += ways * borders;
    out->workspace_bytes += ways * borders + state;
    if (group->elem_bytes < group->real_bytes) {
        out->workspace_bytes += heads * rows * (group->width + group->width_v) * real;
    }
    if (group->n > 1) {
        int shared = method->gathers && !group->stage.causal && !group->stage.decays;
        int64_t held = method->held != NULL ? method->held(group->n) : 0;
        out->workspace_bytes += (2 * 3 + (shared ? 1 : 2) * held) * state;
    }
}

void hd_method_memory(hd_memory *out, const hd_method *method, const hd_method_group *group, int member)
{
    *out = (hd_memory){0, 0};
    if (group->stage.kind == HEDDLE_STAGE_LINEAR) {
        hold_linear(out, method, group, member);
        return;
    }
    if (!method->is_near) {
        hold_softmax(out, method, group, member);
    }
    if (method->holds != NULL) {
        method->holds(out, group, member);
    }
}

int64_t hd_group_chunk_rows(const hd_method_group *group, int64_t rows)
{
    /* The states at all chunk borders should not need more memory than k. */
    int64_t widest = group->width > group->width_v ? group->width : group->width_v;
    int64_t chunk = group->chunk_rows > 0 ? group->chunk_rows : (widest + 63) / 64 * 64;
    if (group->chunk_rows == 0) {
        chunk = chunk < 128 ? 128 : chunk > 256 ? 256 : chunk;
    }
    return rows > 0 && rows < chunk ? rows : chunk;
}

/* A product of a pair takes two operations for each of its elements. Inside a chunk every row sees those before it (all
 * of them, without order), and each state takes a product to make and one to use. */
static void work_linear(hd_flops *out, const hd_method_group *group, int member)
{
    const int64_t rows = hd_group_rows(group, member, 1), chunk = hd_group_chunk_rows(group, rows);
    const int64_t last = rows % chunk, causal = group->stage.causal, k = group->width, v = group->width_v;
    const __int128 heads = (__int128)group->fibres * group->heads, both = causal ? 1 : 2;
    __int128 pairs = causal ? (__int128)(rows / chunk) * (chunk * (chunk + 1) / 2) + last * (last + 1) / 2
                            : (__int128)(rows / chunk) * chunk * chunk + last * last;
    out->forward = heads * (2 * pairs * (k + v) + both * 4 * rows * k * v);
    out->backward = heads * (2 * pairs * (3 * k + 2 * v) + both * 8 * rows * k * v);
}

void hd_method_flops(hd_flops *out, const hd_method *method, const hd_method_group *group, int member, __int128 pairs)
{
    int spread = hd_group_spread(method, group);
    *out = (hd_flops){0, 0};
    if (group->stage.kind == HEDDLE_STAGE_LINEAR) {
        work_linear(out, group, member);
    } else if (method->works != NULL) {
        method->works(out, group, member, pairs);
    } else if (!method->is_near) { /* scores, values; scores again, and the gradients of weights, q, k and v */
        out->forward = pairs * hd_group_part(group, spread, member % spread).nq * 2 * group->width * 2;
        out->backward = out->forward / 2 * 5;
    }
}
