#include "case.h"
#include "time_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <heddle/status.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Who waits for a device naps for 20 us, known here by that number, which others who wait (TCP's meetings, borrowed
 * ranks) have, too. An emulated device is slow and has the cores of who waits, for whom to look is up to half of a
 * test's time: so every 200 us. And ThreadSanitizer's own notes for every thread and every fibre of the emulated
 * devices that it may be ordered by a sleep: for thousands of them that is a third. */
__attribute__((visibility("default"))) int nanosleep(const struct timespec *how_long, struct timespec *left)
{
    static const struct timespec seldom = {.tv_nsec = 200000};
    const int is_look = how_long->tv_sec == 0 && how_long->tv_nsec == 20000;
    return (int)syscall(SYS_nanosleep, is_look ? &seldom : how_long, left);
}

__attribute__((visibility("default"))) int usleep(useconds_t how_long_us)
{
    return nanosleep(&(struct timespec){how_long_us / 1000000, how_long_us % 1000000 * 1000}, NULL);
}

enum { PASSED = 0, FAILED = 1, SKIPPED = 77, LINE_BYTES = 512, NOTES_BYTES = 16 * LINE_BYTES };

static int notes_fd = -1; /* a case tells the test main what it could not do: a letter, a tag, a tab, a sentence */

void hd_expect(int status, int wanted, const char *expression, const char *file, int line)
{
    if (status != wanted) {
        print_error("%s:%d: %s\n  wanted %s, got %s: %s\n", file, line, expression,
                    heddle_status_name((heddle_status)wanted), heddle_status_name((heddle_status)status),
                    heddle_last_error());
        _fail(file, line);
    }
}

void *hd_shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

static void note(char kind, const char *tag, const char *reason, va_list arguments)
{
    char sentence[LINE_BYTES / 2];
    char line[LINE_BYTES];
    vsnprintf(sentence, sizeof sentence, reason, arguments);
    int bytes = snprintf(line, sizeof line, "%c%s\t%s\n", kind, tag, sentence);
    if (write(notes_fd, line, (size_t)bytes) != bytes) {
        fail_msg("cannot note that this could not be tested: %s", sentence);
    }
}

void hd_skip(const char *tag, const char *reason, ...)
{
    va_list arguments;
    va_start(arguments, reason);
    note('s', tag, reason, arguments);
    va_end(arguments);
    _skip(__FILE__, __LINE__);
    abort(); /* cmocka has left the case */
}

void hd_see_processes(void)
{
    if (!HD_SEES_PROCESSES) {
        hd_skip("sanitizer", "ranks that are processes, under ThreadSanitizer");
    }
}

void hd_not_here(const char *tag, const char *reason, ...)
{
    va_list arguments;
    va_start(arguments, reason);
    note('p', tag, reason, arguments);
    va_end(arguments);
}

static int may_be_missing(const char *tag)
{
    const char *allowed = getenv("HEDDLE_TEST_ALLOW_SKIP");
    size_t bytes = strlen(tag);
    for (const char *at = allowed; at != NULL && *at != '\0'; at += strcspn(at, " ")) {
        at += strspn(at, " ");
        if (strcspn(at, " ") == bytes && strncmp(at, tag, bytes) == 0) {
            return 1;
        }
    }
    return allowed == NULL;
}

static void log_note(const char *name, const char *tag, const char *reason)
{
    const char *path = getenv("HEDDLE_TEST_SKIP_LOG");
    int fd = path != NULL ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (fd >= 0) {
        dprintf(fd, "%s\t%s/%s\t%s\n", tag, program_invocation_short_name, name, reason);
        close(fd);
    }
}

/* What the case noted. Returns how it ended: a skip that is not allowed is a failure. */
static int judge_notes(const char *name, char *notes, int result)
{
    char *rest = NULL;
    for (char *line = strtok_r(notes, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char *reason = strchr(line, '\t');
        *reason++ = '\0';
        const char *tag = line + 1;
        const char *what = line[0] == 's' ? "skipped" : "in part";
        fprintf(stderr, "not run here: case %s, %s (%s): %s\n", name, what, tag, reason);
        log_note(name, tag, reason);
        if (!may_be_missing(tag)) {
            fprintf(stderr, "case %s: HEDDLE_TEST_ALLOW_SKIP does not say that %s may be missing\n", name, tag);
            result = FAILED;
        } else if (line[0] == 's' && result == PASSED) {
            result = SKIPPED;
        }
    }
    return result;
}

typedef struct case_of_ranks {
    const hd_case *of;
    int nth;
} case_of_ranks;

static heddle_status run_rank(heddle_comm *comm, void *arg)
{
    const case_of_ranks *v = arg;
    return v->of->of_ranks(comm, v->nth);
}

/* Ranks, transport, then what is not as usual: how they reach one another, the device, its wire. */
static heddle_status run_at(const char *where, const case_of_ranks *v)
{
    static const char *const wires[] = {"auto", "peer", "nccl", "host"};
    char words[80], *rest = NULL;
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    snprintf(words, sizeof words, "%s", where);
    const int ranks = atoi(strtok_r(words, " ", &rest));
    const char *transport = strtok_r(NULL, " ", &rest);
    for (const char *word; (word = strtok_r(NULL, " ", &rest)) != NULL;) {
        int wire = 3;
        while (wire >= 0 && strcmp(word, wires[wire]) != 0) {
            wire--;
        }
        if (wire >= 0) {
            options.wire = (heddle_wire)wire;
        } else if (strcmp(word, "forced") == 0) {
            options.force_messages = 1;
        } else if (sscanf(word, "hosts=%d", &options.pretend_hosts) != 1) {
            options.device = word;
        }
    }
    if (strcmp(transport, "self") != 0) {
        return heddle_run_ranks_with(ranks, transport, &options, run_rank, (void *)v);
    }
    heddle_comm *self = NULL;
    heddle_status st = heddle_comm_open(&self, transport, &options);
    st = st == HEDDLE_OK ? run_rank(self, (void *)v) : st;
    heddle_comm_destroy(self);
    return st;
}

static void run_case(void **state)
{
    case_of_ranks v = {.of = *state};
    if (v.of->alone != NULL) {
        v.of->alone();
        return;
    }
    for (const char *const *where = v.of->where; *where != NULL; where++) {
        for (v.nth = 0; v.nth < v.of->numbers; v.nth++) {
            heddle_status st = run_at(*where, &v);
            if (st != HEDDLE_OK) {
                print_error("on %s, number %d\n", *where, v.nth);
            }
            HD_OK(st);
        }
    }
}

static int percent_of_rounds(void)
{
    const char *percent = getenv("HEDDLE_TEST_ROUNDS");
    return percent == NULL ? 100 : atoi(percent) > 0 ? atoi(percent) : 1;
}

int hd_rounds(int n)
{
    int rounds = (int)((int64_t)n * percent_of_rounds() / 100);
    return rounds > 0 ? rounds : 1;
}

int hd_goes(const char *name, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, name);
    vsnprintf(text, sizeof text, name, arguments);
    va_end(arguments);
    uint64_t hash = 5381; /* Bernstein's: no code of what is tested */
    for (const char *c = text; *c != 0; c++) {
        hash = hash * 33 + (unsigned char)*c;
    }
    int percent = percent_of_rounds();
    return percent >= 30 || (hash * 0x9e3779b97f4a7c15u >> 32) % 100 < (uint64_t)percent;
}

