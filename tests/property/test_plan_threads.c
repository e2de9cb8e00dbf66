/* Any number of threads finds the same plan on the same mesh, or refuses with the same sentence. */
#include "case.h"
#include "draw.h"
#include "plan_maker.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FOUND_BYTES = 1 << 16 };

/* What is found where the calling thread may run on these cores: the schedule's file, else the sentence. */
static void found_on(char *out, const cpu_set_t *cores, const heddle_model *model, int ranks,
                     const heddle_plan_options *o)
{
    char path[] = "/tmp/heddle-plan-XXXXXX";
    heddle_schedule *s = NULL;
    assert_int_equal(sched_setaffinity(0, sizeof *cores, cores), 0);
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
    static char one[FOUND_BYTES], more[FOUND_BYTES];
    heddle_machine *machine = NULL;
    cpu_set_t all, first;
    int refused = 0;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&first);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&first) == 0; i++) {
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &first);
        }
    }
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
        found_on(one, &first, model, ranks, &o);
        found_on(more, &all, model, ranks, &o);
        if (strcmp(one, more) != 0) {
            fail_msg("trial %d: {%s} on %d ranks by %s:\n%s\nand on %d cores\n%s", trial, dims, ranks, o.objective, one,
                     CPU_COUNT(&all), more);
        }
        refused += strchr(one, '\n') == NULL;
        heddle_model_destroy(model);
    }
    assert_true(refused > 0);
    heddle_machine_destroy(machine);
}
