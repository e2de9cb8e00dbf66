/* The kernels of training (kernels/cuda/training.cu), run by the emulator: the bits of the CPU's at every length and
 * alignment, AdamW by its formula in wider numbers besides. */
#include "on_sim.h"
#include "runtime/parallel/parallel_internal.h"

/* Mostly numbers of a usual size; else any bits, NaN and infinity among them. */
static float *numbers(int64_t n, int has_any)
{
    float *x = random_array(HEDDLE_F32, n, 1);
    for (int64_t i = 0; i < n && has_any; i++) {
        if (below(4) == 0) {
            x[i] = hd_f32_from_bits((uint32_t)drawn_bits());
        }
    }
    return x;
}

static void check_bits(const char *what, const float *got, const float *wanted, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (hd_f32_bits(got[i]) != hd_f32_bits(wanted[i]) && !(isnan(got[i]) && isnan(wanted[i]))) {
            fail_msg("%s: element %lld of %lld is %a, not %a", what, (long long)i, (long long)n, (double)got[i],
                     (double)wanted[i]);
        }
    }
}

enum { KINDS = 4, GUARD = 4 }; /* param, gradient, mean, square; elements in front and behind that nobody touches */

typedef struct trained {
    int64_t n;
    float *here[KINDS];
    void *there[KINDS];
    int shift[KINDS];
} trained;

/* Where shift is the same for all the kernel takes 16 bytes at a time. */
static void trained_make(trained *t, int64_t n, int has_any)
{
    const int shift = below(4), is_whole = below(3) > 0;
    t->n = n;
    for (int k = 0; k < KINDS; k++) {
        t->here[k] = numbers(n + 2 * GUARD, has_any && k < 2);
        for (int64_t i = 0; i < n + 2 * GUARD && k == 3; i++) {
            t->here[k][i] = fabsf(t->here[k][i]);
        }
        t->shift[k] = is_whole ? shift : below(4);
        t->there[k] = sim_array(t->here[k], HEDDLE_F32, n + 2 * GUARD, t->shift[k]);
    }
}

static void trained_check(const trained *t)
{
    for (int k = 0; k < KINDS; k++) {
        float *got = from_sim(t->there[k], HEDDLE_F32, t->n + 2 * GUARD);
        check_bits("AdamW", got, t->here[k], t->n + 2 * GUARD);
        free(got);
    }
}

static void trained_end(trained *t)
{
    for (int k = 0; k < KINDS; k++) {
        sim_free(t->there[k], HEDDLE_F32, t->shift[k]);
        free(t->here[k]);
    }
}

static float *there(const trained *t, int kind)
{
    return (float *)t->there[kind] + GUARD;
}

static hd_adamw_step step_of(int t, double clip, double decay)
{
    return (hd_adamw_step){.beta1 = 0.9,
                           .beta2 = 0.999,
                           .epsilon = 1e-8,
                           .clip = clip,
                           .rate = 3e-3,
                           .keep = 1 - 3e-3 * decay,
                           .mean_scale = 1 / (1 - pow(0.9, t)),
                           .root_scale = 1 / sqrt(1 - pow(0.999, t))};
}

HD_CASE(adamw_has_the_bits_of_the_cpu)
{
    static const int64_t lengths[] = {0, 1, 3, 4, 5, 511, 512, 513, 1027};
    begin();
    for (int round = 0; round < hd_rounds(4 * 9); round++) {
        const double clip = round % 2 == 0 ? 1 : 0.37;
        void *clip_there = NULL;
        trained t;
        trained_make(&t, lengths[round % 9], round % 5 == 0);
        OK(cudaMalloc(&clip_there, sizeof clip));
        OK(cudaMemcpy(clip_there, &clip, sizeof clip, cudaMemcpyHostToDevice));
        for (int i = 1; i <= 3; i++) {
            hd_adamw_step s = step_of(i, clip, round % 3 == 0 ? 0 : 0.1);
            cpu->adamw(&s, t.here[0] + GUARD, t.here[1] + GUARD, t.here[2] + GUARD, t.here[3] + GUARD, t.n);
            s.clip = i == 2 ? 77 : clip; /* the one on the device counts */
            OK(device->adamw(&s, i == 2 ? clip_there : NULL, there(&t, 0), there(&t, 1), there(&t, 2), there(&t, 3),
                             t.n, NULL));
        }
        trained_check(&t);
        OK(cudaFree(clip_there));
        trained_end(&t);
    }
    assert_int_equal(hd_sim_device_bytes(), 0);
}

