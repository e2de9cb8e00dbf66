/* Rows outside of blocks on a device: against sums in f64 at odd sizes, and what is refused. */
#include "block_on_device.h"

#include <heddle/rows.h>

/* One of two sizes of rows, F32 or 16 bits. */
typedef struct rows_job {
    heddle_comm *comm;
    heddle_dtype dtype;
    int64_t rows, k, n;
    double tolerance;
} rows_job;

/* Random numbers as the type has them, here and there. */
static float *values(void **placed, const rows_job *j, heddle_dtype dtype, int64_t count)
{
    float *here = must_alloc(count, sizeof *here);
    for (int64_t i = 0; i < count; i++) {
        here[i] = symmetric();
    }
    rounded(here, count, dtype);
    void *narrow = stored(here, count, dtype);
    *placed = placed_on(j->comm, narrow, (size_t)count * heddle_dtype_bytes(dtype));
    free(narrow);
    return here;
}

/* wanted[i] of what lies there. */
static void check_rows(const char *what, const rows_job *j, const void *placed, const double *wanted, int64_t count)
{
    void *narrow = brought_back(j->comm, placed, (size_t)count * heddle_dtype_bytes(j->dtype));
    for (int64_t i = 0; i < count; i++) {
        const double got = value_at(narrow, j->dtype, i);
        if (!(fabs(got - wanted[i]) <= j->tolerance * (1 + fabs(wanted[i])))) {
            fail_msg("%s of %s: element %lld is %g, not %g", what, heddle_dtype_name(j->dtype), (long long)i, got,
                     wanted[i]);
        }
    }
    free(narrow);
}

static void check_dense(const rows_job *j, int has_bias)
{
    void *x_there, *w_there, *b_there, *y_there;
    float *x = values(&x_there, j, j->dtype, j->rows * j->k), *w = values(&w_there, j, j->dtype, j->n * j->k);
    float *b = values(&b_there, j, j->dtype, j->n), *y = values(&y_there, j, j->dtype, j->rows * j->n);
    double *wanted = must_alloc(j->rows * j->n, sizeof *wanted);
    for (int64_t i = 0; i < j->rows * j->n; i++) {
        wanted[i] = has_bias ? (double)b[i % j->n] : 0;
        for (int64_t k = 0; k < j->k; k++) {
            wanted[i] += (double)x[i / j->n * j->k + k] * (double)w[i % j->n * j->k + k];
        }
    }
    HD_OK(heddle_rows_dense(j->comm, y_there, x_there, j->rows, j->k, w_there, has_bias ? b_there : NULL, j->n,
                            j->dtype, HEDDLE_NO_STREAM));
    check_rows("dense", j, y_there, wanted, j->rows * j->n);
    void *const all[] = {x_there, w_there, b_there, y_there};
    for (int i = 0; i < 4; i++) {
        heddle_buffer_free(j->comm, all[i]);
    }
    free(x);
    free(w);
    free(b);
    free(y);
    free(wanted);
}

/* Two samples, whose vectors lie wider apart than they are long. */
static void norm_of(double *wanted, const rows_job *j, const float *x, const float *vector, int64_t stride)
{
    for (int64_t r = 0; r < j->rows; r++) {
        const float *of = vector + r / ((j->rows + 1) / 2) * stride;
        double mean = 0, square = 0;
        for (int64_t k = 0; k < j->k; k++) {
            mean += (double)x[r * j->k + k] / (double)j->k;
        }
        for (int64_t k = 0; k < j->k; k++) {
            square += ((double)x[r * j->k + k] - mean) * ((double)x[r * j->k + k] - mean) / (double)j->k;
        }
        for (int64_t k = 0; k < j->k; k++) {
            wanted[r * j->k + k] =
                ((double)x[r * j->k + k] - mean) / sqrt(square + 1e-6) * (1 + (double)of[j->k + k]) + (double)of[k];
        }
    }
}

static void check_norm_and_sum(const rows_job *j)
{
    void *x_there, *y_there, *vector_there;
    const int64_t count = j->rows * j->k, stride = 2 * j->k + 3;
    float *x = values(&x_there, j, j->dtype, count), *y = values(&y_there, j, j->dtype, count);
    float *vector = values(&vector_there, j, HEDDLE_F32, 2 * stride), *at = vector_there;
    double *wanted = must_alloc(count, sizeof *wanted);
    for (int64_t i = 0; i < count; i++) {
        wanted[i] = (double)x[i] + (double)y[i];
    }
    norm_of(wanted, j, x, vector, stride);
    HD_OK(heddle_rows_norm(j->comm, y_there, x_there, j->rows, j->k, at, at + j->k, (j->rows + 1) / 2, stride, j->dtype,
                           HEDDLE_NO_STREAM));
    check_rows("norm", j, y_there, wanted, count);
    void *narrow = brought_back(j->comm, y_there, (size_t)count * heddle_dtype_bytes(j->dtype));
    for (int64_t i = 0; i < count; i++) {
        wanted[i] = (double)x[i] + value_at(narrow, j->dtype, i);
    }
    HD_OK(heddle_rows_add(j->comm, x_there, y_there, j->rows, j->k, j->dtype, HEDDLE_NO_STREAM));
    check_rows("sum", j, x_there, wanted, count);
    heddle_buffer_free(j->comm, x_there);
    heddle_buffer_free(j->comm, y_there);
    heddle_buffer_free(j->comm, vector_there);
    free(narrow);
    free(x);
    free(y);
    free(vector);
    free(wanted);
}

