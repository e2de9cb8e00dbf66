/* Threads of one call: every job once, on seats of their own; fewer where the system gives no more; the first failure.
 */
#include "case.h"

#include "runtime/base/base.h"
#include "runtime/base/threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { JOBS = 1000, SEATS = 8 };

static int threads_there_are = -1; /* -1: as many as wanted */

/* The system's, until it has no more. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*fn)(void *), void *arg)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *symbol = dlsym(RTLD_NEXT, "pthread_create");
    memcpy(&real, &symbol, sizeof real);
    if (threads_there_are == 0) {
        return EAGAIN;
    }
    threads_there_are -= threads_there_are > 0;
    return real(thread, attributes, fn, arg);
}

typedef struct tally {
    _Atomic int done[JOBS];
    _Atomic int busy[SEATS]; /* a seat is one thread's */
    _Atomic int shared;      /* a seat was two threads' at once */
    _Atomic int others;      /* jobs done on other seats than 0 */
    _Atomic int entered, left, unnamed;
    pthread_t caller;
    int64_t fails_at;
} tally;

static tally *counted;

static int enter(void)
{
    return 7 + atomic_fetch_add(&counted->entered, 1) * 0;
}

static void leave(int entered)
{
    atomic_fetch_add(&counted->left, entered == 7);
}

static heddle_status job(void *ctx, int seat, int64_t i)
{
    tally *t = ctx;
    char name[16] = "";
    atomic_fetch_add(&t->shared, atomic_exchange(&t->busy[seat], 1));
    atomic_fetch_add(&t->done[i], 1);
    atomic_fetch_add(&t->others, seat != 0);
    pthread_getname_np(pthread_self(), name, sizeof name);
    atomic_fetch_add(&t->unnamed, seat != 0 && strcmp(name, "hd-test") != 0);
    atomic_fetch_add(&t->shared, (seat == 0) != (pthread_equal(pthread_self(), t->caller) != 0));
    if (seat != 0 || i % 64 == 0) {
        sched_yield();
    }
    atomic_store(&t->busy[seat], 0);
    return i == t->fails_at ? hd_fail(HEDDLE_ERR_NOMEM, "job %lld has no memory", (long long)i) : HEDDLE_OK;
}

static heddle_status run(tally *t, int count, int64_t jobs)
{
    const hd_threads threads = {
        .name = "hd-test", .count = count, .jobs = jobs, .fn = job, .ctx = t, .enter = enter, .leave = leave};
    counted = t;
    t->caller = pthread_self();
    return hd_threads_run(&threads);
}

HD_CASE(every_job_once)
{
    static const int counts[] = {-1, 0, 1, 2, SEATS};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (int64_t jobs = 0; jobs <= JOBS; jobs = jobs * 10 + 1) {
            tally t = {.fails_at = -1};
            int64_t most = counts[c] < 1 ? 1 : counts[c] < jobs ? counts[c] : jobs;
            HD_OK(run(&t, counts[c], jobs));
            for (int64_t i = 0; i < JOBS; i++) {
                assert_int_equal(t.done[i], i < jobs);
            }
            assert_int_equal(t.shared, 0);
            assert_int_equal(t.unnamed, 0);
            assert_int_equal(t.entered, most < 1 ? 1 : most);
            assert_int_equal(t.left, t.entered);
        }
    }
}

HD_CASE(fewer_threads_do_the_work)
{
    for (int there = 0; there < SEATS; there++) {
        tally t = {.fails_at = -1};
        threads_there_are = there;
        HD_OK(run(&t, SEATS, JOBS));
        for (int i = 0; i < JOBS; i++) {
            assert_int_equal(t.done[i], 1);
        }
        assert_int_equal(t.entered, there + 1 < SEATS ? there + 1 : SEATS);
        assert_true(there > 0 || t.others == 0);
    }
}

HD_CASE(the_first_failure_ends_it)
{
    for (int count = 1; count <= SEATS; count *= 2) {
        tally t = {.fails_at = 17};
        int begun = 0;
        HD_FAILS(HEDDLE_ERR_NOMEM, run(&t, count, JOBS));
        assert_string_equal(heddle_last_error(), "job 17 has no memory");
        for (int i = 0; i < JOBS; i++) {
            begun += t.done[i];
        }
        assert_true(count > 1 || begun == 18);
        assert_int_equal(t.left, t.entered);
    }
}
