#include "runtime/document/node.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEAR_BYTES = 40, NEAR_EDITS = 2 };

static const char *const kind_names[] = {
    [HD_NODE_SCALAR] = "a single value", [HD_NODE_LIST] = "a list", [HD_NODE_MAP] = "a map"};

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* Edit distance with neighbour swaps; texts of up to NEAR_BYTES. */
static int edits(const char *a, const char *b)
{
    int na = (int)strlen(a);
    int nb = (int)strlen(b);
    int d[NEAR_BYTES + 1][NEAR_BYTES + 1];
    for (int i = 0; i <= na; i++) {
        for (int j = 0; j <= nb; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            int change = a[i - 1] != b[j - 1];
            d[i][j] = smaller(d[i - 1][j - 1] + change, smaller(d[i - 1][j], d[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                d[i][j] = smaller(d[i][j], d[i - 2][j - 2] + 1);
            }
        }
    }
    return d[na][nb];
}

const char *hd_nearest(const char *text, const char *const *names, int nnames)
{
    const char *best = NULL;
    int best_edits = NEAR_EDITS + 1;
    if (strlen(text) > NEAR_BYTES) {
        return NULL;
    }
    for (int i = 0; i < nnames; i++) {
        size_t length = strlen(names[i]);
        if (length > NEAR_BYTES || length < 2) {
            continue;
        }
        int n = edits(text, names[i]);
        if (n < best_edits && n < (int)length) {
            best = names[i];
            best_edits = n;
        }
    }
    return best;
}

static void join(char *out, size_t out_bytes, const char *const *names, int nnames)
{
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < nnames && n < out_bytes; i++) {
        n += (size_t)snprintf(out + n, out_bytes - n, "%s%s", i > 0 ? ", " : "", names[i]);
    }
}

static heddle_status fail_unknown(const hd_node *node, const char *kind, const char *text, const char *where,
                                  const char *const *names, int nnames)
{
    char quoted[HD_NODE_QUOTE_BYTES];
    char known[512];
    const char *nearest = hd_nearest(text, names, nnames);
    hd_quote(quoted, sizeof quoted, text);
    if (nearest != NULL) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "unknown %s '%s' in %s; did you mean '%s'?", kind, quoted, where,
                            nearest);
    }
    join(known, sizeof known, names, nnames);
    return hd_node_fail(HEDDLE_ERR_PARSE, node, "unknown %s '%s' in %s; known: %s", kind, quoted, where, known);
}

heddle_status hd_map_read(const hd_node **values, const hd_node *node, const hd_key *keys, int nkeys, const char *what)
{
    const char *names[HD_NODE_MAP_KEYS];
    if (node->kind != HD_NODE_MAP) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "%s must be a map (key: value), found %s", what,
                            kind_names[node->kind]);
    }
    for (int i = 0; i < nkeys; i++) {
        values[i] = NULL;
        names[i] = keys[i].name;
    }
    for (const hd_node *child = node->child; child != NULL; child = child->next) {
        int i = 0;
        while (i < nkeys && strcmp(child->key, keys[i].name) != 0) {
            i++;
        }
        if (i == nkeys) {
            hd_node at = *child;
            at.line = child->key_line;
            at.column = child->key_column;
            return fail_unknown(&at, "key", child->key, what, names, nkeys);
        }
        values[i] = child;
    }
    for (int i = 0; i < nkeys; i++) {
        if (keys[i].required && values[i] == NULL) {
            return hd_node_fail(HEDDLE_ERR_PARSE, node, "%s has no '%s'", what, keys[i].name);
        }
    }
    return HEDDLE_OK;
}

heddle_status hd_map_refuse(const hd_node *node, const hd_other *others, int nothers)
{
    for (int i = 0; i < nothers; i++) {
        for (const hd_node *child = node->child; child != NULL; child = child->next) {
            if (child->key != NULL && strcmp(child->key, others[i].key) == 0) {
                return hd_node_fail(HEDDLE_ERR_PARSE, child, "%s", others[i].says);
            }
        }
    }
    return HEDDLE_OK;
}

