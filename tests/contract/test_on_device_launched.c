/* Ranks of a program of examples/common: those of a launcher, or its own, each with the device of the options, whose
 * library lies in the folder that they name. */
#include "case.h"
#include "check.h"

#include "runtime/base/base.h"

#include "examples/common/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Two ranks, each a process of its own. */
static heddle_status has_a_device(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    int32_t here = getpid(), others[2] = {0};
    (void)arg;
    CHECK(heddle_comm_size(comm) == 2);
    CHECK(heddle_comm_device(comm) == 0);
    HD_TRY(heddle_comm_allgather(comm, &here, others, sizeof here));
    CHECK(others[0] != others[1]);
out:
    return st;
}

static heddle_status start(int ranks)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.module_folder = HEDDLE_DEVICE_SIM;
    options.device = "cuda:0";
    return program_run(ranks, "auto", &options, has_a_device, NULL);
}

/* So many processes of a launcher, each of which wants `wanted` ranks: what each returns, and says (NULL: not asked). */
static void launch(int size, int wanted, heddle_status status, const char *words)
{
    char rank[16], key[32], count[16];
    pid_t process[4] = {0};
    snprintf(key, sizeof key, "launched-%d-%d", (int)getpid(), size);
    snprintf(count, sizeof count, "%d", size);
    for (int r = 0; r < size; r++) {
        process[r] = fork();
        assert_true(process[r] >= 0);
        if (process[r] == 0) {
            snprintf(rank, sizeof rank, "%d", r);
            setenv("HEDDLE_RANK", rank, 1);
            setenv("HEDDLE_SIZE", count, 1);
            setenv("HEDDLE_KEY", key, 1);
            const heddle_status st = start(wanted);
            const int is_right = st == status && (words == NULL || strstr(heddle_last_error(), words) != NULL);
            if (!is_right) {
                fprintf(stderr, "rank %d of %d: status %d, %s\n", r, size, (int)st, heddle_last_error());
            }
            _exit(!is_right);
        }
    }
    for (int r = 0; r < size; r++) {
        int status_of = 0;
        assert_int_equal(waitpid(process[r], &status_of, 0), process[r]);
        assert_int_equal(status_of, 0);
    }
}

HD_CASE(ranks_of_a_launcher)
{
    launch(2, 2, HEDDLE_OK, NULL);
}

/* A launcher of one process starts none; so does none. */
HD_CASE(ranks_of_the_program)
{
    launch(1, 2, HEDDLE_OK, NULL);
    HD_OK(start(2));
}

HD_CASE(others_than_the_program_wants)
{
    launch(2, 3, HEDDLE_ERR_ARG, "2 ranks were started, but 3 are wanted");
    setenv("HEDDLE_SIZE", "0", 1);
    HD_FAILS(HEDDLE_ERR_ARG, start(2)); /* nobody can tell */
}
