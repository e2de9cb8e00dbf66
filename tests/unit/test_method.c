/* What attention plans to send, against a list of every transfer: blocks and sums are walked round the ring one by one,
 * heads and the key heads that they use are marked one by one. */
#include "case.h"
#include "draw.h"

#include <heddle/attention.h>
#include <string.h>

enum { TRIALS = 4000, MAX_RANKS = 32, MAX_HEADS = 16 };

typedef struct problem {
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_attention_options options;
    int rank;
} problem;

/* The ranks that share the sequence, as one of them sees them. */
typedef struct judge {
    const problem *p;
    int n, me, spread;
    int64_t rows[MAX_RANKS];    /* of the members */
    int64_t queries[MAX_RANKS]; /* heads of part i of `spread` */
    int64_t keys[MAX_RANKS];    /* key heads that these use */
    int64_t batch, width, elem, real;
    heddle_attention_traffic sent;
} judge;

static void send(int64_t *bytes, int64_t *messages, int64_t count)
{
    *bytes += count;
    *messages += count > 0;
}

static void forward(judge *j, int64_t bytes)
{
    send(&j->sent.forward_bytes, &j->sent.forward_messages, bytes);
}

static void backward(judge *j, int64_t bytes)
{
    send(&j->sent.backward_bytes, &j->sent.backward_messages, bytes);
}

static int64_t even_part(int64_t extent, int64_t n, int64_t i)
{
    return extent / n + (i < extent % n);
}

static void list_members(judge *j)
{
    const problem *p = j->p;
    int coords[HEDDLE_MAX_AXES], mine[HEDDLE_MAX_AXES];
    HD_OK(heddle_mesh_coords(mine, &p->mesh, p->rank));
    for (int rank = 0; rank < heddle_mesh_size(&p->mesh); rank++) {
        heddle_box box;
        int same = 1;
        HD_OK(heddle_mesh_coords(coords, &p->mesh, rank));
        for (int a = 0; a < p->mesh.naxes; a++) {
            same &= p->layout.dim_of_axis[a] == 1 || coords[a] == mine[a];
        }
        if (same) {
            HD_OK(heddle_layout_box(&box, &p->shape, &p->mesh, &p->layout, rank));
            j->me = rank == p->rank ? j->n : j->me;
            j->rows[j->n++] = box.len[1];
        }
    }
    for (int m = 0; m < j->n && p->options.placement == HEDDLE_PLACEMENT_ZIGZAG; m++) {
        j->rows[m] = even_part(p->shape.dim[1].extent, 2 * j->n, m) +
                     even_part(p->shape.dim[1].extent, 2 * j->n, 2 * j->n - 1 - m);
    }
}

static void list_heads(judge *j)
{
    const problem *p = j->p;
    heddle_box box, kv_box;
    heddle_shape kv_shape = p->shape;
    int64_t kv_heads = p->options.kv_heads, share = p->shape.dim[2].extent / kv_heads, next = 0;
    kv_shape.dim[2].extent = kv_heads;
    HD_OK(heddle_layout_box(&box, &p->shape, &p->mesh, &p->layout, p->rank));
    HD_OK(heddle_layout_box(&kv_box, &kv_shape, &p->mesh, &p->layout, p->rank));
    j->batch = box.len[0];
    for (int i = 0; i < j->spread; i++) {
        int used[MAX_HEADS] = {0};
        j->queries[i] = even_part(box.len[2], j->spread, i);
        for (int64_t h = 0; h < j->queries[i]; h++) {
            used[(box.lo[2] + next++) / share] = 1;
        }
        for (int64_t k = 0; k < kv_heads; k++) {
            j->keys[i] += used[k];
        }
    }
    if (j->spread == 1) {
        j->keys[0] = kv_box.len[2];
    }
}

/* Queries, keys and values of my rows to the owners of their heads; my heads of their rows come back. */
static void exchange_heads(judge *j)
{
    int first = j->me / j->spread * j->spread;
    int64_t row = j->batch * j->width * j->elem, mine = j->rows[j->me], own_q = j->queries[j->me - first];
    for (int i = 0; i < j->spread; i++) {
        int64_t theirs = j->rows[first + i];
        if (first + i == j->me) {
            continue;
        }
        forward(j, (j->queries[i] + 2 * j->keys[i]) * mine * row);
        forward(j, own_q * theirs * row);
        forward(j, j->p->options.log_sum_exp ? own_q * theirs * j->batch * j->real : 0);
        backward(j, j->queries[i] * mine * row);
        backward(j, (own_q + 2 * j->keys[j->me - first]) * theirs * row);
    }
}

/* `arrays` of one size round the ring: each rank passes on what it holds, n - 1 times, beginning with the own block or,
 * of sums, with that of the rank before. */
static void go_round(judge *j, int arrays, int of_sums, int64_t elem, void (*count)(judge *, int64_t))
{
    int n = j->n / j->spread, segment = j->me / j->spread;
    int holds = of_sums ? (segment + n - 1) % n : segment;
    for (int step = 0; step + 1 < n; step++) {
        int64_t rows = 0;
        for (int i = 0; i < j->spread; i++) {
            rows += j->rows[holds * j->spread + i];
        }
        count(j, arrays * rows * j->keys[j->me % j->spread] * j->batch * j->width * elem);
        holds = (holds + n - 1) % n;
    }
}

