/* Test main: every cmocka case in a process of its own with a time limit, so that a hang has a name.
 *
 *     static void adds(void **state) { ... }
 *     int main(int argc, char **argv) {
 *         const struct CMUnitTest cases[] = {cmocka_unit_test(adds)};
 *         return HD_RUN_CASES(cases, argc, argv);
 *     }
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

int hd_run_cases(const struct CMUnitTest *cases, int count, int seconds, int argc, char **argv);

#define HD_RUN_CASES(cases, argc, argv)                                                                                \
    hd_run_cases((cases), (int)(sizeof(cases) / sizeof((cases)[0])), HD_CASE_SECONDS, (argc), (argv))

/* A case that is a function of ranks: HD_RANK_CASE(name, function, "2 threads", "4 shm") runs it on each of these. */
typedef struct hd_rank_case {
    heddle_rank_main function;
    const char *const *where; /* up to NULL */
} hd_rank_case;
struct CMUnitTest hd_case_of_ranks(const char *name, hd_rank_case *what);
#define HD_RANK_CASE(name, function, ...)                                                                              \
    hd_case_of_ranks(#name, &(hd_rank_case){function, (const char *const[]){__VA_ARGS__, NULL}})

/* Fails the case with heddle_last_error() when `expression` is not HEDDLE_OK / not `wanted`. */
#define HD_OK(expression) hd_expect((expression), HEDDLE_OK, #expression, __FILE__, __LINE__)
#define HD_FAILS(wanted, expression) hd_expect((expression), (wanted), #expression, __FILE__, __LINE__)
void hd_expect(int status, int wanted, const char *expression, const char *file, int line);

/* What the machine lacks: `tag` is one word (docs/testing.md lists them), then a sentence as of printf. hd_skip ends
 * the case; after hd_not_here it goes on with what does run here. Not from ranks: only the case's own process. */
void hd_skip(const char *tag, const char *reason, ...) __attribute__((format(printf, 2, 3), noreturn));
void hd_not_here(const char *tag, const char *reason, ...) __attribute__((format(printf, 2, 3)));
/* How many of `n` rounds of one kind to go: HEDDLE_TEST_ROUNDS percent of them (all), but one at the least. For random
 * draws and repetitions only: what each round tries must not depend on how many there are. */
int hd_rounds(int n);
/* Does this case of a list go? HEDDLE_TEST_ROUNDS percent of them do, by name (as of printf), always the same. */
int hd_goes(const char *name, ...) __attribute__((format(printf, 1, 2)));
/* How far a sweep over the n-th call steps: every call from 15 percent of the rounds on, else fewer. */
int hd_step(void);
#undef skip /* cmocka's says neither what is missing nor that it is */

#endif
