/* Attention of kernels/cuda, forward and backward, run by the emulator, against loops in f64: strides in place, fibres
 * of two dims, key lengths, a diagonal, heads that share keys. */
#include "on_sim.h"

enum { ARRAYS = 8, Q = 0, K, V, O, D_O, DQ, DK, DV };

typedef struct problem {
    hd_device_attention_back back;
    void *host[ARRAYS], *there[ARRAYS];
    int64_t elems[ARRAYS];
    int32_t lengths[64], *lengths_there;
    int64_t queries; /* of all heads and fibres */
} problem;

static hd_device_tokens *tokens_of(problem *p, int which)
{
    hd_device_tokens *const all[ARRAYS] = {&p->back.of.q, &p->back.of.k, &p->back.of.v, &p->back.of.o,
                                           &p->back.d_o,  &p->back.dq,   &p->back.dk,   &p->back.dv};
    return all[which];
}

/* [outer][tokens][inner][parts][heads][d], as qkv has parts; or heads outermost. */
static void lay_out(problem *p, int which, int64_t tokens, int64_t heads, int is_turned)
{
    const hd_device_attention *of = &p->back.of;
    const int64_t parts = which == Q || which == K ? 1 + below(3) : 1, row = parts * heads * of->d;
    hd_device_tokens *x = tokens_of(p, which);
    *x = (hd_device_tokens){NULL, tokens * of->inner * row, row, of->inner * row, of->d};
    if (is_turned) { /* [inner][heads][outer][tokens][d] */
        *x = (hd_device_tokens){NULL, tokens * of->d, heads * of->outer * tokens * of->d, of->d,
                                of->outer * tokens * of->d};
    }
    p->elems[which] = of->outer * tokens * of->inner * row;
}

static void problem_make(problem *p, const hd_device_attention *shape, int has_lengths)
{
    memset(p, 0, sizeof *p);
    p->back.of = *shape;
    hd_device_attention *of = &p->back.of;
    const int is_turned = below(3) == 0;
    for (int i = 0; i < ARRAYS; i++) {
        const int of_keys = i == K || i == V || i == DK || i == DV;
        lay_out(p, i, of_keys ? of->nk : of->nq, of_keys ? of->kv_heads : of->heads, is_turned);
        p->host[i] = random_array(of->dtype, p->elems[i], i == Q ? 1.5f : 1);
        p->there[i] = tokens_of(p, i)->data = sim_array(p->host[i], of->dtype, p->elems[i], 0);
    }
    p->queries = of->outer * of->inner * of->heads * of->nq;
    of->stats = sim_array(NULL, HEDDLE_F32, 2 * p->queries, 0);
    p->back.delta = sim_array(NULL, HEDDLE_F32, p->queries, 0);
    const int64_t scratch = (int64_t)device->attention_back_bytes(of) / 4;
    p->back.part = scratch > 0 && below(4) > 0 ? sim_array(NULL, HEDDLE_F32, scratch, 0) : NULL;
    of->fibres_of_length = of->outer % 2 == 0 ? 2 : 1;
    for (int i = 0; i < 64; i++) {
        p->lengths[i] = (int32_t)(below(4) == 0 ? 0 : between(0, of->nk));
    }
    OK(cudaMalloc((void **)&p->lengths_there, sizeof p->lengths));
    OK(cudaMemcpy(p->lengths_there, p->lengths, sizeof p->lengths, cudaMemcpyHostToDevice));
    of->lengths = has_lengths ? p->lengths_there : NULL;
}

static void problem_end(problem *p)
{
    for (int i = 0; i < ARRAYS; i++) {
        OK(cudaFree(p->there[i]));
        free(p->host[i]);
    }
    OK(cudaFree(p->back.of.stats));
    OK(cudaFree(p->back.delta));
    OK(cudaFree(p->back.part));
    OK(cudaFree(p->lengths_there));
}

/* One head of one fibre in f64: results and, for each, the sum of its terms' sizes. */
typedef struct head {
    int64_t nq, nk, d;
    double *x[ARRAYS], *size[ARRAYS];
} head;