static void sum_projected(judge *j)
{
    int64_t elems = 2 * j->keys[0] * j->batch * j->p->options.projected_length * j->width;
    for (int i = 0; i < j->n; i++) {
        if (i != j->me) {
            int64_t both = even_part(elems, j->n, i) + even_part(elems, j->n, j->me);
            forward(j, both * j->real);
            backward(j, both * j->real);
        }
    }
}

static void list_transfers(judge *j)
{
    const heddle_attention_options *o = &j->p->options;
    switch (o->method) {
    case HEDDLE_ATTENTION_ULYSSES:
        exchange_heads(j);
        break;
    case HEDDLE_ATTENTION_USP:
        exchange_heads(j);
        /* fall through */
    case HEDDLE_ATTENTION_RING:
        go_round(j, 2, 0, j->elem, forward);
        go_round(j, 2, 0, j->elem, backward);
        go_round(j, 2, 1, j->real, backward);
        break;
    case HEDDLE_ATTENTION_RSA:
        for (int turn = 0; turn < 2 && o->projected_length == 0; turn++) {
            go_round(j, 1, 0, j->elem, forward);
            go_round(j, 1, 0, j->elem, backward);
            go_round(j, 1, 1, j->real, backward);
            if (o->rsa_all_reduce) {
                go_round(j, 1, 0, j->real, backward);
            }
        }
        if (o->projected_length > 0) {
            sum_projected(j);
        }
        break;
    case HEDDLE_ATTENTION_GATHER_KV:
        for (int i = 0; i < j->n; i++) {
            if (i != j->me) {
                forward(j, 2 * j->rows[j->me] * j->keys[0] * j->batch * j->width * j->elem);
                backward(j, 2 * j->rows[i] * j->keys[0] * j->batch * j->width * j->real);
            }
        }
        break;
    default:
        break;
    }
}

static void draw_problem(problem *p)
{
    static const heddle_dtype dtypes[] = {HEDDLE_BF16, HEDDLE_F32, HEDDLE_F64};
    int kv_heads = 1 + below(4), heads = kv_heads * (1 + below(4));
    memset(p, 0, sizeof *p);
    p->shape = (heddle_shape){.dtype = dtypes[below(3)],
                              .ndim = 4,
                              .dim = {{"b", 1 + below(4)}, {"s", 1 + below(20)}, {"h", heads}, {"d", 1 + below(8)}}};
    p->mesh = (heddle_mesh){.naxes = 3, .axis = {{"x", 1 + below(3)}, {"y", 1 + below(4)}, {"z", 1 + below(4)}}};
    p->layout = heddle_layout_replicated();
    p->layout.dim_of_axis[0] = below(3) == 0 ? 2 : below(2) - 1;
    p->layout.dim_of_axis[1] = 1;
    p->layout.dim_of_axis[2] = below(4) == 0 ? HEDDLE_REPLICATED : 1;
    heddle_attention_options_init(&p->options);
    p->options.method = (heddle_attention_method)below(HEDDLE_ATTENTION_METHOD_COUNT);
    p->options.kv_heads = kv_heads;
    p->options.placement = below(2) ? HEDDLE_PLACEMENT_ZIGZAG : HEDDLE_PLACEMENT_CONTIGUOUS;
    p->options.log_sum_exp = below(2);
    if (p->options.method == HEDDLE_ATTENTION_RSA) {
        p->options.rsa_all_reduce = below(2);
        p->options.projected_length = below(2) ? 1 + below(6) : 0;
    }
    p->rank = below(heddle_mesh_size(&p->mesh));
}

static judge judge_of(const problem *p)
{
    judge j = {.p = p, .width = p->shape.dim[3].extent, .elem = (int64_t)heddle_dtype_bytes(p->shape.dtype)};
    j.real = p->shape.dtype == HEDDLE_F64 ? 8 : 4;
    list_members(&j);
    j.spread = p->options.method == HEDDLE_ATTENTION_ULYSSES ? j.n
               : p->options.method == HEDDLE_ATTENTION_USP   ? p->mesh.axis[2].size
                                                             : 1;
    list_heads(&j);
    list_transfers(&j);
    return j;
}

HD_CASE(plans_every_transfer)
{
    int seen[HEDDLE_ATTENTION_METHOD_COUNT] = {0};
    int trials = hd_rounds(TRIALS);
    for (int trial = 0; trial < trials; trial++) {
        problem p;
        heddle_attention_traffic planned;
        draw_problem(&p);
        if (heddle_attention_plan_traffic(&planned, &p.shape, &p.mesh, &p.layout, &p.options, p.rank) != HEDDLE_OK) {
            continue; /* the method does not take this layout */
        }
        judge j = judge_of(&p);
        if (memcmp(&planned, &j.sent, sizeof planned) != 0) {
            fail_msg("trial %d, %s, rank %d: forward %lld in %lld, listed %lld in %lld; backward %lld in %lld, listed "
                     "%lld in %lld",
                     trial, heddle_attention_method_name(p.options.method), p.rank, (long long)planned.forward_bytes,
                     (long long)planned.forward_messages, (long long)j.sent.forward_bytes,
                     (long long)j.sent.forward_messages, (long long)planned.backward_bytes,
                     (long long)planned.backward_messages, (long long)j.sent.backward_bytes,
                     (long long)j.sent.backward_messages);
        }
        seen[p.options.method] += planned.forward_bytes > 0;
    }
    for (int i = HEDDLE_ATTENTION_ULYSSES; i < HEDDLE_ATTENTION_METHOD_COUNT; i++) {
        assert_true(seen[i] > trials / 100);
    }
}
