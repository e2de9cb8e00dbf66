/* The gradients of the row kernels of kernels/cuda, run by the emulator, against the CPU's reference in f32; a row's
 * bits whatever lies beside it; sums over rows, the same bits in whichever order blocks run. */
#include "on_sim.h"

static const double ERROR = 5e-6;

/* Rows of samples, each with vectors of its own. */
typedef struct problem {
    heddle_dtype dtype, dy_dtype;
    int64_t c, samples, sample_rows, n;
    int shift;
    hd_device_rows of;
    void *src, *dy, *dx;
    float *scale, *dshift, *dscale; /* [samples][c]; the gradients begin with something */
} problem;

static void problem_make(problem *p, int64_t c, heddle_dtype dtype, int64_t most_rows)
{
    p->dtype = dtype;
    p->dy_dtype = below(2) ? dtype : HEDDLE_F32;
    p->c = c;
    p->samples = between(1, 3);
    p->sample_rows = between(1, most_rows);
    p->n = p->samples * p->sample_rows * c;
    p->shift = below(3) == 0 ? 1 : 0;
    p->of = (hd_device_rows){dtype, p->samples * p->sample_rows, c, p->sample_rows, c};
    p->src = random_array(dtype, p->n, 2);
    p->dy = random_array(p->dy_dtype, p->n, 1);
    p->dx = random_array(dtype, p->n, 1);
    p->scale = random_array(HEDDLE_F32, p->samples * c, 1);
    p->dshift = random_array(HEDDLE_F32, p->samples * c, 1);
    p->dscale = random_array(HEDDLE_F32, p->samples * c, 1);
}

static void problem_end(problem *p)
{
    free(p->src);
    free(p->dy);
    free(p->dx);
    free(p->scale);
    free(p->dshift);
    free(p->dscale);
}

/* What the reference makes of it, into dshift and dscale as well; f32. */
static float *norm_wanted(const problem *p, int has_scale)
{
    float *src = widened(p->src, p->dtype, p->n), *dy = widened(p->dy, p->dy_dtype, p->n);
    float *dx = widened(p->dx, p->dtype, p->n);
    for (int64_t s = 0; s < p->samples; s++) {
        const int64_t at = s * p->sample_rows * p->c;
        cpu->norm_back(dx + at, p->c, src + at, HEDDLE_F32, dy + at, p->sample_rows, p->c,
                       has_scale ? p->scale + s * p->c : NULL, p->dshift + s * p->c, p->dscale + s * p->c);
    }
    free(src);
    free(dy);
    return dx;
}

static void check_norm_back(problem *p)
{
    const int has_scale = below(3) > 0;
    const int64_t rows = p->samples * p->sample_rows, vectors = p->samples * p->c;
    void *src = sim_array(p->src, p->dtype, p->n, p->shift), *dx = sim_array(p->dx, p->dtype, p->n, p->shift);
    void *dy = sim_array(p->dy, p->dy_dtype, p->n, p->shift);
    float *scale = sim_array(p->scale, HEDDLE_F32, vectors, 0), *stats = sim_array(NULL, HEDDLE_F32, 2 * rows, 0);
    float *dshift = sim_array(p->dshift, HEDDLE_F32, vectors, 0),
          *dscale = sim_array(p->dscale, HEDDLE_F32, vectors, 0);
    const hd_device_columns columns = {p->dtype, p->dy_dtype, rows, p->c, p->c, p->sample_rows, dy, src, stats};
    void *scratch = sim_array(NULL, HEDDLE_F32, (int64_t)device->add_columns_bytes(&columns) / 4, 0);
    OK(device->norm_back(&p->of, dx, src, dy, p->dy_dtype, has_scale ? scale : NULL, stats, NULL));
    OK(device->add_columns(&columns, dshift, dscale, p->c, scratch, NULL));
    float *wanted = norm_wanted(p, has_scale);
    void *got = from_sim(dx, p->dtype, p->n), *got_shift = from_sim(dshift, HEDDLE_F32, vectors);
    void *got_scale = from_sim(dscale, HEDDLE_F32, vectors);
    check_values("norm_back", got, p->dtype, wanted, p->n, ERROR);
    check_values("dshift", got_shift, HEDDLE_F32, p->dshift, vectors, ERROR * sqrt((double)p->sample_rows));
    check_values("dscale", got_scale, HEDDLE_F32, p->dscale, vectors, ERROR * sqrt((double)p->sample_rows));
    void *const there[] = {scale, stats, dshift, dscale, scratch};
    for (int i = 0; i < 5; i++) {
        sim_free(there[i], HEDDLE_F32, 0);
    }
    sim_free(src, p->dtype, p->shift);
    sim_free(dx, p->dtype, p->shift);
    sim_free(dy, p->dy_dtype, p->shift);
    free(got);
    free(got_shift);
    free(got_scale);
    free(wanted);
}

