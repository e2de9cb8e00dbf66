/* Who the ranks are: what the launcher's environment says, whom a process meets under its key, and whom it does not. */
#include "case.h"
#include "slow_clock.h"

#include "runtime/base/base.h"
#include "runtime/comm/ground/launcher.h"

#include <heddle/comm.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4 };

static const char *const variables[] = {"HEDDLE_RANK",
                                        "HEDDLE_SIZE",
                                        "HEDDLE_KEY",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_PORT",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_RESTART_COUNT",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "PMIX_RANK",
                                        "MPI_LOCALRANKID",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_STEP_ID",
                                        "SLURM_STEP_NUM_TASKS"};

/* "RANK=0 WORLD_SIZE=2": these and no others. */
static void environment(const char *words)
{
    char text[512];
    char *rest = NULL;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        unsetenv(variables[i]);
    }
    snprintf(text, sizeof text, "%s", words);
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = 0;
        setenv(word, value + 1, 1);
    }
}

HD_CASE(the_launcher_that_started_this_process)
{
    static const struct {
        const char *words, *launcher;
        int rank, size;
    } table[] = {
        {"", NULL, 0, 1},
        {"RANK=1 WORLD_SIZE=2 MASTER_PORT=9", "torchrun", 1, 2},
        {"RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 SLURM_PROCID=0 SLURM_NTASKS=2", "torchrun", 1, 2},
        {"RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1", "torchrun", 1,
         2},
        {"RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0", "torchrun", 1, 2},
        {"RANK=1 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none OMPI_COMM_WORLD_SIZE=1", "torchrun", 1, 2},
        {"HEDDLE_RANK=2 HEDDLE_SIZE=3 HEDDLE_KEY=k RANK=0 WORLD_SIZE=1 PMI_RANK=0 PMI_SIZE=9", "heddle", 2, 3},
        {"SLURM_PROCID=0 SLURM_NTASKS=4", NULL, 0, 1}, /* a batch script's own shell */
        {"SLURM_PROCID=3 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4", "srun", 3, 4},
        {"SLURM_PROCID=3 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 PMIX_RANK=3", "srun", 3, 4},
        {"SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8",
         "mpirun", 5, 8}, /* mpirun's daemons are srun's tasks */
        {"OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8", "mpirun", 5, 8},
        {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0", "mpirun", 1, 2},
        {"PMIX_RANK=1", "mpirun", 1, 0},
        {"RANK=1 WORLD_SIZE=2 PMI_RANK=1 PMI_SIZE=2", "mpirun", 1, 2}, /* set by hand from mpirun's */
        {"RANK= WORLD_SIZE=", NULL, 0, 1},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const char *launcher = "x";
        int rank = -1;
        int size = -1;
        environment(table[i].words);
        HD_OK(heddle_comm_launcher(&launcher, &rank, &size));
        if ((launcher == NULL) != (table[i].launcher == NULL) ||
            (launcher != NULL && strcmp(launcher, table[i].launcher) != 0) || rank != table[i].rank ||
            size != table[i].size) {
            fail_msg("'%s' gives %s, rank %d of %d", table[i].words, launcher, rank, size);
        }
    }
    HD_OK(heddle_comm_launcher(NULL, NULL, NULL));
}

/* Never a silent single rank: the sentence has the variables and their values. */
HD_CASE(contradictions_are_errors)
{
    static const struct {
        const char *words, *says[4];
    } table[] = {
        {"RANK=5 WORLD_SIZE=2 MASTER_PORT=9", {"RANK=5", "WORLD_SIZE=2"}},
        {"RANK=2 WORLD_SIZE=2", {"RANK=2", "WORLD_SIZE=2"}},
        {"RANK=0", {"RANK=0", "WORLD_SIZE is not set"}},
        {"WORLD_SIZE=2", {"WORLD_SIZE=2", " RANK is not set"}},
        {"RANK=zero WORLD_SIZE=2", {"RANK='zero'", "whole number"}},
        {"RANK=0 WORLD_SIZE=-2", {"WORLD_SIZE='-2'"}},
        {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=4", {"LOCAL_WORLD_SIZE=4", "WORLD_SIZE=2"}},
        {"RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1",
         {"RANK=0", "WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1"}},
        {"RANK=0 WORLD_SIZE=1 SLURM_PROCID=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4",
         {"RANK=0", "WORLD_SIZE=1", "SLURM_PROCID=2", "SLURM_STEP_NUM_TASKS=4"}},
        {"SLURM_PROCID=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1",
         {"SLURM_STEP_NUM_TASKS=4", "OMPI_COMM_WORLD_SIZE=1"}},
        {"OMPI_COMM_WORLD_SIZE=4", {"OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK is not set"}},
        {"PMI_RANK=4 PMI_SIZE=4", {"PMI_RANK=4", "PMI_SIZE=4"}},
        {"HEDDLE_RANK=0 HEDDLE_SIZE=2", {"HEDDLE_KEY is not set"}},
        {"HEDDLE_KEY=k", {"HEDDLE_RANK and HEDDLE_SIZE are not set"}},
        {"HEDDLE_RANK=2 HEDDLE_SIZE=2 HEDDLE_KEY=k", {"HEDDLE_RANK=2", "HEDDLE_SIZE=2"}},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        heddle_comm *comm = NULL;
        environment(table[i].words);
        if (heddle_comm_open(&comm, "auto", NULL) != HEDDLE_ERR_ARG) {
            fail_msg("'%s' was taken: %s", table[i].words, heddle_last_error());
        }
        for (int k = 0; k < 4 && table[i].says[k] != NULL; k++) {
            if (strstr(heddle_last_error(), table[i].says[k]) == NULL) {
                fail_msg("'%s': '%s' is not in: %s", table[i].words, table[i].says[k], heddle_last_error());
            }
        }
    }
}

/* --- several processes -------------------------------------------------------------------------------------------- */

/* How each process of a job ended. */
typedef struct outcome {
    heddle_status status;
    int size;
    char sentence[512];
    double seconds;
} outcome;

static outcome *outcomes;

static void forget(void)
{
    if (outcomes == NULL) {
        outcomes = hd_shared(MOST * sizeof *outcomes);
    }
    memset(outcomes, 0, MOST * sizeof *outcomes);
}

/* Of one process: "yes" when it has been asked so often. */
enum { ASKED = 50, NO_PROCESS = -1 };
static int interrupted = NO_PROCESS;

static int ask(void *times)
{
    return ++*(int *)times >= ASKED;
}

static pid_t start_rank(int process, const char *words, int64_t deadline_ms)
{
    pid_t pid = fork();
    if (pid == 0) {
        heddle_comm *comm = NULL;
        heddle_comm_options options;
        outcome *o = &outcomes[process];
        heddle_comm_options_init(&options);
        options.deadline_ms = deadline_ms;
        int times = 0;
        options.interrupt = process == interrupted ? ask : NULL;
        options.interrupt_arg = &times;
        environment(words);
        int64_t start_ns = hd_test_now_ns();
        o->status = heddle_comm_open(&comm, "auto", &options);
        o->seconds = (double)(hd_test_now_ns() - start_ns) * 1e-9;
        o->size = comm != NULL ? heddle_comm_size(comm) : 0;
        snprintf(o->sentence, sizeof o->sentence, "%s", heddle_last_error());
        o->status = o->status == HEDDLE_OK ? heddle_comm_barrier(comm) : o->status;
        heddle_comm_destroy(comm);
        _exit(0);
    }
    return pid;
}

static void wait_for(const pid_t *pid, int n)
{
    for (int i = 0; i < n; i++) {
        int wait_status = 0;
        assert_int_equal(waitpid(pid[i], &wait_status, 0), pid[i]);
        assert_int_equal(wait_status, 0);
    }
}

/* Keys that begin alike are different keys, however long they are. */
HD_CASE(long_keys_stay_apart)
{
    char key[2][200];
    char words[256];
    pid_t pid[4];
    for (int k = 0; k < 2; k++) {
        snprintf(key[k], sizeof key[k], "%d.%.*s%d", (int)getpid(), 120,
                 "loooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo"
                 "oooooooo"
                 "ng",
                 k);
    }
    forget();
    for (int i = 0; i < 4; i++) { /* two jobs of two ranks at once */
        snprintf(words, sizeof words, "HEDDLE_RANK=%d HEDDLE_SIZE=2 HEDDLE_KEY=%s", i % 2, key[i / 2]);
        pid[i] = start_rank(i, words, 5000);
    }
    wait_for(pid, 4);
    for (int i = 0; i < 4; i++) {
        if (outcomes[i].status != HEDDLE_OK) {
            fail_msg("rank %d of job %d: %s", i % 2, i / 2, outcomes[i].sentence);
        }
    }
    hd_launch a;
    hd_launch b;
    snprintf(words, sizeof words, "RANK=0 WORLD_SIZE=2 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=%s", key[0]);
    environment(words);
    HD_OK(hd_launch_read(&a));
    snprintf(words, sizeof words, "RANK=0 WORLD_SIZE=2 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=%s", key[1]);
    environment(words);
    HD_OK(hd_launch_read(&b));
    assert_string_not_equal(a.key, b.key);
}

/* One of the first n processes has heard why not. */
static void await_refusal(int n)
{
    const int64_t until_ns = hd_test_now_ns() + hd_test_limit_ns(20);
    for (int i = 0; outcomes[i].sentence[0] == 0; i = (i + 1) % n) {
        assert_true(hd_test_now_ns() < until_ns);
        usleep(1000);
    }
}

/* Ranks as given, all of one job of `size`; each process must hear of rank `twice`, a fourth one that comes after the
 * conflict, too. */
static void same_rank_twice(int size, const int *rank, int n, int twice)
{
    static int job;
    char words[128];
    char says[64];
    pid_t pid[MOST] = {0};
    forget();
    job++;
    for (int i = 0; i < n; i++) {
        if (i == 3) {
            await_refusal(i);
        }
        snprintf(words, sizeof words, "HEDDLE_RANK=%d HEDDLE_SIZE=%d HEDDLE_KEY=twice.%d.%d", rank[i], size,
                 (int)getpid(), job);
        pid[i] = start_rank(i, words, hd_test_missed_ns(1.5) / 1000000);
        usleep(20000); /* most often one comes after the other */
    }
    wait_for(pid, n);
    snprintf(says, sizeof says, "two processes came as rank %d", twice);
    for (int i = 0; i < n; i++) {
        char its_pid[32];
        snprintf(its_pid, sizeof its_pid, "process %d", (int)pid[i]);
        if (outcomes[i].status != HEDDLE_ERR_MISMATCH || strstr(outcomes[i].sentence, says) == NULL ||
            (rank[i] == twice && strstr(outcomes[i].sentence, its_pid) == NULL)) {
            fail_msg("size %d, process %d as rank %d: %s", size, i, rank[i], outcomes[i].sentence);
        }
    }
}

/* Whoever comes within a second of the conflict hears of it. */
HD_CASE(two_processes_of_one_rank)
{
    slow_down();
    same_rank_twice(3, (const int[]){0, 1, 1}, 3, 1);
    same_rank_twice(3, (const int[]){1, 1, 0}, 3, 1);
    same_rank_twice(3, (const int[]){0, 1, 1, 2}, 4, 1);
    same_rank_twice(2, (const int[]){0, 0}, 2, 0);
    same_rank_twice(3, (const int[]){1, 0, 0}, 3, 0);
    slowness = 1;
    same_rank_twice(2, (const int[]){1, 1}, 2, 1); /* and rank 0 never comes: they wait for it in vain */
}

/* One of two ranks that wait for a third: it ends at once, and so does who has met it. */
HD_CASE(opening_can_be_interrupted)
{
    char words[128];
    pid_t pid[2];
    for (int process = 0; process < 2; process++) { /* rank 1 waits for rank 0, which never comes; both are there */
        forget();
        interrupted = process;
        for (int i = 0; i <= process; i++) {
            snprintf(words, sizeof words, "HEDDLE_RANK=%d HEDDLE_SIZE=3 HEDDLE_KEY=interrupt.%d.%d", 1 - i,
                     (int)getpid(), process);
            pid[i] = start_rank(i, words, 60000);
        }
        wait_for(pid, process + 1);
        interrupted = NO_PROCESS;
        for (int i = 0; i <= process; i++) {
            const outcome *o = &outcomes[i];
            char says[64];
            snprintf(says, sizeof says, "rank %d was interrupted while the ranks were meeting", 1 - process);
            if (o->status != (i == process ? HEDDLE_ERR_INTERRUPTED : HEDDLE_ERR_PEER) ||
                o->seconds * 1e9 > (double)hd_test_limit_ns(30) || strstr(o->sentence, says) == NULL) {
                fail_msg("rank %d: %s after %.1f s: %s", 1 - i, heddle_status_name(o->status), o->seconds, o->sentence);
            }
        }
    }
}
