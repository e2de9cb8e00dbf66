/* The judge of linear attention by finite differences, and every kernel against it. */
#include "case.h"

#include "kernels/table.h"
#include "runtime/verify/linear_reference.h"
#include "runtime/verify/random.h"
#include <heddle/linear_attention.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 9, DK = 4, DV = 3 };

typedef struct arrays {
    double q[ROWS * DK], k[ROWS * DK], v[ROWS * DV], d_o[ROWS * DV];
    double o[ROWS * DV], dq[ROWS * DK], dk[ROWS * DK], dv[ROWS * DV];
} arrays;

/* The formula as it stands in the header. */
static double loss(const arrays *x, double decay, int bidirectional)
{
    double sum = 0;
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < (bidirectional ? ROWS : i + 1); j++) {
            double score = 0;
            for (int d = 0; d < DK; d++) {
                score += x->q[i * DK + d] * x->k[j * DK + d];
            }
            for (int d = 0; d < DV; d++) {
                sum += x->d_o[i * DV + d] * pow(decay, abs(i - j)) * score * x->v[j * DV + d];
            }
        }
    }
    return sum;
}

static void expect_slope(arrays *x, double *at, double gradient, double decay, int bidirectional)
{
    double kept = *at;
    *at = kept + 1e-3; /* the loss is linear in every element: no error from the step */
    double up = loss(x, decay, bidirectional);
    *at = kept - 1e-3;
    double down = loss(x, decay, bidirectional);
    *at = kept;
    assert_true(fabs((up - down) / 2e-3 - gradient) < 1e-9);
}

HD_CASE(judge_has_true_gradients)
{
    static const double decays[] = {1, 0.99, 0.5};
    random_source source = {3};
    for (int i = 0; i < 6; i++) {
        arrays x;
        double decay = decays[i % 3], last[DK * DV];
        int both = i / 3;
        for (size_t e = 0; e < sizeof x / sizeof(double); e++) {
            ((double *)&x)[e] = random_unit(&source);
        }
        linear_recurrence p = {.rows = ROWS,
                               .dk = DK,
                               .dv = DV,
                               .decay = decay,
                               .bidirectional = both,
                               .q = x.q,
                               .k = x.k,
                               .v = x.v,
                               .d_o = x.d_o,
                               .o = x.o,
                               .dq = x.dq,
                               .dk_out = x.dk,
                               .dv_out = x.dv,
                               .state = last};
        HD_OK(linear_reference(&p));
        double sum = 0;
        for (int e = 0; e < ROWS * DV; e++) {
            sum += x.o[e] * x.d_o[e];
            expect_slope(&x, &x.v[e], x.dv[e], decay, both);
        }
        assert_true(fabs(sum - loss(&x, decay, both)) < 1e-12 * ROWS * ROWS);
        for (int e = 0; e < ROWS * DK; e++) {
            expect_slope(&x, &x.q[e], x.dq[e], decay, both);
            expect_slope(&x, &x.k[e], x.dk[e], decay, both);
        }
    }
}

/* --- kernels ------------------------------------------------------------------------------------------------------ */

typedef struct sizes {
    int64_t rows, chunk, dk, dv;
    double decay;
    int bidirectional;
} sizes;

enum { Q, K, V, DO, O, DQ, DKEY, DVALUE, ARRAYS };

static int64_t width_of(const sizes *n, int which)
{
    return which == V || which == DO || which == O || which == DVALUE ? n->dv : n->dk;
}

static void store(void *to, int64_t i, const hd_linear_kernels *kernels, double value)
{
    if (kernels->real_bytes == 8) {
        ((double *)to)[i] = value;
    } else {
        ((float *)to)[i] = (float)value;
    }
}

static double load(const void *from, int64_t i, const hd_linear_kernels *kernels)
{
    return kernels->real_bytes == 8 ? ((const double *)from)[i] : (double)((const float *)from)[i];
}

static void view(hd_linear_chunk *c, void *const *memory, const sizes *n, const hd_linear_kernels *kernels, int64_t at)
{
    hd_linear_rows *rows[ARRAYS] = {&c->q, &c->k, &c->v, &c->d_o, &c->o, &c->dq, &c->dk, &c->dv};
    for (int w = 0; w < ARRAYS; w++) {
        int64_t d = width_of(n, w);
        *rows[w] = (hd_linear_rows){.data = (char *)memory[w] + at * d * (int64_t)kernels->real_bytes,
                                    .row = d,
                                    .column = 1,
                                    .dtype = kernels->real_bytes == 8 ? HEDDLE_F64 : HEDDLE_F32};
    }
    c->rows = n->rows - at < n->chunk ? n->rows - at : n->chunk;
    c->o_so_far = c->o;
    c->dk_so_far = c->dk;
    c->dv_so_far = c->dv;
}

