/* How long plans take: the planner's aims beside what this machine needs, the fastest of a few tries and their median.
 * A plan that is refused has its reason in its row. Arguments: presets and model files to plan on 2 to 64 ranks each;
 * none: all presets.
 */
#include "planner/model/preset.h"

#include <heddle/planner.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRIES_MAX = 16, REASON_BYTES = 512 };

static void must(heddle_status st)
{
    if (st != HEDDLE_OK) {
        fprintf(stderr, "%s\n", heddle_last_error());
        exit(1);
    }
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t); /* as long as a user waits: meshes are searched by several threads */
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Stages "a-b-c": attention over a dim or, '-', an MLP. */
static heddle_model *make(const char *dims, const char *tensor, const char *order, int repeat)
{
    char text[8192];
    heddle_model *model = NULL;
    int n =
        snprintf(text, sizeof text, "model: bench\ndtype: bf16\ndims: {%s}\ntensors: {x: [%s]}\nrepeat: %d\nstages:\n",
                 dims, tensor, repeat);
    for (int i = 0; order[i] != '\0'; i++) {
        if (order[i] == '-') {
            n += snprintf(text + n, sizeof text - (size_t)n, "  - {name: m%d, kind: mlp, ratio: 4}\n", i);
        } else {
            n += snprintf(text + n, sizeof text - (size_t)n, "  - {name: a%d, kind: attention, over: %c, heads: 16}\n",
                          i, order[i]);
        }
    }
    must(heddle_model_parse(&model, text, (size_t)n, "bench"));
    return model;
}

typedef struct timing {
    double least, median;
    char refused[REASON_BYTES];
} timing;

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* mesh NULL: all of `ranks`. machine NULL: by bytes. */
static timing plan_ms(const heddle_model *model, const char *mesh_text, int ranks, const char *machine_name, int tries)
{
    heddle_plan_options o;
    heddle_machine *machine = NULL;
    heddle_mesh mesh;
    double ms[TRIES_MAX];
    timing t = {0, 0, ""};
    heddle_plan_options_init(&o);
    o.methods = "";
    o.epilogue = "any";
    if (machine_name != NULL) {
        must(heddle_machine_load(&machine, machine_name));
        o.machine = machine;
    }
    if (mesh_text != NULL) {
        must(heddle_mesh_parse(&mesh, mesh_text));
    }
    for (int i = 0; i < tries; i++) {
        heddle_schedule *s = NULL;
        double start = now_ms();
        heddle_status st =
            mesh_text != NULL ? heddle_plan(&s, model, &mesh, &o) : heddle_plan_ranks(&s, model, ranks, &o);
        ms[i] = now_ms() - start;
        if (st != HEDDLE_OK) {
            snprintf(t.refused, sizeof t.refused, "%s", heddle_last_error());
        }
        heddle_schedule_destroy(s);
    }
    qsort(ms, (size_t)tries, sizeof ms[0], by_size);
    t.least = ms[0];
    t.median = ms[tries / 2];
    heddle_machine_destroy(machine);
    return t;
}

/* One way to plan a model; mesh NULL: of all meshes of `ranks`. */
typedef struct question {
    const char *what;
    double aim_ms;
    const char *mesh;
    int ranks, tries;
    const char *machine;
} question;

static void answer(const question *q, const heddle_model *model)
{
    for (int by_time = 0; by_time < 2; by_time++) {
        const timing t = plan_ms(model, q->mesh, q->ranks, by_time ? q->machine : NULL, q->tries);
        printf("%-52s %-5s %8.0f %10.2f %10.2f  %s%s\n", q->what, by_time ? "time" : "bytes", q->aim_ms, t.least,
               t.median, t.least <= q->aim_ms ? "" : "MISSED ", t.refused);
        fflush(stdout);
    }
}

/* On 2 to 64 ranks, one plan each. */
static double sweep(const char *name, int by_time)
{
    heddle_model *model = NULL;
    double sum = 0;
    must(heddle_model_load(&model, name));
    for (int n = 2; n <= 64; n++) {
        const timing t = plan_ms(model, NULL, n, by_time ? "8x8xh100-nvlink+ib400" : NULL, 1);
        sum += t.least;
        if (t.refused[0] != '\0') {
            printf("  %s on %d ranks: %s\n", name, n, t.refused);
        }
    }
    heddle_model_destroy(model);
    return sum;
}

