/* The search's state, shared by its parts. A plan is a walk through the stages: in every step the activation is in one
 * layout (a state) and the stage runs in one way (a method there). Stages and the edges between them have prices, the
 * objective makes a cost of each price, and the walk with the least sum of costs is the plan. */
#ifndef HD_SEARCH_INTERNAL_H
#define HD_SEARCH_INTERNAL_H

#include "planner/price/price.h"

enum { HD_SEARCH_STATES = 1296 };

/* --- costs (cost.c) ----------------------------------------------------------------------------------------------- */

typedef enum hd_objective {
    HD_OBJECTIVE_BYTES,
    HD_OBJECTIVE_TIME,
    HD_OBJECTIVE_SLOW_BYTES,
    HD_OBJECTIVE_MEMORY,
    HD_OBJECTIVE_GPU_SECONDS,
    HD_OBJECTIVES
} hd_objective;
extern const char *const hd_objective_names[HD_OBJECTIVES];

/* Compared in order; sums saturate at INT64_MAX. What stands where is the objective's. */
enum { HD_COST_PARTS = 6 };
typedef struct hd_cost {
    int64_t part[HD_COST_PARTS];
} hd_cost;

/* Any sum of costs is less. */
extern const hd_cost hd_cost_none;
int hd_cost_compare(const hd_cost *a, const hd_cost *b);
hd_cost hd_cost_add(const hd_cost *a, const hd_cost *b);

/* What else counts of a stage or an edge. */
typedef struct hd_extras {
    int64_t methods, switches, elems; /* stages that are not local; edges that move; of the largest box */
} hd_extras;

typedef struct hd_aim {
    hd_objective objective;
    int is_time;   /* seconds come first: work is priced, so that no layout is left out for being uneven */
    int slow_link; /* level of the machine that the mesh reaches up to; -1: no machine */
    int has_machine;
} hd_aim;

heddle_status hd_aim_read(hd_aim *out, const heddle_plan_options *options, int nranks);
hd_cost hd_aim_cost(const hd_aim *aim, const hd_price *price, const hd_extras *extras);

/* --- prices, each computed once (prices.c) ------------------------------------------------------------------------ */

/* Of a stage or of an edge. need: bytes of the fullest rank while it runs, besides what is resident; kept: of these
 * what stays for the way back. */
typedef struct hd_priced {
    hd_cost cost;
    int64_t time_ps, kept, need;
} hd_priced;

enum { HD_PRICE_KEY = 16 };
typedef struct hd_price_key {
    int64_t part[HD_PRICE_KEY];
} hd_price_key;

/* Outlives one mesh: meshes of the same ranks have most prices in common. */
typedef struct hd_prices {
    int count, capacity; /* of key and priced */
    hd_price_key *key;
    hd_priced *priced;
    int nslots; /* a power of two */
    int *slot;  /* index + 1; 0: empty */
    int ntables, tables_capacity;
    struct hd_near_table **table; /* near_edges.c's */
    void *room;                   /* near_open.c's, of one mesh at a time */
    size_t room_bytes;
} hd_prices;

void hd_prices_free(hd_prices *prices);

/* --- the search --------------------------------------------------------------------------------------------------- */

/* A way to run a stage in a state. */
typedef struct hd_way {
    const hd_method *method;
    hd_priced price;
} hd_way;

/* Stages that cost and admit the same. */
typedef struct hd_row {
    int stage;               /* the first of them in the model's list */
    const hd_method *wanted; /* NULL: whatever is best */
    int force;               /* index in hd_search.force, -1: none */
    int nadmitted;
    int16_t *admitted; /* [nadmitted] states, ascending */
    int *first;        /* [nstates + 1] ways of a state: way[first[state]] .. way[first[state + 1] - 1], best first */
    int nways, ways_capacity;
    hd_way *way;
    hd_cost least; /* of any way */
} hd_row;

/* "STAGE#REPETITION=LAYOUT/METHOD" */
typedef struct hd_force {
    int stage, repetition;   /* repetition -1: all */
    int state;               /* -1: any */
    int any_method;          /* auto */
    const hd_method *method; /* NULL: nothing was said, or auto */
    char text[128];
} hd_force;

