/* Blocks against a naive fp64 model of the same formulas, and row independence bit by bit. */
#include "case.h"

#include "kernels/kernels_block.h"
#include "runtime/block/gemm.h"

#include <heddle/block.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VECTOR_ROWS = 6 };

static uint64_t random_state = 42;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int64_t between(int64_t low, int64_t high)
{
    return low + (int64_t)(next_random() % (uint64_t)(high - low + 1));
}

static float symmetric(void)
{
    return (float)(int64_t)next_random() * 0x1p-63f;
}

static void *must_alloc(int64_t count, size_t bytes)
{
    void *memory = calloc((size_t)count + 1, bytes);
    assert_non_null(memory);
    return memory;
}

/* --- a problem: a block, a whole activation and its conditioning ---------------------------------------------------
 */

typedef struct problem {
    heddle_block_options options;
    heddle_block *block;
    heddle_conditioning conditioning;
    int64_t elems;
    int64_t c;
    float *x; /* values representable in the dtype */
} problem;

static heddle_shape shape_of(heddle_dtype dtype, int ndim, const int64_t *extent)
{
    heddle_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.dtype = dtype;
    shape.ndim = ndim;
    for (int d = 0; d < ndim; d++) {
        snprintf(shape.dim[d].name, sizeof shape.dim[d].name, "%c",
                 d == 0          ? 'b'
                 : d == ndim - 1 ? 'c'
                                 : "tsuvw"[d - 1]);
        shape.dim[d].extent = extent[d];
    }
    return shape;
}

static void rounded(float *x, int64_t elems, heddle_dtype dtype)
{
    for (int64_t i = 0; i < elems && dtype == HEDDLE_BF16; i++) {
        x[i] = hd_bf16_to_f32(hd_f32_to_bf16(x[i]));
    }
}

static void open_problem(problem *p, const heddle_block_options *options)
{
    memset(p, 0, sizeof *p);
    p->options = *options;
    HD_OK(heddle_block_create(&p->block, options));
    HD_OK(heddle_block_seed(p->block, 7));
    const heddle_shape *shape = &options->shape;
    p->c = shape->dim[shape->ndim - 1].extent;
    p->elems = 1;
    for (int d = 0; d < shape->ndim; d++) {
        p->elems *= shape->dim[d].extent;
    }
    p->x = must_alloc(p->elems, sizeof(float));
    for (int64_t i = 0; i < p->elems; i++) {
        p->x[i] = 2 * symmetric();
    }
    rounded(p->x, p->elems, shape->dtype);
    int64_t samples = shape->dim[0].extent;
    float *vector = must_alloc(samples * VECTOR_ROWS * p->c, sizeof(float));
    for (int64_t i = 0; i < samples * VECTOR_ROWS * p->c; i++) {
        vector[i] = symmetric();
    }
    p->conditioning.vector = vector;
    int64_t text_elems = samples * options->text_tokens * p->c;
    float *text = must_alloc(text_elems, sizeof(float));
    for (int64_t i = 0; i < text_elems; i++) {
        text[i] = symmetric();
    }
    rounded(text, text_elems, shape->dtype);
    p->conditioning.text = text;
    int64_t *lengths = must_alloc(samples, sizeof *lengths);
    for (int64_t b = 0; b < samples; b++) {
        lengths[b] = b == 0 ? options->text_tokens : b == 1 ? 0 : between(0, options->text_tokens);
    }
    p->conditioning.text_lengths = lengths;
}

static void close_problem(problem *p)
{
    heddle_block_destroy(p->block);
    free(p->x);
    free((void *)(uintptr_t)p->conditioning.vector);
    free((void *)(uintptr_t)p->conditioning.text);
    free((void *)(uintptr_t)p->conditioning.text_lengths);
}

static void *stored(const float *x, int64_t elems, heddle_dtype dtype)
{
    void *memory = must_alloc(elems, heddle_dtype_bytes(dtype));
    for (int64_t i = 0; i < elems; i++) {
        if (dtype == HEDDLE_BF16) {
            ((uint16_t *)memory)[i] = hd_f32_to_bf16(x[i]);
        } else {
            ((float *)memory)[i] = x[i];
        }
    }
    return memory;
}

