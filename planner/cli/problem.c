#include "problem.h"

#include <stdlib.h>
#include <string.h>

enum { RANDOM_RANKS = 4, MOST_DRAWS = 20000 };

static int parse_line(heddle_shape *shape, heddle_mesh *at, heddle_layout *sharded, const char *text)
{
    char copy[HEDDLE_LINE_BYTES], *mesh, *layout;
    snprintf(copy, sizeof copy, "%s", text);
    mesh = strstr(copy, " on ");
    if (mesh == NULL || strlen(text) >= sizeof copy) {
        return cli_usage_error("an attention problem reads 'f32[b=2 s=37 h=6 d=16] on [sp=4]', not '%s'", text);
    }
    *mesh = 0;
    mesh += 4;
    layout = strchr(mesh, ':');
    if (layout != NULL) {
        *layout++ = 0;
        layout += strspn(layout, " ");
    }
    heddle_status st = heddle_shape_parse(shape, copy);
    st = st != HEDDLE_OK ? st : heddle_mesh_parse(at, mesh);
    if (st == HEDDLE_OK && layout != NULL) {
        st = heddle_layout_parse(sharded, layout, shape, at);
    } else if (st == HEDDLE_OK) {
        *sharded = heddle_layout_replicated();
        for (int a = 0; a < at->naxes; a++) {
            sharded->dim_of_axis[a] = 1;
        }
    }
    return cli_report(st);
}

/* With --random: how many ranks, and that no option was given that is of one problem only. */
static int take_random(int *ranks, const cli_arguments *a, const char *option, const char *given)
{
    *ranks = a->ranks > 0 ? (int)a->ranks : RANDOM_RANKS;
    return given == NULL ? CLI_OK : cli_usage_error("--%s is of one problem, not of --random", option);
}

