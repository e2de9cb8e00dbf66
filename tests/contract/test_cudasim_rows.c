/* The row kernels of kernels/cuda, run by the emulator, against the CPU's reference; and a row's bits, whatever lies
 * beside it. */
#include "on_sim.h"

static const double F32_ERROR = 3e-6;

/* --- against the reference: a row is computed by it in f32 from what the type holds */

typedef struct problem {
    heddle_dtype dtype;
    int64_t rows, c, samples, sample_rows;
    int shift; /* of addresses */
    hd_device_rows of;
    void *x, *y;
    float *vector; /* [samples][2][c], wide apart */
    void *x_there, *y_there;
    float *vector_there;
    heddle_dtype y_dtype;
} problem;

static void problem_make(problem *p, int64_t c, heddle_dtype dtype)
{
    p->dtype = dtype;
    p->y_dtype = below(2) ? dtype : HEDDLE_F32;
    p->c = c;
    p->samples = between(1, 3);
    p->sample_rows = between(1, 9);
    p->rows = p->samples * p->sample_rows;
    p->shift = below(3) == 0 ? 1 : 0;
    const int64_t stride = 2 * c + (below(2) ? 4 : 1);
    p->of = (hd_device_rows){dtype, p->rows, c, p->samples > 1 ? p->sample_rows : 0, stride};
    p->x = random_array(dtype, p->rows * c, 2);
    p->y = random_array(p->y_dtype, p->rows * c, 1);
    p->vector = random_array(HEDDLE_F32, p->samples * stride, 1);
    p->x_there = sim_array(p->x, dtype, p->rows * c, p->shift);
    p->y_there = sim_array(p->y, p->y_dtype, p->rows * c, p->shift);
    p->vector_there = sim_array(p->vector, HEDDLE_F32, p->samples * stride, p->shift);
}

static void problem_end(problem *p)
{
    sim_free(p->x_there, p->dtype, p->shift);
    sim_free(p->y_there, p->y_dtype, p->shift);
    sim_free(p->vector_there, HEDDLE_F32, p->shift);
    free(p->x);
    free(p->y);
    free(p->vector);
}

static void check_norm(const problem *p, int has_vectors)
{
    float *x = widened(p->x, p->dtype, p->rows * p->c), *wanted = host_array(HEDDLE_F32, p->rows * p->c);
    for (int64_t s = 0; s < p->samples; s++) {
        const int64_t at = s * p->sample_rows * p->c;
        const float *vector = p->vector + s * p->of.sample_stride;
        cpu->norm_modulate(wanted + at, x + at, HEDDLE_F32, p->sample_rows, p->c, has_vectors ? vector : NULL,
                           has_vectors ? vector + p->c : NULL);
    }
    void *there = sim_array(NULL, p->dtype, p->rows * p->c, p->shift);
    OK(device->norm_modulate(&p->of, there, p->x_there, has_vectors ? p->vector_there : NULL,
                             has_vectors ? p->vector_there + p->c : NULL, NULL));
    void *got = from_sim(there, p->dtype, p->rows * p->c);
    check_values("norm_modulate", got, p->dtype, wanted, p->rows * p->c, F32_ERROR);
    sim_free(there, p->dtype, p->shift);
    free(got);
    free(x);
    free(wanted);
}

static void check_gate(const problem *p, int has_gate)
{
    float *x = widened(p->x, p->dtype, p->rows * p->c), *y = widened(p->y, p->y_dtype, p->rows * p->c);
    for (int64_t s = 0; s < p->samples; s++) {
        const int64_t at = s * p->sample_rows * p->c;
        cpu->gate_residual(x + at, HEDDLE_F32, y + at, p->sample_rows, p->c,
                           has_gate ? p->vector + s * p->of.sample_stride : NULL);
    }
    void *keep = below(2) ? sim_array(NULL, p->dtype, p->rows * p->c, p->shift) : NULL;
    OK(device->gate_residual(&p->of, p->x_there, p->y_there, p->y_dtype, has_gate ? p->vector_there : NULL, keep,
                             NULL));
    void *got = from_sim(p->x_there, p->dtype, p->rows * p->c);
    check_values("gate_residual", got, p->dtype, x, p->rows * p->c, F32_ERROR);
    free(got);
    if (keep != NULL) {
        void *kept = from_sim(keep, p->dtype, p->rows * p->c);
        assert_memory_equal(kept, p->x, (size_t)(p->rows * p->c) * type_bytes(p->dtype));
        free(kept);
        sim_free(keep, p->dtype, p->shift);
    }
    free(x);
    free(y);
}

