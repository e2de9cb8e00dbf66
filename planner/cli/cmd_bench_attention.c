/* heddle bench attention: a method against the same work without communication. */
#include "launch.h"
#include "planner/report/bench.h"
#include "problem.h"

typedef struct request {
    attention_case problem;
    double seconds;
    int json;
} request;

static heddle_status bench_main(heddle_comm *comm, void *arg)
{
    const request *r = arg;
    attention_bench bench;
    heddle_status st = attention_time(&bench, comm, &r->problem, r->seconds);
    if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
        report_bench_attention(comm, &bench, r->json);
        fflush(stdout);
    }
    return st;
}

static int run(const cli_arguments *a)
{
    request r = {.seconds = (double)a->seconds, .json = a->json};
    int ranks = 0, code = cli_attention_problem(&r.problem, &ranks, a);
    return code == CLI_OK ? cli_with_ranks(a, ranks, bench_main, &r) : code;
}

const cli_action cli_bench_attention = {
    .synopsis = "usage: heddle bench attention 'bf16[b=1 s=8192 h=16 d=72] on [sp=2]' --method M [options]\n",
    .notes = "Times are those of the slowest rank. local: the same heads, samples and keys in total, each rank\n"
             "some whole heads, so that nothing moves. moving: the method with no key to see, so that it only\n"
             "moves. overlap = the share of the shorter of the two that is hidden behind the other. times the\n"
             "longer: the method / the longer of the two, of the fastest samples and as the median over rounds\n"
             "in which each had its turn.\n",
    .run = run,
};
