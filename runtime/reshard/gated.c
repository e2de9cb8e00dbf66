/* Executions that change what they move. */
#include "runtime/reshard/plan.h"

int hd_reshard_takes_gate(const heddle_reshard *plan)
{
    return hd_route_takes_gate(plan->route);
}

heddle_status hd_reshard_execute_gated(heddle_reshard *plan, const void *src, const hd_device_gate *gate, void *dst,
                                       heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_reshard_check_free(plan));
    HD_TRY(hd_reshard_accept(plan, src, dst));
    st = hd_route_run_gated(plan->route, src, gate, dst, stream);
out:
    return st;
}
