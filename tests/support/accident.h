/* Ranks that are processes, one of which is killed or stops coming amid its calls, and what the others then say. */
#ifndef HD_TEST_ACCIDENT_H
#define HD_TEST_ACCIDENT_H

#include "case.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ACCIDENT_RANKS = 4, VICTIM = 2, CALLS_OF_VICTIM = 3 };

/* In memory that all ranks share. */
typedef struct accident {
    int kills;                         /* 1: the victim is killed amid its calls; 0: it returns after a few */
    volatile int seen[ACCIDENT_RANKS]; /* 1 + status of the call that failed; 0: none did */
    volatile char why[ACCIDENT_RANKS][256];
} accident;

static inline void *kill_soon(void *unused)
{
    const struct timespec while_running = {.tv_nsec = 30000000};
    (void)unused;
    nanosleep(&while_running, NULL);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* Before the calls: the victim has little time left. */
static inline void accident_begins(const accident *a, int rank)
{
    pthread_t killer;
    if (rank == VICTIM && a->kills) {
        pthread_create(&killer, NULL, kill_soon, NULL);
    }
}

/* 1: the rank makes its call number `call`, counted from 0. */
static inline int accident_lets(const accident *a, int rank, int call)
{
    return rank != VICTIM || a->kills || call < CALLS_OF_VICTIM;
}

static inline void accident_note(accident *a, int rank, heddle_status st)
{
    strncpy((char *)a->why[rank], heddle_last_error(), sizeof a->why[rank] - 1);
    a->seen[rank] = 1 + (int)st;
}

#endif
