/* The test main itself: what good_skips is not passed, what is misspelt is not tested. The program starts itself with
 * cases of every kind. */
#include "case.h"
#include "time_limit.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- the cases that are judged ------------------------------------------------------------------------------------ */

static void good_passes(void)
{
}

static void bad_fails(void)
{
    assert_true(0);
}

static void good_skips(void)
{
    hd_skip("abacus", "this machine has %d beads", 0);
}

static void good_in_part(void)
{
    hd_not_here("slide-rule", "none in the drawer");
}

static void bad_in_part(void)
{
    hd_not_here("slide-rule", "none in the drawer");
    assert_true(0);
}

static void hangs(void)
{
    sleep(1000);
}

/* More than one: a register may still have the last. */
static void lets_go(void)
{
    for (int i = 0; i < 10; i++) {
        void *volatile gone = malloc(100);
        assert_non_null(gone);
        gone = NULL;
    }
}

static void leaves_much(void)
{
    hd_leaves("the drawer is open");
    lets_go();
}

static heddle_status second_fails(heddle_comm *comm, int nth)
{
    return nth == 1 ? heddle_set_error(HEDDLE_ERR_IO, "%d of 2 ranks", heddle_comm_size(comm)) : HEDDLE_OK;
}

static heddle_status ranks_go(heddle_comm *comm, int nth)
{
    return nth == 0 ? heddle_comm_barrier(comm) : HEDDLE_ERR_INTERNAL;
}

static hd_case judged[] = {
    {.name = "good_passes", .alone = good_passes},
    {.name = "bad_fails", .alone = bad_fails},
    {.name = "good_skips", .alone = good_skips},
    {.name = "good_in_part", .alone = good_in_part},
    {.name = "bad_in_part", .alone = bad_in_part},
    {.name = "hangs", .alone = hangs},
    {.name = "lets_go", .alone = lets_go},
    {.name = "leaves_much", .alone = leaves_much},
    {.name = "go_wrong", .of_ranks = second_fails, .numbers = 2, .where = (const char *const[]){"2 shm", NULL}},
    {.name = "go_everywhere",
     .of_ranks = ranks_go,
     .numbers = 1,
     .where = (const char *const[]){"1 self", "2 shm hosts=2", "3 threads forced", NULL}},
    {.name = "go_nowhere",
     .of_ranks = ranks_go,
     .numbers = 1,
     .where = (const char *const[]){"1 self", "2 threads abacus:0 peer", NULL}},
};

static int judged_cases(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof judged / sizeof judged[0]; i++) {
        hd_enter_case(&judged[i]);
    }
    return hd_run_cases(argc > 1 && strcmp(argv[1], "hangs") == 0 ? 1 : HD_CASE_SECONDS, argc, argv);
}

/* --- from outside ------------------------------------------------------------------------------------------------- */

static char said[8192];

/* Exit code of this program run on the judged cases with `only` in their name; what it said is in `said`. */
static int exit_code(const char *only, const char *allowed)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        setenv("HEDDLE_JUDGED_CASES", "1", 1);
        unsetenv("HEDDLE_TEST_TIME_SCALE");
        unsetenv("HEDDLE_TEST_SKIP_LOG");
        unsetenv("HEDDLE_TEST_ALLOW_SKIP");
        if (allowed != NULL) {
            setenv("HEDDLE_TEST_ALLOW_SKIP", allowed, 1);
        }
        execl("/proc/self/exe", "test_case", only, (char *)NULL);
        _exit(126);
    }
    close(ends[1]);
    size_t bytes = 0;
    for (ssize_t got; (got = read(ends[0], said + bytes, sizeof said - 1 - bytes)) > 0;) {
        bytes += (size_t)got;
    }
    said[bytes] = '\0';
    close(ends[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(int wanted, const char *only, const char *allowed, const char *sentence)
{
    int code = exit_code(only, allowed);
    if (code != wanted || strstr(said, sentence) == NULL) {
        fail_msg("cases '%s', allowed '%s': exit code %d instead of %d, or not said '%s':\n%s", only,
                 allowed ? allowed : "(all)", code, wanted, sentence, said);
    }
}

HD_CASE(a_skip_is_no_pass)
{
    expect(0, "good_passes", NULL, "1 cases, 0 failed, 0 skipped");
    expect(77, "good_skips", NULL, "1 cases, 0 failed, 1 skipped");
    expect(77, "good_skips", NULL, "not run here: case good_skips, skipped (abacus): this machine has 0 beads");
    expect(0, "good", NULL, "3 cases, 0 failed, 1 skipped");
}

HD_CASE(a_part_left_out_is_shown)
{
    expect(0, "good_in_part", NULL, "not run here: case good_in_part, in part (slide-rule): none in the drawer");
    expect(1, "bad_in_part", NULL, "not run here: case bad_in_part, in part (slide-rule): none in the drawer");
    expect(1, "in_part", NULL, "2 cases, 1 failed, 0 skipped");
}

HD_CASE(what_must_be_there_fails)
{
    expect(1, "good_skips", "", "HEDDLE_TEST_ALLOW_SKIP does not say that abacus may be missing");
    expect(1, "good_skips", "abacuses aba cus", "1 cases, 1 failed, 0 skipped");
    expect(77, "good_skips", "sun-dial abacus", "1 cases, 0 failed, 1 skipped");
    expect(1, "good_in_part", "abacus", "1 cases, 1 failed, 0 skipped");
    expect(0, "good", "abacus slide-rule", "3 cases, 0 failed, 1 skipped");
}

HD_CASE(a_misspelt_name_fails)
{
    expect(1, "good_grief", NULL, "no case has 'good_grief' in its name");
    expect(1, "good_grief", NULL, "\n    bad_in_part\n");
}

HD_CASE(a_hang_has_a_name)
{
    expect(1, "hangs", NULL, "case hangs: still running after ");
}

int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

HD_CASE(a_leak_fails_where_it_is_seen)
{
    const int is_seen = __lsan_do_recoverable_leak_check != NULL;
    setenv("ASAN_OPTIONS", "detect_leaks=1", 1);
    expect(is_seen, "lets_go", NULL, is_seen ? "detected memory leaks" : "1 cases, 0 failed, 0 skipped");
    expect(0, "leaves_much", NULL, is_seen ? "leaks are not looked for: the drawer is open" : "1 cases, 0 failed");
}

HD_CASE(limits_count_the_cores_that_are_left)
{
    cpu_set_t own, one;
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    assert_true(hd_test_cores > 0 && hd_test_cores <= CPU_COUNT(&own));
    int first = 0;
    while (!CPU_ISSET(first, &own)) {
        first++;
    }
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    hd_test_count_cores();
    assert_true(hd_test_cores <= 1);
}

HD_CASE(ranks_that_fail_are_named)
{
    expect(0, "go_everywhere", NULL, "1 cases, 0 failed, 0 skipped");
    expect(1, "go_wrong", NULL, "on 2 shm, number 1");
    expect(1, "go_wrong", NULL, "2 of 2 ranks");
    expect(1, "go_nowhere", NULL, "on 2 threads abacus:0 peer, number 0");
    expect(1, "go_nowhere", NULL, "abacus:0");
}

int main(int argc, char **argv)
{
    if (getenv("HEDDLE_JUDGED_CASES") != NULL) {
        return judged_cases(argc, argv);
    }
    return hd_run_cases(HD_CASE_SECONDS, argc, argv);
}