static int64_t at_of(problem *p, int which, int64_t outer, int64_t inner, int64_t of_head, int64_t token)
{
    const hd_device_tokens *x = tokens_of(p, which);
    return outer * x->outer + inner * x->inner + of_head * x->head + token * x->token;
}

static int64_t tokens_in(const head *h, int which)
{
    return which == K || which == V || which == DK || which == DV ? h->nk : h->nq;
}

static int is_seen(const problem *p, int64_t outer, int64_t query, int64_t key)
{
    const hd_device_attention *of = &p->back.of;
    const int64_t nk = of->lengths != NULL ? p->lengths[outer / of->fibres_of_length] : of->nk;
    return key < nk && (of->diagonal >= of->nk || key <= query + of->diagonal);
}

static double dots(const double *x, const double *y, int64_t d, double *size)
{
    double sum = 0;
    for (int64_t i = 0; i < d; i++) {
        sum += x[i] * y[i];
        *size += fabs(x[i] * y[i]);
    }
    return sum;
}

static void add(head *h, int which, int64_t token, double factor, double size, const double *x)
{
    for (int64_t i = 0; i < h->d; i++) {
        h->x[which][token * h->d + i] += factor * x[i];
        h->size[which][token * h->d + i] += size * fabs(x[i]);
    }
}

static void query_wanted(head *h, const problem *p, int64_t outer, int64_t query)
{
    const double *q = h->x[Q] + query * h->d, *d_o = h->x[D_O] + query * h->d, scale = (double)p->back.of.scale;
    double *score = calloc((size_t)h->nk + 1, sizeof *score), top = -INFINITY, sum = 0, unused = 0;
    for (int64_t k = 0; k < h->nk; k++) {
        score[k] = is_seen(p, outer, query, k) ? scale * dots(q, h->x[K] + k * h->d, h->d, &unused) : -INFINITY;
        top = fmax(top, score[k]);
    }
    for (int64_t k = 0; k < h->nk; k++) {
        score[k] = score[k] > -INFINITY ? exp(score[k] - top) : 0;
        sum += score[k];
    }
    for (int64_t k = 0; k < h->nk && sum > 0; k++) {
        score[k] /= sum;
        add(h, O, query, score[k], score[k], h->x[V] + k * h->d);
    }
    double delta_size = 0, delta = dots(h->x[O] + query * h->d, d_o, h->d, &delta_size);
    for (int64_t k = 0; k < h->nk; k++) {
        double size = delta_size;
        const double ds = scale * score[k] * (dots(d_o, h->x[V] + k * h->d, h->d, &size) - delta);
        add(h, DQ, query, ds, scale * score[k] * size, h->x[K] + k * h->d);
        add(h, DK, k, ds, scale * score[k] * size, q);
        add(h, DV, k, score[k], score[k], d_o);
    }
    free(score);
}

/* Of arrays that the query heads of a group share: the sums of the whole group are compared behind its last one. */
static void compare(head *h, problem *p, void *const *got, int64_t outer, int64_t inner, int64_t of_head, int which)
{
    static const char *const names[ARRAYS] = {"q", "k", "v", "o", "d_o", "dq", "dk", "dv"};
    const heddle_dtype dtype = p->back.of.dtype;
    const double u = dtype == HEDDLE_F32 ? 2e-6 : dtype == HEDDLE_BF16 ? 0x1p-8 : 0x1p-11;
    const int is_nothing = dtype == HEDDLE_F32 && h->nk == 1 && (which == DQ || which == DK); /* one weight is 1 */
    for (int64_t i = 0; i < tokens_in(h, which) * h->d; i++) {
        const int64_t at = at_of(p, which, outer, inner, of_head, i / h->d) + i % h->d;
        const double value = (double)value_at(got[which], dtype, at), wanted = h->x[which][i];
        if (!(fabs(value - wanted) <= (is_nothing ? 1e-12 : u * (1.1 * fabs(wanted) + 2 * h->size[which][i]) + 1e-7))) {
            fail_msg("%s of %s, nq %lld nk %lld d %lld: token %lld column %lld is %.9g, wanted %.9g, terms %.9g",
                     names[which], heddle_dtype_name(dtype), (long long)h->nq, (long long)h->nk, (long long)h->d,
                     (long long)(i / h->d), (long long)(i % h->d), value, wanted, h->size[which][i]);
        }
    }
}

