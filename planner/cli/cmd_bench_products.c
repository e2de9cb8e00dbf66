/* heddle bench products: the products of a model's blocks, or of one layer. */
#include "launch.h"
#include "options.h"
#include "planner/report/products.h"
#include "runtime/verify/run.h"

#include <stdlib.h>
#include <string.h>

enum { PRODUCTS = 3, MOST_LAYERS = 3 };

typedef struct request {
    const cli_arguments *a;
    run_task task; /* the model; its schedule, where ranks were asked for */
    int nstages;
    products_stage *stage;
    products_table table;
} request;

/* --- what is to be timed ------------------------------------------------------------------------------------------ */

static int check_options(const cli_arguments *a)
{
    const int has_layer = a->in > 0 || a->out > 0, has_ranks = a->ranks > 0 || a->mesh != NULL;
    if (a->operand == NULL && !has_layer && a->rows == 0) {
        return cli_usage_error("heddle %s wants a model, as stdit3-xl2 -n 4, or a layer: --rows 4096 --in 1152 --out "
                               "3456",
                               a->command->name);
    }
    if (a->operand != NULL && has_layer) {
        return cli_usage_error("--in and --out are of a layer without a model; '%s' has layers of its own (--rows "
                               "changes its rows)",
                               a->operand);
    }
    if (a->operand == NULL && (a->rows == 0 || a->in == 0 || a->out == 0)) {
        return cli_usage_error("a layer is said by all three: --rows 4096 --in 1152 --out 3456");
    }
    if (has_ranks && a->rows > 0) {
        return cli_usage_error("--rows says how many rows there are, and so would %s",
                               a->mesh != NULL ? "--mesh" : "--ranks");
    }
    if (a->operand == NULL && a->sizes[0] != '\0') {
        return cli_usage_error("--size is of a model's dims; of a layer there are --rows, --in and --out");
    }
    if (a->device != NULL && a->threads > 0) {
        return cli_usage_error("--threads are those of the CPU: not with --device");
    }
    if (a->device == NULL && a->dtype > CLI_FIRST + 1) {
        return cli_usage_error("--dtype f16 is of blocks on a device: --device is needed");
    }
    return CLI_OK;
}

static heddle_dtype dtype_of(const cli_arguments *a, heddle_dtype unasked)
{
    static const heddle_dtype dtypes[] = {HEDDLE_F32, HEDDLE_BF16, HEDDLE_F16};
    return a->dtype > 0 ? dtypes[cli_choice(a->dtype)] : unasked;
}

/* As one of a hidden layer. */
static int take_layer(request *r)
{
    products_stage *s = &r->stage[0];
    const cli_arguments *a = r->a;
    heddle_block_options_init(&s->options);
    s->options.kind = HEDDLE_STAGE_MLP;
    s->options.modulate = 0;
    s->options.mlp_channels = a->out;
    s->options.threads = (int)a->threads;
    s->options.shape = (heddle_shape){.ndim = 2,
                                      .dtype = dtype_of(a, HEDDLE_BF16),
                                      .dim = {{.name = "b", .extent = 1}, {.name = "c", .extent = a->in}}};
    s->rows = a->rows;
    s->calls = 1;
    r->nstages = 1;
    return CLI_OK;
}

/* Those of the fullest rank. */
static heddle_status count_rows(products_stage *s, const request *r, const heddle_schedule *schedule, int stage)
{
    const heddle_shape *shape = &r->task.info.shape;
    const int64_t channels = shape->dim[r->task.info.channel_dim].extent;
    const int batch = r->task.info.batch_dim;
    heddle_schedule_stage planned = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_status st = heddle_schedule_stage_at(&planned, schedule, stage);
    for (int rank = 0; rank < r->table.ranks && st == HEDDLE_OK; rank++) {
        heddle_box box;
        st = heddle_layout_box(&box, shape, &r->task.mesh, &planned.layout, rank);
        if (st == HEDDLE_OK) {
            const int64_t rows = heddle_box_elems(&box) / channels, samples = batch >= 0 ? box.len[batch] : 1;
            s->rows = rows > s->rows ? rows : s->rows;
            s->text_rows =
                samples * s->options.text_tokens > s->text_rows ? samples * s->options.text_tokens : s->text_rows;
        }
    }
    s->rows = r->a->rows > 0 ? r->a->rows : s->rows;
    return st;
}

