/* Sources in private memory that peers read with process_vm_readv, which may stop early anywhere: this program's own
 * stands in for the system's and reads less than it is asked for. */
#include "case.h"
#include "global_index.h"

#include "runtime/reshard/plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { RANKS = 3, MOST_ROWS = 1024 };

static size_t most_bytes; /* of one call; 0: all that is asked for */
static long calls, short_calls;
static int refuses; /* errno of all calls */

ssize_t process_vm_readv(pid_t pid, const struct iovec *near, unsigned long nnear, const struct iovec *far,
                         unsigned long nfar, unsigned long flags);

ssize_t process_vm_readv(pid_t pid, const struct iovec *near, unsigned long nnear, const struct iovec *far,
                         unsigned long nfar, unsigned long flags)
{
    struct iovec n[MOST_ROWS], f[MOST_ROWS];
    size_t left = most_bytes;
    unsigned long count = 0;
    calls++;
    if (refuses != 0) {
        errno = refuses;
        return -1;
    }
    if (most_bytes == 0 || nnear != nfar || nnear > MOST_ROWS) {
        return syscall(SYS_process_vm_readv, pid, near, nnear, far, nfar, flags);
    }
    for (; count < nnear && left > 0; count++) {
        n[count] = near[count];
        f[count] = far[count];
        if (near[count].iov_len > left) {
            n[count].iov_len = f[count].iov_len = left;
        }
        left -= n[count].iov_len;
    }
    short_calls += count < nnear || n[count - 1].iov_len < near[count - 1].iov_len;
    return syscall(SYS_process_vm_readv, pid, n, count, f, count, flags);
}

typedef struct job {
    const char *line;
    size_t most_bytes;
    int refuses;
    hd_reach reach; /* 0: HD_REACH_READV */
} job;

/* What was counted is the plan, for every peer. */
static heddle_status check_counters(const heddle_reshard *reshard, int executions)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_info info = {.struct_bytes = sizeof info};
    HD_TRY(heddle_reshard_get_info(&info, reshard));
    for (int r = 0; r < info.nranks; r++) {
        if (info.measured_bytes_to[r] != executions * info.bytes_to[r]) {
            return hd_fail(HEDDLE_ERR_INTERNAL, "%s: %lld bytes counted to rank %d in %d executions of %lld", info.path,
                           (long long)info.measured_bytes_to[r], r, executions, (long long)info.bytes_to[r]);
        }
    }
    if (info.measured_bytes_sent != executions * info.bytes_sent || info.executions != executions) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "%s: %lld bytes counted in %lld of %d executions of %lld", info.path,
                     (long long)info.measured_bytes_sent, (long long)info.executions, executions,
                     (long long)info.bytes_sent);
    }
out:
    return st;
}

static heddle_status run_job(heddle_comm *comm, void *arg)
{
    const job *j = arg;
    heddle_status st = HEDDLE_OK;
    heddle_reshard_line line;
    heddle_reshard_options options;
    heddle_reshard *reshard = NULL;
    heddle_box from, to;
    int rank = heddle_comm_rank(comm);
    float *src = NULL, *dst = NULL;
    HD_TRY(heddle_reshard_parse(&line, j->line));
    heddle_reshard_options_init(&options);
    options.memory = HEDDLE_MEMORY_ANY;
    options.tuning = HEDDLE_TUNING_RULES;
    HD_TRY(heddle_reshard_create_line(&reshard, comm, &line, &options));
    /* whatever is faster here */
    hd_transfer_use_reach(reshard->bare->transfer[0], j->reach ? j->reach : HD_REACH_READV);
    HD_TRY(heddle_layout_box(&from, &line.shape, &line.mesh, &line.from, rank));
    HD_TRY(heddle_layout_box(&to, &line.shape, &line.mesh, &line.to, rank));
    src = calloc((size_t)heddle_box_elems(&from) + 1, sizeof *src);
    dst = calloc((size_t)heddle_box_elems(&to) + 1, sizeof *dst);
    for (int64_t i = 0; i < heddle_box_elems(&from); i++) {
        src[i] = (float)global_index(&line.shape, &from, i);
    }
    most_bytes = j->most_bytes;
    refuses = rank == 1 ? j->refuses : 0;
    calls = short_calls = 0;
    HD_TRY(heddle_reshard_execute(reshard, src, dst, HEDDLE_NO_STREAM));
    if (refuses == 0 && j->refuses == 0) {
        HD_TRY(check_counters(reshard, 1));
        HD_TRY(heddle_reshard_execute(reshard, src, dst, HEDDLE_NO_STREAM));
        HD_TRY(check_counters(reshard, 2));
    }
    for (int64_t i = 0; i < heddle_box_elems(&to); i++) {
        if (dst[i] != (float)global_index(&line.shape, &to, i)) {
            st = hd_fail(HEDDLE_ERR_INTERNAL, "rank %d, at most %zu bytes a call: element %lld is %g, not %g", rank,
                         most_bytes, (long long)i, (double)dst[i], (double)(float)global_index(&line.shape, &to, i));
            goto out;
        }
    }
    if (j->reach != HD_REACH_STAGED && (calls == 0 || (short_calls > 0 && most_bytes == 0) ||
                                        (short_calls == 0 && most_bytes > 0 && most_bytes < 100))) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "rank %d: %ld calls of process_vm_readv, %ld of them cut short", rank, calls,
                     short_calls);
    }
