/* heddle sweep: plans for many numbers of ranks, or many extents of a dim. */
#include "planner/report/text.h"
#include "range.h"
#include "rows.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZES_BYTES = 256, RANKS_AT_MOST = 1 << 20, WORDS = 12 /* of a remark */ };

typedef struct sweep {
    cli_question q;
    cli_range ranks, extents;
    char fixed[SIZES_BYTES], dim[32]; /* of --size: what does not change, and the dim that does; "": none */
    plan_row *row;
    heddle_schedule *last; /* the plan of the row before, while rows are planned; NULL: none */
    int rows;
} sweep;

/* --- ranges ------------------------------------------------------------------------------------------------------- */

static int refuse_range(const char *option, const char *text)
{
    return cli_usage_error("--%s wants FIRST..LAST, FIRST..LAST:STEP or numbers with commas, at most %d of them, not "
                           "'%s'",
                           option, CLI_RANGE_POINTS, text);
}

/* The entry at *at, "t=15,30,60" of "t=15,30,60,s=405", which ends where the next dim is named; NULL: there is none. */
static char *next_size(char **at)
{
    char *first = *at + strspn(*at, ","), *end = first;
    do {
        end += *end == ',';
        end += strcspn(end, ",");
    } while (*end == ',' && strcspn(end + 1, "=,") > 0 && end[1 + strcspn(end + 1, "=,")] != '=');
    *at = *end == ',' ? end + 1 : end;
    *end = '\0';
    return *first != '\0' ? first : NULL;
}

/* "t=15..120:15,s=405": the part with the dots or several numbers is swept. */
static int read_sizes(sweep *s, const char *sizes)
{
    char text[SIZES_BYTES], *rest = text;
    if (sizes == NULL) {
        return CLI_OK;
    }
    if (strlen(sizes) >= sizeof text) {
        return cli_usage_error("--size: more than %d characters", SIZES_BYTES - 1);
    }
    snprintf(text, sizeof text, "%s", sizes);
    for (char *part = next_size(&rest); part != NULL; part = next_size(&rest)) {
        char *value = strchr(part, '=');
        if (value != NULL && (strstr(value, "..") != NULL || strchr(value, ',') != NULL)) {
            *value = '\0';
            if (s->dim[0] != '\0') {
                return cli_usage_error("--size %s: one dim can be swept, found %s and %s", sizes, s->dim, part);
            }
            snprintf(s->dim, sizeof s->dim, "%s", part);
            if (!cli_read_range(&s->extents, value + 1, LLONG_MAX)) {
                return refuse_range("size", value + 1);
            }
        } else {
            const size_t used = strlen(s->fixed);
            snprintf(s->fixed + used, sizeof s->fixed - used, "%s%s", used > 0 ? "," : "", part);
        }
    }
    return cli_report(heddle_model_resize(s->q.model, s->fixed, 0));
}

/* --- points ------------------------------------------------------------------------------------------------------- */

static void show_progress(const sweep *s, int all)
{
    enum { WIDTH = 30 };
    if (!isatty(STDERR_FILENO)) {
        return;
    }
    const int done = all > 0 ? s->rows * WIDTH / all : WIDTH;
    fprintf(stderr, "\r\033[K");
    if (s->rows < all) {
        fprintf(stderr, "[%.*s%.*s] %d of %d", done, "##############################", WIDTH - done,
                "..............................", s->rows, all);
    }
    fflush(stderr);
}

static int plan_point(sweep *s, long long ranks, long long extent)
{
    plan_row *row = &s->row[s->rows];
    heddle_schedule *plan = NULL;
    heddle_status st = HEDDLE_OK;
    if (s->dim[0] != '\0') {
        snprintf(row->size, sizeof row->size, "%s=%lld", s->dim, extent);
        st = heddle_model_resize(s->q.model, row->size, 0);
    }
    int code = cli_report(st);
    if (ranks > 0) {
        s->q.ranks = (int)ranks;
        code = code != CLI_OK ? code : cli_fit_machine(&s->q, (int)ranks);
    }
    code = code != CLI_OK ? code : cli_report(cli_row_and_plan(row, &plan, &s->q, &s->q.options, row->size));
    row->crossover = cli_find_crossover(row->change, sizeof row->change, s->last, plan);
    heddle_schedule_destroy(s->last);
    s->last = plan;
    row->ranks = ranks > 0 ? (int)ranks : row->ranks;
    s->rows++;
    return code;
}