static int is_same(const products_stage *a, const products_stage *b)
{
    const int is_mixed = a->options.kind != HEDDLE_STAGE_MLP;
    const int has_text = a->options.kind == HEDDLE_STAGE_CROSS;
    return a->options.kind == b->options.kind && a->rows == b->rows && (!has_text || a->text_rows == b->text_rows) &&
           (is_mixed || a->options.mlp_channels == b->options.mlp_channels);
}

/* What no longer fits is told by "...", for which there is room. */
static void add_name(char *list, size_t bytes, const char *name)
{
    static const char more[] = ", ...";
    const size_t used = strlen(list);
    const char *separator = used > 0 ? ", " : "";
    if (used >= strlen(more) && strcmp(list + used - strlen(more), more) == 0) {
        return;
    }
    if (used + strlen(separator) + strlen(name) + sizeof more <= bytes) {
        snprintf(list + used, bytes - used, "%s%s", separator, name);
    } else {
        snprintf(list + used, bytes - used, "%s", more);
    }
}

/* One of the model's, with those that are like it; what no block does is left out. */
static heddle_status take_stage(request *r, const heddle_schedule *schedule, int stage)
{
    heddle_stage_info info = HEDDLE_EMPTY(heddle_stage_info);
    products_stage *s = &r->stage[r->nstages];
    heddle_status st = heddle_model_stage(&info, r->task.model, stage);
    if (st == HEDDLE_OK && info.refusal != NULL) {
        char what[256];
        snprintf(what, sizeof what, "%s has %s", info.name, info.refusal);
        add_name(r->table.left_out, sizeof r->table.left_out, what);
        return HEDDLE_OK;
    }
    st = st == HEDDLE_OK ? run_block_options(&s->options, &r->task, stage) : st;
    st = st == HEDDLE_OK ? count_rows(s, r, schedule, stage) : st;
    s->options.shape.dtype = dtype_of(r->a, s->options.shape.dtype);
    int same = 0;
    while (same < r->nstages && !is_same(&r->stage[same], s)) {
        same++;
    }
    r->nstages += same == r->nstages;
    r->stage[same].calls += r->task.info.repeat;
    add_name(r->stage[same].names, sizeof r->stage[same].names, info.name);
    return st;
}

static int make_mesh(request *r)
{
    char text[32];
    snprintf(text, sizeof text, "sp=%d", r->a->ranks > 0 ? (int)r->a->ranks : 1);
    const int code = cli_report(cli_parse_mesh(&r->task.mesh, r->a->mesh != NULL ? r->a->mesh : text));
    return code != CLI_OK ? code : cli_mesh_ranks(&r->table.ranks, r->a, &r->task.mesh);
}

/* The model and its plan by bytes, as heddle run takes it. */
static int take_model(request *r, heddle_model *model)
{
    heddle_schedule *schedule = NULL;
    heddle_plan_options options;
    int code = cli_report(heddle_model_resize(model, cli_said(r->a->sizes), 0));
    r->task.model = model;
    r->task.threads = (int)r->a->threads;
    r->task.info = HEDDLE_EMPTY(heddle_model_info);
    code = code != CLI_OK ? code : cli_report(heddle_model_get_info(&r->task.info, model));
    code = code != CLI_OK ? code : make_mesh(r);
    heddle_plan_options_init(&options);
    options.methods = "";
    code = code != CLI_OK ? code : cli_report(heddle_plan(&schedule, model, &r->task.mesh, &options));
    r->stage = code == CLI_OK ? calloc((size_t)r->task.info.nstages, sizeof *r->stage) : NULL;
    if (code == CLI_OK && r->stage == NULL) {
        cli_say("no memory for %d stages", r->task.info.nstages);
        code = CLI_FAILED;
    }
    for (int k = 0; k < r->task.info.nstages && code == CLI_OK; k++) {
        code = cli_report(take_stage(r, schedule, k));
    }
    heddle_schedule_destroy(schedule);
    r->table.model = r->task.info.name;
    return code != CLI_OK || r->nstages > 0
               ? code
               : cli_usage_error("model '%s' has no stage that a block does: %s (one layer is --rows 4096 --in 1152 "
                                 "--out 3456)",
                                 r->task.info.name, r->table.left_out);
}

/* --- timing ------------------------------------------------------------------------------------------------------- */

