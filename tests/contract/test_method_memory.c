/* What methods say an attention object holds, against what it has allocated, and the products of its calls, against
 * pairs of rows counted one by one: random problems on real ranks. */
#include "case.h"

#include "runtime/verify/attention_check.h"
#include "runtime/verify/linear_check.h"

#include <heddle/heddle.h>
#include <stdio.h>
#include <string.h>

enum { MAX_RANKS = 8, CASES = 60 };

typedef struct job {
    int ranks;
    int64_t forward[CASES][MAX_RANKS], backward[CASES][MAX_RANKS];
} job;

static heddle_status said_of(const char *what, int rank, int64_t said, int64_t held)
{
    if (said == held) {
        return HEDDLE_OK;
    }
    fprintf(stderr, "rank %d: %s: said %lld, held %lld\n", rank, what, (long long)said, (long long)held);
    return HEDDLE_ERR_MISMATCH;
}

static void draw_attention(attention_case *c, random_source *source, int ranks)
{
    attention_draw(c, source, ranks, HEDDLE_DTYPE_COUNT);
    c->options.key_lengths = c->has_key_lengths ? c->key_length : NULL;
    c->options.forward_only = random_between(source, 0, 2) == 0;
    c->options.threads = (int)random_between(source, 1, 3);
}

static heddle_status hold_attention(heddle_comm *comm, const attention_case *c, int64_t *forward, int64_t *backward)
{
    heddle_attention *attention = NULL;
    heddle_attention_info info = HEDDLE_EMPTY(heddle_attention_info);
    heddle_status st = heddle_attention_create(&attention, comm, &c->shape, &c->mesh, &c->layout, &c->options);
    st = st == HEDDLE_OK ? heddle_attention_get_info(&info, attention) : st;
    if (st == HEDDLE_OK) {
        st = said_of(info.method, heddle_comm_rank(comm), info.planned_saved_bytes, info.saved_bytes);
    }
    if (st == HEDDLE_OK) {
        st = said_of(info.method, heddle_comm_rank(comm), info.planned_workspace_bytes + info.room_bytes,
                     info.workspace_bytes);
    }
    *forward = info.forward_flops;
    *backward = info.backward_flops;
    heddle_attention_destroy(attention);
    return st;
}

static heddle_status attention_cases(heddle_comm *comm, void *arg)
{
    job *j = arg;
    random_source source = {7 + (uint64_t)j->ranks};
    heddle_status st = HEDDLE_OK;
    int rank = heddle_comm_rank(comm);
    for (int i = 0; i < CASES && st == HEDDLE_OK; i++) {
        attention_case c;
        draw_attention(&c, &source, j->ranks);
        st = hold_attention(comm, &c, &j->forward[i][rank], &j->backward[i][rank]);
    }
    return st;
}

/* Every query of every head and sample meets every key it sees once, whichever rank does it; replicas do it again. */
static int64_t products_of(const attention_case *c, int back)
{
    int64_t batch = c->shape.dim[0].extent, length = c->shape.dim[1].extent, pairs = 0, replicas = 1;
    int64_t m = c->options.projected_length, keeps = c->options.method == HEDDLE_ATTENTION_RSA && m == 0;
    int64_t kv_heads = c->options.kv_heads > 0 ? c->options.kv_heads : c->shape.dim[2].extent, extra = 0;
    for (int a = 0; a < c->mesh.naxes; a++) {
        replicas *= c->layout.dim_of_axis[a] == HEDDLE_REPLICATED ? c->mesh.axis[a].size : 1;
    }
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t q = 0; q < length; q++) {
            for (int64_t k = 0; k < (m > 0 ? m : length); k++) {
                int hidden = (c->options.causal && k > q) || (c->has_key_lengths && k >= c->key_length[b]);
                pairs += !hidden;
            }
        }
    }
    if (m > 0) { /* keys and values, in backward the gradients of these and of the projections */
        extra = 2 * kv_heads * batch * length * m * (back ? 2 : 1);
    }
    int64_t products = back ? 5 - keeps : 2;
    return replicas * 2 * c->shape.dim[3].extent * (pairs * c->shape.dim[2].extent * products + extra);
}