typedef struct hd_search {
    const heddle_model *m;
    heddle_mesh mesh;
    hd_pricer pricer;
    hd_aim aim;
    int slack_percent, max_waste_percent;
    int64_t always_ps;      /* of every walk: sums of gradients, where the objective is seconds */
    int64_t resident, cap;  /* bytes of a rank before any stage; that a rank may have besides, INT64_MAX: no limit */
    int64_t next_need;      /* of objective memory: of the best other walk, as hd_needs has it */
    int nstates;            /* layouts that stages may be in */
    int nlayouts;           /* those, then the prologue's and the epilogue's */
    heddle_layout *layout;  /* [HD_SEARCH_STATES + 2] */
    int prologue, epilogue; /* indices in layout, -1: free */
    heddle_box *box;        /* [nstates] the largest */
    int64_t *elems;         /* [nstates] in it */
    int idle_digit;         /* of states: of an axis that shards a dim of one element, or nothing where there is none */
    unsigned *even;         /* [nstates] bit a: all blocks of the dim that axis a shards have one length */
    hd_method_stage *mixes; /* [period] */
    const hd_method **wanted; /* [period] by the option `methods` */
    int nforces, forces_capacity;
    hd_force *force;
    int nrows, rows_capacity;
    hd_row *row;
    int nsteps;
    int *row_of; /* [nsteps] */
    hd_prices *prices;
    int nwidths, *width_of; /* [period] of how many kinds the channels before a stage are, and of which */
    int *edge;              /* [nwidths][nlayouts][nlayouts] index in prices + 1; 0: not known yet */
    int is_monotone;        /* more bytes never take less: few ranks bound an edge */
    int64_t *least;         /* the same size: what hd_search_edge_least found + 1; NULL: nothing is below a price */
    int64_t likely;         /* the first part of the best walk's cost, where it was found before; 0: not known */
    struct hd_near *near;   /* tells it, of states that it has; NULL: is not there */
} hd_search;

/* A walk, made backwards: which way is taken in which state. */
typedef struct hd_walk {
    int16_t *state; /* [nsteps] */
    const hd_method **method;
    hd_cost cost, second; /* of this walk, and of the next best one; hd_cost_none: none, or not looked for */
} hd_walk;

typedef enum hd_walk_kind {
    HD_WALK_TWO,  /* the best one, and the cost of the next best */
    HD_WALK_BEST, /* faster: that one alone */
    HD_WALK_FLOOR /* faster still: every edge at what is known of it to cost at least */
} hd_walk_kind;

/* states.c */
heddle_status hd_search_states(hd_search *search);
/* The state whose idle axes, that shard nothing or a dim of one element, do what a digit of states says, and all others
 * what they do in this one. */
int hd_search_like(const hd_search *search, int state, int digit);
/* The index of a layout as text, added to the table if no stage may be in it; `what` begins the sentence. */
heddle_status hd_search_end(int *out, hd_search *search, const char *what, const char *text);

/* methods.c: fills mixes and wanted from "STAGE=METHOD,...". */
heddle_status hd_search_methods(hd_search *search, const char *methods);

/* force.c */
heddle_status hd_search_force(hd_search *search, const char *force);
/* The entry that holds for a step, -1: none. */
int hd_search_forced(const hd_search *search, int step);
/* Are all repetitions alike: is nothing forced in one of them? */
int hd_search_repeats(const hd_search *search);

/* admit.c: fills the rows: which layouts a stage admits, and by which methods. */
heddle_status hd_search_admit(hd_search *search);
double hd_search_waste_percent(const hd_search *search, int64_t elems);
void hd_row_free(hd_row *row);

/* prices.c */
int hd_search_mixes(const hd_method_stage *mixes, int dim);
heddle_status hd_search_widths(hd_search *search);
heddle_status hd_search_edges(hd_search *search); /* the tables of edges, made where they are first wanted */
heddle_status hd_search_stage_price(hd_priced *out, hd_search *search, int stage, int state, const hd_method *method);
/* The edge into a step; that behind the last stage is another one. */
heddle_status hd_search_edge_price(const hd_priced **out, hd_search *search, int step, int from, int to);
/* The first part of that price's cost is not below this, which is found much faster. */
heddle_status hd_search_edge_least(int64_t *out, hd_search *search, int step, int from, int to);
/* What of that is known already: of every `to` one more, 0: nothing yet. NULL: never is. */
const int64_t *hd_search_edge_known(const hd_search *search, int step, int from);
heddle_status hd_search_last_price(hd_priced *out, hd_search *search, int from);
/* Of a walk the edge into a step, or the one behind the last; nothing where it stays in its layout. */
heddle_status hd_search_edge_of(hd_priced *out, hd_search *search, const hd_walk *walk, int step);

