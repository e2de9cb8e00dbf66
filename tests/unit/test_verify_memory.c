/* A judge that runs out of memory says so: a status without a sentence would show an older one. */
#include "case.h"

#include "runtime/verify/attention_bench.h"
#include "runtime/verify/reshard_check.h"

#include <dlfcn.h>
#include <heddle/heddle.h>
#include <stdlib.h>
#include <string.h>

static long until_failure; /* callocs of the judge that still succeed, and one; 0: all do */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
void *calloc(size_t count, size_t bytes)
{
    static void *(*real)(size_t, size_t);
    if (real == NULL) {
        void *symbol = dlsym(RTLD_NEXT, "calloc");
        memcpy(&real, &symbol, sizeof real);
    }
    return until_failure > 0 && --until_failure == 0 ? NULL : real(count, bytes);
}
#endif

/* Calls `check` on one rank as often as it has allocations, each time with another one failing. */
static void starve(heddle_status (*check)(heddle_comm *comm), int at_least)
{
    if (SANITIZED) {
        hd_skip("sanitizer", "the sanitizer's calloc cannot be replaced");
    }
    heddle_comm *comm = NULL;
    int starved = 0;
    HD_OK(heddle_comm_open(&comm, "self", NULL));
    for (long n = 1;; n++) {
        heddle_ignore(heddle_set_error(HEDDLE_ERR_INTERNAL, "an older sentence"));
        until_failure = n;
        heddle_status st = check(comm);
        int failed = until_failure == 0;
        until_failure = 0;
        if (!failed) {
            HD_OK(st);
            break;
        }
        starved += st == HEDDLE_ERR_NOMEM;
        if (st == HEDDLE_ERR_NOMEM && strstr(heddle_last_error(), "memory") == NULL) {
            fail_msg("allocation %ld: %s", n, heddle_last_error());
        }
    }
    assert_true(starved >= at_least);
    heddle_comm_destroy(comm);
}

static heddle_status check_linear(heddle_comm *comm)
{
    random_source source = {0};
    linear_case c;
    char problem[LINEAR_PROBLEM_BYTES];
    linear_draw(&c, &source, 1, HEDDLE_F64);
    return linear_check(comm, &c, problem, NULL, NULL);
}

HD_CASE(linear_attention)
{
    starve(check_linear, 11);
}

/* Both parts with gaps between rows, of which the judge keeps a map. */
static heddle_status check_reshard(heddle_comm *comm)
{
    verify_trial t = {.comm = comm, .storage = {{.pad_elems = 1}, {.pad_elems = 1}}};
    heddle_reshard_options_init(&t.options);
    heddle_status st = heddle_reshard_parse(&t.line, "f32[t=3 s=2] on [sp=1]: t@sp -> s@sp");
    return st == HEDDLE_OK ? verify_run(&t) : st;
}

HD_CASE(reshard)
{
    starve(check_reshard, 4);
}

static heddle_status share_problem(heddle_comm *comm)
{
    int failed = 0, speaks = 0;
    return judge_first_problem(&failed, &speaks, comm, 1);
}

HD_CASE(first_problem)
{
    starve(share_problem, 1);
}

static heddle_status time_attention(heddle_comm *comm)
{
    attention_case c = {.seed = 1};
    attention_bench bench;
    heddle_attention_options_init(&c.options);
    heddle_status st = heddle_shape_parse(&c.shape, "f32[b=1 s=3 h=2 d=4]");
    st = st == HEDDLE_OK ? heddle_mesh_parse(&c.mesh, "[sp=1]") : st;
    c.layout = heddle_layout_replicated();
    return st == HEDDLE_OK ? attention_time(&bench, comm, &c, 0) : st;
}

static heddle_status time_linear(heddle_comm *comm)
{
    const linear_bench_options o = {.ranks = 1, .iterations = 1};
    random_source source = {0};
    linear_case c;
    linear_bench bench;
    linear_draw(&c, &source, 1, HEDDLE_F64);
    return linear_time(&bench, comm, &c, &o);
}

HD_CASE(benches)
{
    starve(time_attention, 6);
    starve(time_linear, 6);
}
