/* Two layouts as the price of an edge sees them. */
#ifndef HD_EDGE_INTERNAL_H
#define HD_EDGE_INTERNAL_H

#include "runtime/schedule/schedule_internal.h"

enum { HD_EDGE_KINDS_MAX = 64 };

/* How one layout cuts one dim: the axes that do, the major one first. */
typedef struct hd_cut {
    int naxes;
    int axis[HEDDLE_MAX_AXES];
    const int64_t *lengths; /* of the first axis; NULL: balanced */
} hd_cut;

typedef struct hd_cut_dim {
    int64_t extent;
    hd_cut from, to;
} hd_cut_dim;

/* Coordinates from[i] .. from[i + 1] - 1 of an axis are alike; every: each is a kind of its own. */
typedef struct hd_kinds {
    int every, count;
    int from[HD_EDGE_KINDS_MAX];
} hd_kinds;

typedef struct hd_edge {
    const heddle_mesh *mesh;
    const heddle_layout *from, *to;
    int is_free[HEDDLE_MAX_AXES]; /* ranks with another coordinate there exchange bytes */
    int nlevels;
    int width[HD_LEVELS][HEDDLE_MAX_AXES]; /* coordinates that a set of the level has on an axis */
    hd_kinds kind[HEDDLE_MAX_AXES];
    int64_t row_bytes; /* of the dims that neither layout cuts */
    int ndims;         /* the others */
    hd_cut_dim dim[HEDDLE_MAX_DIMS];
} hd_edge;

/* Fills kind[]: which coordinates of an axis are alike (edge_kinds.c). */
void hd_edge_kinds(hd_edge *edge);

#endif
