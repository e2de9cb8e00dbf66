/* A NULL, or options of a size that no header ever had, on one rank of a collective creation: it hears which argument
 * of which function, the others hear of it at once and with its words, and the communicator goes on working. Where one
 * rank asks for another space than the others, all of them are told. */
#include "case.h"
#include "time_limit.h"

#include "runtime/base/base.h"

#include <heddle/heddle.h>
#include <heddle/sys/bench.h>
#include <heddle/train/bucket.h>
#include <heddle/train/dense_pair.h>
#include <heddle/train/pipeline.h>
#include <stdio.h>
#include <string.h>

enum { WRONG = 1, PROMPT_S = 5 };

static const char model_text[] = "model: small\n"
                                 "dtype: f32\n"
                                 "dims:\n"
                                 "  b: {size: 1, role: batch}\n"
                                 "  t: {size: 6, role: seq}\n"
                                 "  s: {size: 7, role: seq}\n"
                                 "  c: {size: 4, role: channel}\n"
                                 "tensors:\n"
                                 "  x: [b, t, s, c]\n"
                                 "stages:\n"
                                 "  - {name: s.attn, kind: attention, over: s, heads: 2}\n";

/* What a rank passes; the wrong one lacks `missing`. */
typedef struct call {
    heddle_comm *comm;
    heddle_reshard_line line;
    const heddle_schedule *schedule;
    const char *missing;
} call;

static const void *given(const call *c, const char *name, const void *pointer)
{
    return strcmp(c->missing, name) == 0 ? NULL : pointer;
}

static heddle_space space_of(const call *c)
{
    return strcmp(c->missing, "space") == 0 ? HEDDLE_SPACE_DEVICE : HEDDLE_SPACE_HOST;
}

static size_t bytes_of(const call *c, size_t bytes)
{
    return strcmp(c->missing, "struct_bytes") == 0 ? 5 : bytes;
}

#define OUT (given(c, "out", &made) != NULL ? &made : NULL)
#define OPTIONS(type, ...)                                                                                             \
    type##_options options;                                                                                            \
    type##_options_init(&options);                                                                                     \
    options.space = space_of(c);                                                                                       \
    options.struct_bytes = bytes_of(c, sizeof options);                                                                \
    __VA_ARGS__;
/* A creation as `call`, which `first` makes ready. */
#define MAKES(name, type, first, call_)                                                                                \
    static heddle_status name(const call *c)                                                                           \
    {                                                                                                                  \
        type *made = NULL;                                                                                             \
        first heddle_status st = call_;                                                                                \
        type##_destroy(made);                                                                                          \
        return st;                                                                                                     \
    }

MAKES(make_session, heddle_session, OPTIONS(heddle_session, ),
      heddle_session_create(OUT, c->comm, given(c, "schedule", c->schedule), &options))
MAKES(make_reshard, heddle_reshard, OPTIONS(heddle_reshard, ),
      heddle_reshard_create(OUT, c->comm, given(c, "shape", &c->line.shape), given(c, "mesh", &c->line.mesh),
                            given(c, "from", &c->line.from), given(c, "to", &c->line.to), &options))
MAKES(make_pair, heddle_dense_pair, OPTIONS(heddle_dense_pair, options.hidden = 5),
      heddle_dense_pair_create(OUT, c->comm, given(c, "shape", &c->line.shape), given(c, "mesh", &c->line.mesh),
                               given(c, "layout", &c->line.from), 0, &options))
MAKES(make_pipeline, heddle_pipeline, , heddle_pipeline_create(OUT, c->comm, given(c, "mesh", &c->line.mesh), 0))
MAKES(make_attention, heddle_attention, OPTIONS(heddle_attention, options.method = HEDDLE_ATTENTION_RING),
      heddle_attention_create(OUT, c->comm, given(c, "shape", &c->line.shape), given(c, "mesh", &c->line.mesh),
                              given(c, "layout", &c->line.from), &options))
MAKES(make_linear, heddle_linear_attention, OPTIONS(heddle_linear_attention, options.method = HEDDLE_LINEAR_LASP),
      heddle_linear_attention_create(OUT, c->comm, given(c, "shape", &c->line.shape), given(c, "mesh", &c->line.mesh),
                                     given(c, "layout", &c->line.from), &options))
MAKES(make_group, heddle_comm, , heddle_comm_axes_group(OUT, c->comm, given(c, "mesh", &c->line.mesh), 1))
MAKES(make_axis_group, heddle_comm, ,
      heddle_comm_axis_group(OUT, c->comm, given(c, "mesh", &c->line.mesh), strcmp(c->missing, "axis") == 0 ? 7 : 0))

static heddle_status run_bench(const call *c)
{
    heddle_bench_result result = HEDDLE_EMPTY(heddle_bench_result);
    heddle_bench_options options;
    heddle_bench_options_init(&options);
    options.min_rounds = options.max_rounds = 1;
    options.struct_bytes = bytes_of(c, sizeof options);
    return heddle_bench_reshard(given(c, "out", &result) != NULL ? &result : NULL, c->comm, given(c, "line", &c->line),
                                &options);
}

