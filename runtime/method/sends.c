/* The parts that methods are made of. They follow from rows and heads alone; docs/attention.md and
 * docs/linear-attention.md have the formulas in words. */
#include "runtime/method/method.h"

#include <heddle/sys/index.h>

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

/* Heads of parts first .. first + count - 1 of `spread`, and the key heads that they use: one that several parts use
 * counts for each. */
static hd_head_part parts_of(const hd_method_group *group, int spread, int first, int count)
{
    int64_t q_lo = heddle_shard_start(group->heads, spread, first);
    hd_head_part sum = {.q_lo = q_lo, .nq = heddle_shard_start(group->heads, spread, first + count) - q_lo};
    sum.nkv = sum.nq;
    if (group->heads_a_kv_head > 1) {
        sum.nkv = 0;
        for (int i = first; i < first + count && i < group->heads; i++) { /* parts behind these have none */
            sum.nkv += hd_group_part(group, spread, i).nkv;
        }
    }
    return sum;
}

int64_t hd_group_packed_heads(const hd_method_group *group, int spread)
{
    return group->heads + 2 * (spread == 1 ? group->kv_heads : parts_of(group, spread, 0, spread).nkv);
}

hd_members hd_group_all(const hd_method_group *group)
{
    return (hd_members){0, group->n};
}

static int is_among(hd_members among, int member)
{
    return member >= among.first && member < among.first + among.count;
}

/* Of `among` those of first .. first + count - 1. */
static hd_members meet(hd_members among, int first, int count)
{
    const int lo = (int)hd_larger(among.first, first);
    return (hd_members){lo, (int)hd_larger(0, hd_smaller(among.first + among.count, first + count) - lo)};
}

static int at_most(int64_t count, int ranks)
{
    return count < ranks ? (int)count : ranks;
}

/* Parts of `spread` that have heads, of first .. first + count - 1. */
static int full_parts(const hd_method_group *group, int spread, int first, int count)
{
    int full = at_most(group->heads, spread);
    return (int)hd_larger(0, hd_smaller(first + count, full) - first);
}

/* What a member has of the others of its segment that are among those that are asked for, of one fibre. */
typedef struct hd_segment {
    int64_t mine, theirs; /* rows */
    hd_head_part part, away;
    int64_t there, home; /* messages to the heads' owners, and to the rows' */
} hd_segment;

static hd_segment segment_of(const hd_method_group *group, int member, hd_members among, int spread)
{
    const int first = member / spread * spread;
    const hd_members there = meet(among, first, spread);
    const int here = is_among(there, member);
    hd_segment s = {.mine = hd_group_rows(group, member, 1),
                    .part = hd_group_part(group, spread, member - first),
                    .away = parts_of(group, spread, there.first - first, there.count)};
    s.theirs = hd_group_rows(group, there.first, there.count) - (here ? s.mine : 0);
    s.away.nq -= here ? s.part.nq : 0;
    s.away.nkv -= here ? s.part.nkv : 0;
    s.there = s.mine > 0 ? full_parts(group, spread, there.first - first, there.count) : 0;
    s.home = s.part.nq > 0 ? hd_group_full(group, there.first, there.count) : 0;
    s.there -= here && s.there > 0 && s.part.nq > 0;
    s.home -= here && s.home > 0 && s.mine > 0;
    return s;
}

/* My rows go to the heads' owners, theirs come for my heads; what comes is what goes in backward. */
void hd_sends_packed(hd_sends *out, const hd_method_group *group, int member, hd_members among, int spread)
{
    const hd_segment s = segment_of(group, member, among, spread);
    const __int128 elem = (__int128)group->width * group->elem_bytes * group->fibres;
    const __int128 go = elem * (s.away.nq + 2 * s.away.nkv) * s.mine;
    const __int128 come = elem * (s.part.nq + 2 * s.part.nkv) * s.theirs;
    out->forward_bytes += go;
    out->forward_received += come;
    out->backward_bytes += come;
    out->backward_received += go;
    out->forward_messages += s.there;
    out->backward_messages += s.home;
}

/* Their rows of my heads go home, my rows come of theirs. */
void hd_sends_results(hd_sends *out, const hd_method_group *group, int member, hd_members among, int spread)
{
    const hd_segment s = segment_of(group, member, among, spread);
    const __int128 elem = (__int128)group->width * group->elem_bytes * group->fibres;
    const __int128 lse = group->log_sum_exp ? (__int128)group->real_bytes * group->fibres : 0;
    const __int128 go = s.part.nq * s.theirs, come = s.away.nq * s.mine;
    out->forward_bytes += (elem + lse) * go;
    out->forward_received += (elem + lse) * come;
    out->backward_bytes += elem * come;
    out->backward_received += elem * go;
    out->forward_messages += s.home * (lse > 0 ? 2 : 1);
    out->backward_messages += s.there;
}

