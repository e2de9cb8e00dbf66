/* Partial sums: the receiver reads every term where it lies and adds in rank order, row by row. */
#include "runtime/reshard/plan.h"

#include <string.h>

static int same_box(const heddle_box *a, const heddle_box *b)
{
    size_t bytes = (size_t)a->ndim * sizeof(int64_t);
    return a->ndim == b->ndim && memcmp(a->lo, b->lo, bytes) == 0 && memcmp(a->len, b->len, bytes) == 0;
}

/* Dims of the box longer than 1, by descending stride of the destination. */
static int order_dims(int *dim, const heddle_box *box, const int64_t *stride)
{
    int n = 0;
    for (int d = 0; d < box->ndim; d++) {
        if (box->len[d] > 1) {
            int j = n++;
            for (; j > 0 && stride[dim[j - 1]] < stride[d]; j--) {
                dim[j] = dim[j - 1];
            }
            dim[j] = d;
        }
    }
    return n;
}

static int64_t offset_in(const hd_array *array, const heddle_box *box, size_t elem_bytes)
{
    int64_t offset = 0;
    for (int d = 0; d < box->ndim; d++) {
        offset += (box->lo[d] - array->box.lo[d]) * array->stride_elems[d];
    }
    return offset * (int64_t)elem_bytes;
}

static heddle_status fill_term(hd_sum_term *term, heddle_reshard *plan, int phase, int recv, const int *dim, int ndims)
{
    hd_step *step = &plan->step[phase];
    const hd_piece *piece = &step->recv.piece[recv];
    hd_array src;
    heddle_status st = hd_plan_array(&src, plan, phase, 0, piece->peer);
    term->peer = piece->peer;
    term->is_message = !hd_plan_near(plan, piece->peer);
    if (st != HEDDLE_OK || term->is_message) {
        term->offset_bytes = term->is_message ? step->mail.recv_offset[recv] : 0;
        return st;
    }
    term->offset_bytes = offset_in(&src, &piece->box, plan->elem_bytes);
    for (int i = 0; i < ndims; i++) {
        term->stride_bytes[i] = src.stride_elems[dim[i]] * (int64_t)plan->elem_bytes;
    }
    return HEDDLE_OK;
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
    for (int i = sum->nloops - 1; i >= 0; i--) {
        sum->dense_stride_bytes[i] = run;
        run *= sum->count[i];
    }
    sum->bytes = run;
}

static heddle_status build_one(hd_sum *sum, heddle_reshard *plan, int phase, const int *member)
{
    hd_step *step = &plan->step[phase];
    const heddle_box *box = &step->recv.piece[member[0]].box;
    hd_sum_term *term = step->sum.term + sum->first;
    int64_t elem_bytes = (int64_t)plan->elem_bytes;
    int dim[HEDDLE_MAX_DIMS];
    hd_array dst;
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_plan_array(&dst, plan, phase, 1, plan->rank));
    sum->nloops = order_dims(dim, box, dst.stride_elems);
    sum->dst_offset_bytes = offset_in(&dst, box, plan->elem_bytes);
    for (int i = 0; i < sum->nloops; i++) {
        sum->count[i] = box->len[dim[i]];
        sum->dst_stride_bytes[i] = dst.stride_elems[dim[i]] * elem_bytes;
    }
    for (int i = 0; i < sum->nterms; i++) {
        HD_TRY(fill_term(&term[i], plan, phase, member[i], dim, sum->nloops));
    }
    merge_sum(sum, term, elem_bytes);
out:
    return st;
}

heddle_status hd_sums_build(heddle_reshard *plan, int phase)
{
    heddle_status st = HEDDLE_OK;
    const hd_pieces *recv = &plan->step[phase].recv;
    hd_sums *out = &plan->step[phase].sum;
    void *members = NULL, *taken = NULL;
    size_t n = (size_t)recv->count;
    HD_TRY(hd_alloc(&members, n, sizeof(int), "terms of sums"));
    HD_TRY(hd_alloc(&taken, n, 1, "terms of sums"));
    HD_TRY(hd_alloc((void **)&out->sum, n, sizeof(hd_sum), "sums of a reshard"));
    HD_TRY(hd_alloc((void **)&out->term, n, sizeof(hd_sum_term), "terms of sums"));
    HD_TRY(hd_alloc((void **)&out->row, n, sizeof(void *), "terms of sums"));
    int *member = members;
    unsigned char *done = taken;
    for (int i = 0; i < recv->count; i++) {
        if (done[i]) {
            continue;
        }
        hd_sum *sum = &out->sum[out->nsums++];
        sum->first = out->nterms;
        for (int k = i; k < recv->count; k++) {
            if (!done[k] && same_box(&recv->piece[i].box, &recv->piece[k].box)) {
                done[k] = 1;
                member[sum->nterms++] = k;
            }
        }
        out->nterms += sum->nterms;
        HD_TRY(build_one(sum, plan, phase, member));
    }
out:
    hd_free(members);
    hd_free(taken);
    return st;
}

static void add_row(const hd_sum *sum, const void **row, char *dst, hd_sum_fn add, size_t elem_bytes)
{
    if (sum->nterms == 1) {
        memcpy(dst, row[0], (size_t)sum->run_elems * elem_bytes); /* a lone term keeps its bits */
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

void hd_sums_run(hd_sums *sums, heddle_reshard *plan)
{
    const hd_step *step = &plan->step[plan->at];
    hd_sum_fn add = plan->request.kernels->sum[plan->request.line.shape.dtype];
    for (int s = 0; s < sums->nsums; s++) {
        const hd_sum *sum = &sums->sum[s];
        const hd_sum_term *term = sums->term + sum->first;
        char *dst = plan->step_dst + sum->dst_offset_bytes;
        int64_t index[HEDDLE_MAX_DIMS] = {0};
        for (int i = 0; i < sum->nterms; i++) {
            const char *base = term[i].is_message ? step->mail.recv_stage : plan->src_at[term[i].peer];
            int staged = !term[i].is_message && plan->reach_of[term[i].peer] == HD_REACH_STAGED;
            sums->row[i] = base + (staged ? 0 : term[i].offset_bytes);
            plan->moved[term[i].peer] += term[i].is_message ? 0 : sum->bytes;
        }
        do {
            add_row(sum, sums->row, dst, add, plan->elem_bytes);
        } while (next_row(index, sum, term, sums->row, &dst, plan->reach_of));
    }
}

void hd_sums_free(hd_sums *sums)
{
    hd_free(sums->sum);
    hd_free(sums->term);
    hd_free(sums->row);
    memset(sums, 0, sizeof *sums);
}
