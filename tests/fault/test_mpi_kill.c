/* kill -9 of a rank under mpirun: the command ends, in time and not with 0, and nothing is left behind. */
#include "case.h"
#include "mpirun.h"
#include "switch_check.h"

#include <dirent.h>
#include <heddle/mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FAILED = 1, KILL_AFTER_MS = 300, LIMIT_S = 20, MAX_NAMES = 4096 };

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- as a rank: switch without end; rank 1 dies in the middle of it ----------------------------------------------- */

static int rank_main(const char *what)
{
    char room[SWITCH_TEXT_BYTES];
    char text[SWITCH_TEXT_BYTES];
    heddle_comm *comm = NULL;
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = 10000;
    options.force_messages = strstr(what, "forced") != NULL;
    options.pretend_hosts = strstr(what, "hosts") != NULL ? 2 : 0;
    if (heddle_comm_open(&comm, "mpi", &options) != HEDDLE_OK) {
        fprintf(stderr, "%s\n", heddle_last_error());
        return FAILED;
    }
    double end = seconds_now() + LIMIT_S;
    double mine = seconds_now() + KILL_AFTER_MS / 1e3;
    for (int i = 0; seconds_now() < end; i++) {
        const char *line = switch_line(i, heddle_comm_size(comm), room);
        i = line == NULL ? -1 : i;
        if (line != NULL && switch_check(comm, line, NULL, text) != 0) {
            heddle_comm_destroy(comm); /* a survivor: told in time, ends by itself */
            return FAILED;
        }
        if (heddle_comm_rank(comm) == 1 && seconds_now() > mine) {
            kill(getpid(), SIGKILL);
        }
    }
    fprintf(stderr, "rank %d never heard of rank 1's end\n", heddle_comm_rank(comm));
    heddle_comm_destroy(comm);
    return 0;
}

/* --- from outside ------------------------------------------------------------------------------------------------- */

/* How many names of a folder start so. */
static int names_in(const char *folder, const char *start)
{
    int count = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e = dir != NULL ? readdir(dir) : NULL; e != NULL; e = readdir(dir)) {
        count += strncmp(e->d_name, start, strlen(start)) == 0;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

static void one_rank_dies(const char *mode)
{
    char what[64];
    const mpirun_options options = {.seconds = 2 * LIMIT_S};
    snprintf(what, sizeof(what), "%s-%d-%lld", mode, (int)getpid(), (long long)time(NULL)); /* a mark for /proc */
    int shm = names_in("/dev/shm", "");
    int heddle_files = names_in("/tmp", "heddle");
    double begin = seconds_now();
    int code = mpirun_self(3, what, &options);
    double seconds = seconds_now() - begin;
    if (code == MPIRUN_ABSENT) {
        hd_skip("mpi", "no mpirun in PATH");
    }
    if (code == 0 || code == MPIRUN_TIME_OUT || seconds > 15) {
        print_error("%s: exit code %d after %.1f s\n", mode, code, seconds);
    }
    assert_int_not_equal(code, 0);
    assert_int_not_equal(code, MPIRUN_TIME_OUT);
    assert_true(seconds < 15);
    for (int i = 0; i < 250 && (mpirun_left_over(what) > 0 || names_in("/dev/shm", "") > shm); i++) {
        usleep(20000); /* other tests may be at work in /dev/shm */
    }
    assert_int_equal(mpirun_left_over(what), 0);
    assert_true(names_in("/dev/shm", "") <= shm);
    assert_true(names_in("/tmp", "heddle") <= heddle_files);
}

static void killed_while_sharing_memory(void **state)
{
    (void)state;
    one_rank_dies("plain");
}

static void killed_while_sending_messages(void **state)
{
    (void)state;
    one_rank_dies("forced");
}

static void killed_on_one_of_two_hosts(void **state)
{
    (void)state;
    one_rank_dies("hosts");
}

int main(int argc, char **argv)
{
    if (mpirun_inside(argc, argv)) {
        return rank_main(argv[2]);
    }
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(killed_while_sharing_memory),
        cmocka_unit_test(killed_while_sending_messages),
        cmocka_unit_test(killed_on_one_of_two_hosts),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
