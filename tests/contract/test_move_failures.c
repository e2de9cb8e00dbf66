/* Transfers that are refused, and ranks that stay away. */
#include "mover.h"

/* On threads and shm, where ranks reach one another, where two and two do, and where all send messages. */
static void on_all(heddle_rank_main fn, how *h)
{
    for (int hosts = 0; hosts < 3; hosts++) {
        heddle_comm_options options;
        heddle_comm_options_init(&options);
        options.pretend_hosts = hosts;
        options.force_messages = hosts == 1;
        HD_OK(heddle_run_ranks_with(RANKS, "threads", &options, fn, h));
        HD_OK(heddle_run_ranks_with(RANKS, "shm", &options, fn, h));
    }
}

/* Rank 1 refuses the second of three executions: all are told, nothing moves, the third one goes through. */
static heddle_status one_refuses(heddle_comm *comm, void *arg)
{
    const how *h = arg;
    mover m;
    heddle_status st = HEDDLE_OK;
    HD_TRY(mover_open(&m, comm, h->seed, 0, 0));
    for (int round = 0; round < 3; round++) {
        hd_leg leg = leg_of(&m, round);
        if (round != 1) {
            HD_TRY(hd_channel_run(m.channel, &leg, 1));
            HD_TRY(check(&m, round));
            continue;
        }
        heddle_status told = m.rank == 1 ? hd_channel_refuse(m.channel, 1) : hd_channel_run(m.channel, &leg, 1);
        int is_named = strstr(heddle_last_error(), "rank 1 refuses the execution: it has other plans") != NULL;
        if (told != HEDDLE_ERR_ARG || !is_named || m.dst[0] != 0xa5) {
            st = hd_fail(HEDDLE_ERR_INTERNAL, "rank %d was told %d: %s", m.rank, told, heddle_last_error());
            goto out;
        }
    }
    HD_TRY(heddle_comm_barrier(comm));
out:
    mover_close(&m, 0);
    return st;
}

HD_CASE(refusals_reach_all)
{
    for (how h = {.seed = 1}; h.seed <= (uint64_t)hd_rounds(ROUNDS); h.seed++) {
        on_all(one_refuses, &h);
    }
}

/* Rank 2 stays away: the others name it at their deadline, and no execution begins afterwards. */
static heddle_status one_stays_away(heddle_comm *comm, void *arg)
{
    const how *h = arg;
    mover m;
    heddle_status st = HEDDLE_OK;
    HD_TRY(mover_open(&m, comm, h->seed, 0, 200));
    hd_leg leg = leg_of(&m, 0);
    if (m.rank == 2) {
        for (int waits = 0; hd_comm_check(comm) == HEDDLE_OK; waits++) {
            hd_comm_relax(comm, waits);
        }
        goto out;
    }
    heddle_status told = hd_channel_run(m.channel, &leg, 1);
    int is_named = told == HEDDLE_ERR_PEER || (strstr(heddle_last_error(), "rank 2") != NULL &&
                                               strstr(heddle_last_error(), "; test of movers") != NULL);
    if ((told != HEDDLE_ERR_TIMEOUT && told != HEDDLE_ERR_PEER) || !is_named) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "rank %d was told %d: %s", m.rank, told, heddle_last_error());
        goto out;
    }
    if (hd_channel_run(m.channel, &leg, 1) != told) {
        st = hd_fail(HEDDLE_ERR_INTERNAL, "rank %d goes on after a failure: %s", m.rank, heddle_last_error());
    }
out:
    mover_close(&m, 0);
    return st;
}

HD_CASE(absent_ranks_are_named)
{
    how h = {.seed = 3};
    on_all(one_stays_away, &h);
}
