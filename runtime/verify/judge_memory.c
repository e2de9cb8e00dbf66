/* What judges take on all ranks of a machine against what that machine, or a control group, has left. */
#include "runtime/base/memory.h"
#include "runtime/verify/judge.h"

#include <stdint.h>

heddle_status judge_check_memory(const char *what, double bytes, int ranks)
{
    char where[HD_WHERE_BYTES];
    const size_t available = hd_available_bytes(where, sizeof where, "");
    if (available == SIZE_MAX || bytes <= (double)available) {
        return HEDDLE_OK;
    }
    return heddle_set_error(HEDDLE_ERR_ARG, "%s: %.0f bytes on %d ranks, available are %zu (%s)", what, bytes, ranks,
                            available, where);
}
