/* The MPI adapter under mpirun: group operations, reshards over every mix of peer memory and messages, a borrowed part
 * of the world, deadlines, and what MPI was asked to move against what was planned. */
#include "case.h"
#include "check.h"
#include "mpirun.h"
#include "pmpi_count.h"
#include "switch_check.h"
#include "time_limit.h"

#include <dlfcn.h>
#include <heddle/mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PASSED = 0, FAILED = 1, AS_WANTED = 42, MAX_RANKS = 8 };

/* --- as a rank ---------------------------------------------------------------------------------------------------- */

/* Groups over sets of axes where the ranks make a mesh of three: of the members that differ on the outer two, then of
 * the one inside that. */
static int axes_groups(heddle_comm *comm)
{
    int rank = heddle_comm_rank(comm);
    int size = heddle_comm_size(comm);
    heddle_mesh mesh = {.naxes = 3, .axis = {{"a", size % 2 ? size : size / 2}, {"b", 1}, {"c", size % 2 ? 1 : 2}}};
    for (unsigned axes = 0; axes < 8; axes++) {
        heddle_comm *group = NULL;
        int all[MAX_RANKS];
        int inner = mesh.axis[2].size;
        int wanted = (axes & 1 ? mesh.axis[0].size : 1) * (axes & 4 ? inner : 1);
        CHECK_OR_ABORT(heddle_comm_axes_group(&group, comm, &mesh, axes) == HEDDLE_OK);
        CHECK_OR_ABORT(heddle_comm_size(group) == wanted);
        CHECK_OR_ABORT(heddle_comm_allgather(group, &rank, all, sizeof rank) == HEDDLE_OK);
        CHECK_OR_ABORT(all[heddle_comm_rank(group)] == rank);
        for (int i = 0; i < wanted; i++) {
            CHECK_OR_ABORT((axes & 1 || all[i] / inner == rank / inner) &&
                           (axes & 4 || all[i] % inner == rank % inner));
            CHECK_OR_ABORT(i == 0 || all[i] > all[i - 1]);
        }
        heddle_comm_destroy(group);
    }
    return PASSED;
}

static int group_operations(heddle_comm *comm)
{
    int rank = heddle_comm_rank(comm);
    int size = heddle_comm_size(comm);
    enum { LARGE = 3 << 20 };
    unsigned char *out = malloc(LARGE);
    unsigned char *in = malloc(LARGE);
    CHECK_OR_ABORT(strstr(heddle_comm_describe(comm), "mpi") != NULL && out != NULL && in != NULL);
    for (int turn = 0; turn < 10; turn++) {
        int64_t mine[2] = {rank, turn};
        int64_t all[2 * MAX_RANKS];
        int64_t sum = rank + turn;
        int from = (rank + size - 1) % size;
        size_t bytes = turn % 2 ? LARGE : 5;
        CHECK_OR_ABORT(heddle_comm_barrier(comm) == HEDDLE_OK);
        CHECK_OR_ABORT(heddle_comm_allgather(comm, mine, all, sizeof(mine)) == HEDDLE_OK);
        for (int r = 0; r < size; r++) {
            CHECK_OR_ABORT(all[2 * r] == r && all[2 * r + 1] == turn);
        }
        CHECK_OR_ABORT(heddle_comm_allreduce_sum(comm, &sum, 1, HEDDLE_I64) == HEDDLE_OK);
        CHECK_OR_ABORT(sum == (int64_t)size * (size - 1) / 2 + (int64_t)size * turn);
        memset(out, rank + turn, bytes);
        CHECK_OR_ABORT(heddle_comm_sendrecv(comm, out, bytes, (rank + 1) % size, in, bytes, from, HEDDLE_NO_STREAM) ==
                       HEDDLE_OK);
        CHECK_OR_ABORT(in[0] == from + turn && in[bytes - 1] == from + turn);
    }
    free(out);
    free(in);
    return axes_groups(comm);
}

static int reshards(heddle_comm *comm, int64_t *total_to)
{
    char room[SWITCH_TEXT_BYTES];
    char text[SWITCH_TEXT_BYTES];
    for (int i = 0; switch_line(i, heddle_comm_size(comm), room) != NULL; i++) {
        if (switch_check(comm, room, total_to, text) != 0) {
            fprintf(stderr, "rank %d: %s\n", heddle_comm_rank(comm), text);
            MPI_Abort(MPI_COMM_WORLD, FAILED);
            return FAILED;
        }
    }
    return PASSED;
}