/* Two walks with states in hand: forwards for what is left of a chunk, backwards for what is right of it. */
static void run_chunks(void *const *memory, const sizes *n, const hd_linear_kernels *kernels, int fused)
{
    hd_linear_dims dims = {n->dk, n->dv, n->chunk, n->bidirectional};
    int64_t elems = n->dk * kernels->padded(n->dv);
    size_t bytes = (size_t)elems * kernels->real_bytes;
    void *scratch = aligned_alloc(64, (kernels->scratch_bytes(&dims) + 127) / 64 * 64);
    char *state = aligned_alloc(64, (4 * bytes + 127) / 64 * 64);
    char *part[2] = {state + 2 * bytes, state + 3 * bytes};
    void *first = state, *second = state + bytes;
    hd_linear_chunk c;
    kernels->begin(scratch, &dims, n->decay);
    memset(state, 0, 4 * bytes);
    for (int64_t at = 0; at < n->rows; at += n->chunk) { /* states from the left: of k v, of q d_o */
        view(&c, memory, n, kernels, at);
        kernels->inner_back(scratch, &c, first, NULL);
        if (fused) {
            kernels->forward(scratch, &c, first);
            continue;
        }
        kernels->inner(scratch, &c);
        kernels->outer(scratch, &c, first, NULL);
        kernels->states(scratch, &c, 0, part[0], NULL);
        kernels->fold(first, pow(n->decay, (double)c.rows), first, part[0], elems);
        if (n->bidirectional) {
            kernels->outer_back(scratch, &c, second, NULL);
            kernels->states(scratch, &c, 1, part[1], NULL);
            kernels->fold(second, pow(n->decay, (double)c.rows), second, part[1], elems);
        }
    }
    memset(state, 0, 4 * bytes);
    for (int64_t at = (n->rows - 1) / n->chunk * n->chunk; at >= 0; at -= n->chunk) {
        view(&c, memory, n, kernels, at);
        kernels->outer_back(scratch, &c, NULL, second);
        kernels->states(scratch, &c, 1, NULL, part[1]);
        kernels->fold(second, pow(n->decay, (double)c.rows), second, part[1], elems);
        if (n->bidirectional) {
            kernels->outer(scratch, &c, NULL, first);
            kernels->states(scratch, &c, 0, NULL, part[0]);
            kernels->fold(first, pow(n->decay, (double)c.rows), first, part[0], elems);
        }
    }
    free(scratch);
    free(state);
}

/* FAR: q k^T above the diagonal is beyond f32 where every one below it is about 1; FAR_GRADIENTS: d_o v^T. */
enum { PLAIN, WITH_NAN, FAR, FAR_GRADIENTS, VALUES };

static void set(void *memory, double *wide, int64_t i, const hd_linear_kernels *kernels, double value)
{
    wide[i] = (double)(float)value;
    store(memory, i, kernels, wide[i]);
}

static void make_rare(const sizes *n, const hd_linear_kernels *kernels, void *const *memory, double *const *wide,
                      int values)
{
    if (values == WITH_NAN) {
        int64_t at = n->rows / 2;
        set(memory[K], wide[K], at * n->dk, kernels, NAN);
        set(memory[V], wide[V], (at + 2) * n->dv + n->dv - 1, kernels, NAN);
        set(memory[DO], wide[DO], (at - 3) * n->dv, kernels, NAN);
    } else if (values != PLAIN) {
        const int of_rows = values == FAR ? Q : DO, of_columns = values == FAR ? K : V;
        int64_t d = width_of(n, of_rows);
        for (int64_t i = 0; i < n->rows * d; i++) {
            double later = i / d < n->rows / 2 ? 0x1p-70 : 0x1p70;
            set(memory[of_rows], wide[of_rows], i, kernels, wide[of_rows][i] / later);
            set(memory[of_columns], wide[of_columns], i, kernels, wide[of_columns][i] * later);
        }
    }
}

