/* Galvatron's JSON of times: {"all2all_size_8_64MB_time": 0.3997, ...}, milliseconds by MiB. */
#include "planner/machine/read.h"
#include "planner/machine/times.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double mib = 1048576;

/* What stands behind the prefix: RANKS_SIZEMB_time. */
static int read_key(int *ranks, int *size, const char *rest)
{
    int end = 0;
    return strspn(rest, "0123456789") > 0 && sscanf(rest, "%6d_%6dMB_time%n", ranks, size, &end) == 2 && end > 0 &&
           rest[end] == '\0' && *ranks >= 2 && *size >= 1;
}

static heddle_status read_times(void *out, const hd_node *root)
{
    static const struct {
        const char *prefix;
        hd_test test;
    } known[] = {{"all2all_size_", HD_TEST_ALL_TO_ALL}, {"allreduce_size_", HD_TEST_SUM_AND_GATHER}};
    char quoted[HD_NODE_QUOTE_BYTES];
    if (root->kind != HD_NODE_MAP) {
        return hd_node_fail(HEDDLE_ERR_PARSE, root, "no times of Galvatron: {\"all2all_size_8_64MB_time\": 0.4, ...}");
    }
    for (const hd_node *child = root->child; child != NULL; child = child->next) {
        int ranks = 0, size = 0, is_known = 0;
        for (size_t i = 0; i < sizeof known / sizeof known[0] && !is_known; i++) {
            const size_t length = strlen(known[i].prefix);
            if (strncmp(child->key, known[i].prefix, length) == 0 && read_key(&ranks, &size, child->key + length)) {
                double ms = 0;
                heddle_status st = hd_machine_number(&ms, child, 1e-6, 1e9, "time in ms");
                st = st == HEDDLE_OK ? hd_times_add(out, known[i].test, ranks, size * mib, 1e-3 * ms) : st;
                if (st != HEDDLE_OK) {
                    return st;
                }
                is_known = 1;
            }
        }
        if (!is_known) {
            return hd_node_fail(
                HEDDLE_ERR_PARSE, child,
                "no time of Galvatron: '%s'; all2all_size_8_64MB_time and allreduce_size_8_64MB_time are",
                hd_quote(quoted, sizeof quoted, child->key));
        }
    }
    return HEDDLE_OK;
}

heddle_status hd_times_galvatron(hd_time_sets *out, const char *path)
{
    return hd_document_load(read_times, out, path, HD_MACHINE_LIMIT_BYTES);
}
