/* Processes that name the same key are one communicator's ranks, whatever the environment says. */
#include "case.h"

#include <heddle/comm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 4 };

typedef struct outcome {
    heddle_status status;
    int64_t sum; /* of one hexadecimal digit per process */
    char sentence[512];
} outcome;

static pid_t start(outcome *o, const char *key, int process)
{
    pid_t pid = fork();
    if (pid == 0) {
        heddle_comm *comm = NULL;
        setenv("HEDDLE_RANK", "0", 1);
        setenv("HEDDLE_SIZE", "7", 1);
        setenv("HEDDLE_KEY", "another", 1);
        o->sum = (int64_t)1 << (4 * process);
        o->status = heddle_comm_join(&comm, key, process % 2, 2, NULL);
        o->status = o->status == HEDDLE_OK ? heddle_comm_allreduce_sum(comm, &o->sum, 1, HEDDLE_I64) : o->status;
        snprintf(o->sentence, sizeof o->sentence, "%s", heddle_last_error());
        heddle_comm_destroy(comm);
        _exit(0);
    }
    return pid;
}

HD_CASE(two_jobs_whose_keys_differ_in_the_last_letter)
{
    char key[300];
    pid_t pid[PROCESSES];
    outcome *o = hd_shared(PROCESSES * sizeof *o);
    memset(key, 'k', sizeof key);
    for (int i = 0; i < PROCESSES; i++) {
        snprintf(key + 250, sizeof key - 250, ".%d.%d", (int)getpid(), i / 2);
        pid[i] = start(&o[i], key, i);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int wait_status = 0;
        assert_int_equal(waitpid(pid[i], &wait_status, 0), pid[i]);
        assert_int_equal(wait_status, 0);
        if (o[i].status != HEDDLE_OK || o[i].sum != (i < 2 ? 0x11 : 0x1100)) {
            fail_msg("process %d: sum %llx: %s", i, (unsigned long long)o[i].sum, o[i].sentence);
        }
    }
}

HD_CASE(what_is_refused)
{
    heddle_comm *comm = NULL;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_join(&comm, "k", 2, 2, NULL));
    assert_non_null(strstr(heddle_last_error(), "rank 2 of 2"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_join(&comm, "k", -1, 2, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_join(&comm, "k", 0, 0, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_join(&comm, "", 0, 1, NULL));
    assert_null(comm);
}
