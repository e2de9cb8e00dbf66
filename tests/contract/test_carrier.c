/* Routes by themselves: what every carrier does, by flags and by one that is an example (support/carrier_fetch.c). */
#include "mover.h"

#include "runtime/move/carrier.h"

extern const hd_carrier hd_carrier_fetch;

typedef struct job {
    const hd_carrier *carrier;
    uint64_t seed;
} job;

static heddle_status open_route(hd_route **out, mover *m, heddle_comm *comm, const job *j)
{
    heddle_status st;
    hd_item send[RANKS], recv[RANKS];
    hd_route_spec spec;
    memset(m, 0, sizeof *m);
    memset(&spec, 0, sizeof spec);
    HD_TRY(mover_arrays(m, comm, j->seed, 0));
    list_items(&spec.phase[0].transfer, send, recv, m->rank, j->seed);
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

HD_CASE(random_items)
{
    for (job j = {.seed = 1}; j.seed <= (uint64_t)hd_rounds(ROUNDS); j.seed++) {
        j.carrier = &hd_carrier_flags;
        HD_OK(heddle_run_ranks(RANKS, "threads", carries, &j));
        HD_OK(heddle_run_ranks(RANKS, "shm", carries, &j));
        j.carrier = &hd_carrier_fetch;
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
    j.carrier = &hd_carrier_fetch;
    HD_OK(heddle_run_ranks(RANKS, "threads", refuses, &j));
}
