/* One reshard on real ranks: parts are filled and checked from global indices alone. */
#ifndef HD_VERIFY_RESHARD_CHECK_H
#define HD_VERIFY_RESHARD_CHECK_H

#include "runtime/files/npy.h"
#include "runtime/verify/random_line.h"

#include <heddle/heddle.h>

enum { VERIFY_PROBLEM_BYTES = 1024 };

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

/* One local array between canaries; of a device its image on the host. */
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
    heddle_comm *comm;
    int is_lent;     /* memory is the communicator's, not malloc's */
    char *on_device; /* the array as the reshard sees it, where the communicator has a device; else NULL */
} verify_part;

typedef struct verify_storage {
    int private_memory;       /* malloc instead of heddle_buffer_alloc */
    int64_t pad_elems;        /* > 0: this many between rows of every dim: a strided array */
    int64_t misaligned_elems; /* the first element's distance from a cache line */
} verify_storage;

heddle_status verify_part_make(verify_part *out, heddle_comm *comm, const heddle_reshard_line *line, int is_to,
                               const verify_storage *storage);
void verify_part_free(verify_part *part);
/* What a reshard is given. */
void *verify_part_data(const verify_part *part);
/* What was filled in goes to the device, or comes from there before it is checked. Nothing without a device. */
heddle_status verify_part_send(const verify_part *part, heddle_stream stream);
heddle_status verify_part_fetch(const verify_part *part, heddle_stream stream);
/* Canaries everywhere, and with values != NULL the elements. */
void verify_part_fill(verify_part *part, const verify_values *values);
/* 1 and "" in `problem` when all is as it should be; else 0 and one sentence. */
int verify_part_check(const verify_part *part, const verify_values *values, char *problem, size_t problem_bytes);
/* DIR/from-RANK.npy or DIR/to-RANK.npy; dense parts only. */
heddle_status verify_part_save(const verify_part *part, const char *directory);

/* One problem on one rank. line, options and storage are the caller's, or verify_draw's; the parts are there while it
 * runs. */
typedef struct verify_trial {
    heddle_comm *comm;
    heddle_reshard_line line;
    heddle_reshard_options options;
    verify_storage storage[2]; /* from, to */
    const npy_array *input;    /* NULL: digits */
    const char *save;          /* the directory for the first round's parts; NULL: none */
    heddle_status saved;       /* how that went */
    verify_part part[2];
    heddle_stream stream;
    int executions;
    int64_t checked_elems;
    char problem[VERIFY_PROBLEM_BYTES]; /* what is wrong on this rank; "": nothing so far */
} verify_trial;

/* A line for all ranks of t->comm, and buffers and options. HEDDLE_MEMORY_ANY: no peer reaches a buffer. */
void verify_draw(verify_trial *t, random_source *source, heddle_memory memory);
/* Collective. Where the communicator has a device the arrays lie there. Not HEDDLE_OK: the reshard itself failed. */
heddle_status verify_run(verify_trial *t);

#endif
