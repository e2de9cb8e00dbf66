#include "crossover.h"

#include <stdio.h>
#include <string.h>

enum { NAMED = 2 /* stages */ };

typedef struct side {
    const heddle_schedule *schedule;
    heddle_schedule_info info;
} side;

static int has_same_axes(const heddle_mesh *a, const heddle_mesh *b)
{
    int same = a->naxes == b->naxes;
    for (int i = 0; same && i < a->naxes; i++) {
        same = strcmp(a->axis[i].name, b->axis[i].name) == 0;
    }
    return same;
}

static int shards_alike(const heddle_layout *a, const heddle_layout *b, const heddle_mesh *mesh)
{
    int same = 1;
    for (int i = 0; i < mesh->naxes; i++) {
        same = same && a->dim_of_axis[i] == b->dim_of_axis[i];
    }
    return same;
}

/* "t.attn by ring instead of ulysses", "mlp in t@sp instead of s@sp"; "": stage i runs alike. */
static void compare_stage(char *out, size_t out_bytes, const side *before, const side *after, int i)
{
    heddle_schedule_stage a = HEDDLE_EMPTY(heddle_schedule_stage), b = HEDDLE_EMPTY(heddle_schedule_stage);
    char was[128] = "", is[128] = "";
    out[0] = '\0';
    if (heddle_schedule_stage_at(&a, before->schedule, i) != HEDDLE_OK ||
        heddle_schedule_stage_at(&b, after->schedule, i) != HEDDLE_OK) {
        return;
    }
    if (strcmp(a.method, b.method) != 0) {
        snprintf(out, out_bytes, "%s by %s instead of %s", b.name, b.method, a.method);
    } else if (!shards_alike(&a.layout, &b.layout, &after->info.mesh)) {
        heddle_ignore(heddle_layout_format(was, sizeof was, &a.layout, &before->info.shape, &before->info.mesh));
        heddle_ignore(heddle_layout_format(is, sizeof is, &b.layout, &after->info.shape, &after->info.mesh));
        snprintf(out, out_bytes, "%s in %s instead of %s", b.name, is, was);
    }
}

/* Stages of the model that run otherwise in some repetition: how many. The first ones are named. */
static int compare_stages(char *out, size_t out_bytes, const side *before, const side *after)
{
    int found = 0;
    size_t used = 0;
    for (int k = 0; k < after->info.period; k++) {
        char one[384] = "";
        for (int i = k; i < after->info.nstages && one[0] == '\0'; i += after->info.period) {
            compare_stage(one, sizeof one, before, after, i);
        }
        if (one[0] != '\0' && found++ < NAMED && used < out_bytes) {
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", used > 0 ? ", " : "", one);
        }
    }
    if (found > NAMED && used < out_bytes) {
        snprintf(out + used, out_bytes - used, ", %d more", found - NAMED);
    }
    return found;
}

cli_crossover cli_find_crossover(char *change, size_t change_bytes, const heddle_schedule *before,
                                 const heddle_schedule *after)
{
    side a = {before, HEDDLE_EMPTY(heddle_schedule_info)}, b = {after, HEDDLE_EMPTY(heddle_schedule_info)};
    char was[256] = "", is[256] = "";
    change[0] = '\0';
    if (before == NULL || after == NULL || heddle_schedule_get_info(&a.info, before) != HEDDLE_OK ||
        heddle_schedule_get_info(&b.info, after) != HEDDLE_OK) {
        return CROSSOVER_NONE;
    }
    if (!has_same_axes(&a.info.mesh, &b.info.mesh)) {
        heddle_ignore(heddle_mesh_format(was, sizeof was, &a.info.mesh));
        heddle_ignore(heddle_mesh_format(is, sizeof is, &b.info.mesh));
        snprintf(change, change_bytes, "%s instead of %s", is, was);
        return CROSSOVER_AXES;
    }
    return compare_stages(change, change_bytes, &a, &b) > 0 ? CROSSOVER_STAGES : CROSSOVER_NONE;
}
