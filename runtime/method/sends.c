/* The parts that methods are made of. They follow from rows and heads alone; docs/attention.md and
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

hd_head_part hd_group_part(const hd_method_group *group, int spread, int index)
{
    hd_head_part part = {.nkv = spread == 1 ? group->kv_heads : 0};
    part.q_lo = heddle_shard_start(group->heads, spread, index);
    part.nq = heddle_shard_len(group->heads, spread, index);
    if (part.nq > 0 && spread > 1) {
        int64_t first = group->head_lo + part.q_lo, a_kv_head = group->heads_a_kv_head;
        part.kv_lo = first / a_kv_head - group->kv_lo;
        part.nkv = (first + part.nq - 1) / a_kv_head - group->kv_lo - part.kv_lo + 1;
    }
    return part;
}

/* Key heads of all parts together: one that several use counts for each. */
static int64_t kv_heads_dealt(const hd_method_group *group, int spread)
{
    int64_t sum = 0;
    if (group->heads_a_kv_head == 1) {
        return group->kv_heads;
    }
    for (int i = 0; i < spread; i++) {
        sum += hd_group_part(group, spread, i).nkv;
    }
    return sum;
}

int64_t hd_group_packed_heads(const hd_method_group *group, int spread)
{
    return group->heads + 2 * kv_heads_dealt(group, spread);
}

static int at_most(int64_t count, int ranks)
{
    return count < ranks ? (int)count : ranks;
}

void hd_sends_heads(hd_sends *out, const hd_method_group *group, int member, int spread)
{
    int first = member / spread * spread;
    int64_t mine = hd_group_rows(group, member, 1);
    int64_t theirs = hd_group_rows(group, first, spread) - mine;
    hd_head_part part = hd_group_part(group, spread, member - first);
    int64_t q_away = group->heads - part.nq; /* my rows go to the heads' owners, their rows of my heads home */
    int64_t kv_away = kv_heads_dealt(group, spread) - part.nkv;
    __int128 elem = (__int128)group->width * group->elem_bytes * group->fibres;
    int64_t away_messages = mine > 0 ? at_most(group->heads, spread) - (part.nq > 0) : 0;
    int64_t home_messages = part.nq > 0 ? hd_group_full(group, first, spread) - (mine > 0) : 0;
    out->forward_bytes += elem * ((q_away + 2 * kv_away) * mine + part.nq * theirs);
    out->backward_bytes += elem * (q_away * mine + (part.nq + 2 * part.nkv) * theirs);
    out->forward_messages += away_messages + home_messages;
    out->backward_messages += away_messages + home_messages;
    if (group->log_sum_exp) {
        out->forward_bytes += (__int128)part.nq * theirs * group->real_bytes * group->fibres;
        out->forward_messages += home_messages;
    }
}

void hd_sends_ring(hd_sends *out, const hd_method_group *group, int member, int spread, int turns)
{
    int ring = group->n / spread;
    int me = member / spread;
    int next = (me + 1) % ring;
    int64_t heads = hd_group_part(group, spread, member % spread).nkv;
    int64_t mine = hd_group_rows(group, me * spread, spread);
    int64_t last = hd_group_rows(group, next * spread, spread);
    int full = spread == 1 ? hd_group_full(group, 0, group->n) : group->full_segments;
    __int128 row = (__int128)2 * heads * group->width * group->fibres;
    if (heads == 0) {
        return;
    }
    /* blocks: the own one, then those of the ranks before, all but the next one's; sums: of all but the own one */
    __int128 travel = row * (group->sequence - last), home = row * (group->sequence - mine) * group->real_bytes;
    int64_t travels = turns * (full - (last > 0)), come_home = turns * (full - (mine > 0));
    out->forward_bytes += travel * group->elem_bytes;
    out->backward_bytes += travel * group->elem_bytes + home;
    out->forward_messages += travels;
    out->backward_messages += travels + come_home;
    if (group->all_reduce) {
        out->backward_bytes += travel * group->real_bytes;
        out->backward_messages += travels;
    }
}

/* Blocks of the flat array to their owners, then the own one to all; a peer gets both in one message. */
void hd_sends_projected(hd_sends *out, const hd_method_group *group, int member)
{
    int64_t elems = 2 * group->kv_heads * group->fibres * group->projected_length * group->width;
    int64_t own = heddle_shard_len(elems, group->n, member), others = group->n - 1;
    __int128 bytes = ((__int128)elems - own + others * own) * group->real_bytes;
    int64_t messages = own > 0 ? others : at_most(elems, group->n);
    out->forward_bytes += bytes;
    out->backward_bytes += bytes;
    out->forward_messages += messages;
    out->backward_messages += messages;
}

static void count_states(int64_t *forward, int64_t *backward, const hd_method *method, const hd_method_stage *stage,
                         int member, int n)
{
    const int64_t right = method->states(member, n), left = method->states(n - 1 - member, n);
    const int64_t both = right + (method->gathers && !stage->decays ? 0 : left);
    *forward = stage->causal ? right : both;
    *backward = stage->causal ? left : both;
}

void hd_sends_states(hd_sends *out, const hd_method_group *group, int member, const hd_method *method)
{
    const __int128 state = (__int128)group->heads * group->width * group->width_v * group->real_bytes * group->fibres;
    if (state == 0) {
        return;
    }
    count_states(&out->forward_messages, &out->backward_messages, method, &group->stage, member, group->n);
    out->forward_bytes = state * out->forward_messages;
    out->backward_bytes = state * out->backward_messages;
}
