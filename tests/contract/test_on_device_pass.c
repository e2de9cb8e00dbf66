/* What a model's pass on a device asks CUDA for, all of it, as whole numbers (docs/gpu.md). */
#include "counted_calls.h"
#include "whole_pass.h"

static heddle_status check_calls(heddle_comm *comm, int backward, const char *wanted)
{
    heddle_status st = HEDDLE_OK;
    char text[COUNTED_BYTES];
    counted_calls c;
    whole w;
    choose(&w, comm, backward);
    HD_TRY(set_up(&w, comm));
    HD_TRY(device_sim_get(&c.sim));
    HD_TRY(enqueue(&w));
    HD_TRY(enqueue(&w)); /* by now arrays and plans are those of every pass */
    counted_begin(&c);
    HD_TRY(enqueue(&w));
    if (strcmp(counted_since(&c, text), wanted) != 0) {
        st = heddle_set_error(HEDDLE_ERR_INTERNAL, "a pass asks for\n  %s\nwanted\n  %s", text, wanted);
    }
    HD_TRY(st);
    HD_TRY(device_settle(comm, w.stream));
    st = heddle_comm_barrier(comm);
out:
    tear_down(&w);
    return st;
}

/* Eight stages and four switches, each of which gets the device's context; a switch comes behind the last one of its
 * plan and has an event of its own, and so does a pass, behind the last one. */
HD_RANK_CASE(a_forward_asks_cuda_for_no_more, "2 threads cuda peer")
{
    return check_calls(comm, 0,
                       "cuCtxGetCurrent 15, cuCtxPopCurrent 15, cuCtxPushCurrent 15, cudaEventRecord 5, "
                       "cudaGetLastError 41, cudaLaunchKernel 41, cudaStreamIsCapturing 5, cudaStreamWaitEvent 5");
}

HD_RANK_CASE(both_ways_ask_cuda_for_no_more, "2 threads cuda peer")
{
    return check_calls(comm, 1,
                       "cuCtxGetCurrent 30, cuCtxPopCurrent 30, cuCtxPushCurrent 30, cudaEventRecord 10, "
                       "cudaGetLastError 143, cudaLaunchKernel 149, cudaStreamIsCapturing 10, cudaStreamWaitEvent 10");
}
