/* What is printed. */
#include "train.h"

#include <string.h>
#include <unistd.h>

/* Two lines: what the plan costs, and which dim is sharded in which stage. */
void network_print_plan(const network *net)
{
    char shape[HEDDLE_LINE_BYTES], mesh[HEDDLE_LINE_BYTES], layout[HEDDLE_LINE_BYTES], last[HEDDLE_LINE_BYTES] = "";
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    if (heddle_schedule_get_info(&info, net->schedule) != HEDDLE_OK ||
        heddle_shape_format(shape, sizeof(shape), &info.shape) != HEDDLE_OK ||
        heddle_mesh_format(mesh, sizeof(mesh), &info.mesh) != HEDDLE_OK) {
        return;
    }
    printf("plan: %s on %s, %d switches forward, bytes of the busiest rank per pass: forward %lld backward %lld\n",
           shape, mesh, info.switches, (long long)info.bytes_per_rank_max, (long long)info.backward_bytes_per_rank_max);
    printf("     ");
    for (int i = 0; i < info.period; i++) {
        const heddle_schedule_stage *plan = &net->stages[i].plan;
        if (heddle_layout_format(layout, sizeof(layout), &plan->layout, &info.shape, &info.mesh) == HEDDLE_OK &&
            strcmp(layout, last) != 0) {
            printf("%s %s:", i == 0 ? "" : " |", layout);
            memcpy(last, layout, sizeof(last));
        }
        printf(" %s", plan->name);
        if (strcmp(plan->method, "local") != 0) {
            printf(" (%s)", plan->method);
        }
    }
    printf(" | x %d; %lld parameters\n", info.repeat, (long long)net->nparams);
    fflush(stdout);
}

/* A bar that is written over on a terminal, else a line now and then. */
void report_progress(const options *opt, int64_t step, double loss, double seconds)
{
    enum { BAR = 30 };
    const int64_t done = step + 1;
    const double rate = (double)done / (seconds > 0 ? seconds : 1e-9), left = (double)(opt->steps - done) / rate;
    if (opt->quiet) {
        return;
    }
    if (isatty(STDOUT_FILENO)) {
        char bar[BAR + 1];
        for (int i = 0; i < BAR; i++) {
            bar[i] = (int64_t)i * opt->steps < done * BAR ? '#' : '.';
        }
        bar[BAR] = '\0';
        printf("\r[%s] %lld/%lld  loss %.4f  %.1f steps/s  %.0f s left   %s", bar, (long long)done,
               (long long)opt->steps, loss, rate, left, done == opt->steps ? "\n" : "");
        fflush(stdout);
    } else if (done == 1 || done % opt->print_every == 0 || done == opt->steps) {
        printf("step %lld/%lld  loss %.6f  %.1f steps/s  %.0f s left\n", (long long)done, (long long)opt->steps, loss,
               rate, left);
        fflush(stdout);
    }
}

static double mean(const double *values, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += values[i];
    }
    return sum / (double)count;
}

void report_end(const options *opt, const outcome *result)
{
    const int64_t tenth = opt->steps >= 10 ? opt->steps / 10 : 1;
    if (opt->quiet) {
        return;
    }
    printf("loss: first step %.6f, mean of the last %lld steps %.6f; %lld steps in %.1f s\n", result->loss[0],
           (long long)tenth, mean(result->loss + opt->steps - tenth, tenth), (long long)opt->steps, result->seconds);
    if (opt->picture != NULL) {
        printf("picture: %s; mean squared error to the clip (values -1 .. 1): noised %.4f, denoised before training "
               "%.4f, after %.4f\n",
               opt->picture, result->error_noised, result->error_untrained, result->error_trained);
    }
}

/* Sent by this rank so far. */
heddle_status count_traffic(traffic *out, const trainer *t)
{
    heddle_session_counters session = HEDDLE_EMPTY(heddle_session_counters);
    heddle_bucket_info bucket = HEDDLE_EMPTY(heddle_bucket_info);
    heddle_status st = heddle_session_get_counters(&session, t->net.session);
    st = st ? st : heddle_bucket_get_info(&bucket, t->bucket);
    out->switches = session.bytes_sent;
    out->switches_planned = session.bytes_planned;
    out->gradients = bucket.measured_bytes;
    out->gradients_planned = bucket.planned_bytes * bucket.reduces;
    out->attention = out->attention_planned = 0;
    for (int i = 0; st == HEDDLE_OK && i < t->net.nstages; i++) {
        heddle_block_traffic one = HEDDLE_EMPTY(heddle_block_traffic);
        st = heddle_block_get_traffic(&one, t->net.stages[i].block);
        out->attention += one.measured_bytes;
        /* per forward and backward; with recomputation the forward comes twice */
        out->attention_planned +=
            t->passes * (one.planned_forward_bytes * (t->opt->recompute ? 2 : 1) + one.planned_backward_bytes);
    }
    return st;
}

/* What all ranks sent while training, counted as it moved, against what the plan said; a difference is an error. */
heddle_status report_traffic(trainer *t)
{
    const int64_t steps = t->opt->steps;
    traffic now;
    heddle_status st = count_traffic(&now, t);
    int64_t sums[8] = {now.switches_planned - t->before.switches_planned,
                       now.switches - t->before.switches,
                       now.gradients_planned,
                       now.gradients,
                       now.attention_planned,
                       now.attention - t->before.attention,
                       t->net.tape_bytes,
                       heddle_adamw_state_bytes(t->adamw)};
    st = st ? st : heddle_comm_allreduce_sum(t->net.comm, sums, 8, HEDDLE_I64);
    if (st == HEDDLE_OK && t->net.rank == 0 && !t->opt->quiet) {
        printf("bytes per step, all ranks: switches planned %lld measured %lld, ", (long long)(sums[0] / steps),
               (long long)(sums[1] / steps));
        if (sums[4] != 0) {
            printf("attention planned %lld measured %lld, ", (long long)(sums[4] / steps),
                   (long long)(sums[5] / steps));
        }
        printf("gradients planned %lld measured %lld\n", (long long)(sums[2] / steps), (long long)(sums[3] / steps));
        printf("memory per rank: %.2f MB of activations kept for backward%s, %.2f MB of optimiser state%s\n",
               1e-6 * (double)sums[6] / (double)t->opt->ranks, t->opt->recompute ? " (recomputed)" : "",
               1e-6 * (double)sums[7] / (double)t->opt->ranks, t->opt->shard_optimizer ? " (sharded over dp)" : "");
    }
    if (st == HEDDLE_OK && (sums[0] != sums[1] || sums[2] != sums[3] || sums[4] != sums[5])) {
        st = heddle_set_error(HEDDLE_ERR_INTERNAL, "other bytes were sent than planned");
    }
    return st;
}
