/* The schedule object, shared by the search, the reader and the writer. Layouts are kept once and named by index. */
#ifndef HD_SCHEDULE_INTERNAL_H
#define HD_SCHEDULE_INTERNAL_H

#include "runtime/document/node.h"
#include "runtime/method/method.h"

#include <heddle/schedule.h>

#define HD_SCHEDULE_SCHEMA "heddle-schedule-1"
#define HD_PLAN_SCHEMA "heddle-plan-1" /* of reports, which have a schedule in them */
enum { HD_SCHEDULE_LIMIT_BYTES = 64 << 20, HD_SCHEDULE_MAX_LAYOUTS = 256 };

typedef enum hd_edge_kind {
    HD_EDGE_KEEP,
    HD_EDGE_SPLIT,
    HD_EDGE_SWITCH,
    HD_EDGE_GATHER,
    HD_EDGE_FREE,
    HD_EDGE_GENERAL,
    HD_EDGE_KINDS
} hd_edge_kind;
enum { HD_STAGE_KINDS = HEDDLE_STAGE_MODULE + 1 };
/* As files and sentences have them. */
extern const char *const hd_edge_kind_names[HD_EDGE_KINDS];
extern const char *const hd_stage_kind_names[HD_STAGE_KINDS];

typedef struct hd_schedule_stage {
    char name[HD_NODE_LABEL_BYTES];
    hd_method_stage mixes; /* heads, causal and decays are known where some repetition has a method */
} hd_schedule_stage;

/* How one repetition of a stage runs. */
typedef struct hd_schedule_run {
    int layout; /* index in layout[] */
    const hd_method *method;
    hd_method_cost cost;
    double predicted_s; /* by the planner; 0: nothing was said */
} hd_schedule_run;

typedef struct hd_schedule_edge {
    int from, to; /* indices in layout[] */
    hd_edge_kind kind;
    hd_edge_cost cost, backward;
    double predicted_s; /* as above */
} hd_schedule_edge;

struct heddle_schedule {
    char *model;
    char *note;
    /* What the planner says of it; NULL and 0: nothing. Believed as it is read: no pass depends on it. */
    char *machine, *objective;
    double value, lower_bound, runner_up, predicted_s;
    heddle_shape shape;
    heddle_mesh mesh;
    int period, repeat;       /* stages of one repetition, repetitions */
    hd_schedule_stage *stage; /* [period] */
    int nlayouts, layouts_capacity;
    heddle_layout *layout;
    hd_schedule_run *run;   /* [period * repeat] */
    hd_schedule_edge *edge; /* [period * repeat + 1] */
    int switches;
    int64_t bytes_per_rank_max, bytes_total;
    int64_t backward_bytes_per_rank_max, backward_bytes_total;
};

heddle_status hd_schedule_new(heddle_schedule **out, const char *model, int period, int repeat);
/* Index of an equal layout in the table, added if new. */
heddle_status hd_schedule_layout(int *out, heddle_schedule *schedule, const heddle_layout *layout);
/* Set how stage `index` runs: its layout must be set. HEDDLE_ERR_LAYOUT: the method cannot run there. */
heddle_status hd_schedule_set_method(heddle_schedule *schedule, int index, const hd_method *method);
/* Fill an edge: kind and cost from its two layouts; is_free: the ends are a free choice. */
heddle_status hd_schedule_set_edge(heddle_schedule *schedule, int edge, int from, int to, int is_free);
/* Totals from the edges and the methods; HEDDLE_ERR_UNSUPPORTED when a sum passes 2^63. */
heddle_status hd_schedule_sum(heddle_schedule *schedule);
heddle_status hd_schedule_set_note(heddle_schedule *schedule, const char *note);

hd_edge_kind hd_edge_kind_of(const heddle_layout *from, const heddle_layout *to, const heddle_mesh *mesh);

/* Exact bytes and messages of a reshard, all ranks; link[levels->count]: those of every level, NULL: not wanted. */
heddle_status hd_edge_links_of(hd_edge_cost *out, hd_link_bytes *link, const hd_levels *levels,
                               const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *from,
                               const heddle_layout *to);
heddle_status hd_edge_cost_of(hd_edge_cost *out, const heddle_shape *shape, const heddle_mesh *mesh,
                              const heddle_layout *from, const heddle_layout *to);
/* Parts of the prices of edges, kept from one to the next: all of them of one mesh and the same levels. */
typedef struct hd_edge_parts hd_edge_parts;
heddle_status hd_edge_parts_new(hd_edge_parts **out, const heddle_mesh *mesh, const hd_levels *levels);
void hd_edge_parts_free(hd_edge_parts *parts);
/* hd_edge_links_of by kept parts; the layouts have been checked. of_few: of the ranks a few alone are looked at, so
 * that the busiest of them may do less than the busiest of all; totals and messages are not to be used. */
heddle_status hd_edge_links_by(hd_edge_cost *out, hd_link_bytes *link, const hd_levels *levels,
                               const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *from,
                               const heddle_layout *to, hd_edge_parts *parts, int of_few);
/* Coordinates that rank 0's set of every level has on every axis; the sets are boxes of them (hd_levels_nest). */
void hd_edge_widths(int width[HD_LEVELS][HEDDLE_MAX_AXES], const heddle_mesh *mesh, const hd_levels *levels);
/* Of one dim, what a rank at some coordinates has in common with itself, and with all peers of a level's set. */
typedef struct hd_edge_part {
    int64_t own;
    int64_t sent[HD_LEVELS], received[HD_LEVELS]; /* elements */
    int64_t messages[HD_LEVELS];                  /* peers that it sends any */
} hd_edge_part;
/* Levels whose sets are boxes of coordinates (hd_levels_nest). */
void hd_edge_part_at(hd_edge_part *out, const heddle_shape *shape, const heddle_mesh *mesh, const hd_levels *levels,
                     const hd_edge_parts *parts, const heddle_layout *from, const heddle_layout *to, int dim,
                     const int *coords);
/* The same by listing every rank's peers (heddle_reshard_sends): slower, any layout and levels. */
heddle_status hd_edge_links_listed(hd_edge_cost *out, hd_link_bytes *link, const hd_levels *levels,
                                   const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *from,
                                   const heddle_layout *to);
/* The adjoint of an edge: from the gradient's layout behind it, the dual of `to`, to the dual of `from`. Behind the
 * last edge every rank has the same whole gradient of what it holds, so `to` itself stands there (is_last). */
void hd_edge_backward(heddle_layout *behind, heddle_layout *before, const heddle_mesh *mesh, const heddle_layout *from,
                      const heddle_layout *to, int is_last);
heddle_status hd_edge_backward_cost_of(hd_edge_cost *out, const heddle_shape *shape, const heddle_mesh *mesh,
                                       const heddle_layout *from, const heddle_layout *to, int is_last);

#endif
