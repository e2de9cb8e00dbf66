/* Ranks of a program of examples/common: those of a launcher, or its own, each with the device of the options, whose
 * library lies in the folder that they name. */
#include "check.h"
#include "launched.h"

#include "runtime/base/base.h"

#include "examples/common/program.h"

#include <string.h>

/* Two ranks, each a process of its own. */
static heddle_status has_a_device(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    int32_t here = getpid(), others[2] = {0};
    (void)arg;
    CHECK(heddle_comm_size(comm) == 2);
    CHECK(heddle_comm_device(comm) == 0);
    HD_TRY(heddle_comm_allgather(comm, &here, others, sizeof here));
    CHECK(others[0] != others[1]);
out:
    return st;
}

static heddle_status start(void *ranks)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.module_folder = HEDDLE_DEVICE_SIM;
    options.device = "cuda:0";
    return program_run(*(int *)ranks, "auto", &options, has_a_device, NULL);
}

static heddle_status is_refused(void *ranks)
{
    heddle_status st = HEDDLE_OK;
    CHECK(start(ranks) == HEDDLE_ERR_ARG);
    CHECK(strstr(heddle_last_error(), "2 ranks were started, but 3 are wanted") != NULL);
out:
    return st;
}

HD_CASE(ranks_of_a_launcher)
{
    launch(2, start, &(int){2});
    launch(2, is_refused, &(int){3});
}

/* A launcher of one process leaves them to the program; so does none. */
HD_CASE(ranks_of_the_program)
{
    launch(1, start, &(int){2});
    HD_OK(start(&(int){2}));
    setenv("HEDDLE_SIZE", "0", 1);
    HD_FAILS(HEDDLE_ERR_ARG, start(&(int){2})); /* nobody can tell */
}