/* Everything on the world that heddle opens by itself. */
static int as_world(const char *what)
{
    heddle_comm *comm = NULL;
    heddle_comm_options options = mpirun_comm_options(what, 2);
    CHECK_OR_ABORT(heddle_comm_open(&comm, "mpi", &options) == HEDDLE_OK);
    int size = heddle_comm_size(comm);
    for (int r = 0; r < size; r++) {
        int apart = options.force_messages ||
                    (options.pretend_hosts == 2 && (r < (size + 1) / 2) != (heddle_comm_rank(comm) < (size + 1) / 2));
        CHECK_OR_ABORT(heddle_comm_reaches(comm, r) == (r == heddle_comm_rank(comm) || !apart));
    }
    int result = group_operations(comm);
    result = result == PASSED ? reshards(comm, NULL) : result;
    heddle_comm_destroy(comm);
    int finalized = 0;
    MPI_Finalized(&finalized);
    return result == PASSED && finalized ? PASSED : FAILED;
}

/* Even and odd ranks apart, in reversed order, both at work at the same time; then the world again. */
static int as_split(const char *what)
{
    MPI_Comm half;
    heddle_comm *comm = NULL;
    heddle_comm *world = NULL;
    heddle_comm_options options = mpirun_comm_options(what, 2);
    int rank = 0;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    CHECK_OR_ABORT(heddle_comm_from_mpi(&world, MPI_COMM_WORLD, &options) == HEDDLE_OK);
    CHECK_OR_ABORT(heddle_comm_from_mpi(&comm, half, &options) == HEDDLE_OK);
    int half_rank = 0;
    MPI_Comm_rank(half, &half_rank);
    CHECK_OR_ABORT(heddle_comm_rank(comm) == half_rank);
    CHECK_OR_ABORT(group_operations(comm) == PASSED && reshards(comm, NULL) == PASSED);
    CHECK_OR_ABORT(group_operations(world) == PASSED && reshards(world, NULL) == PASSED);
    heddle_comm_destroy(comm);
    heddle_comm_destroy(world);
    /* the borrowed communicator still works, with its own error handler */
    int sum = 1;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, half);
    MPI_Comm_free(&half);
    MPI_Finalize();
    return sum > 0 ? PASSED : FAILED;
}

/* What the interposer saw on the exchange communicator = what was measured (and that = what was planned). */
static int as_counted(const char *what)
{
    heddle_comm *comm = NULL;
    heddle_comm_options options = mpirun_comm_options(what, 2);
    int64_t total[MAX_RANKS] = {0};
    int64_t bytes[MAX_RANKS] = {0};
    int64_t messages[MAX_RANKS] = {0};
    pmpi_count_read_fn *read_counts = NULL;
    void *found = dlsym(RTLD_DEFAULT, "pmpi_count_read");
    memcpy(&read_counts, &found, sizeof(found));
    MPI_Init(NULL, NULL);
    CHECK_OR_ABORT(read_counts != NULL);
    CHECK_OR_ABORT(heddle_comm_from_mpi(&comm, MPI_COMM_WORLD, &options) == HEDDLE_OK);
    CHECK_OR_ABORT(group_operations(comm) == PASSED && reshards(comm, total) == PASSED);
    int size = heddle_comm_size(comm);
    int rank = heddle_comm_rank(comm);
    int seen = read_counts("heddle exchange", bytes, messages, size) == 0;
    for (int r = 0; r < size; r++) {
        int64_t wanted = heddle_comm_reaches(comm, r) ? 0 : total[r];
        if (bytes[r] != wanted || (wanted > 0 && messages[r] == 0)) {
            fprintf(stderr, "rank %d to %d: MPI was asked for %lld bytes in %lld messages, planned and measured %lld\n",
                    rank, r, (long long)bytes[r], (long long)messages[r], (long long)wanted);
            MPI_Abort(MPI_COMM_WORLD, FAILED);
        }
    }
    CHECK_OR_ABORT(seen || !options.force_messages || size == 1);
    CHECK_OR_ABORT(!options.force_messages || size == 1 || total[(rank + 1) % size] > 0);
    heddle_comm_destroy(comm);
    MPI_Finalize();
    return PASSED;
}

