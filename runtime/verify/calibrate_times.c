/* Times of one operation, and what they come to. */
#include "runtime/verify/calibrate.h"
#include "runtime/verify/judge.h"
#include "runtime/verify/samples.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LEAST = 2, ATTEMPTS = 3 };

static const double SHORT_MS = 0.2;  /* runs that take less are timed several at once, but for what `before` is for */
static const double HAD_CORE = 0.98; /* of a time */
static const double AGREED = 0.05;   /* relative difference of turns */

/* For which this thread had a core. */
static double core_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

heddle_status calibrate_time_runs(double *ms, calibrate_run *run, int64_t repeats)
{
    run->had_core = 1;
    if (run->there != NULL) {
        return calibrate_there_time(ms, run, repeats);
    }
    heddle_status st = run->operation->before != NULL ? run->operation->before(run) : HEDDLE_OK;
    st = st == HEDDLE_OK ? heddle_comm_barrier(run->comm) : st;
    const double had = core_now_ms(), start = samples_now_ms();
    for (int64_t i = 0; i < repeats && st == HEDDLE_OK; i++) {
        st = run->operation->once(run);
    }
    const double wall = samples_now_ms() - start, core = core_now_ms() - had;
    run->sample->wall_ms += wall;
    run->sample->core_ms += core;
    const int needs_core = run->sample->about.ranks == 0 && !run->shares_core; /* who waits for others needs none */
    run->had_core = !needs_core || core >= HAD_CORE * wall;
    *ms = wall / fmax((double)repeats, 1);
    return st;
}

/* So many more, or as many as there are in some attempts: all ranks run while one lacks some. */
static heddle_status take_times(calibrate_run *run, int times, int64_t repeats)
{
    calibrate_sample *s = run->sample;
    const int before = s->times;
    double lacking = times, ms = 0;
    heddle_status st = HEDDLE_OK;
    for (int attempt = 0; attempt < ATTEMPTS && lacking > 0 && st == HEDDLE_OK; attempt++) {
        for (int i = 0; i < (int)lacking && st == HEDDLE_OK; i++) {
            st = calibrate_time_runs(&ms, run, repeats);
            if (run->had_core && s->times - before < times) {
                s->ms[s->times++] = ms;
            }
        }
        lacking = before + times - s->times;
        st = st == HEDDLE_OK ? samples_slowest(&lacking, 1, run->comm) : st;
    }
    if (s->times == before) {
        s->ms[s->times++] = ms;
    }
    return st;
}

/* A model's pass is made of many such runs, so what counts is their mean, but for `cut` of the slowest, which something
 * else held up, and as many of the fastest. Sorts them. */
static double mean_of_middle(double *ms, int times, int cut)
{
    double sum = 0;
    samples_sort(ms, times);
    for (int i = cut; i < times - cut; i++) {
        sum += ms[i];
    }
    return sum / (times - 2 * cut);
}

/* Of a turn, by one more run: as many as fit the budget. The ranks agree. */
static heddle_status choose_times(calibrate_run *run, double budget_ms)
{
    calibrate_sample *s = run->sample;
    const double begun = samples_now_ms();
    double once[2] = {0, 0}; /* the run; that and what is before it */
    heddle_status st = calibrate_time_runs(&once[0], run, 1);
    once[1] = samples_now_ms() - begun;
    st = st == HEDDLE_OK ? samples_slowest(once, 2, run->comm) : st;
    const int is_repeated = once[0] < SHORT_MS && run->operation->before == NULL;
    s->repeats = is_repeated ? (int64_t)(SHORT_MS / fmax(once[0], SHORT_MS / 1000)) + 1 : 1;
    const double each = is_repeated ? once[0] * (double)s->repeats : once[1];
    const int least = run->is_rough ? LEAST : 1; /* a rough run has one turn */
    s->turn_times = (int)fmax(fmin(budget_ms / fmax(each, 1e-3), CALIBRATE_TURN_TIMES), least);
    return st;
}

/* Who works waits for the rank that is slow at that time, which lasts for longer than an operation; what it exchanges
 * ends when the slowest does. */
static heddle_status end_turn(calibrate_sample *s, int before, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    if (s->about.ranks > 0) {
        st = samples_slowest(&s->ms[before], s->times - before, comm);
    }
    s->own_ms[s->turns] = mean_of_middle(&s->ms[before], s->times - before, (s->times - before) / 8);
    s->turn_ms[s->turns] = s->own_ms[s->turns];
    return st == HEDDLE_OK ? samples_slowest(&s->turn_ms[s->turns++], 1, comm) : st;
}

heddle_status calibrate_time_operation(calibrate_run *run, double budget_ms)
{
    calibrate_sample *s = run->sample;
    const int before = s->times;
    double first_ms = 0;
    heddle_status st = run->operation->open(run);
    st = st == HEDDLE_OK ? calibrate_time_runs(&first_ms, run, 1) : st;
    st = st == HEDDLE_OK && s->turns == 0 ? choose_times(run, budget_ms) : st;
    st = st == HEDDLE_OK ? take_times(run, s->turn_times, s->repeats) : st;
    st = st == HEDDLE_OK ? end_turn(s, before, run->comm) : st;
    st = st == HEDDLE_OK ? heddle_comm_barrier(run->comm) : st; /* nobody reads what a rank frees */
    run->operation->close(run);
    return st;
}

/* Half of them, the middle ones. */
static double between_turns(double *turn_ms, int turns)
{
    return mean_of_middle(turn_ms, turns, turns / 4);
}

void calibrate_conclude(calibrate_sample *s)
{
    const double *sorted = s->turns > 1 ? s->turn_ms : s->ms; /* end_turn has sorted those of the only one */
    const int count = s->turns > 1 ? s->turns : s->times, cut = count / 4;
    const double ms = between_turns(s->turn_ms, s->turns);
    s->about.seconds = ms * 1e-3;
    s->about.spread = (sorted[count - 1 - cut] - sorted[cut]) / ms;
    s->agrees = s->about.spread <= AGREED;
}

heddle_status calibrate_waiting(double *out, const calibrate_sample *sample, int samples, heddle_comm *comm)
{
    const int ranks = heddle_comm_size(comm);
    double *all = calloc((size_t)ranks, sizeof *all), waits = 0, sum = 0;
    int works = 0;
    for (int i = 0; i < samples; i++) {
        if (sample[i].about.ranks == 0) {
            double own[CALIBRATE_MOST_TURNS];
            memcpy(own, sample[i].own_ms, sizeof own);
            waits += log(sample[i].about.seconds * 1e3 / between_turns(own, sample[i].turns));
            works++;
        }
    }
    waits /= fmax(works, 1);
    heddle_status st = all != NULL ? heddle_comm_allgather(comm, &waits, all, sizeof waits)
                                   : judge_no_memory("times of the ranks", (double)ranks * sizeof *all);
    for (int r = 0; r < ranks && st == HEDDLE_OK; r++) {
        sum += all[r];
    }
    *out = fmax(exp(sum / ranks), 1);
    free(all);
    return st;
}
