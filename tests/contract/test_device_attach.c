/* Attaching a device where there is no library for it, or where the ranks do not agree: all hear the same, and the
 * communicator goes on without. */
#include "case.h"
#include "check.h"
#include "runtime/base/base.h"

#include <heddle/heddle.h>
#include <string.h>

static int says(const char *wanted)
{
    return strstr(heddle_last_error(), wanted) != NULL;
}

/* Nothing is attached, and nothing is broken. */
static heddle_status goes_on(heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    void *buffer = NULL;
    HD_TRY(heddle_comm_poll(comm));
    CHECK(heddle_comm_device(comm) == -1);
    CHECK(strstr(heddle_comm_describe(comm), "device") == NULL);
    CHECK(heddle_buffer_alloc(&buffer, comm, 64, HEDDLE_SPACE_DEVICE) == HEDDLE_ERR_UNSUPPORTED);
    CHECK(says("a buffer: memory of device 0, but the communicator has no device"));
    CHECK(heddle_buffer_alloc(&buffer, comm, 64, (heddle_space)3) == HEDDLE_ERR_ARG);
    st = heddle_comm_barrier(comm);
out:
    return st;
}

HD_RANK_CASE(without_a_library, "1 threads", "3 threads", "2 shm")
{
    heddle_status st = HEDDLE_OK;
    CHECK(heddle_comm_attach_device(comm, "pigeon", HEDDLE_WIRE_AUTO) == HEDDLE_ERR_UNSUPPORTED);
    CHECK(says("devices of kind pigeon are not available: there is no libheddle_pigeon.so in /"));
    CHECK(heddle_comm_attach_device(comm, "pigeon:x", HEDDLE_WIRE_HOST) == HEDDLE_ERR_PARSE);
    CHECK(heddle_comm_attach_device(comm, "pigeon", (heddle_wire)4) == HEDDLE_ERR_ARG);
    CHECK(says("wire is 4, wanted 0 to 3"));
    for (heddle_wire wire = HEDDLE_WIRE_PEER; wire <= HEDDLE_WIRE_NCCL; wire++) {
        CHECK(heddle_comm_attach_device(comm, "pigeon", wire) == HEDDLE_ERR_UNSUPPORTED);
        CHECK(says("devices of kind pigeon are not available"));
    }
    st = goes_on(comm);
out:
    return st;
}

/* One rank asks for something else, and all hear of it. */
HD_RANK_CASE(ranks_must_agree, "3 threads", "2 shm")
{
    heddle_status st = HEDDLE_OK;
    int is_last = heddle_comm_rank(comm) == heddle_comm_size(comm) - 1;
    CHECK(heddle_comm_attach_device(comm, is_last ? "raven:2" : "pigeon:1", HEDDLE_WIRE_HOST) == HEDDLE_ERR_MISMATCH);
    CHECK(says("kind") && says("raven") && says("pigeon"));
    CHECK(heddle_comm_attach_device(comm, "pigeon", is_last ? HEDDLE_WIRE_HOST : HEDDLE_WIRE_AUTO) ==
          HEDDLE_ERR_MISMATCH);
    CHECK(says("wire") && says("host") && says("auto"));
    st = heddle_comm_attach_device(comm, is_last ? NULL : "pigeon", HEDDLE_WIRE_AUTO);
    CHECK(st == (is_last ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER) && says("device is NULL"));
    st = goes_on(comm);
out:
    return st;
}

HD_RANK_CASE(not_to_a_part, "4 threads", "4 shm")
{
    heddle_status st = HEDDLE_OK;
    heddle_comm *part = NULL;
    heddle_mesh mesh;
    HD_TRY(heddle_mesh_parse(&mesh, "[a=2 b=2]"));
    HD_TRY(heddle_comm_axis_group(&part, comm, &mesh, 1));
    CHECK(heddle_comm_attach_device(part, "pigeon", HEDDLE_WIRE_AUTO) == HEDDLE_ERR_ARG);
    CHECK(says("an axis group is part of"));
    st = goes_on(part);
out:
    heddle_comm_destroy(part);
    return st;
}

/* libheddle_cuda, where it is built: without a driver it says so. */
HD_RANK_CASE(cuda_or_why_not, "2 threads", "2 shm")
{
    heddle_status st = heddle_comm_attach_device(comm, "cuda", HEDDLE_WIRE_HOST);
    if (st == HEDDLE_OK) {
        CHECK(heddle_comm_device(comm) >= 0 && strstr(heddle_comm_describe(comm), "; device cuda:") != NULL);
        return HEDDLE_OK;
    }
    CHECK(st == HEDDLE_ERR_UNSUPPORTED);
    CHECK(says("no cuda device: ") || says("devices of kind cuda are not available: there is no libheddle_cuda.so"));
    st = goes_on(comm);
out:
    return st;
}

static heddle_status never_runs(heddle_comm *comm, void *arg)
{
    (void)comm;
    *(int *)arg = 1;
    return HEDDLE_OK;
}

HD_CASE(by_options)
{
    static const char *const where[] = {"threads", "shm"};
    int ran = 0;
    heddle_comm *comm = NULL;
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.device = "pigeon:1";
    for (int i = 0; i < 2; i++) {
        HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_run_ranks_with(3, where[i], &options, never_runs, &ran));
        assert_non_null(strstr(heddle_last_error(), "there is no libheddle_pigeon.so"));
        assert_int_equal(ran, 0);
    }
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_comm_open(&comm, "self", &options));
    assert_null(comm);
    options.module_folder = "loft";
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_open(&comm, "self", &options));
    assert_non_null(strstr(heddle_last_error(), "module_folder is 'loft'"));
}