static double value_at(const void *x, heddle_dtype dtype, int64_t i)
{
    return dtype == HEDDLE_BF16 ? (double)hd_bf16_to_f32(((const uint16_t *)x)[i]) : (double)((const float *)x)[i];
}

static heddle_box whole_box(const heddle_shape *shape)
{
    heddle_box box;
    memset(&box, 0, sizeof box);
    box.ndim = shape->ndim;
    for (int d = 0; d < shape->ndim; d++) {
        box.len[d] = shape->dim[d].extent;
    }
    return box;
}

/* --- the model ------------------------------------------------------------------------------------------------------
 */

static const float *named(problem *p, const char *name)
{
    for (int i = 0; i < heddle_block_nparams(p->block); i++) {
        heddle_param param;
        HD_OK(heddle_block_param(&param, p->block, i));
        if (strcmp(param.name, name) == 0) {
            return param.data;
        }
    }
    fail_msg("no parameter %s", name);
    return NULL;
}

static void linear(double *out, const double *x, const float *weight, const float *bias, int64_t k, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        double sum = (double)bias[j];
        for (int64_t i = 0; i < k; i++) {
            sum += x[i] * (double)weight[j * k + i];
        }
        out[j] = sum;
    }
}

static void model_norm(double *out, const problem *p, const double *x, int64_t sample, int shift)
{
    double mean = 0;
    double variance = 0;
    for (int64_t i = 0; i < p->c; i++) {
        mean += x[i] / (double)p->c;
    }
    for (int64_t i = 0; i < p->c; i++) {
        variance += (x[i] - mean) * (x[i] - mean) / (double)p->c;
    }
    const float *vector = p->conditioning.vector + (sample * VECTOR_ROWS + shift) * p->c;
    for (int64_t i = 0; i < p->c; i++) {
        out[i] = (x[i] - mean) / sqrt(variance + 1e-6);
        if (p->options.modulate) {
            out[i] = out[i] * (1 + (double)vector[p->c + i]) + (double)vector[i];
        }
    }
}

static void model_head(double *x, int64_t d, const float *weight, int rope, int64_t position)
{
    double squares = 0;
    for (int64_t i = 0; i < d; i++) {
        squares += x[i] * x[i];
    }
    for (int64_t i = 0; i < d && weight != NULL; i++) {
        x[i] = x[i] / sqrt(squares / (double)d + 1e-6) * (double)weight[i];
    }
    for (int64_t i = 0; i + 1 < d && rope; i += 2) {
        double angle = (double)position / pow(10000, (double)i / (double)d);
        double a = x[i];
        double b = x[i + 1];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + 1] = b * cos(angle) + a * sin(angle);
    }
}

/* One query head against nk key and value heads `stride` apart. */
static void model_attention(double *out, const double *q, const double *k, const double *v, int64_t nk, int64_t d,
                            int64_t stride)
{
    double *weight = must_alloc(nk, sizeof *weight);
    double top = -INFINITY;
    double sum = 0;
    for (int64_t j = 0; j < nk; j++) {
        for (int64_t i = 0; i < d; i++) {
            weight[j] += q[i] * k[j * stride + i] / sqrt((double)d);
        }
        top = weight[j] > top ? weight[j] : top;
    }
    for (int64_t j = 0; j < nk; j++) {
        weight[j] = exp(weight[j] - top);
        sum += weight[j];
    }
    for (int64_t i = 0; i < d; i++) {
        out[i] = 0;
        for (int64_t j = 0; j < nk; j++) {
            out[i] += weight[j] / sum * v[j * stride + i];
        }
    }
    free(weight);
}

static void add_gated(problem *p, double *x, const double *change, int64_t sample, int gate)
{
    const float *vector = p->conditioning.vector + (sample * VECTOR_ROWS + gate) * p->c;
    for (int64_t i = 0; i < p->c; i++) {
        x[i] += p->options.modulate && gate >= 0 ? (double)vector[i] * change[i] : change[i];
    }
}

