/* The figures of a machine file. */
#include "planner/machine/read.h"
#include "runtime/base/base.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const hd_work_names[HD_WORKS] = {[HD_WORK_PRODUCT] = "product",
                                             [HD_WORK_ATTENTION] = "attention",
                                             [HD_WORK_LINEAR] = "linear",
                                             [HD_WORK_MEMORY] = "memory",
                                             [HD_WORK_SHARDED] = "sharded_attention"};
const char *const hd_exchange_names[HD_EXCHANGES] = {[HD_EXCHANGE_ALL_TO_ALL] = "all_to_all",
                                                     [HD_EXCHANGE_RING] = "ring",
                                                     [HD_EXCHANGE_ALL_GATHER] = "all_gather",
                                                     [HD_EXCHANGE_REDUCE_SCATTER] = "reduce_scatter"};

/* Wider than anything real, narrow enough that no quotient leaves the numbers. */
static const double most_seconds = 1e6, most_size = 1e18;

static int has_number_form(const char *text)
{
    const size_t length = strlen(text);
    return length > 0 && length < 64 && strspn(text, "0123456789.eE+-") == length && strpbrk(text, "0123456789");
}

/* In the C locale, whatever the program has set: a point is a point. */
static double to_number(const char *text, char **end)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0) {
        return strtod(text, end);
    }
    locale_t before = uselocale(plain);
    const double value = strtod(text, end);
    uselocale(before);
    freelocale(plain);
    return value;
}

heddle_status hd_machine_number(double *out, const hd_node *node, double low, double high, const char *what)
{
    char quoted[HD_NODE_QUOTE_BYTES];
    char *end = NULL;
    if (node->kind != HD_NODE_SCALAR || node->quoted || !has_number_form(node->text)) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'%s' must be a number as 12, 0.5 or 3.7e11, found %s%s%s", what,
                            node->kind == HD_NODE_SCALAR ? "'" : "no single value",
                            node->kind == HD_NODE_SCALAR ? hd_quote(quoted, sizeof quoted, node->text) : "",
                            node->kind == HD_NODE_SCALAR ? "'" : "");
    }
    const double value = to_number(node->text, &end);
    if (*end != '\0') {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'%s' must be a number as 12, 0.5 or 3.7e11, found '%s'", what,
                            hd_quote(quoted, sizeof quoted, node->text));
    }
    if (!(value >= low && value <= high)) {
        return hd_node_fail(HEDDLE_ERR_LAYOUT, node, "'%s' must be from %g to %g, found %s", what, low, high,
                            hd_quote(quoted, sizeof quoted, node->text));
    }
    *out = value;
    return HEDDLE_OK;
}

static heddle_status read_point(hd_rate *rate, const hd_node *node)
{
    heddle_status st = hd_node_list(node, 2, 2, "[size, rate]");
    const int n = rate->npoints;
    HD_TRY(st);
    HD_TRY(hd_machine_number(&rate->size[n], node->child, 1, most_size, "size"));
    HD_TRY(hd_machine_number(&rate->per_second[n], node->child->next, 1, HD_MACHINE_RATE_MAX, "rate"));
    if (n > 0 && rate->size[n] <= rate->size[n - 1]) {
        st = hd_node_fail(HEDDLE_ERR_LAYOUT, node, "sizes must ascend, found %g behind %g", rate->size[n],
                          rate->size[n - 1]);
        goto out;
    }
    rate->npoints++;
out:
    return st;
}

/* A number for every size, or [size, rate] pairs. */
static heddle_status read_rate(hd_rate *rate, const hd_node *node)
{
    heddle_status st = HEDDLE_OK;
    if (node->kind == HD_NODE_SCALAR) {
        rate->npoints = 1;
        rate->size[0] = 1;
        return hd_machine_number(&rate->per_second[0], node, 1, HD_MACHINE_RATE_MAX, "rates");
    }
    HD_TRY(hd_node_list(node, 1, HD_RATE_POINTS, "rates"));
    for (const hd_node *child = node->child; child != NULL; child = child->next) {
        HD_TRY(read_point(rate, child));
    }
out:
    return st;
}

enum { RATE_START, RATE_RATES, RATE_KEYS };
static const hd_key rate_keys[RATE_KEYS] = {[RATE_START] = {"start_s", 0}, [RATE_RATES] = {"rates", 1}};

static heddle_status read_work_rate(hd_work_rate *out, const hd_node *node, const char *what)
{
    heddle_status st = HEDDLE_OK;
    const hd_node *value[RATE_KEYS];
    HD_TRY(hd_map_read(value, node, rate_keys, RATE_KEYS, what));
    HD_TRY(value[RATE_START] ? hd_machine_number(&out->start_s, value[RATE_START], 0, most_seconds, "start_s")
                             : HEDDLE_OK);
    HD_TRY(read_rate(&out->rate, value[RATE_RATES]));
out:
    return st;
}

