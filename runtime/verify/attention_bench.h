/* A method of attention, or of linear attention, against the same work without communication. */
#ifndef HD_VERIFY_ATTENTION_BENCH_H
#define HD_VERIFY_ATTENTION_BENCH_H

#include "runtime/verify/attention_check.h"
#include "runtime/verify/linear_check.h"

enum { BENCH_TEXT_BYTES = 512 };

/* Of the slowest rank. local: the same heads, samples and keys in total, each rank some whole heads, so that nothing
 * moves. moving: the method with no key to see, so that it only moves. */
typedef struct attention_pass {
    double min_ms, median_ms, local_min_ms, moving_min_ms;
    double overlap;                   /* the share of the shorter of the two that is hidden behind the other */
    double longer_min, longer_median; /* times the longer of the two: of minima, and the median over rounds */
} attention_pass;

typedef struct attention_bench {
    attention_pass forward, backward;
    int samples;
    heddle_attention_info info; /* method, kernel and why are those below */
    char method[BENCH_TEXT_BYTES], kernel[BENCH_TEXT_BYTES];
} attention_bench;

/* Collective: the three take turns for so long. */
heddle_status attention_time(attention_bench *out, heddle_comm *comm, const attention_case *c, double seconds);

/* What is timed of linear attention: forward or backward, so many calls (at most SAMPLES_AT_MOST), or, iterations 0, as
 * many as fit the seconds. */
typedef struct linear_bench_options {
    int backward, ranks;
    int64_t iterations, seconds;
} linear_bench_options;

typedef struct linear_times {
    double min_ms, median_ms, mean_ms;
    int samples;
    heddle_linear_attention_info info; /* kernel and why are those below */
    char kernel[BENCH_TEXT_BYTES], why[BENCH_TEXT_BYTES];
} linear_times;

typedef struct linear_bench {
    linear_times ranks;
    linear_times local;   /* the same total work on one rank with as many threads as there are ranks; on rank 0 */
    double overlap;       /* the part of a call in which the rank that waited longest did not wait */
    double gflops;        /* per second; what the chunked form needs, half of a chunk's square when causal */
    long long peak_bytes; /* resident size of this process */
} linear_bench;

/* Collective; all of it on rank 0. */
heddle_status linear_time(linear_bench *out, heddle_comm *comm, const linear_case *c, const linear_bench_options *o);

#endif
