/* Reads a preset's name. */
#include "planner/machine/preset.h"
#include "runtime/base/base.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const usual[] = {"cpu",
                                    "8xh100-nvlink",
                                    "8xh200-nvlink",
                                    "8xh800-nvlink",
                                    "8xh20-nvlink",
                                    "8xa100-nvlink",
                                    "8xa800-nvlink",
                                    "8xl20-pcie",
                                    "8xl40-pcie",
                                    "2x8xh100-nvlink+ib400",
                                    "2x8xh200-nvlink+ib400",
                                    "2x8xa100-nvlink+ib200",
                                    "2x8xl20-pcie+eth100",
                                    "2x8xl40-pcie+eth100"};
enum { USUAL = sizeof usual / sizeof usual[0] };

enum { WORD_BYTES = 24, NAME_BYTES = 512, NAMES = 32, MAX_PER_HOST = 1024 };

/* Digits and the x behind them; 0: something else stands there. *out: 0 where the number is out of range. */
static size_t take_count(int64_t *out, const char *text)
{
    const size_t digits = strspn(text, "0123456789");
    if (digits == 0 || text[digits] != 'x') {
        return 0;
    }
    *out = digits < 9 ? strtoll(text, NULL, 10) : 0;
    return digits + 1;
}

static size_t take_word(char *out, const char *text, const char *ends)
{
    const size_t length = strcspn(text, ends);
    snprintf(out, WORD_BYTES, "%.*s", (int)(length < WORD_BYTES ? length : WORD_BYTES - 1), text);
    return length;
}

/* " (did you mean NAME?)" where something is near. */
static const char *hint(char *out, size_t bytes, const char *word, const char *const *names, int n)
{
    const char *near = hd_nearest(word, names, n);
    out[0] = '\0';
    if (near != NULL) {
        snprintf(out, bytes, "; did you mean '%s'?", near);
    }
    return out;
}

/* Names of a table, each once, as "a, b, c" and in a list. */
static int known_gpus(const char **names, char *list, size_t bytes)
{
    int n = 0;
    list[0] = '\0';
    for (const hd_gpu *g = hd_gpus; g->name != NULL && n < NAMES; g++) {
        int seen = 0;
        for (int i = 0; i < n; i++) {
            seen |= strcmp(names[i], g->name) == 0;
        }
        if (!seen) {
            hd_add_text(list, bytes, n > 0 ? ", " : "");
            hd_add_text(list, bytes, g->name);
            names[n++] = g->name;
        }
    }
    return n;
}

static heddle_status find_gpu(const hd_gpu **out, const char *text, const char *gpu, const char *interconnect)
{
    static const char *const interconnects[] = {"nvlink", "pcie"};
    const char *names[NAMES];
    char list[128], near[64], quoted[HD_NODE_QUOTE_BYTES];
    const int n = known_gpus(names, list, sizeof list);
    const hd_gpu *other = NULL;
    for (const hd_gpu *g = hd_gpus; g->name != NULL; g++) {
        if (strcmp(g->name, gpu) == 0) {
            other = g;
            if (strcmp(g->interconnect, interconnect) == 0) {
                *out = g;
                return HEDDLE_OK;
            }
        }
    }
    hd_quote(quoted, sizeof quoted, text);
    if (other == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "machine '%s': no GPU is called '%s' (there are %s)%s", quoted, gpu, list,
                       hint(near, sizeof near, gpu, names, n));
    }
    if (strcmp(interconnect, "nvlink") == 0) {
        return hd_fail(HEDDLE_ERR_ARG, "machine '%s': %s has no NVLink; did you mean '%s-pcie'?", quoted, gpu, gpu);
    }
    return hd_fail(HEDDLE_ERR_ARG, "machine '%s': GPUs are linked by nvlink or pcie, not by '%s'%s", quoted,
                   interconnect, hint(near, sizeof near, interconnect, interconnects, 2));
}

static heddle_status find_network(const hd_network **out, const char *text, const char *network)
{
    const char *names[NAMES];
    char list[128] = "", near[64], quoted[HD_NODE_QUOTE_BYTES];
    int n = 0;
    for (const hd_network *w = hd_networks; w->name != NULL && n < NAMES; w++) {
        if (strcmp(w->name, network) == 0) {
            *out = w;
            return HEDDLE_OK;
        }
        hd_add_text(list, sizeof list, n > 0 ? ", " : "");
        hd_add_text(list, sizeof list, w->name);
        names[n++] = w->name;
    }
    return hd_fail(HEDDLE_ERR_ARG, "machine '%s': no network is called '%s' (there are %s)%s",
                   hd_quote(quoted, sizeof quoted, text), network, list, hint(near, sizeof near, network, names, n));
}