static void take(head *h, problem *p, int which, int64_t outer, int64_t inner, int64_t of_head)
{
    for (int64_t i = 0; i < tokens_in(h, which) * h->d; i++) {
        const int64_t at = at_of(p, which, outer, inner, of_head, i / h->d) + i % h->d;
        h->x[which][i] = (double)value_at(p->host[which], p->back.of.dtype, at);
    }
}

static void clear(head *h, int which)
{
    memset(h->x[which], 0, (size_t)(tokens_in(h, which) * h->d) * sizeof(double));
    memset(h->size[which], 0, (size_t)(tokens_in(h, which) * h->d) * sizeof(double));
}

static void fibre_wanted(problem *p, head *h, void *const *got, int64_t outer, int64_t inner)
{
    const hd_device_attention *of = &p->back.of;
    const int64_t group = of->heads / of->kv_heads;
    for (int64_t n = 0; n < of->heads; n++) {
        take(h, p, Q, outer, inner, n);
        take(h, p, D_O, outer, inner, n);
        take(h, p, K, outer, inner, n / group);
        take(h, p, V, outer, inner, n / group);
        clear(h, O);
        clear(h, DQ);
        if (n % group == 0) {
            clear(h, DK);
            clear(h, DV);
        }
        for (int64_t query = 0; query < of->nq; query++) {
            query_wanted(h, p, outer, query);
        }
        compare(h, p, got, outer, inner, n, O);
        compare(h, p, got, outer, inner, n, DQ);
        if (n % group == group - 1) {
            compare(h, p, got, outer, inner, n / group, DK);
            compare(h, p, got, outer, inner, n / group, DV);
        }
    }
}

static void check(problem *p)
{
    const hd_device_attention *of = &p->back.of;
    void *got[ARRAYS];
    head h = {of->nq, of->nk, of->d, {NULL}, {NULL}};
    OK(device->attention(of, NULL));
    OK(device->attention_back(&p->back, NULL));
    for (int i = 0; i < ARRAYS; i++) {
        got[i] = from_sim(p->there[i], of->dtype, p->elems[i]);
        h.x[i] = calloc((size_t)(tokens_in(&h, i) * of->d) + 1, sizeof(double));
        h.size[i] = calloc((size_t)(tokens_in(&h, i) * of->d) + 1, sizeof(double));
    }
    for (int64_t fibre = 0; fibre < of->outer * of->inner; fibre++) {
        fibre_wanted(p, &h, got, fibre / of->inner, fibre % of->inner);
    }
    for (int i = 0; i < ARRAYS; i++) {
        free(got[i]);
        free(h.x[i]);
        free(h.size[i]);
    }
}

static hd_device_attention random_shape(heddle_dtype dtype, int64_t d)
{
    hd_device_attention of = {.dtype = dtype, .outer = between(1, 2), .inner = between(1, 2), .d = d};
    of.kv_heads = between(1, 2);
    of.heads = of.kv_heads * between(1, 2);
    of.nq = below(3) ? between(1, 40) : between(1, 130);
    of.nk = below(4) == 0 ? 1 : below(2) ? between(1, 40) : between(1, 190);
    of.scale = 1.0f / sqrtf((float)d);
    of.diagonal = below(2) ? of.nk : between(-3, of.nk - 1);
    return of;
}

