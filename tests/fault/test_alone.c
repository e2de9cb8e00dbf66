/* One rank fails alone in the middle of a collective call, and stays: it must have told the others, who return at once
 * and with its words. A rank that returned instead would tell them by ending. */
#include "case.h"
#include "time_limit.h"

#include "runtime/base/base.h"
#include "session_of.h"

#include <dlfcn.h>
#include <dnnl.h>
#include <heddle/heddle.h>
#include <heddle/train/dense_pair.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 3, WRONG = 1, PROMPT_S = 5 };

/* Ranks are threads: what each of them is to suffer, and who has heard. */
static _Thread_local int no_products;
static atomic_int heard;

/* Stands in for the library's: a product that cannot be made. */
dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int nargs,
                                     const dnnl_exec_arg_t *args)
{
    static _Thread_local dnnl_status_t (*real)(const_dnnl_primitive_t, dnnl_stream_t, int, const dnnl_exec_arg_t *);
    if (no_products) {
        return dnnl_out_of_memory;
    }
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "dnnl_primitive_execute");
    }
    return real(primitive, stream, nargs, args);
}

/* The wrong rank waits until the others have heard; they check what and when. */
static heddle_status judge(heddle_comm *comm, heddle_status got, const char *words, int64_t begin_ns)
{
    char why[1024];
    int64_t took_ns = hd_now_ns() - begin_ns;
    int is_wrong = heddle_comm_rank(comm) == WRONG;
    snprintf(why, sizeof why, "%s", heddle_last_error());
    if (is_wrong) {
        while (hd_now_ns() - begin_ns < 2 * hd_test_limit_ns(PROMPT_S) && atomic_load(&heard) < RANKS - 1) {
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
    } else {
        atomic_fetch_add(&heard, 1);
    }
    if (got == HEDDLE_OK || (!is_wrong && got != HEDDLE_ERR_PEER) || took_ns > hd_test_limit_ns(PROMPT_S) ||
        strstr(why, words) == NULL || (!is_wrong && strstr(why, "rank 1") == NULL)) {
        return hd_fail(HEDDLE_ERR_INTERNAL, "rank %d: %s after %lld ms, wanted '%s': %s", heddle_comm_rank(comm),
                       heddle_status_name(got), (long long)took_ns / 1000000, words, why);
    }
    return HEDDLE_OK;
}

static heddle_status lonely_pair(heddle_comm *comm, void *arg)
{
    const int backward = *(const int *)arg;
    heddle_status st = HEDDLE_OK;
    heddle_reshard_line line;
    heddle_dense_pair *pair = NULL;
    heddle_dense_pair_options options;
    float x[64] = {0}, y[64] = {0};
    HD_TRY(heddle_reshard_parse(&line, "f32[n=12 c=4] on [tp=3]: n@tp -> *"));
    heddle_dense_pair_options_init(&options);
    options.hidden = 6;
    options.threads = 1;
    HD_TRY(heddle_dense_pair_create(&pair, comm, &line.shape, &line.mesh, &line.from, 0, &options));
    HD_TRY(heddle_dense_pair_commit(pair));
    HD_TRY(heddle_dense_pair_forward(pair, y, x, HEDDLE_NO_STREAM));
    HD_TRY(heddle_dense_pair_backward(pair, y, x, x, HEDDLE_NO_STREAM));
    HD_TRY(heddle_comm_barrier(comm));
    int64_t begin_ns = hd_now_ns();
    no_products = heddle_comm_rank(comm) == WRONG;
    heddle_status got = backward ? heddle_dense_pair_backward(pair, y, x, x, HEDDLE_NO_STREAM)
                                 : heddle_dense_pair_forward(pair, y, x, HEDDLE_NO_STREAM);
    no_products = 0;
    st = judge(comm, got, "oneDNN", begin_ns);
out:
    heddle_dense_pair_destroy(pair);
    return st;
}

/* Its tensor is strided, so that it needs a buffer, which it does not get. */
static heddle_status lonely_switch(heddle_comm *comm, void *arg)
{
    const int backward = *(const int *)arg;
    heddle_status st = HEDDLE_OK;
    session_of f;
    heddle_tensor x;
    float *data = calloc(2 * SESSION_ELEMS, sizeof *data);
    int rank = heddle_comm_rank(comm);
    HD_TRY(session_of_make(&f, comm));
    HD_TRY(heddle_tensor_init(&x, data, &f.shape, &f.mesh, backward ? &f.within : &f.before, NULL, rank));
    for (int d = 0; d < x.shape.ndim; d++) {
        x.stride_elems[d] *= rank == WRONG ? 2 : 1;
    }
    x.capacity_bytes *= 2;
    HD_TRY(heddle_comm_barrier(comm));
    int64_t begin_ns = hd_now_ns();
    hd_alloc_fail_at(1); /* nobody but the wrong rank allocates */
    heddle_status got = backward ? heddle_session_backward(f.session, "s.attn", &x, NULL, HEDDLE_NO_STREAM)
                                 : heddle_session_enter(f.session, "s.attn", &x, NULL, HEDDLE_NO_STREAM);
    st = judge(comm, got, "out of memory", begin_ns);
    hd_alloc_fail_at(0);
out:
    session_of_end(&f);
    free(data);
    return st;
}

static void runs(heddle_rank_main fn)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    for (int backward = 0; backward < 2; backward++) {
        atomic_store(&heard, 0);
        options.deadline_ms = 6 * hd_test_limit_ns(PROMPT_S) / 1000000; /* longer than the wrong rank waits, too */
        HD_OK(heddle_run_ranks_with(RANKS, "threads", &options, fn, &backward));
    }
}

HD_CASE(in_a_dense_pair)
{
    runs(lonely_pair);
}

HD_CASE(in_a_session_switch)
{
    runs(lonely_switch);
}
