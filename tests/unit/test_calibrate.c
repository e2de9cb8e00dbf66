/* What heddle calibrate does before it times an operation: a block finds its weights out of the caches; before it times
 * any: every rank has the memory for it; and what it makes of times: those without a core, turns that do not agree. */
#include "case.h"

#include "runtime/verify/calibrate.h"
#include "runtime/verify/samples.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGES = 40 };

static int is_block(const char *kind)
{
    static const char *const blocks[] = {"mlp", "attention", "cross", "linear"};
    int found = 0;
    for (int i = 0; i < 4; i++) {
        found |= strcmp(kind, blocks[i]) == 0;
    }
    return found;
}

/* Pages that somebody has touched. */
static int touched(void *pages, size_t page)
{
    unsigned char is_there[PAGES];
    int count = 0;
    assert_int_equal(mincore(pages, PAGES * page, is_there), 0);
    for (int i = 0; i < PAGES; i++) {
        count += is_there[i] & 1;
    }
    return count;
}

/* The last page is read in part, and what is behind that is not. */
static void meets(calibrate_run *run)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *others = mmap(NULL, PAGES * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(others != MAP_FAILED);
    assert_int_equal(madvise(others, PAGES * page, MADV_NOHUGEPAGE), 0);
    run->others = others;
    run->others_bytes = (int64_t)((PAGES - 2) * page + 1);
    HD_OK(run->operation->open(run));
    assert_int_equal(touched(others, page), 0);
    HD_OK(run->operation->before(run));
    assert_int_equal(touched(others, page), PAGES - 1);
    run->operation->close(run);
    munmap(others, PAGES * page);
}

HD_CASE(weights_of_blocks_are_out_of_the_caches)
{
    heddle_comm *comm = NULL;
    int blocks = 0, warm = 0;
    HD_OK(heddle_comm_open(&comm, "self", NULL));
    for (int i = 0;; i++) {
        calibrate_sample sample = {.times = 0};
        calibrate_run run = {.comm = comm, .sample = &sample, .is_rough = 1};
        if (!calibrate_work_at(&run, i)) {
            break;
        }
        assert_int_equal(run.operation->before != NULL, is_block(sample.kind));
        blocks += is_block(sample.kind);
        warm += !is_block(sample.kind);
        if (is_block(sample.kind)) {
            meets(&run);
        }
    }
    assert_true(blocks > warm && warm > 1);
    heddle_comm_destroy(comm);
}

/* Linear attention's first product on a device is of the arrays' type; on a CPU it costs what f32 costs. */
HD_CASE(terms_are_of_the_arrays_type)
{
    calibrate_there there = {0};
    int on_cpu = 0, on_device = 0;
    for (int is_there = 0; is_there < 2; is_there++) {
        calibrate_sample sample = {.times = 0};
        for (int i = 0;; i++) {
            sample = (calibrate_sample){.times = 0};
            calibrate_run run = {.sample = &sample, .there = is_there ? &there : NULL};
            if (!calibrate_work_at(&run, i)) {
                break;
            }
            for (int t = 0; t < sample.about.nterms; t++) {
                const heddle_measured_term *term = &sample.about.term[t];
                *(is_there ? &on_device : &on_cpu) += term->work != HEDDLE_WORK_MEMORY && term->dtype != run.dtype;
            }
        }
    }
    assert_int_equal(on_device, 0);
    assert_int_equal(on_cpu, 4); /* the sizes of linear attention in bf16 */
}

/* What ranks exchange was written just now. */
HD_CASE(what_moves_is_in_the_caches)
{
    calibrate_sample sample = {.times = 0};
    calibrate_run run = {.sample = &sample};
    int count = 0;
    for (; calibrate_exchange_at(&run, 2, count); count++) {
        assert_null(run.operation->before);
    }
    assert_true(count > 1);
}

/* --- times -------------------------------------------------------------------------------------------------------- */

