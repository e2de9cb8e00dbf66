/* heddle diff: where two schedules differ. */
#include "ask.h"
#include "planner/report/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct side {
    const char *path;
    heddle_schedule *schedule;
    heddle_schedule_info info;
} side;

/* "s@sp/ring" of stage i; "-" where there is none. */
static const char *stage_text(char *out, size_t out_bytes, const side *s, int i, const char **name)
{
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    char layout[HEDDLE_LINE_BYTES] = "...";
    if (i >= s->info.nstages || heddle_schedule_stage_at(&stage, s->schedule, i) != HEDDLE_OK) {
        snprintf(out, out_bytes, "-");
        return out;
    }
    heddle_ignore(heddle_layout_format(layout, sizeof layout, &stage.layout, &s->info.shape, &s->info.mesh));
    snprintf(out, out_bytes, "%s/%s", layout, stage.method);
    *name = stage.name;
    return out;
}

static int print_stages(const side *a, const side *b, int json)
{
    const int most = a->info.nstages > b->info.nstages ? a->info.nstages : b->info.nstages;
    int count = 0;
    for (int i = 0; i < most; i++) {
        char one[512], other[512];
        const char *name = "", *name_b = "";
        stage_text(one, sizeof one, a, i, &name);
        stage_text(other, sizeof other, b, i, &name_b);
        if (strcmp(one, other) == 0 && strcmp(name, name_b) == 0) {
            continue;
        }
        name = name[0] != '\0' ? name : name_b;
        const int repetition = a->info.period > 0 ? i / a->info.period : 0;
        if (json) {
            printf("%s{\"repetition\": %d, ", count > 0 ? ",\n  " : "\n  ", repetition);
            report_json_string("name", name, ", ");
            report_json_string("a", one, ", ");
            report_json_string("b", other, "}");
        } else {
            printf("  %-16s #%-5d %-28s %s\n", name, repetition + 1, one, other);
        }
        count++;
    }
    return count;
}

static void print_number(const char *name, int64_t a, int64_t b, int json)
{
    char one[16], other[16];
    if (json) {
        printf(" \"%s\": [%" PRId64 ", %" PRId64 "],\n", name, a, b);
    } else {
        printf("  %-30s %-20s %s", name, report_si(one, sizeof one, (double)a),
               report_si(other, sizeof other, (double)b));
        if (a > 0 && a != b) {
            printf("  (%+.1f %%)", ((double)b / (double)a - 1) * 100);
        }
        printf("\n");
    }
}

static void print(const side *a, const side *b, int json)
{
    char mesh_a[HEDDLE_LINE_BYTES] = "", mesh_b[HEDDLE_LINE_BYTES] = "";
    heddle_ignore(heddle_mesh_format(mesh_a, sizeof mesh_a, &a->info.mesh));
    heddle_ignore(heddle_mesh_format(mesh_b, sizeof mesh_b, &b->info.mesh));
    if (json) {
        printf("{\"schema\": \"heddle-diff-1\", ");
        report_json_string("a", a->path, ", ");
        report_json_string("b", b->path, ",\n \"meshes\": [");
        report_json_text(stdout, mesh_a);
        printf(", ");
        report_json_text(stdout, mesh_b);
        printf("],\n");
    } else {
        printf("a: %s, %s on %s\nb: %s, %s on %s\n\n", a->path, a->info.model, mesh_a, b->path, b->info.model, mesh_b);
    }
    print_number("switches", a->info.switches, b->info.switches, json);
    print_number("bytes_per_rank_max", a->info.bytes_per_rank_max, b->info.bytes_per_rank_max, json);
    print_number("bytes_total", a->info.bytes_total, b->info.bytes_total, json);
    print_number("backward_bytes_per_rank_max", a->info.backward_bytes_per_rank_max,
                 b->info.backward_bytes_per_rank_max, json);
    print_number("backward_bytes_total", a->info.backward_bytes_total, b->info.backward_bytes_total, json);
    printf(json ? " \"stages\": [" : "\n");
    const int count = print_stages(a, b, json);
    if (json) {
        printf("]}\n");
    } else {
        printf("%d of %d stages differ\n", count, a->info.nstages);
    }
}

static int load(side *s, const char *path)
{
    *s = (side){.path = path, .info = HEDDLE_EMPTY(heddle_schedule_info)};
    const int code = cli_load_schedule(&s->schedule, path);
    return code != CLI_OK ? code : cli_report(heddle_schedule_get_info(&s->info, s->schedule));
}

static int run(const cli_arguments *arguments)
{
    side a, b = {0};
    int code = load(&a, arguments->operand);
    code = code != CLI_OK ? code : load(&b, arguments->second);
    if (code == CLI_OK) {
        print(&a, &b, arguments->json);
    }
    heddle_schedule_destroy(a.schedule);
    heddle_schedule_destroy(b.schedule);
    return code;
}

const cli_action cli_diff = {
    .synopsis = "usage: heddle diff A B [--json]\n"
                "\n"
                "Stages that run in another layout or by another method, and the bytes of both. A and B are files\n"
                "of heddle plan --output or heddle plan --json.\n",
    .notes = "exit codes: 0 done, whether they differ or not; 2 bad input\n",
    .run = run,
};