static heddle_status none_drawn(int ranks)
{
    return heddle_set_error(HEDDLE_ERR_ARG,
                            "%d problems were drawn for %d rank%s, and none is such as the options ask for", MOST_DRAWS,
                            ranks, ranks == 1 ? "" : "s");
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

static int take_lengths(attention_case *out, const char *text)
{
    int count = 0;
    for (const char *at = text; at != NULL;) {
        char *end;
        long long value = strtoll(at, &end, 10);
        if (end == at || value < 0 || (*end != 0 && *end != ',') || count == ATTENTION_MAX_BATCH) {
            return cli_usage_error("--key-lengths wants up to %d whole numbers with commas, not '%s'",
                                   ATTENTION_MAX_BATCH, text);
        }
        out->key_length[count++] = value;
        at = *end == ',' ? end + 1 : NULL;
    }
    out->has_key_lengths = count;
    return CLI_OK;
}

static int take_attention_options(attention_case *out, const cli_arguments *a)
{
    heddle_attention_options *o = &out->options;
    heddle_attention_options_init(o);
    o->causal = a->causal;
    o->placement = a->zigzag ? HEDDLE_PLACEMENT_ZIGZAG : o->placement;
    o->rsa_all_reduce = a->all_reduce;
    o->kv_heads = a->kv_heads > 0 ? a->kv_heads : o->kv_heads;
    o->projected_length = a->projected > 0 ? a->projected : o->projected_length;
    o->threads = a->threads > 0 ? (int)a->threads : o->threads;
    out->seed = (uint64_t)a->seed;
    int code = a->method != NULL ? cli_report(heddle_attention_method_parse(&o->method, a->method)) : CLI_OK;
    return code == CLI_OK && a->key_lengths != NULL ? take_lengths(out, a->key_lengths) : code;
}

/* Key lengths against the batch, then the problem as a whole. */
static int check_attention(const attention_case *c)
{
    heddle_attention_traffic traffic;
    heddle_attention_options options = c->options;
    if (c->has_key_lengths && c->has_key_lengths != c->shape.dim[0].extent) {
        return cli_usage_error("%d key lengths for a batch of %lld", c->has_key_lengths,
                               (long long)c->shape.dim[0].extent);
    }
    options.key_lengths = c->has_key_lengths ? c->key_length : NULL;
    return cli_report(heddle_attention_plan_traffic(&traffic, &c->shape, &c->mesh, &c->layout, &options, 0));
}

int cli_attention_problem(attention_case *out, int *ranks, const cli_arguments *a)
{
    int code = take_attention_options(out, a);
    if (code != CLI_OK || a->operand == NULL) {
        return code != CLI_OK ? code : take_random(ranks, a, "key-lengths", a->key_lengths);
    }
    code = parse_line(&out->shape, &out->mesh, &out->layout, a->operand);
    code = code != CLI_OK ? code : cli_mesh_ranks(ranks, a, &out->mesh);
    return code != CLI_OK ? code : check_attention(out);
}

/* Has `drawn` all that was asked for? `asked` is what take_attention_options made of it. */
static int is_asked_attention(const heddle_attention_options *drawn, const heddle_attention_options *asked,
                              const cli_arguments *a)
{
    return (a->method == NULL || drawn->method == asked->method) && (!a->causal || drawn->causal) &&
           (!a->zigzag || drawn->placement == asked->placement) && (!a->all_reduce || drawn->rsa_all_reduce) &&
           (a->kv_heads == 0 || drawn->kv_heads == asked->kv_heads) &&
           (a->projected == 0 || drawn->projected_length == asked->projected_length);
}

heddle_status cli_attention_draw(attention_case *out, random_source *source, int ranks, const cli_arguments *a)
{
    attention_case asked = {.seed = 0};
    take_attention_options(&asked, a);
    for (int i = 0; i < MOST_DRAWS; i++) {
        attention_draw(out, source, ranks, HEDDLE_DTYPE_COUNT);
        if (is_asked_attention(&out->options, &asked.options, a)) {
            out->options.threads = a->threads > 0 ? asked.options.threads : out->options.threads;
            return HEDDLE_OK;
        }
    }
    return none_drawn(ranks);
}

/* --- linear attention --------------------------------------------------------------------------------------------- */

static int take_decay(linear_case *c, const cli_arguments *a)
{
    int64_t heads = c->shape.dim[2].extent;
    if (c->shape.ndim != 4 || heads > LINEAR_MAX_HEADS) {
        return cli_usage_error("heddle %s wants the dims batch, sequence, heads (at most %d) and width",
                               a->command->name, LINEAR_MAX_HEADS);
    }
    if (a->decay != NULL && strcmp(a->decay, "per-head") == 0) {
        return heads < 1 ? CLI_OK : cli_report(heddle_linear_attention_slopes(c->decay, heads));
    }
    char *end = NULL;
    double decay = a->decay == NULL ? 1 : strtod(a->decay, &end);
    if (a->decay != NULL && (end == a->decay || *end != 0 || !(decay > 0 && decay <= 1))) {
        return cli_usage_error("--decay wants a number above 0 and at most 1, or per-head, not '%s'", a->decay);
    }
    for (int h = 0; h < LINEAR_MAX_HEADS; h++) {
        c->decay[h] = decay;
    }
    return CLI_OK;
}

static int take_linear_options(linear_case *out, const cli_arguments *a)
{
    heddle_linear_attention_options *o = &out->options;
    heddle_linear_attention_options_init(o);
    o->dv = a->dv > 0 ? a->dv : o->dv;
    o->chunk_rows = a->chunk > 0 ? a->chunk : o->chunk_rows;
    o->threads = a->threads > 0 ? (int)a->threads : o->threads;
    o->bidirectional = a->bidirectional;
    o->receive_first = a->receive_first;
    out->seed = (uint64_t)a->seed;
    o->method = HEDDLE_LINEAR_LASP;
    return a->method != NULL ? cli_report(heddle_linear_method_parse(&o->method, a->method)) : CLI_OK;
}

int cli_linear_problem(linear_case *out, int *ranks, const cli_arguments *a)
{
    heddle_attention_traffic traffic;
    if (a->causal && a->bidirectional) {
        return cli_usage_error("heddle %s: --causal and --bidirectional contradict one another", a->command->name);
    }
    int code = take_linear_options(out, a);
    if (code != CLI_OK || a->operand == NULL) {
        return code != CLI_OK ? code : take_random(ranks, a, "decay", a->decay);
    }
    code = parse_line(&out->shape, &out->mesh, &out->layout, a->operand);
    code = code != CLI_OK ? code : take_decay(out, a);
    code = code != CLI_OK ? code : cli_mesh_ranks(ranks, a, &out->mesh);
    if (code != CLI_OK) {
        return code;
    }
    out->options.decay = out->decay;
    return cli_report(
        heddle_linear_attention_plan_traffic(&traffic, &out->shape, &out->mesh, &out->layout, &out->options, 0));
}

static int is_asked_linear(const heddle_linear_attention_options *drawn, const heddle_linear_attention_options *asked,
                           const cli_arguments *a)
{
    return (a->method == NULL || drawn->method == asked->method) && (!a->causal || !drawn->bidirectional) &&
           (!a->bidirectional || drawn->bidirectional) && (!a->receive_first || drawn->receive_first) &&
           (a->dv == 0 || drawn->dv == asked->dv) && (a->chunk == 0 || drawn->chunk_rows == asked->chunk_rows);
}

heddle_status cli_linear_draw(linear_case *out, random_source *source, int ranks, const cli_arguments *a)
{
    linear_case asked = {.seed = 0};
    take_linear_options(&asked, a);
    for (int i = 0; i < MOST_DRAWS; i++) {
        linear_draw(out, source, ranks, HEDDLE_DTYPE_COUNT);
        if (is_asked_linear(&out->options, &asked.options, a)) {
            out->options.threads = a->threads > 0 ? asked.options.threads : out->options.threads;
            return HEDDLE_OK;
        }
    }
    return none_drawn(ranks);
}