HD_CASE(norms_are_the_reference)
{
    static const int64_t widths[] = {1, 7, 8, 72, 1152, 4608, 300};
    begin();
    for (int round = 0; round < hd_rounds(42); round++) {
        problem p;
        const int64_t c = widths[round % 7];
        problem_make(&p, c, float_types[round / 7 % 3], c < 100 ? 600 : 9);
        check_norm_back(&p);
        problem_end(&p);
    }
    assert_int_equal(hd_sim_device_bytes(), 0);
}

HD_CASE(gates_and_gelus_are_the_reference)
{
    begin();
    for (int round = 0; round < hd_rounds(24); round++) {
        problem p;
        problem_make(&p, between(1, 200), float_types[round % 3], 20);
        float *src = widened(p.src, p.dtype, p.n), *wanted = host_array(HEDDLE_F32, p.n);
        void *there = sim_array(p.src, p.dtype, p.n, p.shift), *dx = sim_array(p.dx, p.dtype, p.n, p.shift);
        float *gate = sim_array(p.scale, HEDDLE_F32, p.samples * p.c, p.shift);
        for (int64_t s = 0; s < p.samples; s++) {
            const int64_t at = s * p.sample_rows * p.c;
            cpu->scale_rows(wanted + at, src + at, p.sample_rows, p.c, p.scale + s * p.c);
        }
        void *scaled = sim_array(NULL, p.dtype, p.n, p.shift);
        OK(device->scale_rows(&p.of, scaled, there, gate, NULL));
        void *got = from_sim(scaled, p.dtype, p.n);
        check_values("scale_rows", got, p.dtype, wanted, p.n, 1e-7);
        free(got);
        float *slope = widened(p.dx, p.dtype, p.n);
        cpu->gelu_back(slope, wanted, src, HEDDLE_F32, p.n);
        OK(device->gelu_back(dx, scaled, there, p.dtype, p.n, NULL));
        got = from_sim(dx, p.dtype, p.n);
        check_values("gelu_back", got, p.dtype, slope, p.n, ERROR);
        free(got);
        got = from_sim(scaled, p.dtype, p.n);
        check_values("active", got, p.dtype, wanted, p.n, ERROR);
        free(got);
        free(src);
        free(wanted);
        free(slope);
        sim_free(there, p.dtype, p.shift);
        sim_free(dx, p.dtype, p.shift);
        sim_free(scaled, p.dtype, p.shift);
        sim_free(gate, HEDDLE_F32, p.shift);
        problem_end(&p);
    }
    assert_int_equal(hd_sim_device_bytes(), 0);
}

static void check_heads(const hd_device_heads *shape, const float *weight, const float *cos_sin, int shift)
{
    hd_device_heads of = *shape;
    const int64_t n = of.rows * of.row_stride;
    void *src = random_array(of.dtype, n, 2), *dy = random_array(of.dtype, n, 1);
    float *dweight = random_array(HEDDLE_F32, of.d, 1), *x = widened(src, of.dtype, n), *g = widened(dy, of.dtype, n);
    void *src_there = sim_array(src, of.dtype, n, shift), *dy_there = sim_array(dy, of.dtype, n, shift);
    float *weight_there = sim_array(weight, HEDDLE_F32, of.d, 0),
          *dweight_there = sim_array(dweight, HEDDLE_F32, of.d, 0);
    float *cos_sin_there = sim_array(cos_sin, HEDDLE_F32, of.extent * of.d, 0);
    const float *w = of.weight != NULL ? weight : NULL;
    of.weight = w != NULL ? weight_there : NULL;
    of.cos_sin = of.cos_sin != NULL ? cos_sin_there : NULL;
    for (int64_t r = 0; r < of.rows; r++) {
        cpu->norm_rotate_back(g + r * of.row_stride, x + r * of.row_stride, HEDDLE_F32, of.heads, of.d, w,
                              of.cos_sin != NULL ? cos_sin + r / of.inner % of.extent * of.d : NULL, dweight);
    }
    void *scratch = sim_array(NULL, HEDDLE_F32, (int64_t)device->norm_rotate_back_bytes(&of) / 4, 0);
    OK(device->norm_rotate_back(&of, dy_there, w != NULL ? src_there : NULL, (float *const[]){dweight_there, NULL},
                                scratch, NULL));
    void *got = from_sim(dy_there, of.dtype, n), *got_weight = from_sim(dweight_there, HEDDLE_F32, of.d);
    check_values("norm_rotate_back", got, of.dtype, g, n, ERROR);
    check_values("dweight", got_weight, HEDDLE_F32, dweight, of.d, ERROR * sqrt((double)(of.rows * of.heads)));
    sim_free(src_there, of.dtype, shift);
    sim_free(dy_there, of.dtype, shift);
    void *const there[] = {weight_there, dweight_there, cos_sin_there, scratch};
    void *const here[] = {src, dy, dweight, x, g, got, got_weight};
    for (int i = 0; i < 4; i++) {
        sim_free(there[i], HEDDLE_F32, 0);
    }
    for (int i = 0; i < 7; i++) {
        free(here[i]);
    }
}