void hd_sends_heads(hd_sends *out, const hd_method_group *group, int member, hd_members among, int spread)
{
    hd_sends_packed(out, group, member, among, spread);
    hd_sends_results(out, group, member, among, spread);
}

/* Blocks: the own one, then those of the ranks before, all but the next one's; sums: of all but the own one. */
void hd_sends_ring(hd_sends *out, const hd_method_group *group, int member, hd_members among, int spread, int turns)
{
    int ring = group->n / spread;
    int me = member / spread, index = member % spread;
    int next = (me + 1) % ring, before = (me + ring - 1) % ring;
    int64_t heads = hd_group_part(group, spread, index).nkv;
    int64_t mine = hd_group_rows(group, me * spread, spread);
    int64_t last = hd_group_rows(group, next * spread, spread);
    int full = spread == 1 ? hd_group_full(group, 0, group->n) : group->full_segments;
    __int128 row = (__int128)2 * heads * group->width * group->fibres;
    int64_t elem = group->elem_bytes, real = group->real_bytes, again = group->all_reduce ? real : 0;
    if (heads == 0 || ring == 1) {
        return;
    }
    if (is_among(among, next * spread + index)) {
        __int128 travel = row * (group->sequence - last), home = row * (group->sequence - mine) * real;
        int64_t travels = turns * (full - (last > 0)), come_home = turns * (full - (mine > 0));
        out->forward_bytes += travel * elem;
        out->backward_bytes += travel * (elem + again) + home;
        out->forward_messages += travels;
        out->backward_messages += travels * (again > 0 ? 2 : 1) + come_home;
    }
    if (is_among(among, before * spread + index)) {
        __int128 travel = row * (group->sequence - mine);
        int64_t theirs = hd_group_rows(group, before * spread, spread);
        out->forward_received += travel * elem;
        out->backward_received += travel * (elem + again) + row * (group->sequence - theirs) * real;
    }
}

/* Blocks of the flat array to their owners, then the own one to all; a peer gets both in one message. As much comes. */
void hd_sends_projected(hd_sends *out, const hd_method_group *group, int member, hd_members among)
{
    int64_t elems = 2 * group->kv_heads * group->fibres * group->projected_length * group->width;
    int64_t own = heddle_shard_len(elems, group->n, member), others = among.count - is_among(among, member);
    int64_t theirs = heddle_shard_start(elems, group->n, among.first + among.count) -
                     heddle_shard_start(elems, group->n, among.first) - (is_among(among, member) ? own : 0);
    __int128 bytes = ((__int128)theirs + others * own) * group->real_bytes;
    int64_t messages = own > 0 ? others : meet(among, 0, at_most(elems, group->n)).count;
    out->forward_bytes += bytes;
    out->forward_received += bytes;
    out->backward_bytes += bytes;
    out->backward_received += bytes;
    out->forward_messages += messages;
    out->backward_messages += messages;
}

/* Rows of keys and values to everybody who sees them; of their gradients everybody's to the owner. */
void hd_sends_gathered(hd_sends *out, const hd_method_group *group, int member, hd_members among)
{
    __int128 row = (__int128)2 * group->kv_heads * group->width * group->fibres;
    int here = is_among(among, member);
    int64_t mine = hd_group_rows(group, member, 1), others = among.count - here;
    int64_t theirs = hd_group_rows(group, among.first, among.count) - (here ? mine : 0);
    hd_seen seen = {(__int128)mine * others, theirs, mine > 0 ? others : 0,
                    hd_group_full(group, among.first, among.count) - (here && mine > 0)};
    if (group->kv_heads == 0) {
        return;
    }
    if (group->halo.count > 0) {
        seen = hd_halo_seen(&group->halo, member, among);
    }
    out->forward_bytes += row * seen.sent * group->elem_bytes;
    out->forward_received += row * seen.received * group->elem_bytes;
    out->backward_bytes += row * seen.received * group->real_bytes;
    out->backward_received += row * seen.sent * group->real_bytes;
    out->forward_messages += seen.sent_to;
    out->backward_messages += seen.received_from;
}

/* The way to the beginning is the mirror image of the way to the end; what comes on one is what goes on the other. */
void hd_sends_states(hd_sends *out, const hd_method_group *group, int member, hd_members among, const hd_method *method)
{
    const __int128 state = (__int128)group->heads * group->width * group->width_v * group->real_bytes * group->fibres;
    const hd_members mirrored = {group->n - among.first - among.count, among.count};
    const int64_t right = method->states(member, group->n, among);
    const int64_t left = method->states(group->n - 1 - member, group->n, mirrored);
    const int64_t both = right + (method->gathers && !group->stage.decays ? 0 : left);
    if (state == 0) {
        return;
    }
    out->forward_messages = group->stage.causal ? right : both;
    out->backward_messages = group->stage.causal ? left : both;
    out->forward_bytes = state * out->forward_messages;
    out->backward_bytes = state * out->backward_messages;
    out->forward_received = state * (group->stage.causal ? left : both);
    out->backward_received = state * (group->stage.causal ? right : both);
}
