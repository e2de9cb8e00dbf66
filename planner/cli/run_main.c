/* What every rank does, and what rank 0 does with it. */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The same job on a communicator of one. */
static heddle_status run_reference(run_result *out, const run_job *job)
{
    cli_arguments options = *job->options;
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

/* One rank's copies were compared with the reference, the others' are compared with its. A sentence that says something
 * is wrong stays. */
static void check_copies(run_verdict *v, const run_report *r, const int *codes)
{
    const struct {
        char *sentence;
        size_t bytes;
        int code;
    } whole[RUN_WHOLES] = {
        [RUN_WHOLE_OUTPUT] = {v->values, sizeof(v->values), codes[1]},
        [RUN_WHOLE_DX] = {v->dx, sizeof(v->dx), codes[3]},
        [RUN_WHOLE_GRADIENT] = {v->gradients, sizeof(v->gradients), codes[4]},
    };
    for (int i = 0; i < RUN_WHOLES; i++) {
        if (whole[i].code == CLI_OK && run_check_copies(whole[i].sentence, whole[i].bytes, r, i) != CLI_OK) {
            v->code = v->code != CLI_OK ? v->code : CLI_MISMATCH;
        }
    }
}

/* Compares with one rank; exit codes in the verdict. */
static heddle_status check(run_verdict *v, const run_report *r, double *reference_ms)
{
    const run_job *job = r->job;
    run_result reference = {0};
    heddle_status st = run_reference(&reference, job);
    if (st != HEDDLE_OK) {
        return st;
    }
    *reference_ms = (double)(reference.forward_ns + reference.backward_ns) * 1e-6;
    int codes[5] = {
        run_check_bytes(v->bytes, sizeof(v->bytes), job, r->nranks, r->mine->nsteps, r->steps),
        run_check_values(v->values, sizeof(v->values), job, r->mine->output, reference.output),
    };
    if (r->back != NULL) {
        codes[2] = run_check_backward_bytes(v->back_bytes, sizeof(v->back_bytes), r);
        codes[3] = run_check_input_gradient(v->dx, sizeof(v->dx), job, r->mine->dx, reference.dx);
        codes[4] =
            run_check_gradients(v->gradients, sizeof(v->gradients), &v->gradient_error, job, r->mine, &reference);
    }
    for (int i = 0; i < 5; i++) {
        v->code = v->code != CLI_OK ? v->code : codes[i];
    }
    check_copies(v, r, codes);
    run_release(&reference);
    return HEDDLE_OK;
}

static void print_check(const run_verdict *v, double reference_ms)
{
    printf("check: %s\ncheck: %s; one rank took %.3f ms\n", v->bytes, v->values, reference_ms);
    if (v->back_bytes[0] != '\0') {
        printf("check: %s\ncheck: gradient of the input: %s\ncheck: %s\n", v->back_bytes, v->dx, v->gradients);
    }
}

/* Rank 0: the table, the checks, the files. */
static heddle_status report(const run_report *r)
{
    run_verdict verdict = {.code = CLI_OK};
    const run_job *job = r->job;
    double reference_ms = 0;
    if (!job->options->json) {
        run_print_table(r);
        fflush(stdout);
    }
    if (job->options->check) {
        heddle_status st = check(&verdict, r, &reference_ms);
        if (st != HEDDLE_OK) {
            return st;
        }
        if (!job->options->json) {
            print_check(&verdict, reference_ms);
        }
    }
    if (job->options->json) {
        run_print_json(r, &verdict);
    }
    if (job->options->output != NULL) {
        int written = run_write_output(job, r->mine->output);
        verdict.code = verdict.code != CLI_OK ? verdict.code : written;
    }
    fflush(stdout);
    cli_verdict(verdict.code);
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
    int64_t total[RUN_TOTALS] = {mine.forward_ns,   mine.peak_bytes,        getpid(),           mine.backward_ns,
                                 mine.reduction.ns, mine.reduction.planned, mine.reduction.sent};
    memcpy(&total[RUN_TOTAL_HASH], mine.hash, sizeof(mine.hash));
    const size_t step_bytes = (size_t)mine.nsteps * sizeof(run_step);
    run_step *steps = calloc((size_t)size, step_bytes), *back = NULL;
    int64_t *totals = calloc((size_t)size, sizeof(total));
    back = mine.back != NULL ? calloc((size_t)size, step_bytes) : NULL;
    if (steps == NULL || totals == NULL || (mine.back != NULL && back == NULL)) {
        st = heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for the timings of %d ranks", size);
    }
    if (st == HEDDLE_OK) {
        st = heddle_comm_allgather(comm, mine.step, steps, step_bytes);
    }
    if (st == HEDDLE_OK && back != NULL) {
        st = heddle_comm_allgather(comm, mine.back, back, step_bytes);
    }
    if (st == HEDDLE_OK) {
        st = heddle_comm_allgather(comm, total, totals, sizeof(total));
    }
    if (st == HEDDLE_OK && rank == 0) {
        const run_report all = {job, &mine, heddle_comm_describe(comm), size, steps, back, totals};
        st = report(&all);
    }
    free(steps);
    free(back);
    free(totals);
    run_release(&mine);
    return st;
}