static void model_self(problem *p, double *x)
{
    const heddle_shape *shape = &p->options.shape;
    int64_t c = p->c;
    int64_t d = c / p->options.heads;
    int64_t rows = p->elems / c;
    int64_t inner = 1;
    for (int i = p->options.mixed_dim + 1; i < shape->ndim - 1; i++) {
        inner *= shape->dim[i].extent;
    }
    int64_t t_extent = shape->dim[p->options.mixed_dim].extent;
    int64_t sample_rows = rows / shape->dim[0].extent;
    double *qkv = must_alloc(rows * 3 * c, sizeof *qkv);
    double *row = must_alloc(c, sizeof *row);
    double *change = must_alloc(c, sizeof *change);
    for (int64_t r = 0; r < rows; r++) {
        model_norm(row, p, x + r * c, r / sample_rows, 0);
        linear(qkv + r * 3 * c, row, named(p, "qkv.weight"), named(p, "qkv.bias"), c, 3 * c);
        for (int64_t h = 0; h < 2 * p->options.heads; h++) {
            const float *weight =
                p->options.qk_norm ? named(p, h < p->options.heads ? "q_norm.weight" : "k_norm.weight") : NULL;
            model_head(qkv + r * 3 * c + h * d, d, weight, p->options.rope, r / inner % t_extent);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t fibre = r - r / inner % t_extent * inner;
        for (int64_t h = 0; h < p->options.heads; h++) {
            const double *k = qkv + fibre * 3 * c + c + h * d;
            model_attention(row + h * d, qkv + r * 3 * c + h * d, k, k + c, t_extent, d, inner * 3 * c);
        }
        linear(change, row, named(p, "proj.weight"), named(p, "proj.bias"), c, c);
        add_gated(p, x + r * c, change, r / sample_rows, 2);
    }
    free(qkv);
    free(row);
    free(change);
}

static void model_cross(problem *p, double *x)
{
    int64_t c = p->c;
    int64_t d = c / p->options.heads;
    int64_t rows = p->elems / c;
    int64_t samples = p->options.shape.dim[0].extent;
    int64_t tokens = p->options.text_tokens;
    double *kv = must_alloc(samples * tokens * 2 * c, sizeof *kv);
    double *row = must_alloc(c, sizeof *row);
    double *mixed = must_alloc(c, sizeof *mixed);
    for (int64_t r = 0; r < samples * tokens; r++) {
        for (int64_t i = 0; i < c; i++) {
            row[i] = (double)p->conditioning.text[r * c + i];
        }
        linear(kv + r * 2 * c, row, named(p, "kv_linear.weight"), named(p, "kv_linear.bias"), c, 2 * c);
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t sample = r / (rows / samples);
        int64_t length = p->conditioning.text_lengths[sample];
        if (length == 0) {
            continue;
        }
        linear(row, x + r * c, named(p, "q_linear.weight"), named(p, "q_linear.bias"), c, c);
        for (int64_t h = 0; h < p->options.heads; h++) {
            const double *k = kv + sample * tokens * 2 * c + h * d;
            model_attention(mixed + h * d, row + h * d, k, k + c, length, d, 2 * c);
        }
        linear(row, mixed, named(p, "proj.weight"), named(p, "proj.bias"), c, c);
        add_gated(p, x + r * c, row, sample, -1);
    }
    free(kv);
    free(row);
    free(mixed);
}

static void model_mlp(problem *p, double *x)
{
    int64_t c = p->c;
    int64_t hidden = p->options.mlp_channels;
    int64_t rows = p->elems / c;
    double *row = must_alloc(c, sizeof *row);
    double *wide = must_alloc(hidden, sizeof *wide);
    for (int64_t r = 0; r < rows; r++) {
        int64_t sample = r / (rows / p->options.shape.dim[0].extent);
        model_norm(row, p, x + r * c, sample, 3);
        linear(wide, row, named(p, "fc1.weight"), named(p, "fc1.bias"), c, hidden);
        for (int64_t i = 0; i < hidden; i++) {
            double y = wide[i];
            wide[i] = 0.5 * y * (1 + tanh(0.79788456080286535588 * (y + 0.044715 * y * y * y)));
        }
        linear(row, wide, named(p, "fc2.weight"), named(p, "fc2.bias"), hidden, c);
        add_gated(p, x + r * c, row, sample, 5);
    }
    free(row);
    free(wide);
}

/* Largest error against the model, relative to the largest value. f32: sums of up to a few thousand terms of size 1;
 * bf16: three roundings to 8 bits on the way (normed, qkv or hidden, mixed) and one at the end. */
static double tolerance(heddle_dtype dtype)
{
    return dtype == HEDDLE_BF16 ? 2e-2 : 2e-6;
}

static void check_against_model(problem *p)
{
    heddle_dtype dtype = p->options.shape.dtype;
    double *wanted = must_alloc(p->elems, sizeof *wanted);
    void *x = stored(p->x, p->elems, dtype);
    heddle_box box = whole_box(&p->options.shape);
    for (int64_t i = 0; i < p->elems; i++) {
        wanted[i] = (double)p->x[i];
    }
    void (*model)(problem *, double *) = p->options.kind == HEDDLE_STAGE_ATTENTION ? model_self
                                         : p->options.kind == HEDDLE_STAGE_CROSS   ? model_cross
                                                                                   : model_mlp;
    model(p, wanted);
    HD_OK(heddle_block_forward(p->block, x, &box, &p->conditioning));
    double largest = 1;
    double worst = 0;
    for (int64_t i = 0; i < p->elems; i++) {
        double error = fabs(value_at(x, dtype, i) - wanted[i]);
        assert_true(isfinite(error));
        worst = error > worst ? error : worst;
        largest = fabs(wanted[i]) > largest ? fabs(wanted[i]) : largest;
    }
    if (worst > tolerance(dtype) * largest) {
        fail_msg("error %g of values up to %g: %s kind %d", worst, largest, heddle_dtype_name(dtype),
                 (int)p->options.kind);
    }
    free(wanted);
    free(x);
}

static heddle_block_options options_for(heddle_stage_kind kind, heddle_dtype dtype, int ndim, const int64_t *extent)
{
    heddle_block_options options;
    heddle_block_options_init(&options);
    options.kind = kind;
    options.shape = shape_of(dtype, ndim, extent);
    options.mixed_dim = kind == HEDDLE_STAGE_ATTENTION ? 1 : -1;
    options.heads = 2;
    options.mlp_channels = 4 * extent[ndim - 1];
    options.text_tokens = kind == HEDDLE_STAGE_CROSS ? 11 : 0;
    return options;
}

static void check_options_against_model(const heddle_block_options *options)
{
    problem p;
    open_problem(&p, options);
    check_against_model(&p);
    close_problem(&p);
}

static const heddle_dtype dtypes[] = {HEDDLE_F32, HEDDLE_BF16};

static void attention_follows_the_model(void **state)
{
    (void)state;
    static const int64_t extent[] = {2, 5, 7, 48};
    for (int flags = 0; flags < 16; flags++) {
        heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, dtypes[flags & 1], 4, extent);
        options.modulate = flags >> 1 & 1;
        options.rope = flags >> 2 & 1;
        options.qk_norm = flags >> 3 & 1;
        for (options.mixed_dim = 1; options.mixed_dim <= 2; options.mixed_dim++) {
            check_options_against_model(&options);
        }
    }
}

