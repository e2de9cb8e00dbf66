/* The dim is whole on every rank: this is what a switch arranges (DSP, arXiv 2403.10266, section 3). */
#include "runtime/method/method.h"

#include <stdio.h>

static const char *why_not(char *reason, const hd_method_group *group)
{
    if (group->n == 1) {
        return NULL;
    }
    snprintf(reason, HD_METHOD_REASON_BYTES, "local wants dim '%s' whole, it is sharded over %d ranks",
             group->shape->dim[group->stage.dim].name, group->n);
    return reason;
}

const hd_method hd_method_local = {.name = "local", .why_not = why_not};
