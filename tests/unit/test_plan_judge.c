/* Plans against every walk there is: chains and models that repeat themselves, on one to three axes, with methods, by
 * bytes and by seconds, under caps on memory, with stages forced, to ends of every kind. */
#include "plan_judge.h"

HD_CASE(equals_every_walk)
{
    static judge j;
    int ends_in_blocks = 0;
    for (int trial = 0; trial < hd_rounds(300); trial++) {
        heddle_machine *machine = machine_of(trial % 3);
        open_judge(&j, machine, trial % 2, trial % 4 == 3);
        ends_in_blocks += j.end.nshards[0] > 0;
        judge_all(&j);
        close_judge(&j, machine, check_plan(&j, trial));
    }
    assert_true(ends_in_blocks > hd_rounds(300) / 5);
}

/* Caps between the least and the most that any walk needs, and one below. */
HD_CASE(fits_where_something_fits)
{
    static judge j;
    int refused = 0;
    for (int trial = 0; trial < hd_rounds(200); trial++) {
        heddle_machine *machine = machine_of(trial % 3);
        open_judge(&j, machine, trial % 4 < 3, trial % 2);
        judge_all(&j);
        j.cap = trial % 7 == 6 ? j.least_peak - 1 : between(j.least_peak, j.most_peak);
        j.options.memory_bytes = j.cap;
        const int64_t least = j.least_peak, second = j.second_peak == INT64_MAX ? 0 : j.second_peak;
        judge_all(&j);
        heddle_schedule *s = check_plan(&j, trial);
        if (s == NULL) {
            refused++;
            assert_non_null(strstr(heddle_last_error(), "are allowed"));
        } else {
            heddle_schedule_destroy(s);
            s = NULL;
        }
        j.options.memory_bytes = 0;
        j.options.objective = "memory";
        HD_OK(heddle_plan(&s, j.model, &j.mesh, &j.options));
        is_value(info_of(s).value, (double)least, "the least peak", trial);
        is_value(info_of(s).runner_up, (double)second, "the next peak", trial);
        close_judge(&j, machine, s);
    }
    assert_true(refused > 0);
}

/* What one asks for instead costs exactly what it costs more: in bytes whole numbers. */
HD_CASE(forced_stages_cost_their_regret)
{
    static judge j;
    int dearer = 0;
    for (int trial = 0; trial < hd_rounds(300); trial++) {
        char force[HEDDLE_LINE_BYTES + 64];
        char text[HEDDLE_LINE_BYTES];
        heddle_machine *machine = machine_of(trial % 3);
        open_judge(&j, machine, trial % 3 == 0, 0);
        judge_all(&j);
        sum free_best = j.best;
        j.force_stage = below(j.period);
        const way *w = &j.ways[j.force_stage][below(j.nways[j.force_stage])];
        j.force_repetition = below(2) ? -1 : below(j.nsteps / j.period);
        j.force_layout = below(4) == 0 ? -1 : w->layout;
        j.force_method = below(3) == 0 ? NULL : w->method;
        HD_OK(heddle_layout_format(text, sizeof text, &j.layout[w->layout], &j.model->shape, &j.mesh));
        int n = snprintf(force, sizeof force, "%s", j.model->stage[j.force_stage].name);
        n += j.force_repetition < 0 ? 0 : snprintf(force + n, sizeof force - (size_t)n, "#%d", j.force_repetition + 1);
        n += snprintf(force + n, sizeof force - (size_t)n, "=%s%s%s", j.force_layout >= 0 ? text : "",
                      j.force_method != NULL ? "/" : "", j.force_method != NULL ? j.force_method : "");
        if (force[n - 1] == '=') {
            snprintf(force + n, sizeof force - (size_t)n, "/auto");
        }
        judge_all(&j);
        j.options.force = force;
        heddle_schedule *s = check_plan(&j, trial);
        assert_non_null(s);
        assert_true(compare(j.best, free_best) >= 0);
        dearer += compare(j.best, free_best) > 0;
        close_judge(&j, machine, s);
    }
    assert_true(dearer > hd_rounds(300) / 5);
}

/* The same, step by step without a look back, for walks too long to be listed. */
static sum unrolled(const judge *j)
{
    sum to_end[MAX_LAYOUTS];
    char has[MAX_LAYOUTS];
    memset(has, 1, sizeof has);
    memcpy(to_end, j->last, sizeof to_end);
    for (int step = j->nsteps - 1; step >= 0; step--) {
        sum before[MAX_LAYOUTS];
        char had[MAX_LAYOUTS] = {0};
        int k = step % j->period;
        for (int i = 0; i < j->nways[k]; i++) {
            const way *w = &j->ways[k][i];
            for (int to = 0; to < j->nlayouts; to++) {
                sum rest = step + 1 == j->nsteps ? j->last[w->layout] : plus(j->edge[w->layout][to], to_end[to]);
                rest = plus(rest, w->cost);
                if (has[to] && (!had[w->layout] || compare(rest, before[w->layout]) < 0)) {
                    before[w->layout] = rest;
                    had[w->layout] = 1;
                }
            }
        }
        memcpy(to_end, before, sizeof to_end);
        memcpy(has, had, sizeof has);
    }
    int best = -1;
    for (int i = 0; i < j->nlayouts; i++) {
        best = has[i] && (best < 0 || compare(to_end[i], to_end[best]) < 0) ? i : best;
    }
    return to_end[best];
}

HD_CASE(long_models_are_their_unrolled_walk)
{
    static judge j;
    for (int trial = 0; trial < hd_rounds(150); trial++) {
        heddle_schedule *s = NULL;
        heddle_machine *machine = machine_of(trial % 3);
        open_judge(&j, machine, trial % 2, trial % 4 == 1);
        j.nsteps = j.period * (3 + below(200));
        HD_OK(heddle_model_resize(j.model, NULL, j.nsteps / j.period));
        HD_OK(heddle_plan(&s, j.model, &j.mesh, &j.options));
        const heddle_schedule_info info = info_of(s);
        const int64_t back = j.options.backward ? info.backward_bytes_per_rank_max : 0;
        is_value(info.value, value_of(&j, unrolled(&j)), "the value", trial);
        assert_true(j.is_time || (int64_t)info.value == info.bytes_per_rank_max + back);
        close_judge(&j, machine, s);
    }
}
