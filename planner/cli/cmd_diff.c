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

/* A stage in both schedules. */
typedef struct row {
    char a[512], b[512];
    const char *name;
    int differs;
} row;

static void read_row(row *out, const side *a, const side *b, int i)
{
    const char *name_a = "", *name_b = "";
    stage_text(out->a, sizeof out->a, a, i, &name_a);
    stage_text(out->b, sizeof out->b, b, i, &name_b);
    out->differs = strcmp(out->a, out->b) != 0 || strcmp(name_a, name_b) != 0;
    out->name = name_a[0] != '\0' ? name_a : name_b;
}

static int is_same(const row *x, const row *y)
{
    return x->differs && y->differs && strcmp(x->name, y->name) == 0 && strcmp(x->a, y->a) == 0 &&
           strcmp(x->b, y->b) == 0;
}

/* Repetitions behind one another in which a stage differs in the same way are one row: from its first. */
static void print_row(const side *a, const side *b, int i, int most, const row *here)
{
    const int period = a->info.period == b->info.period ? a->info.period : 0;
    const int first = period > 0 ? i / period + 1 : 1;
    int last = first;
    char repetitions[32];
    row other;
    if (period > 0 && i >= period) {
        read_row(&other, a, b, i - period);
        if (is_same(here, &other)) {
            return;
        }
    }
    for (int k = i + period; period > 0 && k < most; k += period, last++) {
        read_row(&other, a, b, k);
        if (!is_same(here, &other)) {
            break;
        }
    }
    snprintf(repetitions, sizeof repetitions, last > first ? "#%d-%d" : "#%d", first, last);
    printf("  %-16s %-9s %-28s %s\n", here->name, repetitions, here->a, here->b);
}

static int print_stages(const side *a, const side *b, int json)
{
    const int most = a->info.nstages > b->info.nstages ? a->info.nstages : b->info.nstages;
    int count = 0;
    for (int i = 0; i < most; i++) {
        row here;
        read_row(&here, a, b, i);
        if (!here.differs) {
            continue;
        }
        if (json) {
            printf("%s{\"repetition\": %d, ", count > 0 ? ",\n  " : "\n  ",
                   a->info.period > 0 ? i / a->info.period : 0);
            report_json_string("name", here.name, ", ");
            report_json_string("a", here.a, ", ");
            report_json_string("b", here.b, "}");
        } else {
            print_row(a, b, i, most, &here);
        }
        count++;
    }
    return count;
}

static void print_pair(const char *name, const char *one, const char *other, double a, double b)
{
    printf("  %-30s %-20s %s", name, one, other);
    if (a > 0 && a != b) {
        printf("  (%+.1f %%)", (b / a - 1) * 100);
    }
    printf("\n");
}

static void print_bytes(const char *name, int64_t a, int64_t b, int json)
{
    char one[16], other[16];
    if (json) {
        printf(" \"%s\": [%" PRId64 ", %" PRId64 "],\n", name, a, b);
    } else {
        print_pair(name, report_si(one, sizeof one, (double)a), report_si(other, sizeof other, (double)b), (double)a,
                   (double)b);
    }
}

static void print_switches(const side *a, const side *b, int json)
{
    char one[16], other[16];
    snprintf(one, sizeof one, "%d", a->info.switches);
    snprintf(other, sizeof other, "%d", b->info.switches);
    if (json) {
        printf(" \"switches\": [%s, %s],\n", one, other);
    } else {
        print_pair("switches", one, other, a->info.switches, b->info.switches);
    }
}

/* 0: of a schedule that was planned by bytes, or written by hand. */
static void print_seconds(const side *a, const side *b, int json)
{
    const double s[2] = {a->info.predicted_s, b->info.predicted_s};
    char one[16], other[16];
    if (json) {
        printf(" \"predicted_s\": [%.12g, %.12g],\n", s[0], s[1]);
    } else if (s[0] > 0 || s[1] > 0) {
        print_pair("predicted_s", s[0] > 0 ? report_seconds(one, sizeof one, s[0]) : "-",
                   s[1] > 0 ? report_seconds(other, sizeof other, s[1]) : "-", s[1] > 0 ? s[0] : 0, s[1]);
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
        printf("], \"models\": [");
        report_json_text(stdout, a->info.model);
        printf(", ");
        report_json_text(stdout, b->info.model);
        printf("],\n");
    } else {
        printf("a: %s, %s on %s\nb: %s, %s on %s\n%s\n", a->path, a->info.model, mesh_a, b->path, b->info.model, mesh_b,
               strcmp(a->info.model, b->info.model) != 0 ? "these are schedules of two models\n" : "");
    }
    print_switches(a, b, json);
    print_seconds(a, b, json);
    print_bytes("bytes_per_rank_max", a->info.bytes_per_rank_max, b->info.bytes_per_rank_max, json);
    print_bytes("bytes_total", a->info.bytes_total, b->info.bytes_total, json);
    print_bytes("backward_bytes_per_rank_max", a->info.backward_bytes_per_rank_max, b->info.backward_bytes_per_rank_max,
                json);
    print_bytes("backward_bytes_total", a->info.backward_bytes_total, b->info.backward_bytes_total, json);
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
