/* A lock and a condition that the race detector knows nothing of: it would take every change of hands for an order. */
#include "sim.h"

#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic uint32_t held; /* 0 free, 1 held, 2 held and somebody waits */
static _Atomic uint32_t changes;

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

void hd_sim_wait(void)
{
    uint32_t seen = atomic_load(&changes);
    hd_sim_unlock();
    sleep_on(&changes, seen);
    hd_sim_lock();
}

void hd_sim_changed(void)
{
    atomic_fetch_add(&changes, 1);
    syscall(SYS_futex, &changes, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
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
