/* heddle compare: published methods, or meshes, side by side. */
#include "planner/report/text.h"
#include "rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_AT_MOST = 32, METHODS_BYTES = 8192 };

typedef struct comparison {
    cli_question q;
    plan_row row[ROWS_AT_MOST];
    int rows, best, baseline; /* indices; -1: none has a plan, none was asked for */
} comparison;

/* --- what a method's name means for the stages -------------------------------------------------------------------- */

static int is_linear(const char *method)
{
    heddle_linear_method known;
    return strcmp(method, "local") != 0 && heddle_linear_method_parse(&known, method) == HEDDLE_OK;
}

/* A dim of rows that the stage leaves whole ranks free to share. */
static int has_other_dim(const heddle_model_info *model, const heddle_stage_info *stage)
{
    for (int d = 0; d < model->shape.ndim; d++) {
        if (d != model->channel_dim && d != model->batch_dim && (stage->mixed_dims >> d & 1) == 0 &&
            model->shape.dim[d].extent > 1) {
            return 1;
        }
    }
    return 0;
}

/* "A=ulysses,B=local": the stages that mix dim d by the method (-1: every stage that can), the others locally. dsp:
 * every stage locally but those that mix all there is, for which it is Ulysses. 0: no stage is left for it. */
static int write_methods(char *out, size_t out_bytes, const cli_question *q, const char *method, int d)
{
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    size_t used = 0;
    int count = 0;
    const int is_dsp = strcmp(method, "dsp") == 0;
    heddle_ignore(heddle_model_get_info(&model, q->model));
    out[0] = '\0';
    for (int k = 0; k < model.nstages; k++) {
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
        if (heddle_model_stage(&stage, q->model, k) != HEDDLE_OK || stage.mixed_dims == 0 ||
            (stage.kind != HEDDLE_STAGE_ATTENTION && stage.kind != HEDDLE_STAGE_LINEAR)) {
            continue;
        }
        const int fits = (stage.kind == HEDDLE_STAGE_LINEAR) == is_linear(method);
        const int takes = is_dsp ? stage.kind == HEDDLE_STAGE_ATTENTION && !has_other_dim(&model, &stage)
                                 : fits && (d < 0 || (stage.mixed_dims >> d & 1) != 0);
        count += takes || is_dsp;
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s=%s", used > 0 ? "," : "", stage.name,
                                 takes ? (is_dsp ? "ulysses" : method) : "local");
        if (used >= out_bytes) {
            return 0;
        }
    }
    return count;
}

