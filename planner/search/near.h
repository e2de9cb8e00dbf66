/* Shared by near.c, near_steps.c, near_edges.c and near_open.c. */
#ifndef HD_NEAR_H
#define HD_NEAR_H

#include "planner/search/search_internal.h"

enum {
    HD_NEAR_REPETITIONS = 10,            /* that are walked */
    HD_NEAR_RANKS = 1 + HEDDLE_MAX_AXES, /* the first, and one along every axis */
    HD_NEAR_MASKS = 1 << HEDDLE_MAX_AXES,
    HD_NEAR_SWAPS = 24 /* ways to exchange dims that are told apart, at most */
};

/* Of every level what is sent and what is received. */
typedef struct hd_near_moved {
    double x[2 * HD_LEVELS];
} hd_near_moved;

/* Costs of the best walks to every state, its own with it, or behind it, from there to the end. */
typedef struct hd_near_walks {
    double *cost; /* [repetition][stage][layout], repetitions from the first, or from the last */
    double drift; /* that every further cycle costs at least */
    int cycle;    /* repetitions; 0: none is further */
    int done;
} hd_near_walks;

/* A layout by its axes, a bit each: those that shard anything, none, each dim. */
typedef struct hd_near_view {
    const heddle_layout *layout;
    unsigned shards, whole, cuts[HEDDLE_MAX_DIMS];
} hd_near_view;

/* Where a dim has one element an axis that shards it is idle, as one that shards nothing is. Layouts that differ in
 * this alone are one class. Out of a class nothing is sent more than where idle axes shard nothing, for every rank has
 * what it wants of its own; into it nothing more than where they shard that dim, for the first rank alone wants any. */
typedef struct hd_near {
    hd_search *s; /* in whose prices' room the arrays lie: one is open at a time */
    hd_levels levels;
    int n;                                      /* classes of layouts: those that some stage admits, and the end's */
    int *index;                                 /* of the search's layouts the class, -1: none */
    int ndims, dim[HEDDLE_MAX_DIMS];            /* that a layout may shard */
    int alike[HEDDLE_MAX_DIMS];                 /* of each the first one of its extent */
    int idle_dim;                               /* the first of them with one element, -1: every class is one layout */
    unsigned many;                              /* axes of more than one rank, a bit each */
    int coords[HD_NEAR_RANKS][HEDDLE_MAX_AXES]; /* of the few ranks */
    hd_near_view *out, *into;                   /* [n] the layouts of a class that send least */
    unsigned *cuts, *whole; /* [ndims][n], [n] axes that shard a dim of more elements, that are idle */
    hd_near_moved copies[HD_NEAR_RANKS][HD_NEAR_MASKS]; /* ranks of the set of a level along these axes get as much */
    unsigned power[HD_NEAR_MASKS], nways; /* of 5, by its axis, for a set of axes together; for all that there are */
    int nmoved;                           /* twice as many as levels */
    double *part; /* [HD_NEAR_RANKS][ndims][nways][1 + nmoved] as in hd_edge_part, by what every axis does to the dim:
                   * own, then what is moved; own -1: not known yet */
    hd_near_table *table[HEDDLE_MACHINE_LINKS][2 * HD_NEAR_MASKS]; /* by what changes on which axes */
    double *row_bytes;                                             /* [nwidths] */
    unsigned *change;  /* [n] to every class: a bit for every axis, one more: all gather */
    char *wanted;      /* [n] edges to it are made */
    int nsteps, *step; /* pairs of rows, by the second one's step */
    double *own;       /* [nrows][n] of a stage; not admitted: infinite */
    double *covers;    /* [levels.count + 1][ndims][n] of a dim what the first rank has, what its sets have together */
    double *lacks;     /* [levels.count + 1][n] */
    int nswaps;     /* that exchange dims of one extent: two layouts and their images have the same edge between them */
    int16_t *image; /* [nswaps][n] the class that it becomes, -1: none; the first swap leaves all as they are */
    char *swap;     /* [n] that makes it the first class of all that it becomes */
    float *edge;    /* [nwidths][n][n] never above */
    char *is_full;  /* as many: are looked at in full */
    double *behind; /* [n] */
    double *sum;    /* [n] */
    hd_near_walks to, from;
    double *through; /* [nrows][n] what no walk through a class of a row is below */
} hd_near;

/* Seconds come first, and every set of ranks is a box of the mesh. */
int hd_near_applies(const hd_search *search);
/* Are classes of layouts far fewer than layouts? */
int hd_near_is_rough(const hd_search *search);
/* Makes the edges between all layouts that two stages admit, one behind the other, by the first rank alone. */
heddle_status hd_near_open(hd_near *near, hd_search *search, int is_rough);
void hd_near_close(hd_near *near);
/* A layout of the search's; axes of one rank cut nothing. */
hd_near_view hd_near_see(const hd_near *near, int layout);
/* What becomes of all classes by the swap that makes a class the first of all that it becomes. */
const int16_t *hd_near_image(const hd_near *near, int of);
/* The edges from a class to those that are wanted, and where classes become others to all, by what the first rank lacks
 * there. */
heddle_status hd_near_first(hd_near *near, int width, int from);
/* The same where it becomes one before it, of which they are known; those that are wanted and become none in full. */
heddle_status hd_near_copy(hd_near *near, int width, int from);
/* What an edge of rows of so many bytes between two classes costs at least. */
heddle_status hd_near_edge(float *out, hd_near *near, double row_bytes, int from, int to);
/* An edge before a stage is looked at in full, if it was not. */
heddle_status hd_near_look(hd_near *near, int stage, int from, int to);
/* One more than what an edge between two of the search's layouts costs at least; 0: it is not known of these. */
heddle_status hd_near_tell(int64_t *out, hd_near *near, int stage, int from, int to);
/* near_steps.c: here[b] = the least of before[a] + the edge before `stage` from a. */
void hd_near_go_on(double *here, const double *before, const hd_near *near, int stage);
/* here[a] = the least of the edge before `stage` to b + near->behind[b], where own[a] is admitted. in_full: of edges
 * that are refined. */
heddle_status hd_near_go_back(double *here, hd_near *near, int stage, const double *own, int in_full);
/* near.c: what no walk is below, 0: not known; looked for as far as it may be below the bound. is_first: of this search
 * no floor was above it yet. */
heddle_status hd_near_floor(double *floor, hd_near *near, double bound, int is_first);
/* Of classes of one layout the walk that costs that, where all is known of its edges. */
void hd_near_follow(int16_t *state, const hd_near *near);
/* Where it is, through[nrows][nstates]: what no walk through a state of a row is below; 0: not known. */
int hd_near_through(double *through, hd_near *near);

#endif