int hd_step(void)
{
    int percent = percent_of_rounds();
    return percent >= 15 ? 1 : 15 / percent;
}

int hd_call_step(void)
{
#ifdef __SANITIZE_ADDRESS__
    return 1;
#else
    return hd_step();
#endif
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ended_how(const char *name, int wait_status)
{
    if (WIFSIGNALED(wait_status)) {
        fprintf(stderr, "case %s: died of signal %d\n", name, WTERMSIG(wait_status));
        return FAILED;
    }
    return WEXITSTATUS(wait_status) == 0 ? PASSED : FAILED;
}

/* _exit leaves LeakSanitizer out, which a build may have. */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static const char *leaves; /* NULL: nothing */

void hd_leaves(const char *reason)
{
    leaves = reason;
}

static int has_leaks(void)
{
    if (__lsan_do_recoverable_leak_check == NULL) {
        return 0;
    }
    if (leaves != NULL) {
        fprintf(stderr, "leaks are not looked for: %s\n", leaves);
        return 0;
    }
    return __lsan_do_recoverable_leak_check() != 0;
}

/* The case's own process group, so that a time-out also ends the ranks it started; who ends this program ends the
 * case. */
static int run_process(hd_case *one, int limit_s)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const struct CMUnitTest test = {.name = one->name, .test_func = run_case, .initial_state = one};
        int failed = _cmocka_run_group_tests(one->name, &test, 1, NULL, NULL);
        fflush(NULL);
        _exit(failed != 0 || has_leaks());
    }
    setpgid(pid, pid);
    double end = seconds_now() + limit_s;
    int wait_status = 0;
    while (waitpid(pid, &wait_status, WNOHANG) == 0) {
        if (seconds_now() > end) {
            fprintf(stderr, "case %s: still running after %d s: killed\n", one->name, limit_s);
            kill(-pid, SIGKILL);
            waitpid(pid, &wait_status, 0);
            return FAILED;
        }
        usleep(2000);
    }
    kill(-pid, SIGKILL); /* whatever it left behind */
    return ended_how(one->name, wait_status);
}

static int run_one(hd_case *one, int limit_s)
{
    int ends[2];
    char notes[NOTES_BYTES + 1];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        perror("pipe");
        return FAILED;
    }
    notes_fd = ends[1];
    int result = run_process(one, limit_s);
    close(ends[1]);
    ssize_t bytes = read(ends[0], notes, NOTES_BYTES);
    close(ends[0]);
    notes[bytes > 0 ? bytes : 0] = '\0';
    return judge_notes(one->name, notes, result);
}

static hd_case *cases;

void hd_enter_case(hd_case *entered)
{
    hd_case **before = &cases;
    while (*before != NULL && (*before)->line <= entered->line) {
        before = &(*before)->next;
    }
    entered->next = *before;
    *before = entered;
}

int hd_run_cases(int seconds, int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : "";
    const int most_failed = getenv("HEDDLE_TEST_STOP") != NULL ? 1 : INT_MAX;
    int ran = 0, failed = 0, skipped = 0;
    for (hd_case *one = cases; one != NULL && failed < most_failed; one = one->next) {
        if (strstr(one->name, only) != NULL) {
            int result = run_one(one, (int)(hd_test_limit_ns(seconds) / 1000000000));
            failed += result == FAILED;
            skipped += result == SKIPPED;
            ran++;
        }
    }
    if (ran == 0) {
        fprintf(stderr, "no case has '%s' in its name; the cases are:\n", only);
        for (const hd_case *one = cases; one != NULL; one = one->next) {
            fprintf(stderr, "    %s\n", one->name);
        }
        return FAILED;
    }
    fprintf(stderr, "%d cases, %d failed, %d skipped\n", ran, failed, skipped);
    return failed > 0 ? FAILED : skipped == ran ? SKIPPED : PASSED;
}
