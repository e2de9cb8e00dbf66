/* A communicator with an emulated device: its memory, what a fork cannot do, and whose pointers plans take. */
#include "on_device.h"
#include "runtime/comm/comm_internal.h"
#include "time_limit.h"

#include <heddle/sys/bench.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- attached ----------------------------------------------------------------------------------------------------- */

HD_RANK_CASE(attached, "3 shm cuda host", "1 threads cuda host", "3 threads cuda host")
{
    heddle_status st = HEDDLE_OK;
    char wanted[32];
    void *memory = NULL;
    int rank = heddle_comm_rank(comm);
    hd_stray stray;
    snprintf(wanted, sizeof wanted, "; device cuda:%d (", rank % 2);
    CHECK(heddle_comm_device(comm) == rank % 2);
    CHECK(strstr(heddle_comm_describe(comm), wanted) != NULL);
    CHECK(strstr(heddle_comm_describe(comm), "wire host (as asked for)") != NULL);
    CHECK(heddle_comm_attach_device(comm, "cuda", HEDDLE_WIRE_AUTO) == HEDDLE_ERR_ARG);
    CHECK(says("the communicator has a device: cuda:"));
    HD_TRY(heddle_buffer_alloc(&memory, comm, 1000, HEDDLE_SPACE_DEVICE));
    HD_TRY(hd_device_stray(&stray, hd_comm_device(comm), HEDDLE_SPACE_DEVICE, memory));
    CHECK(stray == HD_STRAY_NOT);
    HD_TRY(hd_device_stray(&stray, hd_comm_device(comm), HEDDLE_SPACE_DEVICE, &stray));
    CHECK(stray == HD_STRAY_HOST);
    HD_TRY(hd_device_stray(&stray, hd_comm_device(comm), HEDDLE_SPACE_HOST, (char *)memory + 999));
    CHECK(stray == HD_STRAY_DEVICE);
    HD_TRY(heddle_comm_poll(comm));
    heddle_buffer_free(comm, memory);
out:
    return st;
}

/* In ms, of a communicator that is given `asked`; 0: nothing. */
static void check_patience(int64_t asked, int64_t before_ms, int64_t attached_ms)
{
    heddle_comm *comm = NULL;
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = asked;
    HD_OK(heddle_comm_open(&comm, "self", &options));
    for (int attached = 0; attached < 2; attached++) {
        const int64_t left_ms = (hd_comm_deadline_ns(comm, 0) - hd_now_ns()) / 1000000;
        const int64_t wanted_ms = attached ? attached_ms : before_ms;
        assert_true(left_ms > wanted_ms - 10000 && left_ms <= wanted_ms);
        assert_true(hd_comm_deadline_ns(comm, 20000) - hd_now_ns() <= (int64_t)20000 * 1000000);
        if (!attached) {
            HD_OK(heddle_comm_attach_device(comm, "cuda:0", HEDDLE_WIRE_HOST));
        }
    }
    heddle_comm_destroy(comm);
}

HD_CASE(with_a_device_ranks_are_more_patient_unless_told)
{
    check_patience(0, 60000, 600000);
    check_patience(60000, 60000, 60000);
    check_patience(30000, 30000, 30000);
}

HD_CASE(no_such_device)
{
    static const struct {
        const char *devices, *asked, *sentence;
    } cases[] = {{"2", "cuda:2", "no device cuda:2: this process sees 2"},
                 {"0", "cuda", "no cuda device: "},
                 {"-1", "cuda", "no cuda device: there is no NVIDIA driver on this machine"}};
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pid_t pid = fork(); /* the emulator reads its environment once */
        if (pid == 0) {
            heddle_comm *comm = NULL;
            setenv("HEDDLE_CUDASIM_DEVICES", cases[i].devices, 1);
            options.device = cases[i].asked;
            heddle_status st = heddle_comm_open(&comm, "self", &options);
            if (st != HEDDLE_ERR_UNSUPPORTED || !says(cases[i].sentence)) {
                fprintf(stderr, "%s: %d, %s\n", cases[i].asked, (int)st, heddle_last_error());
                _exit(1);
            }
            _exit(0);
        }
        int ended = 0;
        waitpid(pid, &ended, 0);
        assert_int_equal(ended, 0);
    }
}

HD_CASE(buffers_outlive_the_communicator)
{
    device_sim sim;
    void *memory[2];
    heddle_comm *comm = alone();
    HD_OK(device_sim_get(&sim));
    HD_OK(heddle_buffer_alloc(&memory[0], comm, 4096, HEDDLE_SPACE_DEVICE));
    HD_OK(heddle_buffer_alloc(&memory[1], comm, 4096, HEDDLE_SPACE_HOST));
    heddle_comm_destroy(comm);
    assert_true(sim.device_bytes() >= 4096);
    heddle_buffer_free(comm, memory[1]);
    heddle_buffer_free(comm, memory[0]);
    assert_int_equal(sim.device_bytes(), 0);
}