HD_CASE(rows_are_the_reference)
{
    static const int64_t widths[] = {1, 7, 8, 72, 1152, 2304, 4608};
    begin();
    for (int round = 0; round < hd_rounds(3 * 7 * 2); round++) {
        problem p;
        problem_make(&p, widths[round % 7], float_types[round / 7 % 3]);
        check_norm(&p, below(4) > 0);
        check_gate(&p, below(4) > 0);
        problem_end(&p);
    }
    assert_int_equal(hd_sim_device_bytes(), 0);
}

HD_CASE(elements_are_the_reference)
{
    begin();
    for (int round = 0; round < hd_rounds(9 * 4); round++) {
        const heddle_dtype to = float_types[round % 3], from = float_types[round / 3 % 3];
        const int64_t n = round < 9 ? 8 * 300 : between(1, 3000);
        const int shift = below(2);
        void *src = random_array(from, n, 6);
        float *x = widened(src, from, n), *wanted = host_array(HEDDLE_F32, n);
        void *src_there = sim_array(src, from, n, shift), *dst_there = sim_array(NULL, to, n, shift);
        cpu->gelu(wanted, HEDDLE_F32, x, n);
        OK(device->gelu(dst_there, to, src_there, from, n, NULL));
        void *got = from_sim(dst_there, to, n);
        check_values("gelu", got, to, wanted, n, 1e-6);
        free(got);
        OK(device->convert(dst_there, to, src_there, from, n, NULL));
        got = from_sim(dst_there, to, n);
        for (int64_t i = 0; i < n; i++) {
            uint16_t one[2] = {0};
            value_set(one, to, 0, x[i]);
            assert_memory_equal((char *)got + (size_t)i * type_bytes(to), one, type_bytes(to));
        }
        free(got);
        sim_free(src_there, from, shift);
        sim_free(dst_there, to, shift);
        free(src);
        free(x);
        free(wanted);
    }
}

/* Two numbers of 8 bits (F16: 11) miss a number by less than half of the last place of the second one. */
HD_CASE(a_split_leaves_next_to_nothing)
{
    begin();
    for (int round = 0; round < hd_rounds(2 * 8); round++) {
        const heddle_dtype to = round % 2 ? HEDDLE_F16 : HEDDLE_BF16;
        const double left = to == HEDDLE_F16 ? 0x1p-23 : 0x1p-17, least = to == HEDDLE_F16 ? 0x1p-25 : 0;
        const int64_t n = round < 4 ? 8 * 300 : between(1, 3000);
        const int shift = below(2);
        float *src = random_array(HEDDLE_F32, n, 6);
        void *src_there = sim_array(src, HEDDLE_F32, n, shift), *dst_there = sim_array(NULL, to, 2 * n, shift);
        OK(device->split(dst_there, to, src_there, n, NULL));
        void *both = from_sim(dst_there, to, 2 * n);
        float *got = widened(both, to, 2 * n);
        for (int64_t i = 0; i < n; i++) {
            uint16_t one[2] = {0};
            value_set(one, to, 0, src[i]);
            assert_true(got[i] == value_at(one, to, 0));
            assert_true(fabs((double)got[i] + got[n + i] - src[i]) <= fmax(left * fabs(src[i]), least));
        }
        sim_free(src_there, HEDDLE_F32, shift);
        sim_free(dst_there, to, shift);
        free(src);
        free(both);
        free(got);
    }
}

typedef struct heads_problem {
    hd_device_heads of;
    int64_t elems, part; /* where the heads begin in each row */
    int shift;
    void *x, *x_there;
    float *weight, *cos_sin, *weight_there, *cos_sin_there;
} heads_problem;

static void heads_make(heads_problem *p, int64_t d, heddle_dtype dtype)
{
    p->of = (hd_device_heads){.dtype = dtype, .rows = between(1, 30), .heads = between(1, 5), .d = d};
    p->of.row_stride = 3 * p->of.heads * d + (below(4) == 0 ? 1 : 0);
    p->part = below(2) * p->of.heads * d;
    p->of.inner = between(1, 4);
    p->of.extent = between(1, 9);
    p->elems = p->of.rows * p->of.row_stride;
    p->shift = below(4) == 0 ? 1 : 0;
    p->x = random_array(dtype, p->elems, 2);
    p->weight = random_array(HEDDLE_F32, d, 1);
    p->cos_sin = random_array(HEDDLE_F32, p->of.extent * d, 1);
    p->x_there = sim_array(p->x, dtype, p->elems, p->shift);
    p->weight_there = sim_array(p->weight, HEDDLE_F32, d, 0);
    p->cos_sin_there = sim_array(p->cos_sin, HEDDLE_F32, p->of.extent * d, 0);
    p->of.weight = below(3) > 0 ? p->weight_there : NULL;
    p->of.cos_sin = below(3) > 0 ? p->cos_sin_there : NULL;
}

