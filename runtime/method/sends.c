/* The parts that methods are made of, per fibre. They follow from rows and heads alone; docs/attention.md and
 * docs/linear-attention.md have the formulas in words. */
#include "runtime/method/method.h"

#include <heddle/sys/index.h>

int64_t hd_group_rows(const hd_method_group *group, int first, int count)
{
    return group->rows_before[first + count] - group->rows_before[first];
}

int hd_group_full(const hd_method_group *group, int first, int count)
{
    return group->full_before[first + count] - group->full_before[first];
}

static int with_heads(const hd_method_group *group, int spread)
{
    return group->heads < spread ? (int)group->heads : spread;
}

void hd_sends_heads(hd_sends *out, const hd_method_group *group, int member, int spread)
{
    int first = member / spread * spread;
    int64_t mine = hd_group_rows(group, member, 1);
    int64_t heads = heddle_shard_len(group->heads, spread, member - first);
    __int128 elem = (__int128)group->width * group->elem_bytes;
    __int128 away = elem * (group->heads - heads) * mine; /* my rows of the others' heads */
    __int128 home = elem * heads * (hd_group_rows(group, first, spread) - mine);
    int64_t away_messages = mine > 0 ? with_heads(group, spread) - (heads > 0) : 0;
    int64_t home_messages = heads > 0 ? hd_group_full(group, first, spread) - (mine > 0) : 0;
    out->forward_bytes += 3 * away + home;
    out->backward_bytes += away + 3 * home;
    out->forward_messages += away_messages + home_messages;
    out->backward_messages += away_messages + home_messages;
}

void hd_sends_ring(hd_sends *out, const hd_method_group *group, int member, int spread, int turns)
{
    int ring = group->n / spread;
    int me = member / spread;
    int next = (me + 1) % ring;
    int64_t heads = heddle_shard_len(group->heads, spread, member % spread);
    int64_t mine = hd_group_rows(group, me * spread, spread);
    int64_t last = hd_group_rows(group, next * spread, spread);
    int full = spread == 1 ? hd_group_full(group, 0, group->n) : group->full_segments;
    __int128 row = (__int128)heads * group->width;
    if (heads == 0) {
        return;
    }
    out->forward_bytes += row * (group->sequence - last) * 2 * group->elem_bytes;
    out->backward_bytes +=
        row * (group->sequence - last) * 2 * group->elem_bytes + row * (group->sequence - mine) * 2 * group->real_bytes;
    out->forward_messages += turns * (full - (last > 0));
    out->backward_messages += turns * (full - (last > 0) + full - (mine > 0));
}

void hd_method_states(int64_t *forward, int64_t *backward, const hd_method *method, const hd_method_stage *stage,
                      int member, int n)
{
    const int64_t right = method->states(member, n), left = method->states(n - 1 - member, n);
    const int64_t both = right + (method->gathers && !stage->decays ? 0 : left);
    *forward = stage->causal ? right : both;
    *backward = stage->causal ? left : both;
}

void hd_sends_states(hd_sends *out, const hd_method_group *group, int member, const hd_method *method)
{
    const __int128 state = (__int128)group->heads * group->width * group->width * group->real_bytes;
    hd_method_states(&out->forward_messages, &out->backward_messages, method, &group->stage, member, group->n);
    out->forward_bytes = state * out->forward_messages;
    out->backward_bytes = state * out->backward_messages;
}