enum { AWAY_MS = 40, AWAY_EVERY = 3, CHOOSE = 2 /* the first choose how many there are */ };

static const double WORK_MS = 0.3; /* several are timed at once of what is much shorter */

static int calls, undisturbed; /* of those that count */

static heddle_status open_nothing(calibrate_run *run)
{
    (void)run;
    return HEDDLE_OK;
}

static void close_nothing(calibrate_run *run)
{
    (void)run;
}

static double core_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = AWAY_MS * 1000000L}, NULL);
}

/* Every third time the core is somebody else's for a while. */
static heddle_status work_now_and_then(calibrate_run *run)
{
    const double start = samples_now_ms(), begun = core_ms();
    double core = 0;
    (void)run;
    while (core < WORK_MS) {
        core = core_ms() - begun;
    }
    const int had_core = core >= 0.99 * (samples_now_ms() - start);
    if (++calls % AWAY_EVERY == 0) {
        nap();
    } else {
        undisturbed += had_core && calls > CHOOSE;
    }
    return HEDDLE_OK;
}

static heddle_status wait_always(calibrate_run *run)
{
    (void)run;
    nap();
    return HEDDLE_OK;
}

/* One turn, however long that takes. */
static calibrate_sample one_turn(heddle_comm *comm, heddle_status (*once)(calibrate_run *run), int ranks,
                                 int shares_core)
{
    const calibrate_operation operation = {open_nothing, once, close_nothing, open_nothing};
    calibrate_sample sample = {.about = {.ranks = ranks}};
    calibrate_run run = {.operation = &operation, .comm = comm, .sample = &sample, .shares_core = shares_core};
    calls = undisturbed = 0;
    HD_OK(calibrate_time_operation(&run, 1e6));
    assert_int_equal(sample.turns, 1);
    return sample;
}

HD_CASE(work_that_had_no_core_is_timed_again)
{
    heddle_comm *comm = NULL;
    HD_OK(heddle_comm_open(&comm, "self", NULL));
    calibrate_sample sample = one_turn(comm, work_now_and_then, 0, 0);
    for (int attempt = 0; attempt < 200 && undisturbed < 2; attempt++) { /* other programs may have all cores */
        sample = one_turn(comm, work_now_and_then, 0, 0);
    }
    assert_true(calls > CALIBRATE_TURN_TIMES + CHOOSE && undisturbed > 1);
    assert_true(sample.times <= CALIBRATE_TURN_TIMES && sample.times <= calls - CHOOSE - calls / AWAY_EVERY);
    assert_true(sample.times == CALIBRATE_TURN_TIMES || sample.times >= undisturbed - 1); /* held up at its very end */
    assert_true(sample.turn_ms[0] >= WORK_MS && sample.turn_ms[0] < (double)AWAY_MS / AWAY_EVERY);
    assert_true(sample.wall_ms > sample.core_ms + AWAY_MS); /* and it is known */
    sample = one_turn(comm, wait_always, 0, 0);
    assert_int_equal(sample.times, 1); /* better than none */
    assert_true(sample.turn_ms[0] >= AWAY_MS);
    for (int is_exchange = 0; is_exchange < 2; is_exchange++) { /* where a rank may wait */
        sample = one_turn(comm, wait_always, is_exchange, !is_exchange);
        assert_int_equal(sample.times, CALIBRATE_TURN_TIMES);
        assert_true(sample.turn_ms[0] >= AWAY_MS);
    }
    heddle_comm_destroy(comm);
}

/* The rank that is slow at the time is waited for, whoever it is. */
static heddle_status slow_in_turn(calibrate_run *run)
{
    const double begun = core_ms(), wanted = heddle_comm_rank(run->comm) == run->sample->turns % 2 ? 20 : 1;
    while (core_ms() - begun < wanted) {
    }
    return HEDDLE_OK;
}