static heddle_status make_bucket(const call *c)
{
    float numbers[4] = {0};
    int long_ago = strcmp(c->missing, "overflow") == 0, grad = strcmp(c->missing, "grad") == 0;
    const heddle_bucket_part part[2] = {{numbers, grad ? NULL : numbers, 2, 0},
                                        {numbers + 2, numbers + 2, long_ago ? INT64_MAX - 1 : 2, 0}};
    heddle_bucket *made = NULL;
    OPTIONS(heddle_bucket, options.sum_axes = 1)
    heddle_status st =
        heddle_bucket_create(OUT, c->comm, given(c, "mesh", &c->line.mesh), given(c, "parts", part), 2, &options);
    heddle_bucket_destroy(made);
    return st;
}

static const struct {
    const char *function, *arguments; /* what the wrong rank lacks in turn */
    heddle_status (*make)(const call *c);
} plan[] = {
    {"heddle_session_create", "out schedule struct_bytes space", make_session},
    {"heddle_reshard_create", "out shape mesh from to struct_bytes space", make_reshard},
    {"heddle_bench_reshard", "out line struct_bytes", run_bench},
    {"heddle_bucket_create", "out mesh parts grad overflow struct_bytes space", make_bucket},
    {"heddle_dense_pair_create", "out shape mesh layout struct_bytes space", make_pair},
    {"heddle_pipeline_create", "out mesh", make_pipeline},
    {"heddle_attention_create", "out shape mesh layout struct_bytes space", make_attention},
    {"heddle_linear_attention_create", "out shape mesh layout struct_bytes space", make_linear},
    {"heddle_comm_axes_group", "out mesh", make_group},
    {"heddle_comm_axis_group", "out mesh axis", make_axis_group},
};

/* The words that tell what was wrong, in the sentence of every rank. */
static void words_of(char *out, size_t out_bytes, const char *function, const char *missing)
{
    if (strcmp(missing, "struct_bytes") == 0) {
        snprintf(out, out_bytes, "struct_bytes is 5, wanted ");
    } else if (strcmp(missing, "overflow") == 0) {
        snprintf(out, out_bytes, "%s: parts[1].elems is %lld on rank %d, with 2 before it", function,
                 (long long)INT64_MAX - 1, WRONG);
    } else if (strcmp(missing, "grad") == 0) {
        snprintf(out, out_bytes, "%s: parts[0].grad is NULL on rank %d", function, WRONG);
    } else if (strcmp(missing, "space") == 0) {
        snprintf(out, out_bytes, "its space is '1', rank 0's is '0'");
    } else if (strcmp(missing, "axis") == 0) {
        snprintf(out, out_bytes, "axis 7 of a mesh with 1 axes");
    } else {
        snprintf(out, out_bytes, "%s: %s is NULL", function, missing);
    }
}

static heddle_status check(const char *function, const char *missing, int is_wrong, heddle_status got, int64_t ms)
{
    char words[160], why[1024];
    snprintf(why, sizeof why, "%s", heddle_last_error());
    words_of(words, sizeof words, function, missing);
    int differs = strcmp(missing, "space") == 0;
    int named = is_wrong || strncmp(why, differs ? "rank 1 asks for another " : "rank 1: ", differs ? 24 : 8) == 0;
    heddle_status wanted = differs ? HEDDLE_ERR_MISMATCH : is_wrong ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER;
    if (got == wanted && named && strstr(why, words) != NULL && 1000000 * ms < hd_test_limit_ns(PROMPT_S)) {
        return HEDDLE_OK;
    }
    return hd_fail(HEDDLE_ERR_INTERNAL, "%s without %s: %s after %lld ms, wanted words '%s': %s", function, missing,
                   heddle_status_name(got), (long long)ms, words, why);
}

HD_RANK_CASE(each_creation, "3 threads", "3 shm")
{
    heddle_status st = HEDDLE_OK;
    heddle_model *model = NULL;
    heddle_schedule *schedule = NULL;
    call c = {.comm = comm};
    int is_wrong = heddle_comm_rank(comm) == WRONG;
    HD_TRY(heddle_reshard_parse(&c.line, "f32[b=1 t=6 s=7 c=4] on [sp=3]: t@sp -> s@sp"));
    HD_TRY(heddle_model_parse(&model, model_text, strlen(model_text), "small.yaml"));
    HD_TRY(heddle_plan(&schedule, model, &c.line.mesh, NULL));
    c.schedule = schedule;
    for (size_t i = 0; i < sizeof plan / sizeof plan[0]; i++) {
        char names[128], *rest = NULL;
        snprintf(names, sizeof names, "%s", plan[i].arguments);
        for (const char *name = strtok_r(names, " ", &rest); name != NULL; name = strtok_r(NULL, " ", &rest)) {
            c.missing = is_wrong ? name : "";
            int64_t begin_ns = hd_now_ns();
            heddle_status got = plan[i].make(&c);
            HD_TRY(check(plan[i].function, name, is_wrong, got, (hd_now_ns() - begin_ns) / 1000000));
        }
        c.missing = "";
        HD_TRY(plan[i].make(&c)); /* nothing is broken */
        c.missing = "space";
        heddle_status got = strstr(plan[i].arguments, "space") != NULL ? plan[i].make(&c) : HEDDLE_ERR_UNSUPPORTED;
        if (got != HEDDLE_ERR_UNSUPPORTED) { /* all ask for the same, and no device is attached */
            st = hd_fail(HEDDLE_ERR_INTERNAL, "%s on a device: %s: %.300s", plan[i].function, heddle_status_name(got),
                         heddle_last_error());
            goto out;
        }
    }
out:
    heddle_schedule_destroy(schedule);
    heddle_model_destroy(model);
    return st;
}
