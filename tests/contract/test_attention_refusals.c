/* A call that is refused leaves attention objects, pairs and tapes as they were. */
#include "case.h"

#include <heddle/heddle.h>
#include <heddle/train/tape.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 8, HEADS = 2, WIDTH = 4, ELEMS = ROWS * HEADS * WIDTH };

typedef struct arrays {
    float data[8][ELEMS]; /* q k v o do dq dk dv */
    heddle_attention_array at[8];
} arrays;

static void fill(arrays *x)
{
    memset(x, 0, sizeof *x);
    for (int i = 0; i < 8; i++) {
        for (int e = 0; e < ELEMS; e++) {
            x->data[i][e] = (float)((e * 31 + i * 17) % 23) / 8 - 1;
        }
        x->at[i].data = x->data[i];
    }
}

typedef struct problem {
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
} problem;

static void parse(problem *p, int ranks)
{
    HD_OK(heddle_shape_parse(&p->shape, ranks == 1 ? "f32[b=1 s=8 h=2 d=4]" : "f32[b=1 s=16 h=2 d=4]"));
    HD_OK(heddle_mesh_parse(&p->mesh, ranks == 1 ? "[sp=1]" : "[sp=2]"));
    HD_OK(heddle_layout_parse(&p->layout, "s@sp", &p->shape, &p->mesh));
}

static void same_gradients(const arrays *x, const arrays *wanted)
{
    assert_memory_equal(x->data[5], wanted->data[5], 3 * sizeof x->data[5]);
}

/* --- softmax attention -------------------------------------------------------------------------------------------- */

static heddle_status forward(heddle_attention *a, arrays *x)
{
    return heddle_attention_forward(a, &x->at[0], &x->at[1], &x->at[2], &x->at[3], NULL, HEDDLE_NO_STREAM);
}

static heddle_status backward(heddle_attention *a, arrays *x)
{
    return heddle_attention_backward(a, &x->at[4], &x->at[5], &x->at[6], &x->at[7], HEDDLE_NO_STREAM);
}

/* What every rank is refused alike. */
HD_RANK_CASE(softmax_refused_on_every_rank, "1 threads", "2 threads")
{
    problem p;
    arrays x;
    heddle_attention *a = NULL;
    heddle_attention_options options;
    parse(&p, heddle_comm_size(comm));
    fill(&x);
    heddle_attention_options_init(&options);
    options.method = HEDDLE_ATTENTION_RING;
    HD_OK(heddle_attention_create(&a, comm, &p.shape, &p.mesh, &p.layout, &options));
    for (int i = 0; i < 2; i++) {
        HD_FAILS(HEDDLE_ERR_ARG, backward(a, &x));
        assert_non_null(strstr(heddle_last_error(), "before forward"));
    }
    HD_OK(forward(a, &x));
    HD_OK(backward(a, &x));
    heddle_attention_destroy(a);
    options.forward_only = 1;
    HD_OK(heddle_attention_create(&a, comm, &p.shape, &p.mesh, &p.layout, &options));
    HD_OK(forward(a, &x));
    HD_FAILS(HEDDLE_ERR_ARG, backward(a, &x));
    HD_OK(forward(a, &x));
    heddle_attention_destroy(a);
    options.forward_only = 0;
    options.deadline_ms = INT64_MAX; /* no clock gets there */
    HD_FAILS(HEDDLE_ERR_ARG, heddle_attention_create(&a, comm, &p.shape, &p.mesh, &p.layout, &options));
    options.deadline_ms = 0;
    options.method = HEDDLE_ATTENTION_RSA;
    options.projected_length = 3;
    HD_OK(heddle_attention_create(&a, comm, &p.shape, &p.mesh, &p.layout, &options));
    HD_FAILS(HEDDLE_ERR_ARG, forward(a, &x));
    assert_non_null(strstr(heddle_last_error(), "before heddle_attention_set_projection"));
    float e[2][3 * ROWS] = {{1}, {1}};
    HD_OK(heddle_attention_set_projection(a, e[0], e[1], NULL, NULL));
    HD_OK(forward(a, &x));
    HD_OK(backward(a, &x));
    heddle_attention_destroy(a);
    options.projected_length = 0;
    HD_OK(heddle_attention_create(&a, comm, &p.shape, &p.mesh, &p.layout, &options));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_attention_set_projection(a, e[0], e[1], NULL, NULL));
    assert_non_null(strstr(heddle_last_error(), "no projected length in the options"));
    heddle_attention_destroy(a);
    return HEDDLE_OK;
}