static void cross_follows_the_model(void **state)
{
    (void)state;
    static const int64_t extent[] = {4, 3, 9, 48};
    for (int flags = 0; flags < 4; flags++) {
        heddle_block_options options = options_for(HEDDLE_STAGE_CROSS, dtypes[flags & 1], 4, extent);
        options.text_tokens = flags >> 1 & 1 ? 1 : 37;
        check_options_against_model(&options);
    }
}

static void mlp_follows_the_model(void **state)
{
    (void)state;
    static const int64_t extent[] = {3, 4, 9, 56};
    for (int flags = 0; flags < 4; flags++) {
        heddle_block_options options = options_for(HEDDLE_STAGE_MLP, dtypes[flags & 1], 4, extent);
        options.modulate = flags >> 1 & 1;
        check_options_against_model(&options);
    }
}

static void attention_takes_every_short_length(void **state)
{
    (void)state;
    for (int64_t t = 1; t <= 70; t++) {
        const int64_t extent[] = {1, t, 2, 36};
        heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, dtypes[t & 1], 4, extent);
        options.rope = 1;
        check_options_against_model(&options);
    }
}

static void attention_takes_every_head_width(void **state)
{
    (void)state;
    static const int64_t width[] = {1, 2, 3, 16, 24, 32, 40, 64, 72, 80, 96, 100, 128, 130};
    static const int64_t length[] = {6, 65, 200};
    for (size_t w = 0; w < sizeof width / sizeof width[0]; w++) {
        for (size_t l = 0; l < sizeof length / sizeof length[0]; l++) {
            const int64_t extent[] = {1, length[l], 2 * width[w]};
            heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, dtypes[(w + l) & 1], 3, extent);
            options.qk_norm = width[w] > 8; /* narrower heads amplify rounding without bound */
            check_options_against_model(&options);
        }
    }
}