static heddle_status read_dtypes(hd_work_rate *out, const hd_node *node, const char *what)
{
    heddle_status st = HEDDLE_OK;
    const hd_node *value[HEDDLE_DTYPE_COUNT];
    hd_key keys[HEDDLE_DTYPE_COUNT];
    for (int d = 0; d < HEDDLE_DTYPE_COUNT; d++) {
        keys[d] = (hd_key){heddle_dtype_name((heddle_dtype)d), 0};
    }
    HD_TRY(hd_map_read(value, node, keys, HEDDLE_DTYPE_COUNT, what));
    if (node->count == 0) {
        st = hd_node_fail(HEDDLE_ERR_PARSE, node, "'%s' has figures of no dtype (f32: {rates: 5e10})", what);
        goto out;
    }
    for (int d = 0; d < HEDDLE_DTYPE_COUNT; d++) {
        HD_TRY(value[d] ? read_work_rate(&out[d], value[d], keys[d].name) : HEDDLE_OK);
    }
out:
    return st;
}

heddle_status hd_machine_read_work(heddle_machine *machine, const hd_node *node)
{
    heddle_status st = HEDDLE_OK;
    const hd_node *value[HD_WORKS];
    hd_key keys[HD_WORKS];
    for (int w = 0; w < HD_WORKS; w++) {
        keys[w] = (hd_key){hd_work_names[w], w != HD_WORK_LINEAR && w != HD_WORK_SHARDED};
    }
    HD_TRY(hd_map_read(value, node, keys, HD_WORKS, "work"));
    for (int w = 0; w < HD_WORKS; w++) {
        if (w == HD_WORK_MEMORY) {
            HD_TRY(read_work_rate(&machine->work[w][HEDDLE_F32], value[w], hd_work_names[w]));
        } else if (value[w] != NULL) {
            HD_TRY(read_dtypes(machine->work[w], value[w], hd_work_names[w]));
        }
    }
out:
    return st;
}

enum { GROUP_RANKS, GROUP_START, GROUP_RATES, GROUP_KEYS };
static const hd_key group_keys[GROUP_KEYS] = {
    [GROUP_RANKS] = {"ranks", 0}, [GROUP_START] = {"start_s", 0}, [GROUP_RATES] = {"rates", 1}};

static heddle_status read_group(hd_exchange_rate *out, const hd_node *node)
{
    heddle_status st = HEDDLE_OK;
    const hd_node *value[GROUP_KEYS];
    const int n = out->ngroups;
    int64_t ranks = 2;
    HD_TRY(hd_map_read(value, node, group_keys, GROUP_KEYS, "a group"));
    HD_TRY(value[GROUP_RANKS] ? hd_node_int(&ranks, value[GROUP_RANKS], 2, HD_MACHINE_MAX_RANKS, "ranks") : HEDDLE_OK);
    if (n > 0 && ranks <= out->group[n - 1].ranks) {
        st = hd_node_fail(HEDDLE_ERR_LAYOUT, node, "groups must grow, found %lld ranks behind %d", (long long)ranks,
                          out->group[n - 1].ranks);
        goto out;
    }
    out->group[n].ranks = (int)ranks;
    HD_TRY(value[GROUP_START]
               ? hd_machine_number(&out->group[n].start_s, value[GROUP_START], 0, most_seconds, "start_s")
               : HEDDLE_OK);
    HD_TRY(read_rate(&out->group[n].rate, value[GROUP_RATES]));
    out->ngroups++;
out:
    return st;
}

static heddle_status read_link(hd_link *link, const hd_node *node)
{
    heddle_status st = HEDDLE_OK;
    const hd_node *value[HD_EXCHANGES];
    hd_key keys[HD_EXCHANGES];
    for (int e = 0; e < HD_EXCHANGES; e++) {
        keys[e] = (hd_key){hd_exchange_names[e], 0};
    }
    HD_TRY(hd_map_read(value, node, keys, HD_EXCHANGES, link->name));
    for (int e = 0; e < HD_EXCHANGES; e++) {
        HD_TRY(value[e] ? hd_node_list(value[e], 1, HD_RATE_GROUPS, hd_exchange_names[e]) : HEDDLE_OK);
        for (const hd_node *child = value[e] ? value[e]->child : NULL; child != NULL; child = child->next) {
            HD_TRY(read_group(&link->exchange[e], child));
        }
    }
out:
    return st;
}

heddle_status hd_machine_read_links(heddle_machine *machine, const hd_node *node)
{
    heddle_status st = HEDDLE_OK;
    if (node->kind != HD_NODE_MAP || node->count == 0 || node->count > HEDDLE_MACHINE_LINKS) {
        return hd_node_fail(HEDDLE_ERR_PARSE, node, "'links' must be a map of 1 to %d link classes (name: {...})",
                            HEDDLE_MACHINE_LINKS);
    }
    for (const hd_node *child = node->child; child != NULL; child = child->next) {
        hd_link *link = &machine->link[machine->nlinks];
        if (strlen(child->key) >= sizeof link->name || !hd_machine_is_name(child->key)) {
            return hd_node_fail(HEDDLE_ERR_PARSE, child,
                                "a link class's name has 1 to %d letters, digits or . _ -, found '%.40s'",
                                HEDDLE_NAME_BYTES - 1, child->key);
        }
        memcpy(link->name, child->key, strlen(child->key) + 1);
        HD_TRY(read_link(link, child));
        machine->nlinks++;
    }
out:
    return st;
}
