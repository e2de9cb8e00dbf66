/* Routes whose kernel changes what it moves: a residual on its way to where it belongs (decision 0027). */
#include "runtime/move/carrier.h"

int hd_route_takes_gate(const hd_route *r)
{
    return r->takes_gate;
}

heddle_status hd_route_run_gated(hd_route *r, const void *src, const hd_device_gate *gate, void *dst,
                                 heddle_stream stream)
{
    r->gate = gate;
    heddle_status st = r->carrier->run(r, src, dst, stream);
    r->gate = NULL;
    return st;
}