HD_CASE(out_of_memory)
{
    void *memory = NULL;
    setenv("HEDDLE_CUDASIM_MEMORY", "1", 1);
    heddle_comm *comm = alone();
    HD_FAILS(HEDDLE_ERR_NOMEM, heddle_buffer_alloc(&memory, comm, 3 << 20, HEDDLE_SPACE_DEVICE));
    assert_true(says("device cuda:1 has no 3145728 bytes: 1048576 of 1048576 are free"));
    HD_OK(heddle_buffer_alloc(&memory, comm, 1 << 19, HEDDLE_SPACE_DEVICE));
    heddle_buffer_free(comm, memory);
    heddle_comm_destroy(comm);
}

HD_RANK_CASE(rows_are_any_distance_apart, "1 threads cuda host")
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = heddle_comm_device_table(comm);
    const int64_t step = (INT64_C(1) << 31) + 4096;
    const int device = heddle_comm_device(comm);
    void *memory = NULL;
    char back[8] = "";
    char *rows =
        mmap(NULL, (size_t)(step + 4096), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(rows != MAP_FAILED);
    memcpy(rows, "warp", 4);
    memcpy(rows + step, "weft", 4);
    HD_TRY(heddle_buffer_alloc(&memory, comm, 8, HEDDLE_SPACE_DEVICE));
    HD_TRY(library->copy(memory, 4, rows, step, 4, 2, device, HEDDLE_NO_STREAM));
    memset(rows, 0, 4);
    memset(rows + step, 0, 4);
    HD_TRY(library->copy(rows, step, memory, 4, 4, 2, device, HEDDLE_NO_STREAM));
    HD_TRY(library->copy(back, 4, memory, 4, 4, 2, device, HEDDLE_NO_STREAM));
    HD_TRY(device_settle(comm, HEDDLE_NO_STREAM));
    CHECK(memcmp(back, "warpweft", 8) == 0 && memcmp(rows, "warp", 4) == 0 && memcmp(rows + step, "weft", 4) == 0);
out:
    if (rows != MAP_FAILED) {
        munmap(rows, (size_t)(step + 4096));
    }
    heddle_buffer_free(comm, memory);
    return st;
}

HD_CASE(a_fork_has_no_device)
{
    heddle_comm *comm = alone();
    pid_t pid = fork();
    if (pid == 0) {
        heddle_comm *own = NULL;
        void *memory = NULL;
        heddle_comm_options options;
        heddle_comm_options_init(&options);
        options.device = "cuda";
        int wrong = heddle_buffer_alloc(&memory, comm, 8, HEDDLE_SPACE_DEVICE) != HEDDLE_ERR_ARG;
        wrong |= heddle_comm_open(&own, "self", &options) != HEDDLE_ERR_UNSUPPORTED;
        wrong |= !says("is a fork of process") || !says("which used CUDA before");
        heddle_comm_destroy(comm);
        _exit(wrong);
    }
    int ended = 0;
    waitpid(pid, &ended, 0);
    assert_int_equal(ended, 0);
    heddle_comm_destroy(comm);
}

/* --- pointers ----------------------------------------------------------------------------------------------------- */

