/* Routes by themselves, and what a carrier has to bring: one for ranks that are threads, from here to `own_carrier`.
 * Its ranks tell one another where their arrays lie, and every receiver fetches its parts. */
#include "mover.h"

#include "runtime/move/carrier.h"

/* --- a carrier ---------------------------------------------------------------------------------------------------- */

/* What is borrowed while a route is made, for later. */
typedef struct own {
    hd_part send[RANKS], recv[RANKS];
    hd_copy_by by[RANKS];
    int nsend, nrecv;
    const void **src; /* [nranks] */
    int is_under_way;
} own;

static heddle_status take_parts(hd_route *r)
{
    heddle_status st;
    const hd_transfer_spec *spec = &r->spec.phase[0].transfer;
    own *o = NULL;
    HD_TRY(hd_alloc(&r->own, 1, sizeof *o, "a test"));
    o = r->own;
    HD_TRY(hd_alloc((void **)&o->src, (size_t)r->nranks, sizeof *o->src, "a test"));
    memcpy(o->send, spec->send.part, (size_t)spec->send.count * sizeof(hd_part));
    memcpy(o->recv, spec->recv.part, (size_t)spec->recv.count * sizeof(hd_part));
    o->nsend = spec->send.count;
    o->nrecv = spec->recv.count;
    for (int i = 0; i < o->nrecv; i++) {
        o->by[i] = hd_copy_choose(&o->recv[i].copy, 1 << 20);
    }
out:
    return st;
}

static heddle_status make(hd_route *r, heddle_status mine)
{
    return hd_comm_agree(r->comm, mine == HEDDLE_OK ? take_parts(r) : mine);
}

static heddle_status run(hd_route *r, const void *src, void *dst, heddle_stream stream)
{
    heddle_status st;
    own *o = r->own;
    (void)stream;
    HD_TRY(hd_comm_allgather_or_abort(r->comm, &src, o->src, sizeof src));
    for (int i = 0; i < o->nrecv; i++) {
        hd_copy_execute(&o->recv[i].copy, &o->by[i], dst, o->src[o->recv[i].peer]);
    }
    for (int i = 0; i < o->nsend; i++) {
        r->sent[o->send[i].peer] += o->send[i].peer != r->rank ? hd_copy_bytes(&o->send[i].copy) : 0;
    }
    r->executions++;
    st = heddle_comm_barrier(r->comm);
out:
    return st;
}

static heddle_status test(hd_route *r, int *done)
{
    (void)r;
    *done = 1;
    return HEDDLE_OK;
}

static heddle_status wait_here(hd_route *r)
{
    (void)r;
    return HEDDLE_OK;
}

static heddle_status wait_on(hd_route *r, heddle_stream stream)
{
    (void)stream;
    return wait_here(r);
}

static heddle_status refuse(hd_route *r, int reason, heddle_status st)
{
    return hd_comm_abort_with(r->comm, st == HEDDLE_OK ? hd_route_say_refusal(r, reason) : st);
}

static const int64_t *sent(const hd_route *r)
{
    return r->sent;
}

static void inform(hd_route_info *out, const hd_route *r)
{
    for (int peer = 0; peer < r->nranks; peer++) {
        out->bytes_near += r->sent[peer];
    }
}

static void explain(hd_route_words *out, const hd_route *r)
{
    snprintf(out->path, sizeof out->path, "fetched by %d", r->rank);
}

static void destroy(hd_route *r)
{
    own *o = r->own;
    if (o != NULL) {
        hd_free(o->src);
        hd_free(o);
    }
}

static const hd_carrier own_carrier = {
    .make = make,
    .run = run,
    .start = run,
    .test = test,
    .wait = wait_here,
    .wait_on = wait_on,
    .refuse = refuse,
    .sent = sent,
    .inform = inform,
    .explain = explain,
    .destroy = destroy,
};

/* --- what every carrier does -------------------------------------------------------------------------------------- */

typedef struct job {
    const hd_carrier *carrier;
    uint64_t seed;
} job;

