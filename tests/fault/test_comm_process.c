/* What the process that a rank runs in does to it: limits of its memory and files, closed standard streams, forks,
 * buffers that outlive the communicator. */
#include "case.h"
#include "check.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_private.h"

#include <errno.h>
#include <fcntl.h>
#include <heddle/heddle.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

/* Allocates *arg bytes. */
static heddle_status alloc_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    void *buffer = NULL;
    HD_TRY(heddle_buffer_alloc(&buffer, comm, *(size_t *)arg, HEDDLE_SPACE_HOST));
    HD_TRY(heddle_comm_barrier(comm));
    heddle_buffer_free(comm, buffer);
out:
    return st;
}

static void limit(int resource, size_t bytes)
{
    struct rlimit l;
    assert_int_equal(getrlimit((__rlimit_resource_t)resource, &l), 0);
    l.rlim_cur = bytes;
    assert_int_equal(setrlimit((__rlimit_resource_t)resource, &l), 0);
}

static size_t mapped(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_int_equal(fscanf(file, "%lu", &pages), 1);
    fclose(file);
    return pages * 4096;
}

static void sentence_has(const char *words)
{
    if (strstr(heddle_last_error(), words) == NULL) {
        fail_msg("'%s' is not in: %s", words, heddle_last_error());
    }
}

HD_CASE(a_limit_of_file_sizes)
{
    heddle_comm_options options;
    size_t bytes = 5 * MIB;
    heddle_comm_options_init(&options);
    limit(RLIMIT_FSIZE, 8 * MIB); /* a file that passes it kills the process by a signal */
    HD_OK(heddle_run_ranks(3, "shm", alloc_rank, &bytes));
    bytes = 20 * MIB;
    HD_FAILS(HEDDLE_ERR_NOMEM, heddle_run_ranks(3, "shm", alloc_rank, &bytes));
    sentence_has("20971520 bytes does not fit");
    sentence_has("RLIMIT_FSIZE (ulimit -f), 8388608 bytes");
    options.arena_bytes = 64 * MIB;
    HD_FAILS(HEDDLE_ERR_NOMEM, heddle_run_ranks_with(2, "shm", &options, alloc_rank, &bytes));
    sentence_has("RLIMIT_FSIZE (ulimit -f), 8388608 bytes");
    limit(RLIMIT_FSIZE, 4096);
    HD_FAILS(HEDDLE_ERR_NOMEM, heddle_run_ranks(2, "shm", alloc_rank, &bytes));
    sentence_has("RLIMIT_FSIZE (ulimit -f), 4096 bytes");
}

HD_CASE(a_limit_of_address_space)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    hd_skip("sanitizer", "maps terabytes, which no limit allows");
#endif
    heddle_comm_options options;
    size_t bytes = 10 * MIB;
    char words[64];
    heddle_comm_options_init(&options);
    size_t most = mapped() + (size_t)512 * MIB;
    limit(RLIMIT_AS, most); /* far less than the machine's memory, four times */
    HD_OK(heddle_run_ranks(4, "shm", alloc_rank, &bytes));
    bytes = (size_t)100 * MIB;
    HD_FAILS(HEDDLE_ERR_NOMEM, heddle_run_ranks(4, "shm", alloc_rank, &bytes));
    snprintf(words, sizeof words, "RLIMIT_AS (ulimit -v), %zu bytes", most);
    sentence_has(words);
    options.arena_bytes = 110 * MIB; /* what somebody asks for may be more than half */
    HD_OK(heddle_run_ranks_with(4, "shm", &options, alloc_rank, &bytes));
    options.arena_bytes = 300 * MIB;
    HD_FAILS(HEDDLE_ERR_NOMEM, heddle_run_ranks_with(4, "shm", &options, alloc_rank, &bytes));
    sentence_has(words);
}

/* Whatever is opened, 0, 1 and 2 stay closed. */
static heddle_status streams_rank(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    HD_TRY(heddle_comm_barrier(comm));
    for (int fd = 0; fd <= 2; fd++) {
        CHECK(fcntl(fd, F_GETFD) < 0);
    }
    CHECK(hd_fd_aside(-1) == -1);
out:
    return st;
}

HD_CASE(closed_standard_streams)
{
    heddle_status st[2];
    int kept[3];
    for (int fd = 0; fd <= 2; fd++) {
        kept[fd] = fcntl(fd, F_DUPFD_CLOEXEC, 10);
        close(fd);
    }
    st[0] = heddle_run_ranks(3, "shm", streams_rank, NULL);
    st[1] = heddle_run_ranks(3, "threads", streams_rank, NULL);
    for (int fd = 0; fd <= 2; fd++) {
        dup2(kept[fd], fd);
    }
    HD_OK(st[0]);
    HD_OK(st[1]);
}

