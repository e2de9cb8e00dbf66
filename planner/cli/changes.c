#include "changes.h"

#include "crossover.h"
#include "planner/report/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEP = 4, MANY_RANKS = 16 /* are asked for on the plan's mesh alone, or it would take long */ };

static const double closely = 1.002;    /* two factors that are one */
static const double no_less = 1 - 1e-9; /* picoseconds of every stage are rounded */

typedef struct search {
    const cli_question *q;
    const heddle_schedule *plan;
    cli_change *of;
} search;

/* The question of a machine whose links have other rates; its machine is to be destroyed. */
static heddle_status scale(cli_question *out, const search *s, double times)
{
    *out = *s->q;
    out->machine = NULL;
    heddle_status st =
        heddle_machine_scaled(&out->machine, s->q->machine, s->of->link, s->of->is_faster ? times : 1 / times);
    out->options.machine = out->machine;
    return st;
}

/* Of a schedule on the question's machine: seconds, by gpu-seconds those of all its ranks. */
static heddle_status value_of(double *out, const cli_question *q, const heddle_schedule *schedule)
{
    heddle_schedule_info about = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_forecast_info of = HEDDLE_EMPTY(heddle_forecast_info);
    heddle_forecast *forecast = NULL;
    heddle_status st = heddle_schedule_get_info(&about, schedule);
    st = st == HEDDLE_OK ? heddle_forecast_create(&forecast, q->model, schedule, q->machine, &q->way) : st;
    st = st == HEDDLE_OK ? heddle_forecast_get_info(&of, forecast) : st;
    *out =
        st == HEDDLE_OK && strcmp(about.objective, "time") != 0 ? of.time_s * heddle_mesh_size(&about.mesh) : of.time_s;
    heddle_forecast_destroy(forecast);
    return st;
}

/* Whether the other one is better than the plan on that machine. */
static heddle_status is_beaten(int *out, const search *s, const heddle_schedule *other, double times)
{
    cli_question q;
    double value = 0, least = 0;
    heddle_status st = scale(&q, s, times);
    st = st == HEDDLE_OK ? value_of(&value, &q, s->plan) : st;
    st = st == HEDDLE_OK ? value_of(&least, &q, other) : st;
    *out = st == HEDDLE_OK && least < value * no_less;
    heddle_machine_destroy(q.machine);
    return st;
}

/* The best plan on that machine; NULL: none is better than the plan. */
static heddle_status better_at(heddle_schedule **out, const search *s, double times)
{
    cli_question q;
    int is = 0;
    heddle_status st = scale(&q, s, times);
    *out = NULL;
    st = st == HEDDLE_OK ? cli_ask_plan(out, &q, &q.options) : st;
    st = st == HEDDLE_OK ? is_beaten(&is, s, *out, times) : st;
    if (!is) {
        heddle_schedule_destroy(*out);
        *out = NULL;
    }
    heddle_machine_destroy(q.machine);
    return st;
}

/* Between 1, where nothing beats the plan, and *beaten, where the other one does: both close to where they cross. */
static heddle_status cross(double *stands, double *beaten, const search *s, const heddle_schedule *other)
{
    heddle_status st = HEDDLE_OK;
    for (*stands = 1; st == HEDDLE_OK && *beaten > *stands * closely;) {
        const double times = sqrt(*stands * *beaten);
        int is = 0;
        st = is_beaten(&is, s, other, times);
        *(is ? beaten : stands) = times;
    }
    return st;
}

static void name_change(cli_change *c, const heddle_schedule *plan, const heddle_schedule *better)
{
    heddle_schedule_info a = HEDDLE_EMPTY(heddle_schedule_info), b = HEDDLE_EMPTY(heddle_schedule_info);
    char was[HEDDLE_LINE_BYTES] = "", is[HEDDLE_LINE_BYTES] = "";
    heddle_ignore(heddle_schedule_get_info(&a, plan));
    heddle_ignore(heddle_schedule_get_info(&b, better));
    heddle_ignore(heddle_mesh_format(was, sizeof was, &a.mesh));
    heddle_ignore(heddle_mesh_format(is, sizeof is, &b.mesh));
    if (strcmp(was, is) != 0) {
        snprintf(c->change, sizeof c->change, "%.200s instead of %.200s", is, was);
    } else {
        (void)cli_find_crossover(c->change, sizeof c->change, plan, better);
    }
}

