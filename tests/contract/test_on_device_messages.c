/* Messages between devices: libheddle_nccl over the fake NCCL and the emulated devices. */
#include "on_device.h"
#include "runtime/device/messages.h"
#include "time_limit.h"

#include <sched.h>

static const char *const nccl_sim = HEDDLE_NCCL_SIM;

static heddle_status settle(hd_messages *m)
{
    heddle_status st = HEDDLE_OK;
    for (int done = 0; !done && st == HEDDLE_OK; sched_yield()) {
        st = m->table->test(m->handle, &done);
    }
    return st;
}

static heddle_status begin(hd_messages *m, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    unsigned char id[HEDDLE_MESSAGES_ID_BYTES] = {0}, all[4 * HEDDLE_MESSAGES_ID_BYTES];
    HD_TRY(hd_messages_load(m, "nccl", nccl_sim, hd_comm_device(comm)));
    if (heddle_comm_rank(comm) == 0) {
        HD_TRY(m->table->make_id(id));
    }
    HD_TRY(heddle_comm_allgather(comm, id, all, sizeof id));
    HD_TRY(
        m->table->begin(&m->handle, all, heddle_comm_rank(comm), heddle_comm_size(comm), hd_comm_device(comm)->number));
    st = settle(m);
out:
    return st;
}

/* Each rank's number goes around the ring until it is back. Memory is had before anybody sends and let go when nobody
 * waits any more: for either CUDA may wait until the messages of all are there. */
static heddle_status around(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    hd_messages m = {0};
    int32_t *memory = NULL, seen[2] = {-1, -1};
    int rank = heddle_comm_rank(comm), n = heddle_comm_size(comm);
    (void)arg;
    HD_TRY(begin(&m, comm));
    CHECK(strcmp(m.describe, "NCCL 2.28.9") == 0);
    HD_TRY(heddle_buffer_alloc((void **)&memory, comm, sizeof seen, HEDDLE_SPACE_DEVICE));
    HD_TRY(device_copy(comm, memory, &rank, sizeof rank, HEDDLE_NO_STREAM));
    HD_TRY(heddle_comm_barrier(comm));
    for (int i = 0; i < n; i++) {
        heddle_device_message send = {memory + i % 2, 4, (rank + 1) % n},
                              recv = {memory + (i + 1) % 2, 4, (rank + n - 1) % n};
        HD_TRY(m.table->exchange(m.handle, &send, 1, &recv, 1, HEDDLE_NO_STREAM));
        HD_TRY(settle(&m));
    }
    HD_TRY(device_copy(comm, seen, memory, sizeof seen, HEDDLE_NO_STREAM));
    HD_TRY(device_settle(comm, HEDDLE_NO_STREAM));
    CHECK(seen[n % 2] == rank && seen[(n + 1) % 2] == (rank + 1) % n);
    st = heddle_comm_barrier(comm);
out:
    hd_messages_end(&m, st != HEDDLE_OK);
    heddle_buffer_free(comm, memory);
    return st;
}

/* Rank 1 sends less than rank 0 wants: an error of what was enqueued. Nobody allocates while rank 0 waits, and rank 1,
 * which may never hear of it, gives its messages up when rank 0 has been told. */
HD_RANK_CASE(sizes_that_differ_are_an_error, "2 threads cuda host")
{
    heddle_status st = HEDDLE_OK;
    hd_messages m = {0};
    char *memory = NULL;
    int rank = heddle_comm_rank(comm), is_told = rank == 1;
    HD_TRY(begin(&m, comm));
    HD_TRY(heddle_buffer_alloc((void **)&memory, comm, 64, HEDDLE_SPACE_DEVICE));
    HD_TRY(heddle_comm_barrier(comm));
    heddle_device_message one = {memory, 32 - rank, 1 - rank};
    HD_TRY(m.table->exchange(m.handle, &one, rank, &one, !rank, HEDDLE_NO_STREAM));
    st = settle(&m);
    for (const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(4); !is_told && hd_now_ns() < until_ns;) {
        st = settle(&m);
        is_told = st == HEDDLE_ERR_TRANSPORT && says("what was enqueued failed with 5, invalid usage") &&
                  says("31 bytes where rank 0 receives 32");
        usleep(1000);
    }
    CHECK(is_told);
    st = heddle_comm_barrier(comm);
out:
    hd_messages_end(&m, 1);
    heddle_buffer_free(comm, memory);
    return st;
}

HD_CASE(numbers_go_around)
{
    setenv("HEDDLE_CUDASIM_DEVICES", "4", 1); /* ranks of one device would share its default stream */
    for (int n = 2; n <= 4; n++) {
        run(n, "threads", "cuda", around);
    }
}

HD_CASE(numbers_go_around_processes)
{
    setenv("HEDDLE_CUDASIM_DEVICES", "3", 1);
    run(3, "shm", "cuda", around);
}

/* Versions, and libraries that are not there. */
HD_CASE(what_cannot_be_used_is_refused)
{
    heddle_comm *comm = alone();
    hd_messages m;
    hd_device other = *hd_comm_device(comm);
    static const struct {
        const char *found;
        heddle_status st;
    } of[] = {{"21303", HEDDLE_ERR_UNSUPPORTED},
              {"2804", HEDDLE_ERR_UNSUPPORTED},
              {"21403", HEDDLE_OK},
              {"22809", HEDDLE_OK},
              {"23003", HEDDLE_OK},
              {"30000", HEDDLE_ERR_UNSUPPORTED}};
    static const char *const says_of[] = {"NCCL 2.13.3 was found",         "NCCL 2.8.4 was found",
                                          "NCCL 2.14.3, built for 2.28.9", "NCCL 2.28.9",
                                          "NCCL 2.30.3, built for 2.28.9", "NCCL 3.0.0 was found"};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        setenv("HEDDLE_NCCLSIM_VERSION", of[i].found, 1);
        assert_int_equal(hd_messages_load(&m, "nccl", nccl_sim, &other), of[i].st);
        assert_true(of[i].st == HEDDLE_OK || says("wanted 2.14 or a later one of version 2"));
        assert_true(of[i].st == HEDDLE_OK ? strcmp(m.describe, says_of[i]) == 0 : says(says_of[i]));
    }
    unsetenv("HEDDLE_NCCLSIM_VERSION");
    other.library = heddle_device_host();
    assert_int_equal(hd_messages_load(&m, "nccl", nccl_sim, &other), HEDDLE_ERR_UNSUPPORTED);
    assert_true(says("libheddle_nccl.so is for devices of kind cuda, not host"));
    assert_int_equal(hd_messages_load(&m, "dove", nccl_sim, &other), HEDDLE_ERR_UNSUPPORTED);
    assert_true(says("there is no libheddle_dove.so in /"));
    assert_int_equal(hd_messages_load(&m, "cuda", nccl_sim, &other), HEDDLE_ERR_UNSUPPORTED);
    assert_true(says("libheddle_cuda.so is a library of devices (heddle_comm_attach_device), it has no "
                     "heddle_device_messages_v1"));
    heddle_comm_destroy(comm);
}

HD_CASE(a_device_is_no_transport)
{
    heddle_comm *comm = NULL;
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.module_folder = HEDDLE_DEVICE_SIM;
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_comm_open(&comm, "cuda", &options));
    assert_true(says("libheddle_cuda.so is a library of devices (heddle_comm_attach_device)"));
}
