/* Waiting for ranks of this host: spin, yield, sleep, and now and then a look around.
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

enum { SPIN_NS = 50000, YIELD_TURNS = 256, MEASURED_PAUSES = 256, INTERRUPT_NS = 10000000 };

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
        hd_group_move_on(group);
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

/* --- looking around ----------------------------------------------------------------------------------------------- */

int hd_group_left(const hd_group *group, int index)
{
    return atomic_load(&group->control[index]->state) == HD_RANK_LEFT;
}

heddle_status hd_group_check(hd_group *group)
{
    const int alarm = atomic_load_explicit(&group->control[group->me]->alarm, memory_order_acquire);
    if (alarm == 0 && group->team == NULL && group->dead == 0) {
        int64_t now_ns = hd_now_ns();
        if (now_ns - group->checked_ns >= HD_PEER_CHECK_NS) {
            group->checked_ns = now_ns;
            hd_group_look_at_lives(group);
        }
    }
    return alarm == 0 && group->dead == 0 ? HEDDLE_OK : hd_group_end(group);
}

heddle_status hd_group_look(hd_group *group, int64_t limit_ms, int64_t *deadline_ns, int *late)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_group_check(group));
    HD_TRY(group->lookout.look != NULL ? group->lookout.look(group->lookout.arg) : HEDDLE_OK);
    const int64_t now_ns = hd_now_ns();
    *deadline_ns = *deadline_ns != 0 ? *deadline_ns : now_ns + limit_ms * 1000000;
    *late = now_ns > *deadline_ns;
out:
    return st;
}

int hd_interrupted(hd_interrupt *interrupt)
{
    const int64_t now_ns = hd_now_ns();
    if (interrupt->ask == NULL || now_ns - interrupt->asked_ns < INTERRUPT_NS) {
        return 0;
    }
    interrupt->asked_ns = now_ns;
    return interrupt->ask(interrupt->arg) != 0;
}
