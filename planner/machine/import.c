/* Measured times replace a machine's figures of links. */
#include "planner/machine/read.h"
#include "planner/machine/times.h"
#include "runtime/base/base.h"

#include <stdio.h>
#include <string.h>

static heddle_status add(hd_time_sets *import, hd_exchange exchange, int ranks, double bytes, double seconds)
{
    int i = 0;
    while (i < import->nsets && (import->set[i].exchange != exchange || import->set[i].ranks != ranks)) {
        i++;
    }
    if (i == HEDDLE_IMPORT_ROWS) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "times of more than %d exchanges and sizes of groups",
                       HEDDLE_IMPORT_ROWS);
    }
    hd_times *set = &import->set[i];
    if (i == import->nsets) {
        import->nsets++;
        set->exchange = exchange;
        set->ranks = ranks;
    }
    if (set->n == HD_TIMES_MAX) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "more than %d times of %s among %d ranks", HD_TIMES_MAX,
                       hd_exchange_names[exchange], ranks);
    }
    set->sample[set->n++] = (hd_sample){bytes, seconds};
    return HEDDLE_OK;
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

/* The level that holds so many ranks, and how many of them are nearer: their bytes do not cross it. */
static int find_level(int *nearer, const heddle_machine *machine, int ranks)
{
    int64_t within = 1;
    for (int l = 0; l < machine->nlevels; l++) {
        *nearer = (int)within;
        within *= machine->level[l].size;
        if (ranks <= within) {
            return l;
        }
    }
    return -1;
}

static heddle_status fit_set(heddle_machine *machine, heddle_import_row *row, hd_times *set, const char *path)
{
    heddle_status st = HEDDLE_OK;
    int nearer = 1;
    hd_line line;
    char what[512];
    const int l = find_level(&nearer, machine, set->ranks);
    if (l < 0 || set->ranks > machine->ranks) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "%s has times of %d ranks, machine '%s' has %d", path, set->ranks,
                       machine->name, machine->ranks);
    }
    const double part = set->exchange == HD_EXCHANGE_RING ? 1 : (double)(set->ranks - nearer) / (set->ranks - 1);
    for (int i = 0; i < set->n; i++) {
        set->sample[i].bytes *= part;
    }
    hd_link *link = &machine->link[machine->level[l].link];
    snprintf(what, sizeof what, "%.300s: %s among %d ranks", path, hd_exchange_names[set->exchange], set->ranks);
    HD_TRY(hd_fit_group(&line, &link->exchange[set->exchange], set->ranks, set->sample, set->n, what));
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
        const int l = find_level(&nearer, machine, import->set[i].ranks);
        if (l >= 0) {
            machine->link[machine->level[l].link].exchange[import->set[i].exchange].ngroups = 0;
        }
    }
}

static heddle_status add_source(heddle_machine *machine, const char *before, const char *format, const char *path)
{
    char text[4000];
    const char *name = strrchr(path, '/');
    snprintf(text, sizeof text, "%.3000s%sLinks: times in %.200s (%s).", before, before[0] != '\0' ? " " : "",
             name != NULL ? name + 1 : path, format);
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
    if (st == HEDDLE_OK && out->nsets == 0) {
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
    *made = *machine;
    made->source = NULL;
    forget(made, times);
    for (int i = 0; i < times->nsets; i++) {
        HD_TRY(fit_set(made, &result.row[i], &times->set[i], path));
        result.nrows++;
    }
    HD_TRY(add_source(made, machine->source != NULL ? machine->source : "", format, path));
    HD_TRY(info != NULL ? hd_struct_give(info, &result, HD_STRUCT(heddle_import_info, nrows)) : HEDDLE_OK);
    char *old = machine->source;
    *machine = *made;
    made->source = old;
out:
    hd_free(times);
    heddle_machine_destroy(made);
    return st;
}
