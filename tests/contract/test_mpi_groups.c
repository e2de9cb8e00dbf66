/* Over MPI: groups along an axis that spans hosts, ranks that do not call the same, and an abort between quick
 * operations. */
#include "case.h"
#include "check.h"
#include "mpirun.h"
#include "switch_check.h"

#include <heddle/heddle.h>
#include <heddle/mpi.h>
#include <heddle/train/pipeline.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PASSED = 0, FAILED = 1, GROUP = 3 };

/* --- as a rank ---------------------------------------------------------------------------------------------------- */

static int open_world(heddle_comm **out, const char *what)
{
    const heddle_comm_options options = mpirun_comm_options(what, 3);
    MPI_Init(NULL, NULL);
    CHECK_OR_ABORT(heddle_comm_from_mpi(out, MPI_COMM_WORLD, &options) == HEDDLE_OK);
    return PASSED;
}

/* Six ranks, three pretended hosts of two: each group of three lies on two of them, and its numbers are others than the
 * world's. */
static int as_groups(heddle_comm *world)
{
    const heddle_mesh mesh = {.naxes = 2, .axis = {{"b", 2}, {"a", GROUP}}};
    int rank = heddle_comm_rank(world), first = rank / GROUP * GROUP;
    heddle_comm *group = NULL;
    char room[SWITCH_TEXT_BYTES], text[SWITCH_TEXT_BYTES];
    CHECK_OR_ABORT(heddle_comm_axis_group(&group, world, &mesh, 1) == HEDDLE_OK);
    int me = heddle_comm_rank(group);
    CHECK_OR_ABORT(heddle_comm_size(group) == GROUP && first + me == rank);
    for (int turn = 0; turn < 3; turn++) {
        int mine[200], all[GROUP * 200], got = -1;
        double sum = rank;
        int n = turn == 0 ? 1 : turn == 1 ? 64 : 200; /* in an envelope, just so, beyond */
        for (int i = 0; i < n; i++) {
            mine[i] = rank * 1000 + i;
        }
        CHECK_OR_ABORT(heddle_comm_allgather(group, mine, all, (size_t)n * sizeof(int)) == HEDDLE_OK);
        for (int i = 0; i < GROUP * n; i++) {
            CHECK_OR_ABORT(all[i] == (first + i / n) * 1000 + i % n);
        }
        CHECK_OR_ABORT(heddle_comm_allreduce_sum(group, &sum, 1, HEDDLE_F64) == HEDDLE_OK && sum == 3 * first + 3);
        CHECK_OR_ABORT(heddle_comm_sendrecv(group, &rank, sizeof(rank), (me + 1) % GROUP, &got, sizeof(got),
                                            (me + GROUP - 1) % GROUP, HEDDLE_NO_STREAM) == HEDDLE_OK);
        CHECK_OR_ABORT(got == first + (me + GROUP - 1) % GROUP);
        CHECK_OR_ABORT(heddle_comm_barrier(group) == HEDDLE_OK);
    }
    for (int i = 0; switch_line(i, GROUP, room) != NULL; i++) {
        if (switch_check(group, room, NULL, text) != 0) {
            fprintf(stderr, "rank %d: %s\n", rank, text);
            MPI_Abort(MPI_COMM_WORLD, FAILED);
        }
    }
    heddle_comm_destroy(group);
    heddle_comm_destroy(world);
    return PASSED;
}

