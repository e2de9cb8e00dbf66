/* Meshes of so many ranks: all ordered factorisations, those with few axes first. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

#include <stdio.h>
#include <string.h>

/* A mesh of uneven parts takes as long as it has ranks, and there are more meshes: with so many some ten seconds. */
enum { SEARCHED_RANKS_MAX = 1 << 17 };

typedef struct listing {
    const heddle_machine_info *machine;
    heddle_status (*fn)(void *ctx, const heddle_mesh *mesh);
    void *ctx;
    heddle_mesh mesh;
} listing;

/* Does the axis that ends here hold whole units of every level, or lie within one? */
static int nests(const heddle_machine_info *machine, int64_t ranks)
{
    for (int i = 0; i < machine->nlinks; i++) {
        int64_t within = machine->ranks_within[i];
        if (ranks % within != 0 && within % ranks != 0) {
            return 0;
        }
    }
    return 1;
}

/* Meshes of as many axes, of which those before `axis` are made; `rest` ranks are left. */
static heddle_status list_from(listing *l, int axis, int rest)
{
    heddle_status st = HEDDLE_OK;
    if (axis == l->mesh.naxes - 1) {
        l->mesh.axis[axis].size = rest;
        return rest > 1 || axis == 0 ? l->fn(l->ctx, &l->mesh) : HEDDLE_OK;
    }
    for (int size = 2; st == HEDDLE_OK && size <= rest / 2; size++) {
        if (rest % size == 0 && nests(l->machine, rest / size)) {
            l->mesh.axis[axis].size = size;
            st = list_from(l, axis + 1, rest / size);
        }
    }
    return st;
}

int hd_search_refines(const heddle_mesh *fine, const heddle_mesh *coarse)
{
    int used = 0;
    for (int a = 0; a < coarse->naxes; a++) {
        int64_t size = 1;
        while (used < fine->naxes && size < coarse->axis[a].size) {
            size *= fine->axis[used++].size;
        }
        if (size != coarse->axis[a].size) {
            return 0;
        }
    }
    return used == fine->naxes;
}

heddle_status hd_search_meshes(const heddle_machine_info *machine, int ranks,
                               heddle_status (*fn)(void *ctx, const heddle_mesh *mesh), void *ctx)
{
    heddle_status st = HEDDLE_OK;
    listing l = {.machine = machine, .fn = fn, .ctx = ctx};
    for (int naxes = 1; st == HEDDLE_OK && naxes <= HEDDLE_MAX_AXES; naxes++) {
        char *name = l.mesh.axis[naxes - 1].name; /* as in refusals; plans have names by what axes do */
        snprintf(name, sizeof l.mesh.axis[0].name, naxes > 1 ? "sp%d" : "sp", naxes);
        l.mesh.naxes = naxes;
        st = list_from(&l, 0, ranks);
    }
    return st;
}

static heddle_status refuse_axes(const char *what, const char *text)
{
    return hd_fail(HEDDLE_ERR_ARG,
                   "%s '%.80s' names mesh axes, but the mesh is what is searched for; plan on a mesh (--mesh) instead",
                   what, text);
}

heddle_status hd_search_ranks_options(heddle_machine_info *machine, const heddle_plan_options *o, int ranks)
{
    heddle_status st = HEDDLE_OK;
    if (ranks < 1 || ranks > SEARCHED_RANKS_MAX) {
        return hd_fail(
            HEDDLE_ERR_ARG,
            "the best mesh of %d ranks: meshes of 1 to %d are searched; plan on one mesh (--mesh) of up to %d", ranks,
            SEARCHED_RANKS_MAX, HEDDLE_MAX_RANKS);
    }
    const char *const text[] = {o->prologue, o->epilogue, o->force};
    static const char *const what[] = {"prologue", "epilogue", "force"};
    for (int i = 0; i < 3; i++) {
        if (text[i] != NULL && strchr(text[i], '@') != NULL) {
            return refuse_axes(what[i], text[i]);
        }
    }
    *machine = HEDDLE_EMPTY(heddle_machine_info);
    HD_TRY(o->machine != NULL ? heddle_machine_get_info(machine, o->machine) : HEDDLE_OK);
out:
    return st;
}
