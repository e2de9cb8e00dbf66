#include "runtime/base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { YIELDS = 256, NAP_NS = 20000 };

int64_t hd_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void hd_nap(int turn)
{
    const struct timespec some = {.tv_nsec = NAP_NS};
    if (turn < YIELDS) {
        sched_yield();
    } else {
        nanosleep(&some, NULL);
    }
}

int hd_random_bytes(void *out, size_t bytes)
{
    return getrandom(out, bytes, 0) == (ssize_t)bytes ? 0 : -1;
}

int hd_is_privileged(void)
{
    return getauxval(AT_SECURE) != 0;
}

const char *hd_env(const char *name)
{
    return hd_is_privileged() ? NULL : getenv(name);
}

int hd_fd_aside(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO) {
        return fd;
    }
    int aside = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int error = errno;
    close(fd);
    errno = error;
    return aside;
}
