/* A rank that is killed inside a switch by the wire nccl, between processes, and a library of messages that does not
 * notice: the others' streams end although their hosts only wait for them, the dead rank is named, nothing is left. And
 * a rank that cannot take part. */
#include "left_over.h"
#include "nccl_sim.h"
#include "time_limit.h"

#include <signal.h>
#include <sys/socket.h>

enum { RANKS = 3, DIES = 1, WHY_BYTES = 400, LINGERS_MS = 400 };

/* What survivors found, seen by the process that started them. */
typedef struct finding {
    _Atomic int has_enqueued;
    heddle_status polled, again, executed;
    char why[WHY_BYTES];
    int64_t took_ns;
    int aborts, comms;
} finding;

typedef struct deaths {
    nccl_sim sim;
    heddle_comm_options options;
    finding *found; /* [ranks], shared */
    int lingers;
} deaths;

/* As on a busy machine: its connections have ended, and for a while the system does not say that it has. */
static void end_slowly(void)
{
    const pid_t me = getpid();
    if (fork() == 0) {
        usleep(LINGERS_MS * 1000);
        kill(me, SIGKILL);
        _exit(0);
    }
    for (int fd = 3; fd < 4096; fd++) {
        (void)shutdown(fd, SHUT_RDWR);
    }
    raise(SIGSTOP);
}

/* Its own part is enqueued, too, but its stream does not come to it. */
static void die(const own_stream *o, const deaths *d)
{
    const finding *found = d->found;
    o->sim.hold(o->stream);
    if (heddle_reshard_execute(o->f.reshard, o->f.src, o->f.dst, o->stream) != HEDDLE_OK) {
        return;
    }
    while (!found[0].has_enqueued || !found[2].has_enqueued) {
        usleep(100);
    }
    if (d->lingers) {
        end_slowly();
    }
    raise(SIGKILL);
}

static heddle_status one_dies(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const deaths *d = arg;
    int rank = heddle_comm_rank(comm);
    finding *mine = &d->found[rank];
    own_stream o = {.device = NULL};
    HD_TRY(heddle_comm_attach_device(comm, "cuda", HEDDLE_WIRE_NCCL));
    HD_TRY(own_set_up_line(&o, comm, "i32[t=6 s=9] on [sp=3]: t@sp -> s@sp as s,t", 0));
    HD_TRY(heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream)); /* all is well */
    HD_TRY(device_settle(comm, o.stream));
    HD_TRY(heddle_comm_poll(comm));
    if (rank == DIES) {
        die(&o, d);
    }
    HD_TRY(heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream));
    int64_t began_ns = hd_now_ns();
    mine->has_enqueued = 1;
    HD_TRY(device_settle(comm, o.stream)); /* asks heddle nothing */
    mine->took_ns = hd_now_ns() - began_ns;
    mine->polled = heddle_comm_poll(comm);
    snprintf(mine->why, WHY_BYTES, "%s", heddle_last_error());
    mine->executed = heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream);
    mine->again = heddle_reshard_wait(o.f.reshard);
    for (int64_t until_ns = hd_now_ns() + hd_test_limit_ns(2); d->sim.comms() > 0 && hd_now_ns() < until_ns;) {
        usleep(1000); /* the thread beside ends it */
    }
    mine->aborts = (int)d->sim.aborts();
    mine->comms = d->sim.comms();
out:
    own_tear_down(&o);
    return st;
}

static void survivors_say_who(int lingers)
{
    deaths d = {.sim = get_sim(), .options = by_nccl(60), .lingers = lingers};
    d.found = hd_shared(RANKS * sizeof *d.found);
    d.options.device = NULL;
    const holdings before = holdings_now();
    assert_int_equal(heddle_run_ranks_with(RANKS, "shm", &d.options, one_dies, &d), HEDDLE_ERR_PEER);
    assert_true(says("rank 1 was killed by signal 9"));
    for (int r = 0; r < RANKS; r++) {
        const finding *f = &d.found[r];
        if (r != DIES) {
            assert_int_equal(f->polled, HEDDLE_ERR_PEER);
            assert_non_null(strstr(f->why, "rank 1 died"));
            assert_true(f->executed == HEDDLE_ERR_PEER && f->again == HEDDLE_ERR_PEER);
            assert_true(f->took_ns < hd_test_limit_ns(2));
            assert_int_equal(f->aborts, 1);
            assert_int_equal(f->comms, 0);
        }
    }
    assert_nothing_left(before);
}

HD_CASE(survivors_end_and_say_who)
{
    setenv("HEDDLE_NCCLSIM_SILENT", "1", 1);
    survivors_say_who(0);
}

/* The library hears of it before heddle does. */
HD_CASE(survivors_wait_for_the_cause)
{
    survivors_say_who(1);
}

static _Atomic int is_told;

/* Rank 0 cannot take part, which nothing that is under way says to rank 1. */
static heddle_status one_is_refused(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(4);
    (void)arg;
    HD_TRY(device_set_up(&f, comm, 0));
    if (heddle_comm_rank(comm) == 0) {
        CHECK(heddle_reshard_execute(f.reshard, f.sent, f.dst, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
        while (!is_told && hd_now_ns() < until_ns) {
            usleep(1000);
        }
    } else {
        for (st = HEDDLE_OK; st == HEDDLE_OK && hd_now_ns() < until_ns; usleep(1000)) {
            st = heddle_comm_poll(comm);
        }
        is_told = 1;
        CHECK(st == HEDDLE_ERR_PEER && says("rank 0 gave up"));
        st = HEDDLE_OK;
    }
out:
    device_tear_down(&f);
    return st;
}

HD_CASE(a_rank_that_is_refused_tells_the_others)
{
    heddle_comm_options options = by_nccl(60);
    HD_OK(heddle_run_ranks_with(2, "threads", &options, one_is_refused, NULL));
}