/* --- forks -------------------------------------------------------------------------------------------------------- */

/* In the fork: every call is refused, destroying is quiet. Returns what was wrong. */
static int fork_main(heddle_comm *comm, void *buffer, pid_t parent)
{
    char both[2][48];
    void *more = NULL;
    double one = 1;
    int me = heddle_comm_rank(comm);
    snprintf(both[0], sizeof both[0], "process %d:", (int)getpid());
    snprintf(both[1], sizeof both[1], "process %d,", (int)parent);
    if (heddle_comm_barrier(comm) != HEDDLE_ERR_ARG || strstr(heddle_last_error(), both[0]) == NULL ||
        strstr(heddle_last_error(), both[1]) == NULL) {
        return 1;
    }
    if (heddle_comm_allgather(comm, &one, &one, 0) != HEDDLE_ERR_ARG ||
        heddle_comm_allreduce_sum(comm, &one, 1, HEDDLE_F64) != HEDDLE_ERR_ARG ||
        heddle_comm_sendrecv(comm, &one, 8, me, &one, 8, me, HEDDLE_NO_STREAM) != HEDDLE_ERR_ARG ||
        heddle_comm_abort(comm, "a fork says so") != HEDDLE_ERR_ARG ||
        heddle_buffer_alloc(&more, comm, 5000, HEDDLE_SPACE_HOST) != HEDDLE_ERR_ARG) {
        return 2;
    }
    heddle_buffer_free(comm, buffer);
    heddle_comm_destroy(comm);
    return 0;
}

static heddle_status forking_rank(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    void *buffer = NULL;
    int wait_status = 0;
    pid_t parent = getpid();
    HD_TRY(heddle_buffer_alloc(&buffer, comm, 3 * MIB, HEDDLE_SPACE_HOST));
    memset(buffer, 0x5a, 3 * MIB);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(fork_main(comm, buffer, parent));
    }
    CHECK(waitpid(pid, &wait_status, 0) == pid);
    if (wait_status != 0) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "the fork of rank %d ended with %d", heddle_comm_rank(comm), wait_status);
        goto out;
    }
    HD_TRY(heddle_comm_barrier(comm)); /* nobody takes this rank for one that left */
    for (size_t i = 0; i < 3 * MIB; i++) {
        CHECK(((unsigned char *)buffer)[i] == 0x5a);
    }
    HD_TRY(heddle_comm_barrier(comm));
    heddle_buffer_free(comm, buffer);
out:
    return st;
}

HD_CASE(a_fork_leaves_its_parents_ranks_alone)
{
    heddle_comm *self = NULL;
    HD_OK(heddle_run_ranks(3, "shm", forking_rank, NULL));
    HD_OK(heddle_comm_open(&self, "self", NULL));
    HD_OK(forking_rank(self, NULL));
    heddle_comm_destroy(self);
}

/* --- buffers that outlive their communicator ---------------------------------------------------------------------- */

static int rank_of_key(int rank, int size, const char *key)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm *comm = NULL;
    void *buffer[2] = {NULL};
    char text[16];
    snprintf(text, sizeof text, "%d", rank);
    setenv("HEDDLE_RANK", text, 1);
    snprintf(text, sizeof text, "%d", size);
    setenv("HEDDLE_SIZE", text, 1);
    setenv("HEDDLE_KEY", key, 1);
    HD_TRY(heddle_comm_open(&comm, size > 1 ? "shm" : "self", NULL));
    size_t empty = mapped();
    for (int i = 0; i < 2; i++) {
        HD_TRY(heddle_buffer_alloc(&buffer[i], comm, 3 * MIB, HEDDLE_SPACE_HOST));
        memset(buffer[i], 7 + i, 3 * MIB);
    }
    HD_TRY(heddle_comm_barrier(comm));
    heddle_comm_destroy(comm);
    CHECK(((unsigned char *)buffer[0])[2 * MIB] == 7 && ((unsigned char *)buffer[1])[2 * MIB] == 8);
    CHECK(heddle_comm_barrier(comm) == HEDDLE_ERR_ARG && strstr(heddle_last_error(), "was destroyed") != NULL);
    heddle_buffer_free(comm, buffer[0]);
    ((unsigned char *)buffer[1])[MIB] = 9;
    heddle_buffer_free(comm, buffer[1]);
    CHECK(size == 1 || mapped() < empty); /* the arenas are gone */
