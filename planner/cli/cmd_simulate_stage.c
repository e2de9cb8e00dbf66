/* heddle simulate attention, heddle simulate linear-attention: a problem as a model of one stage, which is planned and
 * priced like every other. */
#include "ask.h"
#include "planner/report/forecast.h"
#include "problem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 2 * HEDDLE_LINE_BYTES };

/* What of a problem the planner counts. */
typedef struct stage {
    heddle_shape shape; /* batch, sequence, heads, width */
    heddle_mesh mesh;
    heddle_layout layout;
    const char *kind, *method;
    char more[128]; /* keys that only this kind has */
} stage;

/* "b=1 s=8192 h=24 d=128" becomes the line that verify and bench read: bf16 where it names no dtype, on the mesh of
 * --mesh, else one rank. */
static int write_line(char *out, const cli_arguments *a)
{
    const char *text = a->operand, *mesh = a->mesh != NULL ? a->mesh : "sp=1";
    const int has_mesh = strstr(text, " on ") != NULL, has_dtype = strchr(text, '[') != NULL;
    char behind[HEDDLE_LINE_BYTES] = "";
    if (strchr(text, '=') == NULL || (!has_dtype && strchr(text, ',') != NULL)) {
        return cli_usage_error("heddle %s wants a problem, as 'b=1 s=8192 h=24 d=128', not '%s'", a->command->name,
                               text);
    }
    if (has_mesh && a->mesh != NULL) {
        return cli_usage_error("heddle %s: a mesh stands behind the problem and another one in --mesh",
                               a->command->name);
    }
    if (!has_mesh) {
        snprintf(behind, sizeof behind, mesh[0] == '[' ? " on %s" : " on [%s]", mesh);
        for (char *p = behind; *p != '\0'; p++) {
            *p = *p == ',' ? ' ' : *p;
        }
    }
    const int n = snprintf(out, HEDDLE_LINE_BYTES, has_dtype ? "%s%s" : "bf16[%s]%s", text, behind);
    return n < HEDDLE_LINE_BYTES
               ? CLI_OK
               : cli_usage_error("a problem of %d characters is longer than %d", n, HEDDLE_LINE_BYTES - 1);
}

static heddle_status make_model(heddle_model **out, const stage *s)
{
    char text[TEXT_BYTES];
    const heddle_dim *d = s->shape.dim;
    const int n = snprintf(text, sizeof text,
                           "model: %s\ndtype: %s\ndims:\n  b: {size: %" PRId64 ", role: batch}\n  s: %" PRId64
                           "\n  c: {size: %" PRId64 ", role: channel}\ntensors:\n  x: [b, s, c]\n"
                           "stages:\n  - {name: attention, kind: %s, over: s, heads: %" PRId64 ", core: true%s}\n",
                           s->kind, heddle_dtype_name(s->shape.dtype), d[0].extent, d[1].extent,
                           d[2].extent * d[3].extent, s->kind, d[2].extent, s->more);
    return heddle_model_parse(out, text, (size_t)n, "the problem");
}

/* The schedule has no choice: layout and method are the problem's. */
static int simulate(stage *s, const cli_arguments *a)
{
    char mesh[HEDDLE_LINE_BYTES], layout[HEDDLE_LINE_BYTES];
    cli_arguments asked = *a;
    cli_question q = {.a = a};
    cli_answer answer = {0};
    heddle_model *model = NULL;
    snprintf(s->shape.dim[0].name, sizeof s->shape.dim[0].name, "b");
    snprintf(s->shape.dim[1].name, sizeof s->shape.dim[1].name, "s");
    heddle_status st = heddle_mesh_format(mesh, sizeof mesh, &s->mesh);
    st = st == HEDDLE_OK ? heddle_layout_format(layout, sizeof layout, &s->layout, &s->shape, &s->mesh) : st;
    st = st == HEDDLE_OK ? make_model(&model, s) : st;
    if (st != HEDDLE_OK) {
        return cli_report(st);
    }
    if (heddle_mesh_size(&s->mesh) > 1) {
        snprintf(asked.force, sizeof asked.force, "attention=%s/%s", layout, s->method);
    }
    snprintf(asked.methods, sizeof asked.methods, "attention=%s", s->method);
    asked.mesh = mesh;
    asked.prologue = asked.epilogue = layout;
    asked.training = a->backward;
    asked.objective = CLI_FIRST; /* time: bytes would leave waste to --slack */
    int code = cli_ask_of(&q, model, &asked);
    code = code != CLI_OK ? code : cli_answer_to(&answer, &q);
    code = code != CLI_OK ? code : cli_report(report_simulation(&answer.view, a->json));
    cli_answer_end(&answer);
    cli_ask_end(&q);
    return code;
}

static int run_attention(const cli_arguments *a)
{
    char line[HEDDLE_LINE_BYTES];
    attention_case problem;
    cli_arguments asked = *a;
    int ranks = 0, code = write_line(line, a);
    asked.operand = line;
    code = code != CLI_OK ? code : cli_attention_problem(&problem, &ranks, &asked);
    if (code != CLI_OK) {
        return code;
    }
    const heddle_attention_options *o = &problem.options;
    stage s = {.shape = problem.shape,
               .mesh = problem.mesh,
               .layout = problem.layout,
               .kind = "attention",
               .method = heddle_attention_method_name(o->method)};
    snprintf(s.more, sizeof s.more, ", kv_heads: %" PRId64 "%s%s",
             o->kv_heads > 0 ? o->kv_heads : problem.shape.dim[2].extent, o->causal ? ", causal: true" : "",
             o->causal && o->placement == HEDDLE_PLACEMENT_ZIGZAG ? ", placement: zigzag" : "");
    return simulate(&s, a);
}

static int run_linear(const cli_arguments *a)
{
    char line[HEDDLE_LINE_BYTES];
    linear_case problem;
    cli_arguments asked = *a;
    int ranks = 0, code = write_line(line, a);
    asked.operand = line;
    code = code != CLI_OK ? code : cli_linear_problem(&problem, &ranks, &asked);
    if (code != CLI_OK) {
        return code;
    }
    stage s = {.shape = problem.shape,
               .mesh = problem.mesh,
               .layout = problem.layout,
               .kind = "linear-attention",
               .method = heddle_linear_method_name(problem.options.method),
               .more = ", causal: true"};
    return simulate(&s, a);
}

const cli_action cli_simulate_attention = {
    .synopsis = "usage: heddle simulate attention 'b=1 s=8192 h=24 d=128' --mesh sp=8 --method M [options]\n"
                "       heddle simulate attention 'bf16[b=1 s=8192 h=24 d=128] on [sp=8]' --method M [options]\n"
                "\n"
                "  heddle simulate attention 'b=1 s=118800 h=24 d=128' --mesh sp=8 --method ring --machine 8xl20-pcie\n"
                "\n"
                "The seconds and the memory of one attention: queries, keys and values are given. Nothing is run.\n",
    .notes = "exit codes: 0 done, 2 bad input, 3 infeasible\n",
    .run = run_attention,
};

const cli_action cli_simulate_linear = {
    .synopsis = "usage: heddle simulate linear-attention 'b=1 s=2097152 h=16 d=128' --mesh sp=64 --method M [options]\n"
                "\n"
                "The seconds and the memory of one causal linear attention: queries, keys and values are given.\n"
                "Nothing is run.\n",
    .notes = "exit codes: 0 done, 2 bad input, 3 infeasible\n",
    .run = run_linear,
};
