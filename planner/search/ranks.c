/* heddle_plan_ranks: every mesh of so many ranks, on as many threads as there are cores: what is found is the best by
 * cost and order, whoever finds it. A thread keeps prices from mesh to mesh. Of all meshes first what their stages
 * alone cost; in that order, those with few axes first, which have few layouts and plans nearly as good, what no walk
 * is below (near.h). A mesh where that is less than on those before it is searched at once; one of as many axes as
 * there may be later, in the order of these floors. So most meshes cost more by their stages than what was found, and
 * are not looked at. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"
#include "runtime/base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A mesh of uneven parts takes as long as it has ranks, and there are more meshes: with so many some ten seconds. */
enum { SEARCHED_RANKS_MAX = 1 << 17 };

enum { SEATS_MAX = 16 };

typedef struct candidate {
    heddle_mesh mesh;
    int index; /* in the order in which meshes are preferred where they cost the same */
    int is_looked_at, is_tried;
    int is_refused;  /* tried, and told to be too much work below the best plan of that time */
    int64_t floor;   /* the first part of no plan's cost is below it */
    double *through; /* [rows][states] nor that of a walk through a state; NULL: not known */
} candidate;

typedef struct found_mesh {
    int found, index;
    heddle_mesh mesh;
    hd_cost cost;
    int64_t peak; /* of objective memory */
} found_mesh;

typedef struct best_mesh {
    const heddle_model *model;
    const heddle_plan_options *options;
    int nseats;                  /* of threads, each with prices of its own */
    hd_prices prices[SEATS_MAX]; /* of as many ranks as the candidates have */
    int ncandidates, capacity, seen;
    candidate *candidate; /* a thread's while it is that one's job */
    pthread_mutex_t lock; /* of all below, while threads search */
    found_mesh best;
    int64_t least; /* what no walk of the meshes that were searched at once is below */
    heddle_status refused;
    int refused_index;
    hd_sentence why; /* of the mesh that is preferred among those that were refused */
} best_mesh;

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
static hd_cost unscaled(const found_mesh *best, const hd_search *s, int ranks, int index)
{
    hd_cost bound = best->cost;
    if (s->aim.objective == HD_OBJECTIVE_GPU_SECONDS && bound.part[0] < INT64_MAX) {
        bound.part[0] = bound.part[0] / ranks + 1 - s->always_ps;
    }
    if (index < best->index && bound.part[HD_COST_PARTS - 1] < INT64_MAX) {
        bound.part[HD_COST_PARTS - 1]++;
    }
    return bound;
}

static heddle_status forgive(best_mesh *b, heddle_status st, int index)
{
    if (st != HEDDLE_ERR_INFEASIBLE && st != HEDDLE_ERR_UNSUPPORTED) {
        return st;
    }
    pthread_mutex_lock(&b->lock);
    if (b->refused == HEDDLE_OK || index < b->refused_index) {
        b->refused = st;
        b->refused_index = index;
        b->why = hd_sentence_keep();
    }
    pthread_mutex_unlock(&b->lock);
    return HEDDLE_OK;
}

static found_mesh best_so_far(best_mesh *b)
{
    pthread_mutex_lock(&b->lock);
    const found_mesh best = b->best;
    pthread_mutex_unlock(&b->lock);
    return best;
}

static int is_hopeless(const found_mesh *best, const candidate *c)
{
    return best->found && c->floor > best->cost.part[0];
}

/* --- a mesh, on any thread ---------------------------------------------------------------------------------------- */

/* Of as many axes as there may be meshes have many layouts, which are not made once more for what their stages cost. */
static int has_most_axes(const candidate *c)
{
    return c->mesh.naxes == HEDDLE_MAX_AXES;
}

/* A mesh that is refused is not tried. */
static heddle_status open_mesh(hd_search *s, best_mesh *b, candidate *c, hd_prices *prices)
{
    heddle_status st = HEDDLE_OK;
    hd_cost floor = {{0}};
    c->is_tried = 1;
    HD_TRY(hd_search_open(s, b->model, &c->mesh, b->options, prices));
    c->is_tried = 0;
    if (s->aim.objective != HD_OBJECTIVE_MEMORY) {
        floor = hd_search_floor(s);
    }
    floor = scaled(s, &floor, heddle_mesh_size(&c->mesh));
    c->floor = floor.part[0] > c->floor ? floor.part[0] : c->floor;
out:
    return st;
}

static heddle_status survey(void *ctx, int seat, int64_t job)
{
    best_mesh *b = ctx;
    candidate *c = &b->candidate[job];
    hd_search s = {0};
    heddle_status st = has_most_axes(c) ? HEDDLE_OK : open_mesh(&s, b, c, &b->prices[seat]);
    hd_search_close(&s);
    return forgive(b, st, c->index);
}

