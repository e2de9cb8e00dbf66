/* One reshard on real ranks: every element, canary and byte count. */
#include "runtime/verify/reshard_check.h"
#include "runtime/verify/device_array.h"
#include "runtime/verify/judge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANDOM_ELEMS = 3000, RANDOM_DIMS = 5, RANDOM_AXES = 3 };

/* --- byte counts -------------------------------------------------------------------------------------------------- */

static void check_bytes(verify_trial *t, const heddle_reshard_info *info, const heddle_peer_bytes *sends, int count)
{
    int rank = heddle_comm_rank(t->comm), at = 0;
    for (int peer = 0; peer < info->nranks && t->problem[0] == '\0'; peer++) {
        int64_t planned = at < count && sends[at].peer == peer ? sends[at++].bytes : 0;
        int64_t measured = info->measured_bytes_to[peer];
        if (info->bytes_to[peer] != planned) {
            snprintf(t->problem, sizeof t->problem, "rank %d plans %lld bytes to rank %d, the layouts say %lld", rank,
                     (long long)info->bytes_to[peer], peer, (long long)planned);
        } else if (measured != planned * t->executions) {
            snprintf(t->problem, sizeof t->problem,
                     "rank %d moved %lld bytes to rank %d in %d executions, planned were %lld each", rank,
                     (long long)measured, peer, t->executions, (long long)planned);
        }
    }
    if (t->problem[0] == '\0' && info->bytes_peer_path + info->bytes_messages != info->bytes_sent) {
        snprintf(t->problem, sizeof t->problem, "rank %d: %lld bytes by peer path and %lld as messages are not %lld",
                 rank, (long long)info->bytes_peer_path, (long long)info->bytes_messages, (long long)info->bytes_sent);
    }
}

static heddle_status check_info(verify_trial *t, const heddle_reshard *reshard)
{
    int n = heddle_comm_size(t->comm), count = 0;
    heddle_peer_bytes *sends = calloc((size_t)n, sizeof *sends);
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    if (sends == NULL) {
        return judge_no_memory("the bytes to every rank", (double)n * sizeof *sends);
    }
    heddle_status st = heddle_reshard_get_info(&info, reshard);
    if (st == HEDDLE_OK) {
        st = heddle_reshard_sends(sends, n, &count, &t->line, heddle_comm_rank(t->comm));
    }
    if (st == HEDDLE_OK) {
        check_bytes(t, &info, sends, count);
    }
    free(sends);
    return st;
}

/* --- one problem -------------------------------------------------------------------------------------------------- */

/* What fails here alone must not keep the others waiting. */
static void save_parts(verify_trial *t)
{
    for (int side = 0; side < 2 && t->saved == HEDDLE_OK; side++) {
        t->saved = verify_part_save(&t->part[side], t->save);
    }
}

/* Blocking, or every other time split-phase with a few looks in between. */
static heddle_status move(verify_trial *t, heddle_reshard *reshard)
{
    const void *src = verify_part_data(&t->part[0]);
    void *dst = verify_part_data(&t->part[1]);
    if (t->executions % 2 == 0) {
        return heddle_reshard_execute(reshard, src, dst, t->stream);
    }
    int done = 0;
    heddle_status st = heddle_reshard_start(reshard, src, dst, t->stream);
    for (int looks = 0; looks < 3 && st == HEDDLE_OK && !done; looks++) {
        st = heddle_reshard_test(reshard, &done);
    }
    return st == HEDDLE_OK && !done ? heddle_reshard_wait(reshard) : st;
}

static heddle_status run_round(verify_trial *t, heddle_reshard *reshard, int round)
{
    const verify_values values = {&t->line, t->input, round};
    verify_part_fill(&t->part[0], &values);
    verify_part_fill(&t->part[1], NULL);
    heddle_status st = verify_part_send(&t->part[0], t->stream);
    st = st == HEDDLE_OK ? verify_part_send(&t->part[1], t->stream) : st;
    st = st == HEDDLE_OK ? move(t, reshard) : st;
    st = st == HEDDLE_OK ? verify_part_fetch(&t->part[0], t->stream) : st;
    st = st == HEDDLE_OK ? verify_part_fetch(&t->part[1], t->stream) : st;
    if (st != HEDDLE_OK) {
        return st;
    }
    t->executions++;
    for (int side = 1; side >= 0 && t->problem[0] == '\0'; side--) {
        verify_part_check(&t->part[side], &values, t->problem, sizeof t->problem);
        t->checked_elems += heddle_box_elems(&t->part[side].box);
    }
    if (round == 0 && t->save != NULL) {
        save_parts(t);
    }
    return HEDDLE_OK;
}

