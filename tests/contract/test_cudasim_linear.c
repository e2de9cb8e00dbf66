/* Walks of linear attention of kernels/cuda, run by the emulator, against the recurrence in f64: strides in place,
 * fibres of two dims, both directions, states that are handed on and turned, large ones of f16; and a fibre's bits
 * among others, whoever runs when. */
#include "on_sim.h"

enum { Q, K, V, O, ARRAYS };

typedef struct problem {
    hd_device_linear of;
    void *host[ARRAYS];
    int64_t elems[ARRAYS], states;
    float log2_decay[4], *in; /* in: of the host */
} problem;

static hd_device_tokens *tokens_of(problem *p, int which)
{
    hd_device_tokens *const all[ARRAYS] = {&p->of.q, &p->of.k, &p->of.v, &p->of.o};
    return all[which];
}

/* [outer][n][inner][heads][width] */
static void problem_make(problem *p, const hd_device_linear *shape, float scale, float q_scale)
{
    memset(p, 0, sizeof *p);
    p->of = *shape;
    hd_device_linear *of = &p->of;
    for (int i = 0; i < ARRAYS; i++) {
        const int64_t width = i == V || i == O ? of->dv : of->dk, row = of->heads * width;
        p->elems[i] = of->outer * of->n * of->inner * row;
        p->host[i] = random_array(of->dtype, p->elems[i], i == Q ? q_scale : scale);
        *tokens_of(p, i) = (hd_device_tokens){sim_array(p->host[i], of->dtype, p->elems[i], 0), of->n * of->inner * row,
                                              row, of->inner * row, width};
    }
    for (int64_t h = 0; h < of->heads; h++) {
        p->log2_decay[h] = h % 3 == 0 ? 0 : h % 3 == 1 ? -0.01f : -1.5f;
    }
    p->states = of->outer * of->inner * of->heads * of->dk * of->dv;
    p->in = random_array(HEDDLE_F32, p->states, scale);
    of->log2_decay = sim_array(p->log2_decay, HEDDLE_F32, of->heads, 0);
    of->states = sim_array(p->in, HEDDLE_F32, p->states, 0);
    of->end = sim_array(NULL, HEDDLE_F32, p->states, 0);
    of->segment_rows = (of->n + 63) / 64 * 64 + 64;
}

static void problem_end(problem *p)
{
    for (int i = 0; i < ARRAYS; i++) {
        OK(cudaFree(tokens_of(p, i)->data));
        free(p->host[i]);
    }
    OK(cudaFree((void *)(uintptr_t)p->of.log2_decay));
    OK(cudaFree(p->of.states));
    OK(cudaFree(p->of.end));
    free(p->in);
}

static double given(problem *p, int which, const int64_t *at, int64_t row, int64_t c)
{
    const hd_device_tokens *x = tokens_of(p, which);
    return (double)value_at(p->host[which], p->of.dtype,
                            at[0] * x->outer + at[1] * x->inner + row * x->token + at[2] * x->head + c);
}

static double rounding_of(heddle_dtype dtype)
{
    return dtype == HEDDLE_F32 ? 2e-6 : dtype == HEDDLE_BF16 ? 0x1p-7 : 0x1p-10;
}

/* Column c of v of one head of one fibre: state and results, and the sizes of their terms. */
static void check_column(problem *p, const void *o, const float *end, const int64_t *at, int64_t c)
{
    const hd_device_linear *of = &p->of;
    const double g = exp2((double)p->log2_decay[at[2]]), u = rounding_of(of->dtype);
    const int64_t first = ((at[0] * of->inner + at[1]) * of->heads + at[2]) * of->dk * of->dv;
    double state[128], size[128];
    for (int64_t k = 0; k < of->dk; k++) {
        state[k] = (double)p->in[first + (of->is_turned ? c * of->dk + k : k * of->dv + c)];
        size[k] = fabs(state[k]);
    }
    for (int64_t i = 0; i < of->n; i++) {
        const int64_t row = of->descends ? of->n - 1 - i : i;
        double wanted = 0, terms = 0;
        for (int64_t k = 0; k < of->dk; k++) {
            const double own = given(p, K, at, row, k) * given(p, V, at, row, c), q = given(p, Q, at, row, k);
            const double seen = g * state[k] + (of->skips_own ? 0 : own);
            state[k] = g * state[k] + own;
            size[k] = g * size[k] + fabs(own);
            wanted += q * seen;
            terms += fabs(q) * size[k];
        }
        const hd_device_tokens *x = &of->o;
        const int64_t place = at[0] * x->outer + at[1] * x->inner + row * x->token + at[2] * x->head + c;
        const double got = (double)value_at(o, of->dtype, place);
        if (!(fabs(got - wanted) <= u * (fabs(wanted) + 2 * terms) + 1e-7)) {
            fail_msg("%s, n %lld dk %lld dv %lld: row %lld column %lld is %.9g, wanted %.9g, terms %.9g",
                     heddle_dtype_name(of->dtype), (long long)of->n, (long long)of->dk, (long long)of->dv,
                     (long long)row, (long long)c, got, wanted, terms);
        }
    }
    for (int64_t k = 0; k < of->dk; k++) {
        assert_true(fabs((double)end[first + k * of->dv + c] - state[k]) <= u * 2 * size[k] + 1e-7);
    }
}

