/* Who of the ranks of this host is still there: those that left, gave up or died are noticed, the others are told. */
#include "runtime/comm/ground/ground.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { QUIESCE_THREADS_S = 60, QUIESCE_PROCESSES_S = 2, QUIESCE_DEVICES_S = 1 };
enum { WHY_FREE, WHY_IN_WRITING, WHY_READABLE }; /* hd_control.why_state */

static int lock_released(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    return fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

/* Also where /proc does not say. */
static int is_process(int fd)
{
    char path[32], link[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return readlink(path, link, sizeof link - 1) < 0 || strstr(link, "pidfd") != NULL;
}

/* Has member `index` ended, as poll found it? A program that closes every descriptor (a daemon does) has closed this
 * one, too, and perhaps opened another file under its number: then the process is looked for by its own number, and
 * watched again. */
static int has_ended(const hd_group *group, struct pollfd *life, int index)
{
    if (life->fd < 0 || life->revents == 0) {
        return 0;
    }
    if ((life->revents & POLLNVAL) == 0 && is_process(life->fd)) {
        return (life->revents & POLLIN) != 0;
    }
    life->fd = hd_fd_aside((int)syscall(SYS_pidfd_open, group->pid[index], 0));
    return life->fd < 0 && errno == ESRCH;
}

/* A member that has ended without leaving. One that left is not watched any more. */
void hd_group_look_at_lives(hd_group *group)
{
    int ended = poll(group->life, (nfds_t)group->n, 0);
    for (int i = 0; i < group->n && group->dead == 0; i++) {
        int gone = ended > 0 && has_ended(group, &group->life[i], i);
        gone |= group->lock_fd[i] >= 0 && lock_released(group->lock_fd[i]);
        if (!gone) {
            continue;
        }
        if (!hd_group_left(group, i)) {
            group->dead = 1 + i;
        } else if (group->life[i].fd >= 0) {
            close(group->life[i].fd);
            group->life[i].fd = -1;
        }
    }
}

int hd_group_is_over(const hd_group *group, struct pollfd *life)
{
    if (atomic_load_explicit(&group->control[group->me]->alarm, memory_order_acquire) != 0) {
        return 1;
    }
    int ended = group->team == NULL ? poll(life, (nfds_t)group->n, 0) : 0, over = 0;
    for (int i = 0; i < group->n && group->team == NULL; i++) {
        int gone = ended > 0 && has_ended(group, &life[i], i);
        gone |= group->lock_fd[i] >= 0 && lock_released(group->lock_fd[i]);
        over |= gone && !hd_group_left(group, i);
    }
    return over;
}

heddle_status hd_group_copy_lives(struct pollfd **out, const hd_group *group)
{
    heddle_status st = hd_alloc((void **)out, (size_t)group->n, sizeof **out, "a watch");
    for (int i = 0; st == HEDDLE_OK && i < group->n; i++) {
        int fd = group->life != NULL ? group->life[i].fd : -1;
        (*out)[i] = (struct pollfd){.fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1, .events = POLLIN};
    }
    return st;
}

void hd_group_free_lives(struct pollfd *life, const hd_group *group)
{
    for (int i = 0; life != NULL && i < group->n; i++) {
        if (life[i].fd >= 0) {
            close(life[i].fd);
        }
    }
    hd_free(life);
}

/* Behind its name, which many sentences begin with. */
static const char *why_of(const hd_group *group, int index)
{
    char name[32];
    const char *why = group->control[index]->why;
    const int length = snprintf(name, sizeof name, "rank %d: ", group->rank[index]);
    return strncmp(why, name, (size_t)length) == 0 ? why + length : why;
}

static heddle_status say_why(const hd_group *group, int index)
{
    const hd_control *control = group->control[index];
    return atomic_load(&control->why_status) == HEDDLE_ERR_MISMATCH
               ? hd_fail(HEDDLE_ERR_MISMATCH, "%s", control->why)
               : hd_fail(HEDDLE_ERR_PEER, "rank %d gave up: %s", group->rank[index], why_of(group, index));
}

heddle_status hd_group_end(const hd_group *group)
{
    const int alarm = atomic_load_explicit(&group->control[group->me]->alarm, memory_order_acquire);
    if (alarm != 0) {
        return say_why(group, alarm - 1);
    }
    return hd_fail(HEDDLE_ERR_PEER, "rank %d died (process %ld has ended)", group->rank[group->dead - 1],
                   (long)group->pid[group->dead - 1]);
}

/* The alarm of a rank that gave up reaches the others one by one: a peer that has heard it may have closed before it is
 * heard here. So what is behind a close is looked for at every member, and at once. */
heddle_status hd_group_closed(hd_group *group, int index, const char *what)
{
    heddle_status st = HEDDLE_OK;
    group->checked_ns = 0;
    HD_TRY(hd_group_check(group));
    for (int i = 0; i < group->n; i++) {
        if (atomic_load(&group->control[i]->why_state) == WHY_READABLE) {
            return say_why(group, i);
        }
    }
    st = hd_fail(HEDDLE_ERR_PEER, "rank %d closed its communicator while rank %d waits for it (%s)", group->rank[index],
                 group->rank[group->me], what);
out:
    return st;
}

/* The first reason stays: later calls change nothing. */
void hd_group_raise(hd_group *group, heddle_status status, const char *why)
{
    hd_control *own = group->control[group->me];
    int is_free = WHY_FREE;
    if (!atomic_compare_exchange_strong(&own->why_state, &is_free, WHY_IN_WRITING)) {
        return;
    }
    hd_copy_text(own->why, sizeof own->why, why != NULL ? why : "no reason given");
    atomic_store(&own->why_status, status);
    atomic_store(&own->why_state, WHY_READABLE);
    for (int i = 0; i < group->n; i++) {
        int none = 0;
        hd_control *control = group->control[i];
        if (atomic_compare_exchange_strong(&control->alarm, &none, 1 + group->me)) {
            hd_group_wake(group, i); /* in any case: this may be another thread than the one that waits */
        }
    }
}

/* A copy in progress ends by itself, and nobody starts another one after the alarm. Only a process that was killed in
 * the middle of a copy leaves its mark standing, hence the limit there. */
static int quiesce(hd_group *group, size_t flag_at, int64_t limit_s)
{
    const int64_t limit_ns = hd_now_ns() + limit_s * 1000000000;
    int is_quiet = 1;
    for (int i = 0; i < group->n; i++) {
        const _Atomic int *flag = (const _Atomic int *)((const char *)group->control[i] + flag_at);
        while (i != group->me && atomic_load(flag) != 0 && !hd_group_left(group, i) && group->dead != 1 + i &&
               hd_now_ns() < limit_ns) {
            if (group->team == NULL) {
                hd_group_look_at_lives(group);
            }
            sched_yield();
        }
        is_quiet &= hd_now_ns() < limit_ns;
    }
    return is_quiet;
}

void hd_group_quiesce(hd_group *group)
{
    (void)quiesce(group, offsetof(hd_control, moving), group->team != NULL ? QUIESCE_THREADS_S : QUIESCE_PROCESSES_S);
}

/* Kernels end soon after the alarm, and the thread beside their rank's own finds that out. */
int hd_group_quiesce_devices(hd_group *group)
{
    return quiesce(group, offsetof(hd_control, on_device), QUIESCE_DEVICES_S);
}

int hd_group_await_unmapped(hd_group *group)
{
    return quiesce(group, offsetof(hd_control, maps), QUIESCE_DEVICES_S);
}
