/* Shared by near.c, near_steps.c, near_edges.c and near_open.c. */
#ifndef HD_NEAR_H
#define HD_NEAR_H

#include "planner/search/search_internal.h"

enum {
    HD_NEAR_REPETITIONS = 6, /* that are walked */
    HD_NEAR_RANKS = HEDDLE_MAX_AXES,
    HD_NEAR_MASKS = 1 << HEDDLE_MAX_AXES
};

/* Of every level what is sent and what is received. */
typedef struct hd_near_moved {
    double x[2 * HD_LEVELS];
} hd_near_moved;

/* As in hd_edge_part. */
typedef struct hd_near_part {
    hd_near_moved moved;
    double own;
    int is_known;
} hd_near_part;

/* Costs of the best walks to every state, its own with it, or behind it, from there to the end. */
typedef struct hd_near_walks {
    double *cost;  /* [repetition][stage][layout], repetitions from the first, or from the last */
    double drift;  /* that every further cycle costs at least */
    int cycle;     /* repetitions; 0: none is further */
    double wanted; /* more in every repetition, from the walk whose goal this is */
    int done;
} hd_near_walks;

typedef struct hd_near {
    hd_search *s;
    hd_levels levels;
    int n;                           /* layouts: those that some stage admits, and the end's */
    int *layout, *index;             /* [n] which of the search's; of all of these which of them, -1: none */
    int ndims, dim[HEDDLE_MAX_DIMS]; /* that a layout may shard */
    unsigned many;                   /* axes of more than one rank, a bit each */
    int coords[HD_NEAR_RANKS][HEDDLE_MAX_AXES];
    unsigned *shards, *cuts, *whole; /* [n], [ndims][n], [n] axes that shard anything, a dim, nothing; a bit each */
    hd_near_moved copies[HD_NEAR_RANKS][HD_NEAR_MASKS]; /* ranks of the set of a level along these axes get as much */
    unsigned power[HD_NEAR_MASKS], nways; /* of 5, by its axis, for a set of axes together; for all that there are */
    hd_near_part *part;                   /* [HD_NEAR_RANKS][ndims][nways]: what every axis does to the dim */
    hd_near_table *table[HEDDLE_MACHINE_LINKS][2 * HD_NEAR_MASKS]; /* by what changes on which axes */
    unsigned *change;                                              /* [n] to every layout, see hd_near_change */
    char *wanted;                                                  /* [n] edges to it are made */
    int nsteps, *step;                                             /* pairs of rows, by the second one's step */
    char *admits;                                                  /* [nrows][n] */
    double *covers;   /* [levels.count + 1][ndims][n] of a dim what the first rank has, what its sets have together */
    double *lacks;    /* [levels.count + 1][n] */
    double *edge;     /* [nwidths][n][n] between those that are wanted: never above */
    char *is_refined; /* the same size: all that is known */
    double *behind, *came; /* [n], [n] states */
    int *open;             /* [n] states whose edges are refined */
    hd_near_walks to, from;
    char *kept; /* [nrows][n] states that stay */
} hd_near;

/* Seconds come first, and every set of ranks is a box of the mesh. */
int hd_near_applies(const hd_search *search);
/* Makes the edges between all layouts that two stages admit, one behind the other, by the first rank alone. */
heddle_status hd_near_open(hd_near *near, hd_search *search);
void hd_near_close(hd_near *near);
/* A bit for every axis that changes, and one more where all of them gather. */
unsigned hd_near_change(const hd_near *near, int from, int to);
/* The edges from a layout to those that are wanted, by what the first rank lacks there. */
heddle_status hd_near_first(double *edge, hd_near *near, double row_bytes);
/* Of a row before a stage. */
double hd_near_row_bytes(const hd_near *near, int stage);
/* What an edge of rows of so many bytes costs at least. */
heddle_status hd_near_edge(double *out, hd_near *near, double row_bytes, int from, int to);
/* An edge before a stage is looked at in full; *more: it is dearer than it was. */
heddle_status hd_near_refine(int *more, hd_near *near, int stage, int from, int to);
/* near_steps.c: here[b] = the least of before[a] + the edge before `stage` from a, for the states of `row`; edges are
 * refined that this comes from. */
heddle_status hd_near_go_on(double *here, const double *before, hd_near *near, int stage, const hd_row *row);
/* here[a] = the least of the edge before `stage` to b + near->behind[b], for the states of `row`, at most goal[a] +
 * more; so far edges are refined; goal NULL: none is. */
heddle_status hd_near_go_back(double *here, hd_near *near, int stage, const hd_row *row, const double *goal,
                              double more);
/* near.c: what no walk is below, 0: not known; looked for as far as it may be below the bound. */
heddle_status hd_near_floor(double *floor, hd_near *near, double bound);
/* The same without a bound, and hd_near_drop may follow. is_alone: no other mesh bounds its plans, so all
 * edges matter. */
heddle_status hd_near_walk(double *floor, hd_near *near, int is_alone);
/* Of all rows the states go that no walk at or below the bound goes through; *is_empty: some row has none left. */
heddle_status hd_near_drop(int *is_empty, hd_near *near, double bound);

#endif
