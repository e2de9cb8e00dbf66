/* Waiting for ranks of this host: spin, yield, sleep.
 *
 * A poster stores its flag and then reads `sleeping`; a waiter stores `sleeping` and then reads the flag; both seq_cst,
 * so at least one of them sees the other. The waiter arms (sets `sleeping`, remembers the doorbell) in one turn of its
 * loop and sleeps in the next one, so that the flag is looked at in between.
 */
#include "runtime/comm/ground/ground.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 50000, YIELD_TURNS = 256, MEASURED_PAUSES = 256 };

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spinning pays only while every rank has a core of its own. A pause takes 10 to 60 ns, depending on the CPU. */
void hd_group_set_spins(hd_group *group)
{
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int i = 0; i < group->n; i++) {
        CPU_OR(&all, &all, &group->control[i]->cpus);
    }
    group->spins = 0;
    if (group->n > 1 && group->n <= CPU_COUNT(&all)) {
        int64_t start_ns = hd_now_ns();
        for (int i = 0; i < MEASURED_PAUSES; i++) {
            pause_cpu();
        }
        int64_t pause_ns = (hd_now_ns() - start_ns) / MEASURED_PAUSES + 1;
        group->spins = (int)(SPIN_NS / pause_ns) + 1;
    }
}

void hd_group_wake(hd_group *group, int index)
{
    hd_control *control = group->control[index];
    atomic_fetch_add(&control->doorbell, 1);
    syscall(SYS_futex, &control->doorbell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void hd_group_ring(hd_group *group, int index)
{
    if (atomic_load(&group->control[index]->sleeping) != 0) {
        hd_group_wake(group, index);
    }
}

int hd_group_looks(const hd_group *group, int round)
{
    return round > 0 && (round >= group->spins || (round & 255) == 255);
}

void hd_group_disarm(hd_group *group)
{
    if (group->armed) {
        group->armed = 0;
        atomic_store(&group->control[group->me]->sleeping, 0);
    }
}

void hd_group_relax(hd_group *group, int round)
{
    if (round == 0) {
        hd_group_disarm(group);
    }
    if (round < group->spins) {
        pause_cpu();
        return;
    }
    if (round < group->spins + YIELD_TURNS) {
        sched_yield();
        return;
    }
    hd_control *own = group->control[group->me];
    if (!group->armed) {
        group->armed = 1;
        group->armed_value = atomic_load(&own->doorbell);
        atomic_store(&own->sleeping, 1);
        return;
    }
    const struct timespec limit = {.tv_sec = 0, .tv_nsec = HD_SLEEP_NS};
    syscall(SYS_futex, &own->doorbell, FUTEX_WAIT, group->armed_value, &limit, NULL, 0);
    group->armed_value = atomic_load(&own->doorbell);
}
