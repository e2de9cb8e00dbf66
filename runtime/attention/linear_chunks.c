/* Chunks of rows, and the states at their borders. */
#include "runtime/attention/linear_internal.h"

#include <math.h>
#include <string.h>

int64_t hd_linear_chunk_len(const heddle_linear_attention *a, int64_t chunk)
{
    int64_t left = a->problem.rows - chunk * a->problem.chunk_rows;
    return left < a->problem.chunk_rows ? left : a->problem.chunk_rows;
}

/* Where a chunk's rows of one head begin. */
typedef struct place {
    int64_t sample, row, head;
} place;

static hd_linear_rows rows_of(const heddle_linear_attention *a, const heddle_attention_array *array, place at)
{
    const int64_t *stride = array->stride_elems;
    int64_t elems = at.sample * stride[0] + at.row * stride[1] + at.head * stride[2];
    unsigned char *data = array->data;
    return (hd_linear_rows){.data = data == NULL ? NULL : data + elems * a->problem.members.elem_bytes,
                            .row = stride[1],
                            .column = stride[3],
                            .dtype = a->problem.shape.dtype};
}

/* The same in what holds results of the first half: the result itself, or for bf16 a dense array of f32. */
static hd_linear_rows part_of(const heddle_linear_attention *a, int which, const hd_linear_rows *result,
                              int64_t sample_head, int64_t row, int64_t width)
{
    if (a->part[which] == NULL) {
        return *result;
    }
    int64_t at = (sample_head * a->problem.rows + row) * width;
    return (hd_linear_rows){.data = a->part[which] + at * (int64_t)a->kernels->real_bytes,
                            .row = width,
                            .column = 1,
                            .dtype = a->problem.real};
}

void hd_linear_chunk_views(hd_linear_chunk *out, const heddle_linear_attention *a, int64_t sample_head, int64_t chunk)
{
    const hd_linear_problem *p = &a->problem;
    const place at = {sample_head / p->heads, chunk * p->chunk_rows, sample_head % p->heads};
    out->rows = hd_linear_chunk_len(a, chunk);
    out->q = rows_of(a, &a->q, at);
    out->k = rows_of(a, &a->k, at);
    out->v = rows_of(a, &a->v, at);
    out->o = rows_of(a, &a->o, at);
    out->d_o = rows_of(a, &a->d_o, at);
    out->dq = rows_of(a, &a->dq, at);
    out->dk = rows_of(a, &a->dk, at);
    out->dv = rows_of(a, &a->dv, at);
    out->o_so_far = part_of(a, 0, &out->o, sample_head, at.row, p->dv);
    out->dv_so_far = part_of(a, 0, &out->dv, sample_head, at.row, p->dv);
    out->dk_so_far = part_of(a, 1, &out->dk, sample_head, at.row, p->dk);
}

/* The state of one chunk: [dk][dv], rows padded for vectors. */
unsigned char *hd_linear_state(heddle_linear_attention *a, int which, int64_t sample_head, int64_t chunk)
{
    int64_t index = sample_head * a->problem.nchunks + chunk;
    return a->states[which] + (size_t)(index * a->padded_elems) * a->kernels->real_bytes;
}

/* Powers of the head's decay are made again for every head: they are few, and threads share none. */
void *hd_linear_scratch(heddle_linear_attention *a, int thread, int64_t sample_head)
{
    void *scratch = a->scratch + thread * a->scratch_bytes;
    a->kernels->begin(scratch, &a->dims, hd_linear_decay(a, sample_head));
    return scratch;
}

unsigned char *hd_linear_carry(heddle_linear_attention *a, int thread, int which)
{
    return a->carry + (size_t)((2 * thread + which) * a->padded_elems) * a->kernels->real_bytes;
}

double hd_linear_decay(const heddle_linear_attention *a, int64_t sample_head)
{
    return a->problem.decay[a->problem.head_lo + sample_head % a->problem.heads];
}

