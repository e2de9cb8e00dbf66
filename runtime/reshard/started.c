/* Executions that are started, and ended by another call. */
#include "runtime/reshard/plan.h"

heddle_status hd_reshard_check_free(heddle_reshard *plan)
{
    plan->is_started &= plan->resets == hd_comm_resets(plan->comm);
    return !plan->is_started ? HEDDLE_OK : hd_fail(HEDDLE_ERR_ARG, "an execution of this reshard is already in flight");
}

heddle_status heddle_reshard_start(heddle_reshard *reshard, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st;
    HD_TRY(HD_NEED(reshard));
    HD_TRY(hd_reshard_check_free(reshard));
    st = hd_reshard_accept(reshard, src, dst);
    st = st == HEDDLE_OK ? reshard->route->carrier->start(reshard->route, src, dst, stream) : st;
    reshard->is_started = st == HEDDLE_OK;
    reshard->resets = hd_comm_resets(reshard->comm);
out:
    return st;
}

heddle_status heddle_reshard_test(heddle_reshard *reshard, int *done)
{
    heddle_status st;
    HD_TRY(HD_NEED(reshard, done));
    st = reshard->route->carrier->test(reshard->route, done);
    reshard->is_started &= st == HEDDLE_OK && !*done;
out:
    return st;
}

heddle_status heddle_reshard_wait(heddle_reshard *reshard)
{
    heddle_status st;
    HD_TRY(HD_NEED(reshard));
    reshard->is_started = 0;
    st = reshard->route->carrier->wait(reshard->route);
out:
    return st;
}

heddle_status heddle_reshard_wait_on(heddle_reshard *reshard, heddle_stream stream)
{
    heddle_status st;
    HD_TRY(HD_NEED(reshard));
    HD_TRY(hd_route_need_eager(reshard->route, stream));
    reshard->is_started = 0;
    st = reshard->route->carrier->wait_on(reshard->route, stream);
out:
    return st;
}
