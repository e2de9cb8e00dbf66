/* heddle plan: the schedule of a model on a mesh, as a table or as JSON. */
#include "methods.h"
#include "plan_table.h"
#include "runtime/files/output.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 512 };

typedef struct plan_request {
    const char *model_path, *mesh_text, *sizes, *output;
    char methods[CLI_METHODS_BYTES]; /* "": the cheapest */
    int layers;
    int json;
    heddle_plan_options options;
} plan_request;

static void usage(FILE *to)
{
    fprintf(to,
            "usage: heddle plan MODEL --mesh sp=4 [options]\n\n"
            "The layout of the activation in every stage of MODEL (a YAML file, docs/formats.md) on a mesh of ranks,\n"
            "and the method of every attention, with the fewest bytes moved, and what each of them moves.\n\n"
            "  --mesh MESH         ranks by axis: sp=4, or 'node=2 gpu=4'\n"
            "  --size t=16,s=256   change extents\n"
            "  --layers L          run the model's stages L times over\n"
            "  --prologue LAYOUT   layout the activation arrives in (default: free choice)\n"
            "  --epilogue LAYOUT   layout it must end in, or 'any' (default: *, replicated)\n"
            "  --method STAGE=METHOD[,...]  how an attention runs; STAGE is a name or *, METHOD one of auto, local,\n"
            "                      ulysses, usp, ring, gather-kv, rsa; lasp, scan, lasp2 for linear attention (auto)\n"
            "  --backward          the bytes of the backward pass count too\n"
            "  --slack P           a stage's largest part may exceed that of its most even layout by P%% (25)\n"
            "  --max-waste P       infeasible (exit 3) when a stage must waste more than P%%\n"
            "  --json              print the schedule as JSON instead of the table\n"
            "  -o FILE             save the schedule as JSON\n\n"
            "The column 'waste' says by how much the busiest rank's part is larger than an even one.\n"
            "exit codes: 0 done, 1 the output could not be written, 2 bad input, 3 infeasible\n");
}

static int take_int(int *out, const char *option, const char *text, int low, int high)
{
    long long value = 0;
    int rc = cli_parse_int(&value, option, text, low, high);
    *out = rc == CLI_OK ? (int)value : *out;
    return rc;
}

static int take_option(plan_request *r, int option)
{
    switch (option) {
    case 'm':
        r->mesh_text = optarg;
        return CLI_OK;
    case 's':
        r->sizes = optarg;
        return CLI_OK;
    case 'l':
        return take_int(&r->layers, "--layers", optarg, 1, 65536);
    case 'p':
        r->options.prologue = optarg;
        return CLI_OK;
    case 'e':
        r->options.epilogue = optarg;
        return CLI_OK;
    case 'k':
        return take_int(&r->options.slack_percent, "--slack", optarg, 0, 1000000);
    case 'w':
        return take_int(&r->options.max_waste_percent, "--max-waste", optarg, 1, 1000000);
    case 'M':
        return cli_add_methods(r->methods, optarg);
    case 'b':
        r->options.backward = 1;
        return CLI_OK;
    case 'j':
        r->json = 1;
        return CLI_OK;
    case 'o':
        r->output = optarg;
        return CLI_OK;
    default:
        return CLI_BAD_INPUT;
    }
}

