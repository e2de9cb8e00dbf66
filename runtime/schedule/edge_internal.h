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

/* Parts by the coordinates on the axes that cut a dim. Many coordinates have equal ones. */
typedef struct hd_edge_slot {
    uint16_t *which; /* [coordinates times strides] index in part + 1; 0: not made yet */
    hd_edge_part *part;
    int nparts, capacity;
    struct hd_edge_slot *next; /* that was made before this one */
} hd_edge_slot;

typedef struct hd_cut_dim {
    int64_t extent;
    hd_cut from, to;
    hd_edge_slot *parts; /* kept; NULL: none */
    int stride[HEDDLE_MAX_AXES];
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
    hd_kinds *kind;                        /* of every axis */
    int64_t row_bytes;                     /* of the dims that neither layout cuts */
    int ndims;                             /* the others */
    hd_cut_dim dim[HEDDLE_MAX_DIMS];
} hd_edge;

/* slot[dim, cut in `from`, cut in `to`, free: a bit an axis]. */
struct hd_edge_parts {
    int nests; /* hd_levels_nest */
    int64_t extent[HEDDLE_MAX_DIMS];
    int width[HD_LEVELS][HEDDLE_MAX_AXES];
    int count;          /* of all slots */
    hd_edge_slot *made; /* the latest of them: a list, for the table is long and mostly empty */
    hd_edge_slot *slot[HEDDLE_MAX_DIMS << 3 * HEDDLE_MAX_AXES];
};

void hd_edge_set_widths(hd_edge *edge, const hd_levels *levels, const hd_edge_parts *parts);
void hd_edge_cut_by(hd_cut *cut, const hd_edge *edge, const heddle_layout *layout, int dim);
/* The coordinates on an axis of what belongs to the same set of a level: how many, and the first of them. */
int hd_edge_peers(int *first, const hd_edge *edge, int axis, int coordinate, int level);

/* The part of edge->dim[dim], kept or made in `room` (edge_parts.c). */
const hd_edge_part *hd_edge_part_of(hd_edge_part *room, const hd_edge *edge, int dim, const int *coords);
/* Which of the kept ones it is: equal numbers, equal parts; 0: it is not kept. */
unsigned hd_edge_part_which(const hd_edge *edge, int dim, const int *coords);
/* Sets edge->dim[dim].parts where such parts are kept; it is dim `at` of the shape. */
heddle_status hd_edge_parts_find(hd_edge *edge, hd_edge_parts *parts, int dim, int at);

/* Fills kind[]: which coordinates of an axis are alike (edge_kinds.c). */
void hd_edge_kinds(hd_edge *edge);

#endif
