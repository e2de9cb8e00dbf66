/* Things that go wrong while a reshard is made or runs: nobody hangs, everybody is told, nothing leaks. */
#include "case.h"
#include "check.h"
#include "random_problem.h"
#include "runtime/base/base.h"
#include "time_limit.h"

#include <heddle/heddle.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SWITCH "bf16[t=24 s=48 c=64] on [sp=3]: t@sp -> s@sp"

enum { RANKS = 3, EXECUTIONS = 2, NOT_BEGUN = -1 };

/* Written by the ranks, read by the case; shared with forked ranks. */
typedef struct report {
    int64_t killed_ns, told_ns[RANKS];
    int status[RANKS], named[RANKS];
    int steps[RANKS]; /* calls that went well */
    char why[RANKS][500];
    atomic_int told; /* ranks whose call has failed */
} report;

typedef struct job {
    report *report;
    const char *line;
    int64_t deadline_ms;
    int way;                         /* execute; start and wait; start and test */
    const all_parts *given, *wanted; /* every rank's src and dst; NULL: anything */
} job;

static heddle_status make(heddle_reshard **out, heddle_comm *comm, const char *text, int64_t deadline_ms)
{
    heddle_reshard_line line;
    heddle_reshard_options options;
    heddle_status st = heddle_reshard_parse(&line, text);
    heddle_reshard_options_init(&options);
    options.tuning = HEDDLE_TUNING_RULES;
    options.deadline_ms = deadline_ms;
    return st == HEDDLE_OK ? heddle_reshard_create_line(out, comm, &line, &options) : st;
}

/* A plan and its arrays. */
typedef struct moving {
    heddle_reshard *reshard;
    void *src, *dst;
} moving;

static heddle_status buffers(moving *m, heddle_comm *comm)
{
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    heddle_status st = HEDDLE_OK;
    HD_TRY(heddle_reshard_get_info(&info, m->reshard));
    HD_TRY(heddle_buffer_alloc(&m->src, comm, info.src_bytes, HEDDLE_SPACE_HOST));
    HD_TRY(heddle_buffer_alloc(&m->dst, comm, info.dst_bytes, HEDDLE_SPACE_HOST));
out:
    return st;
}

static heddle_status set_out(moving *m, heddle_comm *comm, const char *text, int64_t deadline_ms)
{
    memset(m, 0, sizeof *m);
    heddle_status st = make(&m->reshard, comm, text, deadline_ms);
    return st == HEDDLE_OK ? buffers(m, comm) : st;
}

static heddle_status die_while_executing(heddle_comm *comm, void *arg)
{
    const job *j = arg;
    int rank = heddle_comm_rank(comm);
    moving m;
    heddle_status st = HEDDLE_OK;
    HD_TRY(set_out(&m, comm, j->line, 20000));
    for (int64_t i = 0, start = hd_now_ns(); st == HEDDLE_OK; i++) {
        if (rank == 1 && hd_now_ns() - start > 30000000) {
            j->report->killed_ns = hd_now_ns();
            raise(SIGKILL);
        }
        st = heddle_reshard_execute(m.reshard, m.src, m.dst, HEDDLE_NO_STREAM);
    }
    j->report->told_ns[rank] = hd_now_ns();
    j->report->status[rank] = (int)st;
    j->report->named[rank] = strstr(heddle_last_error(), "rank 1") != NULL;
out:
    heddle_reshard_destroy(m.reshard);
    return st;
}