/* Other sizes on rank 1: every rank that is concerned hears of it, and the next operation works. */
static int as_differ(heddle_comm *world)
{
    const size_t sizes[] = {0, 8, 600, 100000};
    int rank = heddle_comm_rank(world), size = heddle_comm_size(world), odd = rank == 1;
    static char data[200000], all[400000];
    const heddle_mesh mesh = {.naxes = 1, .axis = {{"pp", size}}};
    heddle_pipeline *pipeline = NULL;
    heddle_comm *group = NULL;
    for (int i = 0; i < 16; i++) {
        size_t one = sizes[i / 4], other = sizes[i % 4];
        if (rank > 1) {
            break;
        }
        heddle_status wanted = one == other ? HEDDLE_OK : HEDDLE_ERR_MISMATCH;
        CHECK_OR_ABORT((odd ? heddle_comm_sendrecv(world, NULL, 0, -1, data, other, 0, HEDDLE_NO_STREAM)
                            : heddle_comm_sendrecv(world, data, one, 1, NULL, 0, -1, HEDDLE_NO_STREAM)) == wanted);
        char text[24];
        snprintf(text, sizeof(text), "%zu bytes", odd ? other : one);
        CHECK_OR_ABORT(wanted == HEDDLE_OK || strstr(heddle_last_error(), text) != NULL);
    }
    CHECK_OR_ABORT(heddle_pipeline_create(&pipeline, world, &mesh, 0) == HEDDLE_OK);
    CHECK_OR_ABORT(rank > 1 ||
                   (odd ? heddle_pipeline_recv_prev(pipeline, data, 70000, HEDDLE_NO_STREAM)
                        : heddle_pipeline_send_next(pipeline, data, 80000, HEDDLE_NO_STREAM)) == HEDDLE_ERR_MISMATCH);
    heddle_pipeline_destroy(pipeline);
    CHECK_OR_ABORT(heddle_comm_allgather(world, data, all, odd ? 8 : 16) == HEDDLE_ERR_MISMATCH);
    CHECK_OR_ABORT(strstr(heddle_last_error(), "rank 1 comes with an allgather of 8 bytes") != NULL);
    CHECK_OR_ABORT(heddle_comm_allgather(world, data, all, odd ? 8 : 1000) == HEDDLE_ERR_MISMATCH);
    CHECK_OR_ABORT(heddle_comm_allreduce_sum(world, all, odd ? 1 : 2, HEDDLE_F64) == HEDDLE_ERR_MISMATCH);
    CHECK_OR_ABORT(heddle_comm_allreduce_sum(world, all, 2, odd ? HEDDLE_I64 : HEDDLE_F64) == HEDDLE_ERR_MISMATCH);
    CHECK_OR_ABORT((odd ? heddle_comm_barrier(world) : heddle_comm_allgather(world, data, all, 4)) ==
                   HEDDLE_ERR_MISMATCH);
    CHECK_OR_ABORT(heddle_comm_axes_group(&group, world, &mesh, odd ? 0 : 1) == HEDDLE_ERR_MISMATCH);
    CHECK_OR_ABORT(strstr(heddle_last_error(), "rank 1 asks for another axis group") != NULL);
    CHECK_OR_ABORT(heddle_comm_barrier(world) == HEDDLE_OK);
    heddle_comm_destroy(world);
    return PASSED;
}

/* Nobody waits long here: rank 1 gives up between operations, and goes on with them like everybody else. */
static int as_abort(heddle_comm *world)
{
    int rank = heddle_comm_rank(world), more = 0;
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < 100 && st == HEDDLE_OK; i++) {
        st = heddle_comm_barrier(world);
    }
    CHECK_OR_ABORT(st == HEDDLE_OK);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) {
        CHECK_OR_ABORT(heddle_comm_abort(world, "the oven is off") == HEDDLE_OK);
        CHECK_OR_ABORT(heddle_comm_barrier(world) == HEDDLE_ERR_PEER);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    while (more < 1000 && (st = heddle_comm_barrier(world)) == HEDDLE_OK) {
        more++;
    }
    CHECK_OR_ABORT(st == HEDDLE_ERR_PEER && more == 0);
    CHECK_OR_ABORT(strstr(heddle_last_error(), "the oven is off") != NULL);
    heddle_comm_destroy(world);
    return PASSED;
}

static int rank_main(const char *what)
{
    heddle_comm *world = NULL;
    if (open_world(&world, what) != PASSED) {
        return FAILED;
    }
    int result = strstr(what, "groups") != NULL   ? as_groups(world)
                 : strstr(what, "differ") != NULL ? as_differ(world)
                                                  : as_abort(world);
    MPI_Finalize();
    return result;
}

/* --- from outside ------------------------------------------------------------------------------------------------- */

MPIRUN_CASE(groups_that_span_hosts, PASSED, NULL, "6 groups hosts")
MPIRUN_CASE(groups_by_messages, PASSED, NULL, "6 groups forced")
MPIRUN_CASE(calls_that_differ, PASSED, NULL, "3 differ forced", "3 differ hosts")
MPIRUN_CASE(an_abort_between_quick_operations, PASSED, NULL, "3 abort forced", "3 abort", "3 abort hosts")

int main(int argc, char **argv)
{
    return mpirun_main(argc, argv, rank_main);
}