/* --- rows do not know of one another --------------------------------------------------------------------------------
 */

static int64_t box_offset(const heddle_shape *shape, const heddle_box *box, int64_t row)
{
    int64_t offset = 0;
    int64_t index[HEDDLE_MAX_DIMS];
    for (int d = shape->ndim - 2; d >= 0; d--) {
        index[d] = box->lo[d] + row % box->len[d];
        row /= box->len[d];
    }
    for (int d = 0; d < shape->ndim - 1; d++) {
        offset = offset * shape->dim[d].extent + index[d];
    }
    return offset;
}

static void check_part(problem *p, heddle_block *block, const heddle_box *box, const char *wanted)
{
    const heddle_shape *shape = &p->options.shape;
    size_t row_bytes = (size_t)p->c * heddle_dtype_bytes(shape->dtype);
    int64_t rows = 1;
    for (int d = 0; d < shape->ndim - 1; d++) {
        rows *= box->len[d];
    }
    char *whole = stored(p->x, p->elems, shape->dtype);
    char *part = must_alloc(rows, row_bytes);
    for (int64_t r = 0; r < rows; r++) {
        memcpy(part + (size_t)r * row_bytes, whole + (size_t)box_offset(shape, box, r) * row_bytes, row_bytes);
    }
    HD_OK(heddle_block_forward(block, part, box, &p->conditioning));
    for (int64_t r = 0; r < rows; r++) {
        if (memcmp(part + (size_t)r * row_bytes, wanted + (size_t)box_offset(shape, box, r) * row_bytes, row_bytes)) {
            fail_msg("row %lld of %lld differs from the whole tensor's", (long long)r, (long long)rows);
        }
    }
    free(whole);
    free(part);
}

static void check_parts(const heddle_block_options *options, int parts)
{
    problem p;
    open_problem(&p, options);
    const heddle_shape *shape = &options->shape;
    char *wanted = stored(p.x, p.elems, shape->dtype);
    heddle_box whole = whole_box(shape);
    HD_OK(heddle_block_forward(p.block, wanted, &whole, &p.conditioning));
    heddle_block *threaded = NULL;
    heddle_block_options more = *options;
    more.threads = 3;
    HD_OK(heddle_block_create(&threaded, &more));
    HD_OK(heddle_block_seed(threaded, 7));
    check_part(&p, threaded, &whole, wanted);
    for (int i = 0; i < parts; i++) {
        heddle_box box = whole;
        for (int d = 0; d < shape->ndim - 1; d++) {
            int alone = i % 3 == 0; /* a single fibre or row */
            if (d != options->mixed_dim) {
                box.len[d] = alone ? 1 : between(1, shape->dim[d].extent);
                box.lo[d] = between(0, shape->dim[d].extent - box.len[d]);
            }
        }
        check_part(&p, i & 1 ? threaded : p.block, &box, wanted);
    }
    heddle_block_destroy(threaded);
    free(wanted);
    close_problem(&p);
}

