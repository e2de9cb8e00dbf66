/* kill -9 of a rank under mpirun: the command ends, in time and not with 0, and nothing is left behind. */
#include "case.h"
#include "mpirun.h"
#include "switch_check.h"
#include "time_limit.h"

#include <dirent.h>
#include <heddle/mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FAILED = 1, KILL_AFTER_MS = 300, LIMIT_S = 20, MAX_NAMES = 4096 };

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- as a rank: switch without end; rank 1 dies in the middle of it ----------------------------------------------- */

static int rank_main(const char *what)
{
    char room[SWITCH_TEXT_BYTES];
    char text[SWITCH_TEXT_BYTES];
    heddle_comm *comm = NULL;
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = hd_test_limit_ns(10) / 1000000;
    options.force_messages = strstr(what, "forced") != NULL;
    options.pretend_hosts = strstr(what, "hosts") != NULL ? 2 : 0;
    if (heddle_comm_open(&comm, "mpi", &options) != HEDDLE_OK) {
        fprintf(stderr, "%s\n", heddle_last_error());
        return FAILED;
    }
    int64_t end_ns = now_ns() + hd_test_limit_ns(LIMIT_S);
    int64_t mine_ns = now_ns() + KILL_AFTER_MS * 1000000;
    for (int i = 0; now_ns() < end_ns; i++) {
        const char *line = switch_line(i, heddle_comm_size(comm), room);
        i = line == NULL ? -1 : i;
        if (line != NULL && switch_check(comm, line, NULL, text) != 0) {
            heddle_comm_destroy(comm); /* a survivor: told in time, ends by itself */
            return FAILED;
        }
        if (heddle_comm_rank(comm) == 1 && now_ns() > mine_ns) {
            kill(getpid(), SIGKILL);
        }
    }
    fprintf(stderr, "rank %d never heard of rank 1's end\n", heddle_comm_rank(comm));
    heddle_comm_destroy(comm);
    return 0;
}

/* --- from outside ------------------------------------------------------------------------------------------------- */

/* Of a folder, but for itself and its parent. */
static int entries(const char *path)
{
    int count = -2;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

static void one_rank_dies(const char *mode)
{
    char what[64], words[200], memory[] = "/dev/shm/mpi-kill-XXXXXX"; /* MPI's own, of this run alone */
    assert_non_null(mkdtemp(memory));
    snprintf(words, sizeof(words), "--mca btl_vader_backing_directory %s --mca btl_sm_backing_directory %s", memory,
             memory);
    const mpirun_options options = {.words = words, .seconds = 2 * LIMIT_S};
    snprintf(what, sizeof(what), "%s-%d-%lld", mode, (int)getpid(), (long long)time(NULL)); /* a mark for /proc */
    int64_t begin_ns = now_ns();
    int code = mpirun_self(3, what, &options);
    int64_t took_ns = now_ns() - begin_ns;
    if (code == MPIRUN_ABSENT) {
        hd_skip("mpi", "no mpirun in PATH");
    }
    if (code == 0 || code == MPIRUN_TIME_OUT || took_ns > hd_test_limit_ns(15)) {
        fail_msg("%s: exit code %d after %.1f s", mode, code, (double)took_ns / 1e9);
    }
    const int64_t until_ns = now_ns() + hd_test_limit_ns(5);
    while (now_ns() < until_ns && (mpirun_left_over(what) > 0 || entries(memory) > 0)) {
        usleep(20000);
    }
    assert_int_equal(mpirun_left_over(what), 0);
    assert_int_equal(entries(memory), 0);
    rmdir(memory);
}

HD_CASE(killed_while_sharing_memory)
{
    one_rank_dies("plain");
}

HD_CASE(killed_while_sending_messages)
{
    one_rank_dies("forced");
}

HD_CASE(killed_on_one_of_two_hosts)
{
    one_rank_dies("hosts");
}

int main(int argc, char **argv)
{
    return mpirun_main(argc, argv, rank_main);
}
