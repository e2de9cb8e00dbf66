/* Rows do not know of one another: parts of the activation give the bits of the whole. */
#include "block_problem.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void check_part(problem *p, heddle_block *block, const heddle_box *box, const char *wanted)
{
    const heddle_shape *shape = &p->options.shape;
    size_t row_bytes = (size_t)p->c * heddle_dtype_bytes(shape->dtype);
    int64_t rows = heddle_box_elems(box) / p->c;
    char *whole = stored(p->x, p->elems, shape->dtype);
    char *part = part_of(p, box, whole, must_alloc(rows, row_bytes), 0);
    HD_OK(forward_on(block, part, box, &p->conditioning));
    for (int64_t r = 0; r < rows; r++) {
        if (memcmp(part + (size_t)r * row_bytes, wanted + (size_t)row_of(shape, box, r) * row_bytes, row_bytes) != 0) {
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
    HD_OK(forward_on(p.block, wanted, &whole, &p.conditioning));
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

HD_CASE(attention_rows_are_independent)
{
    static const int64_t extent[] = {2, 17, 83, 144};
    for (int flags = 0; flags < 4; flags++) {
        heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, dtypes[flags & 1], 4, extent);
        options.mixed_dim = 1 + (flags >> 1);
        options.rope = 1;
        options.qk_norm = 1;
        check_parts(&options, 24);
    }
}

HD_CASE(rows_of_cross_and_mlp_are_independent)
{
    static const int64_t extent[] = {3, 9, 67, 144};
    for (int i = 0; i < 4; i++) {
        heddle_block_options options =
            options_for(i < 2 ? HEDDLE_STAGE_CROSS : HEDDLE_STAGE_MLP, dtypes[i % 2], 4, extent);
        options.text_tokens = 120;
        options.mlp_channels = 580;
        check_parts(&options, 24);
    }
}

HD_CASE(linear_rows_are_independent)
{
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
        HD_OK(heddle_dense_forward(whole, x, rows, k, weight, i & 1 ? bias : NULL, n, 1 + i % 3, HEDDLE_NO_STREAM));
        for (int64_t j = 0; j < rows * n; j++) {
            double sum = i & 1 ? (double)bias[j % n] : 0;
            for (int64_t l = 0; l < k; l++) {
                sum += (double)x[j / n * k + l] * (double)weight[j % n * k + l];
            }
            assert_true(fabs(sum - (double)whole[j]) < 2e-5);
        }
        int64_t first = between(0, rows - 1);
        int64_t count = between(1, rows - first);
        HD_OK(heddle_dense_forward(part, x + first * k, count, k, weight, i & 1 ? bias : NULL, n, 1, HEDDLE_NO_STREAM));
        assert_memory_equal(part, whole + first * n, (size_t)(count * n) * sizeof(float));
        free(x);
        free(weight);
        free(bias);
        free(whole);
        free(part);
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
        forward_on(block, *out, &box, NULL) != HEDDLE_OK) {
        free(*out);
        *out = NULL;
    }
    heddle_block_destroy(block);
    return NULL;
}

HD_CASE(ranks_may_be_threads)
{
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

HD_CASE(a_fork_keeps_the_block)
{
    static const int64_t extent[] = {1, 9, 40, 96};
    heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, HEDDLE_F32, 4, extent);
    options.threads = 2;
    problem p;
    open_problem(&p, &options);
    heddle_box box = whole_box(&options.shape);
    float *mine = stored(p.x, p.elems, HEDDLE_F32);
    HD_OK(forward_on(p.block, mine, &box, &p.conditioning));
    pid_t child = fork();
    if (child == 0) {
        heddle_status st = forward_on(p.block, p.x, &box, &p.conditioning);
        _exit(st != HEDDLE_OK || memcmp(p.x, mine, (size_t)p.elems * sizeof *mine) != 0);
    }
    int result = -1;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    free(mine);
    close_problem(&p);
}