/* A name that has a GPU's in it, and what it lacks besides: 2x8xh100, a100. 0: it has none. */
static int complete(char *out, size_t bytes, const char *text)
{
    for (const hd_gpu *g = hd_gpus; g->name != NULL; g++) {
        const char *at = strstr(text, g->name);
        const size_t counts = at != NULL ? (size_t)(at - text) : 0;
        if (at != NULL && at[strlen(g->name)] == '\0' && counts < WORD_BYTES && strspn(text, "0123456789x") >= counts) {
            const int is_said = counts > 1 && at[-1] == 'x', hosts = is_said && memchr(text, 'x', counts - 1) != NULL;
            snprintf(out, bytes, "; did you mean '%.*s%s-%s%s'?", is_said ? (int)counts : 2, is_said ? text : "8x",
                     g->name, g->interconnect, hosts ? "+ib400" : "");
            return 1;
        }
    }
    return 0;
}

static heddle_status fail_form(const char *text, const char *lower)
{
    char near[96], quoted[HD_NODE_QUOTE_BYTES];
    if (hint(near, sizeof near, lower, usual, USUAL)[0] == '\0' && !complete(near, sizeof near, lower)) {
        near[0] = '\0';
    }
    return hd_fail(HEDDLE_ERR_ARG, "no machine is called '%s': a preset's name is cpu or " HD_PRESET_FORM "%s",
                   hd_quote(quoted, sizeof quoted, text), near);
}

/* What the name's numbers say about hosts and GPUs. */
static heddle_status check_counts(const hd_preset *p, int64_t hosts, int64_t gpus, const char *text)
{
    char quoted[HD_NODE_QUOTE_BYTES];
    hd_quote(quoted, sizeof quoted, text);
    if (gpus < 1 || gpus > MAX_PER_HOST || hosts < 1 || hosts * gpus > HD_MACHINE_MAX_RANKS) {
        return hd_fail(HEDDLE_ERR_ARG, "machine '%s': a host has 1 to %d GPUs and all hosts together %d at most",
                       quoted, MAX_PER_HOST, HD_MACHINE_MAX_RANKS);
    }
    if (hosts > 1 && p->network == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "machine '%s': %lld hosts want a network; did you mean '%s+ib400'?", quoted,
                       (long long)hosts, quoted);
    }
    if (hosts == 1 && p->network != NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "machine '%s': a network wants two hosts or more; did you mean '2x%s'?", quoted,
                       strncmp(text, "1x", 2) == 0 && gpus > 1 ? quoted + 2 : quoted);
    }
    if (hosts > 1 && p->gpu->nvlink_ring == 0 && gpus > 4 && gpus % 2 != 0) {
        return hd_fail(HEDDLE_ERR_ARG, "machine '%s': %lld GPUs do not fill two sockets alike", quoted,
                       (long long)gpus);
    }
    return HEDDLE_OK;
}

void hd_preset_lower(char *out, size_t bytes, const char *name)
{
    size_t n = 0;
    for (; name[n] != '\0' && n + 1 < bytes; n++) {
        out[n] = (char)tolower((unsigned char)name[n]);
    }
    out[n] = '\0';
}

heddle_status hd_preset_parse(hd_preset *out, const char *text)
{
    heddle_status st = HEDDLE_OK;
    char lower[NAME_BYTES], gpu[WORD_BYTES], interconnect[WORD_BYTES], network[WORD_BYTES];
    int64_t first = 1, second = 1;
    const char *p = lower;
    hd_preset made = {0};
    hd_preset_lower(lower, sizeof lower, text);
    size_t length = take_count(&first, p);
    if (length == 0) {
        return fail_form(text, lower);
    }
    p += length;
    length = take_count(&second, p);
    p += length;
    const int64_t hosts = length > 0 ? first : 1, gpus = length > 0 ? second : first;
    p += take_word(gpu, p, "-+");
    if (*p != '-' || gpu[0] == '\0') {
        return fail_form(text, lower);
    }
    p += 1 + take_word(interconnect, p + 1, "+");
    HD_TRY(find_gpu(&made.gpu, text, gpu, interconnect));
    if (*p == '+') {
        take_word(network, p + 1, "");
        HD_TRY(find_network(&made.network, text, network));
    }
    HD_TRY(check_counts(&made, hosts, gpus, text));
    made.hosts = (int)hosts;
    made.gpus = (int)gpus;
    *out = made;
out:
    return st;
}

const char *heddle_machine_preset_name(int nth)
{
    return nth >= 0 && nth < USUAL ? usual[nth] : NULL;
}