static heddle_status time_layer(request *r, heddle_block *block, const products_stage *s, int param, int64_t budget_ms)
{
    heddle_param weight = HEDDLE_EMPTY(heddle_param);
    heddle_status st = heddle_block_param(&weight, block, param);
    for (int kind = HEDDLE_PRODUCT_FORWARD; kind <= HEDDLE_PRODUCT_OUTER && st == HEDDLE_OK; kind++) {
        products_row *row = &r->table.row[r->table.nrows++];
        const int is_text = s->options.kind == HEDDLE_STAGE_CROSS && strncmp(weight.name, "kv_linear", 9) == 0;
        const char *name = r->table.model != NULL ? weight.name : "given";
        snprintf(row->layer, sizeof row->layer, "%.*s", (int)strcspn(name, "."), name);
        row->stage = s;
        row->rows = is_text && r->a->rows == 0 ? s->text_rows : s->rows;
        row->is = HEDDLE_EMPTY(heddle_bench_product_result);
        st = heddle_bench_product(&row->is, block, param, (heddle_product_kind)kind, row->rows, budget_ms);
    }
    return st;
}

static heddle_status time_stage(request *r, heddle_comm *comm, const products_stage *s)
{
    heddle_block_options options = s->options;
    heddle_block *block = NULL;
    options.space = heddle_comm_device(comm) >= 0 ? HEDDLE_SPACE_DEVICE : HEDDLE_SPACE_HOST;
    options.comm = comm;
    heddle_status st = heddle_block_create(&block, &options);
    st = st == HEDDLE_OK ? heddle_block_seed(block, 1) : st;
    const int nparams = r->table.model != NULL ? heddle_block_nparams(block) : 1; /* a layer has its block to itself */
    const int64_t budget_ms = r->a->seconds * 1000 / r->nstages / PRODUCTS / (nparams > 1 ? (nparams + 1) / 2 : 1);
    for (int i = 0; i < nparams && st == HEDDLE_OK; i++) {
        heddle_param param = HEDDLE_EMPTY(heddle_param);
        st = heddle_block_param(&param, block, i);
        st = st == HEDDLE_OK && param.ndim == 2 ? time_layer(r, block, s, i, budget_ms) : st;
    }
    heddle_block_destroy(block);
    return st;
}

static heddle_status bench_main(heddle_comm *comm, void *arg)
{
    request *r = arg;
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < r->nstages && st == HEDDLE_OK; i++) {
        st = time_stage(r, comm, &r->stage[i]);
    }
    if (st == HEDDLE_OK) {
        r->table.comm = heddle_comm_describe(comm);
        r->table.threads = heddle_comm_device(comm) >= 0 ? 0 : r->a->threads > 0 ? (int)r->a->threads : 1;
        report_products(&r->table, r->a->json);
        fflush(stdout);
    }
    return st;
}

static int time_all(request *r)
{
    cli_arguments alone = *r->a;
    alone.transport = "self";
    r->table.row = calloc((size_t)r->nstages * MOST_LAYERS * PRODUCTS, sizeof *r->table.row);
    if (r->table.row == NULL) {
        cli_say("no memory for the products of %d stages", r->nstages);
        return CLI_FAILED;
    }
    return cli_with_ranks(&alone, 1, bench_main, r);
}

static int run(const cli_arguments *a)
{
    request r = {.a = a, .table = {.ranks = 1}};
    heddle_model *model = NULL;
    products_stage layer = {.rows = 0};
    int code = check_options(a);
    if (code == CLI_OK && a->operand == NULL) {
        r.stage = &layer;
        code = take_layer(&r);
    } else if (code == CLI_OK) {
        code = cli_report(heddle_model_load(&model, a->operand));
        code = code != CLI_OK ? code : take_model(&r, model);
    }
    code = code != CLI_OK ? code : time_all(&r);
    free(r.stage != &layer ? r.stage : NULL);
    free(r.table.row);
    heddle_model_destroy(model);
    return code;
}

const cli_action cli_bench_products = {
    .synopsis = "usage: heddle bench products MODEL [options]\n"
                "       heddle bench products --rows R --in K --out N [options]\n"
                "\n"
                "  heddle bench products stdit3-xl2 -n 4 --device cuda\n"
                "  heddle bench products --rows 4096 --in 1152 --out 3456 --dtype f32\n",
    .notes = "The products of the linear layers of a model's blocks, as blocks carry them out: forward,\n"
             "gradient of the input, gradient of the weight (added to). Rows are those of the fullest rank of\n"
             "the plan that heddle run takes; one process times them, alone. On the CPU the time is the clock's,\n"
             "in pieces that stay in a thread's cache; on a device its own, over whole arrays out of its cache,\n"
             "and with what was chosen when the weights were ready. of best = GFLOP/s / the best of the table.\n",
    .run = run,
};
