/* Measured times replace a machine's figures of links. */
#include "planner/machine/read.h"
#include "planner/machine/times.h"
#include "runtime/base/base.h"

#include <stdio.h>
#include <string.h>

/* What is known of such a group; it is made where nothing is. */
static heddle_status find_set(hd_times **out, hd_time_sets *import, hd_exchange exchange, int ranks, int is_spread)
{
    int i = 0;
    while (i < import->nsets && (import->set[i].exchange != exchange || import->set[i].ranks != ranks ||
                                 import->set[i].is_spread != is_spread)) {
        i++;
    }
    if (i == HEDDLE_IMPORT_ROWS) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "times of more than %d exchanges and sizes of groups",
                       HEDDLE_IMPORT_ROWS);
    }
    *out = &import->set[i];
    if (i == import->nsets) {
        import->nsets++;
        (*out)->exchange = exchange;
        (*out)->ranks = ranks;
        (*out)->is_spread = is_spread;
    }
    return HEDDLE_OK;
}

static heddle_status add_rate(hd_time_sets *import, hd_exchange exchange, int ranks, int is_spread, double per_second)
{
    heddle_status st = HEDDLE_OK;
    hd_times *set = NULL;
    HD_TRY(find_set(&set, import, exchange, ranks, is_spread));
    if (set->n > 0 || set->per_second > 0) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "%s among %d ranks has two figures", hd_exchange_names[exchange], ranks);
    }
    set->per_second = per_second;
out:
    return st;
}

heddle_status hd_times_add_rate(hd_time_sets *import, hd_test test, int ranks, int is_spread, double per_second)
{
    heddle_status st = HEDDLE_OK;
    if (test == HD_TEST_HOP) {
        return add_rate(import, HD_EXCHANGE_RING, ranks, is_spread, per_second);
    }
    HD_TRY(add_rate(import, HD_EXCHANGE_REDUCE_SCATTER, ranks, is_spread, per_second));
    HD_TRY(add_rate(import, HD_EXCHANGE_ALL_GATHER, ranks, is_spread, per_second));
out:
    return st;
}

static heddle_status add(hd_time_sets *import, hd_exchange exchange, int ranks, double bytes, double seconds)
{
    heddle_status st = HEDDLE_OK;
    hd_times *set = NULL;
    HD_TRY(find_set(&set, import, exchange, ranks, 0));
    if (set->per_second > 0) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "%s among %d ranks has two figures", hd_exchange_names[exchange], ranks);
    }
    if (set->n == HD_TIMES_MAX) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "more than %d times of %s among %d ranks", HD_TIMES_MAX,
                       hd_exchange_names[exchange], ranks);
    }
    set->sample[set->n++] = (hd_sample){bytes, seconds};
out:
    return st;
}

heddle_status hd_times_add(hd_time_sets *import, hd_test test, int ranks, double buffer_bytes, double seconds)
{
    static const hd_exchange of[] = {[HD_TEST_ALL_TO_ALL] = HD_EXCHANGE_ALL_TO_ALL,
                                     [HD_TEST_GATHER] = HD_EXCHANGE_ALL_GATHER,
                                     [HD_TEST_SCATTER] = HD_EXCHANGE_REDUCE_SCATTER,
                                     [HD_TEST_HOP] = HD_EXCHANGE_RING};
    const double bytes = test == HD_TEST_HOP ? buffer_bytes : buffer_bytes * (ranks - 1) / ranks;
    heddle_status st = HEDDLE_OK;
    if (test != HD_TEST_SUM_AND_GATHER) {
        return add(import, of[test], ranks, bytes, seconds);
    }
    HD_TRY(add(import, HD_EXCHANGE_REDUCE_SCATTER, ranks, bytes, seconds / 2));
    HD_TRY(add(import, HD_EXCHANGE_ALL_GATHER, ranks, bytes, seconds / 2));
out:
    return st;
}

/* The level that holds the group, and how many of it are nearer: their bytes do not cross it. -1: none does. */
static int find_level(int *nearer, const heddle_machine *machine, const hd_times *set)
{
    const int64_t apart = set->is_spread ? machine->ranks / set->ranks : 1;
    int64_t within = 1;
    *nearer = 1;
    for (int l = 0; l < machine->nlevels && set->ranks <= machine->ranks; l++) {
        *nearer = (int)((within + apart - 1) / apart);
        within *= machine->level[l].size;
        if ((set->ranks - 1) * apart < within) {
            return l;
        }
    }
    return -1;
}

