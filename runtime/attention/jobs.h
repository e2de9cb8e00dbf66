/* Work of one call divided over threads that are started and ended in it. */
#ifndef HD_JOBS_H
#define HD_JOBS_H

#include <stdint.h>

enum { HD_MAX_THREADS = 256 };

typedef void (*hd_job_fn)(void *ctx, int thread, int64_t job);

/* Every job once, by any of `threads` threads; the calling one is thread 0 and takes part. Who does a job must not
 * change its result. Where the system gives fewer threads the others do their work. */
void hd_run_jobs(int threads, int64_t jobs, hd_job_fn fn, void *ctx);

#endif
