/* heddle_plan_ranks: every mesh of so many ranks, on as many threads as there are cores: what is found is the best by
 * cost and order, whoever finds it. A thread keeps prices from mesh to mesh. Some meshes at a time are looked at, which
 * tells what no walk on them is below (near.h), and searched in the order of these floors. Those of one axis come
 * first, then those of one more that are the best one so far with an axis taken apart, for their plans are as good and
 * most often better; so a good plan is known before all the others, most of which are told to be no better. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"
#include "runtime/base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { SEATS_MAX = 16 };

typedef struct candidate {
    heddle_mesh mesh;
    int index; /* in the order in which meshes are preferred where they cost the same */
    int is_due, is_looked_at;
    int is_refused, below; /* told to be too much work below the plan of that mesh, which was the best of that time */
    int64_t floor;         /* the first part of no plan's cost is below it */
    double *through;       /* [rows][states] nor that of a walk through a state; NULL: not known */
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

static heddle_status open_mesh(hd_search *s, best_mesh *b, candidate *c, hd_prices *prices)
{
    heddle_status st = HEDDLE_OK;
    hd_cost floor = {{0}};
    HD_TRY(hd_search_open(s, b->model, &c->mesh, b->options, prices));
    if (s->aim.objective != HD_OBJECTIVE_MEMORY) {
        floor = hd_search_floor(s);
    }
    floor = scaled(s, &floor, heddle_mesh_size(&c->mesh));
    c->floor = floor.part[0] > c->floor ? floor.part[0] : c->floor;
out:
    return st;
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
    c->is_refused = st == HEDDLE_ERR_UNSUPPORTED && !by_memory;
    c->below = before.index;
    hd_walk_free(&walk);
    return st;
}

/* What no walk on the mesh is below, and none through a state; where that is not known, the best of them. */
static heddle_status look(void *ctx, int seat, int64_t job)
{
    best_mesh *b = ctx;
    candidate *c = &b->candidate[job];
    heddle_status st = HEDDLE_OK;
    hd_search s = {0};
    hd_cost near = {{0}};
    const found_mesh best = best_so_far(b);
    c->is_looked_at = 1;
    c->is_due = 0;
    HD_TRY(open_mesh(&s, b, c, &b->prices[seat]));
    if (s.aim.objective != HD_OBJECTIVE_MEMORY && !is_hopeless(&best, c)) {
        const int ranks = heddle_mesh_size(&c->mesh);
        const hd_cost bound = unscaled(&best, &s, ranks, 0);
        if (best.found && s.cap == INT64_MAX) {
            hd_search_drop_dear(&s, &bound, 1);
        }
        HD_TRY(hd_search_near_floor(&near.part[0], &c->through, &s, hd_add_saturated(bound.part[0], 1)));
        near = scaled(&s, &near, ranks);
        c->floor = near.part[0] > c->floor ? near.part[0] : c->floor;
    }
    c->is_due = c->through != NULL;
    if (!c->is_due && !is_hopeless(&best, c)) {
        st = try_mesh(b, &s, c);
    }
out:
    hd_search_close(&s);
    return forgive(b, st, c->index);
}

static heddle_status search_at(best_mesh *b, candidate *c, hd_prices *prices)
{
    hd_search s = {0};
    heddle_status st = open_mesh(&s, b, c, prices);
    st = st == HEDDLE_OK ? try_mesh(b, &s, c) : st;
    hd_search_close(&s);
    return forgive(b, st, c->index);
}

