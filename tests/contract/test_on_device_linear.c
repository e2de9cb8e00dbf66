/* Linear attention over a sharded sequence on the emulated device: every method and type against the recurrence in
 * double precision, states and bytes as planned, and what is refused. */
#include "found.h"
#include "on_device.h"

#include "runtime/verify/linear_check.h"

#include <stdio.h>
#include <string.h>

typedef struct job {
    int count;
    uint64_t seed;
} job;

static heddle_status check(heddle_comm *comm, const linear_case *c)
{
    char text[2048], problem[LINEAR_PROBLEM_BYTES];
    heddle_status st = linear_check(comm, c, problem, NULL, NULL);
    linear_describe(text, sizeof text, c);
    return found(comm, st, problem, text);
}

/* A problem that a device takes; some are of several segments, or of wide heads. */
static void draw(linear_case *c, random_source *source, int ranks)
{
    static const heddle_dtype dtypes[] = {HEDDLE_F32, HEDDLE_BF16, HEDDLE_F16};
    const heddle_dtype dtype = dtypes[random_between(source, 0, 2)];
    linear_draw(c, source, ranks, dtype == HEDDLE_F16 ? HEDDLE_BF16 : dtype);
    c->shape.dtype = dtype;
    c->options.space = HEDDLE_SPACE_DEVICE;
    c->options.receive_first = 0;
    c->options.threads = 0;
    const int kind = (int)random_between(source, 0, 5);
    if (kind == 0 && c->layout.nshards[0] == 0 && c->layout.nshards[1] == 0) { /* several segments */
        c->shape.dim[0].extent = c->shape.dim[2].extent = 1;
        c->shape.dim[1].extent = random_between(source, 257, 300) * (ranks < 3 ? ranks : 1);
        c->shape.dim[3].extent = random_between(source, 1, 16);
        c->options.dv = random_between(source, 1, 16);
    } else if (kind == 1) { /* wide heads */
        c->shape.dim[3].extent = random_between(source, 65, 128);
        c->options.dv = random_between(source, 50, 128);
    }
    c->nan_at = 0; /* it spreads over a chunk */
    if (dtype != HEDDLE_F32) {
        c->shape.dim[3].extent = (c->shape.dim[3].extent + 7) / 8 * 8;
        c->options.dv = (c->options.dv + 7) / 8 * 8;
        c->storage = JUDGE_DENSE;
    }
    c->storage = c->storage == JUDGE_SPREAD || c->storage == JUDGE_HEADS_INNER ? JUDGE_BY_HEAD : c->storage;
}

static heddle_status random_cases(heddle_comm *comm, void *arg)
{
    const job *j = arg;
    random_source source = {j->seed};
    heddle_status st = HEDDLE_OK;
    for (int done = 0; done < j->count && st == HEDDLE_OK; done++) {
        linear_case c;
        draw(&c, &source, heddle_comm_size(comm));
        st = check(comm, &c);
    }
    return st;
}

static void run_random(int ranks, const char *transport, heddle_wire wire, int count)
{
    job j = {.count = hd_rounds(count), .seed = 100 + (uint64_t)ranks};
    const heddle_comm_options options = device_options("cuda", wire);
    HD_OK(heddle_run_ranks_with(ranks, transport, &options, random_cases, &j));
}

HD_CASE(any_method_on_threads)
{
    run_random(1, "threads", HEDDLE_WIRE_PEER, 3);
    run_random(2, "threads", HEDDLE_WIRE_PEER, 3);
}

HD_CASE(any_method_on_more_threads)
{
    run_random(3, "threads", HEDDLE_WIRE_PEER, 2);
    run_random(4, "threads", HEDDLE_WIRE_PEER, 2);
}

HD_CASE(any_method_on_processes)
{
    run_random(2, "shm", HEDDLE_WIRE_PEER, 1);
    run_random(3, "shm", HEDDLE_WIRE_HOST, 1);
}
