/* Refusals, each asked for by one call: of attention, blocks, dense pairs, buckets, AdamW, reshards and
 * communicators. */
#include "case.h"
#include "check.h"

#include "runtime/base/base.h"

#include <heddle/heddle.h>
#include <heddle/sys/bench.h>
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

/* number: an unknown method, a form of rsa that ring has not (2: the sums, 3: projected keys), key heads that do not
 * divide, zigzag over explicit blocks, key heads that lie on another rank than their queries */
static heddle_status plan_softmax(heddle_comm *comm, const refusal *r)
{
    const int way = (int)r->number;
    heddle_shape shape;
    heddle_attention_traffic traffic;
    heddle_attention_options options;
    const heddle_mesh mesh = {.naxes = 2, .axis = {{"sp", 2}, {"tp", 3}}};
    heddle_layout layout = heddle_layout_replicated();
    (void)comm;
    heddle_attention_options_init(&options);
    options.method = way == 1 ? (heddle_attention_method)99 : HEDDLE_ATTENTION_RING;
    options.rsa_all_reduce = way == 2;
    options.projected_length = way == 3 ? 4 : 0;
    options.kv_heads = way == 4 ? 4 : way == 6 ? 2 : 0;
    options.placement = way == 5 ? HEDDLE_PLACEMENT_ZIGZAG : HEDDLE_PLACEMENT_CONTIGUOUS;
    layout.dim_of_axis[0] = 1;
    layout.nshards[0] = way == 5 ? 2 : 0;
    layout.shard_len[0] = 3;
    layout.shard_len[1] = 5;
    layout.dim_of_axis[1] = way == 6 ? 2 : HEDDLE_REPLICATED;
    heddle_status st = heddle_shape_parse(&shape, r->text);
    return st != HEDDLE_OK ? st : heddle_attention_plan_traffic(&traffic, &shape, &mesh, &layout, &options, 1);
}

/* text: what of it is `number` */
static heddle_status plan_linear(heddle_comm *comm, const refusal *r)
{
    heddle_shape shape;
    heddle_attention_traffic traffic;
    heddle_linear_attention_options options;
    const heddle_layout whole = heddle_layout_replicated();
    const double decay[] = {0.5, r->number};
    (void)comm;
    heddle_linear_attention_options_init(&options);
    options.method = r->text[0] == 'm' ? (heddle_linear_method)r->number : HEDDLE_LINEAR_LOCAL;
    options.dv = r->text[0] == 'w' ? (int64_t)r->number : 0;
    options.decay = r->text[0] == 'd' ? decay : NULL;
    heddle_status st = heddle_shape_parse(&shape, "f32[b=1 s=4 h=2 d=8]");
    return st != HEDDLE_OK ? st : heddle_linear_attention_plan_traffic(&traffic, &shape, &one, &whole, &options, 0);
}

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

/* number: 1 a cross stage without text, 2 an MLP without a hidden layer, 3 too many threads, 4 normed queries and 5 a
 * decay of linear attention, 6 no such kind; else attention */