static heddle_status run_rounds(verify_trial *t)
{
    heddle_reshard *reshard = NULL;
    heddle_status st = heddle_reshard_create_line(&reshard, t->comm, &t->line, &t->options);
    int rounds = verify_rounds(&t->line, t->input);
    for (int round = 0; round < (rounds > 2 ? rounds : 2) && st == HEDDLE_OK; round++) {
        st = run_round(t, reshard, round % rounds);
    }
    st = st != HEDDLE_OK ? st : check_info(t, reshard);
    /* No peer may be inside an execution any more when its memory goes. */
    st = st != HEDDLE_OK ? st : heddle_comm_barrier(t->comm);
    heddle_reshard_destroy(reshard);
    return st;
}

/* Arrays of a communicator's own memory are checked where they are made. Those of malloc are touched later, by all
 * ranks, so that each rank looks at what the ranks of its host take together. */
static heddle_status check_private(const verify_trial *t)
{
    double bytes = 0;
    int here = 0;
    for (int rank = 0; rank < heddle_comm_size(t->comm); rank++) {
        heddle_peer peer = HEDDLE_EMPTY(heddle_peer);
        heddle_box from, to;
        heddle_status st = heddle_comm_get_peer(&peer, t->comm, rank);
        st = st != HEDDLE_OK ? st : heddle_layout_box(&from, &t->line.shape, &t->line.mesh, &t->line.from, rank);
        st = st != HEDDLE_OK ? st : heddle_layout_box(&to, &t->line.shape, &t->line.mesh, &t->line.to, rank);
        if (st != HEDDLE_OK) {
            return st;
        }
        if (peer.link == HEDDLE_LINK_SELF || peer.link == HEDDLE_LINK_MEMORY) {
            here++;
            bytes += t->storage[0].private_memory ? (double)heddle_box_elems(&from) : 0;
            bytes += t->storage[1].private_memory ? (double)heddle_box_elems(&to) : 0;
        }
    }
    return judge_check_memory("arrays in private memory", bytes * (double)heddle_dtype_bytes(t->line.shape.dtype),
                              here);
}

heddle_status verify_run(verify_trial *t)
{
    heddle_status st = check_private(t);
    st = st != HEDDLE_OK ? st : judge_stream_create(&t->stream, t->comm);
    if (heddle_comm_device(t->comm) >= 0) {
        t->options.space = HEDDLE_SPACE_DEVICE;
        t->options.device = heddle_comm_device(t->comm);
    }
    for (int side = 0; side < 2 && st == HEDDLE_OK; side++) {
        st = verify_part_make(&t->part[side], t->comm, &t->line, side, &t->storage[side]);
    }
    if (st == HEDDLE_OK) {
        t->options.src_stride_elems = t->storage[0].pad_elems > 0 ? t->part[0].stride_elems : NULL;
        t->options.dst_stride_elems = t->storage[1].pad_elems > 0 ? t->part[1].stride_elems : NULL;
        st = run_rounds(t);
    }
    for (int side = 0; side < 2; side++) {
        verify_part_free(&t->part[side]);
    }
    judge_stream_destroy(t->comm, t->stream);
    return st;
}

/* Buffers and options of a random problem: mostly plain, some of each kind of trouble. */
static void draw_storage(verify_trial *t, random_source *source, heddle_memory memory)
{
    int private_memory = memory == HEDDLE_MEMORY_ANY || random_between(source, 0, 4) == 0;
    for (int side = 0; side < 2; side++) {
        t->storage[side].private_memory = private_memory;
        t->storage[side].pad_elems = random_between(source, 0, 3) == 0 ? random_between(source, 1, 5) : 0;
        t->storage[side].misaligned_elems = random_between(source, 0, 2) == 0 ? random_between(source, 1, 9) : 0;
    }
    t->options.memory = private_memory ? HEDDLE_MEMORY_ANY : HEDDLE_MEMORY_PEER;
    t->options.tuning = random_between(source, 0, 19) == 0 ? HEDDLE_TUNING_TRIALS : HEDDLE_TUNING_RULES;
}

void verify_draw(verify_trial *t, random_source *source, heddle_memory memory)
{
    const random_limits limits = {heddle_comm_size(t->comm), RANDOM_AXES,
                                  random_between(source, 0, 15) == 0 ? HEDDLE_MAX_DIMS : RANDOM_DIMS, RANDOM_ELEMS,
                                  random_between(source, 0, 2) == 0 ? 2 : 0};
    random_line(&t->line, source, &limits);
    draw_storage(t, source, memory);
}
