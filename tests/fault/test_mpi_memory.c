/* Memory after a failed call over MPI: whoever got an error back owns its arrays again, whatever MPI does afterwards.
 */
#include "case.h"
#include "check.h"
#include "mpirun.h"
#include "time_limit.h"

#include <heddle/heddle.h>
#include <heddle/mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PASSED = 0, FAILED = 1, LATE_MS = 100, HALF_WAY_MS = 2700 /* beyond a deadline */, REFILL = 0x5a };

/* What everybody else comes within. */
static int64_t deadline_ms(void)
{
    return (int64_t)(500 * hd_test_crowding());
}

/* Eager and rendezvous messages, contiguous and strided on either side. */
static const char *const lines[] = {
    "u8[t=120 s=10] on [sp=3]: t@sp -> s@sp",  "u8[t=300 s=375] on [sp=3]: t@sp -> s@sp",
    "u8[t=300 s=375] on [sp=3]: s@sp -> t@sp", "u8[t=3000 s=3000] on [sp=3]: t@sp -> s@sp",
    "u8[t=3000 s=3000] on [sp=3]: t@sp -> *",
};

/* --- as a rank ---------------------------------------------------------------------------------------------------- */

typedef struct job {
    heddle_comm *comm;
    heddle_reshard *reshard;
    heddle_reshard_info info;
    unsigned char *src, *dst; /* pages of their own, so that a touch after they are gone is a crash */
    int rank, size;
} job;

