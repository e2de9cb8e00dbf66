/* Linked in front of heddle_run_ranks: with HEDDLE_TEST_DEVICE every communicator of the program opens with that device
 * attached, by the wire of HEDDLE_TEST_WIRE, so that a test of host memory becomes one of device memory (placed.h).
 * Without such a device the case is skipped, or fails where HEDDLE_REQUIRE_DEVICE is set. */
#include "case.h"
#include "placed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

heddle_status __real_heddle_run_ranks_with(int nranks, const char *transport, const heddle_comm_options *options,
                                           heddle_rank_main fn, void *arg);
heddle_status __wrap_heddle_run_ranks_with(int nranks, const char *transport, const heddle_comm_options *options,
                                           heddle_rank_main fn, void *arg);
heddle_status __wrap_heddle_run_ranks(int nranks, const char *transport, heddle_rank_main fn, void *arg);

static heddle_wire wire(void)
{
    static const char *const names[] = {"auto", "peer", "nccl", "host"};
    const char *asked = getenv("HEDDLE_TEST_WIRE");
    for (int i = 0; asked != NULL && i < (int)(sizeof names / sizeof *names); i++) {
        if (strcmp(asked, names[i]) == 0) {
            return (heddle_wire)i;
        }
    }
    return HEDDLE_WIRE_AUTO;
}

static heddle_status nothing(heddle_comm *comm, void *arg)
{
    (void)comm;
    (void)arg;
    return HEDDLE_OK;
}

/* In a process of its own: a device does not survive the fork by which ranks of "shm" start. */
static void skip_without(const char *device)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.device = device;
    options.wire = wire();
    heddle_status st = __real_heddle_run_ranks_with(1, "shm", &options, nothing, NULL);
    if (st == HEDDLE_ERR_UNSUPPORTED && getenv("HEDDLE_REQUIRE_DEVICE") == NULL) {
        hd_skip("gpu", "%s", heddle_last_error());
    }
    HD_OK(st);
}

typedef struct rank_call {
    heddle_rank_main fn;
    void *arg;
} rank_call;

static heddle_status make_store(heddle_comm *comm)
{
    placed_store = (placed_memory){0};
    if (!hd_comm_shares_address_space(comm)) {
        return HEDDLE_OK;
    }
    heddle_status st = heddle_buffer_alloc((void **)&placed_store.base, comm, PLACED_STORE_BYTES, HEDDLE_SPACE_DEVICE);
    return st == HEDDLE_OK ? heddle_comm_barrier(comm) : st;
}

/* A rank has a stream of its own for as long as its function runs. */
static heddle_status call_rank(heddle_comm *comm, void *arg)
{
    const rank_call *call = arg;
    const heddle_device *table = hd_comm_device(comm)->library;
    heddle_status st = HEDDLE_OK;
    if (table->stream_create != NULL) {
        st = table->stream_create(&placed_stream, heddle_comm_device(comm));
    }
    st = st == HEDDLE_OK ? make_store(comm) : st;
    st = st == HEDDLE_OK ? call->fn(comm, call->arg) : st;
    if (placed_stream != HEDDLE_NO_STREAM && st == HEDDLE_OK) { /* else others may never let it end */
        table->stream_destroy(placed_stream, heddle_comm_device(comm));
    }
    placed_stream = HEDDLE_NO_STREAM;
    return st;
}

typedef struct verdict {
    heddle_status status;
    char why[1000];
} verdict;

/* Ranks that are threads, in a process of their own: ranks that a case starts afterwards are forks of the case, and
 * could not use a device that it had used. */
static heddle_status run_threads(int nranks, const char *transport, const heddle_comm_options *options,
                                 heddle_rank_main fn, void *arg)
{
    int ends[2];
    verdict v = {.status = HEDDLE_ERR_INTERNAL, .why = "the process of the ranks died"};
    if (pipe(ends) != 0) {
        return heddle_set_error(HEDDLE_ERR_INTERNAL, "no pipe");
    }
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        v.status = __real_heddle_run_ranks_with(nranks, transport, options, fn, arg);
        snprintf(v.why, sizeof v.why, "%s", heddle_last_error());
        _exit(write(ends[1], &v, sizeof v) != (ssize_t)sizeof v);
    }
    close(ends[1]);
    const ssize_t got = read(ends[0], &v, sizeof v);
    close(ends[0]);
    waitpid(pid, NULL, 0);
    (void)got; /* none: as it was */
    return v.status == HEDDLE_OK ? HEDDLE_OK : heddle_set_error(v.status, "%s", v.why);
}

heddle_status __wrap_heddle_run_ranks_with(int nranks, const char *transport, const heddle_comm_options *options,
                                           heddle_rank_main fn, void *arg)
{
    static int is_there;
    const char *device = getenv("HEDDLE_TEST_DEVICE");
    heddle_comm_options with_device;
    if (device == NULL) {
        return __real_heddle_run_ranks_with(nranks, transport, options, fn, arg);
    }
    if (!is_there) {
        skip_without(device);
        is_there = 1;
    }
    heddle_comm_options_init(&with_device);
    if (options != NULL) {
        with_device = *options;
    }
    with_device.device = device;
    with_device.wire = wire();
    rank_call call = {fn, arg};
    return (strcmp(transport, "threads") == 0 ? run_threads : __real_heddle_run_ranks_with)(
        nranks, transport, &with_device, call_rank, &call);
}

heddle_status __wrap_heddle_run_ranks(int nranks, const char *transport, heddle_rank_main fn, void *arg)
{
    return __wrap_heddle_run_ranks_with(nranks, transport, NULL, fn, arg);
}
