/* heddle calibrate on devices, one of which lacks what measuring wants: all ranks know before anything is measured. */
#include "case.h"
#include "device_sim.h"

#include "runtime/base/base.h"
#include "runtime/verify/calibrate.h"

#include <heddle/sys/device.h>

/* --- rank 1's device (linked with a wrapper of this) -------------------------------------------------------------- */

static heddle_device lacking; /* only rank 1 looks at it */

const heddle_device *__real_heddle_comm_device_table(const heddle_comm *comm);
const heddle_device *__wrap_heddle_comm_device_table(const heddle_comm *comm);
const heddle_device *__wrap_heddle_comm_device_table(const heddle_comm *comm)
{
    return heddle_comm_rank(comm) == 1 ? &lacking : __real_heddle_comm_device_table(comm);
}

static heddle_status no_memory(int64_t *bytes, int device)
{
    (void)bytes, (void)device;
    return heddle_set_error(HEDDLE_ERR_DEVICE, "the device does not say how much");
}

static heddle_status no_identity(char *out, size_t bytes, int device)
{
    (void)out, (void)bytes, (void)device;
    return heddle_set_error(HEDDLE_ERR_DEVICE, "the device does not say which");
}

static heddle_status no_timer(void **out, int device)
{
    (void)out, (void)device;
    return heddle_set_error(HEDDLE_ERR_DEVICE, "the device does not say when");
}

static const char *lack(int what)
{
    switch (what) {
    case 0:
        lacking.memory = no_memory;
        return "does not say how much";
    case 1:
        lacking.identify = no_identity;
        return "does not say which";
    case 2:
        lacking.timer_create = no_timer;
        return "does not say when";
    case 3:
        lacking.memory = NULL;
        return "devices of kind cuda have no word for how much memory they have";
    default:
        lacking.kernels = NULL;
        return "devices of kind cuda have no kernels to measure";
    }
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void nobody_measures(const calibrate_sample *sample, int done, int of)
{
    (void)sample, (void)done, (void)of;
    fail_msg("an operation is timed");
}

HD_RANK_CASE(a_device_that_cannot_be_measured_is_known_before, "3 shm cuda host", "3 threads cuda host")
{
    const calibrate_options options = {.seconds = 1, .watch = nobody_measures};
    heddle_status st = HEDDLE_OK;
    for (int what = 0; what < 5; what++) {
        const int lacks = heddle_comm_rank(comm) == 1;
        const char *says = "another rank cannot measure: it says why";
        calibrate_result result;
        if (lacks) {
            lacking = *__real_heddle_comm_device_table(comm);
            says = lack(what);
        }
        const heddle_status own = what < 3 ? HEDDLE_ERR_DEVICE : HEDDLE_ERR_UNSUPPORTED;
        HD_FAILS(lacks ? own : HEDDLE_ERR_PEER, calibrate_measure(&result, comm, &options));
        assert_non_null(strstr(heddle_last_error(), says));
        calibrate_free(&result);
        HD_TRY(heddle_comm_barrier(comm)); /* which nothing has spoilt */
    }
out:
    return st;
}
