/* A machine with other rates of its links. */
#include "planner/machine/machine.h"
#include "runtime/base/base.h"
#include "runtime/document/node.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static heddle_status scale(hd_rate *rate, const hd_link *link, double factor)
{
    for (int i = 0; i < rate->npoints; i++) {
        rate->per_second[i] *= factor;
        if (!(rate->per_second[i] >= 1 && rate->per_second[i] <= HD_MACHINE_RATE_MAX)) {
            return hd_fail(HEDDLE_ERR_ARG, "%g times the rate of links of %s is %g bytes per second, not 1 to %g",
                           factor, link->name, rate->per_second[i], HD_MACHINE_RATE_MAX);
        }
    }
    return HEDDLE_OK;
}

static heddle_status scale_link(hd_link *link, double factor)
{
    heddle_status st = HEDDLE_OK;
    for (int e = 0; e < HD_EXCHANGES; e++) {
        for (int g = 0; st == HEDDLE_OK && g < link->exchange[e].ngroups; g++) {
            st = scale(&link->exchange[e].group[g].rate, link, factor);
        }
    }
    return st;
}

static heddle_status refuse_class(const heddle_machine *machine, const char *asked)
{
    char names[HEDDLE_MACHINE_LINKS * (HEDDLE_NAME_BYTES + 2)] = "", quoted[HEDDLE_LINE_BYTES];
    size_t used = 0;
    for (int l = 0; l < machine->nlinks && used < sizeof names; l++) {
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", l > 0 ? ", " : "", machine->link[l].name);
    }
    return hd_fail(HEDDLE_ERR_ARG, "machine '%s' has no links of class '%s': %s", machine->name,
                   hd_quote(quoted, sizeof quoted, asked), names);
}

static heddle_status add_source(heddle_machine *machine, const char *before, const char *link, double factor)
{
    char text[4000];
    snprintf(text, sizeof text, "%.3000s%sLinks%s%s: %g times these rates.", before, before[0] != '\0' ? " " : "",
             link != NULL ? " of " : "", link != NULL ? link : "", factor);
    return hd_strdup(&machine->source, text);
}

static void add_name(heddle_machine *machine, const char *link, double factor)
{
    char text[HEDDLE_NAME_BYTES + 64];
    snprintf(text, sizeof text, "%s%s%s%g", strchr(machine->name, ' ') != NULL ? "," : " with links ",
             link != NULL ? link : "", link != NULL ? "=" : "", factor);
    hd_add_text(machine->name, sizeof machine->name, text);
}

heddle_status heddle_machine_scaled(heddle_machine **out, const heddle_machine *machine, const char *link,
                                    double factor)
{
    heddle_status st = HEDDLE_OK;
    heddle_machine *scaled = NULL;
    int found = 0;
    HD_TRY(HD_NEED(out, machine));
    if (!(factor > 0) || !isfinite(factor)) {
        st = hd_fail(HEDDLE_ERR_ARG, "links can be 0.5 or 2 times as fast, not %g times", factor);
        goto out;
    }
    HD_TRY(hd_alloc((void **)&scaled, 1, sizeof *scaled, "a machine"));
    *scaled = *machine;
    scaled->source = NULL; /* its own, below */
    for (int l = 0; l < machine->nlinks; l++) {
        if (link == NULL || strcmp(machine->link[l].name, link) == 0) {
            HD_TRY(scale_link(&scaled->link[l], factor));
            found = 1;
        }
    }
    if (!found) {
        st = refuse_class(machine, link);
        goto out;
    }
    add_name(scaled, link, factor);
    HD_TRY(add_source(scaled, machine->source != NULL ? machine->source : "", link, factor));
    *out = scaled;
    scaled = NULL;
out:
    heddle_machine_destroy(scaled);
    return st;
}