static int plan_points(sweep *s)
{
    const int sizes = s->dim[0] != '\0' ? s->extents.count : 1, all = s->ranks.count * sizes;
    int code = CLI_OK;
    s->row = calloc((size_t)all, sizeof *s->row);
    if (s->row == NULL) {
        return cli_report(heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %d points", all));
    }
    for (int i = 0; i < s->ranks.count && code == CLI_OK; i++) {
        for (int k = 0; k < sizes && code == CLI_OK; k++) {
            show_progress(s, all);
            code = plan_point(s, s->ranks.value[i], s->extents.value[k]);
        }
    }
    s->rows = code == CLI_OK ? s->rows : all;
    show_progress(s, s->rows);
    return code;
}

static int set_points(sweep *s, const cli_arguments *a)
{
    if (a->sweep != NULL && a->mesh != NULL) {
        return cli_usage_error("heddle sweep wants either -n, all meshes of these numbers of ranks, or --mesh");
    }
    if (a->sweep != NULL && !cli_read_range(&s->ranks, a->sweep, RANKS_AT_MOST)) {
        return refuse_range("ranks", a->sweep);
    }
    if (a->sweep != NULL) {
        return CLI_OK;
    }
    s->ranks.count = 1;
    s->ranks.value[0] = a->mesh == NULL ? s->q.on.ranks : 0;
    if (s->dim[0] == '\0') {
        return cli_usage_error(
            "heddle sweep wants -n 1..64, numbers of ranks, or --size t=15..120:15, a dim's extents");
    }
    if (a->mesh == NULL) {
        return CLI_OK;
    }
    s->q.ranks = 0;
    const int code = cli_report(cli_parse_mesh(&s->q.mesh, a->mesh));
    return code != CLI_OK ? code : cli_fit_machine(&s->q, heddle_mesh_size(&s->q.mesh));
}

/* --- printed ------------------------------------------------------------------------------------------------------ */

/* Seconds of the first point that has a plan, per rank of it: what others are compared with; 0: there is none. */
static double base_gpu_seconds(const sweep *s)
{
    for (int i = 0; i < s->rows; i++) {
        if (s->row[i].refusal[0] == '\0') {
            return s->row[i].time_s * s->row[i].ranks;
        }
    }
    return 0;
}

static double efficiency(const sweep *s, const plan_row *r)
{
    const double seconds = r->time_s * r->ranks;
    return s->dim[0] == '\0' && seconds > 0 ? base_gpu_seconds(s) / seconds : 0;
}

/* The largest number of ranks up to which the work of every added rank is worth half a rank of the first point;
 * -1: none that fits, or a sweep over extents. */
static int knee(const sweep *s)
{
    int at = -1;
    for (int i = 0; i < s->rows && s->dim[0] == '\0'; i++) {
        const plan_row *r = &s->row[i];
        at = r->refusal[0] == '\0' && !r->is_too_large && efficiency(s, r) >= 0.5 ? i : at;
    }
    return at;
}

/* The fastest of the points before with fewer ranks for the same extent, where it is faster than this one; else -1. */
static int faster_with_fewer(const sweep *s, int i)
{
    int at = -1;
    for (int k = 0; k < i && s->row[i].refusal[0] == '\0'; k++) {
        const double best = s->row[at >= 0 ? at : i].time_s;
        if (s->row[k].refusal[0] == '\0' && s->row[k].ranks < s->row[i].ranks && s->row[k].time_s < best &&
            strcmp(s->row[k].size, s->row[i].size) == 0) {
            at = k;
        }
    }
    return at;
}

/* A word of a list that may take several lines; a dozen are enough, the table has them all. */
static void print_word(int *column, int n, const char *head, const char *word)
{
    if (n > WORDS) {
        return;
    }
    word = n == WORDS ? "..." : word;
    *column = n == 0 ? printf("%s", head) : *column;
    if (*column + 1 + (int)strlen(word) > REPORT_COLUMNS) {
        *column = printf("\n ") - 1;
    }
    *column += printf(" %s", word);
}

/* The rows at which other axes win than in the row before; other methods or layouts, with what they do. */
static void print_crossovers(const sweep *s)
{
    int column = 0, axes = 0, stages = 0;
    for (int i = 0; i < s->rows; i++) {
        const plan_row *r = &s->row[i];
        if (r->crossover == CROSSOVER_AXES) {
            print_word(&column, axes++, "other axes win at:", r->size[0] != '\0' ? r->size : r->mesh);
        }
    }
    printf("%s", axes > 0 ? "\n" : "");
    for (int i = 0; i < s->rows && stages <= WORDS; i++) {
        const plan_row *r = &s->row[i];
        if (r->crossover == CROSSOVER_STAGES) {
            printf(stages == 0 ? "other methods or layouts win at:\n" : "");
            column = printf(stages < WORDS ? "  %s: " : "  ...", r->size[0] != '\0' ? r->size : r->mesh);
            report_wrap(stdout, stages++ < WORDS ? r->change : "", column, 4, REPORT_COLUMNS);
            printf("\n");
        }
    }
}

/* The rows that ranks left idle would serve better. */
static void print_remarks(const sweep *s)
{
    int column = 0, n = 0;
    for (int i = 0; i < s->rows; i++) {
        const int fewer = faster_with_fewer(s, i);
        char word[64];
        if (fewer >= 0) {
            snprintf(word, sizeof word, "%d%s%.20s (%d)", s->row[i].ranks, s->row[i].size[0] != '\0' ? " at " : "",
                     s->row[i].size, s->row[fewer].ranks);
            print_word(&column, n++, "fewer ranks take less time than:", word);
        }
    }
    printf("%s", n > 0 ? "\n" : "");
}

static void print_table(const sweep *s)
{
    printf("  %6s %-12s %-24s %9s %12s %9s %9s %10s\n", "ranks", s->dim, "mesh", "time", "gpu-seconds", "sent max",
           "memory", s->dim[0] == '\0' ? "efficiency" : "");
    for (int i = 0; i < s->rows; i++) {
        const plan_row *r = &s->row[i];
        char time[16], all[16], sent[16], memory[16], gain[16] = "";
        if (r->refusal[0] != '\0') {
            report_wrap(stdout, r->refusal, printf("  %6d %-12s no plan: ", r->ranks, r->size), 24, REPORT_COLUMNS);
            printf("\n");
            continue;
        }
        if (s->dim[0] == '\0') {
            snprintf(gain, sizeof gain, "%8.0f %%", efficiency(s, r) * 100);
        }
        printf("  %6d %-12s ", r->ranks, r->size);
        report_cell(r->mesh, 22, 24);
        printf(" %9s %12s %9s %9s%s%s\n", report_seconds(time, 16, r->time_s),
               report_seconds(all, 16, r->time_s * r->ranks), report_si(sent, 16, (double)r->sent_max),
               cli_row_memory(memory, sizeof memory, r), gain[0] != '\0' ? " " : "", gain);
    }
    cli_say_too_large(&s->q, s->row, s->rows);
    const int at = knee(s);
    if (at >= 0) {
        printf("knee: %d ranks, the most of which each is worth half of one of the first point\n", s->row[at].ranks);
    }
    print_crossovers(s);
    print_remarks(s);
}

static void print_json(const sweep *s, const char *model)
{
    const int at = knee(s);
    printf("{\"schema\": \"heddle-sweep-1\", ");
    report_json_string("model", model, ", ");
    report_json_string("machine", s->q.on.name, ", ");
    printf(at >= 0 ? "\"knee\": %d,\n \"points\": [" : "\"knee\": null,\n \"points\": [",
           at >= 0 ? s->row[at].ranks : 0);
    for (int i = 0; i < s->rows; i++) {
        const plan_row *r = &s->row[i];
        printf("%s{\"ranks\": %d, ", i > 0 ? ",\n  " : "\n  ", r->ranks);
        report_json_string("size", r->size, ", ");
        if (r->refusal[0] != '\0') {
            report_json_string("refusal", r->refusal, "}");
            continue;
        }
        report_json_string("mesh", r->mesh, ", ");
        printf("\"time_s\": %.12g, \"gpu_seconds\": %.12g, \"bytes_per_rank_max\": %" PRId64
               ", \"bytes_total\": %" PRId64 ", \"memory_bytes_per_rank\": %" PRId64 ", \"fits\": %s, \"efficiency\": ",
               r->time_s, r->time_s * r->ranks, r->sent_max, r->total, r->memory_bytes, cli_row_fits(&s->q, r));
        printf(s->dim[0] == '\0' ? "%.6g" : "null", efficiency(s, r));
        printf(", \"is_crossover\": %s, ", r->crossover != CROSSOVER_NONE ? "true" : "false");
        report_json_string("change", r->change, ", \"faster_ranks\": ");
        const int fewer = faster_with_fewer(s, i);
        printf(fewer >= 0 ? "%d}" : "null}", fewer >= 0 ? s->row[fewer].ranks : 0);
    }
    printf("]}\n");
}

static void print_csv(const sweep *s)
{
    printf("ranks,size,mesh,time_s,gpu_seconds,bytes_per_rank_max,memory_bytes_per_rank,refusal,change\n");
    for (int i = 0; i < s->rows; i++) {
        const plan_row *r = &s->row[i];
        printf("%d,%s,", r->ranks, r->size);
        cli_print_cell(r->mesh);
        printf(",%.12g,%.12g,%" PRId64 ",%" PRId64 ",", r->time_s, r->time_s * r->ranks, r->sent_max, r->memory_bytes);
        cli_print_cell(r->refusal);
        printf(",");
        cli_print_cell(r->change);
        printf("\n");
    }
}

static int print(const sweep *s)
{
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    const heddle_status st = heddle_model_get_info(&model, s->q.model);
    if (st != HEDDLE_OK) {
        return cli_report(st);
    }
    if (s->q.a->json) {
        print_json(s, model.name);
    } else if (s->q.a->csv) {
        print_csv(s);
    } else {
        printf("%s, machine %s, %s\n", model.name, s->q.on.name, s->q.machine_from);
        print_table(s);
    }
    return base_gpu_seconds(s) > 0 ? CLI_OK : CLI_INFEASIBLE;
}

static int run(const cli_arguments *a)
{
    sweep *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return cli_report(heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for a sweep"));
    }
    int code = cli_ask(&s->q, a);
    code = code != CLI_OK ? code : read_sizes(s, cli_said(a->sizes));
    code = code != CLI_OK ? code : set_points(s, a);
    code = code != CLI_OK ? code : plan_points(s);
    code = code != CLI_OK ? code : print(s);
    cli_ask_end(&s->q);
    heddle_schedule_destroy(s->last);
    free(s->row);
    free(s);
    return code;
}

const cli_action cli_sweep = {
    .synopsis = "usage: heddle sweep MODEL -n 1..64 [--machine X] [options]\n"
                "       heddle sweep MODEL --size t=15..120:15 --mesh sp=8 [--machine X] [options]\n"
                "\n"
                "  heddle sweep hunyuanvideo -n 1..16 --machine 2x8xh100-nvlink+ib400\n"
                "\n"
                "The best plan for every number of ranks, each over all its meshes, or for every extent of a dim.\n",
    .notes = "gpu-seconds: time x ranks. efficiency: gpu-seconds of the first point / those of this one. knee: the\n"
             "largest number of ranks with an efficiency of at least 50 %. crossover: where other axes,\n"
             "methods or layouts win than at the point before, which is named.\n"
             "fewer ranks take less time than N (M): those of M ranks do, the rest is better left idle.\n"
             "exit codes: 0 done, 2 bad input, 3 no point has a plan\n",
    .run = run,
};
