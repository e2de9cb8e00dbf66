/* Dense pairs: wrong use, and what every rank hears of it. */
#include "case.h"
#include "check.h"

#include "runtime/base/base.h"

#include <heddle/train/dense_pair.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static heddle_status wrong_calls(heddle_comm *comm, const heddle_shape *shape, const heddle_mesh *mesh,
                                 const heddle_layout *layout)
{
    heddle_status st = HEDDLE_OK;
    heddle_dense_pair_options options;
    heddle_dense_pair *pair = NULL, *kept = NULL;
    heddle_param param = HEDDLE_EMPTY(heddle_param);
    float x[64] = {0};
    heddle_dense_pair_options_init(&options);
    options.hidden = 4;
    options.forward_only = 1;
    HD_TRY(heddle_dense_pair_create(&pair, comm, shape, mesh, layout, 0, &options));
    options.forward_only = 0;
    options.keep_gathered = 1;
    HD_TRY(heddle_dense_pair_create(&kept, comm, shape, mesh, layout, 0, &options));
    CHECK(heddle_dense_pair_forward(pair, x, x, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG); /* not committed */
    HD_TRY(heddle_dense_pair_commit(pair));
    HD_TRY(heddle_dense_pair_commit(kept));
    CHECK(heddle_dense_pair_forward(pair, x, NULL, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(heddle_dense_pair_forward(NULL, x, x, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(heddle_dense_pair_backward(pair, x, x, x, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(heddle_dense_pair_backward(kept, x, x, x, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG); /* nothing kept */
    CHECK(heddle_dense_pair_gradient(&param, pair, 0) == HEDDLE_ERR_ARG);
    CHECK(heddle_dense_pair_param(&param, pair, 4) == HEDDLE_ERR_ARG);
    CHECK(heddle_dense_pair_param(&param, pair, -1) == HEDDLE_ERR_ARG);
    CHECK(heddle_dense_pair_get_info(NULL, pair) == HEDDLE_ERR_ARG);
    HD_TRY(heddle_dense_pair_forward(pair, x, x, HEDDLE_NO_STREAM));
    HD_TRY(heddle_dense_pair_forward(kept, x, x, HEDDLE_NO_STREAM));
    CHECK(heddle_dense_pair_forward(kept, x, (char *)x + 1, HEDDLE_NO_STREAM) ==
          HEDDLE_ERR_ARG);                                                  /* no float lies there */
    HD_TRY(heddle_dense_pair_backward(kept, x, x, NULL, HEDDLE_NO_STREAM)); /* of the forward before */
    HD_TRY(heddle_dense_pair_forward(kept, x, x, HEDDLE_NO_STREAM));
    HD_TRY(heddle_dense_pair_commit(kept)); /* what it kept is of the old weights */
    CHECK(heddle_dense_pair_backward(kept, x, x, NULL, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    heddle_dense_pair_zero_gradients(pair, HEDDLE_NO_STREAM);
out:
    heddle_dense_pair_destroy(pair);
    heddle_dense_pair_destroy(kept);
    return st;
}

/* Rank 1 asks for something else; everybody hears of it, and the communicator works on. */
HD_RANK_CASE(mistakes, "2 threads", "2 shm")
{
    heddle_status st = HEDDLE_OK;
    int odd = heddle_comm_rank(comm) == 1;
    heddle_dense_pair *pair = NULL;
    for (int kind = 0; kind < 15; kind++) {
        heddle_shape shape;
        heddle_mesh mesh = {.naxes = 1, .axis = {{"tp", 2}}};
        heddle_layout layout;
        heddle_dense_pair_options options;
        heddle_status wanted = kind < 5 ? HEDDLE_ERR_MISMATCH : odd ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER;
        wanted = kind > 8 && kind < 14 && odd ? HEDDLE_ERR_LAYOUT : wanted;
        wanted = kind == 13 && odd ? HEDDLE_ERR_UNSUPPORTED : wanted;
        HD_TRY(heddle_shape_parse(&shape, odd && kind == 0 ? "f32[n=9 c=4]" : "f32[n=8 c=4]"));
        HD_TRY(heddle_layout_parse(&layout, "n@tp", &shape, &mesh));
        heddle_dense_pair_options_init(&options);
        options.hidden = 4;
        if (odd) {
            options.hidden = kind == 1 ? 5 : kind == 5 ? 0 : 4;
            options.keep_gathered = kind == 2;
            options.forward_only = kind == 3;
            options.activation = kind == 4   ? HEDDLE_ACTIVATION_NONE
                                 : kind == 6 ? (heddle_activation)7
                                             : HEDDLE_ACTIVATION_GELU;
            options.threads = kind == 7 ? -1 : 0;
            mesh.axis[0].size = kind == 9 ? 3 : 2;
            layout.dim_of_axis[0] = kind == 10 ? 1 : kind == 11 ? HEDDLE_PARTIAL : kind == 12 ? HEDDLE_REPLICATED : 0;
            options.deadline_ms = kind == 14 ? INT64_MAX : 0;
            shape.dtype = kind == 13 ? HEDDLE_F64 : HEDDLE_F32;
        }
        CHECK(heddle_dense_pair_create(&pair, comm, &shape, &mesh, &layout, odd && kind == 8 ? 1 : 0, &options) ==
              wanted);
        CHECK(pair == NULL && heddle_last_error()[0] != 0);
    }
    heddle_shape shape;
    const heddle_mesh mesh = {.naxes = 1, .axis = {{"tp", 2}}};
    heddle_layout layout;
    HD_TRY(heddle_shape_parse(&shape, "f32[n=8 c=4]"));
    HD_TRY(heddle_layout_parse(&layout, "n@tp", &shape, &mesh));
    CHECK(heddle_dense_pair_create(NULL, comm, &shape, &mesh, &layout, 0, NULL) == HEDDLE_ERR_ARG);
    CHECK(heddle_dense_pair_create(&pair, NULL, &shape, &mesh, &layout, 0, NULL) == HEDDLE_ERR_ARG);
    CHECK(heddle_dense_pair_create(&pair, comm, &shape, &mesh, &layout, 0, NULL) == HEDDLE_ERR_ARG); /* no hidden */
    heddle_dense_pair_options options;
    heddle_shape wide;
    heddle_dense_pair_options_init(&options);
    options.hidden = INT32_MAX;
    HD_TRY(heddle_shape_parse(&wide, "f32[n=8 c=4096]"));
    CHECK(heddle_dense_pair_create(&pair, comm, &wide, &mesh, &layout, 0, &options) == HEDDLE_ERR_NOMEM);
    HD_TRY(wrong_calls(comm, &shape, &mesh, &layout));
out:
    heddle_dense_pair_destroy(pair);
    return st;
}

HD_CASE(null_is_taken)
{
    heddle_dense_pair_destroy(NULL);
    heddle_dense_pair_zero_gradients(NULL, HEDDLE_NO_STREAM);
}
