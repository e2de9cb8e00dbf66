/* What the two ways of starting ranks share. */
#ifndef HD_COMM_RUN_H
#define HD_COMM_RUN_H

#include "runtime/comm/transport/transport.h"

enum { HD_RUN_MAX_RANKS = 1024, HD_RUN_GRACE_MS = 2000 };

/* How one rank ended. Shared between processes. */
typedef struct hd_run_rank {
    _Atomic int done; /* the function returned, status and sentence are there */
    int status;
    int order; /* among the failures, from 1 */
    int ended; /* the process ended without the function returning; the sentence goes on after "rank N " */
    char sentence[HD_WHY_BYTES];
} hd_run_rank;

typedef struct hd_run_shared {
    _Atomic int failures;
    _Atomic int dead; /* 1 + rank of a process that ended without a word; 0 */
    hd_run_rank rank[];
} hd_run_shared;

struct hd_run {
    int nranks;
    /* Processes: this rank's communicator with the others, in any way that `key`, random and theirs alone, makes. */
    heddle_status (*meet)(heddle_comm **out, hd_run *run, int rank, const char *key);
    int listener;      /* of tcp's rank 0 */
    const char *where; /* as the caller gave it, fault(...) included */
    const char *inner;
    heddle_comm_options options;
    heddle_rank_main fn;
    void *arg;
    hd_run_shared *shared;
};

heddle_status hd_run_processes(hd_run *run);

/* The rank's communicator from its group (taken over). */
heddle_status hd_run_comm(heddle_comm **out, const hd_run *run, hd_group *group, int rank);
/* Run the function on it (taken over), report. `met`: how making it went. */
void hd_run_rank_main(hd_run *run, heddle_comm *comm, heddle_status met, int rank);
void hd_run_report(hd_run_shared *shared, int rank, heddle_status status);

#endif