static void attention_rows_are_independent(void **state)
{
    (void)state;
    static const int64_t extent[] = {2, 17, 83, 144};
    for (int flags = 0; flags < 4; flags++) {
        heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, dtypes[flags & 1], 4, extent);
        options.mixed_dim = 1 + (flags >> 1);
        options.rope = 1;
        options.qk_norm = 1;
        check_parts(&options, 24);
    }
}

static void cross_rows_are_independent(void **state)
{
    (void)state;
    static const int64_t extent[] = {3, 9, 67, 144};
    for (int i = 0; i < 2; i++) {
        heddle_block_options options = options_for(HEDDLE_STAGE_CROSS, dtypes[i], 4, extent);
        options.text_tokens = 120;
        check_parts(&options, 24);
    }
}

static void mlp_rows_are_independent(void **state)
{
    (void)state;
    static const int64_t extent[] = {3, 9, 67, 144};
    for (int i = 0; i < 2; i++) {
        heddle_block_options options = options_for(HEDDLE_STAGE_MLP, dtypes[i], 4, extent);
        options.mlp_channels = 580;
        check_parts(&options, 24);
    }
}

static void linear_rows_are_independent(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        int64_t rows = between(1, 300);
        int64_t k = between(1, 200);
        int64_t n = between(1, 200);
        float *x = must_alloc(rows * k, sizeof *x);
        float *weight = must_alloc(n * k, sizeof *weight);
        float *bias = must_alloc(n, sizeof *bias);
        float *whole = must_alloc(rows * n, sizeof *whole);
        float *part = must_alloc(rows * n, sizeof *part);
        for (int64_t j = 0; j < rows * k; j++) {
            x[j] = symmetric();
        }
        for (int64_t j = 0; j < n * k; j++) {
            weight[j] = symmetric();
        }
        for (int64_t j = 0; j < n; j++) {
            bias[j] = symmetric();
        }
        HD_OK(heddle_linear_forward(whole, x, rows, k, weight, i & 1 ? bias : NULL, n, 1 + i % 3));
        for (int64_t j = 0; j < rows * n; j++) {
            double sum = i & 1 ? (double)bias[j % n] : 0;
            for (int64_t l = 0; l < k; l++) {
                sum += (double)x[j / n * k + l] * (double)weight[j % n * k + l];
            }
            assert_true(fabs(sum - (double)whole[j]) < 2e-5);
        }
        int64_t first = between(0, rows - 1);
        int64_t count = between(1, rows - first);
        HD_OK(heddle_linear_forward(part, x + first * k, count, k, weight, i & 1 ? bias : NULL, n, 1));
        assert_memory_equal(part, whole + first * n, (size_t)(count * n) * sizeof(float));
        free(x);
        free(weight);
        free(bias);
        free(whole);
        free(part);
    }
}

/* --- odd values, odd arguments, odd callers -------------------------------------------------------------------------
 */

static void nan_stays_in_its_fibre(void **state)
{
    (void)state;
    static const int64_t extent[] = {1, 6, 5, 32};
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < 2; i++) {
            problem p;
            heddle_block_options options = options_for((heddle_stage_kind)kind, dtypes[i], 4, extent);
            open_problem(&p, &options);
            int64_t bad = 2 * 5 + 3; /* t = 2, s = 3 */
            p.x[bad * 32 + 1] = NAN;
            void *x = stored(p.x, p.elems, dtypes[i]);
            heddle_box box = whole_box(&options.shape);
            HD_OK(heddle_block_forward(p.block, x, &box, &p.conditioning));
            for (int64_t e = 0; e < p.elems; e++) {
                int64_t row = e / 32;
                int reached = kind == HEDDLE_STAGE_ATTENTION ? row % 5 == 3 : row == bad;
                assert_int_equal(!!isnan(value_at(x, dtypes[i], e)), reached);
            }
            free(x);
            close_problem(&p);
        }
    }
}