HD_RANK_CASE(a_turn_is_as_slow_as_its_slowest_rank, "2 threads")
{
    const calibrate_operation operation = {open_nothing, slow_in_turn, close_nothing, open_nothing};
    calibrate_sample sample = {.times = 0};
    calibrate_run run = {.operation = &operation, .comm = comm, .sample = &sample};
    for (int turn = 0; turn < 2; turn++) {
        HD_OK(calibrate_time_operation(&run, 1));
        assert_true(sample.turn_ms[turn] >= 20);
    }
    return HEDDLE_OK;
}

/* Rank 0 is slow in the first turns, rank 1 in the last. */
HD_RANK_CASE(who_waits_for_nobody_is_faster, "2 threads")
{
    double waiting = 0;
    calibrate_sample sample[2] = {{.turns = 8}, {.about = {.ranks = 2}}}; /* exchanges end together */
    for (int turn = 0; turn < 8; turn++) {
        const int is_slow = heddle_comm_rank(comm) == 0 ? turn < 3 : turn >= 5;
        sample[0].own_ms[turn] = is_slow ? 12 : 10;
        sample[0].turn_ms[turn] = turn < 3 || turn >= 5 ? 12 : 10;
    }
    calibrate_conclude(&sample[0]);
    const heddle_status st = calibrate_waiting(&waiting, sample, 2, comm);
    assert_true(waiting > 1.14 && waiting < 1.15); /* 12 where 10.5 is the mean of the middle four */
    return st;
}

HD_CASE(turns_that_disagree_are_known)
{
    const double quiet[] = {10, 10.1, 30, 10.2, 10, 10.1, 10.3, 10.2}, drifts[] = {10, 10, 10, 10, 12, 12, 12, 12};
    calibrate_sample sample = {.turns = 8};
    memcpy(sample.turn_ms, quiet, sizeof quiet);
    calibrate_conclude(&sample);
    assert_true(sample.agrees && sample.about.spread < 0.05); /* one turn was spoilt */
    assert_true(sample.about.seconds > 10e-3 && sample.about.seconds < 10.3e-3);
    memcpy(sample.turn_ms, drifts, sizeof drifts);
    calibrate_conclude(&sample);
    assert_true(!sample.agrees && sample.about.spread > 0.15);
    for (int is_noisy = 0; is_noisy < 2; is_noisy++) { /* of one turn its times, which it has sorted */
        sample = (calibrate_sample){.turns = 1, .times = 4, .turn_ms = {12}, .ms = {2, 12, is_noisy ? 15 : 12, 40}};
        calibrate_conclude(&sample);
        assert_true(is_noisy ? fabs(sample.about.spread - 0.25) < 1e-9 : sample.about.spread == 0);
    }
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void nobody_measures(const calibrate_sample *sample, int done, int of)
{
    (void)sample, (void)done, (void)of;
    fail_msg("an operation is timed");
}

HD_RANK_CASE(a_rank_without_memory_is_known_before, "3 threads")
{
    const int lacks = heddle_comm_rank(comm) == 1;
    const calibrate_options options = {
        .seconds = 3, .cache_bytes = lacks ? INT64_MAX / 2 : 1, .watch = nobody_measures};
    calibrate_result result;
    HD_FAILS(lacks ? HEDDLE_ERR_NOMEM : HEDDLE_ERR_PEER, calibrate_measure(&result, comm, &options));
    assert_non_null(strstr(heddle_last_error(),
                           lacks ? "no memory for what caches hold" : "another rank cannot measure: it says why"));
    calibrate_free(&result);
    return heddle_comm_barrier(comm); /* which nothing has spoilt */
}

/* A short run goes through no more than 16 MiB between a block's times, whatever caches hold. */
HD_RANK_CASE(a_short_run_needs_no_memory_for_large_caches, "1 threads")
{
    const calibrate_options options = {.seconds = 0.1, .cache_bytes = INT64_MAX / 2};
    calibrate_result result;
    const heddle_status st = calibrate_measure(&result, comm, &options);
    calibrate_free(&result);
    return st;
}