HD_CASE(attention_is_that_of_loops)
{
    begin();
    for (int round = 0; round < hd_rounds(30); round++) {
        const heddle_dtype dtype = float_types[round % 3];
        const int64_t d = dtype == HEDDLE_F32 ? between(1, 128) : 8 * between(2, 16);
        hd_device_attention of = random_shape(dtype, d);
        of.nk = round % 9 == 0 ? 1 : of.nk; /* of f32 */
        if (round % 5 == 2) {               /* the last query alone sees the first key of a turn */
            of.nk = between(33, 190);
            of.diagonal = 33 - of.nq;
        }
        if (dtype != HEDDLE_F32 && round % 13 == 1) { /* gradients of keys in parts, which few keys or many decide */
            of.outer = of.heads = of.kv_heads = 1;
            of.nq = between(4097, 4300);
            of.nk = round > 30 && below(2) ? between(1025, 1040) : of.nk;
            of.d = 16;
        }
        problem p;
        problem_make(&p, &of, below(3) == 0);
        check(&p);
        problem_end(&p);
    }
    assert_int_equal(hd_sim_device_bytes(), 0);
}

static hd_device_attention shape_of(heddle_dtype dtype, int64_t heads, int64_t nq, int64_t nk)
{
    hd_device_attention of = {.dtype = dtype, .outer = 1, .inner = 1, .heads = heads, .d = 16, .scale = 0.25f};
    of.kv_heads = (heads + 1) / 2;
    of.nq = nq;
    of.nk = of.diagonal = nk;
    return of;
}

HD_CASE(keys_behind_the_length_are_not_read)
{
    begin();
    for (int round = 0; round < 6; round++) {
        const int length = round < 3 ? 137 : 29;
        hd_device_attention of = shape_of(float_types[round % 3], 1, 40 /* two warps */, 170);
        problem p;
        problem_make(&p, &of, 1);
        p.lengths[0] = length;
        OK(cudaMemcpy(p.lengths_there, p.lengths, sizeof p.lengths, cudaMemcpyHostToDevice));
        for (int which = K; which <= V; which++) {
            for (int64_t token = length; token < 170; token++) {
                value_set(p.host[which], of.dtype, at_of(&p, which, 0, 0, 0, token) + 3, NAN);
            }
            OK(cudaMemcpy(p.there[which], p.host[which], (size_t)p.elems[which] * type_bytes(of.dtype),
                          cudaMemcpyHostToDevice));
            for (int64_t token = length; token < 170; token++) { /* the loops take 0 times it, too */
                value_set(p.host[which], of.dtype, at_of(&p, which, 0, 0, 0, token) + 3, 0);
            }
        }
        check(&p);
        char *among = from_sim(p.there[O], of.dtype, p.elems[O]), *alone;
        p.back.of.lengths = NULL;
        p.back.of.nk = p.back.of.diagonal = length;
        OK(device->attention(&p.back.of, NULL));
        alone = from_sim(p.there[O], of.dtype, p.elems[O]);
        assert_memory_equal(alone, among, (size_t)p.elems[O] * type_bytes(of.dtype));
        free(alone);
        free(among);
        problem_end(&p);
    }
}

HD_CASE(what_does_not_fit_is_refused)
{
    hd_device_attention of = shape_of(HEDDLE_BF16, 4, 3, 3);
    problem p;
    begin();
    problem_make(&p, &of, 0);
    for (int i = 0; i < 7; i++) {
        hd_device_attention_back bad = p.back;
        bad.of.d = i == 0 ? 12 : i == 1 ? 136 : 16;
        bad.of.kv_heads = i == 2 ? 3 : 2;
        bad.of.scale = i == 3 ? -1.0f : 1;
        bad.of.q.token += i == 4;
        bad.of.v.data = (char *)bad.of.v.data + (i == 5 ? 2 : 0);
        bad.of.dtype = i == 6 ? HEDDLE_F64 : HEDDLE_BF16;
        assert_int_equal(device->attention(&bad.of, NULL), cudaErrorInvalidValue);
        assert_int_equal(device->attention_back(&bad, NULL), cudaErrorInvalidValue);
    }
    p.back.of.outer = 0;
    OK(device->attention(&p.back.of, NULL));
    p.back.of.outer = (int64_t)1 << 30;
    assert_int_equal(device->attention(&p.back.of, NULL), cudaErrorInvalidConfiguration);
    p.back.of.outer = 1;
    hd_sim_fail_at(1, cudaErrorLaunchFailure);
    assert_int_equal(device->attention(&p.back.of, NULL), cudaErrorLaunchFailure);
    problem_end(&p);
}
