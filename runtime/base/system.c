#include "runtime/base/base.h"

#include <stdlib.h>
#include <time.h>

int64_t hd_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

const char *hd_env(const char *name)
{
    return getenv(name);
}
