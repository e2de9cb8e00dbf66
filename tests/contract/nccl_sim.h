/* The fake NCCL that libheddle_nccl is linked to in tests: what it does on request, and calls of NCCL itself. */
#ifndef HD_TEST_NCCL_SIM_H
#define HD_TEST_NCCL_SIM_H

#include "own_stream.h"
#include "time_limit.h"

#include <heddle/nccl.h>

typedef struct nccl_id {
    char internal[128];
} nccl_id;

typedef struct nccl_sim {
    void (*fail_at)(int64_t n, int result);
    void (*fail_group_at)(int64_t n, int result);
    int64_t (*calls)(void);
    int (*comms)(void);
    int64_t (*aborts)(void);
    int (*get_id)(nccl_id *id);
    int (*init)(struct ncclComm **out, int nranks, nccl_id id, int rank); /* on the thread's device */
    int (*destroy)(struct ncclComm *comm);
    int (*abort)(struct ncclComm *comm);
    int (*set_device)(int device); /* CUDA's */
    void (*end_together)(int nranks);
} nccl_sim;

/* A communicator that was lent is as it was. */
static inline heddle_status take_back(const nccl_sim *sim, struct ncclComm *nccl, int rank)
{
    const int is_whole = sim->aborts() == 0 && sim->destroy(nccl) == 0;
    return is_whole ? HEDDLE_OK : heddle_set_error(HEDDLE_ERR_INTERNAL, "rank %d: what was borrowed was ended", rank);
}

/* From the library as heddle loads it. */
static inline nccl_sim get_sim(void)
{
    static const char *const names[] = {"ncclsim_fail_at",  "ncclsim_fail_group_at", "ncclsim_calls",
                                        "ncclsim_comms",    "ncclsim_aborts",        "ncclGetUniqueId",
                                        "ncclCommInitRank", "ncclCommDestroy",       "ncclCommAbort",
                                        "cudaSetDevice",    "ncclsim_end_together"};
    nccl_sim out;
    void *library = dlopen(HEDDLE_NCCL_SIM "/libheddle_nccl.so", RTLD_NOW | RTLD_LOCAL);
    HD_OK(sim_functions(&out, library, names, sizeof names / sizeof names[0]));
    return out;
}

/* The deadline is missed by nobody but whom a case holds up. 0: that of heddle. */
static inline heddle_comm_options by_nccl(double deadline_s)
{
    heddle_comm_options options;
    setenv("HEDDLE_MODULE_PATH", HEDDLE_NCCL_SIM, 1);
    setenv("HEDDLE_CUDASIM_DEVICES", "4", 1); /* ranks of one device would share its default stream */
    heddle_comm_options_init(&options);
    options.device = "cuda";
    options.wire = HEDDLE_WIRE_NCCL;
    options.deadline_ms = hd_test_limit_ns(deadline_s) / 1000000;
    return options;
}

/* With a deadline that is missed. */
static inline heddle_comm_options by_nccl_missed(double deadline_s)
{
    heddle_comm_options options = by_nccl(deadline_s);
    options.deadline_ms = hd_test_missed_ns(deadline_s) / 1000000;
    return options;
}

/* On threads, where all is well in the end. */
static inline void run_by_nccl(int n, heddle_rank_main fn, void *arg)
{
    heddle_comm_options options = by_nccl(10);
    HD_OK(heddle_run_ranks_with(n, "threads", &options, fn, arg));
}

#endif
