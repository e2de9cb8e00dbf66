/* Products of kernels/cuda, run by the emulator, against loops in f64; and a row's bits wherever it lies, among however
 * many. */
#include "on_sim.h"

#include <heddle/sys/device_products.h>

/* What lies where: src [rows][in], with [with_rows][k], dst [dst_rows][out]. */
typedef struct problem {
    heddle_product of;
    int64_t rows, in, with_rows, dst_rows, out, depth;
    int add;
    void *src, *with, *bias, *dst; /* host; dst as it was before */
} problem;

static problem problem_of(const heddle_product *of, int64_t rows, int add)
{
    const int is_outer = of->kind == HEDDLE_PRODUCT_OUTER, is_forward = of->kind == HEDDLE_PRODUCT_FORWARD;
    problem p = {.of = *of, .rows = rows, .add = add};
    p.in = is_forward ? of->k : of->n;
    p.with_rows = is_outer ? rows : of->n;
    p.dst_rows = is_outer ? of->n : rows;
    p.out = is_forward ? of->n : of->k;
    p.depth = is_outer ? rows : p.in;
    p.src = random_array(of->dtype, rows * p.in, 1);
    p.with = random_array(of->dtype, p.with_rows * of->k, 1);
    p.bias = random_array(of->dst_dtype, p.out, 1);
    p.dst = random_array(of->dst_dtype, p.dst_rows * p.out, 1);
    return p;
}

static void problem_end(problem *p)
{
    free(p->src);
    free(p->with);
    free(p->bias);
    free(p->dst);
}

/* The result, in host memory, of arrays at addresses that their types allow. */
static void *run(const problem *p, int is_shifted)
{
    const heddle_product *of = &p->of;
    const int shift[4] = {is_shifted ? (int)below(9) : 0, is_shifted ? (int)below(9) : 0, (int)below(3),
                          is_shifted ? (int)below(3) : 0};
    void *src = sim_array(p->src, of->dtype, p->rows * p->in, shift[0]);
    void *with = sim_array(p->with, of->dtype, p->with_rows * of->k, shift[1]);
    void *bias = sim_array(p->bias, of->dst_dtype, p->out, shift[2]);
    void *dst = sim_array(p->dst, of->dst_dtype, p->dst_rows * p->out, shift[3]);
    const heddle_product_call call = {dst, src, with, of->has_bias ? bias : NULL, p->rows, p->add, NULL};
    OK(device->product(of, &call, NULL));
    void *got = from_sim(dst, of->dst_dtype, p->dst_rows * p->out);
    sim_free(src, of->dtype, shift[0]);
    sim_free(with, of->dtype, shift[1]);
    sim_free(bias, of->dst_dtype, shift[2]);
    sim_free(dst, of->dst_dtype, shift[3]);
    return got;
}

static double term(const problem *p, int64_t row, int64_t column, int64_t i)
{
    const heddle_dtype type = p->of.dtype;
    const int is_outer = p->of.kind == HEDDLE_PRODUCT_OUTER, is_forward = p->of.kind == HEDDLE_PRODUCT_FORWARD;
    const double a = (double)value_at(p->src, type, is_outer ? i * p->in + row : row * p->in + i);
    return a * (double)value_at(p->with, type, is_forward ? column * p->of.k + i : i * p->of.k + column);
}

static void check(const problem *p, const void *got)
{
    const heddle_dtype type = p->of.dst_dtype;
    const double rounding = type == HEDDLE_F32 ? 0x1p-24 : type == HEDDLE_BF16 ? 0x1p-8 : 0x1p-11;
    for (int64_t at = 0; at < p->dst_rows * p->out; at++) {
        const int64_t row = at / p->out, column = at % p->out;
        double wanted = p->of.has_bias ? (double)value_at(p->bias, type, column) : 0, size = fabs(wanted);
        wanted += p->add ? (double)value_at(p->dst, type, at) : 0;
        for (int64_t i = 0; i < p->depth; i++) {
            wanted += term(p, row, column, i);
            size += fabs(term(p, row, column, i));
        }
        const double value = (double)value_at(got, type, at);
        const double limit = rounding * fabs(wanted) * 1.01 + (size + fabs(wanted)) * 0x1p-24 * (4 + (double)p->depth);
        if (!(fabs(value - wanted) <= limit + (type == HEDDLE_F16 ? 0x1p-25 : 0))) {
            fail_msg("kind %d of %s to %s, rows %lld n %lld k %lld: row %lld column %lld is %.9g, wanted %.9g",
                     (int)p->of.kind, heddle_dtype_name(p->of.dtype), heddle_dtype_name(type), (long long)p->rows,
                     (long long)p->of.n, (long long)p->of.k, (long long)row, (long long)column, value, wanted);
        }
    }
}

static heddle_product random_product(heddle_dtype dtype)
{
    heddle_product of = {.kind = (heddle_product_kind)below(3), .dtype = dtype};
    const int64_t unit = below(2) ? 8 : 1; /* rows of whole 16 bytes, or not */
    of.dst_dtype = of.kind == HEDDLE_PRODUCT_OUTER || below(2) ? HEDDLE_F32 : dtype;
    of.n = unit * between(1, (below(3) ? 60 : 170) / unit);
    of.k = unit * between(1, (below(3) ? 60 : 170) / unit);
    of.has_bias = of.kind == HEDDLE_PRODUCT_FORWARD && below(2);
    return of;
}

