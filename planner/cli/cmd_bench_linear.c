/* heddle bench linear-attention: a method on real ranks against the same work on one rank with as many threads. */
#include "launch.h"
#include "planner/report/bench.h"
#include "problem.h"

typedef struct request {
    linear_case problem;
    linear_bench_options options;
    int json;
} request;

static heddle_status bench_main(heddle_comm *comm, void *arg)
{
    const request *r = arg;
    linear_bench bench;
    heddle_status st = linear_time(&bench, comm, &r->problem, &r->options);
    if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
        report_bench_linear(comm, &r->problem, &r->options, &bench, r->json);
        fflush(stdout);
    }
    return st;
}

static int run(const cli_arguments *a)
{
    request r = {.options = {.backward = a->backward, .iterations = a->iterations, .seconds = a->seconds},
                 .json = a->json};
    int code = cli_linear_problem(&r.problem, &r.options.ranks, a);
    return code == CLI_OK ? cli_with_ranks(a, r.options.ranks, bench_main, &r) : code;
}

const cli_action cli_bench_linear = {
    .synopsis = "usage: heddle bench linear-attention 'f32[b=1 s=8192 h=4 d=128] on [sp=2]' --method M [options]\n",
    .notes = "A call's time is that of the slowest rank. local: the same total work on one rank with as many\n"
             "threads as there are ranks. overlap: the part of a call in which the rank that waited longest did\n"
             "not wait. gflops counts what the chunked form needs (half of a chunk's square when causal). bytes\n"
             "and messages are those of the rank that sends most; peak_bytes: resident size of rank 0's process.\n",
    .run = run,
};
