/* Test main: every cmocka case in a process of its own with a time limit, so that a hang has a name.
 *
 *     static void adds(void **state) { ... }
 *     int main(int argc, char **argv) {
 *         const struct CMUnitTest cases[] = {cmocka_unit_test(adds)};
 *         return HD_RUN_CASES(cases, argc, argv);
 *     }
 *
 * An argument selects the cases whose name contains it. Exit 0, 1, or 77 when every case skipped.
 */
#ifndef HD_TEST_CASE_H
#define HD_TEST_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { HD_CASE_SECONDS = 60 };

int hd_run_cases(const struct CMUnitTest *cases, int count, int seconds, int argc, char **argv);

#define HD_RUN_CASES(cases, argc, argv)                                                                                \
    hd_run_cases((cases), (int)(sizeof(cases) / sizeof((cases)[0])), HD_CASE_SECONDS, (argc), (argv))

/* Fails the case with heddle_last_error() when `expression` is not HEDDLE_OK / not `wanted`. */
#define HD_OK(expression) hd_expect((expression), HEDDLE_OK, #expression, __FILE__, __LINE__)
#define HD_FAILS(wanted, expression) hd_expect((expression), (wanted), #expression, __FILE__, __LINE__)
void hd_expect(int status, int wanted, const char *expression, const char *file, int line);

#endif
