/* Any number of threads finds the same plan on the same mesh, or refuses with the same sentence; also where some meshes
 * are too much work, or are until a better plan is known. The test says how many cores there are, and lets threads wait
 * in front of what they share (--wrap): so one comes before the other on a single core, too. */
#include "case.h"
#include "draw.h"
#include "plan_maker.h"

static double most_steps;
#define HD_STEPS_MAX most_steps
#include "../../planner/search/plan.c" /* in the library's place */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FOUND_BYTES = 1 << 16, MANY = 4, MOST_WAIT_NS = 40000 };

static int cores = 1;

/* Every search of a mesh, in the order in which they ended. */
typedef struct searched {
    heddle_mesh mesh;
    heddle_status st;
    int found;
} searched;

enum { SEARCHES_MOST = 1 << 14 };
static searched searches[SEARCHES_MOST];
static atomic_int nsearches;

heddle_status __real_hd_search_run(hd_walk *out, int *found, hd_search *s, const hd_cost *bound);
heddle_status __wrap_hd_search_run(hd_walk *out, int *found, hd_search *s, const hd_cost *bound);
heddle_status __wrap_hd_search_run(hd_walk *out, int *found, hd_search *s, const hd_cost *bound)
{
    const heddle_status st = __real_hd_search_run(out, found, s, bound);
    const int at = atomic_fetch_add(&nsearches, 1);
    if (at < SEARCHES_MOST) {
        searches[at] = (searched){s->mesh, st, st == HEDDLE_OK && *found};
    }
    return st;
}

static int is_same_mesh(const heddle_mesh *a, const heddle_mesh *b)
{
    int same = a->naxes == b->naxes;
    for (int i = 0; same && i < a->naxes; i++) {
        same = a->axis[i].size == b->axis[i].size;
    }
    return same;
}

/* A mesh is searched once. One that was too much work is searched again where a better plan was found since, and else
 * costs nothing more. The last one or two searches write the best mesh down. Returns how many were searched again. */
static int check_searches(const char *what)
{
    int last = nsearches, again = 0;
    assert_in_range(last, 0, SEARCHES_MOST);
    if (last > 0 && searches[last - 1].found) {
        const heddle_mesh *best = &searches[--last].mesh;
        last -=
            last > 0 && searches[last - 1].st == HEDDLE_ERR_UNSUPPORTED && is_same_mesh(&searches[last - 1].mesh, best);
    }
    for (int i = 0; i < last; i++) {
        int better = 0, next = i + 1;
        for (; next < last && !is_same_mesh(&searches[next].mesh, &searches[i].mesh); next++) {
            better = better || searches[next].found;
        }
        if (next < last && (searches[i].st != HEDDLE_ERR_UNSUPPORTED || !better)) {
            fail_msg("%s: search %d of %d is of the mesh of search %d, which was %s", what, next, last, i,
                     searches[i].st != HEDDLE_ERR_UNSUPPORTED ? "not refused" : "refused below the same plan");
        }
        again += next < last;
    }
    return again;
}

int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *out);
int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *out)
{
    assert_int_equal(pid, 0);
    assert_int_equal(bytes, sizeof *out);
    CPU_ZERO(out);
    for (int i = 0; i < cores; i++) {
        CPU_SET(i, out);
    }
    return 0;
}

int __real_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock)
{
    static _Atomic uint64_t turns;
    random_source of = {turns++};
    if (cores > 1 && random_between(&of, 0, 2) == 0) {
        nanosleep(&(struct timespec){.tv_nsec = random_between(&of, 0, MOST_WAIT_NS)}, NULL);
    }
    return __real_pthread_mutex_lock(lock);
}

/* What is found on so many cores: the schedule's file, else the sentence. */
static void found_on(char *out, int there, const heddle_model *model, int ranks, const heddle_plan_options *o)
{
    char path[] = "/tmp/heddle-plan-XXXXXX";
    heddle_schedule *s = NULL;
    cores = there;
    atomic_store(&nsearches, 0);
    const heddle_status st = heddle_plan_ranks(&s, model, ranks, o);
    if (st != HEDDLE_OK) {
        snprintf(out, FOUND_BYTES, "%d %s", (int)st, heddle_last_error());
        return;
    }
    const heddle_schedule_info info = info_of(s);
    close(mkstemp(path));
    HD_OK(heddle_schedule_save(s, path));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    const int used = snprintf(out, FOUND_BYTES, "%.17g %.17g %.17g\n", info.value, info.lower_bound, info.runner_up);
    const size_t got = fread(out + used, 1, (size_t)(FOUND_BYTES - 1 - used), file);
    assert_in_range(got, 1, FOUND_BYTES - 2 - used);
    out[(size_t)used + got] = '\0';
    fclose(file);
    unlink(path);
    heddle_schedule_destroy(s);
}

