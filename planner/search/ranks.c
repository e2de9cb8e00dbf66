/* heddle_plan_ranks: every mesh of so many ranks. Prices are kept from mesh to mesh. Of all meshes first what their
 * stages alone cost; in that order, those with few axes first, which have few layouts and plans nearly as good, what no
 * walk is below (near.h). A mesh where that is less than on those before it is searched at once; one of as many axes as
 * there may be later, in the order of these floors. So most meshes cost more by their stages than what was found, and
 * are not looked at. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A mesh of uneven parts takes as long as it has ranks, and there are more meshes: with so many some ten seconds. */
enum { SEARCHED_RANKS_MAX = 1 << 17 };

typedef struct candidate {
    heddle_mesh mesh;
    int index; /* in the order in which meshes are preferred where they cost the same */
    int is_looked_at, is_tried;
    int64_t floor; /* the first part of no plan's cost is below it */
} candidate;

typedef struct best_mesh {
    const heddle_model *model;
    const heddle_plan_options *options;
    hd_prices prices; /* of as many ranks as the candidates have */
    int ncandidates, capacity, seen;
    candidate *candidate;
    int found, index;
    heddle_mesh mesh;
    hd_cost cost;
    int64_t peak; /* of objective memory */
    heddle_status refused;
    hd_sentence why; /* of the first mesh that was refused */
} best_mesh;

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

/* Of all ranks together the cost of objective gpu-seconds is; of the busiest one that of the others. */
static hd_cost scaled(const hd_search *s, const hd_cost *cost, int ranks)
{
    hd_cost whole = *cost;
    __int128 product = (cost->part[0] + (__int128)s->always_ps) * ranks;
    if (s->aim.objective == HD_OBJECTIVE_GPU_SECONDS) {
        whole.part[0] = product > INT64_MAX ? INT64_MAX : (int64_t)product;
    }
    return whole;
}

/* What a walk of a mesh must be below: one that is preferred may cost as much. */
static hd_cost unscaled(const best_mesh *b, const hd_search *s, int ranks, int index)
{
    hd_cost bound = b->cost;
    if (s->aim.objective == HD_OBJECTIVE_GPU_SECONDS && bound.part[0] < INT64_MAX) {
        bound.part[0] = bound.part[0] / ranks + 1 - s->always_ps;
    }
    if (index < b->index && bound.part[HD_COST_PARTS - 1] < INT64_MAX) {
        bound.part[HD_COST_PARTS - 1]++;
    }
    return bound;
}

static heddle_status forgive(best_mesh *b, heddle_status st)
{
    if (st != HEDDLE_ERR_INFEASIBLE && st != HEDDLE_ERR_UNSUPPORTED) {
        return st;
    }
    if (b->refused == HEDDLE_OK) {
        b->refused = st;
        b->why = hd_sentence_keep();
    }
    return HEDDLE_OK;
}

static heddle_status survey(best_mesh *b, const heddle_mesh *mesh)
{
    heddle_status st = HEDDLE_OK;
    hd_search s = {0};
    hd_cost floor = {{0}};
    HD_TRY(hd_grow((void **)&b->candidate, &b->capacity, b->ncandidates, sizeof *b->candidate, "meshes"));
    HD_TRY(hd_search_open(&s, b->model, mesh, b->options, &b->prices));
    if (s.aim.objective != HD_OBJECTIVE_MEMORY) {
        floor = hd_search_floor(&s);
    }
    b->candidate[b->ncandidates++] =
        (candidate){.mesh = *mesh, .index = b->seen++, .floor = scaled(&s, &floor, heddle_mesh_size(mesh)).part[0]};
out:
    hd_search_close(&s);
    return forgive(b, st);
}

static int is_hopeless(const best_mesh *b, const candidate *c)
{
    return b->found && c->floor > b->cost.part[0];
}

static heddle_status try_mesh(best_mesh *b, hd_search *s, candidate *c)
{
    heddle_status st = HEDDLE_OK;
    hd_walk walk = {0};
    int found = 0;
    int ranks = heddle_mesh_size(&c->mesh);
    int by_memory = s->aim.objective == HD_OBJECTIVE_MEMORY;
    hd_cost bound = unscaled(b, s, ranks, c->index);
    int is_bound = b->found && !by_memory;
    c->is_tried = 1;
    if (is_bound && s->cap == INT64_MAX) {
        hd_search_drop_dear(s, &bound, 0);
    }
    HD_TRY(hd_search_run(&walk, &found, s, is_bound ? &bound : NULL));
    hd_cost cost = scaled(s, &walk.cost, ranks);
    int64_t peak = by_memory ? hd_add_saturated(s->cap, s->resident) : 0;
    int order = !b->found || peak < b->peak ? -1 : peak > b->peak ? 1 : hd_cost_compare(&cost, &b->cost);
    if (found && (order < 0 || (order == 0 && c->index < b->index))) {
        b->found = 1;
        b->index = c->index;
        b->mesh = c->mesh;
        b->cost = cost;
        b->peak = peak;
    }
out:
    hd_walk_free(&walk);
    return st;
}