HD_CASE(heads_are_the_reference)
{
    begin();
    for (int round = 0; round < hd_rounds(45); round++) {
        hd_device_heads of = {.dtype = float_types[round % 3], .rows = between(1, 60), .heads = between(1, 5)};
        of.d = round < 3 ? 128 : round % 2 ? 2 * between(1, 64) : 8 * between(1, 16);
        of.row_stride = of.heads * of.d * (below(2) ? 3 : 1);
        of.inner = between(1, 4);
        of.extent = between(1, 9);
        float *weight = random_array(HEDDLE_F32, of.d, 1), *cos_sin = random_array(HEDDLE_F32, of.extent * of.d, 1);
        of.weight = below(3) > 0 ? weight : NULL;
        of.cos_sin = below(3) > 0 ? cos_sin : NULL;
        check_heads(&of, weight, cos_sin, below(4) == 0 ? 1 : 0);
        free(weight);
        free(cos_sin);
    }
    assert_int_equal(hd_sim_device_bytes(), 0);
}

/* --- bits */

enum { KINDS = 4, D = 24, MOST = 24 };

/* Rows whose gradient is theirs too, in place. */
static void *result(int kind, heddle_dtype dtype, int64_t rows, int64_t c, const void *x, const float *vector,
                    int shift)
{
    const int64_t n = rows * c;
    void *src = sim_array(x, dtype, n, shift), *dy = sim_array(x, dtype, n, shift),
         *out = sim_array(x, dtype, n, shift);
    float *v = sim_array(vector, HEDDLE_F32, c + D, below(2)), *stats = sim_array(NULL, HEDDLE_F32, 2 * rows, 0);
    const hd_device_rows of = {dtype, rows, c, 0, 0};
    const hd_device_heads heads = {dtype, rows, c / D, D, c, v, v + D, 1, 1};
    float *dweight = sim_array(vector, HEDDLE_F32, D, 0);
    void *scratch = sim_array(NULL, HEDDLE_F32, (int64_t)device->norm_rotate_back_bytes(&heads) / 4, 0);
    switch (kind) {
    case 0:
        OK(device->norm_back(&of, out, src, dy, dtype, v, stats, NULL));
        break;
    case 1:
        OK(device->scale_rows(&of, out, src, v, NULL));
        break;
    case 2:
        OK(device->gelu_back(out, dy, src, dtype, n, NULL));
        break;
    default:
        OK(device->norm_rotate_back(&heads, out, src, (float *const[]){dweight, NULL}, scratch, NULL));
    }
    return from_sim(out, dtype, n); /* the case's memory goes with it */
}

