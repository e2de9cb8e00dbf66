/* Under mpirun: a rank that is interrupted in a wait, over memory that peers share and over messages, and what the
 * others hear of it. */
#include "case.h"
#include "mpirun.h"
#include "time_limit.h"

#include <heddle/heddle.h>
#include <heddle/mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FAILED = 1, AS_WANTED = 42, ASKED = 3 };

static int ask(void *arg)
{
    int *asked = arg;
    return ++*asked == ASKED;
}

static int fails(const char *what, heddle_status st, int asked)
{
    fprintf(stderr, "%s: %s after %d questions: %s\n", what, heddle_status_name(st), asked, heddle_last_error());
    MPI_Abort(MPI_COMM_WORLD, FAILED);
    return FAILED;
}

/* Rank 0 ends the job when all have seen it: MPI cannot be finalised any more. */
static int all_saw_it(int rank, int size)
{
    int token = 0;
    if (rank != 0) {
        MPI_Send(&token, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
        sleep((unsigned)(hd_test_limit_ns(20) / 1000000000));
        return FAILED;
    }
    for (int r = 1; r < size; r++) {
        MPI_Recv(&token, 1, MPI_INT, r, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Abort(MPI_COMM_WORLD, AS_WANTED);
    return FAILED;
}

/* The last rank waits for what does not come and is interrupted; the others wait for it. */
static int rank_main(const char *what)
{
    heddle_comm *comm = NULL;
    heddle_comm_options options = mpirun_comm_options(what, 0);
    int rank = 0, size = 0, in = 0, asked = -1000000; /* opening may ask, too */
    options.interrupt = ask;
    options.interrupt_arg = &asked;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const int last = size - 1;
    heddle_status st = heddle_comm_from_mpi(&comm, MPI_COMM_WORLD, &options);
    if (st != HEDDLE_OK) {
        return fails("opening", st, asked);
    }
    const double begin = MPI_Wtime();
    asked = rank == last ? 0 : -1000000;
    st = rank == last && strstr(what, "barrier") != NULL
             ? heddle_comm_barrier(comm)
             : heddle_comm_sendrecv(comm, NULL, 0, -1, &in, sizeof in, rank == last ? 0 : last, HEDDLE_NO_STREAM);
    const int right = rank == last ? st == HEDDLE_ERR_INTERRUPTED && asked == ASKED : st == HEDDLE_ERR_PEER;
    if (!right || strstr(heddle_last_error(), "interrupted") == NULL ||
        (MPI_Wtime() - begin) * 1e9 > (double)hd_test_limit_ns(5)) {
        return fails(what, st, asked);
    }
    return all_saw_it(rank, size);
}

MPIRUN_CASE(where_peers_share_memory, AS_WANTED, NULL, "2 sendrecv", "3 barrier")
MPIRUN_CASE(where_all_is_messages, AS_WANTED, NULL, "3 sendrecv forced", "2 barrier forced")

int main(int argc, char **argv)
{
    return mpirun_main(argc, argv, rank_main);
}
