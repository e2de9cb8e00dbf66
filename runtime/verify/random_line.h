/* Random reshard problems from a seed: used by `heddle verify --random` and by the property tests. */
#ifndef HD_VERIFY_RANDOM_LINE_H
#define HD_VERIFY_RANDOM_LINE_H

#include "runtime/verify/random.h"

#include <heddle/reshard.h>

typedef struct random_limits {
    int ranks;         /* size of the mesh */
    int max_axes;      /* 1..4; sizes 1 among them */
    int max_dims;      /* 1..8 */
    int64_t max_elems; /* of the global tensor */
    int partial;       /* partial sums: 0 never, 1 on the left, 2 on both sides */
} random_limits;

/* Even and uneven extents, fewer elements than ranks, extents 1 and 0, all dtypes, replication, nested dims, explicit
 * blocks, permuted memory orders. Always a valid line. */
void random_line(heddle_reshard_line *out, random_source *source, const random_limits *limits);
/* Another layout and memory order for the tensor and mesh of `line`. */
void random_side(heddle_layout *layout, heddle_order *order, random_source *source, const heddle_reshard_line *line,
                 int partial);

#endif
