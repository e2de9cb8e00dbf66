/* heddle_comm_open: which ranks there are according to the caller or to the launcher's environment. */
#include "runtime/comm/comm_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An integer of the environment; -1: unset or not a number. */
static int env_number(const char *name)
{
    const char *text = hd_env(name);
    char *end = NULL;
    if (text == NULL || *text == 0) {
        return -1;
    }
    errno = 0;
    long value = strtol(text, &end, 10);
    return *end != 0 || errno != 0 || value < 0 || value > HEDDLE_MAX_RANKS ? -1 : (int)value;
}

typedef struct launch {
    int rank;
    int size;
    int here; /* ranks on this host */
    char key[80];
} launch;

/* HEDDLE_RANK, HEDDLE_SIZE, HEDDLE_KEY, or what torchrun and its like set. Returns 0 when there is neither. */
static int read_launch(launch *out)
{
    const char *key = hd_env("HEDDLE_KEY");
    if (env_number("HEDDLE_RANK") >= 0 && env_number("HEDDLE_SIZE") > 0 && key != NULL) {
        out->rank = env_number("HEDDLE_RANK");
        out->size = out->here = env_number("HEDDLE_SIZE");
        snprintf(out->key, sizeof out->key, "%s", key);
        return 1;
    }
    if (env_number("RANK") < 0 || env_number("WORLD_SIZE") <= 0) {
        return 0;
    }
    const char *port = hd_env("MASTER_PORT");
    const char *run = hd_env("TORCHELASTIC_RUN_ID");
    const char *restart = hd_env("TORCHELASTIC_RESTART_COUNT");
    out->rank = env_number("RANK");
    out->size = env_number("WORLD_SIZE");
    out->here = env_number("LOCAL_WORLD_SIZE") > 0 ? env_number("LOCAL_WORLD_SIZE") : out->size;
    snprintf(out->key, sizeof out->key, "%.15s.%.40s.%.8s", port != NULL ? port : "29500", run != NULL ? run : "",
             restart != NULL ? restart : "0");
    return 1;
}

heddle_status hd_open_self(heddle_comm **out, const heddle_comm_options *options, const char *why)
{
    heddle_status st = HEDDLE_OK;
    hd_team *team = NULL;
    hd_group *group = NULL;
    HD_TRY(hd_team_create(&team, 1));
    HD_TRY(hd_group_of_team(&group, team, 0));
    const hd_comm_parts parts = {
        .name = "self", .why = why, .rank = 0, .size = 1, .ops = &hd_local_ops, .group = group, .options = options};
    HD_TRY(hd_comm_new(out, &parts));
out:
    hd_team_release(team);
    return st;
}

heddle_status hd_open_shm(heddle_comm **out, const heddle_comm_options *options, const char *why)
{
    heddle_status st = HEDDLE_OK;
    launch l;
    hd_group *group = NULL;
    heddle_comm_options checked;
    HD_TRY(hd_options_check(&checked, options));
    if (!read_launch(&l)) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "shm: the environment names no ranks: wanted HEDDLE_RANK, HEDDLE_SIZE and HEDDLE_KEY, or RANK, "
                       "WORLD_SIZE and MASTER_PORT (torchrun); heddle_run_ranks starts ranks itself");
    }
    if (l.rank >= l.size) {
        return hd_fail(HEDDLE_ERR_ARG, "shm: this is rank %d of %d according to the environment", l.rank, l.size);
    }
    if (l.here != l.size) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "shm: %d of %d ranks are on this host, shared memory needs all of them (mpi spans hosts)",
                       l.here, l.size);
    }
    const hd_join join = {.key = l.key,
                          .n = l.size,
                          .me = l.rank,
                          .deadline_ns = hd_now_ns() + checked.deadline_ms * 1000000,
                          .arena_bytes = checked.arena_bytes};
    HD_TRY(hd_group_join(&group, &join));
    const hd_comm_parts parts = {.name = "shm",
                                 .why = why,
                                 .rank = l.rank,
                                 .size = l.size,
                                 .ops = &hd_local_ops,
                                 .group = group,
                                 .options = options};
    HD_TRY(hd_comm_new(out, &parts));
out:
    return st;
}

/* An MPI or Slurm launcher leaves one of these. */
static const char *mpi_launcher(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "MPI_LOCALRANKID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (hd_env(names[i]) != NULL) {
            return names[i];
        }
    }
    return hd_env("SLURM_PROCID") != NULL && env_number("SLURM_NTASKS") > 1 ? "SLURM_PROCID" : NULL;
}

static heddle_status open_auto(heddle_comm **out, const heddle_comm_options *options)
{
    launch l;
    char why[128];
    const char *name = mpi_launcher();
    if (name != NULL) {
        heddle_status st = hd_open_module(out, "mpi", options);
        if (st == HEDDLE_OK) {
            snprintf(why, sizeof why, "; auto chose mpi because %s is set", name);
            size_t used = strlen((*out)->describe);
            snprintf((*out)->describe + used, sizeof(*out)->describe - used, "%s", why);
        }
        return st;
    }
    if (!read_launch(&l)) {
        return hd_open_self(out, options, "auto chose self because no launcher's variables are set");
    }
    if (l.here == l.size) {
        snprintf(why, sizeof why, "auto chose shm because the environment says all %d ranks are on this host", l.size);
        return hd_open_shm(out, options, why);
    }
    heddle_status st = hd_open_module(out, "mpi", options);
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "auto: %d of %d ranks are on this host, so mpi is needed", l.here, l.size);
    }
    if ((*out)->size != l.size) { /* MPI that no mpirun started is one rank alone */
        st = hd_fail(HEDDLE_ERR_UNSUPPORTED,
                     "auto: the environment says %d ranks, %d of them on this host, but MPI found %d: more than one "
                     "host needs mpirun or srun",
                     l.size, l.here, (*out)->size);
        heddle_comm_destroy(*out);
        *out = NULL;
    }
    return st;
}

static heddle_status open_inner(heddle_comm **out, const char *where, const heddle_comm_options *options)
{
    if (strcmp(where, "self") == 0) {
        return hd_open_self(out, options, NULL);
    }
    if (strcmp(where, "shm") == 0) {
        return hd_open_shm(out, options, "ranks from the environment");
    }
    if (strcmp(where, "auto") == 0) {
        return open_auto(out, options);
    }
    if (strcmp(where, "mpi") == 0) {
        return hd_open_module(out, where, options);
    }
    if (strcmp(where, "threads") == 0) {
        return hd_fail(HEDDLE_ERR_ARG, "ranks that are threads are started by heddle_run_ranks, they cannot be joined");
    }
    return hd_fail(HEDDLE_ERR_ARG, "no transport '%s': wanted self, shm, mpi, auto or fault(SPEC):...", where);
}

heddle_status heddle_comm_open(heddle_comm **out, const char *where, const heddle_comm_options *options)
{
    heddle_status st = HEDDLE_OK;
    hd_fault *fault = NULL;
    const char *inner = NULL;
    heddle_comm *comm = NULL;
    if (out == NULL || where == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_comm_open: out or where is NULL");
    }
    HD_TRY(hd_fault_parse(&fault, where, &inner));
    HD_TRY(open_inner(&comm, inner, options));
    if (fault != NULL) {
        hd_fault_attach(comm, fault);
        fault = NULL;
    }
    *out = comm;
out:
    hd_fault_destroy(fault);
    return st;
}