/* The best over the dim that stays sharded and, where none has a plan, over none of them. */
static heddle_status best_of_dims(plan_row *out, const cli_question *q, const char *name)
{
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    heddle_plan_options options = q->options;
    char methods[METHODS_BYTES];
    heddle_status st = heddle_model_get_info(&model, q->model);
    int tried = 0;
    for (int d = strcmp(name, "dsp") == 0 ? model.shape.ndim - 1 : 0; d < model.shape.ndim && st == HEDDLE_OK; d++) {
        plan_row one = {0};
        if ((strcmp(name, "dsp") != 0 && (d == model.channel_dim || d == model.batch_dim)) ||
            write_methods(methods, sizeof methods, q, name, d) == 0) {
            continue;
        }
        options.methods = methods;
        st = cli_row_of(&one, q, &options, name);
        if (st == HEDDLE_OK &&
            (tried++ == 0 || (one.refusal[0] == '\0' && (out->refusal[0] != '\0' || one.value < out->value)))) {
            *out = one;
        }
    }
    if (tried == 0) {
        snprintf(out->name, sizeof out->name, "%s", name);
        snprintf(out->refusal, sizeof out->refusal, "the model has no %s attention to run so",
                 is_linear(name) ? "linear" : "softmax");
    }
    return st;
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

static heddle_status fill_row(plan_row *out, const cli_question *q, const char *name)
{
    plan_row even = {0};
    cli_question roomy = *q; /* its weights are split: what it holds is asked afterwards */
    roomy.options.memory_bytes = 0;
    if (strcmp(name, "best") == 0) {
        return cli_row_of(out, q, &q->options, name);
    }
    if (strncmp(name, "megatron-", 9) == 0) {
        const heddle_status st = best_of_dims(&even, &roomy, "ulysses");
        return st == HEDDLE_OK ? cli_row_of_megatron(out, q, &even, strcmp(name, "megatron-tp") == 0) : st;
    }
    return best_of_dims(out, q, name);
}

/* What users call them, and what the rows are called; NULL: no such method. */
static const char *method_of(const char *word)
{
    static const char *const names[][2] = {{"best", "best"},
                                           {"auto", "best"},
                                           {"dsp", "dsp"},
                                           {"ulysses", "ulysses"},
                                           {"ds-ulysses", "ulysses"},
                                           {"deepspeed-ulysses", "ulysses"},
                                           {"ring", "ring"},
                                           {"ring-attention", "ring"},
                                           {"usp", "usp"},
                                           {"rsa", "rsa"},
                                           {"gather-kv", "gather-kv"},
                                           {"lasp", "lasp"},
                                           {"lasp2", "lasp2"},
                                           {"lasp-2", "lasp2"},
                                           {"scan", "scan"},
                                           {"megatron-sp", "megatron-sp"},
                                           {"megatron", "megatron-sp"},
                                           {"megatron-tp", "megatron-tp"},
                                           {"tensor-parallel", "megatron-tp"},
                                           {"tp", "megatron-tp"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(word, names[i][0]) == 0) {
            return names[i][1];
        }
    }
    return NULL;
}

static int add_method(comparison *c, const char *word)
{
    const char *name = method_of(word);
    if (name == NULL) {
        return cli_usage_error("--methods: '%s' is none of best, dsp, ulysses, ring, usp, rsa, gather-kv, lasp, lasp2, "
                               "scan, megatron-sp, megatron-tp",
                               word);
    }
    return cli_report(fill_row(&c->row[c->rows++], &c->q, name));
}

static int add_mesh(comparison *c, const char *text)
{
    cli_question q = c->q;
    heddle_status st = cli_parse_mesh(&q.mesh, text);
    int code = st == HEDDLE_OK ? cli_fit_machine(&c->q, heddle_mesh_size(&q.mesh)) : cli_report(st);
    q.ranks = 0;
    q.on = c->q.on; /* it may have grown */
    return code != CLI_OK ? code : cli_report(cli_row_of(&c->row[c->rows++], &q, &q.options, text));
}

static int fill(comparison *c, const char *list)
{
    char *words = strdup(list), *rest = NULL;
    int code = words != NULL ? CLI_OK : CLI_FAILED;
    for (char *word = words != NULL ? strtok_r(words, ",", &rest) : NULL; word != NULL && code == CLI_OK;
         word = strtok_r(NULL, ",", &rest)) {
        word += strspn(word, " ");
        if (c->rows == ROWS_AT_MOST) {
            code = cli_usage_error("more than %d rows", ROWS_AT_MOST);
        } else {
            code = c->q.a->meshes != NULL ? add_mesh(c, word) : add_method(c, word);
        }
    }
    free(words);
    return code != CLI_OK || c->rows > 0 ? code : cli_usage_error("--methods wants names with commas between them");
}

/* What the objective counts of a row. */
static double measure(const comparison *c, const plan_row *r)
{
    int links = 0; /* up to the outermost that the ranks of any row meet on */
    for (int i = 0; i < c->rows; i++) {
        links = c->row[i].refusal[0] == '\0' && c->row[i].nlinks > links ? c->row[i].nlinks : links;
    }
    const char *objective = c->q.options.objective != NULL ? c->q.options.objective : "time";
    return strcmp(objective, "time") == 0                       ? r->time_s
           : strcmp(objective, "gpu-seconds") == 0              ? r->time_s * r->ranks
           : strcmp(objective, "memory") == 0                   ? (double)r->memory_bytes
           : strcmp(objective, "slow-bytes") != 0 || links == 0 ? (double)r->sent_max
           : r->nlinks == links                                 ? (double)r->link[links - 1].sent_max
                                                                : 0;
}

static int choose(comparison *c)
{
    const char *asked = c->q.a->baseline;
    const char *name = asked != NULL && method_of(asked) != NULL ? method_of(asked) : asked;
    c->best = c->baseline = -1;
    for (int i = 0; i < c->rows; i++) {
        const plan_row *r = &c->row[i];
        c->baseline = name != NULL && strcmp(r->name, name) == 0 ? i : c->baseline;
        if (r->refusal[0] == '\0' && (c->best < 0 || measure(c, r) < measure(c, &c->row[c->best]))) {
            c->best = i;
        }
    }
    if (asked != NULL && c->baseline < 0) {
        return cli_usage_error("--baseline '%s' is no row of this comparison (--methods has to name it)", asked);
    }
    return CLI_OK;
}

/* --- printed ------------------------------------------------------------------------------------------------------ */

static double ratio(const comparison *c, const plan_row *r, int to)
{
    const double other = to < 0 || c->row[to].refusal[0] != '\0' ? 0 : measure(c, &c->row[to]);
    return other > 0 ? measure(c, r) / other : 0;
}

static void print_ratio(const comparison *c, const plan_row *r, int to)
{
    const double times = ratio(c, r, to);
    (void)(times > 0 ? printf(" %7.2fx", times) : printf(" %8s", "-"));
}

/* Where there are several classes of links: what the busiest rank sends by each. */
static void print_links(const comparison *c)
{
    if (c->q.on.nlinks < 2 || c->best < 0) {
        return;
    }
    printf("\n  %-12s sent max by\n  %-12s", "", "");
    for (int l = 0; l < c->q.on.nlinks; l++) {
        printf(" %12s", c->q.on.link[l]);
    }
    printf("\n");
    for (int i = 0; i < c->rows; i++) {
        const plan_row *r = &c->row[i];
        for (int l = 0; l < c->q.on.nlinks && r->refusal[0] == '\0'; l++) {
            char sent[16];
            if (l == 0) {
                printf("  ");
                report_cell(r->name, 2, 12);
            }
            printf(" %12s%s", l < r->nlinks ? report_si(sent, sizeof sent, (double)r->link[l].sent_max) : "-",
                   l + 1 < c->q.on.nlinks ? "" : "\n");
        }
    }
}

static void print_table(const comparison *c)
{
    printf("  %-12s %-17s %9s %9s %9s %9s %9s %8s", c->q.a->meshes != NULL ? "asked" : "method", "mesh", "sent max",
           "mean", "total", "memory", "time", "to best");
    printf(c->baseline >= 0 ? " %8s\n" : "%s\n", c->baseline >= 0 ? "to base" : "");
    for (int i = 0; i < c->rows; i++) {
        const plan_row *r = &c->row[i];
        char sent[16], mean[16], total[16], memory[16], time[16];
        if (r->refusal[0] != '\0') {
            report_wrap(stdout, r->refusal, printf("  %-12s no plan: ", r->name), 17, REPORT_COLUMNS);
            printf("\n");
            continue;
        }
        printf("  ");
        report_cell(r->name, 2, 12);
        printf(" ");
        report_cell(r->mesh, 15, 17);
        printf(" %9s %9s %9s %9s %9s", report_si(sent, 16, (double)r->sent_max),
               report_si(mean, 16, (double)r->total / r->ranks), report_si(total, 16, (double)r->total),
               cli_row_memory(memory, sizeof memory, r), report_seconds(time, 16, r->time_s));
        print_ratio(c, r, c->best);
        if (c->baseline >= 0) {
            print_ratio(c, r, c->baseline);
        }
        printf("\n");
    }
    cli_say_too_large(&c->q, c->row, c->rows);
    print_links(c);
    if (c->best < 0) {
        const cli_arguments *a = c->q.a;
        printf("no row has a plan: %s\n",
               a->memory_bytes > 0
                   ? "where memory is why, --objective memory without --memory has the rows that need least"
               : a->meshes != NULL ? "with -n in place of --meshes those meshes are compared that have one"
                                   : "heddle plan takes any method, and says of which stage where none has a plan");
    }
}

static void print_links_json(const plan_row *r)
{
    printf("\"links\": [");
    for (int i = 0; i < r->nlinks; i++) {
        printf("%s{", i > 0 ? ", " : "");
        report_json_string("class", r->link[i].name, ", ");
        printf("\"sent_max\": %" PRId64 ", \"received_max\": %" PRId64 ", \"total\": %" PRId64 "}", r->link[i].sent_max,
               r->link[i].received_max, r->link[i].total);
    }
    printf("]");
}

static void print_json(const comparison *c, const char *model)
{
    printf("{\"schema\": \"heddle-compare-1\", ");
    report_json_string("model", model, ", ");
    report_json_string("machine", c->q.on.name, ",\n \"rows\": [");
    for (int i = 0; i < c->rows; i++) {
        const plan_row *r = &c->row[i];
        printf("%s{", i > 0 ? ",\n  " : "\n  ");
        report_json_string("name", r->name, ", ");
        if (r->refusal[0] != '\0') {
            report_json_string("refusal", r->refusal, "}");
            continue;
        }
        report_json_string("mesh", r->mesh, ", ");
        printf("\"ranks\": %d, \"bytes_per_rank_max\": %" PRId64 ", \"bytes_per_rank_mean\": %.15g, \"bytes_total\": "
               "%" PRId64 ", \"time_s\": %.12g, ",
               r->ranks, r->sent_max, (double)r->total / r->ranks, r->total, r->time_s);
        printf(r->memory_bytes > 0 ? "\"memory_bytes_per_rank\": %" PRId64 ", " : "\"memory_bytes_per_rank\": null, ",
               r->memory_bytes);
        printf("\"fits\": %s, \"to_best\": %.6g, ", cli_row_fits(&c->q, r), ratio(c, r, c->best));
        if (c->baseline >= 0) {
            printf("\"to_baseline\": %.6g, ", ratio(c, r, c->baseline));
        }
        print_links_json(r);
        printf("}");
    }
    printf("]}\n");
}

static void print_csv(const comparison *c)
{
    printf("name,mesh,ranks,bytes_per_rank_max,bytes_total,memory_bytes_per_rank,time_s,to_best,refusal\n");
    for (int i = 0; i < c->rows; i++) {
        const plan_row *r = &c->row[i];
        cli_print_cell(r->name);
        printf(",");
        cli_print_cell(r->mesh);
        printf(",%d,%" PRId64 ",%" PRId64 ",%" PRId64 ",%.12g,%.6g,", r->ranks, r->sent_max, r->total, r->memory_bytes,
               r->time_s, ratio(c, r, c->best));
        cli_print_cell(r->refusal);
        printf("\n");
    }
}

static int print(const comparison *c)
{
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    const heddle_status st = heddle_model_get_info(&model, c->q.model);
    if (st != HEDDLE_OK) {
        return cli_report(st);
    }
    if (c->q.a->json) {
        print_json(c, model.name);
    } else if (c->q.a->csv) {
        print_csv(c);
    } else {
        printf("%s, machine %s, %s\n", model.name, c->q.on.name, c->q.machine_from);
        print_table(c);
    }
    return c->best >= 0 ? CLI_OK : CLI_INFEASIBLE;
}

static int run(const cli_arguments *a)
{
    comparison *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return cli_report(heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for a comparison"));
    }
    cli_arguments asked = *a;
    asked.ranks = a->meshes != NULL && a->ranks == 0 && a->machine == NULL ? 1 : a->ranks; /* rows have their own */
    int code = cli_ask(&c->q, &asked);
    code = code != CLI_OK ? code : fill(c, a->meshes != NULL ? a->meshes : a->listed);
    code = code != CLI_OK ? code : choose(c);
    code = code != CLI_OK ? code : print(c);
    cli_ask_end(&c->q);
    free(c);
    return code;
}

const cli_action cli_compare = {
    .synopsis = "usage: heddle compare MODEL -n 16 [--methods best,ulysses,ring] [--machine X] [options]\n"
                "       heddle compare MODEL --meshes 'sp=16,cfg=2 sp=8' [--machine X] [options]\n"
                "\n"
                "  heddle compare hunyuanvideo -n 16 --machine 2x8xh100-nvlink+ib400 --baseline ulysses\n"
                "\n"
                "A row for every method, each on the mesh of -n that suits it, or for every mesh.\n",
    .notes = "dsp: attention has its fibres whole, layouts switch between the stages (where an attention mixes\n"
             "all dims that is Ulysses). ulysses, ring, usp, rsa, gather-kv; lasp, lasp2, scan for linear\n"
             "attention: the method wherever one dim is attended, which stays sharded, the better one of\n"
             "several. megatron-sp, megatron-tp: weights of attention and MLP are split; all-gathers and\n"
             "reduce-scatters around each, or rows everywhere and all-reduces. best: what heddle plan takes.\n"
             "sent max: bytes that the busiest rank sends in a pass; mean: all ranks together / ranks.\n"
             "exit codes: 0 done, 2 bad input, 3 no row has a plan\n",
    .run = run,
};
