/* Refusals, each asked for by one call: of linear attention, blocks, dense pairs, buckets and AdamW. */
#include "case.h"
#include "check.h"

#include "runtime/base/base.h"

#include <heddle/heddle.h>
#include <heddle/train/adamw.h>
#include <heddle/train/bucket.h>
#include <heddle/train/dense_pair.h>
#include <math.h>
#include <string.h>

typedef struct refusal {
    const char *says;
    heddle_status wanted;
    heddle_status (*call)(heddle_comm *comm, const struct refusal *r);
    const char *text; /* of a shape */
    double number;
} refusal;

static float room[256];
static const heddle_mesh one = {.naxes = 1, .axis = {{"sp", 1}}};

static heddle_status make_linear(heddle_comm *comm, const refusal *r)
{
    heddle_linear_attention *made = NULL;
    heddle_shape shape;
    const heddle_layout whole = heddle_layout_replicated();
    heddle_status st = heddle_shape_parse(&shape, r->text);
    return st != HEDDLE_OK ? st : heddle_linear_attention_create(&made, comm, &shape, &one, &whole, NULL);
}

static heddle_status no_linear(heddle_comm *comm, const refusal *r)
{
    (void)comm;
    return r->number == 0 ? heddle_linear_attention_forward(NULL, NULL, NULL, NULL, NULL, NULL)
                          : heddle_linear_attention_backward(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
}

static heddle_status slopes(heddle_comm *comm, const refusal *r)
{
    double out[1];
    (void)comm;
    return heddle_linear_attention_slopes(out, (int64_t)r->number);
}

/* number: 1 a cross stage without text, 2 an MLP without a hidden layer, 3 too many threads; else attention */
static heddle_status make_block(heddle_comm *comm, const refusal *r)
{
    heddle_block *made = NULL;
    heddle_block_options options;
    (void)comm;
    heddle_block_options_init(&options);
    heddle_status st = heddle_shape_parse(&options.shape, r->text);
    options.kind = r->number == 1 ? HEDDLE_STAGE_CROSS : r->number == 2 ? HEDDLE_STAGE_MLP : HEDDLE_STAGE_ATTENTION;
    options.mixed_dim = 1;
    options.threads = r->number == 3 ? 257 : 0;
    st = st != HEDDLE_OK ? st : heddle_block_create(&made, &options);
    heddle_block_destroy(made);
    return st;
}

/* number: 0 no block, 1 no box, 2 no weights yet, 3 no vector, 4 part of the mixed dim, 5 no text */
static heddle_status forward_block(heddle_comm *comm, const refusal *r)
{
    heddle_status st = HEDDLE_OK;
    const int way = (int)r->number;
    heddle_block *block = NULL;
    heddle_block_options options;
    heddle_box box;
    heddle_tensor x;
    heddle_conditioning conditioning;
    const heddle_layout whole = heddle_layout_replicated();
    (void)comm;
    memset(&conditioning, 0, sizeof conditioning);
    heddle_block_options_init(&options);
    HD_TRY(heddle_shape_parse(&options.shape, "f32[b=1 s=4 c=4]"));
    options.kind = way == 5 ? HEDDLE_STAGE_CROSS : HEDDLE_STAGE_ATTENTION;
    options.mixed_dim = 1;
    options.text_tokens = 2;
    options.modulate = way == 3;
    HD_TRY(heddle_block_create(&block, &options));
    HD_TRY(way == 2 ? HEDDLE_OK : heddle_block_seed(block, 1));
    HD_TRY(heddle_layout_box(&box, &options.shape, &one, &whole, 0));
    HD_TRY(heddle_tensor_init(&x, room, &options.shape, &one, &whole, NULL, 0));
    box.len[1] -= way == 4;
    st = heddle_block_forward(way == 0 ? NULL : block, &x, way == 1 ? NULL : &box, &conditioning, NULL);
out:
    heddle_block_destroy(block);
    return st;
}

static heddle_status make_pair(heddle_comm *comm, const refusal *r)
{
    heddle_dense_pair *made = NULL;
    heddle_dense_pair_options options;
    heddle_shape shape;
    const heddle_layout whole = heddle_layout_replicated();
    heddle_dense_pair_options_init(&options);
    options.hidden = 4;
    options.threads = (int)r->number;
    heddle_status st = heddle_shape_parse(&shape, r->text);
    st = st != HEDDLE_OK ? st : heddle_dense_pair_create(&made, comm, &shape, &one, &whole, 0, &options);
    heddle_dense_pair_destroy(made);
    return st;
}

static heddle_status back_without_forward(heddle_comm *comm, const refusal *r)
{
    heddle_status st;
    heddle_dense_pair *pair = NULL;
    heddle_dense_pair_options options;
    heddle_shape shape;
    heddle_layout layout;
    (void)r;
    heddle_dense_pair_options_init(&options);
    options.hidden = 4;
    options.keep_gathered = 1;
    HD_TRY(heddle_shape_parse(&shape, "f32[n=4 c=4]"));
    HD_TRY(heddle_layout_parse(&layout, "n@sp", &shape, &one));
    HD_TRY(heddle_dense_pair_create(&pair, comm, &shape, &one, &layout, 0, &options));
    HD_TRY(heddle_dense_pair_commit(pair));
    st = heddle_dense_pair_backward(pair, room, room, room, NULL);
out:
    heddle_dense_pair_destroy(pair);
    return st;
}

static heddle_status commit_nothing(heddle_comm *comm, const refusal *r)
{
    (void)comm;
    (void)r;
    return heddle_dense_pair_commit(NULL);
}

/* number: the axes that are averaged, tens: those of the norm, while axis 0 is summed */
static heddle_status make_bucket(heddle_comm *comm, const refusal *r)
{
    heddle_bucket *made = NULL;
    const heddle_bucket_part part = {room, room + 8, 8, 1};
    heddle_bucket_options options;
    heddle_bucket_options_init(&options);
    options.sum_axes = 1;
    options.average_axes = (unsigned)r->number % 10;
    options.norm_axes = (unsigned)r->number / 10;
    heddle_status st = heddle_bucket_create(&made, comm, &one, &part, 1, &options);
    heddle_bucket_destroy(made);
    return st;
}

static heddle_status no_bucket(heddle_comm *comm, const refusal *r)
{
    (void)comm;
    return r->number == 0 ? heddle_bucket_reduce(NULL, NULL) : heddle_bucket_gather(NULL, NULL);
}

/* text: what `number` is given as */
static heddle_status step(heddle_comm *comm, const refusal *r)
{
    heddle_status st;
    heddle_bucket *bucket = NULL;
    heddle_adamw *adamw = NULL;
    const heddle_bucket_part part = {room, room + 8, 8, 1};
    const double rate = r->text[0] == 'r' ? r->number : 0.1, norm = r->text[0] == 'n' ? r->number : 1;
    heddle_bucket_options options;
    heddle_adamw_options own;
    heddle_bucket_options_init(&options);
    heddle_adamw_options_init(&own);
    own.max_norm = r->text[0] == 'm' ? r->number : 0;
    options.sum_axes = 1;
    HD_TRY(heddle_bucket_create(&bucket, comm, &one, &part, 1, &options));
    HD_TRY(heddle_adamw_create(&adamw, bucket, &own));
    st = heddle_adamw_step_clipped(r->text[0] == '0' ? NULL : adamw, rate, norm, NULL);
out:
    heddle_adamw_destroy(adamw);
    heddle_bucket_destroy(bucket);
    return st;
}

static const refusal refusals[] = {
    {"linear attention wants 4 dims", HEDDLE_ERR_LAYOUT, make_linear, "f32[b=1 s=4 d=8]", 0},
    {"heads of width 100000, not within 1 to 65536", HEDDLE_ERR_LAYOUT, make_linear, "f32[b=1 s=4 h=2 d=100000]", 0},
    {"heddle_linear_attention_forward: attention is NULL", HEDDLE_ERR_ARG, no_linear, NULL, 0},
    {"heddle_linear_attention_backward: attention is NULL", HEDDLE_ERR_ARG, no_linear, NULL, 1},
    {"slopes for 0 heads", HEDDLE_ERR_ARG, slopes, NULL, 0},
    {"slopes for -3 heads", HEDDLE_ERR_ARG, slopes, NULL, -3},
    {"a cross-attention stage needs text_tokens >= 1, not 0", HEDDLE_ERR_ARG, make_block, "f32[b=1 s=4 c=4]", 1},
    {"an MLP stage needs mlp_channels >= 1, not 0", HEDDLE_ERR_ARG, make_block, "f32[b=1 s=4 c=4]", 2},
    {"257 threads: must be 0 to 256", HEDDLE_ERR_ARG, make_block, "f32[b=1 s=4 c=4]", 3},
    {"blocks work on f32 and bf16, not on f64", HEDDLE_ERR_UNSUPPORTED, make_block, "f64[b=1 s=4 c=4]", 0},
    {"heddle_block_forward: block is NULL", HEDDLE_ERR_ARG, forward_block, NULL, 0},
    {"heddle_block_forward: box is NULL", HEDDLE_ERR_ARG, forward_block, NULL, 1},
    {"call heddle_block_commit first", HEDDLE_ERR_ARG, forward_block, NULL, 2},
    {"a modulated stage needs the conditioning vector", HEDDLE_ERR_ARG, forward_block, NULL, 3},
    {"must be whole on the rank: it holds 0..3 of 4", HEDDLE_ERR_LAYOUT, forward_block, NULL, 4},
    {"needs the text [b, 2, c]", HEDDLE_ERR_ARG, forward_block, NULL, 5},
    {"a dense pair on 257 threads (0 to 256)", HEDDLE_ERR_ARG, make_pair, "f32[n=4 c=4]", 257},
    {"dense pairs work on f32 and bf16, not on f64", HEDDLE_ERR_UNSUPPORTED, make_pair, "f64[n=4 c=4]", 0},
    {"needs rows and channels", HEDDLE_ERR_LAYOUT, make_pair, "f32[c=4]", 0},
    {"heddle_dense_pair_backward: no forward call is kept", HEDDLE_ERR_ARG, back_without_forward, NULL, 0},
    {"heddle_dense_pair_commit: pair is NULL", HEDDLE_ERR_ARG, commit_nothing, NULL, 0},
    {"axes 0x1 are to be summed and averaged", HEDDLE_ERR_ARG, make_bucket, NULL, 1},
    {"norm axes 0x1 are summed already", HEDDLE_ERR_ARG, make_bucket, NULL, 10},
    {"heddle_bucket_reduce: bucket is NULL", HEDDLE_ERR_ARG, no_bucket, NULL, 0},
    {"heddle_bucket_gather: bucket is NULL", HEDDLE_ERR_ARG, no_bucket, NULL, 1},
    {"AdamW: max_norm -1 must not be negative", HEDDLE_ERR_ARG, step, "max", -1},
    {"an AdamW step with learning rate -1", HEDDLE_ERR_ARG, step, "rate", -1},
    {"an AdamW step with learning rate nan", HEDDLE_ERR_ARG, step, "rate", NAN},
    {"an AdamW step with a gradient of norm -2", HEDDLE_ERR_ARG, step, "norm", -2},
    {"adamw is NULL", HEDDLE_ERR_ARG, step, "0", 0},
};

HD_CASE(each_refusal_is_said)
{
    int wrong = 0;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        heddle_comm *comm = NULL; /* some end it */
        HD_OK(heddle_comm_open(&comm, "self", NULL));
        const heddle_status st = refusals[i].call(comm, &refusals[i]);
        if (st != refusals[i].wanted || strstr(heddle_last_error(), refusals[i].says) == NULL) {
            print_error("wanted %s, '%s', got %s: %s\n", heddle_status_name(refusals[i].wanted), refusals[i].says,
                        heddle_status_name(st), st == HEDDLE_OK ? "" : heddle_last_error());
            wrong++;
        }
        heddle_comm_destroy(comm);
    }
    assert_int_equal(wrong, 0);
}
