/* Which launcher started this process. Variables stay behind: a batch job starts torchrun, a terminal was opened by
 * mpirun, a container sets WORLD_SIZE. So the innermost launcher counts, and what cannot be explained is an error: a
 * rank that takes itself for the only one computes something else, silently.
 */
#include "runtime/comm/ground/launcher.h"

#include "runtime/base/base.h"
#include "runtime/base/blake2s.h"

#include <errno.h>
#include <heddle/comm.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A launcher's two variables. */
typedef struct pair {
    const char *rank_name, *size_name;
    int there;
    int rank, size;
} pair;

/* Set, and not to nothing. */
static const char *env_text(const char *name)
{
    const char *text = hd_env(name);
    return text != NULL && *text != 0 ? text : NULL;
}

/* *out -1: not set. */
static heddle_status env_number(int *out, const char *name)
{
    const char *text = env_text(name);
    char *end = NULL;
    *out = -1;
    if (text == NULL) {
        return HEDDLE_OK;
    }
    errno = 0;
    long value = strtol(text, &end, 10);
    if (*end != 0 || errno != 0 || value < 0 || value > HEDDLE_COMM_MAX_RANKS) {
        return hd_fail(HEDDLE_ERR_ARG, "the environment says %s='%.40s', wanted a whole number from 0 to %d", name,
                       text, HEDDLE_COMM_MAX_RANKS);
    }
    *out = (int)value;
    return HEDDLE_OK;
}

static heddle_status read_pair(pair *p, const char *rank_name, const char *size_name)
{
    heddle_status st = HEDDLE_OK;
    *p = (pair){.rank_name = rank_name, .size_name = size_name};
    HD_TRY(env_number(&p->rank, rank_name));
    HD_TRY(env_number(&p->size, size_name));
    p->there = p->rank >= 0 || p->size >= 0;
    if (p->there && (p->rank < 0 || p->size < 0)) {
        return hd_fail(HEDDLE_ERR_ARG, "the environment says %s=%d, but %s is not set: a launcher sets both",
                       p->rank >= 0 ? rank_name : size_name, p->rank >= 0 ? p->rank : p->size,
                       p->rank >= 0 ? size_name : rank_name);
    }
    if (p->there && p->rank >= p->size) {
        return hd_fail(HEDDLE_ERR_ARG, "the environment says %s=%d and %s=%d: of %d ranks the last is %d", rank_name,
                       p->rank, size_name, p->size, p->size, p->size - 1);
    }
out:
    return st;
}

void hd_launch_key(char key[HD_KEY_BYTES], const char *const *parts, int nparts)
{
    unsigned char hash[HD_BLAKE2S_BYTES] = {0};
    for (int i = 0; i < nparts; i++) {
        hd_blake2s(hash, sizeof hash, hash, sizeof hash, parts[i], strlen(parts[i]));
    }
    for (size_t i = 0; i < sizeof hash; i++) {
        snprintf(key + 2 * i, 3, "%02x", hash[i]);
    }
}

static void take_pair(hd_launch *out, const char *name, const pair *p)
{
    out->name = name;
    out->rank = p->rank;
    out->size = out->here = p->size;
    if (p->size > 0) {
        snprintf(out->says, sizeof out->says, "%s=%d and %s=%d", p->rank_name, p->rank, p->size_name, p->size);
    } else {
        snprintf(out->says, sizeof out->says, "%s=%d", p->rank_name, p->rank);
    }
}