static heddle_status open_route(hd_route **out, mover *m, heddle_comm *comm, const job *j)
{
    heddle_status st;
    hd_part send[RANKS], recv[RANKS];
    hd_route_spec spec;
    memset(m, 0, sizeof *m);
    memset(&spec, 0, sizeof spec);
    HD_TRY(mover_arrays(m, comm, j->seed, 0));
    list_parts(&spec.phase[0].transfer, send, recv, m->rank, j->seed);
    spec.phase[0].dst.in = HD_IN_DST;
    spec.nphases = 1;
    spec.src_bytes = SRC_BYTES;
    spec.dst_bytes = DST_BYTES;
    spec.options = (hd_channel_options){.what = "test", .line = "of routes", .refusal = refusals, .nrefusals = 2};
    st = hd_route_create_by(out, comm, j->carrier, &spec, HEDDLE_OK);
out:
    return st;
}

static heddle_status execute(hd_route *route, mover *m, int round)
{
    heddle_status st;
    int done = 0;
    const hd_leg leg = leg_of(m, round);
    if (round % 2 == 0) {
        return route->carrier->run(route, leg.src, leg.dst, HEDDLE_NO_STREAM);
    }
    HD_TRY(route->carrier->start(route, leg.src, leg.dst, HEDDLE_NO_STREAM));
    HD_TRY(route->carrier->test(route, &done));
    st = done ? HEDDLE_OK : route->carrier->wait(route);
out:
    return st;
}

static heddle_status carries(heddle_comm *comm, void *arg)
{
    heddle_status st;
    mover m;
    hd_route *route = NULL;
    hd_route_info info;
    HD_TRY(open_route(&route, &m, comm, arg));
    for (int round = 0; round < 4; round++) {
        HD_TRY(execute(route, &m, round));
        HD_TRY(check(&m, round));
        HD_TRY(heddle_comm_barrier(comm));
    }
    hd_route_get_info(&info, route);
    assert_int_equal(info.executions, 4);
    HD_TRY(check_counters(&m, route->carrier->sent(route), 4));
    HD_TRY(heddle_comm_barrier(comm));
out:
    hd_route_destroy(route);
    mover_close(&m, 0);
    return st;
}

HD_CASE(random_parts)
{
    for (job j = {.seed = 1}; j.seed <= (uint64_t)hd_rounds(ROUNDS); j.seed++) {
        j.carrier = &hd_carrier_flags;
        HD_OK(heddle_run_ranks(RANKS, "threads", carries, &j));
        HD_OK(heddle_run_ranks(RANKS, "shm", carries, &j));
        j.carrier = &own_carrier;
        HD_OK(heddle_run_ranks(RANKS, "threads", carries, &j));
    }
}

/* One rank refuses; nobody waits for it. */
static heddle_status refuses(heddle_comm *comm, void *arg)
{
    heddle_status st;
    mover m;
    hd_route *route = NULL;
    HD_TRY(open_route(&route, &m, comm, arg));
    const hd_leg leg = leg_of(&m, 0);
    const heddle_status told = m.rank == 1 ? route->carrier->refuse(route, 1, HEDDLE_OK)
                                           : route->carrier->run(route, leg.src, leg.dst, HEDDLE_NO_STREAM);
    assert_true(told == HEDDLE_ERR_ARG || (told == HEDDLE_ERR_PEER && m.rank != 1));
    assert_non_null(strstr(heddle_last_error(), "it has other plans"));
    assert_non_null(strstr(heddle_last_error(), "rank 1"));
out:
    hd_route_destroy(route);
    mover_close(&m, 0);
    return st;
}

HD_CASE(refusals_are_told)
{
    job j = {.carrier = &hd_carrier_flags, .seed = 1};
    HD_OK(heddle_run_ranks(RANKS, "threads", refuses, &j));
    j.carrier = &own_carrier;
    HD_OK(heddle_run_ranks(RANKS, "threads", refuses, &j));
}
