/* Galvatron's JSON of links: sp_time {"all2all_size_8_64MB_time": 0.3997, ...}, milliseconds by MiB;
 * allreduce_bandwidth {"allreduce_size_8_consec_1": 153.5, ...} and p2p_bandwidth {"pp_size_2": 8.0, ...}, GB/s that a
 * rank sends in a ring, of neighbours (consec_1) or of ranks that are spread over all; and overlap_coefficient
 * {"overlap_coe": 1.146}. */
#include "planner/machine/read.h"
#include "planner/machine/times.h"

#include <stdlib.h>
#include <string.h>

static const double mib = 1048576;

/* A key is PREFIX RANKS MIDDLE SIZE SUFFIX; without a middle it has no size. */
typedef struct figure {
    const char *prefix, *middle, *suffix;
    hd_test test;
    int is_rate; /* in GB/s; SIZE is then 1 of neighbours, 0 of ranks that are spread over all. Else ms, SIZE is MiB */
} figure;

static const figure figures[] = {{"all2all_size_", "_", "MB_time", HD_TEST_ALL_TO_ALL, 0},
                                 {"allreduce_size_", "_", "MB_time", HD_TEST_SUM_AND_GATHER, 0},
                                 {"allreduce_size_", "_consec_", "", HD_TEST_SUM_AND_GATHER, 1},
                                 {"pp_size_", NULL, "", HD_TEST_HOP, 1}};

static int take_word(const char **at, const char *word)
{
    const size_t length = strlen(word);
    const int is_there = strncmp(*at, word, length) == 0;
    *at += is_there ? length : 0;
    return is_there;
}

static int take_number(const char **at, int *out)
{
    const size_t digits = strspn(*at, "0123456789");
    *out = digits >= 1 && digits <= 6 ? atoi(*at) : -1;
    *at += digits;
    return *out >= 0;
}

static int reads_as(int *ranks, int *size, const figure *f, const char *key)
{
    *size = 0;
    return take_word(&key, f->prefix) && take_number(&key, ranks) &&
           (f->middle == NULL || (take_word(&key, f->middle) && take_number(&key, size))) &&
           strcmp(key, f->suffix) == 0 && *ranks >= 2 && (f->is_rate ? *size <= 1 : *size >= 1);
}

static heddle_status read_figure(hd_time_sets *out, int *is_known, const hd_node *node)
{
    int ranks = 0, size = 0;
    double value = 0;
    *is_known = strcmp(node->key, "overlap_coe") == 0;
    if (*is_known) {
        return hd_machine_number(&out->overlap_slowdown, node, 1, 100, "overlap_coe");
    }
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        const figure *f = &figures[i];
        if (reads_as(&ranks, &size, f, node->key)) {
            const heddle_status st =
                hd_machine_number(&value, node, 1e-6, 1e9, f->is_rate ? "bandwidth in GB/s" : "time in ms");
            *is_known = 1;
            return st != HEDDLE_OK ? st
                   : f->is_rate    ? hd_times_add_rate(out, f->test, ranks, size == 0, 1e9 * value)
                                   : hd_times_add(out, f->test, ranks, size * mib, 1e-3 * value);
        }
    }
    return HEDDLE_OK;
}

static int is_profile(const char *key)
{
    return strncmp(key, "layertype_", strlen("layertype_")) == 0 ||
           strncmp(key, "other_memory_", strlen("other_memory_")) == 0;
}

static heddle_status read_times(void *out, const hd_node *root)
{
    char quoted[HD_NODE_QUOTE_BYTES];
    if (root->kind != HD_NODE_MAP) {
        return hd_node_fail(HEDDLE_ERR_PARSE, root, "no times of Galvatron: {\"all2all_size_8_64MB_time\": 0.4, ...}");
    }
    for (const hd_node *child = root->child; child != NULL; child = child->next) {
        if (is_profile(child->key)) {
            return hd_node_fail(HEDDLE_ERR_PARSE, child,
                                "this is Galvatron's profile of a model's layers, and a machine has none: of its files "
                                "sp_time, allreduce_bandwidth, p2p_bandwidth and overlap_coefficient are read, and "
                                "heddle calibrate measures what work takes");
        }
        int is_known = 0;
        const heddle_status st = read_figure(out, &is_known, child);
        if (!is_known) {
            return hd_node_fail(HEDDLE_ERR_PARSE, child,
                                "no figure of Galvatron: '%s'; all2all_size_8_64MB_time, allreduce_size_8_64MB_time, "
                                "allreduce_size_8_consec_1, pp_size_2 and overlap_coe are",
                                hd_quote(quoted, sizeof quoted, child->key));
        }
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    return HEDDLE_OK;
}

heddle_status hd_times_galvatron(hd_time_sets *out, const char *path)
{
    return hd_document_load(read_times, out, path, HD_MACHINE_LIMIT_BYTES);
}
