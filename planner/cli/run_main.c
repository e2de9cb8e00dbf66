/* What every rank does, and what rank 0 does with it. */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The same job on a communicator of one. */
static heddle_status run_reference(run_result *out, const run_job *job)
{
    run_options options = *job->options;
    run_job alone = *job;
    heddle_comm *self = NULL;
    heddle_schedule *schedule = NULL;
    heddle_comm_options comm_options;
    heddle_comm_options_init(&comm_options);
    comm_options.bind = HEDDLE_BIND_NONE;
    options.passes = 1;
    alone.options = &options;
    alone.place = NULL;
    heddle_status st = heddle_mesh_parse(&alone.mesh, "[sp=1]");
    if (st == HEDDLE_OK) {
        st = heddle_plan(&schedule, job->model, &alone.mesh, NULL);
    }
    if (st == HEDDLE_OK) {
        st = heddle_comm_open(&self, "self", &comm_options);
    }
    if (st == HEDDLE_OK) {
        st = run_forward(out, &alone, self, schedule, 1);
    }
    heddle_comm_destroy(self);
    heddle_schedule_destroy(schedule);
    return st;
}

/* Rank 0: the table, the checks, the files. */
static heddle_status report(const run_report *r)
{
    char bytes_check[256] = "", values_check[512] = "";
    const run_job *job = r->job;
    run_result reference = {0};
    heddle_status st = HEDDLE_OK;
    int code = CLI_OK;
    if (!job->options->json) {
        run_print_table(r);
        fflush(stdout);
    }
    if (job->options->check) {
        code = run_check_bytes(bytes_check, sizeof(bytes_check), job, r->nranks, r->mine->nsteps, r->steps);
        st = run_reference(&reference, job);
        if (st != HEDDLE_OK) {
            return st;
        }
        int differ = run_check_values(values_check, sizeof(values_check), job, r->mine->output, reference.output);
        code = code != CLI_OK ? code : differ;
        if (!job->options->json) {
            printf("check: %s\ncheck: %s; one rank took %.3f ms\n", bytes_check, values_check,
                   (double)reference.forward_ns * 1e-6);
        }
    }
    if (job->options->json) {
        run_print_json(r, job->options->check ? bytes_check : NULL, values_check, code);
    }
    if (job->options->output != NULL) {
        int written = run_write_output(job, r->mine->output);
        code = code != CLI_OK ? code : written;
    }
    fflush(stdout);
    run_release(&reference);
    cli_verdict(code);
    return HEDDLE_OK;
}

heddle_status run_main(heddle_comm *comm, void *arg)
{
    const run_job *job = arg;
    const int size = heddle_comm_size(comm), rank = heddle_comm_rank(comm);
    run_result mine;
    heddle_status st =
        run_forward(&mine, job, comm, job->schedule, job->options->check || job->options->output != NULL);
    if (st != HEDDLE_OK) {
        return st;
    }
    const int64_t total[RUN_TOTALS] = {mine.forward_ns, mine.peak_bytes, getpid()};
    run_step *steps = calloc((size_t)(size * mine.nsteps), sizeof(*steps));
    int64_t *totals = calloc((size_t)size, sizeof(total));
    if (steps == NULL || totals == NULL) {
        st = heddle_transport_fail(HEDDLE_ERR_NOMEM, "no memory for the timings of %d ranks", size);
    }
    if (st == HEDDLE_OK) {
        st = heddle_comm_allgather(comm, mine.step, steps, (size_t)mine.nsteps * sizeof(*steps));
    }
    if (st == HEDDLE_OK) {
        st = heddle_comm_allgather(comm, total, totals, sizeof(total));
    }
    if (st == HEDDLE_OK && rank == 0) {
        const run_report all = {job, &mine, heddle_comm_describe(comm), size, steps, totals};
        st = report(&all);
    }
    free(steps);
    free(totals);
    run_release(&mine);
    return st;
}
