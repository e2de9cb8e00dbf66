/* Ranks that are threads, over a transport of callbacks, in every kind of reach. */
#ifndef CALLBACKS_RUN_H
#define CALLBACKS_RUN_H

#include "case.h"
#include "fake_transport.h"
#include "time_limit.h"

#include <heddle/heddle.h>
#include <time.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            print_error("%s:%d: rank %d: %s (%s)\n", __FILE__, __LINE__, rank, #condition, heddle_last_error());       \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

enum { PLAIN, FORCED, TWO_HOSTS, MODES };

static inline fake_run run_with(fake_world *world, int mode, int64_t deadline_ms)
{
    fake_run run = {.world = world};
    heddle_comm_options_init(&run.options);
    run.options.bind = HEDDLE_BIND_NONE;
    run.options.arena_bytes = 64 << 20;
    run.options.deadline_ms = deadline_ms;
    run.options.force_messages = mode == FORCED;
    run.options.pretend_hosts = mode == TWO_HOSTS ? 2 : 0;
    return run;
}

/* On a world of its own: each rank's `fn` finds what it wants, and no transport is left. */
static inline void run_ranks(int size, int mode, int64_t deadline_ms, fake_rank_main fn, void *arg)
{
    fake_world *world = fake_world_create(size);
    fake_run run = run_with(world, mode, deadline_ms);
    run.fn = fn;
    run.arg = arg;
    assert_int_equal(fake_run_ranks(&run, size), 0);
    assert_int_equal(fake_alive(world), 0);
    fake_world_destroy(world);
}

static inline int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

#endif
