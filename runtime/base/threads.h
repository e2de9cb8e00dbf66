/* Threads of one call: started and ended in it, so that nothing has to survive a fork. Starting one costs microseconds
 * against the milliseconds of a call that is worth dividing. */
#ifndef HD_THREADS_H
#define HD_THREADS_H

#include <heddle/status.h>
#include <stdint.h>

enum { HD_MAX_THREADS = 256 };

typedef heddle_status (*hd_thread_job)(void *ctx, int seat, int64_t job);

typedef struct hd_threads {
    const char *name; /* what debuggers and top show, 15 bytes at most */
    int count;        /* at most so many, the calling one included; less than 1 is 1 */
    int64_t jobs;
    hd_thread_job fn;
    void *ctx;
    int (*enter)(void); /* around each thread's share, NULL: nothing; what enter returns is leave's */
    void (*leave)(int entered);
} hd_threads;

/* Every job once, by any of the threads; who does a job must not change its result. Each thread has a seat of its own,
 * 0 .. count-1, the calling one seat 0. Threads
 * run where the calling one may. Where the system gives fewer threads the others do their work. After a job that fails
 * no more are begun; returns the status of the first that did, its sentence in this thread's heddle_last_error. */
heddle_status hd_threads_run(const hd_threads *threads);

#endif
