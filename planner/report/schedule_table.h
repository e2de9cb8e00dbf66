/* A schedule as a table, to standard output: what `heddle plan` prints. */
#ifndef HD_REPORT_SCHEDULE_TABLE_H
#define HD_REPORT_SCHEDULE_TABLE_H

#include <heddle/forecast.h>
#include <heddle/heddle.h>

/* The schedule with everything the table wants to know about it. */
typedef struct schedule_view {
    const heddle_model *model;
    const heddle_schedule *schedule;
    heddle_schedule_info info;
    int nranks;
    int of_ranks;                    /* so many were asked for, on any mesh; 0: the mesh was */
    int is_forced;                   /* methods or stages were asked for, other plans did not count */
    double elems, bytes;             /* of the whole tensor */
    const heddle_forecast *forecast; /* NULL: none */
    heddle_forecast_info of;
    heddle_machine_info on;   /* what it is a forecast for */
    const char *machine_from; /* why this machine */
    int is_step;              /* the way back counts, too */
    /* The same plan with enough repetitions for a steady state, for comparisons; NULL: none could be made. */
    const heddle_schedule *long_run;
    char longest_dim[HEDDLE_NAME_BYTES]; /* "": not asked for */
    int64_t longest, longest_bytes;      /* its largest extent that fits so many bytes of a rank */
    char left_out[256];                  /* what the slack left out, though it sends less; "": nothing that is known */
    int left_out_of;                     /* stage of the model that has more work then */
    /* The size with which the passes of guidance are one, "b=2"; "": they are, or there is no plan of it. */
    char at_once[64];
    double at_once_s; /* what a sample takes then; 0: not searched */
    heddle_mesh at_once_mesh;
    int is_stages_alone; /* repetitions are alike whose stages are, whatever leads into the first of them */
} schedule_view;

enum { REPORT_LONG_RUN = 24 /* repetitions */ };

void report_schedule(const schedule_view *view);

/* schedule_json.c: heddle-plan-1 (docs/formats.md), with the schedule in it. */
heddle_status report_schedule_json(const schedule_view *view);
/* The line of what a sample takes with the passes of guidance at once. */
void report_at_once_json(const schedule_view *view);

/* schedule_totals.c: what is below the table. */
void report_totals(const schedule_view *view);
/* What a rank sends of sharded weights in a pass: its part of every stage's to all others; in a step once more, and
 * gradients of them. 0: weights are whole. */
double report_gathered_bytes(const schedule_view *view);
/* The value of an objective with its unit: "12.3 ms", "82.1 GB". Returns `out`. */
const char *report_value(char *out, size_t out_bytes, const char *objective, double value);

/* schedule_facts.c: what table, JSON and explain say of one stage. */
/* By how much the busiest rank's part is larger than an even one, per cent. */
double report_waste(const schedule_view *view, const heddle_layout *layout);
const char *report_layout(char *out, size_t out_bytes, const schedule_view *view, const heddle_layout *layout);
/* A sentence: why stage i runs as it does. Returns `out`. */
const char *report_reason(char *out, size_t out_bytes, const schedule_view *view, int i);
/* What stage k of the model leaves idle in a layout by a method, "24 heads over 16 ranks: 33 % of the work idle"; ""
 * where nothing. */
const char *report_idle(char *out, size_t out_bytes, const schedule_view *view, int k, const heddle_layout *layout,
                        const char *method);
/* Why the planner left out what costs less: the method is rsa, or other ways were asked for. */
const char *report_left_out(const char *method);
/* schedule_compare.c: the schedule beside published methods, where these have formulas. */
void report_comparison(const schedule_view *view);

/* The shortest cycle among those that cover most repetitions from `first` on, and how often it follows on itself. */
void report_find_cycle(int *cycle, int *count, const schedule_view *view, int first);

#endif