static void huge_scores_stay_finite(void **state)
{
    (void)state;
    static const int64_t extent[] = {1, 40, 32};
    problem p;
    heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, HEDDLE_F32, 3, extent);
    open_problem(&p, &options);
    heddle_param param;
    HD_OK(heddle_block_param(&param, p.block, 0));
    for (int64_t i = 0; i < param.extent[0] * param.extent[1]; i++) {
        param.data[i] *= 300;
    }
    HD_OK(heddle_block_commit(p.block));
    heddle_box box = whole_box(&options.shape);
    HD_OK(heddle_block_forward(p.block, p.x, &box, &p.conditioning));
    for (int64_t i = 0; i < p.elems; i++) {
        assert_true(isfinite(p.x[i]));
    }
    close_problem(&p);
}

static void expect_sentence(const char *part)
{
    if (strstr(heddle_last_error(), part) == NULL) {
        fail_msg("\"%s\" does not contain \"%s\"", heddle_last_error(), part);
    }
}

static void wrong_options_are_refused(void **state)
{
    (void)state;
    static const int64_t extent[] = {1, 6, 5, 30};
    heddle_block *block = NULL;
    const heddle_block_options good = options_for(HEDDLE_STAGE_ATTENTION, HEDDLE_F32, 4, extent);
    heddle_block_options bad = good;
    bad.heads = 7;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
    expect_sentence("30 channels cannot be divided into 7 heads");
    bad = good;
    bad.rope = 1;
    bad.heads = 2;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
    expect_sentence("15");
    for (bad = good, bad.mixed_dim = -1; bad.mixed_dim < 5; bad.mixed_dim += bad.mixed_dim == 0 ? 3 : 1) {
        HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
        expect_sentence("mixed_dim");
    }
    bad = good;
    bad.shape.dtype = HEDDLE_F16;
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_block_create(&block, &bad));
    expect_sentence("f16");
    bad = good;
    bad.struct_bytes = 3;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
    bad = good;
    bad.threads = -1;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
    bad = good;
    bad.kind = HEDDLE_STAGE_CROSS;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
    expect_sentence("text_tokens");
    bad = good;
    bad.kind = HEDDLE_STAGE_MLP;
    bad.mlp_channels = 0;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
    expect_sentence("mlp_channels");
    bad = good;
    bad.kind = (heddle_stage_kind)9;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, NULL));
    assert_null(block);
    float one = 0;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_linear_forward(&one, &one, 1, 0, &one, NULL, 1, 1));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_linear_forward(&one, &one, -1, 1, &one, NULL, 1, 1));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_linear_forward(&one, NULL, 1, 1, &one, NULL, 1, 1));
    HD_OK(heddle_linear_forward(NULL, NULL, 0, 1, NULL, NULL, 1, 1));
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    static const int64_t extent[] = {2, 6, 5, 32};
    problem p;
    heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, HEDDLE_F32, 4, extent);
    open_problem(&p, &options);
    heddle_box box = whole_box(&options.shape);
    box.len[1] = 3;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_block_forward(p.block, p.x, &box, &p.conditioning));
    expect_sentence("0..3 of 6");
    box = whole_box(&options.shape);
    box.len[3] = 16;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_block_forward(p.block, p.x, &box, &p.conditioning));
    box = whole_box(&options.shape);
    box.lo[2] = 1;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_block_forward(p.block, p.x, &box, &p.conditioning));
    box = whole_box(&options.shape);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_forward(p.block, p.x, &box, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_forward(p.block, NULL, &box, &p.conditioning));
    box.len[2] = 0;
    HD_OK(heddle_block_forward(p.block, NULL, &box, &p.conditioning));
    heddle_block *fresh = NULL;
    heddle_param param;
    HD_OK(heddle_block_create(&fresh, &options));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_forward(fresh, p.x, &box, &p.conditioning));
    expect_sentence("heddle_block_commit");
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_param(&param, fresh, heddle_block_nparams(fresh)));
    heddle_block_destroy(fresh);
    heddle_block_destroy(NULL);
    close_problem(&p);
}