HD_CASE(bits_do_not_depend_on_what_is_beside)
{
    begin();
    for (int round = 0; round < hd_rounds(KINDS * 3); round++) {
        const int kind = round % KINDS;
        const heddle_dtype dtype = float_types[round / KINDS % 3];
        const int64_t c = D * between(1, 12), row_bytes = c * (int64_t)type_bytes(dtype);
        float *vector = random_array(HEDDLE_F32, c + D, 1);
        char *x = random_array(dtype, MOST * c, 2), *alone = result(kind, dtype, MOST, c, x, vector, 0);
        for (int place = 0; place < 40; place++) {
            const int64_t rows = between(1, 70), which = below(MOST);
            const int64_t n = between(1, rows < MOST - which ? rows : MOST - which), at = between(0, rows - n);
            char *mixed = random_array(dtype, rows * c, 2);
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

HD_CASE(sums_do_not_depend_on_the_order_of_blocks)
{
    enum { ROWS = 1500, N = 40 };
    begin();
    float *src = random_array(HEDDLE_F32, ROWS * N, 1), *weight = random_array(HEDDLE_F32, D, 1), *first[2] = {NULL};
    float *there = sim_array(src, HEDDLE_F32, ROWS * N, 0), *weight_there = sim_array(weight, HEDDLE_F32, D, 0);
    const hd_device_columns columns = {HEDDLE_F32, HEDDLE_F32, ROWS, N, N, 0, there, NULL, NULL};
    const hd_device_heads heads = {HEDDLE_F32, ROWS, 1, D, D, weight_there, NULL, 1, 1};
    for (int is_reversed = 0; is_reversed < 2; is_reversed++) {
        float zeros[N] = {0}, *dst = sim_array(zeros, HEDDLE_F32, N, 0), *dweight = sim_array(zeros, HEDDLE_F32, D, 0);
        float *dy = sim_array(src, HEDDLE_F32, ROWS * D, 0);
        void *scratch = sim_array(NULL, HEDDLE_F32, (int64_t)device->add_columns_bytes(&columns) / 4, 0);
        void *scratch2 = sim_array(NULL, HEDDLE_F32, (int64_t)device->norm_rotate_back_bytes(&heads) / 4, 0);
        hd_sim_set_reversed(is_reversed);
        OK(device->add_columns(&columns, dst, NULL, 0, scratch, NULL));
        OK(device->norm_rotate_back(&heads, dy, there, (float *const[]){dweight, NULL}, scratch2, NULL));
        float *sums[2] = {from_sim(dst, HEDDLE_F32, N), from_sim(dweight, HEDDLE_F32, D)};
        if (is_reversed) {
            assert_memory_equal(sums[0], first[0], N * 4);
            assert_memory_equal(sums[1], first[1], D * 4);
        }
        for (int i = 0; i < 2; i++) {
            free(first[i]);
            first[i] = sums[i];
        }
    }
    free(first[0]);
    free(first[1]);
    free(src);
    free(weight);
}

HD_CASE(columns_of_products_are_sums_of_products)
{
    enum { ROWS = 3, N = 5 };
    float g[ROWS * N], y[ROWS * N], sums[N] = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
    begin();
    for (int i = 0; i < ROWS * N; i++) {
        g[i] = (float)(i - 4);
        y[i] = (float)(2 * i + 1);
    }
    float *g_there = sim_array(g, HEDDLE_F32, ROWS * N, 0), *y_there = sim_array(y, HEDDLE_F32, ROWS * N, 0);
    float *sums_there = sim_array(sums, HEDDLE_F32, N, 0);
    const hd_device_columns of = {HEDDLE_F32, HEDDLE_F32, ROWS, N, N, 0, g_there, y_there, NULL};
    void *scratch = sim_array(NULL, HEDDLE_F32, (int64_t)device->add_columns_bytes(&of) / 4, 0);
    OK(device->add_columns(&of, NULL, sums_there, N, scratch, NULL)); /* nobody wants the sums of g */
    float *got = from_sim(sums_there, HEDDLE_F32, N);
    for (int i = 0; i < N; i++) {
        float wanted = 0.5f;
        for (int r = 0; r < ROWS; r++) {
            wanted += g[r * N + i] * y[r * N + i];
        }
        assert_true(got[i] == wanted);
    }
    free(got);
    sim_free(g_there, HEDDLE_F32, 0);
    sim_free(y_there, HEDDLE_F32, 0);
    sim_free(sums_there, HEDDLE_F32, 0);
    sim_free(scratch, HEDDLE_F32, 0);
}

HD_CASE(what_does_not_fit_is_refused)
{
    float x[64] = {0}, *there = sim_array(x, HEDDLE_F32, 64, 0);
    begin();
    hd_device_columns columns = {HEDDLE_F32, HEDDLE_BF16, 2, 8, 8, 0, there, NULL, NULL};
    assert_int_equal(device->add_columns_bytes(&columns), 0);
    assert_int_equal(device->add_columns(&columns, there, NULL, 0, there, NULL), cudaErrorInvalidValue);
    columns.src_dtype = HEDDLE_F32;
    columns.stride = 7;
    assert_int_equal(device->add_columns(&columns, there, NULL, 0, there, NULL), cudaErrorInvalidValue);
    columns.stride = 8;
    columns.sample_rows = 3;
    assert_int_equal(device->add_columns(&columns, there, NULL, 0, there, NULL), cudaErrorInvalidValue);
    columns.rows = columns.sample_rows = 0;
    OK(device->add_columns(&columns, there, NULL, 0, there, NULL));
    assert_int_equal(device->gelu_back(there, there, there, HEDDLE_F64, 8, NULL), cudaErrorInvalidValue);
}
