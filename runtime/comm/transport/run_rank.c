/* One rank of heddle_run_ranks, thread or process: its communicator, its function, its report. */
#include "runtime/comm/transport/run.h"

#include <stdio.h>

/* What a rank's function returned, and its place in the order of failures. */
void hd_run_report(hd_run_shared *shared, int rank, heddle_status status)
{
    hd_run_rank *r = &shared->rank[rank];
    if (status != HEDDLE_OK) {
        const char *sentence = heddle_last_error();
        hd_copy_text(r->sentence, sizeof r->sentence, *sentence != 0 ? sentence : heddle_status_name(status));
        r->order = atomic_fetch_add(&shared->failures, 1) + 1;
    }
    r->status = (int)status;
    atomic_store(&r->done, 1);
}

heddle_status hd_run_comm(heddle_comm **out, const hd_run *run, hd_group *group, int rank)
{
    const hd_comm_parts parts = {.name = run->inner,
                                 .why = "started by heddle_run_ranks",
                                 .rank = rank,
                                 .size = run->nranks,
                                 .ops = &hd_local_ops,
                                 .group = group,
                                 .options = &run->options};
    return hd_comm_new(out, &parts);
}

void hd_run_rank_main(hd_run *run, heddle_comm *comm, heddle_status met, int rank)
{
    heddle_status st = met;
    hd_fault *fault = NULL;
    const char *inner = NULL;
    HD_TRY(st);
    HD_TRY(hd_fault_parse(&fault, run->where, &inner));
    if (fault != NULL) {
        hd_fault_attach(comm, fault);
    }
    st = run->fn(comm, run->arg);
out:
    hd_run_report(run->shared, rank, st);
    if (st != HEDDLE_OK && comm != NULL) {
        heddle_ignore(heddle_comm_abort(comm, run->shared->rank[rank].sentence));
    }
    hd_comm_end(comm);
}