static void sweeps(int named, char **names)
{
    char what[64];
    for (int by_time = 0; by_time < 2; by_time++) {
        double sum = 0;
        int count = 0;
        for (; named > 0 ? count < named : hd_model_presets[count].name != NULL; count++) {
            const char *name = named > 0 ? names[count] : hd_model_presets[count].name;
            const double own = sweep(name, by_time);
            sum += own;
            if (named > 0) {
                printf("  %-50s %-5s %8s %10.1f\n", name, by_time ? "time" : "bytes", "", own);
            }
        }
        snprintf(what, sizeof what, "%d models, n = 2 .. 64", count);
        printf("%-52s %-5s %8d %10.1f %10s  %s\n", what, by_time ? "time" : "bytes", 5000, sum, "",
               sum <= 5000 ? "" : "MISSED");
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    const char *big = "8192x8xh100-nvlink+ib400";
    heddle_model *video =
        make("b: {size: 1, role: batch}, t: 60, h: 45, w: 80, d: 4, e: 4, c: {size: 1152, role: channel}",
             "b, t, h, w, d, e, c", "t-h-", 32);
    heddle_model *five = make("b: {size: 2, role: batch}, t: 16, h: 32, w: 32, d: 8, c: {size: 1024, role: channel}",
                              "b, t, h, w, d, c", "t-h-w-d-", 28);
    heddle_model *odd = make("b: {size: 2, role: batch}, t: 17, h: 45, w: 29, d: 7, c: {size: 1024, role: channel}",
                             "b, t, h, w, d, c", "t-h-w-d-", 28);
    heddle_model *stdit =
        make("b: {size: 2, role: batch}, t: 60, s: 3600, c: {size: 1152, role: channel}", "b, t, s, c", "s--t--", 28);
    heddle_model *length =
        make("b: {size: 1, role: batch}, s: 4194304, c: {size: 1024, role: channel}", "b, s, c", "s-", 16);
    heddle_model *axial = NULL, *weather = NULL;
    must(heddle_model_load(&axial, "axial-3d"));
    must(heddle_model_load(&weather, "pangu-like"));
    const struct {
        const heddle_model *model;
        question q;
    } rows[] = {
        {video, {"128 stages, 49 states, [node=8 gpu=8]", 10, "[node=8 gpu=8]", 0, 9, big}},
        {five, {"5 dims, [a=2 i=2 j=2 k=2], 224 stages", 1000, "[a=2 i=2 j=2 k=2]", 0, 5, big}},
        {odd, {"5 uneven dims, [a=2 i=2 j=2 k=2], 224 stages", 1000, "[a=2 i=2 j=2 k=2]", 0, 5, big}},
        {five, {"5 dims, [a=2 i=4 j=2 k=4], 224 stages", 1000, "[a=2 i=4 j=2 k=4]", 0, 3, big}},
        {five, {"5 dims, [a=2 i=4 j=3 k=5], hosts of 15", 1000, "[a=2 i=4 j=3 k=5]", 0, 3, "8x15xh100-nvlink+ib400"}},
        {five, {"5 dims, [a=2 i=4 j=3 k=5], hosts of 8", 1000, "[a=2 i=4 j=3 k=5]", 0, 1, big}},
        {stdit, {"n = 64", 100, NULL, 64, 3, big}},
        {stdit, {"n = 4096, space and time", 1000, NULL, 4096, 3, big}},
        {axial, {"n = 4096, axial-3d", 1000, NULL, 4096, 1, big}},
        {weather, {"n = 4096, pangu-like", 1000, NULL, 4096, 1, big}},
        {length, {"[sp=65536], one sequence", 100, "[sp=65536]", 0, 3, big}},
        {length, {"[sp=100000], one sequence", 100, "[sp=100000]", 0, 3, "12500x8xh100-nvlink+ib400"}},
    };
    printf("%-52s %-5s %8s %10s %10s\n", "", "by", "aim ms", "least ms", "median ms");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        answer(&rows[i].q, rows[i].model);
    }
    sweeps(argc - 1, argv + 1);
    heddle_model_destroy(video);
    heddle_model_destroy(five);
    heddle_model_destroy(odd);
    heddle_model_destroy(stdit);
    heddle_model_destroy(length);
    heddle_model_destroy(axial);
    heddle_model_destroy(weather);
    return 0;
}
