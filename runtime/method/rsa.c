/* Ring Self-Attention: a ring of keys, then one of values (arXiv 2105.13120, section 3). The bytes of ring attention
 * with whole score rows in memory, so it runs when named only. */
#include "runtime/method/method.h"

static void sends(hd_sends *out, const hd_method_group *group, int member, hd_members among)
{
    if (group->projected_length > 0) {
        hd_sends_projected(out, group, member, among);
    } else {
        hd_sends_ring(out, group, member, among, 1, 2);
    }
}

/* Whole score rows, which become the weights, and their gradients. */
static void hold_scores(hd_memory *out, const hd_method_group *group, int member)
{
    __int128 rows = (__int128)group->heads * group->fibres * hd_group_rows(group, member, 1);
    __int128 bytes = rows * group->sequence * group->real_bytes;
    out->saved_bytes += bytes;
    out->workspace_bytes += group->forward_only ? 0 : bytes;
    hd_hold_ring(out, group, member, 1, 1);
}

/* Projected keys and values, partial sums of them and of their gradients; of bf16 the own ones and three projections in
 * f32. */
static void hold_projected(hd_memory *out, const hd_method_group *group, int member)
{
    __int128 heads = (__int128)2 * group->kv_heads * group->fibres * group->width * group->real_bytes;
    int64_t own = hd_group_rows(group, member, 1);
    out->saved_bytes += heads * group->projected_length;
    out->workspace_bytes += 2 * heads * group->projected_length;
    if (group->elem_bytes < group->real_bytes) {
        out->workspace_bytes += heads * own + (__int128)3 * group->projected_length * own * group->real_bytes;
    }
}

static void holds(hd_memory *out, const hd_method_group *group, int member)
{
    if (group->projected_length > 0) {
        hold_projected(out, group, member);
    } else {
        hold_scores(out, group, member);
    }
}

/* Weights are kept: backward makes no scores. Projected, every query sees every projected key, and keys and values are
 * projected, in backward once more each way: their gradients and those of the projections. */
static void works(hd_flops *out, const hd_method_group *group, int member, __int128 pairs)
{
    __int128 own = hd_group_rows(group, member, 1), m = group->projected_length, product = 2 * group->width;
    __int128 seen = m > 0 ? own * m * group->fibres : pairs;
    __int128 projected = 2 * group->kv_heads * group->fibres * m * own * product;
    out->forward = seen * group->heads * product * 2 + projected;
    out->backward = seen * group->heads * product * (m > 0 ? 5 : 4) + 2 * projected;
}

const hd_method hd_method_rsa = {.name = "rsa",
                                 .kind = HEDDLE_STAGE_ATTENTION,
                                 .only_named = 1,
                                 .sends = sends,
                                 .keeps_weights = 1,
                                 .holds = holds,
                                 .works = works};
