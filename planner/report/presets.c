#include "planner/report/presets.h"

#include "planner/report/text.h"

#include <stdio.h>
#include <string.h>

typedef struct preset_row {
    heddle_preset_info preset;
    heddle_model *model;
    heddle_model_info info;
    int64_t tokens; /* of a sample */
    int heads;      /* of the first stage that has any */
    int runs;       /* blocks run all stages */
} preset_row;

static heddle_status read_row(preset_row *out, int index)
{
    *out = (preset_row){.preset = HEDDLE_EMPTY(heddle_preset_info), .info = HEDDLE_EMPTY(heddle_model_info)};
    out->tokens = 1;
    out->runs = 1;
    heddle_status st = heddle_model_preset(&out->preset, index);
    st = st == HEDDLE_OK ? heddle_model_parse(&out->model, out->preset.text, strlen(out->preset.text), out->preset.name)
                         : st;
    st = st == HEDDLE_OK ? heddle_model_get_info(&out->info, out->model) : st;
    for (int d = 0; st == HEDDLE_OK && d < out->info.shape.ndim; d++) {
        out->tokens *= d != out->info.batch_dim && d != out->info.channel_dim ? out->info.shape.dim[d].extent : 1;
    }
    for (int k = 0; st == HEDDLE_OK && k < out->info.nstages; k++) {
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
        st = heddle_model_stage(&stage, out->model, k);
        out->heads = out->heads > 0 || stage.mixed_dim < 0 ? out->heads : stage.heads;
        out->runs = out->runs && stage.refusal == NULL;
    }
    return st;
}

static const char *source_of(const preset_row *row)
{
    return row->info.source != NULL ? row->info.source : "";
}

static int64_t batch_of(const preset_row *row)
{
    return row->info.batch_dim >= 0 ? row->info.shape.dim[row->info.batch_dim].extent : 1;
}

static long long channels_of(const preset_row *row)
{
    return (long long)row->info.shape.dim[row->info.channel_dim].extent;
}

/* As much of a source as a line has room for. */
static void print_source(const char *source, int room)
{
    const int length = (int)strlen(source);
    printf(length <= room ? "%.*s\n" : "%.*s...\n", length <= room ? length : room - 3, source);
}

static void print_row(const preset_row *row)
{
    enum { SOURCE_ROOM = 29 };
    char weights[32];
    report_si(weights, sizeof weights, (double)row->info.nweights);
    weights[strlen(weights) - 1] = '\0'; /* parameters are no bytes */
    printf("%-18s %6d %8lld %5d %9lld %5lld %7s %4s ", row->preset.name, row->info.repeat, channels_of(row), row->heads,
           (long long)row->tokens, (long long)row->info.text_tokens, weights, row->runs ? "yes" : "no");
    print_source(source_of(row), SOURCE_ROOM);
}

static void print_json_row(const preset_row *row, int with_text)
{
    printf("    {");
    report_json_string("name", row->preset.name, ", ");
    printf(
        "\"layers\": %d, \"channels\": %lld, \"heads\": %d, \"batch\": %lld, \"tokens\": %lld, \"text_tokens\": %lld, "
        "\"parameters\": %lld, \"runs\": %s, ",
        row->info.repeat, channels_of(row), row->heads, (long long)batch_of(row), (long long)row->tokens,
        (long long)row->info.text_tokens, (long long)row->info.nweights, row->runs ? "true" : "false");
    report_json_string("source", source_of(row), with_text ? ", " : "}");
    if (with_text) {
        report_json_string("yaml", row->preset.text, "}");
    }
}

static void print_machines(int json)
{
    const char *name = NULL;
    printf(json ? "\n  ],\n  \"machines\": [\n" : "\nmachine                ranks source\n");
    for (int i = 0; (name = heddle_machine_preset_name(i)) != NULL; i++) {
        heddle_machine *machine = NULL;
        heddle_machine_info info = HEDDLE_EMPTY(heddle_machine_info);
        if (heddle_machine_load(&machine, name) == HEDDLE_OK && heddle_machine_get_info(&info, machine) == HEDDLE_OK &&
            json) {
            printf("%s    {", i > 0 ? ",\n" : "");
            report_json_string("name", name, ", ");
            printf("\"ranks\": %d, ", info.ranks);
            report_json_string("source", info.source != NULL ? info.source : "", "}");
        } else if (info.name != NULL) {
            enum { SOURCE_ROOM = 70 };
            printf("%-22s %5d ", name, info.ranks);
            print_source(info.source != NULL ? info.source : "", SOURCE_ROOM);
        }
        heddle_machine_destroy(machine);
    }
    printf(json ? "\n  ]" : "");
}

heddle_status report_presets(int json)
{
    heddle_status st = HEDDLE_OK;
    printf(json ? "{\n  \"schema\": \"heddle-presets-1\",\n  \"models\": [\n"
                : "model              layers channels heads    tokens  text weights runs source\n");
    for (int i = 0; st == HEDDLE_OK && i < heddle_model_presets(); i++) {
        preset_row row;
        st = read_row(&row, i);
        if (st == HEDDLE_OK && json) {
            printf("%s", i > 0 ? ",\n" : "");
            print_json_row(&row, 0);
        } else if (st == HEDDLE_OK) {
            print_row(&row);
        }
        heddle_model_destroy(row.model);
    }
    print_machines(json);
    printf(json ? "\n}\n" : "");
    return st;
}

/* A machine's file is YAML alone. */
static heddle_status print_machine(const char *name)
{
    heddle_machine *machine = NULL;
    heddle_status st = heddle_machine_load(&machine, name);
    st = st == HEDDLE_OK ? heddle_machine_save(machine, "-") : st;
    heddle_machine_destroy(machine);
    return st;
}

heddle_status report_preset(const char *name, int json)
{
    preset_row row;
    int index = -1;
    heddle_status st = heddle_model_find_preset(&index, name);
    if (st != HEDDLE_OK) { /* whose sentence it is where no machine has the name either */
        return !json && print_machine(name) == HEDDLE_OK ? HEDDLE_OK : heddle_model_find_preset(&index, name);
    }
    st = read_row(&row, index);
    if (st == HEDDLE_OK && json) {
        printf("{\n  \"schema\": \"heddle-presets-1\",\n  \"models\": [\n");
        print_json_row(&row, 1);
        printf("\n  ]\n}\n");
    } else if (st == HEDDLE_OK) {
        fputs(row.preset.text, stdout);
    }
    heddle_model_destroy(row.model);
    return st;
}