out:
    if (st != HEDDLE_OK) {
        fprintf(stderr, "rank %d of %d: %s\n", rank, size, heddle_last_error());
    }
    return st != HEDDLE_OK;
}

HD_CASE(buffers_outlive_their_communicator)
{
    for (int size = 1; size <= 3; size++) {
        char key[64];
        pid_t pid[3];
        snprintf(key, sizeof key, "outlive.%d.%d", (int)getpid(), size);
        for (int r = 0; r < size; r++) {
            pid[r] = fork();
            if (pid[r] == 0) {
                _exit(rank_of_key(r, size, key));
            }
        }
        for (int r = 0; r < size; r++) {
            int wait_status = 0;
            assert_int_equal(waitpid(pid[r], &wait_status, 0), pid[r]);
            assert_int_equal(wait_status, 0);
        }
    }
}

/* After an abort memory is kept for peers that still copy; that must not count as out for ever. */
HD_CASE(buffers_freed_after_an_abort)
{
    heddle_comm *comm = NULL;
    void *buffer[2] = {NULL};
    HD_OK(heddle_comm_open(&comm, "self", NULL));
    HD_OK(heddle_buffer_alloc(&buffer[0], comm, 5000, HEDDLE_SPACE_HOST));
    HD_OK(heddle_buffer_alloc(&buffer[1], comm, 5000, HEDDLE_SPACE_HOST));
    HD_OK(heddle_comm_abort(comm, "enough"));
    heddle_buffer_free(comm, buffer[0]);
    heddle_comm_destroy(comm);
    *(char *)buffer[1] = 1;
    heddle_buffer_free(comm, buffer[1]);
}

/* In a sandbox that denies the question which cores there are, ranks go unbound. */
HD_CASE(without_an_answer_about_cores)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    hd_skip("sanitizer", "it asks for the cores itself, in every thread");
#endif
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_getaffinity, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof program / sizeof program[0], .filter = program};
    size_t bytes = MIB;
    cpu_set_t cpus;
    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
    assert_int_equal(sched_getaffinity(0, sizeof cpus, &cpus), -1);
    HD_OK(heddle_run_ranks(2, "shm", alloc_rank, &bytes));
    HD_OK(heddle_run_ranks(2, "threads", alloc_rank, &bytes));
}

/* --- small stacks ------------------------------------------------------------------------------------------------- */

/* What a rank does most, and the longest sentence. */
static heddle_status moves_and_differs(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_line line;
    heddle_reshard *plan = NULL, *other = NULL;
    const int rank = heddle_comm_rank(comm);
    void *buffer[2] = {NULL, NULL};
    (void)arg;
    HD_TRY(heddle_reshard_parse(&line, "f32[t=40 s=60 c=8] on [sp=2]: t@sp -> s@sp"));
    HD_TRY(heddle_reshard_create_line(&plan, comm, &line, NULL));
    for (int i = 0; i < 2; i++) {
        HD_TRY(heddle_buffer_alloc(&buffer[i], comm, 40 * 60 * 8 * 4, HEDDLE_SPACE_HOST));
    }
    HD_TRY(heddle_reshard_execute(plan, buffer[0], buffer[1], HEDDLE_NO_STREAM));
    line.shape.dim[0].extent += rank;
    CHECK(heddle_reshard_create_line(&other, comm, &line, NULL) == HEDDLE_ERR_MISMATCH);
    HD_TRY(heddle_comm_barrier(comm));
out:
    for (int i = 0; i < 2; i++) {
        heddle_buffer_free(comm, buffer[i]);
    }
    heddle_reshard_destroy(plan);
    return st;
}

static void *on_small_stack(void *arg)
{
    (void)arg;
    const heddle_status on_shm = heddle_run_ranks(2, "shm", moves_and_differs, NULL);
    const heddle_status on_threads = heddle_run_ranks(2, "threads", moves_and_differs, NULL);
    return (void *)(intptr_t)(on_shm == HEDDLE_OK ? on_threads : on_shm);
}

/* heddle/comm.h says how much stack a thread that calls heddle wants. */
HD_CASE(a_small_stack)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    hd_skip("sanitizer", "frames are many times as large");
#endif
    pthread_attr_t attributes;
    pthread_t thread;
    void *result = NULL;
    pthread_attr_init(&attributes);
    assert_int_equal(pthread_attr_setstacksize(&attributes, 64 << 10), 0);
    assert_int_equal(pthread_create(&thread, &attributes, on_small_stack, NULL), 0);
    pthread_join(thread, &result);
    pthread_attr_destroy(&attributes);
    assert_int_equal((intptr_t)result, HEDDLE_OK);
}
