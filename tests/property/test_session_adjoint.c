/* Whole passes through random schedules: backward is the exact transpose of forward. All values are small integers and
 * every sum stays within a bf16's eight bits, so that everything here is compared bit for bit. */
#include "case.h"
#include "check.h"
#include "drawn_schedule.h"
#include "global_index.h"
#include "placed.h"

#include "runtime/base/base.h"

#include <heddle/heddle.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWS = 12, VALUE = 2, GIVEN = 4 };

static int64_t hashed(uint64_t seed, uint64_t a, uint64_t b)
{
    return (int64_t)(random_at(seed, a, b) >> 8);
}

/* -VALUE..VALUE */
static double value_of(uint64_t seed, uint64_t a, uint64_t b)
{
    return (double)(hashed(seed, a, b) % (2 * VALUE + 1) - VALUE);
}

/* What stage `index` multiplies element `global` by: -1 or 1. */
static double factor(const problem *p, int index, int64_t global)
{
    return hashed(p->seed + 1, (uint64_t)index, (uint64_t)global) % 2 == 0 ? 1 : -1;
}

/* --- elements --- */

static double load(const heddle_tensor *x, int64_t at)
{
    float f = 0;
    uint32_t bits = 0;
    switch (x->shape.dtype) {
    case HEDDLE_F64:
        return ((const double *)x->data)[at];
    case HEDDLE_F32:
        return (double)((const float *)x->data)[at];
    default:
        bits = (uint32_t)((const uint16_t *)x->data)[at] << 16;
        memcpy(&f, &bits, sizeof(f));
        return (double)f;
    }
}

static void store(heddle_tensor *x, int64_t at, double value)
{
    const float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    if (x->shape.dtype == HEDDLE_F64) {
        ((double *)x->data)[at] = value;
    } else if (x->shape.dtype == HEDDLE_F32) {
        ((float *)x->data)[at] = f;
    } else {
        ((uint16_t *)x->data)[at] = (uint16_t)(bits >> 16);
    }
}

/* 1 when the rank's coordinate is 0 on every axis that `layout` has `kind` on. */
static int is_first(const problem *p, const heddle_layout *layout, int kind, int rank)
{
    int coords[HEDDLE_MAX_AXES] = {0};
    heddle_ignore(heddle_mesh_coords(coords, &p->info.mesh, rank));
    for (int a = 0; a < p->info.mesh.naxes; a++) {
        if (layout->dim_of_axis[a] == kind && coords[a] != 0) {
            return 0;
        }
    }
    return 1;
}

/* As a tensor on the host, until look_away. */
static heddle_tensor look_at(const heddle_tensor *x, const problem *p)
{
    heddle_tensor image = *x;
    image.data = placed_borrow(p->comm, x->data, x->capacity_bytes);
    return image;
}

static void look_away(const heddle_tensor *x, const heddle_tensor *image, const problem *p)
{
    placed_return(p->comm, x->data, image->data, x->capacity_bytes);
}

/* Private memory. one == 0: every rank's own values, replicas differ. Else one global array in this layout. */
static heddle_status make(heddle_tensor *x, const problem *p, const heddle_layout *layout, int rank, int one)
{
    heddle_box box;
    heddle_status st = heddle_layout_box(&box, &p->info.shape, &p->info.mesh, layout, rank);
    if (st != HEDDLE_OK) {
        return st;
    }
    const int64_t elems = heddle_box_elems(&box);
    st = heddle_tensor_init(x, placed_alloc(p->comm, (size_t)elems * 8), &p->info.shape, &p->info.mesh, layout, NULL,
                            rank);
    x->space = placed_space(p->comm);
    x->device = placed_device(p->comm);
    heddle_tensor image = look_at(x, p);
    for (int64_t i = 0; i < elems && st == HEDDLE_OK; i++) {
        const uint64_t global = (uint64_t)global_index(&x->shape, &box, i);
        const int mine = is_first(p, layout, HEDDLE_PARTIAL, rank);
        store(&image, i,
              one == 0 ? value_of(p->seed + 2, (uint64_t)rank + 1, global)
              : mine   ? value_of(p->seed, 0, global)
                       : 0);
    }
    look_away(x, &image, p);
    return st;
}

/* --- passes --- */

static heddle_status compute(const problem *p, heddle_tensor *x, int index, int rank)
{
    heddle_box box;
    heddle_status st = heddle_layout_box(&box, &p->info.shape, &p->info.mesh, &x->layout, rank);
    heddle_tensor image = look_at(x, p);
    for (int64_t i = 0; st == HEDDLE_OK && i < heddle_box_elems(&box); i++) {
        store(&image, i, load(&image, i) * factor(p, index, global_index(&x->shape, &box, i)));
    }
    look_away(x, &image, p);
    return st;
}