/* dense == NULL: zero */
void hd_linear_widen(heddle_linear_attention *a, void *padded, const void *dense, int64_t sample_head)
{
    size_t real = a->kernels->real_bytes, row = (size_t)a->problem.dv * real;
    size_t padded_row = (size_t)a->kernels->padded(a->problem.dv) * real;
    memset(padded, 0, (size_t)a->padded_elems * real);
    for (size_t d = 0; d < (size_t)a->problem.dk && dense != NULL; d++) {
        size_t from = ((size_t)sample_head * (size_t)a->problem.dk + d) * row;
        memcpy((unsigned char *)padded + d * padded_row, (const unsigned char *)dense + from, row);
    }
}

void hd_linear_narrow(heddle_linear_attention *a, void *dense, const void *padded, int64_t sample_head)
{
    size_t real = a->kernels->real_bytes, row = (size_t)a->problem.dv * real;
    size_t padded_row = (size_t)a->kernels->padded(a->problem.dv) * real;
    for (size_t d = 0; d < (size_t)a->problem.dk; d++) {
        size_t to = ((size_t)sample_head * (size_t)a->problem.dk + d) * row;
        memcpy((unsigned char *)dense + to, (const unsigned char *)padded + d * padded_row, row);
    }
}

/* Do the states grow from the first chunk to the last, or the other way? */
static int is_ascending(int which)
{
    return which == HD_STATES_KV_LEFT || which == HD_STATES_G_LEFT;
}

/* The i-th chunk on the way. */
static int64_t chunk_at(const heddle_linear_attention *a, int which, int64_t i)
{
    return is_ascending(which) ? i : a->problem.nchunks - 1 - i;
}

/* What this rank adds to a state that passes through: its chunks' states, each decayed by the rows behind it. */
void hd_linear_total(heddle_linear_attention *a, int thread, int which, int64_t sample_head, void *own)
{
    unsigned char *sum = hd_linear_carry(a, thread, 0);
    double decay = hd_linear_decay(a, sample_head);
    hd_linear_widen(a, sum, NULL, sample_head);
    for (int64_t i = 0; i < a->problem.nchunks; i++) {
        int64_t chunk = chunk_at(a, which, i);
        double factor = pow(decay, (double)hd_linear_chunk_len(a, chunk));
        a->kernels->fold(sum, factor, sum, hd_linear_state(a, which, sample_head, chunk), a->padded_elems);
    }
    hd_linear_narrow(a, own, sum, sample_head);
}

/* Replaces every chunk's own state by the state in front of it, `in` being the one in front of the rank. */
void hd_linear_spread(heddle_linear_attention *a, int thread, int which, int64_t sample_head, const void *in)
{
    unsigned char *now = hd_linear_carry(a, thread, 0), *next = hd_linear_carry(a, thread, 1);
    size_t bytes = (size_t)a->padded_elems * a->kernels->real_bytes;
    double decay = hd_linear_decay(a, sample_head);
    hd_linear_widen(a, now, in, sample_head);
    for (int64_t i = 0; i < a->problem.nchunks; i++) {
        int64_t chunk = chunk_at(a, which, i);
        unsigned char *slot = hd_linear_state(a, which, sample_head, chunk);
        a->kernels->fold(next, pow(decay, (double)hd_linear_chunk_len(a, chunk)), now, slot, a->padded_elems);
        memcpy(slot, now, bytes);
        unsigned char *swap = now;
        now = next;
        next = swap;
    }
}

/* NULL: nothing lies before the first chunk of all, so no product with a state of zeros is made. */
const void *hd_linear_before(heddle_linear_attention *a, int which, int64_t sample_head, int64_t chunk)
{
    int edge = is_ascending(which) ? 0 : a->problem.nranks - 1;
    if (a->states[which] == NULL || (chunk == chunk_at(a, which, 0) && a->problem.me == edge)) {
        return NULL;
    }
    return hd_linear_state(a, which, sample_head, chunk);
}