HD_CASE(attention_holds_what_methods_say)
{
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++) {
        job j = {.ranks = ranks};
        random_source source = {7 + (uint64_t)ranks};
        HD_OK(heddle_run_ranks(ranks, "threads", attention_cases, &j));
        for (int i = 0; i < CASES; i++) {
            attention_case c;
            int64_t forward = 0, backward = 0;
            draw_attention(&c, &source, ranks);
            for (int r = 0; r < ranks; r++) {
                forward += j.forward[i][r];
                backward += j.backward[i][r];
            }
            if (forward != products_of(&c, 0) || backward != products_of(&c, 1)) {
                char text[2048];
                attention_describe(text, sizeof text, &c);
                fail_msg("%s: said %lld forward, %lld backward, counted %lld and %lld", text, (long long)forward,
                         (long long)backward, (long long)products_of(&c, 0), (long long)products_of(&c, 1));
            }
        }
    }
}

/* Of this rank, chunk by chunk. */
static void count_linear(int64_t *forward, int64_t *backward, const linear_case *c, int64_t chunk_rows, int rank)
{
    heddle_box box;
    int64_t dk = c->shape.dim[3].extent, dv = c->options.dv > 0 ? c->options.dv : dk, pairs = 0;
    int64_t both = c->options.bidirectional ? 2 : 1;
    HD_OK(heddle_layout_box(&box, &c->shape, &c->mesh, &c->layout, rank));
    for (int64_t i = 0; i < box.len[1]; i++) {
        for (int64_t k = i / chunk_rows * chunk_rows; k < (i / chunk_rows + 1) * chunk_rows && k < box.len[1]; k++) {
            pairs += c->options.bidirectional || k <= i;
        }
    }
    /* a pair: q k and its v; back q k, d_o v, and what both give q, k and v. A row: into a state and out of one */
    int64_t heads = box.len[0] * box.len[2];
    *forward = heads * (pairs * 2 * (dk + dv) + both * box.len[1] * 2 * (2 * dk * dv));
    *backward = heads * (pairs * 2 * (dk + dv + dk + dk + dv) + both * box.len[1] * 2 * (4 * dk * dv));
}

static heddle_status linear_cases(heddle_comm *comm, void *arg)
{
    random_source source = {9 + (uint64_t)((job *)arg)->ranks};
    heddle_status st = HEDDLE_OK;
    int rank = heddle_comm_rank(comm);
    for (int i = 0; i < CASES && st == HEDDLE_OK; i++) {
        linear_case c;
        heddle_linear_attention *attention = NULL;
        heddle_linear_attention_info info = HEDDLE_EMPTY(heddle_linear_attention_info);
        int64_t forward = 0, backward = 0;
        linear_draw(&c, &source, heddle_comm_size(comm), HEDDLE_DTYPE_COUNT);
        c.options.decay = c.decay;
        c.options.threads = (int)random_between(&source, 1, 3);
        st = heddle_linear_attention_create(&attention, comm, &c.shape, &c.mesh, &c.layout, &c.options);
        st = st == HEDDLE_OK ? heddle_linear_attention_get_info(&info, attention) : st;
        st = st == HEDDLE_OK ? said_of("linear, saved", rank, info.planned_saved_bytes, info.saved_bytes) : st;
        st = st == HEDDLE_OK ? said_of("linear, workspace", rank, info.planned_workspace_bytes + info.room_bytes,
                                       info.workspace_bytes)
                             : st;
        if (st == HEDDLE_OK) {
            count_linear(&forward, &backward, &c, info.chunk_rows, rank);
            st = said_of("linear, forward products", rank, info.forward_flops, forward);
            st = st == HEDDLE_OK ? said_of("linear, backward products", rank, info.backward_flops, backward) : st;
        }
        heddle_linear_attention_destroy(attention);
    }
    return st;
}

HD_CASE(linear_attention_holds_what_methods_say)
{
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++) {
        job j = {.ranks = ranks};
        HD_OK(heddle_run_ranks(ranks, "threads", linear_cases, &j));
    }
}