out:
    heddle_reshard_destroy(reshard);
    free(src);
    free(dst);
    return st;
}

static const char *const lines[] = {
    "f32[t=12 s=33 c=5] on [sp=3]: t@sp -> s@sp", /* many short rows */
    "f32[t=9 s=1700] on [sp=3]: s@sp -> t@sp",    /* a few long ones */
    "f32[t=40 s=50 c=3] on [sp=3]: s@sp -> *",    /* more rows than one call takes */
};

HD_CASE(reads_that_stop_early)
{
    static const size_t most[] = {0, 1, 7, 20, 61, 1000};
    for (size_t l = 0; l < sizeof lines / sizeof lines[0]; l++) {
        for (size_t m = 0; m < sizeof most / sizeof most[0]; m++) {
            job j = {.line = lines[l], .most_bytes = most[m]};
            HD_OK(heddle_run_ranks(RANKS, "shm", run_job, &j));
        }
    }
}

HD_CASE(staged_bytes_are_counted)
{
    for (size_t l = 0; l < sizeof lines / sizeof lines[0]; l++) {
        job j = {.line = lines[l], .reach = HD_REACH_STAGED};
        HD_OK(heddle_run_ranks(RANKS, "shm", run_job, &j));
    }
}

/* What the system refuses is an error with both ranks and its words, and nobody waits. */
HD_CASE(reads_that_are_refused)
{
    job j = {.line = lines[0], .refuses = EPERM};
    HD_FAILS(HEDDLE_ERR_TRANSPORT, heddle_run_ranks(RANKS, "shm", run_job, &j));
    assert_non_null(strstr(heddle_last_error(), "rank 1 could not read the source of rank "));
    assert_non_null(strstr(heddle_last_error(), strerror(EPERM)));
}

/* One rank may not read the others: the probe of each sees that, and none of them does. */
static heddle_status one_may_not(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_line line;
    heddle_reshard_options options;
    heddle_reshard *reshard = NULL;
    heddle_reshard_info info = {.struct_bytes = sizeof info};
    refuses = heddle_comm_rank(comm) == *(const int *)arg ? EPERM : 0;
    HD_TRY(heddle_reshard_parse(&line, "f32[t=48 s=330 c=5] on [sp=3]: t@sp -> s@sp"));
    heddle_reshard_options_init(&options);
    options.memory = HEDDLE_MEMORY_ANY;
    HD_TRY(heddle_reshard_create_line(&reshard, comm, &line, &options));
    HD_TRY(heddle_reshard_get_info(&info, reshard));
    calls = 0;
    void *src = calloc(1, info.src_bytes + 1), *dst = calloc(1, info.dst_bytes + 1);
    st = heddle_reshard_execute(reshard, src, dst, HEDDLE_NO_STREAM);
    free(src);
    free(dst);
    if (st == HEDDLE_OK && *(const int *)arg >= 0 &&
        (calls > 0 || strstr(info.why, "process_vm_readv is not permitted here") == NULL)) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "rank %d of a plan of which rank %d may not read: %ld calls, %s",
                     heddle_comm_rank(comm), *(const int *)arg, calls, info.why);
    }
out:
    heddle_reshard_destroy(reshard);
    return st;
}

HD_CASE(reads_that_one_rank_may_not)
{
    for (int rank = -1; rank < RANKS; rank++) {
        HD_OK(heddle_run_ranks(RANKS, "shm", one_may_not, &rank));
    }
}