HD_CASE(survivors_of_a_kill_are_told)
{
    static const char *const lines[] = {SWITCH, "f32[t=24 s=48 c=64] on [sp=3]: sum@sp -> *",
                                        "f32[t=24 s=48 c=64] on [sp=3]: s@sp -> t@sp as s,t,c"};
    for (int i = 0; i < 6; i++) {
        job j = {.report = hd_shared(sizeof(report)), .line = lines[i % 3]};
        heddle_comm_options options;
        heddle_comm_options_init(&options);
        options.force_messages = i >= 3;
        HD_FAILS(HEDDLE_ERR_PEER,
                 heddle_run_ranks_with(RANKS, i > 3 ? "tcp" : "shm", &options, die_while_executing, &j));
        assert_true(j.report->killed_ns > 0);
        for (int r = 0; r < RANKS; r += 2) {
            assert_int_equal(j.report->status[r], HEDDLE_ERR_PEER);
            assert_true(j.report->named[r]);
            assert_true(j.report->told_ns[r] - j.report->killed_ns < hd_test_limit_ns(2));
        }
    }
}

static heddle_status by_way(int way, heddle_reshard *reshard, const void *src, void *dst)
{
    if (way == 0) {
        return heddle_reshard_execute(reshard, src, dst, HEDDLE_NO_STREAM);
    }
    heddle_status st = heddle_reshard_start(reshard, src, dst, HEDDLE_NO_STREAM);
    if (way == 1) {
        return st == HEDDLE_OK ? heddle_reshard_wait(reshard) : st;
    }
    for (int done = 0; st == HEDDLE_OK && !done;) {
        st = heddle_reshard_test(reshard, &done);
    }
    return st;
}

static heddle_status one_does_not_come(heddle_comm *comm, void *arg)
{
    const job *j = arg;
    int rank = heddle_comm_rank(comm);
    moving m;
    heddle_status st = HEDDLE_OK;
    HD_TRY(set_out(&m, comm, j->line, j->deadline_ms));
    HD_TRY(heddle_comm_barrier(comm));
    for (int64_t start = hd_now_ns(); rank == 1 && atomic_load(&j->report->told) < RANKS - 1;) {
        CHECK(hd_now_ns() - start < hd_test_limit_ns(10)); /* nobody gives up without it */
        usleep(1000);
    }
    st = by_way(j->way, m.reshard, m.src, m.dst);
    atomic_fetch_add(&j->report->told, 1);
    j->report->status[rank] = (int)st;
    j->report->named[rank] = (strstr(heddle_last_error(), "; missing: rank 1; reshard " SWITCH) != NULL) !=
                             (strstr(heddle_last_error(), "messages under way with rank 1; reshard " SWITCH) != NULL);
    if (st != HEDDLE_OK && heddle_reshard_execute(m.reshard, m.src, m.dst, HEDDLE_NO_STREAM) != st) {
        j->report->status[rank] = HEDDLE_ERR_INTERNAL; /* a broken plan stays broken */
    }
    st = HEDDLE_OK;
out:
    heddle_reshard_destroy(m.reshard);
    return st;
}

HD_CASE(deadline_names_the_missing_rank)
{
    static const char *const transports[] = {"threads", "shm"};
    for (int i = 0; i < 12; i++) {
        job j = {.report = hd_shared(sizeof(report)), .line = SWITCH, .way = i / 4};
        j.deadline_ms = hd_test_missed_ns(0.2) / 1000000;
        heddle_comm_options options;
        heddle_comm_options_init(&options);
        options.force_messages = i % 4 >= 2;
        HD_OK(heddle_run_ranks_with(RANKS, transports[i % 2], &options, one_does_not_come, &j));
        int late = 0;
        for (int r = 0; r < RANKS; r += 2) { /* the first to give up tells the others */
            late += j.report->status[r] == HEDDLE_ERR_TIMEOUT && j.report->named[r];
            assert_true(j.report->status[r] == HEDDLE_ERR_TIMEOUT || j.report->status[r] == HEDDLE_ERR_PEER);
        }
        if (late == 0) {
            fail_msg("round %d: ended with %d and %d", i, j.report->status[0], j.report->status[2]);
        }
        assert_int_equal(j.report->status[1], HEDDLE_ERR_PEER);
    }
}

