/* What `heddle verify linear-attention` and `heddle bench linear-attention` read alike. */
#ifndef HD_CLI_LINEAR_CLI_H
#define HD_CLI_LINEAR_CLI_H

#include "cli.h"
#include "runtime/verify/linear_check.h"

typedef struct linear_request {
    linear_case problem;
    const char *command; /* for sentences: "heddle verify linear-attention" */
    const char *line, *transport, *save, *decay;
    long long ranks, random, seed, hosts, deadline_s, iterations, seconds;
    int messages, help, json, backward, causal;
} linear_request;

/* argv[2..]: options and the problem. CLI_OK, or an exit code (complained). Nothing more is checked when help is set.
 */
int linear_parse(linear_request *out, int argc, char **argv);

#define LINEAR_OPTIONS_TEXT                                                                                            \
    "  --method M         local, lasp, lasp2 or scan\n"                                                                \
    "  --dv D             width of v and o; default that of the shape\n"                                               \
    "  --decay G          one number above 0 and at most 1 for all heads, or per-head (slopes of ALiBi); default 1\n"  \
    "  --causal           the default;  --bidirectional: every row sees every other, decay by distance\n"              \
    "  --receive-first    lasp in the published order: nothing before the state has come\n"                            \
    "  --chunk C          rows worked on at once;  --threads T: of every rank\n"                                       \
    "  --transport T      threads, shm, mpi, auto;  --messages: no shared memory;  --hosts K: pretended;  --deadline " \
    "S\n"                                                                                                              \
    "  --arena BYTES      as for heddle verify\n"                                                                      \
    "  --seed S           of the values\n"

#endif