/* 390 heads of q, k and v lie over 129 ranks as 6 and 128 times 3, and no layout has that many blocks of its own. */
HD_RANK_CASE(more_uneven_blocks_than_a_layout_has, "129 threads")
{
    problem p;
    heddle_attention *a = NULL;
    heddle_attention_options options;
    heddle_attention_options_init(&options);
    options.method = HEDDLE_ATTENTION_ULYSSES;
    HD_OK(heddle_shape_parse(&p.shape, "f32[b=1 s=129 h=130 d=1]"));
    HD_OK(heddle_mesh_parse(&p.mesh, "[sp=129]"));
    HD_OK(heddle_layout_parse(&p.layout, "s@sp", &p.shape, &p.mesh));
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_attention_create(&a, comm, &p.shape, &p.mesh, &p.layout, &options));
    assert_non_null(strstr(heddle_last_error(), "uneven blocks over 129 ranks, layouts have at most 128"));
    return HEDDLE_OK;
}

/* One rank: whatever is wrong. */
HD_RANK_CASE(softmax_refused_on_one_rank, "1 threads")
{
    problem p;
    arrays x, wanted;
    float lse[ROWS * HEADS];
    heddle_attention *a = NULL;
    heddle_attention_array *at = x.at;
    const heddle_attention_array none = {.data = NULL};
    heddle_stream stream = (heddle_stream)(uintptr_t)64;
    parse(&p, 1);
    fill(&x);
    HD_OK(heddle_attention_create(&a, comm, &p.shape, &p.mesh, &p.layout, NULL));
    HD_OK(heddle_attention_forward(a, &at[0], &at[1], &at[2], &at[3], NULL, stream)); /* ignored: host memory */
    HD_OK(backward(a, &x));
    wanted = x;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_attention_forward(a, &none, &at[1], &at[2], &at[3], NULL, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_attention_forward(a, &at[0], &at[1], &at[2], &at[3], lse, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_attention_backward(a, NULL, &at[5], &at[6], &at[7], HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_attention_backward(a, &at[4], &at[5], &none, &at[7], HEDDLE_NO_STREAM));
    memset(x.data[5], 0, 3 * sizeof x.data[5]);
    HD_OK(backward(a, &x)); /* of the forward before all that */
    same_gradients(&x, &wanted);
    heddle_attention_destroy(a);
    return HEDDLE_OK;
}

/* Of one row two ranks have one between them: the other one may leave its arrays out. */
HD_RANK_CASE(softmax_of_a_rank_that_holds_nothing, "2 threads")
{
    problem p;
    arrays x;
    heddle_attention *a = NULL;
    heddle_attention_options options;
    const heddle_attention_array *at[8];
    parse(&p, 2);
    p.shape.dim[1].extent = 1;
    fill(&x);
    for (int i = 0; i < 8; i++) {
        at[i] = heddle_comm_rank(comm) == 0 ? &x.at[i] : NULL;
    }
    heddle_attention_options_init(&options);
    for (options.method = HEDDLE_ATTENTION_ULYSSES; options.method <= HEDDLE_ATTENTION_GATHER_KV; options.method++) {
        if (options.method != HEDDLE_ATTENTION_USP) {
            HD_OK(heddle_attention_create(&a, comm, &p.shape, &p.mesh, &p.layout, &options));
            HD_OK(heddle_attention_forward(a, at[0], at[1], at[2], at[3], NULL, HEDDLE_NO_STREAM));
            HD_OK(heddle_attention_backward(a, at[4], at[5], at[6], at[7], HEDDLE_NO_STREAM));
            HD_OK(heddle_comm_barrier(comm));
            heddle_attention_destroy(a);
        }
    }
    return HEDDLE_OK;
}

/* --- linear attention --------------------------------------------------------------------------------------------- */

static heddle_status linear_forward(heddle_linear_attention *a, arrays *x)
{
    return heddle_linear_attention_forward(a, &x->at[0], &x->at[1], &x->at[2], &x->at[3], HEDDLE_NO_STREAM);
}

static heddle_status linear_backward(heddle_linear_attention *a, arrays *x)
{
    heddle_attention_array *at = x->at;
    return heddle_linear_attention_backward(a, &at[0], &at[1], &at[2], &at[4], &at[5], &at[6], &at[7],
                                            HEDDLE_NO_STREAM);
}

/* Strides of one array after the other, of either kind of attention: those that are written may not fold onto
 * themselves, none may be negative or reach too far. */
HD_RANK_CASES(strides_of_either, 2, "1 threads")
{
    static const struct {
        int64_t stride[4];
        int takes_source; /* what is only read may have it */
        const char *why;
    } row[] = {
        {{64, -8, 4, 1}, 0, "stride of dim s is -8 elements, less than 0"},
        {{64, 8, (int64_t)1 << 60, 1}, 0, "stride of dim h is 1152921504606846976 elements for 2 rows of f32"},
        {{64, INT64_MAX / 2, 4, 1}, 0, "reaches beyond 2^62 bytes"},
        {{64, 4, 4, 1}, 1, "stride of dim h is 4 elements, but its rows reach over 32"},
        {{0, 8, 4, 0}, 1, "stride of dim d is 0 elements, but its rows reach over 1"},
    };
    static const char *const names[] = {"q", "k", "v", "o", "d_o", "dq", "dk", "dv"};
    problem p;
    arrays x;
    heddle_attention *a = NULL;
    heddle_linear_attention *b = NULL;
    parse(&p, 1);
    HD_OK(nth == 0 ? heddle_attention_create(&a, comm, &p.shape, &p.mesh, &p.layout, NULL)
                   : heddle_linear_attention_create(&b, comm, &p.shape, &p.mesh, &p.layout, NULL));
    for (int i = 0; i < 8; i++) {
        int is_written = i == 3 || i > 4;
        for (size_t k = 0; k < sizeof row / sizeof row[0]; k++) {
            char wanted[80];
            fill(&x);
            HD_OK(nth == 0 ? forward(a, &x) : linear_forward(b, &x));
            memcpy(x.at[i].stride_elems, row[k].stride, sizeof row[k].stride);
            HD_FAILS(is_written || !row[k].takes_source ? HEDDLE_ERR_ARG : HEDDLE_OK,
                     i < 4      ? nth == 0 ? forward(a, &x) : linear_forward(b, &x)
                          : nth == 0 ? backward(a, &x)
                                : linear_backward(b, &x));
            if (is_written || !row[k].takes_source) {
                snprintf(wanted, sizeof wanted, "%s: %s on rank 0: ", i < 4 ? "forward" : "backward", names[i]);
                assert_non_null(strstr(heddle_last_error(), wanted));
                assert_non_null(strstr(heddle_last_error(), row[k].why));
            }
        }
    }
    heddle_attention_destroy(a);
    heddle_linear_attention_destroy(b);
    return HEDDLE_OK;
}

HD_RANK_CASE(linear_attention_refused, "1 threads", "2 threads")
{
    problem p;
    arrays x, wanted;
    heddle_linear_attention *a = NULL;
    heddle_linear_attention_options options;
    heddle_attention_array *at = x.at;
    const heddle_attention_array none = {.data = NULL};
    parse(&p, heddle_comm_size(comm));
    fill(&x);
    heddle_linear_attention_options_init(&options);
    options.method = HEDDLE_LINEAR_LASP;
    HD_OK(heddle_linear_attention_create(&a, comm, &p.shape, &p.mesh, &p.layout, &options));
    for (int i = 0; i < 2; i++) {
        HD_FAILS(HEDDLE_ERR_ARG, linear_backward(a, &x));
    }
    HD_OK(heddle_linear_attention_forward(a, &at[0], &at[1], &at[2], &at[3], HEDDLE_NO_STREAM));
    HD_OK(linear_backward(a, &x));
    if (heddle_comm_size(comm) == 1) {
        wanted = x;
        HD_FAILS(HEDDLE_ERR_ARG, heddle_linear_attention_forward(a, &none, &at[1], &at[2], &at[3], HEDDLE_NO_STREAM));
        HD_FAILS(HEDDLE_ERR_ARG, heddle_linear_attention_backward(a, &at[0], &none, &at[2], &at[4], &at[5], &at[6],
                                                                  &at[7], HEDDLE_NO_STREAM));
        memset(x.data[5], 0, 3 * sizeof x.data[5]);
        HD_OK(linear_backward(a, &x));
        same_gradients(&x, &wanted);
    }
    heddle_linear_attention_destroy(a);
    return HEDDLE_OK;
}

HD_RANK_CASE(state_refused, "1 threads", "2 threads")
{
    problem p;
    arrays x;
    heddle_linear_attention *a = NULL;
    heddle_linear_attention_options options;
    float state[HEADS * WIDTH * WIDTH], wanted[HEADS * WIDTH * WIDTH];
    parse(&p, heddle_comm_size(comm));
    fill(&x);
    heddle_linear_attention_options_init(&options);
    options.method = HEDDLE_LINEAR_LASP;
    options.bidirectional = 1;
    HD_OK(heddle_linear_attention_create(&a, comm, &p.shape, &p.mesh, &p.layout, &options));
    HD_OK(heddle_linear_attention_forward(a, &x.at[0], &x.at[1], &x.at[2], &x.at[3], HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_linear_attention_state(state, a, HEDDLE_LINEAR_STATE_PLAIN, HEDDLE_NO_STREAM));
    assert_non_null(strstr(heddle_last_error(), "the bidirectional form has no last state"));
    heddle_linear_attention_destroy(a);
    options.bidirectional = 0;
    HD_OK(heddle_linear_attention_create(&a, comm, &p.shape, &p.mesh, &p.layout, &options));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_linear_attention_state(state, a, HEDDLE_LINEAR_STATE_PLAIN, HEDDLE_NO_STREAM));
    assert_non_null(strstr(heddle_last_error(), "there was no forward"));
    HD_OK(heddle_linear_attention_forward(a, &x.at[0], &x.at[1], &x.at[2], &x.at[3], HEDDLE_NO_STREAM));
    HD_OK(heddle_linear_attention_state(state, a, HEDDLE_LINEAR_STATE_DECAYED, HEDDLE_NO_STREAM));
    memset(state, 0x5a, sizeof state);
    memcpy(wanted, state, sizeof state);
    for (int i = -1; i < 3; i += 3) {
        char sentence[80];
        snprintf(sentence, sizeof sentence, "linear attention: convention is %d, wanted 0", i);
        HD_FAILS(HEDDLE_ERR_ARG, heddle_linear_attention_state(state, a, (heddle_linear_state)i, HEDDLE_NO_STREAM));
        assert_non_null(strstr(heddle_last_error(), sentence));
        assert_memory_equal(state, wanted, sizeof state);
    }
    heddle_linear_attention_destroy(a);
    return HEDDLE_OK;
}

/* --- extents whose products pass 64 bits -------------------------------------------------------------------------- */

static void planned(const char *shape_text, int64_t projected, int64_t kv_heads)
{
    problem p;
    heddle_attention_traffic traffic;
    heddle_attention_options options;
    heddle_attention_options_init(&options);
    options.method = projected > 0 ? HEDDLE_ATTENTION_RSA : HEDDLE_ATTENTION_RING;
    options.projected_length = projected;
    options.kv_heads = kv_heads;
    parse(&p, 2);
    HD_OK(heddle_shape_parse(&p.shape, shape_text));
    HD_FAILS(HEDDLE_ERR_NOMEM, heddle_attention_plan_traffic(&traffic, &p.shape, &p.mesh, &p.layout, &options, 0));
    assert_non_null(strstr(heddle_last_error(), " x "));
}

HD_CASE(products_beyond_64_bits)
{
    problem p;
    float x[4] = {0};
    heddle_attention_traffic linear_traffic;
    heddle_linear_attention_options linear_options;
    heddle_linear_attention_options_init(&linear_options);
    linear_options.method = HEDDLE_LINEAR_LASP;
    planned("f32[b=2 s=16 h=2 d=4]", INT64_MAX / 16, 0);
    planned("f32[b=1152921504606846976 s=1 h=1 d=1]", 0, 0);
    planned("bf16[b=2 s=500000000000000000 h=1 d=1]", 0, 0);
    parse(&p, 2);
    HD_OK(heddle_shape_parse(&p.shape, "f32[b=1152921504606846976 s=1 h=1 d=1]"));
    HD_FAILS(HEDDLE_ERR_NOMEM,
             heddle_linear_attention_plan_traffic(&linear_traffic, &p.shape, &p.mesh, &p.layout, &linear_options, 0));
    HD_FAILS(HEDDLE_ERR_NOMEM, heddle_dense_forward(x, x, INT64_MAX, 2, x, NULL, 2, 2, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_NOMEM, heddle_dense_forward(x, x, INT64_MAX / 4, 2, x, NULL, 2, 2, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_dense_forward(x, x, INT64_MAX / 4, 0, x, NULL, 0, 2, HEDDLE_NO_STREAM));
}
