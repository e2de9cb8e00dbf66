/* What heddle calibrate does before it times an operation: a block finds its weights out of the caches; and before it
 * times any: every rank has the memory for it. */
#include "case.h"

#include "runtime/verify/calibrate.h"

#include <string.h>
#include <sys/mman.h>
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

static void nobody_measures(const calibrate_sample *sample, int done, int of)
{
    (void)sample, (void)done, (void)of;
    fail_msg("an operation is timed");
}

HD_RANK_CASE(a_rank_without_memory_is_known_before, "3 threads")
{
    const int lacks = heddle_comm_rank(comm) == 1;
    const calibrate_options options = {
        .seconds = 1, .cache_bytes = lacks ? INT64_MAX / 2 : 1, .watch = nobody_measures};
    calibrate_result result;
    HD_FAILS(lacks ? HEDDLE_ERR_NOMEM : HEDDLE_ERR_PEER, calibrate_measure(&result, comm, &options));
    assert_non_null(strstr(heddle_last_error(),
                           lacks ? "no memory for what caches hold" : "another rank cannot measure: it says why"));
    calibrate_free(&result);
    return heddle_comm_barrier(comm); /* which nothing has spoilt */
}
