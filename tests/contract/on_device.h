/* A plan whose arrays lie on an emulated device, for one of one or two ranks. */
#ifndef HD_TEST_ON_DEVICE_H
#define HD_TEST_ON_DEVICE_H

#include "case.h"
#include "check.h"
#include "device_sim.h"
#include "runtime/base/base.h"

#include <heddle/heddle.h>

#include <sched.h>

static inline int says(const char *wanted)
{
    return strstr(heddle_last_error(), wanted) != NULL;
}

/* In a rank's function, of `comm`: the call fails so, in these words. */
#define REFUSED(status, words, call)                                                                                   \
    do {                                                                                                               \
        heddle_status got_ = (call);                                                                                   \
        if (got_ != (status) || !says(words)) {                                                                        \
            return heddle_set_error(HEDDLE_ERR_INTERNAL, "rank %d: status %d: %s", heddle_comm_rank(comm), (int)got_,  \
                                    heddle_last_error());                                                              \
        }                                                                                                              \
    } while (0)

static inline void skip_on_card(const char *why)
{
    if (is_on_card()) {
        hd_skip("gpu", "%s", why);
    }
}

/* Bytes that were copied meanwhile, of all ranks, which wait for one another here. */
static inline heddle_status copied_since(int64_t *bytes, heddle_comm *comm)
{
    heddle_status st;
    device_sim sim;
    HD_TRY(heddle_comm_barrier(comm));
    HD_TRY(is_on_card() ? HEDDLE_OK : device_sim_get(&sim)); /* a card counts none */
    *bytes = is_on_card() ? 0 : sim.copied() - *bytes;
    st = heddle_comm_barrier(comm);
out:
    return st;
}

static inline heddle_comm_options device_options(const char *device, heddle_wire wire)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.device = device;
    options.wire = wire;
    return options;
}

static inline void run_on(int n, const char *transport, const char *device, heddle_wire wire, heddle_rank_main fn)
{
    const heddle_comm_options options = device_options(device, wire);
    HD_OK(heddle_run_ranks_with(n, transport, &options, fn, NULL));
}

static inline void run(int n, const char *transport, const char *device, heddle_rank_main fn)
{
    run_on(n, transport, device, HEDDLE_WIRE_HOST, fn);
}

/* The calling thread, and those of the streams that it makes, which on two cores wake one another there for every call:
 * most of the time of a test of thousands of short ones. */
static inline void stay_on_one_core(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((unsigned)sched_getcpu(), &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
}

static inline heddle_comm *alone_on(heddle_wire wire)
{
    heddle_comm *comm = NULL;
    const heddle_comm_options options = device_options(is_on_card() ? "cuda:0" : "cuda:1", wire);
    HD_OK(heddle_comm_open(&comm, "self", &options)); /* the second one of several: nothing may take the current one */
    return comm;
}

static inline heddle_comm *alone(void)
{
    return alone_on(HEDDLE_WIRE_HOST);
}

enum { ELEMS = 6 * 8 };

typedef struct device_fixture {
    heddle_comm *comm;
    heddle_reshard *reshard;
    int32_t *src, *dst; /* of the device */
    int32_t sent[ELEMS], got[ELEMS];
    int elems; /* of this rank's part */
} device_fixture;

/* Of at most ELEMS elements on a rank. */
static inline heddle_status device_set_up_line(device_fixture *f, heddle_comm *comm, const char *text,
                                               int64_t deadline_ms)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_options options;
    heddle_reshard_line line;
    memset(f, 0, sizeof *f);
    f->comm = comm;
    f->elems = ELEMS / heddle_comm_size(comm);
    heddle_reshard_options_init(&options);
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(comm);
    options.deadline_ms = deadline_ms;
    HD_TRY(heddle_reshard_parse(&line, text));
    HD_TRY(heddle_reshard_create_line(&f->reshard, comm, &line, &options));
    HD_TRY(heddle_buffer_alloc((void **)&f->src, comm, sizeof f->sent, HEDDLE_SPACE_DEVICE));
    HD_TRY(heddle_buffer_alloc((void **)&f->dst, comm, sizeof f->got, HEDDLE_SPACE_DEVICE));
    st = heddle_comm_barrier(comm); /* nobody executes while others allocate, for which CUDA may wait */
out:
    return st;
}

static inline heddle_status device_set_up(device_fixture *f, heddle_comm *comm, int64_t deadline_ms)
{
    return device_set_up_line(f, comm,
                              heddle_comm_size(comm) == 1 ? "i32[t=6 s=8] on [sp=1]: t@sp -> s@sp as s,t"
                                                          : "i32[t=6 s=8] on [sp=2]: t@sp -> s@sp as s,t",
                              deadline_ms);
}

