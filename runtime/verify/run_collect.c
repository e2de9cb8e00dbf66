/* What the ranks of a run tell one another, and the same run on one rank. */
#include "runtime/verify/run_pass.h"
#include "runtime/verify/samples.h"

#include <heddle/sys/device.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The same task on a communicator of one; blocks on a device do not have the bits of those of the CPU. */
static heddle_status run_reference(run_result *out, const run_report *r)
{
    const run_task *task = r->task;
    char device[64];
    run_task alone = *task;
    heddle_comm *self = NULL;
    heddle_schedule *schedule = NULL;
    heddle_comm_options comm_options;
    heddle_comm_options_init(&comm_options);
    comm_options.bind = HEDDLE_BIND_NONE;
    if (task->blocks_on_device && r->kind != NULL) {
        snprintf(device, sizeof device, "%s:%d", r->kind, (int)r->totals[RUN_TOTAL_DEVICE]);
        comm_options.device = device;
        comm_options.wire = HEDDLE_WIRE_HOST;
    }
    alone.passes = 1;
    alone.step_of = NULL;
    alone.is_reference = 1;
    alone.in_one_go = 0;
    heddle_status st = heddle_mesh_parse(&alone.mesh, "[sp=1]");
    if (st == HEDDLE_OK) {
        st = heddle_plan(&schedule, task->model, &alone.mesh, NULL);
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
        if (whole[i].code == 0 && run_check_copies(whole[i].sentence, whole[i].bytes, r, i) != 0) {
            v->differs = 1;
        }
    }
}

heddle_status run_check(run_verdict *v, double *reference_ms, const run_report *r)
{
    const run_task *task = r->task;
    run_result reference = {0};
    heddle_status st = run_reference(&reference, r);
    if (st != HEDDLE_OK) {
        return st;
    }
    *reference_ms = (double)(reference.forward_ns + reference.backward_ns) * 1e-6;
    int codes[5] = {
        run_check_bytes(v->bytes, sizeof(v->bytes), task, r->nranks, r->mine.nsteps, r->steps),
        run_check_values(v->values, sizeof(v->values), task, r->mine.output, reference.output),
    };
    if (r->back != NULL) {
        codes[2] = run_check_backward_bytes(v->back_bytes, sizeof(v->back_bytes), r);
        codes[3] = run_check_input_gradient(v->dx, sizeof(v->dx), task, r->mine.dx, reference.dx);
        codes[4] =
            run_check_gradients(v->gradients, sizeof(v->gradients), &v->gradient_error, task, &r->mine, &reference);
    }
    for (int i = 0; i < 5; i++) {
        v->differs |= codes[i];
    }
    check_copies(v, r, codes);
    run_release(&reference);
    return HEDDLE_OK;
}

/* What all ranks have to know of one. */
static void list_totals(int64_t *out, const run_result *mine, const heddle_comm *comm)
{
    const int64_t own[] = {mine->forward_ns,     mine->peak_bytes,        getpid(),
                           mine->backward_ns,    mine->reduction.ns,      mine->reduction.planned,
                           mine->reduction.sent, heddle_comm_device(comm)};
    memcpy(out, own, sizeof(own));
    memcpy(&out[RUN_TOTAL_HASH], mine->hash, sizeof(mine->hash));
    memcpy(&out[RUN_TOTAL_MEMORY], mine->memory, sizeof(mine->memory));
    out[RUN_TOTAL_UNLENT] = mine->memory[RUN_MEMORY_METHODS] + mine->lent;
}

/* ms: [passes]; sorted afterwards. */
static heddle_status sum_up(run_time *out, double *ms, const run_task *task, heddle_comm *comm)
{
    const heddle_status st = samples_slowest(ms, (int)task->passes, comm);
    out->median_ms = samples_median(ms, (int)task->passes);
    out->fastest_ms = ms[0];
    return st;
}

heddle_status run_task_run(run_report *out, const run_task *task, heddle_comm *comm, int want_output)
{
    const size_t size = (size_t)heddle_comm_size(comm);
    int64_t own[RUN_TOTALS];
    const heddle_device *table = heddle_comm_device_table(comm);
    *out = (run_report){.task = task, .comm = heddle_comm_describe(comm), .nranks = (int)size};
    heddle_status st = run_forward(&out->mine, task, comm, task->schedule, want_output);
    if (st != HEDDLE_OK) {
        return st;
    }
    list_totals(own, &out->mine, comm);
    out->kind = table != NULL ? table->name : NULL;
    const size_t step_bytes = (size_t)out->mine.nsteps * sizeof(run_step);
    out->steps = calloc(size, step_bytes);
    out->totals = calloc(size, sizeof(own));
    out->back = out->mine.back != NULL ? calloc(size, step_bytes) : NULL;
    if (out->steps == NULL || out->totals == NULL || (out->mine.back != NULL && out->back == NULL)) {
        return run_no_memory("timings of the ranks", (int64_t)(size * (2 * step_bytes + sizeof(own))));
    }
    st = heddle_comm_allgather(comm, out->mine.step, out->steps, step_bytes);
    if (st == HEDDLE_OK && out->back != NULL) {
        st = heddle_comm_allgather(comm, out->mine.back, out->back, step_bytes);
    }
    st = st == HEDDLE_OK ? heddle_comm_allgather(comm, own, out->totals, sizeof(own)) : st;
    for (int i = 0; i < 2 * (int)out->mine.hows && st == HEDDLE_OK; i++) {
        st = sum_up(&out->time[i / 2][i % 2], &out->mine.ms[i * task->passes], task, comm);
    }
    return st;
}

int64_t run_report_most(const run_report *report, int total)
{
    int64_t most = 0;
    for (int rank = 0; rank < report->nranks; rank++) {
        const int64_t one = report->totals[rank * RUN_TOTALS + total];
        most = one > most ? one : most;
    }
    return most;
}

void run_report_free(run_report *report)
{
    free(report->steps);
    free(report->back);
    free(report->totals);
    run_release(&report->mine);
}