HD_CASE(threads_find_what_one_finds)
{
    static const char *const orders[] = {"s-t-h-", "t-s-", "h-s-", "ts", "T-"};
    static const char *const objectives[] = {"time", "bytes", "gpu-seconds", "memory"};
    static char one[FOUND_BYTES], more[FOUND_BYTES], any[FOUND_BYTES];
    heddle_machine *machine = NULL;
    int refused = 0, missed = 0, again = 0;
    HD_OK(heddle_machine_load(&machine, "8x8xh100-nvlink+ib400"));
    const int last = hd_rounds(10); /* that one is refused */
    for (int trial = 0; trial <= last; trial++) {
        char dims[256];
        heddle_plan_options o;
        const int ranks = 24 << below(2); /* of many meshes, so that threads search at the same time */
        snprintf(dims, sizeof dims, "b: {size: %d, role: batch}, t: %d, h: %d, s: %d, c: {size: 64, role: channel}",
                 1 + below(3), 1 + below(12), 1 + below(8), 1 + below(100));
        heddle_model *model =
            make_model("bf16", dims, "b, t, h, s, c", orders[below(5)], 1 + below(4), 4 << below(3), "");
        heddle_plan_options_init(&o);
        o.methods = "";
        o.epilogue = below(2) ? "any" : NULL;
        o.machine = machine;
        o.objective = objectives[trial % 4];
        o.memory_bytes = trial == last ? 1 : below(3) == 0 ? 1 + below(1 << 20) : 0;
        most_steps = 4e9;
        found_on(any, 1, model, ranks, &o);
        most_steps = trial % 3 == 0 ? 4e9 : (double)(1 << (8 + below(14)));
        found_on(one, 1, model, ranks, &o);
        again += check_searches(dims);
        found_on(more, MANY, model, ranks, &o);
        if (strcmp(one, more) != 0) {
            fail_msg("trial %d: {%s} on %d ranks by %s, %g steps:\n%s\nand on %d cores\n%s", trial, dims, ranks,
                     o.objective, most_steps, one, MANY, more);
        }
        refused += strchr(one, '\n') == NULL;
        missed += strchr(one, '\n') != NULL && strcmp(one, any) != 0;
        heddle_model_destroy(model);
    }
    print_message("%d refused, %d of other meshes for want of steps, %d meshes searched again\n", refused, missed,
                  again);
    assert_true(refused > 0);
    heddle_machine_destroy(machine);
}

/* Whether a mesh is too much work hangs on the best plan that is known by then: which that is threads decide, but not
 * what is found in the end. */
HD_CASE(refusals_do_not_hang_on_who_came_first)
{
    static char one[FOUND_BYTES], more[FOUND_BYTES], any[FOUND_BYTES];
    int refused = 0;
    heddle_machine *machine = NULL;
    heddle_plan_options o;
    heddle_model *model =
        make_model("bf16", "b: {size: 2, role: batch}, t: 6, h: 6, s: 48, c: {size: 64, role: channel}",
                   "b, t, h, s, c", "T-", 1, 4, "");
    HD_OK(heddle_machine_load(&machine, "8x8xh100-nvlink+ib400"));
    heddle_plan_options_init(&o);
    o.methods = "";
    o.machine = machine;
    o.epilogue = "any";
    most_steps = 4e9;
    found_on(any, 1, model, 24, &o);
    for (int i = 0; i < 60; i++) {
        most_steps = 128 << i % 2;
        found_on(one, 1, model, 24, &o);
        found_on(more, MANY, model, 24, &o);
        assert_string_equal(one, more);
        refused += strcmp(one, any) != 0;
    }
    assert_true(refused > 0);
    heddle_model_destroy(model);
    heddle_machine_destroy(machine);
}
