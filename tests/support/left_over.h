/* What a process still holds of the ranks that it ran. Their shared memory has no name in any folder: it is there as
 * long as somebody has it mapped or open. */
#ifndef HD_TEST_LEFT_OVER_H
#define HD_TEST_LEFT_OVER_H

#include "case.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

typedef struct holdings {
    int descriptors;
    int maps; /* of shared memory of ranks */
} holdings;

static inline holdings holdings_now(void)
{
    holdings out = {0, 0};
    char line[4096];
    DIR *folder = opendir("/proc/self/fd");
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_true(folder != NULL && maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) {
        out.maps += strstr(line, "memfd:heddle") != NULL;
    }
    fclose(maps);
    while (readdir(folder) != NULL) {
        out.descriptors++;
    }
    closedir(folder);
    return out;
}

/* No child either. */
static inline void assert_nothing_left(holdings before)
{
    const holdings now = holdings_now();
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(now.descriptors, before.descriptors);
    assert_int_equal(now.maps, before.maps);
}

#endif
