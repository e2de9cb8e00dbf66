/* A judge that runs out of memory says so: a status without a sentence would show an older one. */
#include "case.h"

#include "runtime/verify/linear_check.h"

#include <dlfcn.h>
#include <heddle/heddle.h>
#include <stdlib.h>
#include <string.h>

static long until_failure; /* callocs of linear_check that still succeed, and one; 0: all do */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
void *calloc(size_t count, size_t bytes)
{
    static void *(*real)(size_t, size_t);
    if (real == NULL) {
        void *symbol = dlsym(RTLD_NEXT, "calloc");
        memcpy(&real, &symbol, sizeof real);
    }
    return until_failure > 0 && --until_failure == 0 ? NULL : real(count, bytes);
}
#endif

static void linear_attention(void **state)
{
    (void)state;
    if (SANITIZED) {
        hd_skip("sanitizer", "the sanitizer's calloc cannot be replaced");
    }
    heddle_comm *comm = NULL;
    random_source source = {0};
    linear_case c;
    char problem[LINEAR_PROBLEM_BYTES];
    int starved = 0;
    HD_OK(heddle_comm_open(&comm, "self", NULL));
    linear_draw(&c, &source, 1, HEDDLE_F64);
    for (long n = 1;; n++) {
        heddle_set_error(HEDDLE_ERR_INTERNAL, "an older sentence");
        until_failure = n;
        heddle_status st = linear_check(comm, &c, problem, NULL, NULL);
        int failed = until_failure == 0;
        until_failure = 0;
        if (!failed) {
            HD_OK(st);
            break;
        }
        starved += st == HEDDLE_ERR_NOMEM;
        if (st == HEDDLE_ERR_NOMEM && strstr(heddle_last_error(), "memory") == NULL) {
            fail_msg("allocation %ld: %s", n, heddle_last_error());
        }
    }
    assert_true(starved > 10);
    heddle_comm_destroy(comm);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(linear_attention)};
    return HD_RUN_CASES(cases, argc, argv);
}
