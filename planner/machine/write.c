/* heddle_machine -> YAML that reads back to the same figures, bit for bit. */
#include "planner/machine/read.h"
#include "runtime/base/base.h"
#include "runtime/files/output.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The fewest digits that read back to the same number; the caller has the C locale. */
static void put_number(FILE *f, double value)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    fputs(text, f);
}

static void put_rate(FILE *f, double start_s, const hd_rate *rate)
{
    fprintf(f, "start_s: ");
    put_number(f, start_s);
    fprintf(f, ", rates: ");
    if (rate->npoints == 1 && rate->size[0] == 1) {
        put_number(f, rate->per_second[0]);
    }
    for (int i = 0; i < rate->npoints && (rate->npoints > 1 || rate->size[0] != 1); i++) {
        fprintf(f, i == 0 ? "[[" : ", [");
        put_number(f, rate->size[i]);
        fprintf(f, ", ");
        put_number(f, rate->per_second[i]);
        fprintf(f, i + 1 < rate->npoints ? "]" : "]]");
    }
}

static void put_work(FILE *f, const heddle_machine *m)
{
    fprintf(f, "work:                  # flop/s; of memory bytes/s. [[size, rate], ...]\n");
    for (int w = 0; w < HD_WORKS; w++) {
        int is_begun = 0;
        for (int d = 0; d < HEDDLE_DTYPE_COUNT; d++) {
            const hd_work_rate *of = &m->work[w][d];
            if (of->rate.npoints == 0) {
                continue;
            }
            if (!is_begun) {
                fprintf(f, "  %s:%s", hd_work_names[w], w == HD_WORK_MEMORY ? " {" : "\n");
            }
            is_begun = 1;
            if (w != HD_WORK_MEMORY) {
                fprintf(f, "    %s: {", heddle_dtype_name((heddle_dtype)d));
            }
            put_rate(f, of->start_s, &of->rate);
            fprintf(f, "}\n");
        }
    }
}

static void put_links(FILE *f, const heddle_machine *m)
{
    fprintf(f, "links:                 # bytes/s that a rank sends\n");
    for (int l = 0; l < m->nlinks; l++) {
        fprintf(f, "  %s:%s\n", m->link[l].name, hd_link_has_figures(&m->link[l]) ? "" : " {}"); /* of one rank */
        for (int e = 0; e < HD_EXCHANGES; e++) {
            const hd_exchange_rate *of = &m->link[l].exchange[e];
            if (of->ngroups > 0) {
                fprintf(f, "    %s:\n", hd_exchange_names[e]);
            }
            for (int g = 0; g < of->ngroups; g++) {
                fprintf(f, "      - {ranks: %d, ", of->group[g].ranks);
                put_rate(f, of->group[g].start_s, &of->group[g].rate);
                fprintf(f, "}\n");
            }
        }
    }
}

static void put_machine(FILE *f, const heddle_machine *m)
{
    char name[HD_MACHINE_CALLED_BYTES];
    hd_copy_text(name, sizeof name, m->name);
    name[strcspn(name, " ")] = '\0'; /* the source says what was made of it */
    fprintf(f, "machine: ");
    hd_put_quoted(f, name);
    fprintf(f, "\nsource: ");
    hd_put_quoted(f, m->source != NULL ? m->source : "");
    fprintf(f, "\ncalibrated: %s%s\nranks: %d\nmemory_bytes: %lld        # of a rank; 0: not known\noverlap_slowdown: ",
            m->is_calibrated ? "true" : "false", m->on_device ? "\non_device: true" : "", m->ranks,
            (long long)m->memory_bytes);
    put_number(f, m->overlap_slowdown);
    if (m->crowding_slowdown > 1) {
        fprintf(f, "\ncrowding_slowdown: ");
        put_number(f, m->crowding_slowdown);
    }
    fprintf(f, "\nlevels:                # the innermost first\n");
    for (int l = 0; l < m->nlevels; l++) {
        fprintf(f, "  - {name: %s, size: %d, link: %s}\n", m->level[l].name, m->level[l].size,
                m->link[m->level[l].link].name);
    }
    put_work(f, m);
    put_links(f, m);
}

/* Numbers have a point, whatever language the program speaks. */
static void put_plainly(FILE *f, const heddle_machine *m)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t before = plain != (locale_t)0 ? uselocale(plain) : (locale_t)0;
    put_machine(f, m);
    if (plain != (locale_t)0) {
        uselocale(before);
        freelocale(plain);
    }
}

heddle_status heddle_machine_save(const heddle_machine *machine, const char *path)
{
    heddle_status st;
    file_output out;
    HD_TRY(HD_NEED(machine, path));
    if (path[0] == '\0') {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_machine_save: path is empty");
    }
    if (strcmp(path, "-") == 0) {
        put_plainly(stdout, machine);
        if (fflush(stdout) != 0 || ferror(stdout) != 0) {
            st = hd_fail(HEDDLE_ERR_IO, "standard output cannot be written: %s", strerror(errno));
        }
        return st;
    }
    if (file_output_open(&out, path) != HEDDLE_OK) {
        return hd_fail(HEDDLE_ERR_IO, "%s", heddle_last_error());
    }
    put_plainly(out.file, machine);
    st = file_output_close(&out, HEDDLE_OK);
out:
    return st;
}