static void wrong_text_lengths_are_refused(void **state)
{
    (void)state;
    static const int64_t extent[] = {2, 6, 5, 32};
    problem p;
    heddle_block_options options = options_for(HEDDLE_STAGE_CROSS, HEDDLE_F32, 4, extent);
    open_problem(&p, &options);
    heddle_box box = whole_box(&options.shape);
    const int64_t lengths[] = {3, 12};
    p.conditioning.text_lengths = (free((void *)(uintptr_t)p.conditioning.text_lengths), NULL);
    heddle_conditioning bad = p.conditioning;
    bad.text_lengths = lengths;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_forward(p.block, p.x, &box, &bad));
    expect_sentence("text length 12 of sample 1");
    HD_OK(heddle_block_forward(p.block, p.x, &box, &p.conditioning)); /* NULL: all tokens */
    close_problem(&p);
}

static void steady_state_keeps_the_workspace(void **state)
{
    (void)state;
    static const int64_t extent[] = {1, 40, 30, 32};
    for (int kind = 0; kind < 3; kind++) {
        problem p;
        heddle_block_options options = options_for((heddle_stage_kind)kind, HEDDLE_BF16, 4, extent);
        open_problem(&p, &options);
        void *x = stored(p.x, p.elems, HEDDLE_BF16);
        heddle_box box = whole_box(&options.shape);
        HD_OK(heddle_block_forward(p.block, x, &box, &p.conditioning));
        int64_t bytes = heddle_block_workspace_bytes(p.block);
        assert_true(bytes > 0);
        box.len[2] = 7;
        HD_OK(heddle_block_forward(p.block, x, &box, &p.conditioning));
        assert_int_equal(heddle_block_workspace_bytes(p.block), bytes);
        free(x);
        close_problem(&p);
    }
}

/* Ranks as threads: each with a block of its own, at the same time. */
static void *rank_main(void *arg)
{
    static const int64_t extent[] = {1, 6, 50, 96};
    float **out = arg;
    heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, HEDDLE_F32, 4, extent);
    options.modulate = 0;
    heddle_block *block = NULL;
    heddle_box box = whole_box(&options.shape);
    *out = calloc(6 * 50 * 96, sizeof(float));
    for (int i = 0; i < 6 * 50 * 96; i++) {
        (*out)[i] = (float)(i % 97) * 0.01f;
    }
    if (heddle_block_create(&block, &options) != HEDDLE_OK || heddle_block_seed(block, 3) != HEDDLE_OK ||
        heddle_block_forward(block, *out, &box, NULL) != HEDDLE_OK) {
        free(*out);
        *out = NULL;
    }
    heddle_block_destroy(block);
    return NULL;
}

static void ranks_may_be_threads(void **state)
{
    (void)state;
    pthread_t thread[4];
    float *out[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, rank_main, &out[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_non_null(out[i]);
        assert_memory_equal(out[i], out[0], 6 * 50 * 96 * sizeof(float));
    }
    for (int i = 0; i < 4; i++) {
        free(out[i]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(attention_follows_the_model),
        cmocka_unit_test(cross_follows_the_model),
        cmocka_unit_test(mlp_follows_the_model),
        cmocka_unit_test(attention_takes_every_short_length),
        cmocka_unit_test(attention_takes_every_head_width),
        cmocka_unit_test(attention_rows_are_independent),
        cmocka_unit_test(cross_rows_are_independent),
        cmocka_unit_test(mlp_rows_are_independent),
        cmocka_unit_test(linear_rows_are_independent),
        cmocka_unit_test(nan_stays_in_its_fibre),
        cmocka_unit_test(huge_scores_stay_finite),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(wrong_text_lengths_are_refused),
        cmocka_unit_test(steady_state_keeps_the_workspace),
        cmocka_unit_test(ranks_may_be_threads),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
