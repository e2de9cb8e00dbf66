/* Names of the axes of a mesh that was searched for: what they shard in the walk that was found. */
#include "planner/search/search_internal.h"

#include <stdio.h>
#include <string.h>

typedef struct uses {
    int batch, sequence, ring, heads; /* in how many stages the axis shards what; of usp */
} uses;

static uses uses_of(const hd_search *s, const hd_walk *walk, int axis)
{
    uses u = {0, 0, 0, 0};
    for (int i = 0; i < s->nsteps; i++) {
        const heddle_layout *layout = &s->layout[walk->state[i]];
        int dim = layout->dim_of_axis[axis];
        int later = 0;
        u.batch += dim >= 0 && dim == s->m->batch_dim;
        u.sequence += dim >= 0 && dim != s->m->batch_dim;
        for (int a = axis + 1; a < s->mesh.naxes; a++) {
            later = later || (layout->dim_of_axis[a] == dim && s->mesh.axis[a].size > 1);
        }
        if (walk->method[i] == &hd_method_usp && dim == s->mixes[i % s->m->nstages].dim) {
            u.ring += later;
            u.heads += !later;
        }
    }
    return u;
}

static const char *name_of(const hd_search *s, const uses *u, int stride, int sequences)
{
    if (u->ring + u->heads > 0) {
        return u->ring > 0 ? "r" : "u";
    }
    if (u->sequence == 0) {
        return u->batch == 0 ? "rep" : "b";
    }
    if (sequences == 1 || s->pricer.machine == NULL) {
        return "sp";
    }
    return hd_machine_level(s->pricer.machine, 0, stride) > 0 ? "node" : "gpu";
}

void hd_search_name_axes(hd_search *s, const hd_walk *walk)
{
    uses u[HEDDLE_MAX_AXES];
    int sequences = 0;
    int stride = heddle_mesh_size(&s->mesh);
    for (int a = 0; a < s->mesh.naxes; a++) {
        u[a] = uses_of(s, walk, a);
        sequences += u[a].sequence > 0 && u[a].ring + u[a].heads == 0;
    }
    for (int a = 0; a < s->mesh.naxes; a++) {
        stride /= s->mesh.axis[a].size;
        const char *name = name_of(s, &u[a], s->mesh.axis[a].size > 1 ? stride : 0, sequences);
        int same = 0;
        for (int k = 0; k < a; k++) {
            same += strncmp(s->mesh.axis[k].name, name, strlen(name)) == 0;
        }
        if (same == 0) {
            snprintf(s->mesh.axis[a].name, sizeof s->mesh.axis[a].name, "%s", name);
        } else {
            snprintf(s->mesh.axis[a].name, sizeof s->mesh.axis[a].name, "%s%d", name, same + 1);
        }
    }
}
