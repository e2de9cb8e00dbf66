/* What tests ask of the fake, and what it says. */
#include "inside.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int64_t calls, fail_in, fail_group_in, aborts;
static _Atomic int fail_result, fail_group_result, comms, together;
static _Thread_local char last_error[256];

static ncclResult_t countdown(_Atomic int64_t *in, const _Atomic int *result)
{
    return atomic_load(in) > 0 && atomic_fetch_sub(in, 1) == 1 ? (ncclResult_t)atomic_load(result) : ncclSuccess;
}

ncclResult_t ncclsim_begin(void)
{
    atomic_fetch_add(&calls, 1);
    ncclResult_t result = countdown(&fail_in, &fail_result);
    return result == ncclSuccess ? result : ncclsim_say(result, "a test has made this call fail");
}

ncclResult_t ncclsim_begin_group(void)
{
    return countdown(&fail_group_in, &fail_group_result);
}

void ncclsim_fail_at(int64_t n, int result)
{
    atomic_store(&fail_result, result);
    atomic_store(&fail_in, n);
}

void ncclsim_fail_group_at(int64_t n, int result)
{
    atomic_store(&fail_group_result, result);
    atomic_store(&fail_group_in, n);
}

int64_t ncclsim_calls(void)
{
    return atomic_load(&calls);
}

int ncclsim_comms(void)
{
    return atomic_load(&comms);
}

int64_t ncclsim_aborts(void)
{
    return atomic_load(&aborts);
}

void ncclsim_count_comm(int more)
{
    atomic_fetch_add(&comms, more);
}

void ncclsim_count_abort(void)
{
    atomic_fetch_add(&aborts, 1);
}

void ncclsim_end_together(int nranks)
{
    atomic_store(&together, nranks);
}

void ncclsim_await_others(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
    static int came;
    int wanted = atomic_load(&together);
    pthread_mutex_lock(&lock);
    int until = wanted > 0 ? (came / wanted + 1) * wanted : 0;
    came += wanted > 0;
    pthread_cond_broadcast(&changed);
    while (came < until) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

int ncclsim_is_silent(void)
{
    const char *text = getenv("HEDDLE_NCCLSIM_SILENT");
    return text != NULL && strcmp(text, "1") == 0;
}

ncclResult_t ncclsim_say(ncclResult_t result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return result;
}

int ncclsim_version(void)
{
    const char *text = getenv("HEDDLE_NCCLSIM_VERSION");
    return text != NULL ? atoi(text) : NCCL_VERSION_CODE;
}

ncclResult_t ncclGetVersion(int *version)
{
    ncclResult_t result = ncclsim_begin();
    *version = ncclsim_version();
    return result;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const words[] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "a remote rank failed",   "in progress"};
    return (int)result >= 0 && result < ncclNumResults ? words[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    static _Thread_local char copy[256];
    if (comm == NULL) {
        return last_error;
    }
    pthread_mutex_lock(&comm->lock);
    snprintf(copy, sizeof copy, "%s", comm->why[0] != 0 ? comm->why : last_error);
    pthread_mutex_unlock(&comm->lock);
    return copy;
}
