/* Base services of every room: failing with a sentence, allocation, time, the environment. */
#ifndef HD_BASE_H
#define HD_BASE_H

#include <heddle/status.h>
#include <stddef.h>
#include <stdint.h>

/* Write the thread's error sentence (printf-like, no newline) and return `status`. Only the function that first knows
 * calls it; callers pass the code on. */
heddle_status hd_fail(heddle_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Put "PREFIX: " in front of the present sentence (a file name, say) and return `status`. */
heddle_status hd_fail_prefix(heddle_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The one control-flow macro: on failure go to `out` with the code in `st`. */
#define HD_TRY(expression)                                                                                             \
    do {                                                                                                               \
        st = (expression);                                                                                             \
        if (st != HEDDLE_OK) {                                                                                         \
            goto out;                                                                                                  \
        }                                                                                                              \
    } while (0)

/* Zeroed memory, `count * bytes` checked for overflow. HEDDLE_ERR_NOMEM names `what` and the bytes. */
heddle_status hd_alloc(void **out, size_t count, size_t bytes, const char *what);
heddle_status hd_alloc_aligned(void **out, size_t alignment, size_t bytes, const char *what);
heddle_status hd_strdup(char **out, const char *text);
void hd_free(void *memory);
/* Tests: let the n-th allocation of this process from now on fail (1 = the next), 0 = never. */
void hd_alloc_fail_at(long n);

int64_t hd_now_ns(void); /* CLOCK_MONOTONIC */

/* The only reader of the environment; NULL when unset. */
const char *hd_env(const char *name);

#endif
