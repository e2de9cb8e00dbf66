/* The handle of the ranks of one host: made, taken apart; and the team of ranks that are threads. */
#include "runtime/comm/ground/ground.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What threads share. Freed by the last one, because a rank may still post to another that has left already. */
struct hd_team {
    _Atomic int holders;
    int n;
    hd_control *control; /* one per rank */
    hd_block *orphans;   /* buffers and link inboxes of ranks that left */
    pthread_mutex_t lock;
};

/* Reads as 1 here and as 0 in a fork. Where the kernel cannot do that, only hd_group_is_fork tells the two apart. */
static heddle_status stay_awake(hd_group *g)
{
    char *page = mmap(NULL, HD_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return hd_fail(HEDDLE_ERR_NOMEM, "out of memory: %d bytes for the ranks of a host", HD_PAGE);
    }
    madvise(page, HD_PAGE, MADV_WIPEONFORK);
    *page = 1;
    g->awake = page;
    g->maker = getpid();
    return HEDDLE_OK;
}

int hd_group_is_fork(const hd_group *group)
{
    return group->maker != getpid();
}

heddle_status hd_group_disowned(const hd_group *group, const char *call)
{
    if (!hd_group_is_fork(group)) {
        return hd_fail(HEDDLE_ERR_ARG, "%s: the communicator was destroyed; only its buffers can still be freed", call);
    }
    return hd_fail(
        HEDDLE_ERR_ARG,
        "%s in process %d: the communicator belongs to process %d, which this one was forked from; a fork can "
        "only destroy it, which the other ranks do not see",
        call, (int)getpid(), (int)group->maker);
}