static void compare(const sizes *n, const hd_linear_kernels *kernels, int fused, int values)
{
    void *memory[ARRAYS];
    double *wide[ARRAYS];
    random_source source = {17};
    for (int w = 0; w < ARRAYS; w++) {
        int64_t elems = n->rows * width_of(n, w);
        memory[w] = malloc((size_t)elems * kernels->real_bytes);
        wide[w] = malloc((size_t)elems * sizeof(double));
        for (int64_t i = 0; i < elems; i++) {
            wide[w][i] = (float)random_unit(&source);
            store(memory[w], i, kernels, wide[w][i]);
        }
    }
    make_rare(n, kernels, memory, wide, values);
    linear_recurrence p = {.rows = n->rows,
                           .dk = n->dk,
                           .dv = n->dv,
                           .decay = n->decay,
                           .bidirectional = n->bidirectional,
                           .q = wide[Q],
                           .k = wide[K],
                           .v = wide[V],
                           .d_o = wide[DO],
                           .o = wide[O],
                           .dq = wide[DQ],
                           .dk_out = wide[DKEY],
                           .dv_out = wide[DVALUE]};
    HD_OK(linear_reference(&p));
    run_chunks(memory, n, kernels, fused);
    for (int w = O; w < ARRAYS; w++) {
        double most = 0, error = 0;
        int64_t odd = 0;
        if (n->bidirectional && w == DQ) { /* run_chunks leaves out what the right side adds */
            continue;
        }
        for (int64_t i = 0; i < n->rows * width_of(n, w); i++) {
            double got = load(memory[w], i, kernels);
            odd += isnan(got) != isnan(wide[w][i]);
            most = fmax(most, isnan(wide[w][i]) ? 0 : fabs(wide[w][i]));
            error = fmax(error, isnan(got) || isnan(wide[w][i]) ? 0 : fabs(got - wide[w][i]));
        }
        if (odd > 0 || !(error <= (kernels->real_bytes == 8 ? 1e-12 : 1e-5) * most)) {
            fail_msg("%s rows %lld chunk %lld dk %lld dv %lld decay %g%s%s: array %d off by %g of %g, %lld NaN differ",
                     kernels->name, (long long)n->rows, (long long)n->chunk, (long long)n->dk, (long long)n->dv,
                     n->decay, n->bidirectional ? " bidirectional" : "", fused ? " fused" : "", w, error, most,
                     (long long)odd);
        }
    }
    for (int w = 0; w < ARRAYS; w++) {
        free(memory[w]);
        free(wide[w]);
    }
}

HD_CASE(kernels_agree_with_the_judge)
{
    static const char *const names[] = {"f64", "generic", "avx2", "avx512"};
    static const sizes all[] = {{37, 8, 5, 3, 0.9, 0},    {64, 64, 64, 64, 0.99, 0}, {100, 33, 16, 32, 1, 0},
                                {50, 50, 17, 33, 0.5, 0}, {45, 13, 48, 20, 0.95, 1}, {31, 1, 1, 1, 0.9, 0},
                                {75, 25, 70, 9, 0.99, 0}, {40, 16, 8, 40, 1, 1}};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        const hd_kernels *table = hd_kernels_named(k == 0 ? "generic" : names[k]);
        if (table == NULL) {
            hd_not_here(names[k], "this CPU has no %s", names[k]);
            continue;
        }
        const hd_linear_kernels *kernels = k == 0 ? &table->linear_f64 : &table->linear_f32;
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            for (int values = 0; values < (all[i].bidirectional ? FAR : VALUES); values++) {
                compare(&all[i], kernels, 0, values);
                if (!all[i].bidirectional) {
                    compare(&all[i], kernels, 1, values);
                }
            }
        }
    }
}

/* Into another place and into its own. */
HD_CASE(folds_leave_what_they_read)
{
    enum { ELEMS = 1003 };
    static const char *const names[] = {"generic", "avx2", "avx512"};
    float from[ELEMS], add[ELEMS], apart[ELEMS], in_place[ELEMS];
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        const hd_kernels *table = hd_kernels_named(names[k]);
        for (int i = 0; i < ELEMS; i++) {
            in_place[i] = from[i] = (float)(i + 1) / 7;
            add[i] = (float)(i % 13) - 6;
        }
        if (table == NULL) {
            hd_not_here(names[k], "this CPU has no %s", names[k]);
            continue;
        }
        table->linear_f32.fold(apart, 0.3, from, add, ELEMS);
        table->linear_f32.fold(in_place, 0.3, in_place, add, ELEMS);
        for (int i = 0; i < ELEMS; i++) {
            float product = 0.3F * from[i];
            assert_true(apart[i] == product + add[i] && in_place[i] == apart[i]);
            assert_true(from[i] == (float)(i + 1) / 7 && add[i] == (float)(i % 13) - 6);
        }
    }
}

HD_CASE(slopes_follow_the_rule)
{
    double s[12];
    HD_OK(heddle_linear_attention_slopes(s, 8));
    assert_true(fabs(s[0] - exp(-0.5)) < 1e-15 && fabs(s[7] - exp(-1.0 / 256)) < 1e-15);
    HD_OK(heddle_linear_attention_slopes(s, 12)); /* 8, then every other one of 16 */
    assert_true(fabs(s[7] - exp(-1.0 / 256)) < 1e-15 && fabs(s[8] - exp(-pow(2, -0.5))) < 1e-15);
    assert_true(fabs(s[11] - exp(-pow(2, -3.5))) < 1e-15);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_linear_attention_slopes(s, 0));
}
