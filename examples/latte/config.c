/* config.json of a LatteTransformer3DModel. What it asks for and this program does not do is refused by name. */
#include "latte.h"
#include "runtime/files/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CHANNELS = 1 << 16, LISTS_DEEP = 8 };

typedef struct key {
    const char *name;
    size_t at;         /* of the number in config */
    int64_t low, high; /* high 0: no number */
    const char *only;  /* the one thing it may be, or two with a bar between; NULL: means nothing to a forward pass */
    int optional;
} key;

#define AT(field) offsetof(config, field)
static const key keys[] = {
    {"num_attention_heads", AT(heads), 1, 1024, NULL, 0},
    {"attention_head_dim", AT(head_dim), 1, 1024, NULL, 0},
    {"in_channels", AT(in_channels), 1, 1024, NULL, 0},
    {"out_channels", AT(out_channels), 1, 1024, NULL, 1},
    {"num_layers", AT(layers), 1, 1024, NULL, 0},
    {"patch_size", AT(patch), 1, 64, NULL, 0},
    {"sample_size", AT(side), 1, 4096, NULL, 0},
    {"caption_channels", AT(caption_channels), 1, MOST_CHANNELS, NULL, 0},
    {"video_length", AT(frames), 1, 4096, NULL, 0},
    {"cross_attention_dim", AT(text_channels), 1, MOST_CHANNELS, NULL, 0},
    {"attention_bias", AT(attention_bias), 0, 1, NULL, 1},
    {"activation_fn", 0, 0, 0, "gelu-approximate", 0},
    {"norm_type", 0, 0, 0, "ada_norm_single", 0},
    {"norm_elementwise_affine", 0, 0, 0, "false", 0},
    {"norm_eps", 0, 0, 0, "1e-06", 0},
    {"_class_name", 0, 0, 0, "LatteTransformer3DModel|LatteT2V", 1},
    {"attention_type", 0, 0, 0, "default", 1},
    {"double_self_attention", 0, 0, 0, "false", 1},
    {"only_cross_attention", 0, 0, 0, "false", 1},
    {"upcast_attention", 0, 0, 0, "false", 1},
    {"num_vector_embeds", 0, 0, 0, "null", 1},
    {"use_linear_projection", 0, 0, 0, NULL, 1},
    {"num_embeds_ada_norm", 0, 0, 0, NULL, 1},
    {"norm_num_groups", 0, 0, 0, NULL, 1},
    {"dropout", 0, 0, 0, NULL, 1},
};
enum { KEYS = sizeof(keys) / sizeof(keys[0]) };

static int find_key(const char *name)
{
    int k = 0;
    while (k < KEYS && strcmp(keys[k].name, name) != 0) {
        k++;
    }
    return k;
}

static int take_number(json_reader *r, config *out, const key *k, const char *text)
{
    const int is_switch = k->high == 1 && (strcmp(text, "true") == 0 || strcmp(text, "false") == 0);
    char *end = NULL;
    const double value = is_switch ? text[0] == 't' : strtod(text, &end);
    if ((!is_switch && (end == text || *end != '\0')) || !(value >= (double)k->low && value <= (double)k->high) ||
        value != (double)(int64_t)value) {
        return json_complain(r, "'%s' is %.40s, not a whole number from %" PRId64 " to %" PRId64, k->name, text, k->low,
                             k->high);
    }
    *(int64_t *)(void *)((char *)out + k->at) = (int64_t)value;
    return 0;
}

/* 1e-6 is 1e-06, too. */
static int same_value(const char *wanted, const char *text)
{
    char *end = NULL, *wanted_end = NULL;
    const double a = strtod(text, &end), b = strtod(wanted, &wanted_end);
    return *end == '\0' && *wanted_end == '\0' && end != text && a == b;
}

