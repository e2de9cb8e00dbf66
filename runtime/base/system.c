#include "runtime/base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
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

/* The word lies in a page that reads 0 in a fork, so that one draws its own. Where the kernel cannot do that, the pid
 * tells the two apart. */
heddle_status hd_process_self(uint64_t *out)
{
    static _Atomic(_Atomic uint64_t *) kept;
    _Atomic uint64_t *page = atomic_load(&kept);
    if (page == NULL) {
        const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
        void *const made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED) {
            return hd_fail(HEDDLE_ERR_NOMEM, "out of memory: %zu bytes for the name of this process", bytes);
        }
        madvise(made, bytes, MADV_WIPEONFORK);
        if (atomic_compare_exchange_strong(&kept, &page, (_Atomic uint64_t *)made)) {
            page = made;
        } else {
            munmap(made, bytes);
        }
    }
    uint64_t word = atomic_load(page), drawn = 0;
    if (word == 0) {
        if (hd_random_bytes(&drawn, sizeof drawn) != 0) {
            return hd_fail(HEDDLE_ERR_UNSUPPORTED, "the kernel gives no random bytes, which tell processes apart");
        }
        drawn |= 1;
        word = atomic_compare_exchange_strong(page, &word, drawn) ? drawn : word;
    }
    *out = word ^ (uint64_t)getpid();
    return HEDDLE_OK;
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
