/* Two layouts -> box copies. Pure index algebra, no communicator; O(peers) per rank.
 *
 * A reshard runs as one to three phases. Only partial sums that become replicated need more than one: flat blocks of
 * the local array are summed by their owners, then gathered; what is left to move follows as a box phase.
 */
#ifndef HD_COMPILE_H
#define HD_COMPILE_H

#include "runtime/move/copy.h"
#include <heddle/reshard.h>

typedef enum hd_phase_kind {
    HD_PHASE_BOXES,       /* from -> to over boxes; may sum (partial axes that become sharded) and zero-fill */
    HD_PHASE_FLAT_REDUCE, /* flat blocks of the local array, summed by their owner over the group */
    HD_PHASE_FLAT_GATHER  /* the summed flat blocks to everyone of the group */
} hd_phase_kind;

/* Where a phase reads and writes. */
typedef enum hd_place { HD_PLACE_SRC, HD_PLACE_WORK0, HD_PLACE_WORK1, HD_PLACE_DST } hd_place;

typedef struct hd_phase {
    hd_phase_kind kind;
    heddle_layout from, to;
    heddle_order from_order, to_order;
    unsigned flat_axes; /* FLAT_*: bit a = mesh axis a belongs to the group */
    hd_place src, dst;
} hd_phase;

typedef struct hd_problem {
    heddle_reshard_line line;
    int nphases;
    hd_phase phase[3];
} hd_problem;

/* HEDDLE_ERR_LAYOUT: the line is not valid, or more than 2^62 bytes could move. */
heddle_status hd_problem_make(hd_problem *out, const heddle_reshard_line *line);

/* The box of `rank` that a phase reads (is_dst 0) or writes (1). Flat phases give 1-dim boxes of elements. */
heddle_status hd_phase_box(heddle_box *out, const hd_problem *problem, int phase, int is_dst, int rank);

/* What moves between `rank` and one peer (itself included): a box in global coordinates (flat: elements). */
typedef struct hd_piece {
    int peer;
    heddle_box box;
} hd_piece;

typedef struct hd_pieces {
    hd_piece *piece; /* ascending peer */
    int count;
    int sums;      /* receive side: pieces of different peers overlap and are added in the order of peers; any two are
                    * either the same box or disjoint */
    int zero_fill; /* receive side: the pieces do not cover the box; the rest is zero */
} hd_pieces;

typedef enum hd_direction { HD_SEND, HD_RECV } hd_direction;

/* What `rank` sends or receives in a phase, itself included; no piece is empty. On failure nothing is left to free. */
heddle_status hd_compile(hd_pieces *out, const hd_problem *problem, int phase, int rank, hd_direction direction);
void hd_pieces_free(hd_pieces *pieces);

/* A local array: the box it holds and its strides (per dim, in elements). */
typedef struct hd_array {
    heddle_box box;
    int64_t stride_elems[HEDDLE_MAX_DIMS];
} hd_array;

/* A piece as a copy between two arrays, neighbouring dims merged. */
void hd_piece_copy(hd_copy *out, const hd_piece *piece, const hd_array *src, const hd_array *dst, size_t elem_bytes);
/* A piece that is not empty, element by element: one loop per dim, in the order of dst's strides. */
void hd_piece_rows(hd_copy *out, const hd_piece *piece, const hd_array *src, const hd_array *dst, size_t elem_bytes);

#endif
