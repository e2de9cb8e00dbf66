/* Ranks that are processes of this host and know one another by the launcher's environment, or by a key. */
#include "runtime/comm/ground/launcher.h"
#include "runtime/comm/transport/run.h"

static heddle_status meet(heddle_comm **out, const char *key, int rank, int size, const heddle_comm_options *options,
                          const char *why)
{
    heddle_status st = HEDDLE_OK;
    hd_group *group = NULL;
    heddle_comm_options checked;
    HD_TRY(hd_options_check(&checked, options));
    const hd_join join = {.key = key,
                          .n = size,
                          .me = rank,
                          .deadline_ns = hd_now_ns() + hd_options_deadline_ms(&checked) * 1000000,
                          .arena_bytes = checked.arena_bytes,
                          .interrupt = hd_options_interrupt(&checked)};
    HD_TRY(hd_group_join(&group, &join));
    const hd_comm_parts parts = {.name = "shm",
                                 .why = why,
                                 .rank = rank,
                                 .size = size,
                                 .ops = &hd_local_ops,
                                 .group = group,
                                 .options = options};
    HD_TRY(hd_comm_new(out, &parts));
out:
    return st;
}

heddle_status hd_join_shm(heddle_comm **out, const char *text, int rank, int size, const heddle_comm_options *options)
{
    char key[HD_KEY_BYTES];
    const char *parts[] = {"join", text}; /* apart from launchers' keys */
    hd_launch_key(key, parts, 2);
    return meet(out, key, rank, size, options, "ranks joined by a key");
}

heddle_status hd_open_shm(heddle_comm **out, const heddle_comm_options *options, const char *why)
{
    heddle_status st = HEDDLE_OK;
    hd_launch l;
    HD_TRY(hd_launch_read_local(&l));
    if (l.name == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "shm: the environment names no ranks: wanted HEDDLE_RANK, HEDDLE_SIZE and HEDDLE_KEY, or RANK, "
                       "WORLD_SIZE and MASTER_PORT (torchrun); heddle_run_ranks starts ranks itself");
    }
    if (l.here != l.size) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "shm: %d of %d ranks are on this host, shared memory needs all of them (tcp and mpi span hosts)",
                       l.here, l.size);
    }
    HD_TRY(meet(out, l.key, l.rank, l.size, options, why));
out:
    return st;
}

static heddle_status open_shm(heddle_comm **out, const heddle_comm_options *options)
{
    return hd_open_shm(out, options, "ranks from the environment");
}

/* One of heddle_run_ranks. */
static heddle_status meet_started(heddle_comm **out, hd_run *run, int rank, const char *key)
{
    heddle_status st;
    hd_group *group = NULL;
    const hd_join join = {.key = key,
                          .n = run->nranks,
                          .me = rank,
                          .deadline_ns = hd_now_ns() + hd_options_deadline_ms(&run->options) * 1000000,
                          .arena_bytes = run->options.arena_bytes,
                          .dead = &run->shared->dead,
                          .interrupt = hd_options_interrupt(&run->options)};
    HD_TRY(hd_group_join(&group, &join));
    st = hd_run_comm(out, run, group, rank);
out:
    return st;
}

static heddle_status run_shm(hd_run *run)
{
    run->meet = meet_started;
    return hd_run_processes(run);
}

const hd_transport hd_transport_shm = {.name = "shm", .open = open_shm, .run = run_shm};
