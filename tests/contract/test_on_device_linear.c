/* Linear attention over a sharded sequence on the emulated device: every method and type against the recurrence in
 * double precision, states and bytes as planned, and what is refused. */
#include "random_on_device.h"

#include "runtime/verify/linear_check.h"

#include <stdio.h>
#include <string.h>

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
    const int is_explicit = c->layout.nshards[0] > 0 || c->layout.nshards[1] > 0;
    if (!is_explicit) { /* emulated threads take their time */
        c->shape.dim[1].extent %= 70;
    }
    if (kind == 0 && !is_explicit) { /* several segments */
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

static int shares_rows(const linear_case *c)
{
    int shares = 0;
    for (int axis = 0; axis < c->mesh.naxes; axis++) {
        shares |= c->layout.dim_of_axis[axis] == 1 && c->mesh.axis[axis].size > 1;
    }
    return shares;
}

/* Methods in turn, on ranks that share the rows where the method is for that. */
static heddle_status each_method(heddle_comm *comm, random_source *source, int i)
{
    const int ranks = heddle_comm_size(comm), method = (i + 1) % HEDDLE_LINEAR_METHOD_COUNT;
    linear_case c;
    do {
        draw(&c, source, ranks);
    } while ((int)c.options.method != method || (ranks > 1 && shares_rows(&c) != (method != HEDDLE_LINEAR_LOCAL)));
    return check(comm, &c);
}

HD_CASE(each_method_on_threads)
{
    run_random(1, "threads", HEDDLE_WIRE_PEER, each_method, 2);
    run_random(2, "threads", HEDDLE_WIRE_PEER, each_method, 4);
}

HD_CASE(each_method_on_more_threads)
{
    run_random(3, "threads", HEDDLE_WIRE_PEER, each_method, 1);
    if (hd_step() == 1) { /* of three ThreadSanitizer sees what it would of four */
        run_random(4, "threads", HEDDLE_WIRE_PEER, each_method, 2);
    }
}

HD_CASE(each_method_by_messages)
{
    skip_on_card("several ranks of one device by NCCL are those of heddle verify");
    run_random(3, "threads", HEDDLE_WIRE_NCCL, each_method, 3);
}

HD_CASE(each_method_by_way_of_the_host)
{
    run_random(3, "threads", HEDDLE_WIRE_HOST, each_method, 1);
}

#ifndef __SANITIZE_THREAD__ /* which does not see what goes between them */
HD_CASE(each_method_on_processes)
{
    run_random(2, "shm", HEDDLE_WIRE_PEER, each_method, 1);
}
#endif
