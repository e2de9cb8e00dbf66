/* Random reshard problems with the memory of all their ranks in one process. */
#ifndef HD_TEST_RANDOM_PROBLEM_H
#define HD_TEST_RANDOM_PROBLEM_H

#include "runtime/reshard/compile.h"
#include "runtime/verify/random_line.h"

/* A valid problem of `ranks` ranks; a line that does not come back the same from its text fails the case. */
void hd_random_line(heddle_reshard_line *out, random_source *source, int ranks, int max_dims, int64_t max_elems,
                    int partial);
/* The text of a line, for failure messages. Static storage. */
const char *hd_line_text(const heddle_reshard_line *line);

/* One dense local array per rank, in one layout and memory order. Allocated exactly, so that a sanitizer sees what
 * runs over. */
typedef struct all_parts {
    int nranks;
    void **part;
    size_t *bytes;
} all_parts;

void all_parts_make(all_parts *out, const heddle_reshard_line *line, int is_to);
void all_parts_free(all_parts *parts);
/* Finite values of the dtype, different on every rank, also where the layout says replicated. */
void all_parts_fill_random(all_parts *parts, random_source *source, heddle_dtype dtype);
/* Each rank's part of one global array: equal on replicas; partial sums: on coordinate 0, the others zero. */
void all_parts_fill_global(all_parts *parts, const heddle_reshard_line *line, int is_to, uint64_t seed);
/* Fails the case with the line's text, the first wrong rank and byte. */
void all_parts_equal(const all_parts *got, const all_parts *wanted, const heddle_reshard_line *line);

/* Run a reshard with hd_compile, hd_piece_copy, memcpy and scalar sums. */
void hd_simulate(const heddle_reshard_line *line, const all_parts *src, const all_parts *dst);
void hd_simulate_oracle(const heddle_reshard_line *line, const all_parts *src, const all_parts *dst);

/* from and to swapped, replicated and partial swapped. */
void hd_adjoint_line(heddle_reshard_line *out, const heddle_reshard_line *line);

#endif
