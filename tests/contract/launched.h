/* Processes as a launcher starts them. */
#ifndef HD_TEST_LAUNCHED_H
#define HD_TEST_LAUNCHED_H

#include "case.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* fn in so many (up to 4), each of which the environment tells who it is. Each returns HEDDLE_OK. */
static inline void launch(int size, heddle_status (*fn)(void *arg), void *arg)
{
    char text[32];
    pid_t process[4] = {0};
    int failed = 0;
    snprintf(text, sizeof text, "%d", size);
    setenv("HEDDLE_SIZE", text, 1);
    snprintf(text, sizeof text, "launched-%d-%d", (int)getpid(), size);
    setenv("HEDDLE_KEY", text, 1);
    for (int rank = 0; rank < size; rank++) {
        process[rank] = fork();
        assert_true(process[rank] >= 0);
        if (process[rank] == 0) {
            snprintf(text, sizeof text, "%d", rank);
            setenv("HEDDLE_RANK", text, 1);
            const heddle_status st = fn(arg);
            if (st != HEDDLE_OK) {
                fprintf(stderr, "rank %d of %d: %s: %s\n", rank, size, heddle_status_name(st), heddle_last_error());
            }
            _exit(st != HEDDLE_OK);
        }
    }
    for (int rank = 0; rank < size; rank++) {
        int status = 1;
        failed += waitpid(process[rank], &status, 0) != process[rank] || status != 0;
    }
    unsetenv("HEDDLE_SIZE");
    unsetenv("HEDDLE_KEY");
    assert_int_equal(failed, 0);
}

#endif
