/* A rank moves to its host of tests/support/two_hosts.sh: the first half of the ranks to the first one. What they share
 * until then (memory, pipes) stays. */
#ifndef HD_TEST_ON_HOST_H
#define HD_TEST_ON_HOST_H

#include "check.h"

#include <fcntl.h>
#include <heddle/comm.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline heddle_status move_to_host(heddle_comm *launched)
{
    heddle_status st = HEDDLE_OK;
    char path[128];
    const int is_first = 2 * heddle_comm_rank(launched) < heddle_comm_size(launched);
    const char *name = getenv(is_first ? "HEDDLE_HOST_A" : "HEDDLE_HOST_B");
    int fd = -1;
    CHECK(name != NULL);
    snprintf(path, sizeof path, "/var/run/netns/%s", name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && setns(fd, CLONE_NEWNET) == 0);
    CHECK(unshare(CLONE_NEWUTS) == 0 && sethostname(name, strlen(name)) == 0);
    st = heddle_comm_barrier(launched);
out:
    if (fd >= 0) {
        close(fd);
    }
    return st;
}

#endif
