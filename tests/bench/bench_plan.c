/* How long plans take: the planner's aims beside what this machine needs, the fastest of a few. */
#include <heddle/planner.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
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

/* mesh NULL: all of `ranks`. machine NULL: by bytes. */
static double plan_ms(const heddle_model *model, const char *mesh_text, int ranks, const char *machine_name, int tries)
{
    heddle_plan_options o;
    heddle_machine *machine = NULL;
    heddle_mesh mesh;
    double best = 0;
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
        must(mesh_text != NULL ? heddle_plan(&s, model, &mesh, &o) : heddle_plan_ranks(&s, model, ranks, &o));
        double ms = now_ms() - start;
        best = i == 0 || ms < best ? ms : best;
        heddle_schedule_destroy(s);
    }
    heddle_machine_destroy(machine);
    return best;
}

static void row(const char *what, double aim_ms, double bytes_ms, double time_ms)
{
    printf("%-52s %9.0f %12.2f %12.2f\n", what, aim_ms, bytes_ms, time_ms);
    fflush(stdout);
}

/* Every preset on 2 to 64 ranks. */
static void presets(int argc, char **argv)
{
    for (int by_time = 0; by_time < 2; by_time++) {
        double sum = 0;
        for (int i = 1; i < argc; i++) {
            heddle_model *model = NULL;
            double own = 0;
            must(heddle_model_load(&model, argv[i]));
            for (int n = 2; n <= 64; n++) {
                own += plan_ms(model, NULL, n, by_time ? "8x8xh100-nvlink+ib400" : NULL, 1);
            }
            printf("  %-24s n = 2..64 by %-5s %10.1f ms\n", argv[i], by_time ? "time" : "bytes", own);
            sum += own;
            heddle_model_destroy(model);
        }
        printf("%d models, n = 2..64, by %s: %.1f ms (aim 5000)\n", argc - 1, by_time ? "time" : "bytes", sum);
    }
}

int main(int argc, char **argv)
{
    const char *big = "8192x8xh100-nvlink+ib400";
    heddle_model *video =
        make("b: {size: 1, role: batch}, t: 60, h: 45, w: 80, d: 4, e: 4, c: {size: 1152, role: channel}",
             "b, t, h, w, d, e, c", "t-h-", 32);
    printf("%-52s %9s %12s %12s\n", "", "aim ms", "by bytes ms", "by time ms");
    row("128 stages, 49 states, [node=8 gpu=8]", 10, plan_ms(video, "[node=8 gpu=8]", 0, NULL, 5),
        plan_ms(video, "[node=8 gpu=8]", 0, big, 5));
    heddle_model *five = make("b: {size: 2, role: batch}, t: 16, h: 32, w: 32, d: 8, c: {size: 1024, role: channel}",
                              "b, t, h, w, d, c", "t-h-w-d-", 28);
    row("5 dims, [a=2 i=2 j=2 k=2], 224 stages", 1000, plan_ms(five, "[a=2 i=2 j=2 k=2]", 0, NULL, 2),
        plan_ms(five, "[a=2 i=2 j=2 k=2]", 0, big, 2));
    row("5 dims, [a=2 i=4 j=3 k=5], 224 stages", 1000, plan_ms(five, "[a=2 i=4 j=3 k=5]", 0, NULL, 1),
        plan_ms(five, "[a=2 i=4 j=3 k=5]", 0, big, 1));
    heddle_model *stdit =
        make("b: {size: 2, role: batch}, t: 60, s: 3600, c: {size: 1152, role: channel}", "b, t, s, c", "s--t--", 28);
    row("n = 64", 100, plan_ms(stdit, NULL, 64, NULL, 3), plan_ms(stdit, NULL, 64, big, 3));
    row("n = 4096", 1000, plan_ms(stdit, NULL, 4096, NULL, 1), plan_ms(stdit, NULL, 4096, big, 1));
    heddle_model *length =
        make("b: {size: 1, role: batch}, s: 4194304, c: {size: 1024, role: channel}", "b, s, c", "s-", 16);
    row("[sp=65536], one sequence", 100, plan_ms(length, "[sp=65536]", 0, NULL, 2),
        plan_ms(length, "[sp=65536]", 0, big, 2));
    row("[sp=100000], one sequence", 100, plan_ms(length, "[sp=100000]", 0, NULL, 2),
        plan_ms(length, "[sp=100000]", 0, "12500x8xh100-nvlink+ib400", 2));
    presets(argc, argv);
    heddle_model_destroy(video);
    heddle_model_destroy(five);
    heddle_model_destroy(stdit);
    heddle_model_destroy(length);
    return 0;
}
