/* Partial sums: the receiver reads every term where it lies and adds in rank order, row by row. */
#include "runtime/move/transfer.h"

#include <string.h>

enum { STREAM_BYTES = 16384 }; /* of a row: a stream ends with a fence, which short ones would wait for */

/* Where a term comes from: a linked peer's memory, read in place, or packed messages, where it lies dense. */
static void fill_term(hd_sum_term *term, const hd_transfer *t, int recv)
{
    const hd_item *item = &t->recv.item[recv];
    term->peer = item->peer;
    term->is_message = !hd_channel_linked(t->channel, item->peer);
    term->offset_bytes = term->is_message ? t->mail.recv_offset[recv] : item->copy.src_offset_bytes;
    memcpy(term->stride_bytes, item->copy.src_stride_bytes, sizeof term->stride_bytes);
}

/* Loop i continues into the rows of `inner` (the stride of one step below) for every term. */
static int terms_continue(const hd_sum_term *term, int nterms, int outer, const int64_t *count, int inner,
                          int64_t run_bytes)
{
    for (int i = 0; i < nterms; i++) {
        int64_t below = inner < 0 ? run_bytes : term[i].stride_bytes[inner] * count[inner];
        if (!term[i].is_message && term[i].stride_bytes[outer] != below) {
            return 0;
        }
    }
    return 1;
}

static void drop_sum_loop(hd_sum *sum, hd_sum_term *term, int i)
{
    size_t tail = (size_t)(sum->nloops - i - 1) * sizeof(int64_t);
    memmove(sum->count + i, sum->count + i + 1, tail);
    memmove(sum->dst_stride_bytes + i, sum->dst_stride_bytes + i + 1, tail);
    for (int k = 0; k < sum->nterms; k++) {
        memmove(term[k].stride_bytes + i, term[k].stride_bytes + i + 1, tail);
    }
    sum->nloops--;
}

/* Loops that go on where the next inner one ends become one, if they do so in the destination and in every term:
 * longer rows, fewer calls. Terms that are messages lie dense, so they always go on. */
static void merge_sum(hd_sum *sum, hd_sum_term *term, int64_t elem_bytes)
{
    int64_t run = elem_bytes;
    while (sum->nloops > 0 && sum->dst_stride_bytes[sum->nloops - 1] == run &&
           terms_continue(term, sum->nterms, sum->nloops - 1, sum->count, -1, run)) {
        run *= sum->count[--sum->nloops];
    }
    for (int i = sum->nloops - 1; i > 0; i--) {
        if (sum->dst_stride_bytes[i - 1] == sum->count[i] * sum->dst_stride_bytes[i] &&
            terms_continue(term, sum->nterms, i - 1, sum->count, i, 0)) {
            sum->count[i] *= sum->count[i - 1];
            drop_sum_loop(sum, term, i - 1);
        }
    }
    sum->run_elems = run / elem_bytes;
    sum->run_bytes = run;
    for (int i = sum->nloops - 1; i >= 0; i--) {
        sum->dense_stride_bytes[i] = run;
        run *= sum->count[i];
    }
    sum->bytes = run;
}

static void build_one(hd_sum *sum, hd_transfer *t, int first)
{
    const hd_copy *copy = &t->recv.item[first].copy;
    hd_sum_term *term = t->sum.term + t->sum.nterms;
    sum->first = t->sum.nterms;
    sum->nloops = copy->nloops;
    sum->dst_offset_bytes = copy->dst_offset_bytes;
    memcpy(sum->count, copy->count, sizeof sum->count);
    memcpy(sum->dst_stride_bytes, copy->dst_stride_bytes, sizeof sum->dst_stride_bytes);
    for (int i = first; i < t->recv.count; i = hd_items_alike(&t->recv, first, i + 1)) {
        fill_term(&term[sum->nterms++], t, i);
    }
    t->sum.nterms += sum->nterms;
    merge_sum(sum, term, copy->run_bytes);
}

