/* heddle verify: one rank's parts of a reshard, filled and checked from global indices alone. */
#ifndef HD_CLI_VERIFY_H
#define HD_CLI_VERIFY_H

#include "cli.h"
#include "runtime/files/npy.h"

/* What the elements of the global tensor are: digit `round` of their row-major index, counted in as many steps as the
 * dtype holds exactly, or what a file says. The rounds together are the whole index. */
typedef struct verify_values {
    const heddle_reshard_line *line;
    const npy_array *input; /* NULL: digits */
    int round;
} verify_values;

/* Rounds that tell all indices apart (1 with an input). */
int verify_rounds(const heddle_reshard_line *line, const npy_array *input);
/* The element at global coordinates `at` as rank `coords` holds it before (is_to 0) or after (1). */
void verify_element(void *out, const verify_values *values, const int64_t *at, const int *coords, int is_to);
/* Bitwise; where partial sums were added, any NaN equals any NaN. */
int verify_same(const void *a, const void *b, const heddle_reshard_line *line);

/* One local array between canaries. */
typedef struct verify_part {
    const heddle_reshard_line *line;
    int is_to, rank;
    int coords[HEDDLE_MAX_AXES];
    heddle_box box;
    int64_t stride_elems[HEDDLE_MAX_DIMS];
    size_t span_bytes; /* from the first element to behind the last */
    size_t memory_bytes;
    char *memory, *data;
    unsigned char *owned; /* strided: 1 for each byte of the span that belongs to an element; else NULL */
    heddle_comm *comm;    /* NULL: plain memory */
} verify_part;

typedef struct verify_storage {
    int private_memory;       /* malloc instead of heddle_buffer_alloc */
    int64_t pad_elems;        /* > 0: this many between rows of every dim: a strided array */
    int64_t misaligned_elems; /* the first element's distance from a cache line */
} verify_storage;

heddle_status verify_part_make(verify_part *out, heddle_comm *comm, const heddle_reshard_line *line, int is_to,
                               const verify_storage *storage);
void verify_part_free(verify_part *part);
/* Canaries everywhere, and with values != NULL the elements. */
void verify_part_fill(verify_part *part, const verify_values *values);
/* 1 and "" in `problem` when all is as it should be; else 0 and one sentence. */
int verify_part_check(const verify_part *part, const verify_values *values, char *problem, size_t problem_bytes);
/* DIR/from-RANK.npy or DIR/to-RANK.npy; dense parts only. */
int verify_part_save(const verify_part *part, const char *directory);

typedef struct verify_request {
    heddle_reshard_line line;
    int random; /* problems to draw; 0: `line` */
    uint64_t seed;
    heddle_memory memory;
    const npy_array *input;
    const char *save;
} verify_request;

/* heddle_rank_main: all problems of the request `arg`, the same on every rank. A mismatch is printed by the lowest rank
 * that found one and becomes the verdict CLI_MISMATCH. */
heddle_status verify_main(heddle_comm *comm, void *arg);

#endif
