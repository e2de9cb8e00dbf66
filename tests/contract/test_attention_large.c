/* Scores up to 1e8 and values up to the largest number: every method against f64 loops on the very same inputs.
 *
 * Two kinds of large scores have results that f32 can give to its last bits, however large they are: scores that are
 * exact in f32 and differ by little (ties), and scores one of which is far above the others (peaks). Errors are
 * measured against the sum of the absolute values of what is added up. */
#include "case.h"

#include "runtime/verify/random.h"

#include <heddle/heddle.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 4, KV_HEADS = 2, ROWS = 50, TIES_WIDTH = 16, PEAKS_WIDTH = 64, LOCAL_RANKS = 4 };

typedef enum problem_kind { TIES, PEAKS, LARGE_VALUES } problem_kind;

enum { Q, K, V, DO, O, DQ, DK, DV, ARRAYS };

/* [row][head][width] of one sample in f64; size: sums of absolute values, of the results. */
typedef struct whole {
    double *at[ARRAYS], *size[ARRAYS];
    int64_t width;
} whole;

typedef struct job {
    heddle_dtype dtype;
    heddle_attention_method method;
    int causal;
    problem_kind kind;
    double largest; /* score */
    whole x;        /* read by all ranks */
} job;

static int64_t heads_of(int array)
{
    return array == K || array == V || array == DK || array == DV ? KV_HEADS : HEADS;
}

/* --- elements ----------------------------------------------------------------------------------------------------- */

