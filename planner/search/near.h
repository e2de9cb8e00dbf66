/* Shared by near.c and near_edges.c. */
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
    double *cost; /* [repetition][stage][layout], repetitions from the first, or from the last */
    double drift; /* that every further repetition costs at least */
    int done;
} hd_near_walks;

typedef struct hd_near {
    hd_search *s;
    hd_levels levels;
    int n;                           /* layouts */
    int ndims, dim[HEDDLE_MAX_DIMS]; /* that a layout may shard */
    unsigned many;                   /* axes of more than one rank, a bit each */
    int coords[HD_NEAR_RANKS][HEDDLE_MAX_AXES];
    unsigned *shards, *cuts, *whole; /* [n], [ndims][n], [n] axes that shard anything, a dim, nothing; a bit each */
    hd_near_moved copies[HD_NEAR_RANKS][HD_NEAR_MASKS]; /* ranks of the set of a level along these axes get as much */
    unsigned power[HD_NEAR_MASKS], nways; /* of 5, by its axis, for a set of axes together; for all that there are */
    hd_near_part *part;                   /* [HD_NEAR_RANKS][ndims][nways]: what every axis does to the dim */
    hd_near_table *table[HEDDLE_MACHINE_LINKS][2 * HD_NEAR_MASKS]; /* by what changes on which axes */
    char *wanted, *ends;                                           /* [n] some stage admits it; it is the epilogue */
    double *edge;                                                  /* [nwidths][n][n] of those that are wanted */
    double *behind;                                                /* [n] */
    hd_near_walks to, from;
    char *kept; /* [nrows][n] states that stay */
} hd_near;

/* Seconds come first, and every set of ranks is a box of the mesh. */
int hd_near_applies(const hd_search *search);
/* Makes the edges between all layouts that some stage admits. */
heddle_status hd_near_open(hd_near *near, hd_search *search);
void hd_near_close(hd_near *near);
/* Edges of rows of so many bytes from a layout to those that are wanted: out[n], 0 where nothing moves. */
heddle_status hd_near_edges_from(double *out, hd_near *near, double row_bytes, int from, const char *wanted);
/* What no walk is below, 0: not known. With both_ways hd_near_drop may follow. */
heddle_status hd_near_walk(double *floor, hd_near *near, int both_ways);
/* Of all rows the states go that no walk at or below the bound goes through; 1: some row has none left. */
int hd_near_drop(hd_near *near, double bound);

#endif
