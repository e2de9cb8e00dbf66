/* Attention over a sharded dim on the emulated device: every method that works there against the double-precision
 * reference, bytes as planned, the same bits in every run, and what is refused. */
#include "found.h"
#include "on_device.h"

#include "runtime/verify/attention_check.h"

#include <stdio.h>
#include <string.h>

typedef struct job {
    int count;
    uint64_t seed;
} job;

static heddle_status check(heddle_comm *comm, const attention_case *c)
{
    char text[2048], problem[ATTENTION_PROBLEM_BYTES];
    heddle_status st = attention_check(comm, c, problem, NULL, NULL);
    attention_describe(text, sizeof text, c);
    return found(comm, st, problem, text);
}

/* A problem that a device takes. */
static int draw(attention_case *c, random_source *source, int ranks)
{
    static const heddle_dtype dtypes[] = {HEDDLE_F32, HEDDLE_BF16, HEDDLE_F16};
    attention_draw(c, source, ranks, dtypes[random_between(source, 0, 2)]);
    c->options.space = HEDDLE_SPACE_DEVICE;
    c->options.threads = 0;
    if (c->shape.dtype != HEDDLE_F32) {
        c->shape.dim[3].extent = (c->shape.dim[3].extent + 7) / 8 * 8;
    }
    c->storage = c->storage == JUDGE_SPREAD || c->storage == JUDGE_HEADS_INNER ? JUDGE_PADDED : c->storage;
    c->nan_at = c->options.causal ? 0 : c->nan_at;
    return c->options.method != HEDDLE_ATTENTION_RSA;
}

static heddle_status random_cases(heddle_comm *comm, void *arg)
{
    const job *j = arg;
    random_source source = {j->seed};
    heddle_status st = HEDDLE_OK;
    for (int done = 0; done < j->count && st == HEDDLE_OK;) {
        attention_case c;
        if (draw(&c, &source, heddle_comm_size(comm))) {
            st = check(comm, &c);
            done++;
        }
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
    run_random(1, "threads", HEDDLE_WIRE_PEER, 6);
    run_random(2, "threads", HEDDLE_WIRE_PEER, 8);
}

HD_CASE(any_method_on_more_threads)
{
    run_random(3, "threads", HEDDLE_WIRE_PEER, 6);
    run_random(4, "threads", HEDDLE_WIRE_PEER, 5);
}

HD_CASE(any_method_on_processes)
{
    run_random(2, "shm", HEDDLE_WIRE_PEER, 3);
    run_random(3, "shm", HEDDLE_WIRE_HOST, 3);
}
