/* What came of a process that opened a communicator, in memory that the test sees. */
#ifndef HD_TEST_OUTCOME_H
#define HD_TEST_OUTCOME_H

#include "case.h"
#include "time_limit.h"

#include <heddle/comm.h>
#include <stdarg.h>
#include <string.h>

typedef struct outcome {
    heddle_status status;
    double seconds;
    char sentence[600], describe[600];
} outcome;

/* That of process i: `wanted`, within limit_s, and each of these words in its sentence, up to NULL. */
static inline void ended(const outcome *of, int i, heddle_status wanted, double limit_s, ...)
{
    const outcome *o = &of[i];
    int is_right = o->status == wanted && o->seconds * 1e9 < (double)hd_test_limit_ns(limit_s);
    va_list words;
    va_start(words, limit_s);
    for (const char *word = va_arg(words, const char *); word != NULL; word = va_arg(words, const char *)) {
        is_right &= strstr(o->sentence, word) != NULL;
    }
    va_end(words);
    if (!is_right) {
        fail_msg("process %d: %s after %.1f s: %s", i, heddle_status_name(o->status), o->seconds, o->sentence);
    }
}

#endif
