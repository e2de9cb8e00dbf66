/* A schedule as a picture (SVG), a report (one HTML page) and a timeline (Chrome's trace format, which Perfetto reads,
 * too): what `heddle draw` writes. Nothing in them is loaded from elsewhere. */
#ifndef HD_DRAW_H
#define HD_DRAW_H

#include "pen.h"
#include "planner/report/schedule_table.h"

#include <heddle/forecast.h>
#include <stdio.h>

/* Seconds of a stage, or of the edge that leads into it. time = compute + transfer - hidden. */
typedef struct draw_cost {
    double time_s, compute_s, transfer_s, hidden_s;
    int64_t memory_bytes;
    int link; /* the outermost link class with bytes, -1: none */
    int64_t link_sent_max[HEDDLE_MACHINE_LINKS];
} draw_cost;

/* What is drawn. */
typedef struct draw_plan {
    schedule_view view; /* its model is NULL where a schedule's file alone is known */
    const heddle_machine *machine;
    const heddle_forecast *forecast; /* NULL: seconds are those of the schedule's file, if it has any */
    heddle_forecast_info cost;       /* of the forecast; without one all 0 but time_s */
    heddle_machine_info where;
    draw_cost *stage, *edge; /* [nstages], [nedges]; NULL: no seconds are known */
} draw_plan;

/* Borrows everything; forecast and machine may be NULL. HEDDLE_ERR_NOMEM. */
heddle_status draw_plan_make(draw_plan *out, const heddle_model *model, const heddle_schedule *schedule,
                             const heddle_machine *machine, const heddle_forecast *forecast);
void draw_plan_free(draw_plan *plan);

/* HEDDLE_ERR_NOMEM; whether the bytes arrived is the file's matter, here and below. */
heddle_status draw_picture(FILE *to, const draw_plan *plan);

/* What `heddle run --json` measured of one stage: of the slowest rank, one run of it. */
typedef struct draw_measured_stage {
    char *name, *layout, *method; /* owned */
    double switch_s, block_s;
} draw_measured_stage;

typedef struct draw_measured {
    char *of[3]; /* model, shape, mesh, as the run says them; owned */
    draw_measured_stage *stage;
    int nstages;
} draw_measured;

/* HEDDLE_ERR_IO: no such file. HEDDLE_ERR_PARSE: not what heddle run --json prints. draw_measured_free in any case. */
heddle_status draw_measured_load(draw_measured *out, const char *path);
void draw_measured_free(draw_measured *measured);

/* A process per rank (the first 16), in it a thread for work and one per link class, and a counter of the memory held;
 * beside them what was measured, where measured is not NULL. HEDDLE_ERR_MISMATCH: that is of another schedule.
 * HEDDLE_ERR_ARG: no seconds are known. */
heddle_status draw_trace(FILE *to, const draw_plan *plan, const draw_measured *measured);

/* What would be if a stage ran otherwise. */
typedef struct draw_alternative {
    char stage[128], otherwise[160]; /* "t@sp/ring" */
    char method[32];                 /* that was asked for; "": any */
    char outcome[PEN_TEXT_BYTES];    /* the sentence of a refusal; "": a plan was found */
    double value;
} draw_alternative;

enum { DRAW_ALTERNATIVES = 60 /* at most */ };

/* The plan's mixing stages by other methods and in layouts that differ on one axis: the planner is asked again, with
 * the options that it was made with. The caller frees *out. HEDDLE_ERR_NOMEM. */
heddle_status draw_alternatives(draw_alternative **out, int *count, const draw_plan *plan,
                                const heddle_plan_options *options);
/* What was made smallest: the objective's value, without one the bytes of the busiest rank. */
double draw_value(const heddle_schedule_info *info);

typedef struct draw_sweep_point {
    int ranks;
    double time_s, memory_bytes, bytes;
    char mesh[96];
} draw_sweep_point;

/* What a report has besides; all may be 0. */
typedef struct draw_extras {
    const draw_alternative *alternative;
    const draw_sweep_point *point;
    int nalternatives, npoints;
} draw_extras;

/* One page: the picture, tables that sort on a click and are whole without scripts, memory over time, and the extras.
 */
heddle_status draw_page(FILE *to, const draw_plan *plan, const draw_extras *extras);

/* draw_page's charts. x and y ascend; a line from point to point, or steps. */
typedef struct draw_series {
    const double *x, *y;
    int count, is_steps, is_log; /* is_log: both axes */
    const char *x_words, *y_words;
    double ceiling; /* 0: none; a line across */
    const char *ceiling_words;
    const char *(*format_x)(char *out, size_t out_bytes, double value);
    const char *(*format_y)(char *out, size_t out_bytes, double value);
} draw_series;

void draw_chart(FILE *to, const draw_series *series);

#endif