/* Spread groups that meet on the level of neighbours tell nothing more than these. */
static int is_needless(const heddle_machine *machine, const hd_times *set)
{
    int nearer = 1;
    const hd_times neighbours = {.ranks = set->ranks};
    const int l = find_level(&nearer, machine, set);
    return set->is_spread && set->exchange != HD_EXCHANGE_RING && l >= 0 &&
           l == find_level(&nearer, machine, &neighbours);
}

/* Such groups leave the import: they neither replace nor erase anything. */
static heddle_status drop_needless(hd_time_sets *import, const heddle_machine *machine, const char *path)
{
    const int before = import->nsets;
    import->nsets = 0;
    for (int i = 0; i < before; i++) {
        if (!is_needless(machine, &import->set[i])) {
            import->set[import->nsets++] = import->set[i];
        }
    }
    return import->nsets == 0 && before > 0 && !(import->overlap_slowdown > 0)
               ? hd_fail(HEDDLE_ERR_LAYOUT,
                         "%s has only groups that are spread over links of neighbours, which tell nothing more than "
                         "neighbours do",
                         path)
               : HEDDLE_OK;
}

/* How far spread groups are apart follows from the number of ranks alone. */
static heddle_status check_spread(const heddle_machine *machine, const hd_time_sets *import, const char *path)
{
    int most = 0, is_spread = 0;
    for (int i = 0; i < import->nsets; i++) {
        const hd_times *set = &import->set[i];
        most = set->ranks > most ? set->ranks : most;
        is_spread = is_spread || set->is_spread;
        if (set->is_spread && set->ranks <= machine->ranks && machine->ranks % set->ranks != 0) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "%s has groups of %d ranks that are spread over all, machine '%s' has %d",
                           path, set->ranks, machine->name, machine->ranks);
        }
    }
    return is_spread && most < machine->ranks
               ? hd_fail(HEDDLE_ERR_LAYOUT,
                         "%s is of %d ranks, machine '%s' has %d: groups that are spread over all ranks want a machine "
                         "of as many",
                         path, most, machine->name, machine->ranks)
               : HEDDLE_OK;
}

static const double no_bytes = 1e-300; /* which take no time but the start */

/* A bandwidth without times has the start that the machine had. */
static heddle_status put_rate(hd_line *out, heddle_machine *machine, const heddle_machine *before, int link,
                              const hd_times *set, double part, const char *what)
{
    const hd_rate rate = {1, {1}, {set->per_second * part}};
    *out = (hd_line){.start_s = hd_machine_exchange_s(before, link, set->exchange, set->ranks, no_bytes),
                     .per_second = rate.per_second[0]};
    return hd_put_group(&machine->link[link].exchange[set->exchange], set->ranks, out->start_s, &rate, what);
}

static heddle_status fit_set(heddle_machine *machine, heddle_import_row *row, hd_times *set,
                             const heddle_machine *before, const char *path)
{
    heddle_status st = HEDDLE_OK;
    int nearer = 1;
    hd_line line;
    char what[512];
    const int l = find_level(&nearer, machine, set);
    if (l < 0) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "%s has times of %d ranks, machine '%s' has %d", path, set->ranks,
                       machine->name, machine->ranks);
    }
    const double part = set->exchange == HD_EXCHANGE_RING ? 1 : (double)(set->ranks - nearer) / (set->ranks - 1);
    for (int i = 0; i < set->n; i++) {
        set->sample[i].bytes *= part;
    }
    hd_link *link = &machine->link[machine->level[l].link];
    snprintf(what, sizeof what, "%.300s: %s among %d ranks", path, hd_exchange_names[set->exchange], set->ranks);
    if (set->per_second > 0) {
        HD_TRY(put_rate(&line, machine, before, machine->level[l].link, set, part, what));
    } else {
        HD_TRY(hd_fit_group(&line, &link->exchange[set->exchange], set->ranks, set->sample, set->n, what));
    }
    *row = (heddle_import_row){.exchange = hd_exchange_names[set->exchange],
                               .ranks = set->ranks,
                               .times = set->n,
                               .start_s = line.start_s,
                               .bytes_per_s = line.per_second,
                               .worst_error = line.worst_error};
    memcpy(row->link, link->name, sizeof row->link);