static heddle_status want_scalar(const hd_node *node, const char *what, const char *wanted)
{
    if (node->kind != HD_NODE_SCALAR) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'%s' must be %s, found %s", what, wanted, kind_names[node->kind]);
    }
    return HEDDLE_OK;
}

/* 010 is eight in YAML and ten elsewhere: neither is taken. */
static int is_whole_number(const char *text)
{
    const char *p = *text == '-' ? text + 1 : text;
    return *p != '\0' && strspn(p, "0123456789") == strlen(p) && (*p != '0' || p[1] == '\0');
}

heddle_status hd_node_int(int64_t *out, const hd_node *node, int64_t low, int64_t high, const char *what)
{
    char quoted[HD_NODE_QUOTE_BYTES];
    heddle_status st = want_scalar(node, what, "a whole number");
    if (st != HEDDLE_OK) {
        return st;
    }
    hd_quote(quoted, sizeof quoted, node->text);
    if (node->quoted || !is_whole_number(node->text)) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'%s' must be a whole number, found '%s'", what, quoted);
    }
    errno = 0;
    long long value = strtoll(node->text, NULL, 10);
    if (errno != 0 || value < low || value > high) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'%s' must be from %lld to %lld, found %s", what, (long long)low,
                            (long long)high, quoted);
    }
    *out = value;
    return HEDDLE_OK;
}

heddle_status hd_node_bool(int *out, const hd_node *node, const char *what)
{
    char quoted[HD_NODE_QUOTE_BYTES];
    heddle_status st = want_scalar(node, what, "true or false");
    if (st != HEDDLE_OK) {
        return st;
    }
    int is_true = strcmp(node->text, "true") == 0;
    if (node->quoted || (!is_true && strcmp(node->text, "false") != 0)) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'%s' must be true or false, found '%s'", what,
                            hd_quote(quoted, sizeof quoted, node->text));
    }
    *out = is_true;
    return HEDDLE_OK;
}

heddle_status hd_node_text(const char **out, const hd_node *node, const char *what)
{
    heddle_status st = want_scalar(node, what, "a text");
    if (st == HEDDLE_OK) {
        *out = node->text;
    }
    return st;
}

heddle_status hd_node_label(char *out, const hd_node *node, const char *what)
{
    char quoted[HD_NODE_QUOTE_BYTES];
    const char *text = NULL;
    heddle_status st = hd_node_text(&text, node, what);
    if (st != HEDDLE_OK) {
        return st;
    }
    size_t length = strlen(text);
    if (length == 0 || length >= HD_NODE_LABEL_BYTES ||
        strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") != length) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'%s' must be 1 to %d letters, digits, '.', '_' or '-', found '%s'",
                            what, HD_NODE_LABEL_BYTES - 1, hd_quote(quoted, sizeof quoted, text));
    }
    memcpy(out, text, length + 1);
    return HEDDLE_OK;
}

heddle_status hd_node_choice(int *out, const hd_node *node, const char *const *names, int nnames, const char *what)
{
    heddle_status st = want_scalar(node, what, "a word");
    if (st != HEDDLE_OK) {
        return st;
    }
    for (int i = 0; i < nnames; i++) {
        if (strcmp(node->text, names[i]) == 0) {
            *out = i;
            return HEDDLE_OK;
        }
    }
    char where[HD_NODE_QUOTE_BYTES];
    snprintf(where, sizeof where, "'%s'", what);
    return fail_unknown(node, "value", node->text, where, names, nnames);
}

heddle_status hd_node_list(const hd_node *node, int low, int high, const char *what)
{
    if (node->kind != HD_NODE_LIST) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'%s' must be a list, found %s", what, kind_names[node->kind]);
    }
    if (node->count < low || node->count > high) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'%s' must have %d to %d entries, found %d", what, low, high,
                            node->count);
    }
    return HEDDLE_OK;
}
