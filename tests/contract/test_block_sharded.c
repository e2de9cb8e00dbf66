/* Blocks whose mixed dim is sharded, by every method, on every kind of layout. */
#include "block_sharded.h"

static void run_share(int ranks, const char *transport, heddle_rank_main fn, job j)
{
    if (hd_goes("%s %s %s %s %s %d %d", j.shape, j.mesh, j.layout, j.method, transport, fn == backward_case, j.flags)) {
        run(ranks, transport, fn, j);
    }
}

/* One problem for each method: a process of its own makes oneDNN's kernels anew, which takes longer than the rest. */
static void over_few_problems(heddle_rank_main fn, heddle_stage_kind kind, const char *transport)
{
    int linear = kind == HEDDLE_STAGE_LINEAR;
    for (int m = 0; m < (linear ? 3 : 4); m++) {
        run(2 + m, transport, fn,
            (job){kind, "f32[b=2 t=13 s=5 c=24]", (const char *[]){"[sp=2]", "[sp=3]", "[sp=4]", "[sp=5]"}[m], "t@sp",
                  linear ? linear_methods[m] : softmax_methods[m], 1, 2, 3 * m});
    }
}

/* Every method at least once; where fewer rounds are wanted the rest by its share. */
static void over_all_problems(heddle_rank_main fn, heddle_stage_kind kind, const char *transport)
{
    int linear = kind == HEDDLE_STAGE_LINEAR, flags = 0;
    for (int m = 0; m < (linear ? 3 : 4); m++) {
        const char *method = linear ? linear_methods[m] : softmax_methods[m];
        for (int ranks = 1; ranks <= 5; ranks++) {
            char mesh[32];
            snprintf(mesh, sizeof mesh, "[sp=%d]", ranks);
            const char *shape = flags & 1 ? "f32[b=2 t=13 s=5 c=24]" : "f32[b=1 t=3 s=150 c=32]";
            (ranks == 2 + m ? run : run_share)(
                ranks, transport, fn,
                (job){kind, shape, mesh, flags & 1 ? "t@sp" : "s@sp", method, flags & 1 ? 1 : 2, 4, flags});
            flags++;
        }
        run_share(3, transport, fn, (job){kind, "bf16[b=2 t=13 s=5 c=24]", "[sp=3]", "t@sp", method, 1, 2, flags});
        run_share(4, transport, fn,
                  (job){kind, "f32[b=2 t=9 s=3 c=24]", "[sp=4]", "t@sp(0 4 0 5)", method, 1, 3, flags});
        run_share(5, transport, fn, (job){kind, "f32[b=2 t=3 s=4 c=16]", "[sp=5]", "t@sp", method, 1, 2, flags});
        run_share(4, transport, fn,
                  (job){kind, "f32[b=3 t=7 s=4 c=16]", "[dp=2 sp=2]", "b@dp,t@sp", method, 1, 2, flags});
        run_share(4, transport, fn,
                  (job){kind, "f32[b=2 t=7 s=5 c=16]", "[sp=2 x=2]", "t@sp,s@x", method, 2, 2, flags});
        run_share(4, transport, fn, (job){kind, "f32[b=1 t=7 s=5 c=16]", "[x=2 sp=2]", "s@sp", method, 2, 2, flags});
        run_share(4, transport, fn, (job){kind, "f32[b=2 t=11 s=3 c=16]", "[u=2 v=2]", "t@u,t@v", method, 1, 2, flags});
    }
    if (!linear) {
        run_share(4, transport, fn, (job){kind, "f32[b=2 t=11 s=3 c=24]", "[u=2 v=2]", "t@u(4 7),t@v", "usp", 1, 3, 3});
        run_share(6, transport, fn, (job){kind, "f32[b=3 t=11 s=3 c=24]", "[u=2 dp=1 v=3]", "t@u,t@v", "usp", 1, 3, 0});
        run_share(4, transport, fn, (job){kind, "bf16[b=3 t=5 s=11 c=24]", "[t=1 u=2 v=2]", "s@u,s@v", "usp", 2, 3, 1});
    }
    run_share(2, transport, fn, (job){kind, "f32[b=2 t=11 s=3 c=24]", "[sp=2]", "s@sp", "local", 1, 3, 3});
    run_share(3, transport, fn, (job){kind, "f32[b=1 t=5 s=4 c=16]", "[dp=3]", "*", "local", 1, 2, 1});
    run_share(3, transport, fn,
              (job){kind, "f32[b=1 t=5 s=4 c=16]", "[dp=3 sp=1]", "b@dp,t@sp", linear ? "lasp" : "ring", 1, 2, 1});
    run_share(6, transport, fn,
              (job){kind, "f32[b=2 t=5 s=4 c=16]", "[dp=3 sp=2]", "b@dp,t@sp", linear ? "lasp" : "ring", 1, 2, 1});
}

#define OVER_ALL(name, fn, kind, transport)                                                                            \
    HD_CASE(name)                                                                                                      \
    {                                                                                                                  \
        over_all_problems(fn, kind, transport);                                                                        \
    }

OVER_ALL(softmax_forward_on_threads, forward_case, HEDDLE_STAGE_ATTENTION, "threads")
OVER_ALL(linear_forward_on_threads, forward_case, HEDDLE_STAGE_LINEAR, "threads")
OVER_ALL(softmax_forward_on_processes, forward_case, HEDDLE_STAGE_ATTENTION, "shm")
OVER_ALL(linear_forward_on_processes, forward_case, HEDDLE_STAGE_LINEAR, "shm")
OVER_ALL(softmax_backward_on_threads, backward_case, HEDDLE_STAGE_ATTENTION, "threads")
OVER_ALL(linear_backward_on_threads, backward_case, HEDDLE_STAGE_LINEAR, "threads")

HD_CASE(backward_on_processes)
{
    over_few_problems(backward_case, HEDDLE_STAGE_ATTENTION, "shm");
    over_few_problems(backward_case, HEDDLE_STAGE_LINEAR, "shm");
}