static void heads_end(heads_problem *p)
{
    sim_free(p->x_there, p->of.dtype, p->shift);
    sim_free(p->weight_there, HEDDLE_F32, 0);
    sim_free(p->cos_sin_there, HEDDLE_F32, 0);
    free(p->x);
    free(p->weight);
    free(p->cos_sin);
}

/* Into rows of another width; what lies beside the heads there stays as it is. */
static void rotate_apart(const heads_problem *p, const float *wanted)
{
    hd_device_heads of = p->of;
    const int64_t n = of.heads * of.d, shift = below(4) == 0 ? 1 : 0;
    of.to_stride = n + 8 * below(3) + (below(4) == 0 ? 1 : 0);
    const int64_t elems = of.rows * of.to_stride;
    void *before = random_array(of.dtype, elems, 1), *there = sim_array(before, of.dtype, elems, (int)shift);
    float *apart = widened(before, of.dtype, elems);
    for (int64_t r = 0; r < of.rows; r++) {
        memcpy(apart + r * of.to_stride, wanted + r * of.row_stride + p->part, (size_t)n * sizeof *apart);
    }
    OK(device->norm_rotate(&of, there, (char *)p->x_there + (size_t)p->part * type_bytes(of.dtype), NULL));
    void *got = from_sim(there, of.dtype, elems);
    check_values("norm_rotate", got, of.dtype, apart, elems, F32_ERROR);
    sim_free(there, of.dtype, (int)shift);
    free(before);
    free(apart);
    free(got);
}

HD_CASE(heads_are_the_reference)
{
    begin();
    for (int round = 0; round < hd_rounds(60); round++) {
        heads_problem p;
        heads_make(&p, round < 3 ? 128 : round % 2 ? 2 * between(1, 64) : 8 * between(1, 16), float_types[round % 3]);
        float *wanted = widened(p.x, p.of.dtype, p.elems);
        for (int64_t r = 0; r < p.of.rows; r++) {
            const float *turn = p.cos_sin + r / p.of.inner % p.of.extent * p.of.d;
            cpu->norm_rotate(wanted + r * p.of.row_stride + p.part, HEDDLE_F32, p.of.heads, p.of.d,
                             p.of.weight != NULL ? p.weight : NULL, p.of.cos_sin != NULL ? turn : NULL);
        }
        rotate_apart(&p, wanted);
        void *at = (char *)p.x_there + (size_t)p.part * type_bytes(p.of.dtype);
        OK(device->norm_rotate(&p.of, at, at, NULL));
        void *got = from_sim(p.x_there, p.of.dtype, p.elems);
        check_values("norm_rotate", got, p.of.dtype, wanted, p.elems, F32_ERROR);
        free(got);
        free(wanted);
        heads_end(&p);
    }
    assert_int_equal(hd_sim_device_bytes(), 0);
}

/* --- bits: some rows alone, and the same rows among others */

enum { KINDS = 4, D = 24, MOST = 40 };

/* rows of c from src; the result in place of it */
static void launch(int kind, heddle_dtype dtype, int64_t rows, int64_t c, void *x, const float *vector)
{
    const hd_device_rows of = {dtype, rows, c, 0, 0};
    const hd_device_heads heads = {dtype, rows, c / D, D, c, vector, vector + D, 1, 1};
    switch (kind) {
    case 0:
        OK(device->norm_modulate(&of, x, x, vector, vector + c, NULL));
        break;
    case 1:
        OK(device->gate_residual(&of, x, x, dtype, vector, NULL, NULL));
        break;
    case 2:
        OK(device->gelu(x, dtype, x, dtype, rows * c, NULL));
        break;
    default:
        OK(device->norm_rotate(&heads, x, x, NULL));
    }
}