static unsigned char *pages(size_t bytes)
{
    void *p = mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int begin(job *j, const char *text, int64_t within_ms)
{
    heddle_comm_options options;
    heddle_reshard_line line;
    heddle_reshard_options reshard;
    heddle_comm_options_init(&options);
    heddle_reshard_options_init(&reshard);
    options.bind = HEDDLE_BIND_NONE;
    options.force_messages = 1;
    options.deadline_ms = 40 * deadline_ms();
    reshard.memory = HEDDLE_MEMORY_ANY;
    reshard.tuning = HEDDLE_TUNING_RULES;
    reshard.deadline_ms = within_ms;
    CHECK_OR_ABORT(heddle_comm_from_mpi(&j->comm, MPI_COMM_WORLD, &options) == HEDDLE_OK);
    CHECK_OR_ABORT(heddle_reshard_parse(&line, text) == HEDDLE_OK);
    CHECK_OR_ABORT(heddle_reshard_create_line(&j->reshard, j->comm, &line, &reshard) == HEDDLE_OK);
    j->info = (heddle_reshard_info){.struct_bytes = sizeof(j->info)};
    CHECK_OR_ABORT(heddle_reshard_get_info(&j->info, j->reshard) == HEDDLE_OK);
    j->rank = heddle_comm_rank(j->comm);
    j->size = heddle_comm_size(j->comm);
    j->src = pages(j->info.src_bytes);
    j->dst = pages(j->info.dst_bytes);
    CHECK_OR_ABORT(j->src != NULL && j->dst != NULL);
    memset(j->src, 1 + j->rank, j->info.src_bytes);
    CHECK_OR_ABORT(heddle_reshard_execute(j->reshard, j->src, j->dst, HEDDLE_NO_STREAM) == HEDDLE_OK);
    MPI_Barrier(MPI_COMM_WORLD);
    return PASSED;
}

static void end(job *j)
{
    heddle_reshard_destroy(j->reshard);
    heddle_comm_destroy(j->comm);
}

/* MPI gets the chance to finish whatever it still has. */
static void use_mpi(const job *j)
{
    static int to[16], from[16];
    for (int i = 0; i < 20; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Alltoall(to, 1, MPI_INT, from, 1, MPI_INT, MPI_COMM_WORLD);
        usleep(2000);
    }
    (void)j;
}

/* Away from MPI beyond the others' deadline, and until one of them has given up. */
static void come_late(heddle_comm *comm, int64_t missed_ms)
{
    usleep((useconds_t)(missed_ms + LATE_MS) * 1000);
    for (int i = 0; i < 10000 && heddle_comm_poll(comm) == HEDDLE_OK; i++) {
        usleep(1000);
    }
}

static int64_t changed(const job *j)
{
    int64_t count = 0;
    for (size_t i = 0; i < j->info.dst_bytes; i++) {
        count += j->dst[i] != REFILL;
    }
    return count;
}

/* The last rank comes later than the deadline. `gone`: plan and communicator are destroyed first. */
static int as_late(const char *what, int line)
{
    job j;
    int gone = strstr(what, "gone") != NULL;
    if (begin(&j, lines[line], deadline_ms()) != PASSED) {
        return FAILED;
    }
    if (j.rank == j.size - 1) {
        come_late(j.comm, deadline_ms());
    }
    heddle_status st = heddle_reshard_execute(j.reshard, j.src, j.dst, HEDDLE_NO_STREAM);
    CHECK_OR_ABORT(st == HEDDLE_ERR_TIMEOUT || st == HEDDLE_ERR_PEER);
    CHECK_OR_ABORT(j.rank == j.size - 1 || strstr(heddle_last_error(), "half way") == NULL);
    memset(j.dst, REFILL, j.info.dst_bytes);
    memset(j.src, REFILL, j.info.src_bytes);
    if (gone) {
        end(&j);
    }
    use_mpi(&j);
    if (changed(&j) != 0) {
        fprintf(stderr, "%s, line %d: rank %d: %lld bytes of dst were written after the failure\n", what, line, j.rank,
                (long long)changed(&j));
        MPI_Abort(MPI_COMM_WORLD, FAILED);
    }
    if (!gone) {
        end(&j);
    }
    munmap(j.src, j.info.src_bytes + 1); /* whoever still touches them dies of it */
    munmap(j.dst, j.info.dst_bytes + 1);
    return PASSED;
}

static void *abort_later(void *comm)
{
    usleep(30000);
    heddle_ignore(heddle_comm_abort(comm, "the oven is off"));
    return NULL;
}

/* A thread of rank 1 gives up while all are at work; everything is freed, then MPI ends. */
static int as_abort(const char *what, int line)
{
    job j;
    pthread_t thread;
    (void)what;
    if (begin(&j, lines[line], 20000) != PASSED) {
        return FAILED;
    }
    if (j.rank == 1) {
        CHECK_OR_ABORT(pthread_create(&thread, NULL, abort_later, j.comm) == 0);
    }
    heddle_status st = HEDDLE_OK;
    while (st == HEDDLE_OK) {
        st = heddle_reshard_execute(j.reshard, j.src, j.dst, HEDDLE_NO_STREAM);
    }
    CHECK_OR_ABORT(st == HEDDLE_ERR_PEER && strstr(heddle_last_error(), "the oven is off") != NULL);
    if (j.rank == 1) {
        pthread_join(thread, NULL);
    }
    munmap(j.src, j.info.src_bytes + 1);
    munmap(j.dst, j.info.dst_bytes + 1);
    end(&j);
    return PASSED;
}

/* A process that stops this one for a while, at some moment of its work. */
static void stop_me(unsigned after_us, unsigned for_us)
{
    pid_t me = getpid();
    if (fork() == 0) {
        usleep(after_us);
        kill(me, SIGSTOP);
        usleep(for_us);
        kill(me, SIGCONT);
        _exit(0);
    }
}

/* Rank 1 stops in the middle of the messages and goes on after the others have given up, who wait 2 s more for what is
 * half way: dst is the caller's unless the
 * sentence says that a message stopped half way. Then it is left alone, and nothing crashes. */
static int as_stopped(const char *what, int line)
{
    job j;
    if (begin(&j, lines[line], deadline_ms()) != PASSED) {
        return FAILED;
    }
    if (j.rank == 1) {
        stop_me(20000 + 7000u * (unsigned)(strchr(what, ' ')[1] - '0'), (unsigned)(deadline_ms() + HALF_WAY_MS) * 1000);
    }
    heddle_status st = HEDDLE_OK;
    while (st == HEDDLE_OK) {
        st = heddle_reshard_execute(j.reshard, j.src, j.dst, HEDDLE_NO_STREAM);
    }
    CHECK_OR_ABORT(st == HEDDLE_ERR_TIMEOUT || st == HEDDLE_ERR_PEER);
    int half_way = strstr(heddle_last_error(), "half way") != NULL;
    CHECK_OR_ABORT(!half_way || strstr(heddle_last_error(), "rank ") != NULL);
    if (!half_way) {
        memset(j.dst, REFILL, j.info.dst_bytes);
        memset(j.src, REFILL, j.info.src_bytes);
    }
    use_mpi(&j);
    CHECK_OR_ABORT(half_way || changed(&j) == 0);
    end(&j);
    return PASSED;
}

/* The same for a send and a receive: memory of both sides. */
static int as_sendrecv(const char *what, int line)
{
    (void)what;
    heddle_comm *comm = NULL;
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.bind = HEDDLE_BIND_NONE;
    options.force_messages = 1;
    options.deadline_ms = 2 * deadline_ms(); /* opening, too */
    CHECK_OR_ABORT(heddle_comm_from_mpi(&comm, MPI_COMM_WORLD, &options) == HEDDLE_OK);
    size_t bytes = line == 0 ? 500 : line == 1 ? 20000 : 8000000;
    job j = {.comm = comm, .rank = heddle_comm_rank(comm), .size = heddle_comm_size(comm)};
    j.src = pages(bytes);
    j.dst = pages(bytes);
    j.info.dst_bytes = bytes;
    memset(j.src, 7, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    if (j.rank == j.size - 1) {
        come_late(comm, 2 * deadline_ms());
    }
    heddle_status st = heddle_comm_sendrecv(comm, j.src, bytes, (j.rank + 1) % j.size, j.dst, bytes,
                                            (j.rank + j.size - 1) % j.size, HEDDLE_NO_STREAM);
    CHECK_OR_ABORT(st == HEDDLE_ERR_TIMEOUT || st == HEDDLE_ERR_PEER);
    munmap(j.src, bytes + 1);
    memset(j.dst, REFILL, bytes);
    heddle_comm_destroy(comm);
    use_mpi(&j);
    CHECK_OR_ABORT(changed(&j) == 0);
    munmap(j.dst, bytes + 1);
    return PASSED;
}

/* "LINES HOW": one after the other, each with a communicator of its own; MPI ends after all of them. */
static int rank_main(const char *what)
{
    const char *how = strchr(what, ' ');
    if (how == NULL) {
        return FAILED;
    }
    int (*as)(const char *, int) = strstr(how, "abort") != NULL      ? as_abort
                                   : strstr(how, "stopped") != NULL  ? as_stopped
                                   : strstr(how, "sendrecv") != NULL ? as_sendrecv
                                                                     : as_late;
    MPI_Init(NULL, NULL);
    int status = PASSED;
    for (const char *line = what; line < how && status == PASSED; line++) {
        status = as(what, *line - '0');
    }
    MPI_Finalize();
    return status;
}

/* --- from outside ------------------------------------------------------------------------------------------------- */

static void run_lines(const char *how, int first, int step)
{
    char what[64];
    int n = 0;
    for (int i = first; i < (int)(sizeof(lines) / sizeof(lines[0])); i += step) {
        if (i == first + step || hd_goes("%d %s", i, how)) {
            what[n++] = (char)('0' + i);
        }
    }
    snprintf(what + n, sizeof(what) - (size_t)n, " %s", how);
    mpirun_case(3, what, PASSED, NULL);
}

HD_CASE(dst_stays_after_a_late_rank)
{
    run_lines("late", 0, 1);
}

HD_CASE(dst_stays_when_the_plan_is_gone)
{
    run_lines("late gone", 1, 2);
}

HD_CASE(mpi_ends_after_an_abort)
{
    run_lines("abort", 0, 1);
}

MPIRUN_CASE(arrays_of_a_late_sendrecv, PASSED, NULL, "3 012 sendrecv")
MPIRUN_CASE(a_rank_that_stops_half_way, PASSED, NULL, "3 3 0 stopped", "3 3 1 stopped", "3 4 2 stopped")

int main(int argc, char **argv)
{
    return mpirun_main(argc, argv, rank_main);
}