static heddle_status try_mesh(best_mesh *b, hd_search *s, candidate *c)
{
    heddle_status st = HEDDLE_OK;
    hd_walk walk = {0};
    int found = 0, is_empty = 0;
    const found_mesh before = best_so_far(b);
    const int ranks = heddle_mesh_size(&c->mesh);
    const int by_memory = s->aim.objective == HD_OBJECTIVE_MEMORY;
    const hd_cost bound = unscaled(&before, s, ranks, c->index);
    const int is_bound = before.found && !by_memory;
    c->is_tried = 1;
    if (is_bound && s->cap == INT64_MAX) {
        hd_search_drop_dear(s, &bound, 0);
        if (c->through != NULL) {
            hd_search_drop_through(&is_empty, s, c->through, (double)bound.part[0]);
        }
    }
    HD_TRY(is_empty ? HEDDLE_OK : hd_search_run(&walk, &found, s, is_bound ? &bound : NULL));
    const found_mesh own = {found, c->index, c->mesh, scaled(s, &walk.cost, ranks),
                            by_memory ? hd_add_saturated(s->cap, s->resident) : 0};
    pthread_mutex_lock(&b->lock);
    const found_mesh *best = &b->best;
    const int order = !best->found || own.peak < best->peak ? -1
                      : own.peak > best->peak               ? 1
                                                            : hd_cost_compare(&own.cost, &best->cost);
    if (found && (order < 0 || (order == 0 && own.index < best->index))) {
        b->best = own;
    }
    pthread_mutex_unlock(&b->lock);
out:
    c->is_refused = st == HEDDLE_ERR_UNSUPPORTED;
    hd_walk_free(&walk);
    return st;
}

/* Is a mesh with this floor to be searched at once? */
static int is_next(best_mesh *b, const candidate *c)
{
    pthread_mutex_lock(&b->lock);
    const int is = c->floor <= b->least;
    b->least = is ? c->floor : b->least;
    pthread_mutex_unlock(&b->lock);
    return is;
}

/* What no walk on the mesh is below; where that is less than on those before, or not known, the best of them. Of most
 * axes a mesh is searched when this is known of all of them. */
static heddle_status look_at(best_mesh *b, candidate *c, hd_prices *prices)
{
    heddle_status st = HEDDLE_OK;
    hd_search s = {0};
    hd_cost near = {{0}};
    const found_mesh best = best_so_far(b);
    const int is_first = !c->is_looked_at;
    int is_known = 0;
    HD_TRY(open_mesh(&s, b, c, prices));
    if (is_first && s.aim.objective != HD_OBJECTIVE_MEMORY && !is_hopeless(&best, c)) {
        const int ranks = heddle_mesh_size(&c->mesh);
        const hd_cost bound = unscaled(&best, &s, ranks, 0);
        if (best.found && s.cap == INT64_MAX) {
            hd_search_drop_dear(&s, &bound, 1);
        }
        HD_TRY(hd_search_near_floor(&near.part[0], &c->through, &s, hd_add_saturated(bound.part[0], 1)));
        is_known = near.part[0] > 0;
        near = scaled(&s, &near, ranks);
        c->floor = near.part[0] > c->floor ? near.part[0] : c->floor;
    }
    c->is_looked_at = 1;
    if (!(is_first && has_most_axes(c)) && (!is_known || is_next(b, c))) {
        const found_mesh now = best_so_far(b);
        st = is_hopeless(&now, c) ? HEDDLE_OK : try_mesh(b, &s, c);
    }
out:
    hd_search_close(&s);
    return forgive(b, st, c->index);
}

