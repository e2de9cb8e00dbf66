#include "attention_cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

heddle_status attention_parse_line(attention_case *out, const char *text)
{
    char copy[HEDDLE_LINE_BYTES], *mesh, *layout;
    heddle_status st;
    snprintf(copy, sizeof copy, "%s", text);
    mesh = strstr(copy, " on ");
    if (mesh == NULL || strlen(text) >= sizeof copy) {
        cli_usage_error("an attention problem reads 'f32[b=2 s=37 h=6 d=16] on [sp=4]', not '%s'", text);
        return HEDDLE_ERR_PARSE;
    }
    *mesh = 0;
    mesh += 4;
    layout = strchr(mesh, ':');
    if (layout != NULL) {
        *layout++ = 0;
        layout += strspn(layout, " ");
    }
    st = heddle_shape_parse(&out->shape, copy);
    st = st != HEDDLE_OK ? st : heddle_mesh_parse(&out->mesh, mesh);
    if (st == HEDDLE_OK && layout != NULL) {
        st = heddle_layout_parse(&out->layout, layout, &out->shape, &out->mesh);
    } else if (st == HEDDLE_OK) {
        out->layout = heddle_layout_replicated();
        for (int a = 0; a < out->mesh.naxes; a++) {
            out->layout.dim_of_axis[a] = 1;
        }
    }
    if (st != HEDDLE_OK) {
        cli_report(st);
    }
    return st;
}

static int take_lengths(attention_case *out, const char *text)
{
    const char *at = text;
    int count = 0;
    for (;; at++) {
        char *end;
        long long value = strtoll(at, &end, 10);
        if (end == at || value < 0 || (*end != 0 && *end != ',') || count == ATTENTION_MAX_BATCH) {
            return cli_usage_error("--key-lengths wants up to %d whole numbers with commas, not '%s'",
                                   ATTENTION_MAX_BATCH, text);
        }
        out->key_length[count++] = value;
        at = end;
        if (*end == 0) {
            break;
        }
    }
    out->has_key_lengths = count;
    return CLI_OK;
}

static const char *const alone[] = {"--causal", "--zigzag", "--all-reduce"};
static const char *const with_value[] = {"--method", "--kv-heads", "--key-lengths", "--project", "--threads"};

int attention_option_kind(const char *option)
{
    for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++) {
        if (strcmp(alone[i], option) == 0) {
            return 1;
        }
    }
    for (size_t i = 0; i < sizeof with_value / sizeof with_value[0]; i++) {
        if (strcmp(with_value[i], option) == 0) {
            return 0;
        }
    }
    return -1;
}

int attention_take_option(attention_case *out, int *taken, const char *option, const char *value)
{
    long long number = 0;
    int code = CLI_OK;
    *taken = attention_option_kind(option) >= 0;
    if (strcmp(option, "--causal") == 0) {
        out->options.causal = 1;
    } else if (strcmp(option, "--zigzag") == 0) {
        out->options.placement = HEDDLE_PLACEMENT_ZIGZAG;
    } else if (strcmp(option, "--all-reduce") == 0) {
        out->options.rsa_all_reduce = 1;
    } else if (strcmp(option, "--method") == 0) {
        heddle_status st = heddle_attention_method_parse(&out->options.method, value);
        return st == HEDDLE_OK ? CLI_OK : cli_report(st);
    } else if (strcmp(option, "--kv-heads") == 0) {
        code = cli_parse_int(&number, option, value, 1, INT32_MAX);
        out->options.kv_heads = number;
    } else if (strcmp(option, "--project") == 0) {
        code = cli_parse_int(&number, option, value, 1, INT32_MAX);
        out->options.projected_length = number;
    } else if (strcmp(option, "--threads") == 0) {
        code = cli_parse_int(&number, option, value, 1, 256);
        out->options.threads = (int)number;
    } else if (strcmp(option, "--key-lengths") == 0) {
        code = take_lengths(out, value);
    }
    return code;
}

/* Negative: this system does not say. */
static double available_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    double kib = -1;
    while (file != NULL && kib < 0 && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "MemAvailable: %lf", &kib) != 1) {
            kib = -1;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return kib * 1024;
}

int attention_check_memory(const attention_case *c)
{
    attention_extents n = attention_extents_of(c);
    int ranks = heddle_mesh_size(&c->mesh);
    double wanted = 2 * ranks * attention_bytes(&n), available = available_bytes();
    if (available < 0 || wanted <= available) {
        return CLI_OK;
    }
    return cli_usage_error(
        "the reference of %lld rows, %lld heads of %lld, projected length %lld, takes %.0f bytes on %d "
        "ranks, available are %.0f",
        (long long)(n.batch * n.sequence), (long long)n.heads, (long long)n.width, (long long)n.projected, wanted,
        ranks, available);
}

int attention_check_options(attention_case *c)
{
    heddle_attention_traffic traffic;
    heddle_attention_options options = c->options;
    if (c->has_key_lengths && c->has_key_lengths != c->shape.dim[0].extent) {
        return cli_usage_error("%d key lengths for a batch of %lld", c->has_key_lengths,
                               (long long)c->shape.dim[0].extent);
    }
    options.key_lengths = c->has_key_lengths ? c->key_length : NULL;
    heddle_status st = heddle_attention_plan_traffic(&traffic, &c->shape, &c->mesh, &c->layout, &options, 0);
    return st == HEDDLE_OK ? CLI_OK : cli_report(st);
}
