/* What a program does to the ranks in its process, and in its children: closes every descriptor as a daemon does, waits
 * for every child itself, and runs in a sandbox without memfd_create. */
#include "case.h"
#include "check.h"
#include "ended.h"

#include "runtime/base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <heddle/comm.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAST_FD = 100 };

static int says(const char *wanted)
{
    return strstr(heddle_last_error(), wanted) != NULL;
}

/* --- descriptors that are closed ---------------------------------------------------------------------------------- */

/* `more`: and then opens files of its own, which can be read. */
static void close_all(int more)
{
    for (int fd = 3; fd < LAST_FD; fd++) {
        close(fd);
    }
    while (more && open("/dev/zero", O_RDONLY | O_CLOEXEC) < LAST_FD) {
    }
}

/* Rank 0 has closed all, rank 1 is late. All live. */
static heddle_status closes_all(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(heddle_comm_barrier(comm));
    if (heddle_comm_rank(comm) == 0) {
        close_all(*(const int *)arg);
    } else if (heddle_comm_rank(comm) == 1) {
        usleep(300000); /* rank 0 looks around a dozen times */
    }
    HD_TRY(heddle_comm_barrier(comm));
    st = heddle_comm_barrier(comm);
out:
    return st;
}

HD_CASE(closed_descriptors_are_no_death)
{
    for (int more = 0; more < 2; more++) {
        HD_OK(heddle_run_ranks(3, "shm", closes_all, &more));
    }
}

typedef struct after {
    int more;
    _Atomic int seen; /* by so many ranks */
} after;

/* ... and a death is seen all the same. */
static heddle_status then_one_dies(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    after *a = arg;
    HD_TRY(heddle_comm_barrier(comm));
    if (heddle_comm_rank(comm) == 1) {
        usleep(200000);
        raise(SIGKILL);
    }
    close_all(a->more);
    CHECK(heddle_comm_barrier(comm) == HEDDLE_ERR_PEER && says("rank 1 died"));
    a->seen++;
out:
    return st;
}

HD_CASE(a_death_is_seen_without_the_descriptors)
{
    after *a = hd_shared(sizeof *a);
    for (a->more = 0; a->more < 2; a->more++) {
        a->seen = 0;
        HD_FAILS(HEDDLE_ERR_PEER, run_to_their_end(3, "shm", then_one_dies, a));
        assert_true(says("rank 1 was killed by signal 9"));
        assert_int_equal(a->seen, 2);
    }
}

/* What lies in a file that has got the number of a rank's memory stays when a buffer is given back. */
static heddle_status frees_a_buffer(heddle_comm *comm, void *arg)
{
    enum { BYTES = 8 << 20 };
    heddle_status st = HEDDLE_OK;
    void *buffer = NULL;
    char *own = malloc(BYTES);
    (void)arg;
    HD_TRY(heddle_buffer_alloc(&buffer, comm, BYTES / 2, HEDDLE_SPACE_HOST));
    HD_TRY(heddle_comm_barrier(comm));
    close_all(0);
    const int fd = memfd_create("own", MFD_CLOEXEC);
    CHECK(own != NULL && memset(own, 'x', BYTES) == own && write(fd, own, BYTES) == BYTES);
    while (dup(fd) < LAST_FD) {
    }
    heddle_buffer_free(comm, buffer);
    CHECK(pread(fd, own, BYTES, 0) == BYTES);
    for (int i = 0; i < BYTES; i++) {
        CHECK(own[i] == 'x');
    }
    st = heddle_comm_barrier(comm);
out:
    free(own);
    return st;
}

HD_CASE(a_file_of_the_same_number_is_left_alone)
{
    HD_OK(heddle_run_ranks(2, "shm", frees_a_buffer, NULL));
}

/* --- children that the program waits for -------------------------------------------------------------------------- */

static heddle_status dies_at_once(heddle_comm *comm, void *arg)
{
    (void)arg;
    if (heddle_comm_rank(comm) == 1) {
        raise(SIGKILL);
    }
    return heddle_comm_barrier(comm);
}

static void reaps(int number)
{
    const int error = errno;
    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
    errno = error;
}

HD_CASE(what_is_not_known_of_a_death_is_not_guessed)
{
    for (int how = 0; how < 3; how++) {
        struct sigaction action = {.sa_handler = how == 0   ? reaps
                                                 : how == 1 ? SIG_IGN
                                                            : SIG_DFL,
                                   .sa_flags = how == 2 ? SA_NOCLDWAIT : SA_RESTART};
        assert_int_equal(sigaction(SIGCHLD, &action, NULL), 0);
        HD_FAILS(HEDDLE_ERR_PEER, heddle_run_ranks(2, "shm", dies_at_once, NULL));
        assert_true(says("rank 1 "));
        assert_false(says("exit code"));
        if (!says("killed by signal 9")) { /* the handler is not always the first */
            assert_true(
                says("rank 1 ended before its function returned; how is not known, because this program waits"));
        } else {
            assert_int_equal(how, 0);
        }
    }
}

/* --- a sandbox ---------------------------------------------------------------------------------------------------- */

/* From now on memfd_create fails, and with `all` so do files without a name. */
static void forbid(int all)
{
    const unsigned flags_at = offsetof(struct seccomp_data, args) + 2 * sizeof(uint64_t);
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, all ? SYS_openat : SYS_memfd_create, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, flags_at),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof f / sizeof f[0], .filter = f};
    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static heddle_status shares_memory(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    void *buffer = NULL;
    int64_t sum = 1 + heddle_comm_rank(comm);
    (void)arg;
    HD_TRY(heddle_buffer_alloc(&buffer, comm, 3 << 20, HEDDLE_SPACE_HOST));
    memset(buffer, 5, 3 << 20);
    HD_TRY(heddle_comm_allreduce_sum(comm, &sum, 1, HEDDLE_I64));
    CHECK(sum == 3);
    heddle_buffer_free(comm, buffer);
out:
    return st;
}

HD_CASE(a_sandbox_without_memfd_create)
{
    forbid(0);
    HD_OK(heddle_run_ranks(2, "shm", shares_memory, NULL));
    forbid(1);
    HD_FAILS(HEDDLE_ERR_NOMEM, heddle_run_ranks(2, "shm", shares_memory, NULL));
    assert_true(says("memfd_create: Function not implemented; a file without a name in /dev/shm: Permission denied"));
}
