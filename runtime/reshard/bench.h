/* A measurement of a reshard by turns with the roofline, and what is made of its samples. */
#ifndef HD_RESHARD_BENCH_H
#define HD_RESHARD_BENCH_H

#include "runtime/reshard/roofline.h"

#include <heddle/sys/bench.h>

enum {
    HD_BENCH_PAIRS = 4, /* samples of each kind in a round: the best ways, and one more to be tried again */
    HD_BENCH_LEADERS = 3,
    HD_BENCH_WAYS = 256
};

typedef struct hd_bench {
    heddle_comm *comm;
    heddle_reshard *reshard;
    heddle_reshard_info info;
    hd_roofline *roofline;
    void *src, *dst;         /* of the roofline, and of the reshard unless it runs on private memory */
    void *any_src, *any_dst; /* HEDDLE_MEMORY_ANY */
    int64_t repeats, rounds;
    int settle;          /* executions at the start of a sample that do not count */
    int nways, next_way; /* next_way: tried again in the next round */
    double best_ns[HD_BENCH_WAYS];
    int leader[HD_BENCH_LEADERS];
    int64_t *all;      /* [nranks][2 * HD_BENCH_PAIRS + 1] of the last round */
    double *switch_ns; /* [max_rounds * HD_BENCH_PAIRS] */
    double *roofline_ns;
    int *roofline_way;
} hd_bench;

/* From the samples. Sorts them. */
heddle_status hd_bench_summarise(heddle_bench_result *out, hd_bench *b);
/* Collective: what only the ranks together know. */
heddle_status hd_bench_share_facts(heddle_bench_result *out, hd_bench *b);

#endif