static void *result(int kind, heddle_dtype dtype, int64_t rows, int64_t c, const void *x, const float *vector,
                    int shift)
{
    void *there = sim_array(x, dtype, rows * c, shift);
    float *vector_there = sim_array(vector, HEDDLE_F32, 2 * c + D, below(2));
    launch(kind, dtype, rows, c, there, vector_there);
    void *out = from_sim(there, dtype, rows * c);
    return out; /* the case's memory goes with it */
}

HD_CASE(bits_do_not_depend_on_what_is_beside)
{
    begin();
    for (int round = 0; round < hd_rounds(KINDS * 3); round++) {
        const int kind = round % KINDS;
        const heddle_dtype dtype = float_types[round / KINDS % 3];
        const int64_t c = D * between(1, 24), row_bytes = c * (int64_t)type_bytes(dtype);
        float *vector = random_array(HEDDLE_F32, 2 * c + D, 1);
        char *x = random_array(dtype, MOST * c, 2), *alone = result(kind, dtype, MOST, c, x, vector, 0);
        for (int place = 0; place < MOST; place++) {
            const int64_t rows = between(1, 70);
            char *mixed = random_array(dtype, rows * c, 2);
            const int64_t which = below(MOST), n = between(1, rows < MOST - which ? rows : MOST - which);
            const int64_t at = between(0, rows - n);
            memcpy(mixed + at * row_bytes, x + which * row_bytes, (size_t)(n * row_bytes));
            hd_sim_set_reversed(place % 2);
            char *got = result(kind, dtype, rows, c, mixed, vector, below(3) == 0 ? 1 : 0);
            assert_memory_equal(got + at * row_bytes, alone + which * row_bytes, (size_t)(n * row_bytes));
            free(got);
            free(mixed);
        }
        free(x);
        free(alone);
        free(vector);
    }
}

HD_CASE(a_nan_stays_in_its_row)
{
    begin();
    for (int kind = 0; kind < KINDS; kind++) {
        const int64_t c = 10 * D, rows = 9;
        float *x = random_array(HEDDLE_F32, rows * c, 1), *vector = random_array(HEDDLE_F32, 2 * c + D, 1);
        x[4 * c + 3] = NAN;
        x[6 * c] = INFINITY;
        float *got = result(kind, HEDDLE_F32, rows, c, x, vector, 0);
        for (int64_t r = 0; r < rows; r++) {
            int nans = 0;
            for (int64_t i = 0; i < c; i++) {
                nans += isnan(got[r * c + i]) || isinf(got[r * c + i]);
            }
            assert_int_equal(nans > 0, r == 4 || r == 6);
        }
        free(got);
        free(x);
        free(vector);
    }
}

HD_CASE(what_does_not_fit_is_refused)
{
    float x[64] = {0}, *there = sim_array(x, HEDDLE_F32, 64, 0);
    hd_device_rows of = {HEDDLE_F64, 1, 8, 0, 0};
    begin();
    assert_int_equal(device->norm_modulate(&of, there, there, NULL, NULL, NULL), cudaErrorInvalidValue);
    of = (hd_device_rows){HEDDLE_F32, (int64_t)1 << 31, 8, 0, 0};
    assert_int_equal(device->norm_modulate(&of, there, there, NULL, NULL, NULL), cudaErrorInvalidValue);
    of = (hd_device_rows){HEDDLE_F32, 0, 8, 0, 0};
    OK(device->norm_modulate(&of, there, there, NULL, NULL, NULL));
    of.rows = 1;
    assert_int_equal(device->gate_residual(&of, there, there, HEDDLE_BF16, NULL, NULL, NULL), cudaErrorInvalidValue);
    assert_int_equal(device->gelu(there, HEDDLE_I32, there, HEDDLE_F32, 8, NULL), cudaErrorInvalidValue);
    OK(device->convert(there, HEDDLE_F32, there, HEDDLE_F32, 0, NULL));
    assert_int_equal(device->split(there, HEDDLE_F32, there, 8, NULL), cudaErrorInvalidValue);
    OK(device->split(there, HEDDLE_BF16, there, 0, NULL));
    hd_device_heads heads = {HEDDLE_F32, 1, 1, 7, 8, NULL, NULL, 1, 1};
    assert_int_equal(device->norm_rotate(&heads, there, there, NULL), cudaErrorInvalidValue);
    heads.d = 130;
    assert_int_equal(device->norm_rotate(&heads, there, there, NULL), cudaErrorInvalidValue);
    hd_sim_fail_at(1, cudaErrorLaunchFailure);
    assert_int_equal(device->norm_modulate(&of, there, there, NULL, NULL, NULL), cudaErrorLaunchFailure);
}