static heddle_status allocations_fail(heddle_comm *comm, void *arg)
{
    const job *j = arg;
    int rank = heddle_comm_rank(comm);
    for (long n = 1; n < 2000; n++) {
        moving m = {0};
        if (rank == 1) {
            hd_alloc_fail_at(n);
        }
        heddle_status st = make(&m.reshard, comm, j->line, 0);
        if (rank == 1) {
            hd_alloc_fail_at(0);
        }
        if (st == HEDDLE_OK) {
            st = buffers(&m, comm);
            st = st == HEDDLE_OK ? heddle_reshard_execute(m.reshard, m.src, m.dst, HEDDLE_NO_STREAM) : st;
            heddle_buffer_free(comm, m.src);
            heddle_buffer_free(comm, m.dst);
            heddle_reshard_destroy(m.reshard);
            j->report->named[rank] = (int)n;
            return st;
        }
        if (st != (rank == 1 ? HEDDLE_ERR_NOMEM : HEDDLE_ERR_PEER) || m.reshard != NULL) {
            char why[300];
            snprintf(why, sizeof why, "%s", heddle_last_error());
            return hd_fail(HEDDLE_ERR_INTERNAL, "allocation %ld: rank %d got %s: %s", n, rank, heddle_status_name(st),
                           why);
        }
    }
    return hd_fail(HEDDLE_ERR_INTERNAL, "creation never succeeded");
}

HD_CASE(every_allocation_may_fail)
{
    static const char *const lines[] = {SWITCH, "f32[t=24 s=48 c=64] on [sp=3]: sum@sp -> *"};
    hd_see_processes();
    for (int i = 0; i < 4; i++) {
        job j = {.report = hd_shared(sizeof(report)), .line = lines[i % 2]};
        heddle_comm_options options;
        heddle_comm_options_init(&options);
        options.force_messages = i >= 2;
        HD_OK(heddle_run_ranks_with(RANKS, "shm", &options, allocations_fail, &j));
        assert_true(j.report->named[0] > 10); /* so many were tried */
    }
}

static heddle_status make_and_run(heddle_comm *comm, void *arg)
{
    const job *j = arg;
    int rank = heddle_comm_rank(comm);
    moving m;
    heddle_status st = HEDDLE_OK;
    HD_TRY(set_out(&m, comm, j->line, 0));
    memcpy(m.src, j->given->part[rank], j->given->bytes[rank]);
    for (int i = 0; i < EXECUTIONS; i++) {
        memset(m.dst, 0xa5, j->wanted->bytes[rank]);
        HD_TRY(heddle_reshard_execute(m.reshard, m.src, m.dst, HEDDLE_NO_STREAM));
        CHECK(memcmp(m.dst, j->wanted->part[rank], j->wanted->bytes[rank]) == 0);
        j->report->steps[rank]++;
    }
    HD_TRY(heddle_comm_barrier(comm));
out:
    j->report->status[rank] = (int)st;
    j->report->named[rank] = st != HEDDLE_OK && strstr(heddle_last_error(), "rank 1") != NULL;
    snprintf(j->report->why[rank], sizeof j->report->why[rank], "%s", heddle_last_error());
    heddle_reshard_destroy(m.reshard);
    return st;
}

/* Rank 1 says what happened, the others that it did; but for its last call of all, which nobody waits for, and for one
 * that was told before it had the communicator. */
static int check_all_told(const report *r, int n)
{
    int told = 0;
    assert_int_equal(r->status[1], HEDDLE_ERR_TRANSPORT);
    for (int rank = 0; rank < RANKS; rank += 2) {
        int is_told = r->status[rank] == HEDDLE_ERR_PEER && r->named[rank];
        told += is_told;
        if (!is_told && r->status[rank] != NOT_BEGUN && !(r->status[rank] == HEDDLE_OK && r->steps[1] == EXECUTIONS)) {
            fail_msg("call %d: rank %d ended with %d after %d executions of rank 1: %s", n, rank, r->status[rank],
                     r->steps[1], r->why[rank]);
        }
    }
    return told;
}