static heddle_status make_block(heddle_comm *comm, const refusal *r)
{
    heddle_block *made = NULL;
    heddle_block_options options;
    (void)comm;
    heddle_block_options_init(&options);
    heddle_status st = heddle_shape_parse(&options.shape, r->text);
    options.kind = r->number == 1                     ? HEDDLE_STAGE_CROSS
                   : r->number == 2                   ? HEDDLE_STAGE_MLP
                   : r->number == 4 || r->number == 5 ? HEDDLE_STAGE_LINEAR
                   : r->number == 6                   ? (heddle_stage_kind)9
                                                      : HEDDLE_STAGE_ATTENTION;
    options.mixed_dim = 1;
    options.threads = r->number == 3 ? 257 : 0;
    options.qk_norm = r->number == 4;
    options.decay = r->number == 5 ? 1.5 : 0;
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

/* text: what of the options is `number` */
static heddle_status make_adamw(heddle_comm *comm, const refusal *r)
{
    heddle_bucket *bucket = NULL;
    heddle_adamw *adamw = NULL;
    heddle_adamw_options options;
    const heddle_bucket_part part = {room, room + 8, 8, 1};
    heddle_adamw_options_init(&options);
    *(strcmp(r->text, "beta1") == 0     ? &options.beta1
      : strcmp(r->text, "beta2") == 0   ? &options.beta2
      : strcmp(r->text, "epsilon") == 0 ? &options.epsilon
                                        : &options.weight_decay) = r->number;
    heddle_status st = heddle_bucket_create(&bucket, comm, &one, &part, 1, NULL);
    st = st != HEDDLE_OK ? st : heddle_adamw_create(&adamw, bucket, &options);
    heddle_adamw_destroy(adamw);
    heddle_bucket_destroy(bucket);
    return st;
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

/* text: what of the options is `number` */
static heddle_status make_reshard(heddle_comm *comm, const refusal *r)
{
    heddle_reshard *made = NULL;
    heddle_reshard_line line;
    heddle_reshard_options options;
    heddle_reshard_options_init(&options);
    options.memory = r->text[0] == 'm' ? (heddle_memory)r->number : HEDDLE_MEMORY_PEER;
    options.tuning = r->text[0] == 't' ? (heddle_tuning)r->number : HEDDLE_TUNING_RULES;
    heddle_status st = heddle_reshard_parse(&line, "f32[t=4 s=4] on [sp=1]: t@sp -> s@sp");
    return st != HEDDLE_OK ? st : heddle_reshard_create_line(&made, comm, &line, &options);
}

static heddle_status bench(heddle_comm *comm, const refusal *r)
{
    heddle_reshard_line line;
    heddle_bench_options options;
    heddle_bench_result result;
    result.struct_bytes = sizeof result;
    heddle_bench_options_init(&options);
    options.min_rounds = (int64_t)r->number;
    options.max_rounds = 3;
    heddle_status st = heddle_reshard_parse(&line, "f32[t=4 s=4] on [sp=1]: t@sp -> s@sp");
    return st != HEDDLE_OK ? st : heddle_bench_reshard(&result, comm, &line, &options);
}

static heddle_status look_at_peer(heddle_comm *comm, const refusal *r)
{
    heddle_peer peer = HEDDLE_EMPTY(heddle_peer);
    return heddle_comm_get_peer(&peer, comm, (int)r->number);
}

static heddle_status nothing(heddle_comm *comm, void *arg)
{
    (void)comm;
    (void)arg;
    return HEDDLE_OK;
}

static heddle_status run_ranks(heddle_comm *comm, const refusal *r)
{
    (void)comm;
    return heddle_run_ranks((int)r->number, r->text, nothing, NULL);
}

/* text: what of the options is `number` */
static heddle_status open_comm(heddle_comm *comm, const refusal *r)
{
    heddle_comm *made = NULL;
    heddle_comm_options options;
    (void)comm;
    heddle_comm_options_init(&options);
    options.pretend_hosts = r->text[0] == 'h' ? (int)r->number : 0;
    options.arena_bytes = r->text[0] == 'a' ? (int64_t)r->number : 0;
    options.bind = r->text[0] == 'b' ? (heddle_bind)r->number : HEDDLE_BIND_AUTO;
    return heddle_comm_open(&made, "self", &options);
}

static const refusal refusals[] = {
    {"attention options: method 99, placement 0", HEDDLE_ERR_ARG, plan_softmax, "f32[b=1 s=8 h=6 d=4]", 1},
    {"method ring has no all-reduce form; rsa has", HEDDLE_ERR_ARG, plan_softmax, "f32[b=1 s=8 h=6 d=4]", 2},
    {"method ring has no projected keys; rsa has", HEDDLE_ERR_ARG, plan_softmax, "f32[b=1 s=8 h=6 d=4]", 3},
    {"4 key heads do not divide 6 query heads", HEDDLE_ERR_ARG, plan_softmax, "f32[b=1 s=8 h=6 d=4]", 4},
    {"balanced blocks, mesh axis sp has explicit ones", HEDDLE_ERR_LAYOUT, plan_softmax, "f32[b=1 s=8 h=6 d=4]", 5},
    {"rank 1 holds query heads 2 to 3, which use key heads 0 to 1, but key heads 1 to 1", HEDDLE_ERR_LAYOUT,
     plan_softmax, "f32[b=1 s=8 h=6 d=4]", 6},
    {"linear attention: there is no method 99", HEDDLE_ERR_ARG, plan_linear, "method", 99},
    {"linear attention: decay of head 1 is 0, not above 0", HEDDLE_ERR_ARG, plan_linear, "decay", 0},
    {"linear attention: decay of head 1 is 1.5, not above 0", HEDDLE_ERR_ARG, plan_linear, "decay", 1.5},
    {"linear attention: dv is -1, not within 0 to 65536", HEDDLE_ERR_ARG, plan_linear, "width", -1},
    {"linear attention wants 4 dims", HEDDLE_ERR_LAYOUT, make_linear, "f32[b=1 s=4 d=8]", 0},
    {"heads of width 100000, not within 1 to 65536", HEDDLE_ERR_LAYOUT, make_linear, "f32[b=1 s=4 h=2 d=100000]", 0},
    {"heddle_linear_attention_forward: attention is NULL", HEDDLE_ERR_ARG, no_linear, NULL, 0},
    {"heddle_linear_attention_backward: attention is NULL", HEDDLE_ERR_ARG, no_linear, NULL, 1},
    {"slopes for 0 heads", HEDDLE_ERR_ARG, slopes, NULL, 0},
    {"slopes for -3 heads", HEDDLE_ERR_ARG, slopes, NULL, -3},
    {"a cross-attention stage needs text_tokens >= 1, not 0", HEDDLE_ERR_ARG, make_block, "f32[b=1 s=4 c=4]", 1},
    {"an MLP stage needs mlp_channels >= 1, not 0", HEDDLE_ERR_ARG, make_block, "f32[b=1 s=4 c=4]", 2},
    {"257 threads: must be 0 to 256", HEDDLE_ERR_ARG, make_block, "f32[b=1 s=4 c=4]", 3},
    {"a linear attention stage norms its result, it has no qk_norm", HEDDLE_ERR_ARG, make_block, "f32[b=1 s=4 c=4]", 4},
    {"decay 1.5 of a linear attention stage: must be", HEDDLE_ERR_ARG, make_block, "f32[b=1 s=4 c=4]", 5},
    {"there is no stage kind 9", HEDDLE_ERR_ARG, make_block, "f32[b=1 s=4 c=4]", 6},
    {"a block needs a batch dim and a channel dim, the shape has 1 dim", HEDDLE_ERR_ARG, make_block, "f32[c=4]", 0},
    {"blocks work on f32 and bf16, on devices on f16 too, not on f64", HEDDLE_ERR_UNSUPPORTED, make_block,
     "f64[b=1 s=4 c=4]", 0},
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
    {"AdamW: beta1 1 and beta2 0.999 must be", HEDDLE_ERR_ARG, make_adamw, "beta1", 1},
    {"AdamW: beta1 0.9 and beta2 -0.5 must be", HEDDLE_ERR_ARG, make_adamw, "beta2", -0.5},
    {"AdamW: epsilon 0 must be more than 0", HEDDLE_ERR_ARG, make_adamw, "epsilon", 0},
    {"weight decay -1 not negative", HEDDLE_ERR_ARG, make_adamw, "weight_decay", -1},
    {"reshard options: memory 7, tuning 1", HEDDLE_ERR_ARG, make_reshard, "memory", 7},
    {"reshard options: memory 0, tuning 9", HEDDLE_ERR_ARG, make_reshard, "tuning", 9},
    {"bench: 0 to 3 rounds, wanted 1 to", HEDDLE_ERR_ARG, bench, NULL, 0},
    {"bench: 4 to 3 rounds, wanted 1 to", HEDDLE_ERR_ARG, bench, NULL, 4},
    {"heddle_comm_get_peer: rank 1 of 1", HEDDLE_ERR_ARG, look_at_peer, NULL, 1},
    {"heddle_comm_get_peer: rank -1 of 1", HEDDLE_ERR_ARG, look_at_peer, NULL, -1},
    {"0 ranks, wanted 1 to 1024", HEDDLE_ERR_ARG, run_ranks, "threads", 0},
    {"1025 ranks, wanted 1 to 1024", HEDDLE_ERR_ARG, run_ranks, "shm", 1025},
    {"pretend_hosts is -1 and arena_bytes 0, wanted 0 or more", HEDDLE_ERR_ARG, open_comm, "hosts", -1},
    {"pretend_hosts is 0 and arena_bytes -8, wanted 0 or more", HEDDLE_ERR_ARG, open_comm, "arena", -8},
    {"bind is 3, wanted 0 to 2", HEDDLE_ERR_ARG, open_comm, "bind", 3},
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
