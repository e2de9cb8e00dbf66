/* Test main: every case in a process of its own with a time limit, so that a hang has a name.
 *
 *     HD_CASE(adds)
 *     {
 *         assert_int_equal(sum(1, 2), 3);
 *     }
 *
 * is a whole test program: a case enters itself, support/case_main.c runs those of the program in the order in which
 * they stand. cmocka's asserts end a case. A case of ranks is what each of them does, with CHECK (support/check.h) for
 * asserts:
 *
 *     HD_RANK_CASE(meets_all, "2 threads", "4 shm")
 *     {
 *         return heddle_comm_barrier(comm);
 *     }
 *
 * Where: how many ranks of a transport ("1 self" is one, too), then, where wanted, "forced" for messages only,
 * "hosts=2" for hosts that are pretended, a device and its wire ("2 shm cuda:0 peer"). A device does not survive a
 * fork: shm stands before threads there. HD_RANK_CASES(name, 3, ...) runs with the numbers 0, 1 and 2 in `nth`.
 *
 * An argument selects the cases whose name contains it; one that selects none is an error. Exit 0, 1, or 77 when
 * every case skipped. What a case could not do on this machine is counted and shown, never taken for a pass:
 * HEDDLE_TEST_ALLOW_SKIP holds the tags that may be missing (blank separated; unset: all may), any other one fails;
 * HEDDLE_TEST_SKIP_LOG names a file to which "tag, where, reason" is added. Scripts do the same with support/skip.sh.
 */
#ifndef HD_TEST_CASE_H
#define HD_TEST_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <heddle/comm.h>

enum { HD_CASE_SECONDS = 60 };

typedef struct hd_case {
    const char *name;
    int line;            /* cases run in the order of their lines */
    void (*alone)(void); /* or, on each of `where` with each number below `numbers`: */
    heddle_status (*of_ranks)(heddle_comm *comm, int nth);
    int numbers;
    const char *const *where; /* up to NULL */
    struct hd_case *next;
} hd_case;

void hd_enter_case(hd_case *entered);
/* For a program with a main of its own. `seconds` is the limit of a case on a machine that does nothing else. */
int hd_run_cases(int seconds, int argc, char **argv);

#define HD_ENTER_CASE(name_, ...)                                                                                      \
    static hd_case case_##name_ = {.name = #name_, .line = __LINE__, __VA_ARGS__};                                     \
    __attribute__((constructor)) static void enter_##name_(void)                                                       \
    {                                                                                                                  \
        hd_enter_case(&case_##name_);                                                                                  \
    }

#define HD_CASE(name)                                                                                                  \
    static void name(void);                                                                                            \
    HD_ENTER_CASE(name, .alone = name)                                                                                 \
    static void name(void)

#define HD_RANK_CASES(name, numbers_, ...)                                                                             \
    static heddle_status name(heddle_comm *comm, int nth);                                                             \
    HD_ENTER_CASE(name, .of_ranks = name, .numbers = (numbers_), .where = (const char *const[]){__VA_ARGS__, NULL})    \
    static heddle_status name(heddle_comm *comm, __attribute__((unused)) int nth)
#define HD_RANK_CASE(name, ...) HD_RANK_CASES(name, 1, __VA_ARGS__)

/* Fails the case with heddle_last_error() when `expression` is not HEDDLE_OK / not `wanted`. */
#define HD_OK(expression) hd_expect((expression), HEDDLE_OK, #expression, __FILE__, __LINE__)
#define HD_FAILS(wanted, expression) hd_expect((expression), (wanted), #expression, __FILE__, __LINE__)
void hd_expect(int status, int wanted, const char *expression, const char *file, int line);

/* Zeroes that ranks share, whether they are threads or processes. They go with the case. */
void *hd_shared(size_t bytes);

/* In a build with LeakSanitizer a case that leaks fails; not one that leaves memory to the process by what is promised
 * of it. Says the reason. */
void hd_leaves(const char *reason);

/* What the machine lacks: `tag` is one word (docs/testing.md lists them), then a sentence as of printf. hd_skip ends
 * the case; after hd_not_here it goes on with what does run here. Not from ranks: only the case's own process. */
void hd_skip(const char *tag, const char *reason, ...) __attribute__((format(printf, 2, 3), noreturn));
void hd_not_here(const char *tag, const char *reason, ...) __attribute__((format(printf, 2, 3)));
/* How many of `n` rounds of one kind to go: HEDDLE_TEST_ROUNDS percent of them (all), but one at the least. For random
 * draws and repetitions only: what each round tries must not depend on how many there are. */
int hd_rounds(int n);
/* Does this case of a list go? All from 30 percent of the rounds on; else that many percent of them, by name (as of
 * printf), always the same. */
int hd_goes(const char *name, ...) __attribute__((format(printf, 1, 2)));
/* How far a sweep over what may be had steps: one by one from 15 percent of the rounds on, else further. Over the n-th
 * call that fails: every one under AddressSanitizer, which alone sees what a failing call leaves behind. */
int hd_step(void);
int hd_call_step(void);
/* ThreadSanitizer sees nothing of what goes between processes: there cases whose ranks are processes of one thread each
 * leave them to the other builds. */
#ifdef __SANITIZE_THREAD__
enum { HD_SEES_PROCESSES = 0 };
#else
enum { HD_SEES_PROCESSES = 1 };
#endif
void hd_see_processes(void); /* skips a case of nothing else where it does not */
#undef skip                  /* cmocka's says neither what is missing nor that it is */

#endif