HD_CASE(rows_are_their_formulas)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {7, 16, 24}, {130, 24, 131}, {33, 129, 8}};
    static const double tolerances[] = {1e-5, 1.2e-2, 2e-3};
    heddle_comm *comm = alone();
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 3; k++) {
            const rows_job j = {comm, device_dtypes[k], sizes[i][0], sizes[i][1], sizes[i][2], tolerances[k]};
            check_dense(&j, i % 2);
            check_norm_and_sum(&j);
        }
    }
    heddle_comm_destroy(comm);
}

HD_CASE(what_is_no_rows_of_the_device_is_refused)
{
    heddle_comm *comm = alone(), *without = NULL;
    float here[16] = {0};
    float *x = placed_on(comm, here, sizeof here);
    HD_OK(heddle_comm_open(&without, "self", NULL));
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_rows_add(without, x, x, 1, 4, HEDDLE_F32, HEDDLE_NO_STREAM));
    assert_true(says("heddle_rows_add: the communicator has no device (heddle_comm_attach_device)"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_rows_add(comm, x, here, 1, 4, HEDDLE_F32, HEDDLE_NO_STREAM));
    assert_true(says("is memory of the host, not of cuda:1"));
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_rows_add(comm, x, x, 1, 4, HEDDLE_F64, HEDDLE_NO_STREAM));
    assert_true(says("of f64, wanted f32, bf16 or f16"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_rows_dense(comm, x, x, -1, 4, x, NULL, 4, HEDDLE_F32, HEDDLE_NO_STREAM));
    assert_true(says("heddle_rows_dense: -1 rows of 4 and 4 elements"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_rows_dense(comm, x, x, 1, 0, x, NULL, 4, HEDDLE_F32, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_rows_norm(comm, x, x, 1, 4, x, NULL, 0, 0, HEDDLE_F32, HEDDLE_NO_STREAM));
    assert_true(says("a shift without scale: both or none"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_rows_norm(comm, x, x, 2, 4, x, x, 1, -4, HEDDLE_F32, HEDDLE_NO_STREAM));
    assert_true(says("samples of 1 rows, -4 elements apart: 0 to 2147483647 of both"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_rows_norm(comm, x, x, 2, 4, x, x, -1, 4, HEDDLE_F32, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_rows_dense(comm, x, NULL, 1, 4, x, NULL, 4, HEDDLE_F32, HEDDLE_NO_STREAM));
    assert_true(says("heddle_rows_dense: x is NULL"));
    heddle_comm_destroy(without);
    heddle_buffer_free(comm, x);
    heddle_comm_destroy(comm);
}

HD_CASE(what_lies_between_elements_is_refused)
{
    static const char *const names[] = {"multiple of 4, the bytes of an element of f32",
                                        "multiple of 2, the bytes of an element of bf16"};
    heddle_comm *comm = alone();
    float here[16] = {0};
    char *x = placed_on(comm, here, sizeof here);
    float *vector = (float *)x, *between = (float *)(x + 2);
    for (int i = 0; i < 2; i++) {
        void *odd = x + (i == 0 ? 2 : 1);
        HD_FAILS(HEDDLE_ERR_ARG, heddle_rows_add(comm, x, odd, 1, 2, dtypes[i], HEDDLE_NO_STREAM));
        assert_true(says("heddle_rows_add: ") && says(names[i]));
        HD_FAILS(HEDDLE_ERR_ARG, heddle_rows_dense(comm, x, x, 1, 2, x, odd, 2, dtypes[i], HEDDLE_NO_STREAM));
        assert_true(says("heddle_rows_dense: ") && says(names[i]));
        HD_FAILS(HEDDLE_ERR_ARG, heddle_rows_norm(comm, odd, x, 1, 2, NULL, NULL, 0, 0, dtypes[i], HEDDLE_NO_STREAM));
        HD_FAILS(HEDDLE_ERR_ARG,
                 heddle_rows_norm(comm, x, x, 1, 2, vector, between, 0, 0, dtypes[i], HEDDLE_NO_STREAM));
        assert_true(says("heddle_rows_norm: ") && says(names[0]));
    }
    heddle_buffer_free(comm, x);
    heddle_comm_destroy(comm);
}

/* A rank may have none. */
HD_CASE(no_rows_want_no_arrays)
{
    heddle_comm *comm = alone();
    HD_OK(heddle_rows_dense(comm, NULL, NULL, 0, 4, NULL, NULL, 4, HEDDLE_F32, HEDDLE_NO_STREAM));
    HD_OK(heddle_rows_add(comm, NULL, NULL, 0, 4, HEDDLE_F32, HEDDLE_NO_STREAM));
    HD_OK(heddle_rows_norm(comm, NULL, NULL, 0, 4, NULL, NULL, 0, 0, HEDDLE_F32, HEDDLE_NO_STREAM));
    heddle_comm_destroy(comm);
}