HD_CASE(products_are_those_of_loops)
{
    begin();
    for (int round = 0; round < hd_rounds(36); round++) {
        const heddle_product of = random_product(float_types[round % 3]);
        problem p = problem_of(&of, between(0, below(3) ? 40 : 150), of.kind == HEDDLE_PRODUCT_OUTER && (int)below(2));
        void *got = run(&p, (int)below(2));
        check(&p, got);
        free(got);
        problem_end(&p);
    }
    assert_int_equal(hd_sim_device_bytes(), 0);
}

/* One that does not end where its neighbours begin: theirs are not numbers. */
HD_CASE(rows_of_no_numbers_stay_in_their_row)
{
    begin();
    for (int i = 0; i < 6; i++) {
        const heddle_product of = {(heddle_product_kind)(i / 3), float_types[i % 3], float_types[i % 3], 24, 40, 0};
        problem p = problem_of(&of, 9, 0);
        for (int64_t column = 0; column < p.in; column++) {
            value_set(p.src, of.dtype, 4 * p.in + column, NAN);
        }
        void *got = run(&p, 0);
        for (int64_t at = 0; at < 9 * p.out; at++) {
            assert_int_equal(isnan(value_at(got, of.dtype, at)) != 0, at / p.out == 4);
        }
        free(got);
        problem_end(&p);
    }
}

HD_CASE(rows_keep_their_bits_at_any_height_and_place)
{
    begin();
    for (int i = 0; i < 6; i++) {
        /* to F32: 16 bits would hide an order of sums */
        heddle_product of = {(heddle_product_kind)(i / 3), float_types[i % 3], HEDDLE_F32, 40, 72, i < 3};
        problem alone = problem_of(&of, 3, 0);
        char *wanted = run(&alone, 0);
        const size_t in_bytes = (size_t)alone.in * type_bytes(of.dtype), bytes = (size_t)alone.out * 4;
        for (int place = 0; place < hd_rounds(40); place++) {
            problem p = problem_of(&of, between(3, below(4) ? 60 : 300), 0);
            const int64_t at = between(0, p.rows - 3);
            memcpy(p.with, alone.with, (size_t)(of.n * of.k) * type_bytes(of.dtype));
            memcpy(p.bias, alone.bias, bytes);
            memcpy((char *)p.src + (size_t)at * in_bytes, alone.src, 3 * in_bytes);
            hd_sim_set_reversed(place % 2);
            char *got = run(&p, (int)below(2));
            assert_memory_equal(got + (size_t)at * bytes, wanted, 3 * bytes);
            free(got);
            problem_end(&p);
        }
        free(wanted);
        problem_end(&alone);
    }
    hd_sim_set_reversed(0);
}

HD_CASE(equal_calls_give_equal_bits)
{
    begin();
    for (int i = 0; i < 3; i++) {
        const heddle_product of = {HEDDLE_PRODUCT_OUTER, float_types[i], HEDDLE_F32, 136, 72, 0};
        problem p = problem_of(&of, 300, 1);
        char *first = run(&p, 0);
        hd_sim_set_reversed(1);
        char *second = run(&p, 1);
        hd_sim_set_reversed(0);
        assert_memory_equal(first, second, (size_t)(of.n * of.k) * 4);
        free(first);
        free(second);
        problem_end(&p);
    }
}

HD_CASE(what_does_not_fit_is_refused)
{
    char byte = 0;
    begin();
    const heddle_product right = {HEDDLE_PRODUCT_FORWARD, HEDDLE_BF16, HEDDLE_BF16, 8, 8, 0};
    const heddle_product_call none = {&byte, &byte, &byte, NULL, 0, 0, NULL};
    OK(device->product(&right, &none, NULL));
    for (int i = 0; i < 8; i++) {
        heddle_product of = right;
        heddle_product_call call = none;
        of.dtype = i == 0 ? HEDDLE_F64 : of.dtype;
        of.dst_dtype = i == 1 ? HEDDLE_F16 : of.dst_dtype;
        of.kind = i == 2 ? HEDDLE_PRODUCT_OUTER : of.kind; /* to BF16 */
        of.n = i == 3 ? 0 : of.n;
        of.k = i == 4 ? (int64_t)1 << 31 : of.k;
        call.rows = i == 5 ? -1 : 0;
        of.has_bias = i == 6;
        call.bias = i == 7 ? &byte : NULL;
        assert_int_equal(device->product(&of, &call, NULL), cudaErrorInvalidValue);
    }
    heddle_product wide = right;
    heddle_product_call call = none;
    wide.n = (int64_t)1 << 30;
    call.rows = INT32_MAX;
    assert_int_equal(device->product(&wide, &call, NULL), cudaErrorInvalidConfiguration);
    call.rows = 1;
    hd_sim_fail_at(1, cudaErrorLaunchFailure);
    assert_int_equal(device->product(&right, &call, NULL), cudaErrorLaunchFailure);
}
