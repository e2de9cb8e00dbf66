/* heddle_run_ranks: what is common to ranks that are threads and ranks that are processes. */
#include "runtime/comm/transport/run.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* 1 when `a` explains the run better than `b`: a cause before a rank that only heard of it, then the earlier one. */
static int explains_better(const hd_run_rank *a, const hd_run_rank *b)
{
    int a_heard = a->status == HEDDLE_ERR_PEER && !a->ended;
    int b_heard = b->status == HEDDLE_ERR_PEER && !b->ended;
    return a_heard != b_heard ? b_heard : a->order < b->order;
}

static heddle_status result_of(const hd_run_shared *shared, int nranks)
{
    int worst = -1;
    for (int i = 0; i < nranks; i++) {
        const hd_run_rank *r = &shared->rank[i];
        if (r->status != HEDDLE_OK && (worst < 0 || explains_better(r, &shared->rank[worst]))) {
            worst = i;
        }
    }
    if (worst < 0) {
        return HEDDLE_OK;
    }
    const hd_run_rank *r = &shared->rank[worst];
    char name[32];
    const int bytes = snprintf(name, sizeof name, "rank %d:", worst);
    const int is_named = strncmp(r->sentence, name, (size_t)bytes) == 0; /* by whoever first knew */
    return is_named ? hd_fail((heddle_status)r->status, "%s", r->sentence)
                    : hd_fail((heddle_status)r->status, "rank %d%s %s", worst, r->ended ? "" : ":", r->sentence);
}

static heddle_status run_all(int nranks, const char *transport, const heddle_comm_options *options, heddle_rank_main fn,
                             void *arg, const char *function)
{
    heddle_status st = HEDDLE_OK;
    hd_fault *fault = NULL;
    hd_run run = {.nranks = nranks, .where = transport, .fn = fn, .arg = arg};
    size_t shared_bytes = 0;
    HD_TRY(hd_need(transport, function, "transport"));
    if (fn == NULL) {
        return hd_need(NULL, function, "fn");
    }
    HD_TRY(hd_options_check(&run.options, options));
    HD_TRY(hd_fault_parse(&fault, transport, &run.inner));
    const hd_transport *on = hd_transport_find(run.inner);
    if (on == NULL || on->run == NULL) {
        char known[128];
        hd_transport_names(known, sizeof known, HD_TRANSPORTS_TO_RUN);
        st = hd_fail(HEDDLE_ERR_ARG, "ranks cannot be started on '%s': wanted %s or fault(SPEC):...", run.inner, known);
        goto out;
    }
    if (nranks < 1 || nranks > HD_RUN_MAX_RANKS) {
        st = hd_fail(HEDDLE_ERR_ARG, "%d ranks, wanted 1 to %d", nranks, HD_RUN_MAX_RANKS);
        goto out;
    }
    shared_bytes = sizeof(hd_run_shared) + (size_t)nranks * sizeof(hd_run_rank);
    run.shared = mmap(NULL, shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (run.shared == MAP_FAILED) {
        run.shared = NULL;
        st = hd_fail(HEDDLE_ERR_NOMEM, "out of memory: %zu bytes shared with %d ranks: %s", shared_bytes, nranks,
                     strerror(errno));
        goto out;
    }
    hd_topology_load(); /* once here instead of in every process */
    HD_TRY(on->run(&run));
    st = result_of(run.shared, nranks);
out:
    if (run.shared != NULL) {
        munmap(run.shared, shared_bytes);
    }
    hd_fault_destroy(fault);
    return st;
}

heddle_status heddle_run_ranks(int nranks, const char *transport, heddle_rank_main fn, void *arg)
{
    return run_all(nranks, transport, NULL, fn, arg, __func__);
}

heddle_status heddle_run_ranks_with(int nranks, const char *transport, const heddle_comm_options *options,
                                    heddle_rank_main fn, void *arg)
{
    return run_all(nranks, transport, options, fn, arg, __func__);
}