static heddle_status look(void *ctx, int seat, int64_t job)
{
    best_mesh *b = ctx;
    candidate *c = &b->candidate[job];
    const found_mesh best = best_so_far(b);
    return c->is_tried || is_hopeless(&best, c) ? HEDDLE_OK : look_at(b, c, &b->prices[seat]);
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

static heddle_status on_all(best_mesh *b, hd_thread_job fn)
{
    const hd_threads threads = {.name = "hd-plan", .count = b->nseats, .jobs = b->ncandidates, .fn = fn, .ctx = b};
    return hd_threads_run(&threads);
}

static heddle_status list(void *ctx, const heddle_mesh *mesh)
{
    heddle_status st = HEDDLE_OK;
    best_mesh *b = ctx;
    HD_TRY(hd_grow((void **)&b->candidate, &b->capacity, b->ncandidates, sizeof *b->candidate, "meshes"));
    b->candidate[b->ncandidates++] = (candidate){.mesh = *mesh, .index = b->seen++};
out:
    return st;
}

static int by_floor(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->floor != y->floor ? (x->floor < y->floor ? -1 : 1) : x->index - y->index;
}

static int by_axes(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->mesh.naxes != y->mesh.naxes ? x->mesh.naxes - y->mesh.naxes : by_floor(a, b);
}

static void sort(best_mesh *b, int (*order)(const void *a, const void *b))
{
    if (b->ncandidates > 0) {
        qsort(b->candidate, (size_t)b->ncandidates, sizeof *b->candidate, order);
    }
}

/* What is of the candidates alone. */
static void forget_candidates(best_mesh *b)
{
    for (int i = 0; i < b->nseats; i++) {
        hd_prices_free(&b->prices[i]);
    }
    for (int i = 0; i < b->ncandidates; i++) {
        hd_free(b->candidate[i].through);
    }
    b->ncandidates = 0;
}

/* Below a better plan there is less to search. Which plans were known when a mesh was refused threads decide, so those
 * that were are tried until no better plan is found: by then all were tried below the best of those that can be. */
static heddle_status try_refused(best_mesh *b)
{
    heddle_status st = HEDDLE_OK;
    for (int found = -1; b->best.found && b->best.index != found;) {
        int again = 0;
        found = b->best.index;
        for (int i = 0; i < b->ncandidates; i++) {
            candidate *c = &b->candidate[i];
            c->is_tried = !c->is_refused;
            again += c->is_refused;
            c->is_refused = 0;
        }
        HD_TRY(again > 0 ? on_all(b, look) : HEDDLE_OK);
    }
out:
    return st;
}

static heddle_status try_ranks(best_mesh *b, const heddle_machine_info *machine, int ranks)
{
    heddle_status st = HEDDLE_OK;
    forget_candidates(b);
    b->least = INT64_MAX;
    HD_TRY(hd_search_meshes(machine, ranks, list, b));
    HD_TRY(on_all(b, survey));
    sort(b, by_axes);
    HD_TRY(on_all(b, look));
    sort(b, by_floor);
    HD_TRY(on_all(b, look));
    st = try_refused(b);
out:
    return st;
}

/* As many as this thread may run on. */
static int seats_here(void)
{
    cpu_set_t allowed;
    const int cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
    return cores < SEATS_MAX ? cores : SEATS_MAX;
}

/* The best mesh once more: without a bound, so that the next best plan on it is known; `below` what is a little dearer
 * than its plan, where all is too much work. */
static heddle_status write_best(heddle_schedule **out, best_mesh *b, int below)
{
    heddle_status st = HEDDLE_OK;
    hd_search s = {0};
    hd_walk walk = {0};
    int found = 0;
    HD_TRY(hd_search_open(&s, b->model, &b->best.mesh, b->options, &b->prices[0]));
    const hd_cost bound = unscaled(&b->best, &s, heddle_mesh_size(&s.mesh), b->best.index - 1);
    if (below && s.cap == INT64_MAX) {
        hd_search_drop_dear(&s, &bound, 0);
    }
    HD_TRY(hd_search_run(&walk, &found, &s, below ? &bound : NULL));
    HD_TRY(found ? HEDDLE_OK : hd_fail(HEDDLE_ERR_UNSUPPORTED, "the plan that was found is not found again"));
    hd_search_name_axes(&s, &walk);
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
    best_mesh b = {.model = model, .options = &o, .nseats = seats_here(), .lock = PTHREAD_MUTEX_INITIALIZER};
    b.best.cost = hd_cost_none;
    HD_TRY(HD_NEED(out, model));
    HD_TRY(hd_search_options(&o, options));
    HD_TRY(check_options(&machine, &o, ranks));
    HD_TRY(try_ranks(&b, &machine, ranks));
    int fewer_count = o.objective != NULL && strcmp(o.objective, hd_objective_names[HD_OBJECTIVE_GPU_SECONDS]) == 0;
    for (int fewer = ranks / 2; fewer_count && fewer >= 1; fewer--) {
        HD_TRY(ranks % fewer == 0 ? try_ranks(&b, &machine, fewer) : HEDDLE_OK);
    }
    if (!b.best.found) {
        st = hd_sentence_say(&b.why, b.refused);
        goto out;
    }
    forget_candidates(&b);
    st = write_best(out, &b, 0);
    st = st == HEDDLE_ERR_UNSUPPORTED ? write_best(out, &b, 1) : st;
out:
    forget_candidates(&b);
    hd_free(b.candidate);
    return st;
}