void hd_transfer_use_sum(hd_transfer *t, int streams)
{
    t->streams = streams;
}

int hd_items_alike(const hd_items *items, int like, int k)
{
    while (k < items->count && !hd_copy_same_place(&items->item[like].copy, &items->item[k].copy)) {
        k++;
    }
    return k;
}

heddle_status hd_sums_build(hd_transfer *t)
{
    heddle_status st = HEDDLE_OK;
    const hd_items *recv = &t->recv;
    hd_sums *out = &t->sum;
    size_t n = (size_t)recv->count;
    HD_TRY(hd_alloc((void **)&out->sum, n, sizeof(hd_sum), "sums of a transfer"));
    HD_TRY(hd_alloc((void **)&out->term, n, sizeof(hd_sum_term), "terms of sums"));
    HD_TRY(hd_alloc((void **)&out->row, n, sizeof(void *), "terms of sums"));
    for (int i = 0; i < recv->count; i++) {
        if (hd_items_alike(recv, i, 0) == i) {
            build_one(&out->sum[out->nsums++], t, i);
        }
    }
    /* A little before the cache is full, as copies do: other programs have some of it. */
    t->streams = t->hint.footprint_bytes > t->hint.shared_cache_bytes / 4 * 3;
out:
    return st;
}

/* The kernel adds all terms of a row at once: the destination is written once and never read. */
static void add_row(const hd_sum *sum, const void **row, char *dst, hd_sum_fn add)
{
    if (sum->nterms == 1) {
        memcpy(dst, row[0], (size_t)sum->run_bytes); /* a lone term keeps its bits */
    } else {
        add(dst, row, sum->nterms, sum->run_elems);
    }
}

/* Advance all addresses by one step of the odometer; 0 when it is over. */
static int next_row(int64_t *index, const hd_sum *sum, const hd_sum_term *term, const void **row, char **dst,
                    const unsigned char *reach_of)
{
    for (int k = sum->nloops - 1; k >= 0; k--) {
        int64_t steps = ++index[k] < sum->count[k] ? 1 : 1 - sum->count[k];
        for (int i = 0; i < sum->nterms; i++) {
            int dense = term[i].is_message || reach_of[term[i].peer] == HD_REACH_STAGED;
            row[i] = (const char *)row[i] + steps * (dense ? sum->dense_stride_bytes[k] : term[i].stride_bytes[k]);
        }
        *dst += steps * sum->dst_stride_bytes[k];
        if (index[k] < sum->count[k]) {
            return 1;
        }
        index[k] = 0;
    }
    return 0;
}

void hd_sums_run(hd_transfer *t, void *array)
{
    hd_channel *c = t->channel;
    const void **row = t->sum.row;
    for (int s = 0; s < t->sum.nsums; s++) {
        const hd_sum *sum = &t->sum.sum[s];
        const hd_sum_term *term = t->sum.term + sum->first;
        char *dst = (char *)array + sum->dst_offset_bytes;
        int64_t index[HEDDLE_MAX_DIMS] = {0};
        for (int i = 0; i < sum->nterms; i++) {
            const char *base = term[i].is_message ? t->mail.recv_packed : c->src_at[term[i].peer];
            int staged = !term[i].is_message && c->reach_of[term[i].peer] == HD_REACH_STAGED;
            row[i] = base + (staged ? 0 : term[i].offset_bytes);
            c->moved[term[i].peer] += term[i].is_message ? 0 : sum->bytes;
        }
        hd_sum_fn add = t->streams && sum->run_bytes >= STREAM_BYTES ? t->add_streamed : t->add;
        do {
            add_row(sum, row, dst, add);
        } while (next_row(index, sum, term, row, &dst, c->reach_of));
    }
}

void hd_sums_free(hd_sums *sums)
{
    HD_FREE_ALL(sums->sum, sums->term, sums->row);
    memset(sums, 0, sizeof *sums);
}
