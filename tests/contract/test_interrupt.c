/* A wait ends when the program's callback says so, in every kind of wait, and the other ranks are told. */
#include "case.h"
#include "runtime/comm/comm_internal.h"

#include <heddle/heddle.h>
#include <heddle/train/pipeline.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ASKED_BEFORE = 3, SECONDS = 20 };
enum { BARRIER, SENDRECV, RESHARD, RESHARD_TEST, GROUP, WAITS };

static _Thread_local int is_asked, times;

static int interrupt(void *arg)
{
    const int *after = arg;
    return is_asked && ++times >= *after;
}

static heddle_status make_reshard(heddle_reshard **out, heddle_comm *comm)
{
    heddle_reshard_line line;
    heddle_reshard_options options;
    heddle_reshard_options_init(&options);
    options.tuning = HEDDLE_TUNING_RULES;
    heddle_status st = heddle_reshard_parse(&line, "f32[a=6 b=6] on [x=2]: a@x -> b@x");
    return st == HEDDLE_OK ? heddle_reshard_create_line(out, comm, &line, &options) : st;
}

static heddle_status wait_for_nothing(heddle_comm *comm, int kind, heddle_reshard *reshard, heddle_comm *group)
{
    char byte;
    void *src = NULL, *dst = NULL;
    int done = 0;
    heddle_status st;
    switch (kind) {
    case BARRIER:
        return heddle_comm_barrier(comm);
    case GROUP:
        return heddle_comm_barrier(group);
    case SENDRECV:
        return heddle_comm_sendrecv(comm, NULL, 0, -1, &byte, 1, 0, HEDDLE_NO_STREAM);
    default:
        break;
    }
    st = heddle_buffer_alloc(&src, comm, 4096, HEDDLE_SPACE_HOST);
    st = st == HEDDLE_OK ? heddle_buffer_alloc(&dst, comm, 4096, HEDDLE_SPACE_HOST) : st;
    if (st == HEDDLE_OK && kind == RESHARD) {
        st = heddle_reshard_execute(reshard, src, dst, HEDDLE_NO_STREAM);
    } else if (st == HEDDLE_OK) {
        st = heddle_reshard_start(reshard, src, dst, HEDDLE_NO_STREAM);
        while (st == HEDDLE_OK && !done) {
            st = heddle_reshard_test(reshard, &done);
            usleep(1000);
        }
    }
    heddle_buffer_free(comm, src);
    heddle_buffer_free(comm, dst);
    return st;
}

/* Rank 1 waits for something that never comes. Rank 0 is in no call until it hears of that: two ranks that wait for one
 * another would be told so. */
static heddle_status ranks(heddle_comm *comm, void *arg)
{
    const int kind = *(int *)arg;
    heddle_reshard *reshard = NULL;
    heddle_comm *group = NULL;
    const heddle_mesh mesh = {.naxes = 1, .axis = {{"x", 2}}};
    char byte;
    heddle_status st = make_reshard(&reshard, comm);
    st = st == HEDDLE_OK ? heddle_comm_axis_group(&group, comm, &mesh, 0) : st;
    if (st != HEDDLE_OK) {
        return st;
    }
    is_asked = heddle_comm_rank(comm) == 1;
    times = 0;
    while (!is_asked && hd_comm_check(comm) == HEDDLE_OK) {
        usleep(1000);
    }
    st = is_asked ? wait_for_nothing(comm, kind, reshard, group)
                  : heddle_comm_sendrecv(comm, NULL, 0, -1, &byte, 1, 1, HEDDLE_NO_STREAM);
    const int right = (is_asked ? st == HEDDLE_ERR_INTERRUPTED && times == ASKED_BEFORE : st == HEDDLE_ERR_PEER) &&
                      strstr(heddle_last_error(), "rank 1") != NULL &&
                      strstr(heddle_last_error(), "interrupted") != NULL;
    heddle_status result = right ? HEDDLE_OK
                                 : heddle_set_error(HEDDLE_ERR_INTERNAL, "wait %d, asked %d times: %s: %s", kind, times,
                                                    heddle_status_name(st), heddle_last_error());
    is_asked = 0;
    heddle_reshard_destroy(reshard);
    heddle_comm_destroy(group);
    return result;
}

static void every_wait(const char *transport)
{
    static int after = ASKED_BEFORE;
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = SECONDS * 1000;
    options.interrupt = interrupt;
    options.interrupt_arg = &after;
    for (int kind = 0; kind < WAITS; kind++) {
        HD_OK(heddle_run_ranks_with(2, transport, &options, ranks, &kind));
    }
}

HD_CASE(threads_wait)
{
    every_wait("threads");
}

HD_CASE(processes_wait)
{
    every_wait("shm");
}
