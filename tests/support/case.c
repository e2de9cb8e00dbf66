#include "case.h"

#include <heddle/status.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SKIPPED = 77 };

void hd_expect(int status, int wanted, const char *expression, const char *file, int line)
{
    if (status != wanted) {
        print_error("%s:%d: %s\n  wanted %s, got %s: %s\n", file, line, expression,
                    heddle_status_name((heddle_status)wanted), heddle_status_name((heddle_status)status),
                    heddle_last_error());
        _fail(file, line);
    }
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The case's own process group, so that a time-out also ends the ranks it started. */
static int run_one(const struct CMUnitTest *one, int limit_s)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        int failed = _cmocka_run_group_tests(one->name, one, 1, NULL, NULL);
        fflush(NULL);
        _exit(failed != 0);
    }
    setpgid(pid, pid);
    double end = seconds_now() + limit_s;
    int wait_status = 0;
    while (waitpid(pid, &wait_status, WNOHANG) == 0) {
        if (seconds_now() > end) {
            fprintf(stderr, "case %s: still running after %d s: killed\n", one->name, limit_s);
            kill(-pid, SIGKILL);
            waitpid(pid, &wait_status, 0);
            return 1;
        }
        usleep(2000);
    }
    kill(-pid, SIGKILL); /* whatever it left behind */
    if (WIFSIGNALED(wait_status)) {
        fprintf(stderr, "case %s: died of signal %d\n", one->name, WTERMSIG(wait_status));
        return 1;
    }
    return WEXITSTATUS(wait_status);
}

int hd_run_cases(const struct CMUnitTest *cases, int count, int seconds, int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : "";
    const char *scale = getenv("HEDDLE_TEST_TIME_SCALE"); /* sanitizers are slower */
    int limit_s = seconds * (scale != NULL ? atoi(scale) : 1);
    int failed = 0;
    int ran = 0;
    for (int i = 0; i < count; i++) {
        if (strstr(cases[i].name, only) != NULL) {
            failed += run_one(&cases[i], limit_s) != 0;
            ran++;
        }
    }
    fprintf(stderr, "%d cases, %d failed\n", ran, failed);
    return ran == 0 ? SKIPPED : failed != 0;
}