/* memory.c: leaves out what passes the cap; HEDDLE_ERR_INFEASIBLE names the stage and both numbers. */
heddle_status hd_search_fit(hd_search *search);
/* What the fullest rank needs besides what is resident: the least, and that of the best other walk; INT64_MAX: none. */
typedef struct hd_needs {
    int64_t least, next;
} hd_needs;
heddle_status hd_search_least_need(hd_needs *out, hd_search *search);
/* What a walk needs. */
heddle_status hd_search_need(int64_t *out, hd_search *search, const hd_walk *walk);
heddle_status hd_search_refuse_memory(const hd_search *search, int64_t least);

/* walk.c: the best walk where nothing adds up but costs; labels.c: where kept bytes do, too. */
heddle_status hd_search_walk(hd_walk *out, hd_search *search, hd_walk_kind kind);
heddle_status hd_search_labels(hd_walk *out, hd_search *search);

/* few.c: the same walk, found through few states; *is_done 0: it was not. With a bound, NULL: none, walks that are not
 * below it need not be found. */
heddle_status hd_search_walk_few(hd_walk *out, int *is_done, hd_search *search, hd_walk_kind kind,
                                 const hd_cost *bound);
/* Is every walk at least as dear as `bound`? *found is lowered to what the walks cost that were priced for it. */
heddle_status hd_search_hope(int *is_hopeless, int64_t *found, hd_walk *room, hd_search *search, const hd_cost *bound);

/* bound.c: a cost that no walk is below. */
hd_cost hd_search_floor(const hd_search *search);
/* States go that no walk below `bound` (or at it, where `keeps_equal`) can be in. */
void hd_search_drop_dear(hd_search *search, const hd_cost *bound, int keeps_equal);
heddle_status hd_search_lower_bound(double *out, hd_search *search);
int64_t hd_search_least_stage(const hd_search *search);

/* near.c: the first part of no walk's cost is below this, INT64_MAX where some row admits no state; 0 where nothing is
 * known; how far it is below the bound matters, not how far above. *through, to be freed: [nrows][nstates] what no walk
 * through a state of a row is below; NULL: not known. */
heddle_status hd_search_near_floor(int64_t *out, double **through, hd_search *search, int64_t bound);
/* States go that no walk at or below the bound goes through; *is_empty: some row has none left. */
void hd_search_drop_through(int *is_empty, hd_search *search, const double *through, double bound);
typedef struct hd_near_table hd_near_table;
void hd_near_tables_free(hd_prices *prices);

/* plan.c */
heddle_status hd_search_options(heddle_plan_options *out, const heddle_plan_options *options);
heddle_status hd_search_open(hd_search *out, const heddle_model *model, const heddle_mesh *mesh,
                             const heddle_plan_options *options, hd_prices *prices);
void hd_search_close(hd_search *search);
/* bound: walks that are not below it are of no use; *found is 0 then. With one no next best walk is looked for. NULL:
 * none. */
heddle_status hd_search_run(hd_walk *out, int *found, hd_search *search, const hd_cost *bound);
void hd_walk_free(hd_walk *walk);

/* ranks_meshes.c: are the best mesh of so many ranks and these options what can be searched for, on which machine? */
heddle_status hd_search_ranks_options(heddle_machine_info *machine, const heddle_plan_options *options, int ranks);
/* Every mesh of so many ranks whose axes nest in the machine's levels, the preferred first; its axes
 * have names of no meaning. */
heddle_status hd_search_meshes(const heddle_machine_info *machine, int ranks,
                               heddle_status (*fn)(void *ctx, const heddle_mesh *mesh), void *ctx);
/* Are the axes of a mesh those of another one, some of them taken apart? */
int hd_search_refines(const heddle_mesh *fine, const heddle_mesh *coarse);
/* ranks_names.c: axes by what they shard; two of one name are numbered. */
void hd_search_name_axes(hd_search *search, const hd_walk *walk);

/* write_down.c: the objective's value of a whole plan: seconds or bytes. */
double hd_search_value(const hd_search *search, const hd_cost *cost);
heddle_status hd_search_write_down(heddle_schedule **out, hd_search *search, const hd_walk *walk);

#endif