static heddle_status forward(const problem *p, heddle_session *session, heddle_tensor *x, int rank)
{
    heddle_status st;
    for (int i = 0; i < p->info.nstages; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        HD_TRY(heddle_schedule_stage_at(&stage, p->schedule, i));
        HD_TRY(heddle_session_enter(session, stage.name, x, NULL, placed_stream));
        HD_TRY(compute(p, x, i, rank));
    }
    st = heddle_session_enter(session, "end", x, NULL, placed_stream);
out:
    return st;
}

static heddle_status backward(const problem *p, heddle_session *session, heddle_tensor *dx, int rank)
{
    heddle_status st;
    HD_TRY(heddle_session_backward(session, "end", dx, NULL, placed_stream));
    for (int i = p->info.nstages - 1; i >= 0; i--) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
        HD_TRY(heddle_schedule_stage_at(&stage, p->schedule, i));
        HD_TRY(heddle_schedule_edge_at(&edge, p->schedule, i));
        HD_TRY(compute(p, dx, i, rank));
        HD_TRY(heddle_session_backward(session, stage.name, dx, NULL, placed_stream));
        const heddle_layout wanted = heddle_layout_dual(&edge.from);
        CHECK_OR_RETURN(heddle_layout_equal(&dx->layout, &wanted, &p->info.mesh));
    }
out:
    return st;
}

/* Of two local parts of the same box. */
static int64_t dot(const problem *p, const heddle_tensor *a, const heddle_tensor *b, int rank)
{
    heddle_box box;
    double sum = 0;
    heddle_ignore(heddle_layout_box(&box, &p->info.shape, &p->info.mesh, &a->layout, rank));
    const heddle_tensor left = look_at(a, p), right = look_at(b, p);
    for (int64_t i = 0; i < heddle_box_elems(&box); i++) {
        sum += load(&left, i) * load(&right, i);
    }
    look_away(a, &left, p);
    look_away(b, &right, p);
    return (int64_t)sum;
}

/* <y, F x> = <F* y, x> in the space of all ranks' memory: x and y are other numbers on every replica. */
static heddle_status adjoint(const problem *p, heddle_session *session, heddle_comm *comm)
{
    const int rank = heddle_comm_rank(comm);
    const heddle_layout dual = heddle_layout_dual(&p->last);
    heddle_tensor x = {0}, x0 = {0}, y = {0}, y0 = {0};
    int64_t both[2] = {0, 0};
    heddle_status st;
    HD_TRY(make(&x, p, &p->first, rank, 0));
    HD_TRY(make(&x0, p, &p->first, rank, 0));
    HD_TRY(make(&y, p, &dual, rank, 0));
    HD_TRY(make(&y0, p, &dual, rank, 0));
    void *const mine[] = {x.data, y.data};
    st = forward(p, session, &x, rank);
    both[0] = st == HEDDLE_OK ? dot(p, &y0, &x, rank) : 0;
    st = st == HEDDLE_OK ? backward(p, session, &y, rank) : st;
    both[1] = st == HEDDLE_OK ? dot(p, &y, &x0, rank) : 0;
    placed_free(comm, mine[0]);
    placed_free(comm, mine[1]);
    HD_TRY(st);
    HD_TRY(heddle_comm_allreduce_sum(comm, both, 2, HEDDLE_I64));
    if (both[0] != both[1]) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "<y, F x> is %lld, <F* y, x> %lld", (long long)both[0], (long long)both[1]);
    }
out:
    placed_free(comm, x0.data);
    placed_free(comm, y0.data);
    return st;
}