out:
    return st;
}

/* Guessed or published figures of an exchange go when times of it come; several groups of one file stay. */
static void forget(heddle_machine *machine, const hd_time_sets *import)
{
    for (int i = 0; i < import->nsets; i++) {
        int nearer = 1;
        const int l = find_level(&nearer, machine, &import->set[i]);
        if (l >= 0) {
            machine->link[machine->level[l].link].exchange[import->set[i].exchange].ngroups = 0;
        }
    }
}

static heddle_status add_source(heddle_machine *machine, const hd_time_sets *import, const char *before,
                                const char *format, const char *path)
{
    static const char *const links[] = {"", "Links: times", "Links: bandwidths", "Links: times and bandwidths"};
    char text[4000];
    const char *name = strrchr(path, '/');
    int has_times = 0, has_rates = 0;
    for (int i = 0; i < import->nsets; i++) {
        has_times = has_times || import->set[i].n > 0;
        has_rates = has_rates || import->set[i].per_second > 0;
    }
    const char *overlap = !(import->overlap_slowdown > 0) ? ""
                          : import->nsets > 0             ? "; overlap: coefficient"
                                                          : "Overlap: coefficient";
    snprintf(text, sizeof text, "%.3000s%s%s%s in %.200s (%s).", before, before[0] != '\0' ? " " : "",
             links[has_times + 2 * has_rates], overlap, name != NULL ? name + 1 : path, format);
    return hd_strdup(&machine->source, text);
}

static heddle_status read_times(hd_time_sets *out, const char *format, const char *path)
{
    heddle_status st = HEDDLE_OK;
    if (strcmp(format, "nccl-tests") == 0) {
        st = hd_times_nccl_tests(out, path);
    } else if (strcmp(format, "galvatron") == 0) {
        st = hd_times_galvatron(out, path);
    } else {
        return hd_fail(HEDDLE_ERR_ARG, "times are in the format nccl-tests or galvatron, not '%.40s'", format);
    }
    if (st == HEDDLE_OK && out->nsets == 0 && !(out->overlap_slowdown > 0)) {
        st = hd_fail(HEDDLE_ERR_PARSE, "%s has no times in the format %s", path, format);
    }
    return st;
}

heddle_status heddle_machine_import(heddle_machine *machine, const char *format, const char *path,
                                    heddle_import_info *info)
{
    heddle_status st = HEDDLE_OK;
    hd_time_sets *times = NULL;
    heddle_machine *made = NULL;
    heddle_import_info result = {.nrows = 0};
    HD_TRY(HD_NEED(machine, format, path));
    HD_TRY(info != NULL ? hd_struct_room(info, HD_STRUCT(heddle_import_info, nrows)) : HEDDLE_OK);
    HD_TRY(hd_alloc((void **)&times, 1, sizeof *times, "measured times"));
    HD_TRY(hd_alloc((void **)&made, 1, sizeof *made, "a machine"));
    HD_TRY(read_times(times, format, path));
    HD_TRY(check_spread(machine, times, path));
    HD_TRY(drop_needless(times, machine, path));
    *made = *machine;
    made->source = NULL;
    made->overlap_slowdown = times->overlap_slowdown > 0 ? times->overlap_slowdown : made->overlap_slowdown;
    forget(made, times);
    for (int i = 0; i < times->nsets; i++) {
        HD_TRY(fit_set(made, &result.row[result.nrows], &times->set[i], machine, path));
        result.nrows++;
    }
    HD_TRY(add_source(made, times, machine->source != NULL ? machine->source : "", format, path));
    HD_TRY(info != NULL ? hd_struct_give(info, &result, HD_STRUCT(heddle_import_info, nrows)) : HEDDLE_OK);
    char *old = machine->source;
    *machine = *made;
    made->source = old;
out:
    hd_free(times);
    heddle_machine_destroy(made);
    return st;
}