/* Everybody but `absent` has seen what it should: rank 0 hears it from each and ends the job with the wanted code. */
static int all_saw_it(int absent)
{
    int rank = 0;
    int size = 0;
    int token = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank != 0) {
        MPI_Send(&token, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
        sleep((unsigned)(hd_test_limit_ns(20) / 1000000000));
        return FAILED;
    }
    for (int r = 1; r < size; r++) {
        if (r != absent) {
            MPI_Recv(&token, 1, MPI_INT, r, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
    MPI_Abort(MPI_COMM_WORLD, AS_WANTED);
    return FAILED;
}

/* The last rank stays away: the others are told in time. */
static int as_missing(const char *what)
{
    heddle_comm *comm = NULL;
    heddle_comm_options options = mpirun_comm_options(what, 2);
    int rank = 0;
    int size = 0;
    const int later = strstr(what, "later") != NULL;
    options.deadline_ms = hd_test_limit_ns(later ? 1.5 : 0.4) / 1000000; /* meeting has it, too */
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (later) {
        CHECK_OR_ABORT(heddle_comm_from_mpi(&comm, MPI_COMM_WORLD, &options) == HEDDLE_OK);
    }
    if (rank == size - 1) {
        sleep((unsigned)(hd_test_limit_ns(20) / 1000000000));
        return FAILED;
    }
    double begin = MPI_Wtime();
    heddle_status st = later ? heddle_comm_barrier(comm) : heddle_comm_from_mpi(&comm, MPI_COMM_WORLD, &options);
    CHECK_OR_ABORT(st == HEDDLE_ERR_TIMEOUT);
    CHECK_OR_ABORT((MPI_Wtime() - begin) * 1e9 < (double)hd_test_limit_ns(5));
    return all_saw_it(size - 1);
}

/* Rank 0 gives up while the others wait in every kind of wait. */
static int as_abort(const char *what)
{
    heddle_comm *comm = NULL;
    heddle_comm_options options = mpirun_comm_options(what, 2);
    MPI_Init(NULL, NULL);
    CHECK_OR_ABORT(heddle_comm_from_mpi(&comm, MPI_COMM_WORLD, &options) == HEDDLE_OK);
    int rank = heddle_comm_rank(comm);
    int in = 0;
    if (rank == 0) {
        usleep(100000);
        CHECK_OR_ABORT(heddle_comm_abort(comm, "the oven is off") == HEDDLE_OK);
        return all_saw_it(-1);
    }
    double begin = MPI_Wtime();
    heddle_status st = rank == 1
                           ? heddle_comm_barrier(comm)
                           : heddle_comm_sendrecv(comm, &rank, sizeof(rank), -1, &in, sizeof(in), 0, HEDDLE_NO_STREAM);
    CHECK_OR_ABORT(st == HEDDLE_ERR_PEER);
    CHECK_OR_ABORT(strstr(heddle_last_error(), "rank 0") != NULL &&
                   strstr(heddle_last_error(), "the oven is off") != NULL);
    CHECK_OR_ABORT((MPI_Wtime() - begin) * 1e9 < (double)hd_test_limit_ns(5));
    return all_saw_it(-1);
}

static int as_wrong_use(void)
{
    heddle_comm *comm = NULL;
    CHECK_OR_ABORT(heddle_comm_from_mpi(&comm, MPI_COMM_WORLD, NULL) == HEDDLE_ERR_ARG);
    MPI_Init(NULL, NULL);
    CHECK_OR_ABORT(heddle_comm_from_mpi(&comm, MPI_COMM_NULL, NULL) == HEDDLE_ERR_ARG);
    CHECK_OR_ABORT(heddle_comm_from_mpi(NULL, MPI_COMM_WORLD, NULL) == HEDDLE_ERR_ARG);
    MPI_Finalize();
    int refused = heddle_comm_from_mpi(&comm, MPI_COMM_WORLD, NULL) == HEDDLE_ERR_ARG &&
                  heddle_comm_open(&comm, "mpi", NULL) == HEDDLE_ERR_UNSUPPORTED;
    return refused ? PASSED : FAILED;
}

static int rank_main(const char *what)
{
    static const struct {
        const char *word;
        int (*run)(const char *);
    } table[] = {{"world", as_world},
                 {"split", as_split},
                 {"counted", as_counted},
                 {"missing", as_missing},
                 {"abort", as_abort}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (strncmp(what, table[i].word, strlen(table[i].word)) == 0) {
            return table[i].run(what);
        }
    }
    return as_wrong_use();
}

/* --- from outside ------------------------------------------------------------------------------------------------- */

MPIRUN_CASE(one_to_four_ranks_share_memory, PASSED, NULL, "1 world", "2 world", "3 world", "4 world")
MPIRUN_CASE(one_to_four_ranks_by_messages, PASSED, NULL, "1 world forced", "2 world forced", "3 world forced",
            "4 world forced")
MPIRUN_CASE(two_pretended_hosts, PASSED, NULL, "2 world hosts", "3 world hosts", "4 world hosts")
MPIRUN_CASE(a_borrowed_part_of_the_world, PASSED, NULL, "4 split", "3 split forced")
MPIRUN_CASE(bytes_that_mpi_was_asked_to_move, PASSED, "libheddle_pmpi_count.so", "2 counted forced", "3 counted forced",
            "4 counted hosts", "4 counted")
MPIRUN_CASE(a_rank_that_stays_away, AS_WANTED, NULL, "3 missing", "3 missing later", "3 missing later forced")
MPIRUN_CASE(an_abort_reaches_everybody, AS_WANTED, NULL, "3 abort", "3 abort forced", "3 abort hosts")
MPIRUN_CASE(wrong_use_is_refused, PASSED, NULL, "1 wrong use")

int main(int argc, char **argv)
{
    return mpirun_main(argc, argv, rank_main);
}