/* One gradient, given in whatever layout: after the whole way back every element is y times all factors. */
static heddle_status gradient(const problem *p, heddle_session *session, heddle_comm *comm, const heddle_layout *from)
{
    const int rank = heddle_comm_rank(comm);
    heddle_tensor dx = {0};
    heddle_box box;
    int64_t sum[MAX_ELEMS] = {0};
    heddle_status st;
    HD_TRY(make(&dx, p, from, rank, 1));
    void *mine = dx.data;
    st = backward(p, session, &dx, rank);
    if (st == HEDDLE_OK && is_first(p, &dx.layout, HEDDLE_REPLICATED, rank)) {
        heddle_ignore(heddle_layout_box(&box, &p->info.shape, &p->info.mesh, &dx.layout, rank));
        const heddle_tensor image = look_at(&dx, p);
        for (int64_t i = 0; i < heddle_box_elems(&box); i++) {
            sum[global_index(&dx.shape, &box, i)] = (int64_t)load(&image, i);
        }
        look_away(&dx, &image, p);
    }
    placed_free(comm, mine);
    HD_TRY(st);
    HD_TRY(heddle_comm_allreduce_sum(comm, sum, MAX_ELEMS, HEDDLE_I64));
    for (int64_t g = 0; g < MAX_ELEMS; g++) {
        double wanted = value_of(p->seed, 0, (uint64_t)g);
        for (int i = 0; i < p->info.nstages; i++) {
            wanted *= factor(p, i, g);
        }
        heddle_layout whole = heddle_layout_replicated();
        heddle_ignore(heddle_layout_box(&box, &p->info.shape, &p->info.mesh, &whole, rank));
        if (g < heddle_box_elems(&box) && sum[g] != (int64_t)wanted) {
            st = hd_fail(HEDDLE_ERR_INTERNAL, "element %lld of the gradient is %lld, not %g", (long long)g,
                         (long long)sum[g], wanted);
            goto out;
        }
    }
out:
    return st;
}

/* What the planner says the backward of a loss on the output moves. */
static heddle_status compare_bytes(const problem *p, heddle_session *session, heddle_comm *comm, int64_t before)
{
    heddle_session_counters counters = HEDDLE_EMPTY(heddle_session_counters);
    heddle_status st;
    HD_TRY(heddle_session_get_counters(&counters, session));
    int64_t sent = counters.bytes_sent - before;
    HD_TRY(heddle_comm_allreduce_sum(comm, &sent, 1, HEDDLE_I64));
    if (sent != p->info.backward_bytes_total) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "%lld bytes backward, the schedule says %lld", (long long)sent,
                     (long long)p->info.backward_bytes_total);
    }
out:
    return st;
}

static heddle_status one_problem(problem *p, heddle_comm *comm)
{
    heddle_session *session = NULL;
    heddle_session_options options;
    heddle_session_counters counters = HEDDLE_EMPTY(heddle_session_counters);
    const heddle_layout dual = heddle_layout_dual(&p->last), whole = heddle_layout_replicated();
    heddle_layout loss = p->last; /* of one gradient, the same wherever an element is */
    for (int a = 0; a < HEDDLE_MAX_AXES; a++) {
        loss.dim_of_axis[a] = loss.dim_of_axis[a] == HEDDLE_PARTIAL ? HEDDLE_REPLICATED : loss.dim_of_axis[a];
    }
    const heddle_layout *given[] = {&dual, &whole, &p->other, &loss};
    heddle_status st;
    heddle_session_options_init(&options);
    options.backward = p->backward;
    options.space = placed_space(comm);
    options.device = placed_device(comm);
    HD_TRY(heddle_session_create(&session, comm, p->schedule, &options));
    HD_TRY(adjoint(p, session, comm));
    for (int i = 0; i < GIVEN; i++) {
        HD_TRY(heddle_session_get_counters(&counters, session));
        HD_TRY(heddle_session_rewind(session));
        HD_TRY(gradient(p, session, comm, given[i]));
    }
    HD_TRY(compare_bytes(p, session, comm, counters.bytes_sent));
    HD_TRY(heddle_session_get_counters(&counters, session));
    if (counters.bytes_sent != counters.bytes_planned || counters.backward_enters != (GIVEN + 1) * p->info.nedges) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "%lld bytes sent, %lld planned, %lld calls", (long long)counters.bytes_sent,
                     (long long)counters.bytes_planned, (long long)counters.backward_enters);
    }
out:
    heddle_session_destroy(session);
    return st;
}

static heddle_status random_passes(heddle_comm *comm, void *arg)
{
    random_source source = {*(const uint64_t *)arg};
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < hd_rounds(DRAWS) && st == HEDDLE_OK; i++) {
        problem p = {.source = {random_bits(&source)}, .comm = comm};
        st = draw(&p, heddle_comm_size(comm));
        st = st == HEDDLE_OK ? one_problem(&p, comm) : st;
        st = say(&p, st, i);
        heddle_schedule_destroy(p.schedule);
    }
    return st;
}

static uint64_t seed_of_environment(void)
{
    const char *text = getenv("HEDDLE_SEED");
    return text == NULL ? 1 : strtoull(text, NULL, 10);
}

static void on(const char *transport)
{
    for (int ranks = 1; ranks <= 6; ranks++) {
        uint64_t seed = seed_of_environment() * 1000 + (uint64_t)ranks;
        HD_OK(heddle_run_ranks(ranks, transport, random_passes, &seed));
    }
}

HD_CASE(threads)
{
    on("threads");
}

HD_CASE(shared_memory)
{
    on("shm");
}