static double load(const char *at, heddle_dtype dtype)
{
    double wide;
    float single;
    uint16_t half;
    if (dtype == HEDDLE_F64) {
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
    if (dtype == HEDDLE_F32) {
        memcpy(&single, at, sizeof single);
        return (double)single;
    }
    memcpy(&half, at, sizeof half);
    uint32_t bits = (uint32_t)half << 16;
    memcpy(&single, &bits, sizeof single);
    return (double)single;
}

/* Values are made to be exact: bf16 cuts. */
static void store(char *at, heddle_dtype dtype, double value)
{
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    uint16_t half = (uint16_t)(bits >> 16);
    memcpy(at,
           dtype == HEDDLE_F64   ? (void *)&value
           : dtype == HEDDLE_F32 ? (void *)&single
                                 : (void *)&half,
           heddle_dtype_bytes(dtype));
}

static double as_stored(double value, heddle_dtype dtype)
{
    char element[8];
    store(element, dtype, value);
    return load(element, dtype);
}

/* --- problems ----------------------------------------------------------------------------------------------------- */

static double whole_number(random_source *source, int most)
{
    return rint(random_unit(source) * most);
}

/* One large product that all keys share, and small ones; `unit`: the spacing of f32 near their sum, or 1. */
static void fill_ties(whole *x, double largest)
{
    random_source source = {1};
    double half = exp2(rint(log2(4 * largest) / 2)), unit = half * half > 0x1p22 ? half * half / 0x1p22 : 1;
    for (int64_t i = 0; i < ROWS * HEADS * x->width; i++) {
        x->at[Q][i] = i % x->width == 0 ? half : whole_number(&source, 1);
    }
    for (int64_t i = 0; i < ROWS * KV_HEADS * x->width; i++) {
        x->at[K][i] = i % x->width == 0 ? half : whole_number(&source, 1) * unit;
    }
}

/* Query i is far nearer to key i than to any other. */
static void fill_peaks(whole *x, double largest, heddle_dtype dtype)
{
    random_source source = {2};
    double size = sqrt(largest * 8);
    for (int array = Q; array <= K; array++) {
        for (int64_t i = 0; i < ROWS * heads_of(array) * x->width; i++) {
            int64_t row = i / x->width / heads_of(array);
            x->at[array][i] = as_stored(size * ((i % x->width == row) + 0.05 * random_unit(&source)), dtype);
        }
    }
}

static void fill(whole *x, const job *j)
{
    random_source source = {3};
    double most = j->dtype == HEDDLE_F64 ? DBL_MAX : FLT_MAX;
    int large = j->kind == LARGE_VALUES;
    double tiny = !large ? 1 : j->dtype == HEDDLE_F64 ? 0x1p-900 : 0x1p-100; /* products with values stay in range */
    if (j->kind == PEAKS) {
        fill_peaks(x, j->largest, j->dtype);
    } else {
        fill_ties(x, j->largest);
    }
    for (int64_t i = 0; i < ROWS * KV_HEADS * x->width; i++) {
        double value = random_unit(&source);
        x->at[V][i] = as_stored(large ? (value < 0 ? 0.6 : 0.9) * most * (i % 3 == 0 ? -1 : 1) : value, j->dtype);
    }
    for (int64_t i = 0; i < ROWS * HEADS * x->width; i++) {
        x->at[DO][i] = as_stored(random_unit(&source) * tiny, j->dtype);
    }
}

/* --- f64 loops ---------------------------------------------------------------------------------------------------- */

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

static double *row_of(const whole *x, int array, int64_t row, int64_t head, int of_sizes)
{
    return (of_sizes ? x->size : x->at)[array] + (row * heads_of(array) + head) * x->width;
}

static void add(whole *x, int array, int64_t row, int64_t head, double factor, double size, const double *from)
{
    double *sum = row_of(x, array, row, head, 0), *sizes = row_of(x, array, row, head, 1);
    for (int64_t c = 0; c < x->width; c++) {
        sum[c] += factor * from[c];
        sizes[c] += size * fabs(from[c]);
    }
}

static void run_query(whole *x, int64_t i, int64_t h, int64_t seen)
{
    double p[ROWS], dp[ROWS], dp_size[ROWS], top = -INFINITY, sum = 0, mean = 0, mean_size = 0;
    double scale = 1 / sqrt((double)x->width);
    const double *q = row_of(x, Q, i, h, 0), *d_o = row_of(x, DO, i, h, 0);
    int64_t kv = h / (HEADS / KV_HEADS);
    for (int64_t j = 0; j < seen; j++) {
        p[j] = scale * dot(q, row_of(x, K, j, kv, 0), x->width);
        top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j < seen; j++) {
        p[j] = exp(p[j] - top);
        sum += p[j];
    }
    for (int64_t j = 0; j < seen; j++) {
        const double *v = row_of(x, V, j, kv, 0);
        p[j] /= sum;
        dp[j] = dot(d_o, v, x->width);
        dp_size[j] = 0;
        for (int64_t c = 0; c < x->width; c++) {
            dp_size[j] += fabs(d_o[c] * v[c]);
        }
        mean += p[j] * dp[j];
        mean_size += p[j] * dp_size[j];
        add(x, O, i, h, p[j], p[j], v);
        add(x, DV, j, kv, p[j], p[j], d_o);
    }
    for (int64_t j = 0; j < seen; j++) {
        double ds = scale * p[j] * (dp[j] - mean), size = scale * p[j] * (dp_size[j] + mean_size);
        add(x, DQ, i, h, ds, size, row_of(x, K, j, kv, 0));
        add(x, DK, j, kv, ds, size, q);
    }
}

static void make_whole(whole *x, const job *j)
{
    x->width = j->kind == PEAKS ? PEAKS_WIDTH : TIES_WIDTH;
    for (int i = 0; i < ARRAYS; i++) {
        x->at[i] = calloc((size_t)(ROWS * HEADS * x->width), sizeof(double));
        x->size[i] = calloc((size_t)(ROWS * HEADS * x->width), sizeof(double));
    }
    fill(x, j);
    for (int64_t i = 0; i < ROWS; i++) {
        for (int64_t h = 0; h < HEADS; h++) {
            run_query(x, i, h, j->causal ? i + 1 : ROWS);
        }
    }
}

static void free_whole(whole *x)
{
    for (int i = 0; i < ARRAYS; i++) {
        free(x->at[i]);
        free(x->size[i]);
    }
}

/* --- the method --------------------------------------------------------------------------------------------------- */

static int64_t position(const heddle_attention_rows *rows, int64_t s)
{
    return s < rows->len[0] ? rows->lo[0] + s : rows->lo[1] + s - rows->len[0];
}

/* All elements of a local array, all samples alike: copied in, or compared. */
static int visit(const whole *x, char *data, int array, const heddle_attention_rows *rows, int64_t batch, const job *j,
                 double tolerance)
{
    int64_t row_elems = heads_of(array) * x->width, elem = (int64_t)heddle_dtype_bytes(j->dtype);
    static const char *const name[] = {"q", "k", "v", "d_o", "o", "dq", "dk", "dv"};
    double least = 0; /* weights far below the others are good to fewer bits */
    for (int64_t i = 0; i < ROWS * row_elems; i++) {
        least = fmax(least, 1e-6 * x->size[array][i]);
    }
    for (int64_t i = 0; i < batch * rows->rows * row_elems; i++) {
        int64_t at = position(rows, i / row_elems % rows->rows) * row_elems + i % row_elems;
        if (array <= DO) {
            store(data + i * elem, j->dtype, x->at[array][at]);
            continue;
        }
        double got = load(data + i * elem, j->dtype), want = x->at[array][at];
        if (!(fabs(got - want) <= tolerance * fmax(x->size[array][at], least))) {
            fprintf(stderr, "%s, %s, scores up to %g, kind %d, causal %d: %s[%lld] is %.9g, not %.9g\n",
                    heddle_attention_method_name(j->method), heddle_dtype_name(j->dtype), j->largest, (int)j->kind,
                    j->causal, name[array], (long long)at, got, want);
            return 1;
        }
    }
    return 0;
}

static heddle_status run(heddle_comm *comm, void *arg)
{
    const job *j = arg;
    const whole *x = &j->x;
    int rank = heddle_comm_rank(comm), wrong = 0, local = j->method == HEDDLE_ATTENTION_LOCAL;
    int usp = j->method == HEDDLE_ATTENTION_USP;
    char *data[ARRAYS], text[96];
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_attention *attention = NULL;
    heddle_attention_options options;
    heddle_attention_rows rows;
    heddle_attention_array array[ARRAYS] = {{.data = NULL}};
    snprintf(text, sizeof text, "%s[b=%d s=%d h=%d d=%d]", heddle_dtype_name(j->dtype), local ? LOCAL_RANKS : 2, ROWS,
             HEADS, (int)x->width);
    HD_OK(heddle_shape_parse(&shape, text));
    HD_OK(heddle_mesh_parse(&mesh, usp ? "[a=2 b=2]" : "[sp=4]"));
    HD_OK(heddle_layout_parse(&layout, local ? "b@sp" : usp ? "s@a,s@b" : "s@sp", &shape, &mesh));
    heddle_attention_options_init(&options);
    options.method = j->method;
    options.kv_heads = KV_HEADS;
    options.causal = j->causal;
    HD_OK(heddle_attention_local_rows(&rows, &shape, &mesh, &layout, options.placement, rank));
    int64_t batch = local ? 1 : 2;
    for (int i = 0; i < ARRAYS; i++) {
        array[i].data = data[i] = calloc((size_t)(batch * rows.rows * heads_of(i) * x->width) + 1, 8);
        if (i <= DO) {
            visit(x, data[i], i, &rows, batch, j, 0);
        }
    }
    HD_OK(heddle_attention_create(&attention, comm, &shape, &mesh, &layout, &options));
    HD_OK(heddle_attention_forward(attention, &array[Q], &array[K], &array[V], &array[O], NULL, HEDDLE_NO_STREAM));
    HD_OK(heddle_attention_backward(attention, &array[DO], &array[DQ], &array[DK], &array[DV], HEDDLE_NO_STREAM));
    heddle_attention_destroy(attention);
    double tolerance = j->dtype == HEDDLE_F64 ? 4e-15 : j->dtype == HEDDLE_F32 ? 2e-6 : 0x1p-7;
    for (int i = O; i < ARRAYS; i++) {
        wrong |= visit(x, data[i], i, &rows, batch, j, tolerance);
    }
    for (int i = 0; i < ARRAYS; i++) {
        free(data[i]);
    }
    return wrong ? HEDDLE_ERR_MISMATCH : HEDDLE_OK;
}

static void try_all(problem_kind kind, double largest)
{
    static const heddle_dtype dtypes[] = {HEDDLE_F32, HEDDLE_BF16, HEDDLE_F64};
    int wrong = 0;
    for (int i = 0; i < 6; i++) {
        job j = {.dtype = dtypes[i / 2], .causal = i % 2, .kind = kind, .largest = largest};
        make_whole(&j.x, &j);
        for (int m = 0; m < HEDDLE_ATTENTION_METHOD_COUNT; m++) {
            j.method = (heddle_attention_method)m;
            wrong += heddle_run_ranks(4, "threads", run, &j) != HEDDLE_OK;
        }
        free_whole(&j.x);
    }
    assert_int_equal(wrong, 0);
}

static const double largest_scores[] = {1e8, 1e6, 1e4, 1e2};

HD_CASE(ties_of_large_scores)
{
    for (int i = 0; i < hd_rounds(4); i++) {
        try_all(TIES, largest_scores[i]);
    }
}

HD_CASE(peaks_of_large_scores)
{
    for (int i = 0; i < hd_rounds(4); i++) {
        try_all(PEAKS, largest_scores[i]);
    }
}

/* Their sums are out of range, their means are not. */
HD_CASE(values_near_the_largest_number)
{
    try_all(LARGE_VALUES, 1);
    try_all(LARGE_VALUES, 1e6);
}