static heddle_status read_heddle(hd_launch *out)
{
    heddle_status st = HEDDLE_OK;
    pair own = {.there = 0};
    const char *key = env_text("HEDDLE_KEY");
    HD_TRY(read_pair(&own, "HEDDLE_RANK", "HEDDLE_SIZE"));
    const int is_torch_s = !own.there && (env_text("RANK") != NULL || env_text("WORLD_SIZE") != NULL);
    if (own.there != (key != NULL) && !is_torch_s) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "the environment says %s, but %s not set: wanted HEDDLE_RANK, HEDDLE_SIZE and "
                       "HEDDLE_KEY",
                       own.there ? "HEDDLE_RANK and HEDDLE_SIZE" : "HEDDLE_KEY",
                       own.there ? "HEDDLE_KEY is" : "HEDDLE_RANK and HEDDLE_SIZE are");
    }
    if (own.there) {
        take_pair(out, "heddle", &own);
        hd_launch_key(out->key, &key, 1);
        out->secret_chars = (int)strnlen(key, INT_MAX);
    }
out:
    return st;
}

/* What torchrun and its like set; `marked`: by a launcher, not by hand. */
static heddle_status read_torch(hd_launch *out, pair *p, int *marked)
{
    heddle_status st = HEDDLE_OK;
    int here = -1;
    const char *run = env_text("TORCHELASTIC_RUN_ID");
    const char *port = env_text("MASTER_PORT");
    const char *restart = env_text("TORCHELASTIC_RESTART_COUNT");
    const char *key = env_text("HEDDLE_KEY");
    HD_TRY(read_pair(p, "RANK", "WORLD_SIZE"));
    HD_TRY(env_number(&here, "LOCAL_WORLD_SIZE"));
    *marked = p->there && (run != NULL || here >= 0);
    if (p->there && here >= 0 && (here == 0 || here > p->size)) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "the environment says LOCAL_WORLD_SIZE=%d and WORLD_SIZE=%d: of %d ranks, 1 to "
                       "%d are on a host",
                       here, p->size, p->size, p->size);
    }
    if (p->there) {
        const char *const parts[] = {port != NULL ? port : "29500", run != NULL ? run : "",
                                     restart != NULL ? restart : "0", key != NULL ? key : ""};
        take_pair(out, "torchrun", p);
        out->here = here > 0 ? here : p->size;
        hd_launch_key(out->key, parts, 4);
        out->secret_chars = key != NULL ? (int)strnlen(key, INT_MAX) : 0;
    }
out:
    return st;
}