/* What no walk on the mesh is below; where that is at most `least`, or not known, the best of them. */
static heddle_status look_at(best_mesh *b, candidate *c, int64_t *least)
{
    heddle_status st = HEDDLE_OK;
    hd_search s = {0};
    hd_cost near = {{0}};
    int is_known = 0;
    HD_TRY(hd_search_open(&s, b->model, &c->mesh, b->options, &b->prices));
    if (!c->is_looked_at && s.aim.objective != HD_OBJECTIVE_MEMORY) {
        const int ranks = heddle_mesh_size(&c->mesh);
        const hd_cost bound = unscaled(b, &s, ranks, 0);
        if (b->found && s.cap == INT64_MAX) {
            hd_search_drop_dear(&s, &bound, 1);
        }
        HD_TRY(hd_search_near_floor(&near.part[0], &s, hd_add_saturated(bound.part[0], 1)));
        is_known = near.part[0] > 0;
        near = scaled(&s, &near, ranks);
        c->floor = near.part[0] > c->floor ? near.part[0] : c->floor;
    }
    c->is_looked_at = 1;
    if ((c->floor <= *least && c->mesh.naxes < HEDDLE_MAX_AXES) || !is_known) {
        *least = is_known ? c->floor : *least;
        st = is_hopeless(b, c) ? HEDDLE_OK : try_mesh(b, &s, c);
    }
out:
    hd_search_close(&s);
    return forgive(b, st);
}

/* Meshes of exactly `naxes` axes, of which those before `axis` are made; `rest` ranks are left. */
static heddle_status survey_factors(best_mesh *b, const heddle_machine_info *machine, heddle_mesh *mesh, int axis,
                                    int rest)
{
    heddle_status st = HEDDLE_OK;
    if (axis == mesh->naxes - 1) {
        mesh->axis[axis].size = rest;
        return rest > 1 || axis == 0 ? survey(b, mesh) : HEDDLE_OK;
    }
    for (int size = 2; st == HEDDLE_OK && size <= rest / 2; size++) {
        if (rest % size == 0 && nests(machine, rest / size)) {
            mesh->axis[axis].size = size;
            st = survey_factors(b, machine, mesh, axis + 1, rest / size);
        }
    }
    return st;
}

static int by_floor(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->floor != y->floor ? (x->floor < y->floor ? -1 : 1) : x->index - y->index;
}

static void sort(best_mesh *b, int first)
{
    if (b->ncandidates > first) {
        qsort(b->candidate + first, (size_t)(b->ncandidates - first), sizeof *b->candidate, by_floor);
    }
}

static heddle_status try_ranks(best_mesh *b, const heddle_machine_info *machine, int ranks)
{
    heddle_status st = HEDDLE_OK;
    hd_prices_free(&b->prices);
    b->ncandidates = 0;
    for (int naxes = 1; st == HEDDLE_OK && naxes <= HEDDLE_MAX_AXES; naxes++) {
        heddle_mesh mesh = {.naxes = naxes};
        for (int a = 0; a < naxes; a++) {
            snprintf(mesh.axis[a].name, sizeof mesh.axis[a].name, "axis%d", a);
        }
        const int first = b->ncandidates;
        st = survey_factors(b, machine, &mesh, 0, ranks);
        sort(b, first);
    }
    int64_t least = INT64_MAX;
    for (int i = 0; st == HEDDLE_OK && i < b->ncandidates; i++) {
        st = is_hopeless(b, &b->candidate[i]) ? HEDDLE_OK : look_at(b, &b->candidate[i], &least);
    }
    sort(b, 0);
    for (int i = 0; st == HEDDLE_OK && i < b->ncandidates && !is_hopeless(b, &b->candidate[i]); i++) {
        least = INT64_MAX;
        st = b->candidate[i].is_tried ? HEDDLE_OK : look_at(b, &b->candidate[i], &least);
    }
    return st;
}

/* --- names -------------------------------------------------------------------------------------------------------- */

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

/* Axes by what they shard; two of one name are numbered. */
static void name_axes(hd_search *s, const hd_walk *walk)
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

/* The best mesh once more, without a bound, so that the next best plan on it is known. */
static heddle_status write_best(heddle_schedule **out, best_mesh *b)
{
    heddle_status st = HEDDLE_OK;
    hd_search s = {0};
    hd_walk walk = {0};
    int found = 0;
    HD_TRY(hd_search_open(&s, b->model, &b->mesh, b->options, &b->prices));
    HD_TRY(hd_search_run(&walk, &found, &s, NULL));
    name_axes(&s, &walk);
    st = hd_search_write_down(out, &s, &walk);
out:
    hd_walk_free(&walk);
    hd_search_close(&s);
    return st;
}

static heddle_status refuse_axes(const char *what, const char *text)
{
    return hd_fail(HEDDLE_ERR_ARG,
                   "%s '%.80s' names mesh axes, but the mesh is what is searched for; plan on a mesh (--mesh) instead",
                   what, text);
}

static heddle_status check_options(heddle_machine_info *machine, const heddle_plan_options *o, int ranks)
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

heddle_status heddle_plan_ranks(heddle_schedule **out, const heddle_model *model, int ranks,
                                const heddle_plan_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_plan_options o;
    heddle_machine_info machine;
    best_mesh b = {.model = model, .options = &o, .cost = hd_cost_none};
    HD_TRY(HD_NEED(out, model));
    HD_TRY(hd_search_options(&o, options));
    HD_TRY(check_options(&machine, &o, ranks));
    HD_TRY(try_ranks(&b, &machine, ranks));
    int fewer_count = o.objective != NULL && strcmp(o.objective, hd_objective_names[HD_OBJECTIVE_GPU_SECONDS]) == 0;
    for (int fewer = ranks / 2; fewer_count && fewer >= 1; fewer--) {
        HD_TRY(ranks % fewer == 0 ? try_ranks(&b, &machine, fewer) : HEDDLE_OK);
    }
    if (!b.found) {
        st = hd_sentence_say(&b.why, b.refused);
        goto out;
    }
    hd_prices_free(&b.prices);
    st = write_best(out, &b);
out:
    hd_prices_free(&b.prices);
    hd_free(b.candidate);
    return st;
}