static int check_only(json_reader *r, const key *k, const char *text)
{
    const char *bar = strchr(k->only, '|');
    const size_t first = bar != NULL ? (size_t)(bar - k->only) : strlen(k->only);
    if ((strlen(text) == first && strncmp(text, k->only, first) == 0) || (bar != NULL && strcmp(text, bar + 1) == 0) ||
        same_value(k->only, text)) {
        return 0;
    }
    return json_complain(r, "'%s' is %.40s; this program does %s", k->name, text, k->only);
}

static int take_known(json_reader *r, config *out, const key *k)
{
    char *text = NULL;
    int quoted = 0, bad = 0;
    if (k->only == NULL && k->high == 0) {
        return json_skip(r, LISTS_DEEP);
    }
    if (json_scalar(r, &text, &quoted) != 0) {
        return -1;
    }
    if (k->only != NULL) {
        bad = check_only(r, k, text);
    } else if (!k->optional || quoted || strcmp(text, "null") != 0) {
        bad = quoted ? json_complain(r, "'%s' is a text, not a number", k->name) : take_number(r, out, k, text);
    }
    free(text);
    return bad;
}

static int take_entry(json_reader *r, config *out, char *seen)
{
    char *name = NULL;
    int bad = json_string(r, &name) != 0 || json_expect(r, ':') != 0;
    if (!bad) {
        const int k = find_key(name);
        if (k < KEYS) {
            bad = seen[k]++ ? json_complain(r, "'%s' is there twice", keys[k].name) : take_known(r, out, &keys[k]);
        } else if (name[0] == '_') { /* about the file */
            bad = json_skip(r, LISTS_DEEP);
        } else {
            bad = json_complain(r, "'%.60s' is nothing that this program knows", name);
        }
    }
    free(name);
    return bad ? -1 : 0;
}

static int take_all(json_reader *r, config *out)
{
    char seen[KEYS] = {0};
    if (json_expect(r, '{') != 0) {
        return -1;
    }
    int more = json_peek(r) != '}';
    while (more) {
        if (take_entry(r, out, seen) != 0 || json_more(r, &more, '}') != 0) {
            return -1;
        }
    }
    r->at++;
    if (json_peek(r) >= 0) {
        return json_complain(r, "something stands behind its end, at byte %zu", r->at);
    }
    for (int k = 0; k < KEYS; k++) {
        if (!seen[k] && !keys[k].optional) {
            return json_complain(r, "'%s' is missing", keys[k].name);
        }
    }
    return 0;
}

/* Positions take a quarter of the channels each for the sine and cosine of row and column. */
static int check_sizes(json_reader *r, config *out)
{
    out->channels = out->heads * out->head_dim;
    out->out_channels = out->out_channels == 0 ? out->in_channels : out->out_channels;
    if (out->channels % 4 != 0 || out->channels > MOST_CHANNELS) {
        return json_complain(r,
                             "%" PRId64 " heads of %" PRId64 " make %" PRId64 " channels, not a multiple of 4 up to %d",
                             out->heads, out->head_dim, out->channels, (int)MOST_CHANNELS);
    }
    if (out->text_channels != out->channels) {
        return json_complain(r,
                             "'cross_attention_dim' is %" PRId64 ", but the text is projected to %" PRId64 " channels",
                             out->text_channels, out->channels);
    }
    if (out->side % out->patch != 0) {
        return json_complain(r, "'sample_size' %" PRId64 " is no multiple of 'patch_size' %" PRId64, out->side,
                             out->patch);
    }
    return 0;
}

heddle_status config_parse(config *out, const char *text, size_t size, const char *name)
{
    char error[512];
    json_reader r = {.text = text, .size = size, .part = "the file", .error = error, .error_bytes = sizeof(error)};
    memset(out, 0, sizeof(*out));
    return take_all(&r, out) == 0 && check_sizes(&r, out) == 0
               ? HEDDLE_OK
               : heddle_set_error(HEDDLE_ERR_PARSE, "%s: %s", name, error);
}

heddle_status config_read(config *out, const char *folder)
{
    mapped file;
    heddle_status st = map_file(&file, folder, "config.json");
    st = st ? st : config_parse(out, (const char *)file.bytes, file.size, file.path);
    unmap_file(&file);
    return st;
}
