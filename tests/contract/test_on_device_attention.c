/* Attention over a sharded dim on the emulated device: every method that works there against the double-precision
 * reference, bytes as planned, the same bits in every run, and what is refused. */
#include "random_on_device.h"

#include "runtime/verify/attention_check.h"

#include <stdio.h>
#include <string.h>

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

static heddle_status any_method(heddle_comm *comm, random_source *source, int i)
{
    (void)i;
    attention_case c;
    while (!draw(&c, source, heddle_comm_size(comm))) {
    }
    return check(comm, &c);
}

HD_CASE(any_method_on_threads)
{
    run_random(1, "threads", HEDDLE_WIRE_PEER, any_method, 6);
    run_random(2, "threads", HEDDLE_WIRE_PEER, any_method, 8);
}

HD_CASE(any_method_on_more_threads)
{
    run_random(3, "threads", HEDDLE_WIRE_PEER, any_method, 6);
    run_random(4, "threads", HEDDLE_WIRE_PEER, any_method, 5);
}

HD_CASE(any_method_by_messages)
{
    skip_on_card("several ranks of one device by NCCL are those of heddle verify");
    run_random(2, "threads", HEDDLE_WIRE_NCCL, any_method, 2);
    run_random(3, "threads", HEDDLE_WIRE_NCCL, any_method, 2);
}

#ifndef __SANITIZE_THREAD__ /* which does not see what goes between them */
HD_CASE(any_method_on_processes)
{
    run_random(2, "shm", HEDDLE_WIRE_PEER, any_method, 3);
    run_random(3, "shm", HEDDLE_WIRE_HOST, any_method, 3);
}
#endif
