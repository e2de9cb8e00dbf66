/* Random problems of a method over a sharded dim, on a device: ranks as threads and processes, by each wire. */
#ifndef HD_TEST_RANDOM_ON_DEVICE_H
#define HD_TEST_RANDOM_ON_DEVICE_H

#include "found.h"
#include "nccl_sim.h"
#include "runtime/verify/random.h"

/* Draws the i-th problem, and checks it. */
typedef heddle_status (*random_check)(heddle_comm *comm, random_source *source, int i);

typedef struct random_job {
    random_check check;
    int count;
    uint64_t seed;
} random_job;

static inline heddle_status random_problems(heddle_comm *comm, void *arg)
{
    const random_job *j = arg;
    random_source source = {j->seed};
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < j->count && st == HEDDLE_OK; i++) {
        st = j->check(comm, &source, i);
    }
    return st;
}

static inline void run_random(int ranks, const char *transport, heddle_wire wire, random_check check, int count)
{
    random_job j = {.check = check, .count = hd_rounds(count), .seed = 100 + (uint64_t)ranks};
    const heddle_comm_options options = wire == HEDDLE_WIRE_NCCL ? by_nccl(0) : device_options("cuda", wire);
    HD_OK(heddle_run_ranks_with(ranks, transport, &options, random_problems, &j));
}

#endif