/* Outwards in steps until another plan is better; then back to where the two cross, and, where a third is better there,
 * to where that one does. */
static heddle_status find(const search *s)
{
    heddle_schedule *better = NULL, *nearer = NULL;
    heddle_status st = HEDDLE_OK;
    double stands = 1, beaten = 1;
    while (st == HEDDLE_OK && better == NULL && beaten < CHANGES_RATE) {
        beaten *= STEP;
        st = better_at(&better, s, beaten);
    }
    while (st == HEDDLE_OK && better != NULL) {
        st = cross(&stands, &beaten, s, better);
        st = st == HEDDLE_OK && stands > 1 ? better_at(&nearer, s, stands) : st;
        if (nearer == NULL) {
            s->of->times = beaten;
            name_change(s->of, s->plan, better);
            break;
        }
        heddle_schedule_destroy(better);
        better = nearer;
        nearer = NULL;
        beaten = stands;
    }
    heddle_schedule_destroy(better);
    return st;
}

/* Whether the class of level l is another one than those below, and ranks of the question meet there. */
static int is_met(const cli_question *q, int ranks, int l)
{
    int is = l == 0 || q->on.ranks_within[l - 1] < ranks;
    for (int i = 0; i < l; i++) {
        is = is && strcmp(q->on.link[i], q->on.link[l]) != 0;
    }
    return is;
}

heddle_status cli_find_changes(cli_changes *out, const cli_question *q, const schedule_view *plan)
{
    const int ranks = q->ranks > 0 ? q->ranks : plan->nranks;
    const char *objective = plan->info.objective, *link[HEDDLE_MACHINE_LINKS + 1] = {NULL};
    heddle_status st = HEDDLE_OK;
    int links = 1;
    cli_question same = *q;
    *out = (cli_changes){.is_of_mesh = q->ranks == 0 || q->ranks > MANY_RANKS};
    if (out->is_of_mesh) {
        same.ranks = 0;
        same.mesh = plan->info.mesh;
    }
    if (ranks == 1 || (strcmp(objective, "time") != 0 && strcmp(objective, "gpu-seconds") != 0)) {
        return st;
    }
    for (int l = 0; l < q->on.nlinks; l++) {
        if (is_met(q, ranks, l)) {
            link[links++] = q->on.link[l];
        }
    }
    links = links > 2 ? links : 1; /* the only class is all of them */
    for (int i = 0; i < 2 * links && st != HEDDLE_ERR_NOMEM; i++) {
        cli_change *c = &out->list[out->count];
        *c = (cli_change){.link = link[i / 2], .is_faster = i % 2};
        st = find(&(search){.q = &same, .plan = plan->schedule, .of = c});
        out->count += st == HEDDLE_OK;
    }
    return st == HEDDLE_ERR_NOMEM ? st : HEDDLE_OK;
}

void cli_print_changes(const cli_changes *changes)
{
    for (int i = 0; i < changes->count; i++) {
        const cli_change *c = &changes->list[i];
        const char *way = c->is_faster ? "fast" : "slow", *of = c->link != NULL ? c->link : "links";
        char line[sizeof c->change + 128];
        if (i == 0) {
            printf("the best plan%s if links were slower or faster:\n", changes->is_of_mesh ? " on this mesh" : "");
        }
        if (c->times > 0) {
            snprintf(line, sizeof line, "%s %.3g times as %s: %s", of, c->times, way, c->change);
        } else {
            snprintf(line, sizeof line, "%s 4, 16 or %d times as %s: this plan", of, CHANGES_RATE, way);
        }
        printf("  ");
        report_wrap(stdout, line, 2, 4, REPORT_COLUMNS);
        printf("\n");
    }
}

void cli_print_changes_json(const cli_changes *changes)
{
    printf("[");
    for (int i = 0; i < changes->count; i++) {
        const cli_change *c = &changes->list[i];
        printf("%s{", i > 0 ? ",\n  " : "\n  ");
        if (c->link != NULL) {
            report_json_string("class", c->link, ", ");
        } else {
            printf("\"class\": null, ");
        }
        report_json_string("way", c->is_faster ? "faster" : "slower", ", ");
        if (c->times > 0) {
            printf("\"times\": %.15g, ", c->times);
            report_json_string("change", c->change, "}");
        } else {
            printf("\"times\": null, \"change\": null}");
        }
    }
    printf("]");
}