static heddle_status search(void *ctx, int seat, int64_t job)
{
    best_mesh *b = ctx;
    candidate *c = &b->candidate[job];
    const found_mesh best = best_so_far(b);
    c->is_due = 0;
    return is_hopeless(&best, c) ? HEDDLE_OK : search_at(b, c, &b->prices[seat]);
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

static heddle_status list(void *ctx, const heddle_mesh *mesh)
{
    heddle_status st = HEDDLE_OK;
    best_mesh *b = ctx;
    HD_TRY(hd_grow((void **)&b->candidate, &b->capacity, b->ncandidates, sizeof *b->candidate, "meshes"));
    b->candidate[b->ncandidates++] = (candidate){.mesh = *mesh, .index = b->seen++};
out:
    return st;
}

static int turn_of(const candidate *c)
{
    return c->is_due ? 0 : !c->is_looked_at ? 1 : 2;
}

/* Those that are due come first, then those that were not looked at. */
static int by_floor(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return turn_of(x) != turn_of(y) ? turn_of(x) - turn_of(y)
           : x->floor != y->floor   ? (x->floor < y->floor ? -1 : 1)
                                    : x->index - y->index;
}

/* Puts them in order; how many are due. */
static int sort(best_mesh *b)
{
    int due = 0;
    if (b->ncandidates > 0) {
        qsort(b->candidate, (size_t)b->ncandidates, sizeof *b->candidate, by_floor);
    }
    while (due < b->ncandidates && b->candidate[due].is_due) {
        due++;
    }
    return due;
}

/* Those that are due, in the order of their floors. */
static heddle_status on_due(best_mesh *b, hd_thread_job fn)
{
    const hd_threads threads = {.name = "hd-plan", .count = b->nseats, .jobs = sort(b), .fn = fn, .ctx = b};
    return hd_threads_run(&threads);
}

/* The first of those that are due is searched, the others later; what is not due is looked at. */
static heddle_status search_or_look(void *ctx, int seat, int64_t job)
{
    const best_mesh *b = ctx;
    return !b->candidate[job].is_due ? look(ctx, seat, job) : job == 0 ? search(ctx, seat, job) : HEDDLE_OK;
}

/* The first one alone: below what it finds the others are told much faster. In the last group others are looked at
 * meanwhile. */
static heddle_status search_first(best_mesh *b, int is_last)
{
    const int due = sort(b);
    int jobs = is_last || due == 0 ? due : 1;
    while (is_last && jobs < b->ncandidates && !b->candidate[jobs].is_looked_at) {
        jobs++;
    }
    const hd_threads threads = {.name = "hd-plan", .count = b->nseats, .jobs = jobs, .fn = search_or_look, .ctx = b};
    return hd_threads_run(&threads);
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
 * that were refused below another one are searched until no better plan is found: by then all were searched below the
 * best of those that can be. */
static heddle_status search_refused(best_mesh *b)
{
    heddle_status st = HEDDLE_OK;
    for (int again = b->best.found; again;) {
        again = 0;
        for (int i = 0; i < b->ncandidates; i++) {
            candidate *c = &b->candidate[i];
            c->is_due = c->is_refused && c->below != b->best.index;
            c->is_refused = c->is_refused && !c->is_due;
            again = again || c->is_due;
        }
        HD_TRY(on_due(b, search));
    }
out:
    return st;
}

/* Of those that were not looked at such of so many axes as may be better than the best one. */
static void set_due(best_mesh *b, int naxes, int ranks)
{
    const heddle_mesh *best = &b->best.mesh;
    const int is_known = b->best.found && heddle_mesh_size(best) == ranks;
    for (int i = 0; i < b->ncandidates; i++) {
        candidate *c = &b->candidate[i];
        const int is_next = c->mesh.naxes == naxes && (!is_known || hd_search_refines(&c->mesh, best));
        c->is_due = !c->is_looked_at && is_next;
    }
}

static heddle_status try_ranks(best_mesh *b, const heddle_machine_info *machine, int ranks)
{
    heddle_status st = HEDDLE_OK;
    forget_candidates(b);
    HD_TRY(hd_search_meshes(machine, ranks, list, b));
    for (int naxes = 1; naxes <= HEDDLE_MAX_AXES; naxes++) {
        set_due(b, naxes, ranks);
        HD_TRY(on_due(b, look));
        HD_TRY(search_first(b, naxes == HEDDLE_MAX_AXES));
        HD_TRY(on_due(b, search));
    }
    st = search_refused(b);
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
    s.likely = bound.part[0];
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

heddle_status heddle_plan_ranks(heddle_schedule **out, const heddle_model *model, int ranks,
                                const heddle_plan_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_plan_options o;
    heddle_machine_info machine;
    best_mesh b = {.model = model, .options = &o, .nseats = seats_here(), .lock = PTHREAD_MUTEX_INITIALIZER};
    b.best.cost = hd_cost_none;
    b.best.index = -1;
    HD_TRY(HD_NEED(out, model));
    HD_TRY(hd_search_options(&o, options));
    HD_TRY(hd_search_ranks_options(&machine, &o, ranks));
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