static void check(problem *p)
{
    const hd_device_linear *of = &p->of;
    OK(device->linear(of, NULL));
    void *o = from_sim(of->o.data, of->dtype, p->elems[O]);
    float *end = from_sim(of->end, HEDDLE_F32, p->states);
    for (int64_t i = 0; i < of->outer * of->inner * of->heads; i++) {
        const int64_t at[3] = {i / of->heads / of->inner, i / of->heads % of->inner, i % of->heads};
        for (int64_t c = 0; c < of->dv; c += between(1, 5)) {
            check_column(p, o, end, at, c);
        }
    }
    free(o);
    free(end);
}

HD_CASE(walks_are_the_recurrence)
{
    begin();
    for (int round = 0; round < hd_rounds(18); round++) {
        const heddle_dtype dtype = float_types[round % 3];
        const int64_t step = dtype == HEDDLE_F32 ? 1 : 8, most = round % 4 == 0 ? 128 : 40;
        const hd_device_linear of = {.dtype = dtype,
                                     .outer = between(1, 2),
                                     .inner = between(1, 2),
                                     .heads = between(1, 2),
                                     .n = between(1, 150),
                                     .dk = between(1, most / step) * step,
                                     .dv = between(1, most / step) * step,
                                     .descends = (int)below(2),
                                     .skips_own = below(3) == 0,
                                     .is_turned = (int)below(2)};
        problem p;
        problem_make(&p, &of, 1, 1);
        check(&p);
        problem_end(&p);
    }
    assert_int_equal(hd_sim_device_bytes(), 0);
}

/* Sums of k v beyond f16's 65504, whose results are not. */
HD_CASE(states_may_be_larger_than_the_type)
{
    begin();
    const hd_device_linear of = {.dtype = HEDDLE_F16, .outer = 1, .inner = 1, .heads = 2, .n = 200, .dk = 16, .dv = 8};
    problem p;
    problem_make(&p, &of, 1, 1e-3f);
    for (int which = K; which <= V; which++) {
        for (int64_t i = 0; i < p.elems[which]; i++) {
            value_set(p.host[which], HEDDLE_F16, i, 32 + value_at(p.host[which], HEDDLE_F16, i));
        }
        OK(cudaMemcpy(tokens_of(&p, which)->data, p.host[which], (size_t)p.elems[which] * 2, cudaMemcpyHostToDevice));
    }
    check(&p);
    problem_end(&p);
}

HD_CASE(bits_do_not_depend_on_what_is_beside)
{
    begin();
    for (int type = 0; type < 3; type++) {
        hd_device_linear of = {
            .dtype = float_types[type], .outer = 5, .inner = 1, .heads = 2, .n = 90, .dk = 24, .dv = 72};
        problem p;
        problem_make(&p, &of, 1, 1);
        OK(device->linear(&p.of, NULL));
        const int64_t fibre = p.elems[O] / of.outer, each = p.states / of.outer;
        char *all = from_sim(p.of.o.data, of.dtype, p.elems[O]);
        for (int64_t i = 0; i < of.outer; i++) {
            hd_device_linear alone = p.of;
            const size_t elem = type_bytes(of.dtype), skipped = (size_t)i * elem;
            hd_device_tokens *const x[3] = {&alone.q, &alone.k, &alone.v};
            for (int k = 0; k < 3; k++) {
                x[k]->data = (char *)x[k]->data + skipped * (size_t)x[k]->outer;
            }
            alone.outer = 1;
            alone.states += i * each;
            hd_sim_set_reversed((int)(i % 2));
            OK(device->linear(&alone, NULL)); /* where the first fibre's result was */
            char *got = from_sim(alone.o.data, of.dtype, fibre);
            assert_memory_equal(got, all + skipped * (size_t)fibre, (size_t)fibre * elem);
            free(got);
        }
        hd_sim_set_reversed(0);
        free(all);
        problem_end(&p);
    }
}

HD_CASE(what_does_not_fit_is_refused)
{
    begin();
    const hd_device_linear of = {.dtype = HEDDLE_BF16, .outer = 1, .inner = 1, .heads = 2, .n = 3, .dk = 16, .dv = 16};
    problem p;
    problem_make(&p, &of, 1, 1);
    for (int i = 0; i < 8; i++) {
        hd_device_linear bad = p.of;
        bad.dk = i == 0 ? 12 : i == 1 ? 136 : 16;
        bad.dv = i == 2 ? 0 : 16;
        bad.segment_rows = i == 3 ? 32 : 64;
        bad.q.token += i == 4;
        bad.v.data = (char *)bad.v.data + (i == 5 ? 2 : 0);
        bad.dtype = i == 6 ? HEDDLE_F64 : HEDDLE_BF16;
        if (i == 7) {
            bad.o.data = NULL;
            bad.states = NULL;
        }
        assert_int_equal(device->linear(&bad, NULL), cudaErrorInvalidValue);
    }
    p.of.outer = 0;
    OK(device->linear(&p.of, NULL));
    p.of.outer = (int64_t)1 << 30;
    assert_int_equal(device->linear(&p.of, NULL), cudaErrorInvalidConfiguration);
    p.of.outer = 1;
    hd_sim_fail_at(1, cudaErrorLaunchFailure);
    assert_int_equal(device->linear(&p.of, NULL), cudaErrorLaunchFailure);
    problem_end(&p);
}