HD_CASE(every_transport_call_may_fail)
{
    static const char *const lines[] = {SWITCH, "f32[t=24 s=48 c=64] on [sp=3]: sum@sp -> *"};
    static const char *const inner[] = {"threads", "shm", "threads", "tcp"};
    for (int i = 0; i < 8; i += HD_SEES_PROCESSES ? 1 : 2) {
        all_parts given, wanted;
        heddle_reshard_line line;
        random_source source = {5};
        HD_OK(heddle_reshard_parse(&line, lines[i / 2 % 2]));
        all_parts_make(&given, &line, 0);
        all_parts_make(&wanted, &line, 1);
        all_parts_fill_random(&given, &source, line.shape.dtype);
        hd_simulate_oracle(&line, &given, &wanted);
        job j = {.report = hd_shared(sizeof(report)), .line = lines[i / 2 % 2], .given = &given, .wanted = &wanted};
        heddle_comm_options options;
        heddle_comm_options_init(&options);
        options.force_messages = i >= 4;
        int told = 0, n = 1, step = (i >= 4 ? 3 : 1) * hd_call_step();
        heddle_status st = HEDDLE_ERR_TRANSPORT;
        for (; n < 1000 && st != HEDDLE_OK; n += step) {
            char transport[64];
            *j.report = (report){.status = {NOT_BEGUN, NOT_BEGUN, NOT_BEGUN}};
            snprintf(transport, sizeof transport, "fault(fail=%d@1):%s", n, inner[i / 4 * 2 + i % 2]);
            st = heddle_run_ranks_with(RANKS, transport, &options, make_and_run, &j);
            if (st != HEDDLE_OK) {
                told += check_all_told(j.report, n);
            }
        }
        assert_true(n > 10 && n < 1000 && told > 0);
        all_parts_free(&given);
        all_parts_free(&wanted);
    }
}

/* After an error src and dst are the caller's again: freed and unmapped at once, while peers may have been copying. */
static heddle_status unmap_after_failure(heddle_comm *comm, void *arg)
{
    const char *text = arg;
    heddle_reshard *reshard = NULL;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    void *src = MAP_FAILED, *dst = MAP_FAILED;
    heddle_status st = HEDDLE_OK;
    HD_TRY(make(&reshard, comm, text, 0));
    HD_TRY(heddle_reshard_get_info(&info, reshard));
    src = mmap(NULL, info.src_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    dst = mmap(NULL, info.dst_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    for (int i = 0; i < 12 && st == HEDDLE_OK; i++) {
        st = heddle_reshard_execute(reshard, src, dst, HEDDLE_NO_STREAM);
    }
out:
    if (src != MAP_FAILED) {
        munmap(src, info.src_bytes); /* whoever still copies dies of it */
    }
    if (dst != MAP_FAILED) {
        munmap(dst, info.dst_bytes);
    }
    heddle_reshard_destroy(reshard);
    return st;
}

HD_CASE(nobody_copies_after_a_failure)
{
    static char *const lines[] = {"f32[t=240 s=480 c=8] on [sp=3]: t@sp -> s@sp",
                                  "f32[t=240 s=480 c=8] on [sp=3]: s@sp -> t@sp",
                                  "f32[t=240 s=480 c=8] on [sp=3]: sum@sp -> t@sp"};
    for (int i = 0; i < 3 + 3 * HD_SEES_PROCESSES; i++) {
        heddle_comm_options options;
        heddle_comm_options_init(&options);
        options.force_messages = i >= 3;
        heddle_status st = HEDDLE_ERR_TRANSPORT;
        int n = 1;
        for (; n < 2000 && st != HEDDLE_OK; n += i < 3 ? hd_call_step() : 1 + n / 4) {
            char transport[64];
            snprintf(transport, sizeof transport, "fault(fail=%d@1):%s", n, i < 3 ? "threads" : "tcp");
            st = heddle_run_ranks_with(RANKS, transport, &options, unmap_after_failure, lines[i % 3]);
        }
        assert_true(n > 40 && n < 2000);
    }
}
