/* A function with each of its pointers NULL in turn, every call in a process of its own: it must not die, and says what
 * is wrong in its own name. */
#ifndef NULL_CALLS_H
#define NULL_CALLS_H

#include "api_objects.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NULL_CALL_SECONDS = 20 };

/* What a call without status gives back for NULL. */
enum { NULL_STATUS = 1000, NULL_NOTHING = 1001 };

typedef struct null_row {
    const char *function;
    /* Names of the pointer arguments in order. "?" behind one: NULL is legal. "!" before all: the call is refused for
     * another reason when nothing is NULL. "~": all ranks get the sentence, which names rank and argument. */
    const char *arguments;
    long (*call)(const api_objects *a, int null);
    long neutral; /* NULL_STATUS: it returns a status; NULL_NOTHING: it returns nothing that matters */
} null_row;

#define P(index, pointer) (null == (index) ? NULL : (pointer))

/* What a list of functions becomes: their calls, and the rows of null_calls. */
#define CALL(function, arguments, neutral, expression)                                                                 \
    static long call_##function(const api_objects *a, int null)                                                        \
    {                                                                                                                  \
        (void)a;                                                                                                       \
        (void)null;                                                                                                    \
        return (long)(expression);                                                                                     \
    }
#define ROW(function, arguments, neutral, expression) {#function, arguments, call_##function, neutral},

/* The index-th word of a row; 0 behind the last. */
static inline int null_argument(char *name, size_t name_bytes, int *legal, const char *arguments, int index)
{
    const char *at = arguments + (arguments[0] == '!' || arguments[0] == '~');
    for (int i = 0; *at != '\0'; i++) {
        size_t length = strcspn(at, " ");
        if (i == index) {
            *legal = at[length - 1] == '?';
            snprintf(name, name_bytes, "%.*s", (int)length - *legal, at);
            return 1;
        }
        at += length + (at[length] == ' ');
    }
    return 0;
}

/* In the child: 0 when the call did what it must. */
static inline int null_try(const null_row *row, int index, const char *name, int legal)
{
    static api_objects a;
    char wanted[128];
    api_make(&a);
    long got = row->call(&a, index);
    if (row->neutral == NULL_NOTHING) {
        return 0;
    }
    if (row->neutral != NULL_STATUS) {
        return index >= 0 && !legal && got != row->neutral
                   ? fprintf(stderr, "%s: %s is NULL: returned %ld, not %ld\n", row->function, name, got, row->neutral)
                   : 0;
    }
    if (index < 0 || legal) {
        return got != HEDDLE_OK && row->arguments[0] != '!'
                   ? fprintf(stderr, "%s%s%s: %s: %s\n", row->function, index < 0 ? "" : " without ", name,
                             heddle_status_name((heddle_status)got), heddle_last_error())
                   : 0;
    }
    snprintf(wanted, sizeof wanted, " %s is NULL", name);
    if (got != HEDDLE_ERR_ARG || (strstr(heddle_last_error(), row->function) == NULL && row->arguments[0] != '~') ||
        strstr(heddle_last_error(), wanted) == NULL) {
        return fprintf(stderr, "%s: %s is NULL: %s: %s\n", row->function, name, heddle_status_name((heddle_status)got),
                       heddle_last_error());
    }
    return 0;
}

static inline int null_call(const null_row *row, int index, const char *name, int legal)
{
    int wait_status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(NULL_CALL_SECONDS);
        for (int s = 1; s < 32; s++) { /* the test library's own handlers would make a signal a failure of theirs */
            if (s == SIGSEGV || s == SIGFPE || s == SIGILL || s == SIGBUS) {
                signal(s, SIG_DFL);
            }
        }
        _exit(null_try(row, index, name, legal) != 0);
    }
    waitpid(pid, &wait_status, 0);
    if (WIFSIGNALED(wait_status)) {
        fprintf(stderr, "%s: %s is NULL: died of signal %d\n", row->function, name, WTERMSIG(wait_status));
    }
    return wait_status != 0;
}

static inline void null_calls(const null_row *rows, size_t count)
{
    int wrong = 0;
    static api_objects first; /* the machine is looked at and oneDNN compiles once, not in every process */
    api_make(&first);
    for (size_t i = 0; i < count; i++) {
        char name[64] = "";
        int legal = 0;
        wrong += null_call(&rows[i], -1, name, legal);
        for (int k = 0; null_argument(name, sizeof name, &legal, rows[i].arguments, k); k++) {
            wrong += null_call(&rows[i], k, name, legal);
        }
    }
    assert_int_equal(wrong, 0);
}

#endif