static inline void device_tear_down(device_fixture *f)
{
    heddle_reshard_destroy(f->reshard);
    heddle_buffer_free(f->comm, f->src);
    heddle_buffer_free(f->comm, f->dst);
}

/* Element (t, s) is 100 t + s + round. */
static inline void device_fill(device_fixture *f, int round)
{
    int first = heddle_comm_rank(f->comm) * f->elems / 8;
    for (int i = 0; i < f->elems; i++) {
        f->sent[i] = 100 * (first + i / 8) + i % 8 + round;
    }
    memset(f->got, 0x55, sizeof f->got);
}

static inline heddle_status check_got(const device_fixture *f, int round)
{
    int rank = heddle_comm_rank(f->comm), rows = 8 / heddle_comm_size(f->comm);
    for (int i = 0; i < f->elems; i++) {
        int wanted = 100 * (i % 6) + rank * rows + i / 6 + round;
        if (f->got[i] != wanted) {
            return heddle_set_error(HEDDLE_ERR_INTERNAL, "rank %d: element %d is %d, not %d", rank, i, (int)f->got[i],
                                    wanted);
        }
    }
    return HEDDLE_OK;
}

static inline heddle_status whole(device_fixture *f, int round)
{
    heddle_status st = HEDDLE_OK;
    device_fill(f, round);
    HD_TRY(device_copy(f->comm, f->src, f->sent, sizeof f->sent, HEDDLE_NO_STREAM));
    HD_TRY(heddle_reshard_execute(f->reshard, f->src, f->dst, HEDDLE_NO_STREAM));
    HD_TRY(device_copy(f->comm, f->got, f->dst, sizeof f->got, HEDDLE_NO_STREAM));
    HD_TRY(device_settle(f->comm, HEDDLE_NO_STREAM));
    st = check_got(f, round);
out:
    return st;
}

static inline heddle_status three_rounds(device_fixture *f)
{
    heddle_status st = HEDDLE_OK;
    for (int round = 0; round < 3 && st == HEDDLE_OK; round++) {
        st = whole(f, round);
    }
    return st;
}

/* By the wire peer, and dst is one of these two. */
static inline heddle_status says_why(const heddle_reshard *reshard, const char *wanted)
{
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    heddle_status st = heddle_reshard_get_info(&info, reshard);
    if (st == HEDDLE_OK && (strcmp(info.wire, "peer") != 0 || strstr(info.why, wanted) == NULL)) {
        st = heddle_set_error(HEDDLE_ERR_INTERNAL, "wire %s, %s", info.wire, info.why);
    }
    return st;
}

static const char *const direct = "at its place in the peers' memory", *const lands = "into the plan's memory";

/* All that a rank does with a device. */
static inline heddle_status goes_through(heddle_comm *comm)
{
    device_fixture f = {0};
    heddle_status st = device_set_up(&f, comm, 0);
    st = st == HEDDLE_OK ? whole(&f, 1) : st;
    st = st == HEDDLE_OK ? heddle_comm_poll(comm) : st;
    device_tear_down(&f);
    return st;
}

/* Each call of the device's library that goes_through makes fails once. Either that is an error which says so; or what
 * was asked for was done all the same (goes_through looks): one piece of memory was not released, say. No more bytes
 * than these are left. */
static inline void each_call_fails(heddle_wire wire, int64_t most_after_error, int64_t most_unreleased)
{
    device_sim sim;
    int failed = 0;
    stay_on_one_core();
    heddle_comm *comm = alone_on(wire);
    HD_OK(device_sim_get(&sim));
    int64_t calls = sim.calls();
    HD_OK(goes_through(comm));
    calls = sim.calls() - calls;
    heddle_comm_destroy(comm);
    assert_int_equal(sim.device_bytes(), 0);
    for (int64_t n = 1; n <= calls; n++) { /* some are repeated, as often as an event is looked at */
        comm = alone_on(wire);
        const int64_t bytes = sim.device_bytes();
        sim.fail_at(n, 999);
        heddle_status st = goes_through(comm);
        sim.fail_at(0, 0);
        if (st != HEDDLE_OK) {
            assert_int_equal(st, HEDDLE_ERR_DEVICE);
            assert_true(says("device cuda:") && says("failed with error 999"));
            failed++;
        }
        heddle_comm_destroy(comm);
        const int64_t left = sim.device_bytes() - bytes;
        if (left > (st != HEDDLE_OK ? most_after_error : most_unreleased)) {
            fail_msg("call %d of %d: status %d, %lld bytes are left", (int)n, (int)calls, (int)st, (long long)left);
        }
    }
    assert_true(failed > 12); /* of some 20 by host, 60 by peer */
}

#endif