/* From nothing, by the formula of docs/training.md: a rounding of each result away from wider numbers. */
HD_CASE(adamw_is_its_formula)
{
    enum { N = 300, STEPS = 5 };
    long double param[N], mean[N] = {0}, square[N] = {0};
    trained t;
    begin();
    trained_make(&t, N, 0);
    for (int k = 2; k < KINDS; k++) {
        memset(t.here[k], 0, N * sizeof(float));
        OK(cudaMemcpy(there(&t, k), t.here[k], N * sizeof(float), cudaMemcpyHostToDevice));
    }
    for (int i = 0; i < N; i++) {
        param[i] = t.here[0][GUARD + i];
    }
    for (int turn = 1; turn <= STEPS; turn++) {
        const hd_adamw_step s = step_of(turn, 0.5, 0.1);
        OK(device->adamw(&s, NULL, there(&t, 0), there(&t, 1), there(&t, 2), there(&t, 3), N, NULL));
        for (int i = 0; i < N; i++) {
            const long double g = 0.5L * t.here[1][GUARD + i];
            mean[i] = 0.9L * mean[i] + 0.1L * g;
            square[i] = 0.999L * square[i] + 0.001L * g * g;
            param[i] = param[i] * (1 - 3e-3L * 0.1L) - 3e-3L * (mean[i] / (1 - powl(0.9L, turn))) /
                                                           (sqrtl(square[i] / (1 - powl(0.999L, turn))) + 1e-8L);
        }
    }
    float *got = from_sim(there(&t, 0), HEDDLE_F32, N);
    for (int i = 0; i < N; i++) {
        assert_true(fabsl((long double)got[i] - param[i]) < 4e-7L * (1 + fabsl(param[i])));
    }
    free(got);
    trained_end(&t);
}

HD_CASE(averages_and_zeros)
{
    begin();
    for (int round = 0; round < hd_rounds(40); round++) {
        const int64_t n = between(0, 1500);
        const int shift = below(4), dst_shift = below(2) ? shift : below(4);
        const float divisor = (float)between(2, 48);
        float *src = numbers(n + GUARD, 1), *wanted = numbers(n + GUARD, 0);
        void *src_there = sim_array(src, HEDDLE_F32, n + GUARD, shift);
        void *dst_there = sim_array(wanted, HEDDLE_F32, n + GUARD, dst_shift);
        cpu->divide(wanted, src, divisor, n);
        OK(device->divide(dst_there, src_there, divisor, n, NULL));
        float *got = from_sim(dst_there, HEDDLE_F32, n + GUARD);
        check_bits("divide", got, wanted, n + GUARD);
        free(got);
        OK(device->zero(dst_there, n, NULL));
        memset(wanted, 0, (size_t)n * sizeof *wanted);
        got = from_sim(dst_there, HEDDLE_F32, n + GUARD);
        check_bits("zero", got, wanted, n + GUARD);
        free(got);
        sim_free(src_there, HEDDLE_F32, shift);
        sim_free(dst_there, HEDDLE_F32, dst_shift);
        free(src);
        free(wanted);
    }
}

/* --- norms */

typedef struct counted {
    hd_squares here;
    void *there, *scratch;
} counted;

static void counted_make(counted *c)
{
    memset(&c->here, 0, sizeof c->here);
    OK(cudaMalloc(&c->there, sizeof(hd_squares)));
    OK(cudaMalloc(&c->scratch, device->add_squares_bytes()));
    OK(cudaMemset(c->there, 0x5a, sizeof(hd_squares))); /* the first one does not add to it */
}