/* -1: go on; else the exit code. */
static int parse_arguments(plan_request *r, int argc, char **argv)
{
    static const struct option options[] = {
        {"mesh", required_argument, NULL, 'm'},
        {"size", required_argument, NULL, 's'},
        {"layers", required_argument, NULL, 'l'},
        {"prologue", required_argument, NULL, 'p'},
        {"epilogue", required_argument, NULL, 'e'},
        {"method", required_argument, NULL, 'M'},
        {"backward", no_argument, NULL, 'b'},
        {"slack", required_argument, NULL, 'k'},
        {"max-waste", required_argument, NULL, 'w'},
        {"json", no_argument, NULL, 'j'},
        {"output", required_argument, NULL, 'o'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    optind = 1;
    opterr = 0;
    for (;;) {
        int option = getopt_long(argc, argv, ":o:h", options, NULL);
        if (option == -1) {
            break;
        }
        if (option == 'h') {
            usage(stdout);
            return CLI_OK;
        }
        if (option == '?' || option == ':') {
            return cli_usage_error("'%s': %s (heddle plan --help)", argv[optind - 1],
                                   option == ':' ? "this option wants a value" : "unknown option");
        }
        int rc = take_option(r, option);
        if (rc != CLI_OK) {
            return rc;
        }
    }
    if (optind + 1 != argc) {
        return cli_usage_error("heddle plan wants one model file, found %d (heddle plan --help)", argc - optind);
    }
    if (r->mesh_text == NULL) {
        return cli_usage_error("heddle plan wants --mesh, for example --mesh sp=4");
    }
    r->model_path = argv[optind];
    return -1;
}

/* "sp=4" and "node=2,gpu=4" as well as the text form in brackets. */
static heddle_status parse_mesh(heddle_mesh *out, const char *text)
{
    char bracketed[TEXT_BYTES];
    if (text[0] == '[' || strlen(text) + 3 > sizeof bracketed) {
        return heddle_mesh_parse(out, text);
    }
    snprintf(bracketed, sizeof bracketed, "[%s]", text);
    for (char *p = bracketed; *p != '\0'; p++) {
        *p = *p == ',' ? ' ' : *p;
    }
    return heddle_mesh_parse(out, bracketed);
}

/* The model repeated often enough for a steady state; NULL where that is more than the planner takes. */
static heddle_schedule *plan_long_run(const plan_request *r, heddle_model *model, const heddle_schedule_info *info)
{
    heddle_schedule *schedule = NULL;
    if (heddle_model_resize(model, NULL, CLI_LONG_RUN) != HEDDLE_OK ||
        heddle_plan(&schedule, model, &info->mesh, &r->options) != HEDDLE_OK) {
        return NULL;
    }
    return schedule;
}

static int show(const plan_request *r, heddle_model *model, const heddle_schedule *schedule)
{
    cli_plan_view v = {.model = model, .schedule = schedule, .info.struct_bytes = sizeof v.info};
    const int prints_json = r->json || (r->output != NULL && strcmp(r->output, "-") == 0);
    heddle_status st = heddle_schedule_get_info(&v.info, schedule);
    if (st == HEDDLE_OK && r->output != NULL && strcmp(r->output, "-") != 0) {
        st = heddle_schedule_save(schedule, r->output);
    }
    if (st != HEDDLE_OK) {
        const int code = cli_report(st);
        return st == HEDDLE_ERR_IO ? CLI_FAILED : code; /* it could be opened before */
    }
    if (prints_json) {
        return heddle_schedule_save(schedule, "-") == HEDDLE_OK ? CLI_OK : cli_printed(CLI_FAILED);
    }
    v.nranks = heddle_mesh_size(&v.info.mesh);
    v.elems = 1;
    for (int d = 0; d < v.info.shape.ndim; d++) {
        v.elems *= (double)v.info.shape.dim[d].extent;
    }
    v.bytes = v.elems * (double)heddle_dtype_bytes(v.info.shape.dtype);
    heddle_schedule *long_run = v.info.repeat < CLI_LONG_RUN ? plan_long_run(r, model, &v.info) : NULL;
    v.long_run = v.info.repeat < CLI_LONG_RUN ? long_run : schedule;
    cli_print_plan(&v);
    heddle_schedule_destroy(long_run);
    return CLI_OK;
}

int cli_plan(int argc, char **argv)
{
    plan_request r = {0};
    heddle_model *model = NULL;
    heddle_schedule *schedule = NULL;
    heddle_mesh mesh;
    heddle_plan_options_init(&r.options);
    r.options.methods = r.methods;
    int rc = parse_arguments(&r, argc, argv);
    if (rc >= 0) {
        return rc;
    }
    if (r.output != NULL && strcmp(r.output, "-") != 0 && (rc = cli_report(file_output_check(r.output))) != CLI_OK) {
        return rc;
    }
    heddle_status st = heddle_model_load(&model, r.model_path);
    if (st == HEDDLE_OK) {
        st = heddle_model_resize(model, r.sizes, r.layers);
    }
    if (st == HEDDLE_OK) {
        st = parse_mesh(&mesh, r.mesh_text);
    }
    if (st == HEDDLE_OK) {
        st = heddle_plan(&schedule, model, &mesh, &r.options);
    }
    rc = st == HEDDLE_OK ? show(&r, model, schedule) : cli_report(st);
    heddle_schedule_destroy(schedule);
    heddle_model_destroy(model);
    return rc;
}
