/* What a rank is going to send, from the problem alone; never from the plans that do it. docs/attention.md has the
 * formulas in words. */
#include "runtime/attention/attention_internal.h"

#include <heddle/sys/index.h>

typedef struct tally {
    int64_t bytes, messages;
} tally;

static void send(tally *t, int64_t bytes)
{
    t->bytes += bytes;
    t->messages += bytes > 0;
}

/* Rows x heads to everybody else of the heads exchange: this rank's rows of their heads, or their rows of its heads. */
static void exchange(tally *t, const hd_attn_problem *p, int packed, int to_heads, int64_t bytes_an_elem)
{
    int first = p->rank / p->spread * p->spread, own = p->rank - first;
    for (int i = 0; i < p->spread; i++) {
        const hd_head_part *part = &p->part[to_heads ? i : own];
        int64_t rows = p->member_rows[to_heads ? p->rank : first + i].rows;
        int64_t heads = part->nq + (packed ? 2 * part->nkv : 0);
        if (i != own) {
            send(t, heads * p->batch * rows * bytes_an_elem);
        }
    }
}

static int64_t ring_rows(const hd_attn_problem *p, int back)
{
    int me = p->rank / p->spread;
    return p->held[(me - back + 2 * p->ring) % p->ring].rows;
}

/* Blocks of `elems_a_row`: the own one, then those of the ranks before, all but the next one's. */
static void travel(tally *t, const hd_attn_problem *p, int64_t bytes_a_row)
{
    for (int i = 0; i < p->ring - 1; i++) {
        send(t, ring_rows(p, i) * bytes_a_row);
    }
}

/* Sums of all blocks but the own one. */
static void come_home(tally *t, const hd_attn_problem *p, int64_t bytes_a_row)
{
    for (int i = 1; i < p->ring; i++) {
        send(t, ring_rows(p, i) * bytes_a_row);
    }
}

/* Partial sums that everybody gets: blocks of the flat array to their owners, then the own one to all. A peer gets both
 * in one transfer's count. */
static void all_reduce(tally *t, const hd_attn_problem *p, int64_t elems)
{
    int64_t own = heddle_shard_len(elems, p->ring, p->rank);
    for (int i = 0; i < p->ring; i++) {
        if (i != p->rank) {
            send(t, (heddle_shard_len(elems, p->ring, i) + own) * p->real_bytes);
        }
    }
}

void hd_attn_plan(heddle_attention_traffic *out, const hd_attn_problem *p)
{
    tally forward = {0, 0}, backward = {0, 0};
    int64_t kv_heads = p->part[p->rank % p->spread].nkv;
    int64_t row = kv_heads * p->batch * p->width, block = row * p->elem_bytes, sum = row * p->real_bytes;
    if (p->spread > 1) {
        exchange(&forward, p, 1, 1, p->width * p->elem_bytes);
        exchange(&forward, p, 0, 0, p->width * p->elem_bytes);
        exchange(&backward, p, 0, 1, p->width * p->elem_bytes);
        exchange(&backward, p, 1, 0, p->width * p->elem_bytes);
        if (p->options.log_sum_exp) {
            exchange(&forward, p, 0, 0, p->real_bytes);
        }
    }
    switch (p->options.method) {
    case HEDDLE_ATTENTION_RING:
    case HEDDLE_ATTENTION_USP:
        travel(&forward, p, 2 * block);
        travel(&backward, p, 2 * block);
        come_home(&backward, p, 2 * sum);
        break;
    case HEDDLE_ATTENTION_RSA:
        if (p->options.projected_length > 0) {
            all_reduce(&forward, p, 2 * kv_heads * p->batch * p->options.projected_length * p->width);
            backward = forward;
            break;
        }
        for (int turn = 0; turn < 2; turn++) { /* keys, values; and their gradients */
            travel(&forward, p, block);
            travel(&backward, p, block);
            come_home(&backward, p, sum);
            if (p->options.rsa_all_reduce) {
                travel(&backward, p, sum);
            }
        }
        break;
    case HEDDLE_ATTENTION_GATHER_KV:
        for (int i = 1; i < p->ring; i++) {
            send(&forward, ring_rows(p, 0) * 2 * block);
            send(&backward, ring_rows(p, i) * 2 * sum);
        }
        break;
    default:
        break;
    }
    *out = (heddle_attention_traffic){forward.bytes, forward.messages, backward.bytes, backward.messages};
}