/* mpirun and its like. Some set only a rank: then size is 0. */
static heddle_status read_mpi(pair *p)
{
    static const char *const lone[] = {"PMIX_RANK", "MPI_LOCALRANKID"};
    heddle_status st = HEDDLE_OK;
    HD_TRY(read_pair(p, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"));
    if (!p->there) {
        HD_TRY(read_pair(p, "PMI_RANK", "PMI_SIZE"));
    }
    for (int i = 0; i < 2 && !p->there; i++) {
        *p = (pair){.rank_name = lone[i], .size_name = lone[i]};
        HD_TRY(env_number(&p->rank, lone[i]));
        p->there = p->rank >= 0;
    }
out:
    return st;
}

/* The step that this process is a task of. A batch script's own shell has SLURM_PROCID as well, but no step. */
static heddle_status read_slurm(pair *p)
{
    *p = (pair){.there = 0};
    return env_text("SLURM_STEP_ID") != NULL ? read_pair(p, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS") : HEDDLE_OK;
}

static heddle_status contradict(const pair *a, const pair *b)
{
    return hd_fail(HEDDLE_ERR_ARG,
                   "the environment says %s=%d and %s=%d, but also %s=%d and %s=%d: which launcher started this "
                   "process? unset what another one left behind",
                   a->rank_name, a->rank, a->size_name, a->size, b->rank_name, b->rank, b->size_name, b->size);
}

static int agree(const pair *a, const pair *b)
{
    return a->rank == b->rank && (a->size == b->size || b->size == 0);
}

/* srun's variables before mpirun's, except where mpirun's daemons are srun's tasks, which is how it starts on several
 * hosts of a batch job: then they differ, and mpirun started more than one rank. */
static heddle_status read_by_mpi(hd_launch *out, pair *chosen)
{
    heddle_status st = HEDDLE_OK;
    pair mpi = {.there = 0};
    pair slurm = {.there = 0};
    HD_TRY(read_mpi(&mpi));
    HD_TRY(read_slurm(&slurm));
    int by_slurm = slurm.there && (!mpi.there || agree(&slurm, &mpi) || mpi.size == 0);
    if (slurm.there && mpi.there && !by_slurm && mpi.size == 1 && slurm.size > 1) {
        return contradict(&slurm, &mpi);
    }
    *chosen = by_slurm ? slurm : mpi;
    if (chosen->there) {
        take_pair(out, by_slurm ? "srun" : "mpirun", chosen);
        out->by_mpi = 1;
    }
out:
    return st;
}

heddle_status hd_launch_read_local(hd_launch *out)
{
    heddle_status st = HEDDLE_OK;
    pair torch = {.there = 0};
    int marked = 0;
    *out = (hd_launch){.size = 1, .here = 1};
    HD_TRY(read_heddle(out));
    if (out->name == NULL) {
        HD_TRY(read_torch(out, &torch, &marked));
    }
out:
    return st;
}

heddle_status hd_launch_read(hd_launch *out)
{
    heddle_status st = HEDDLE_OK;
    hd_launch by_mpi = {.size = 1, .here = 1};
    pair torch = {.there = 0};
    pair other = {.there = 0};
    int marked = 0;
    *out = by_mpi;
    HD_TRY(read_heddle(out));
    if (out->name != NULL) {
        return HEDDLE_OK;
    }
    HD_TRY(read_torch(out, &torch, &marked));
    if (marked) { /* by mpirun as well, and of more than this host: what it started finds itself through it */
        out->by_mpi =
            out->here != out->size && read_by_mpi(&by_mpi, &other) == HEDDLE_OK && other.there && agree(&torch, &other);
        return HEDDLE_OK;
    }
    HD_TRY(read_by_mpi(&by_mpi, &other));
    if (!other.there) {
        return HEDDLE_OK;
    }
    if (torch.there && !agree(&torch, &other)) { /* set by hand: from srun's or mpirun's, or left behind */
        return contradict(&torch, &other);
    }
    *out = by_mpi;
out:
    return st;
}

static heddle_status read_port(int *out, const char *name, int step)
{
    const char *text = env_text(name);
    char *end = NULL;
    errno = 0;
    const long value = text != NULL ? strtol(text, &end, 10) : 0;
    if (text != NULL && (*end != 0 || errno != 0 || value < 1 || value + step > UINT16_MAX)) {
        return hd_fail(HEDDLE_ERR_ARG, "the environment says %s='%.40s', wanted a port from 1 to %d", name, text,
                       UINT16_MAX - step);
    }
    *out = text != NULL ? (int)value + step : 0;
    return HEDDLE_OK;
}

heddle_status hd_launch_read_place(hd_launch_place *out)
{
    heddle_status st = HEDDLE_OK;
    out->host = env_text("MASTER_ADDR");
    HD_TRY(read_port(&out->port, "HEDDLE_PORT", 0));
    HD_TRY(out->port == 0 ? read_port(&out->port, "MASTER_PORT", 1) : HEDDLE_OK);
    if (out->host == NULL || out->port == 0) {
        return hd_fail(HEDDLE_ERR_ARG, "the environment does not say where rank 0 is: %s set",
                       out->host == NULL ? "MASTER_ADDR is not" : "neither MASTER_PORT nor HEDDLE_PORT is");
    }
out:
    return st;
}

heddle_status heddle_comm_launcher(const char **name, int *rank, int *size)
{
    hd_launch l;
    heddle_status st = hd_launch_read(&l);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (name != NULL) {
        *name = l.name;
    }
    if (rank != NULL) {
        *rank = l.rank;
    }
    if (size != NULL) {
        *size = l.size;
    }
    return HEDDLE_OK;
}
