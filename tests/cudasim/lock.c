/* A lock and a condition that the race detector knows nothing of: it would take every change of hands for an order. */
#include "sim.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Atomic uint32_t held; /* 0 free, 1 held, 2 held and somebody waits */
static hd_sim_place all;      /* where everybody waits but streams that have nothing to do */

static void sleep_on(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

void hd_sim_lock(void)
{
    uint32_t free = 0;
    if (atomic_compare_exchange_strong(&held, &free, 1)) {
        return;
    }
    while (atomic_exchange(&held, 2) != 0) {
        sleep_on(&held, 2);
    }
}

void hd_sim_unlock(void)
{
    if (atomic_exchange(&held, 0) == 2) {
        syscall(SYS_futex, &held, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

void hd_sim_wait_at(hd_sim_place *place)
{
    const uint32_t seen = atomic_load(&place->calls);
    place->waiting++;
    hd_sim_unlock();
    sleep_on(&place->calls, seen);
    hd_sim_lock();
    place->waiting--;
}

void hd_sim_call(hd_sim_place *place)
{
    atomic_fetch_add(&place->calls, 1);
    if (place->waiting > 0) {
        syscall(SYS_futex, &place->calls, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    }
}

void hd_sim_wait(void)
{
    hd_sim_wait_at(&all);
}

void hd_sim_changed(void)
{
    hd_sim_call(&all);
}

void hd_sim_rest(unsigned turns)
{
    enum { YIELDS = 4, MOST = 10, STEP_NS = 20000 };
    if (turns < YIELDS) {
        sched_yield();
        return;
    }
    const struct timespec some = {.tv_nsec = STEP_NS * (turns - YIELDS < MOST ? 1 + turns - YIELDS : MOST)};
    syscall(SYS_nanosleep, &some, NULL); /* ThreadSanitizer looks at every fibre after one of the C library's */
}

uint64_t hd_sim_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#ifdef HD_SIM_TSAN
void __tsan_acquire(void *edge);
void __tsan_release(void *edge);

void hd_sim_release(void *edge)
{
    __tsan_release(edge);
}

void hd_sim_acquire(void *edge)
{
    __tsan_acquire(edge);
}
#else
void hd_sim_release(void *edge)
{
    (void)edge;
}

void hd_sim_acquire(void *edge)
{
    (void)edge;
}
#endif

void hd_sim_die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("cudasim: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}