/* Rank 1 comes with a pointer of the wrong kind: both hear of it, and the plan goes on. */
HD_RANK_CASE(pointers_are_looked_up, "2 threads cuda host")
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    heddle_reshard *on_host = NULL;
    heddle_reshard_line line;
    void *other = NULL;
    const hd_device *device = hd_comm_device(comm);
    int is_wrong = heddle_comm_rank(comm) == 1;
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(heddle_reshard_parse(&line, "i32[t=6 s=8] on [sp=2]: t@sp -> s@sp"));
    HD_TRY(heddle_reshard_create_line(&on_host, comm, &line, NULL));
    HD_TRY(device->library->alloc(&other, 1 - device->number, sizeof f.sent));
    HD_TRY(whole(&f, 0));
    CHECK(heddle_reshard_execute(f.reshard, is_wrong ? f.sent : f.src, f.dst, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(says("rank 1") && says("its src is host memory, and the plan is of a device's"));
    CHECK(heddle_reshard_execute(f.reshard, f.src, is_wrong ? f.got : f.dst, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(says("rank 1") && says("its dst is host memory, and the plan is of a device's"));
    CHECK(heddle_reshard_execute(f.reshard, is_wrong ? other : f.src, f.dst, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(says("rank 1") && says("its src is memory of a device that the plan is not of"));
    CHECK(heddle_reshard_execute(f.reshard, f.src, is_wrong ? f.src : f.dst, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(says("rank 1") && says("its src and dst overlap"));
    CHECK(heddle_reshard_execute(on_host, f.sent, is_wrong ? f.dst : f.got, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(says("rank 1") && says("its dst is memory of a device that the plan is not of"));
    HD_TRY(heddle_reshard_execute(on_host, f.sent, f.got, HEDDLE_NO_STREAM));
    st = whole(&f, 7);
out:
    device->library->free(other, 1 - device->number);
    heddle_reshard_destroy(on_host);
    device_tear_down(&f);
    return st;
}

HD_RANK_CASE(what_is_not_there, "1 threads cuda host")
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard *reshard = NULL;
    heddle_reshard_line line;
    heddle_reshard_options options;
    heddle_reshard_options_init(&options);
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(comm) + 1;
    HD_TRY(heddle_reshard_parse(&line, "i32[t=6 s=8] on [sp=1]: t@sp -> s@sp"));
    CHECK(heddle_reshard_create_line(&reshard, comm, &line, &options) == HEDDLE_ERR_ARG);
    CHECK(says("a reshard: memory of device 1, the communicator's is 0 (cuda:0)"));
    heddle_attention *attention = NULL;
    heddle_attention_options plain;
    heddle_attention_options_init(&plain);
    plain.space = HEDDLE_SPACE_DEVICE;
    plain.device = options.device;
    heddle_shape shape;
    heddle_layout layout;
    HD_TRY(heddle_shape_parse(&shape, "f32[b=1 s=8 h=2 d=4]"));
    HD_TRY(heddle_layout_parse(&layout, "s@sp", &shape, &line.mesh));
    CHECK(heddle_attention_create(&attention, comm, &shape, &line.mesh, &layout, &plain) == HEDDLE_ERR_ARG);
    CHECK(says("attention: memory of device 1, the communicator's is 0 (cuda:0)"));
    heddle_bench_options bench;
    heddle_bench_result result = HEDDLE_EMPTY(heddle_bench_result);
    heddle_bench_options_init(&bench);
    options.device = heddle_comm_device(comm);
    bench.reshard = &options;
    CHECK(heddle_bench_reshard(&result, comm, &line, &bench) == HEDDLE_ERR_UNSUPPORTED);
    CHECK(says("a benchmark: memory of device 0, but it works in host memory only"));
out:
    return st;
}

/* Rank 1 opens without the device that rank 0 asks for: nobody waits for the deadline, nobody goes on alone. */
static heddle_status only_one_asks(int rank)
{
    heddle_comm *comm = NULL;
    heddle_comm_options options;
    int all[2];
    heddle_comm_options_init(&options);
    options.device = rank == 0 ? "cuda" : NULL;
    options.deadline_ms = 20000;
    heddle_status st = heddle_comm_open(&comm, "shm", &options);
    st = st == HEDDLE_OK ? heddle_comm_allgather(comm, &rank, all, sizeof rank) : st;
    if (!says("rank 1 comes with an allgather of 4 bytes, rank 0 with a collective creation")) {
        fprintf(stderr, "rank %d: %d, %s\n", rank, (int)st, heddle_last_error());
        st = HEDDLE_ERR_INTERNAL;
    }
    heddle_comm_destroy(comm);
    return st;
}

HD_CASE(one_rank_asks_for_a_device)
{
    const int64_t start_ns = hd_now_ns();
    pid_t pid[2];
    char key[32];
    setenv("HEDDLE_SIZE", "2", 1);
    snprintf(key, sizeof key, "one-asks-%d", (int)getpid());
    setenv("HEDDLE_KEY", key, 1);
    for (int rank = 0; rank < 2; rank++) {
        pid[rank] = fork();
        if (pid[rank] == 0) {
            setenv("HEDDLE_RANK", rank == 0 ? "0" : "1", 1);
            _exit((int)only_one_asks(rank));
        }
    }
    int mismatches = 0; /* who looks later may be told by the other */
    for (int rank = 0; rank < 2; rank++) {
        int status = 0;
        assert_int_equal(waitpid(pid[rank], &status, 0), pid[rank]);
        assert_true(WIFEXITED(status));
        assert_true(WEXITSTATUS(status) == HEDDLE_ERR_MISMATCH || WEXITSTATUS(status) == HEDDLE_ERR_PEER);
        mismatches += WEXITSTATUS(status) == HEDDLE_ERR_MISMATCH;
    }
    assert_true(mismatches > 0);
    assert_true(hd_now_ns() - start_ns < hd_test_limit_ns(10));
}