static void counted_add(counted *c, const float *values, int64_t n, int shift, int adds)
{
    void *there = sim_array(values, HEDDLE_F32, n, shift);
    cpu->add_squares(&c->here, values, n);
    OK(device->add_squares(c->there, there, n, adds, c->scratch, NULL));
    sim_free(there, HEDDLE_F32, shift);
}

static void counted_check(const counted *c)
{
    hd_squares got;
    double clip = 0, *clip_there = NULL;
    OK(cudaMemcpy(&got, c->there, sizeof got, cudaMemcpyDeviceToHost));
    for (int d = 0; d < HD_SQUARES_LANES; d++) {
        assert_int_equal(got.lane[d], c->here.lane[d]);
    }
    const double norm = hd_squares_root(&got);
    OK(cudaMalloc((void **)&clip_there, sizeof clip));
    const double some = isfinite(norm) ? norm : 3, limits[] = {1, some * 0.7, some * 1.2, INFINITY};
    for (int i = 0; i < 4; i++) {
        const double most = limits[i];
        OK(device->clip(clip_there, c->there, most, NULL));
        OK(cudaMemcpy(&clip, clip_there, sizeof clip, cudaMemcpyDeviceToHost));
        assert_true(clip == (norm > most ? most / norm : 1)); /* as heddle_adamw_step_clipped has it */
    }
    OK(cudaFree(clip_there));
}

static void counted_end(counted *c)
{
    OK(cudaFree(c->there));
    OK(cudaFree(c->scratch));
}

HD_CASE(squares_are_summed_without_rounding)
{
    static const int64_t lengths[] = {0, 1, 5, 512, 2048, 2049, 70001};
    begin();
    for (int round = 0; round < hd_rounds(3 * 7); round++) {
        counted c;
        counted_make(&c);
        for (int i = 0; i < 3; i++) { /* NaN and infinity in one round of three */
            const int64_t n = lengths[(round + i) % 7];
            float *values = numbers(n, round % 3 == 2 && n < 2000);
            for (int64_t k = 0; k < n; k += 3) { /* every exponent, digits that carry */
                values[k] = ldexpf(values[k], (int)between(-140, 126));
            }
            counted_add(&c, values, n, below(4), i > 0);
            free(values);
        }
        counted_check(&c);
        counted_end(&c);
    }
    assert_int_equal(hd_sim_device_bytes(), 0);
}

HD_CASE(norms_that_are_no_numbers)
{
    static const float odd[] = {INFINITY, NAN};
    begin();
    for (int i = 0; i < 2; i++) {
        counted c;
        float values[7] = {1, -2, 3};
        counted_make(&c);
        counted_add(&c, values, 7, 0, 0);
        counted_check(&c);
        values[5] = odd[i];
        counted_add(&c, values, 7, 1, 1);
        counted_check(&c);
        counted_end(&c);
    }
}

/* The largest float everywhere: digits of all threads and blocks carry. */
HD_CASE(the_largest_numbers_carry)
{
    const int64_t n = 300000;
    float *values = host_array(HEDDLE_F32, n);
    counted c;
    begin();
    counted_make(&c);
    for (int64_t i = 0; i < n; i++) {
        values[i] = 3.402823466e38F;
    }
    counted_add(&c, values, n, 0, 0);
    counted_add(&c, values, n, 0, 1);
    counted_check(&c);
    free(values);
    counted_end(&c);
}

HD_CASE(refused)
{
    begin();
    const hd_adamw_step s = step_of(1, 1, 0);
    assert_int_equal(device->adamw(&s, NULL, NULL, NULL, NULL, NULL, -1, NULL), cudaErrorInvalidValue);
    assert_int_equal(device->divide(NULL, NULL, 2, -1, NULL), cudaErrorInvalidValue);
    assert_int_equal(device->zero(NULL, -1, NULL), cudaErrorInvalidValue);
    assert_int_equal(device->add_squares(NULL, NULL, -1, 0, NULL, NULL), cudaErrorInvalidValue);
}