heddle_status hd_group_new(hd_group **out, int n, int me, const int *ranks)
{
    heddle_status st = HEDDLE_OK;
    void *p = NULL;
    HD_TRY(hd_alloc(&p, 1, sizeof(hd_group), "the ranks of a host"));
    hd_group *g = p;
    g->n = n;
    g->me = me;
    g->arena_fd = -1;
    atomic_init(&g->holders, 1);
    pthread_mutex_init(&g->lock, NULL);
    HD_TRY(stay_awake(g));
    HD_TRY(hd_alloc((void **)&g->rank, (size_t)n, sizeof(int), "the ranks of a host"));
    HD_TRY(hd_alloc((void **)&g->control, (size_t)n, sizeof(hd_control *), "the ranks of a host"));
    HD_TRY(hd_alloc((void **)&g->window, (size_t)n, sizeof(hd_window), "the ranks of a host"));
    HD_TRY(hd_alloc((void **)&g->pid, (size_t)n, sizeof(pid_t), "the ranks of a host"));
    HD_TRY(hd_alloc((void **)&g->suspect, (size_t)n, sizeof(hd_suspect), "the ranks of a host"));
    HD_TRY(hd_alloc((void **)&g->life, (size_t)n, sizeof(struct pollfd), "the ranks of a host"));
    for (int i = 0; i < n; i++) {
        g->rank[i] = ranks != NULL ? ranks[i] : i;
        g->life[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    }
    HD_TRY(hd_alloc((void **)&g->lock_fd, (size_t)n, sizeof(int), "the ranks of a host"));
    for (int i = 0; i < n; i++) {
        g->lock_fd[i] = -1;
    }
    *out = g;
out:
    if (st != HEDDLE_OK && p != NULL) {
        hd_group_free(p);
    }
    return st;
}

static void stop_watching(hd_group *g)
{
    for (int i = 0; i < g->n; i++) {
        if (g->life != NULL && g->life[i].fd >= 0) {
            close(g->life[i].fd);
            g->life[i].fd = -1;
        }
        if (g->lock_fd != NULL && g->lock_fd[i] >= 0) {
            close(g->lock_fd[i]);
            g->lock_fd[i] = -1;
        }
    }
}

/* The handle only; nobody is told. */
void hd_group_free(hd_group *g)
{
    if (g->team == NULL) {
        hd_arena_destroy(g);
        while (g->kept != NULL) {
            hd_block *next = g->kept->next;
            hd_free(g->kept);
            g->kept = next;
        }
    }
    stop_watching(g);
    if (g->awake != NULL) {
        munmap((void *)g->awake, HD_PAGE);
    }
    pthread_mutex_destroy(&g->lock);
    HD_FREE_ALL(g->lock_fd, g->suspect, g->life, g->pid, g->window, g->control, g->rank, g);
}

void hd_group_leave(hd_group *group)
{
    if (group->left) {
        return;
    }
    group->left = 1;
    *group->awake = 0;
    atomic_store(&group->control[group->me]->state, HD_RANK_LEFT);
    for (int i = 0; i < group->n; i++) {
        if (i != group->me) {
            hd_group_ring(group, i); /* somebody may wait for this rank in vain */
        }
    }
    stop_watching(group);
    if (group->team == NULL) {
        hd_arena_leave(group);
    }
}

void hd_group_destroy(hd_group *group)
{
    if (group == NULL) {
        return;
    }
    if (hd_group_is_fork(group)) { /* all of this is another process's; what threads share stays, their locks as well */
        hd_group_free(group);
        return;
    }
    hd_group_leave(group);
    hd_team *team = group->team;
    if (team != NULL) {
        hd_team_adopt(team, group->blocks);
        hd_team_adopt(team, group->kept);
        group->blocks = NULL;
        group->kept = NULL;
    }
    hd_group_free(group);
    if (team != NULL) {
        hd_team_release(team);
    }
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

heddle_status hd_team_create(hd_team **out, int n)
{
    heddle_status st = HEDDLE_OK;
    void *team = NULL;
    void *control = NULL;
    HD_TRY(hd_alloc(&team, 1, sizeof(hd_team), "the ranks of a process"));
    HD_TRY(hd_alloc_aligned(&control, 4096, (size_t)n * sizeof(hd_control), "the ranks of a process"));
    hd_team *t = team;
    t->n = n;
    t->control = control;
    atomic_init(&t->holders, 1);
    pthread_mutex_init(&t->lock, NULL);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    sched_getaffinity(0, sizeof cpus, &cpus);
    for (int i = 0; i < n; i++) {
        t->control[i].cpus = cpus;
    }
    *out = t;
out:
    if (st != HEDDLE_OK) {
        hd_free(team);
    }
    return st;
}

void hd_team_release(hd_team *team)
{
    if (team == NULL || atomic_fetch_sub(&team->holders, 1) != 1) {
        return;
    }
    while (team->orphans != NULL) {
        hd_block *next = team->orphans->next;
        hd_free(team->orphans->memory);
        hd_free(team->orphans);
        team->orphans = next;
    }
    pthread_mutex_destroy(&team->lock);
    hd_free(team->control);
    hd_free(team);
}

void hd_team_adopt(hd_team *team, hd_block *blocks)
{
    pthread_mutex_lock(&team->lock);
    while (blocks != NULL) {
        hd_block *next = blocks->next;
        blocks->next = team->orphans;
        team->orphans = blocks;
        blocks = next;
    }
    pthread_mutex_unlock(&team->lock);
}

heddle_status hd_group_of_team(hd_group **out, hd_team *team, int me)
{
    hd_group *g = NULL;
    heddle_status st = hd_group_new(&g, team->n, me, NULL);
    if (st != HEDDLE_OK) {
        return st;
    }
    for (int i = 0; i < team->n; i++) { /* `process` stays empty everywhere: they are one */
        g->control[i] = &team->control[i];
        g->pid[i] = getpid();
        g->window[i] = (hd_window){0, SIZE_MAX};
    }
    g->team = team;
    atomic_fetch_add(&team->holders, 1);
    hd_group_set_spins(g);
    *out = g;
    return HEDDLE_OK;
}
