/* Send and receive at the same time, between any two ranks of one host: transfers that are made when the two first
 * meet, because nobody else takes part, and that are told what they carry from message to message.
 *
 * A message is one part where the peer can reach its memory. Other memory goes through two halves of staging in
 * turn; each has its channel, so that one part is packed while the other is read. Only the receiver can compare sizes:
 * READY says what is still to come. A message of the wrong size is taken in all the same, but nothing of it is copied,
 * and DONE says so: both sides learn of it.
 */
#include "runtime/move/device_image.h"
#include "runtime/move/transfer.h"

#include <stdio.h>
#include <string.h>

enum { HALVES = 2, QUICK_ROUNDS = 64 /* that ask neither who gave up nor how late it is */ };

/* What goes from one rank to another, at one of the two. */
struct hd_oneway {
    int peer, is_send;
    const hd_pair_ground *ground;
    hd_channel *channel[HALVES];
    hd_transfer *transfer[HALVES];
    /* the present message */
    const unsigned char *src;
    unsigned char *dst;
    size_t bytes, offered; /* as this side says, as the sender does */
    size_t begun;          /* bytes of the parts that were begun */
    int parts;             /* how many those are */
    int is_busy[HALVES];
    int64_t wanted[HALVES]; /* by a sender: where the channel's counter comes to when the part was copied */
    int is_staged, is_wrong, is_done;
};

typedef struct pairs {
    hd_pairs base; /* first: what the communicator has is this */
    heddle_comm *comm;
    hd_oneway *way[]; /* [2 * size]: to every rank, from every rank; NULL: they have not met */
} pairs;

/* --- making ------------------------------------------------------------------------------------------------------- */

/* A part without a size: its items, peers and lanes are those of any other transfer. */
static heddle_status make_half(hd_oneway *f, heddle_comm *comm, int half)
{
    heddle_status st = HEDDLE_OK;
    hd_channel *c = NULL;
    hd_transfer *t = NULL;
    HD_TRY(hd_channel_create(&f->channel[half], comm, &(hd_channel_options){.what = "sendrecv"}));
    c = f->channel[half];
    c->link = f->ground->link;
    c->reaches_all = 1;
    c->alternates = 0;
    c->half = half;
    HD_TRY(hd_alloc((void **)&f->transfer[half], 1, sizeof *t, "a transfer"));
    t = f->transfer[half];
    t->channel = c;
    t->oneway = f;
    t->any_near = 1;
    t->hint.shared_cache_bytes = (int64_t)heddle_comm_shared_cache_bytes(comm);
    hd_items *items = f->is_send ? &t->send : &t->recv;
    HD_TRY(hd_alloc((void **)&items->item, 1, sizeof *items->item, "items of a transfer"));
    items->item[0] = (hd_item){.peer = f->peer, .copy = {.run_bytes = 1}};
    items->count = 1;
    st = hd_peer_build(t);
out:
    return st;
}

static void destroy_oneway(hd_oneway *f)
{
    for (int half = 0; f != NULL && half < HALVES; half++) {
        hd_transfer_destroy(f->transfer[half]);
        if (f->channel[half] != NULL) {
            f->channel[half]->link = NULL; /* the communicator's */
        }
        hd_channel_destroy(f->channel[half]);
    }
    hd_free(f);
}

static void destroy_pairs(hd_pairs *base)
{
    pairs *p = (pairs *)base;
    for (int i = 0; i < 2 * heddle_comm_size(p->comm); i++) {
        destroy_oneway(p->way[i]);
    }
    hd_free(p);
}

static heddle_status make_pairs(heddle_comm *comm, hd_pair_ground *ground)
{
    pairs *p = NULL;
    size_t ways = 2 * (size_t)heddle_comm_size(comm);
    heddle_status st = hd_alloc((void **)&p, 1, sizeof *p + ways * sizeof(hd_oneway *), "pairs of ranks");
    if (st == HEDDLE_OK) {
        p->base.destroy = destroy_pairs;
        p->comm = comm;
        ground->pairs = &p->base;
    }
    return st;
}

static heddle_status meet(hd_oneway **out, heddle_comm *comm, int peer, int is_send)
{
    heddle_status st = HEDDLE_OK;
    hd_pair_ground *ground = hd_comm_pair_ground(comm);
    hd_oneway *f = NULL;
    char why[HD_SENTENCE_BYTES];
    if (ground->pairs == NULL) {
        HD_TRY(make_pairs(comm, ground));
    }
    hd_oneway **known = &((pairs *)ground->pairs)->way[2 * peer + is_send];
    if (*known == NULL) {
        HD_TRY(hd_alloc((void **)&f, 1, sizeof *f, "a pair of ranks"));
        f->peer = peer;
        f->is_send = is_send;
        f->ground = ground;
        for (int half = 0; half < (ground->staging != NULL ? HALVES : 1); half++) {
            HD_TRY(make_half(f, comm, half));
        }
        *known = f;
        f = NULL;
    }
    *out = *known;
out:
    destroy_oneway(f);
    return st == HEDDLE_OK ? st : hd_comm_give_up(comm, st, why, sizeof why); /* the other one waits */
}

/* --- one message -------------------------------------------------------------------------------------------------- */

static void load(hd_oneway *f, const void *src, void *dst, size_t bytes)
{
    f->src = src;
    f->dst = dst;
    f->bytes = f->offered = bytes;
    f->begun = 0;
    f->parts = f->is_wrong = f->is_done = 0;
    f->is_busy[0] = f->is_busy[1] = 0; /* since a failure, after a reset */
    f->is_staged = f->is_send && hd_comm_export(f->channel[0]->comm, src, bytes) == 0;
}

/* Of the next part: the half it goes through, and its bytes. */
static int next_half(const hd_oneway *f)
{
    return f->channel[1] != NULL ? f->parts % HALVES : 0;
}

static size_t next_bytes(const hd_oneway *f)
{
    size_t left = f->offered - f->begun;
    return f->is_staged && left > f->ground->half_bytes ? f->ground->half_bytes : left;
}

static heddle_status begin_send(hd_oneway *f)
{
    int half = next_half(f);
    hd_transfer *t = f->transfer[half];
    size_t bytes = next_bytes(f);
    const unsigned char *src = bytes > 0 ? f->src + f->begun : f->src;
    if (f->is_staged) {
        unsigned char *staging = f->ground->staging + (size_t)half * f->ground->half_bytes;
        memcpy(staging, src, bytes);
        src = staging;
    }
    t->src_bytes = bytes;
    t->named_src = NULL; /* its name was one for another number of bytes */
    t->offer = (uint64_t)(f->bytes - f->begun) << 1 | (uint64_t)f->is_staged;
    f->begun += bytes;
    f->parts++;
    f->is_busy[half] = 1;
    f->wanted[half] = hd_channel_sent(t->channel)[f->peer] + (int64_t)bytes;
    return hd_channel_start(t->channel, &(hd_leg){.transfer = t, .src = src}, 1);
}

static heddle_status begin_receive(hd_oneway *f)
{
    int half = next_half(f);
    hd_transfer *t = f->transfer[half];
    f->is_busy[half] = 1;
    return hd_channel_start(t->channel, &(hd_leg){.transfer = t, .dst = f->begun > 0 ? f->dst + f->begun : f->dst}, 1);
}

/* READY has come: what the sender still has, and whether all of it lies there. */
void hd_oneway_take(hd_transfer *t, uint64_t offer)
{
    hd_oneway *f = t->oneway;
    f->is_staged = (int)(offer & 1);
    f->offered = f->begun + (size_t)(offer >> 1);
    f->is_wrong = f->offered != f->bytes;
    size_t bytes = next_bytes(f);
    f->begun += bytes;
    f->parts++;
    t->refuses = f->is_wrong;
    t->lanes.ngroups = bytes > 0 && !f->is_wrong;
    if (t->lanes.ngroups > 0 && t->lanes.load[0].bytes != (int64_t)bytes) {
        t->lanes.load[0].bytes = t->lanes.lane[0].run_bytes = (int64_t)bytes;
        t->hint.footprint_bytes = 2 * (int64_t)bytes;
        hd_lanes_choose(&t->lanes, NULL, &t->hint);
    }
}

/* As far as it goes without waiting. */
static heddle_status step(hd_oneway *f, int quick, int *moved)
{
    heddle_status st = HEDDLE_OK;
    int under_way = 0;
    for (int half = 0; half < HALVES; half++) {
        hd_channel *c = f->channel[half];
        int done = 0;
        if (!f->is_busy[half]) {
            continue;
        }
        HD_TRY(quick ? hd_channel_progress(c, &done) : hd_channel_test(c, &done));
        f->is_wrong |= done && f->is_send && hd_channel_sent(c)[f->peer] != f->wanted[half];
        f->is_busy[half] = !done;
        under_way += !done;
        *moved |= done;
    }
    int is_last = f->parts > 0 && f->begun == f->offered;
    if (!is_last && !f->is_busy[next_half(f)] && (f->is_send || under_way == 0)) {
        HD_TRY(f->is_send ? begin_send(f) : begin_receive(f));
        *moved = 1;
        under_way++;
    }
    f->is_done = is_last && under_way == 0;
out:
    return st;
}

static heddle_status exchange(heddle_comm *comm, hd_oneway *out, hd_oneway *in)
{
    heddle_status st = HEDDLE_OK;
    for (int round = 0; (out != NULL && !out->is_done) || (in != NULL && !in->is_done);) {
        int moved = 0, quick = round < QUICK_ROUNDS;
        if (out != NULL && !out->is_done) {
            HD_TRY(step(out, quick, &moved));
        }
        if (in != NULL && !in->is_done) {
            HD_TRY(step(in, quick, &moved));
        }
        round = moved ? 0 : round + 1;
        if (!quick && !moved && hd_comm_rests(comm, round)) {
            st = hd_channel_stand((in != NULL && !in->is_done ? in : out)->channel[0], -1);
            HD_TRY(st == HEDDLE_OK ? st : hd_channel_give_up((in != NULL && !in->is_done ? in : out)->channel[0], st));
        }
        hd_comm_relax(comm, round);
    }
out:
    hd_comm_go_on(comm);
    return st;
}

/* After a failure: nobody helps on what is left of a message. */
static void leave(hd_oneway *f)
{
    for (int half = 0; f != NULL && half < HALVES && f->channel[half] != NULL; half++) {
        hd_channel_leave(f->channel[half]);
    }
}

static heddle_status compare(const heddle_comm *comm, const hd_oneway *out, const hd_oneway *in)
{
    int me = hd_comm_rank_name(comm, heddle_comm_rank(comm));
    if (in != NULL && in->is_wrong) {
        return hd_fail(HEDDLE_ERR_MISMATCH, "rank %d expects %zu bytes from rank %d, which sends %zu", me, in->bytes,
                       hd_comm_rank_name(comm, in->peer), in->offered);
    }
    if (out != NULL && out->is_wrong) {
        return hd_fail(HEDDLE_ERR_MISMATCH, "rank %d sends %zu bytes to rank %d, which expects another number", me,
                       out->bytes, hd_comm_rank_name(comm, out->peer));
    }
    return HEDDLE_OK;
}

static heddle_status send_and_receive(heddle_comm *comm, const void *send, size_t send_bytes, int to, void *recv,
                                      size_t recv_bytes, int from)
{
    heddle_status st = HEDDLE_OK;
    hd_oneway *out = NULL, *in = NULL;
    if (to >= 0) {
        HD_TRY(meet(&out, comm, to, 1));
        load(out, send, NULL, send_bytes);
    }
    if (from >= 0) {
        HD_TRY(meet(&in, comm, from, 0));
        load(in, NULL, recv, recv_bytes);
    }
    HD_TRY(exchange(comm, out, in));
    return compare(comm, out, in);
out:
    leave(out);
    leave(in);
    return st;
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

static heddle_status to_itself(int rank, const void *send, size_t send_bytes, void *recv, size_t recv_bytes)
{
    if (send_bytes != recv_bytes) {
        return hd_fail(HEDDLE_ERR_MISMATCH, "rank %d sends itself %zu bytes and expects %zu", rank, send_bytes,
                       recv_bytes);
    }
    if (send_bytes > 0) {
        memmove(recv, send, send_bytes);
    }
    return HEDDLE_OK;
}

/* Both in host memory. */
static heddle_status carry(heddle_comm *comm, const void *send, size_t send_bytes, int to, void *recv,
                           size_t recv_bytes, int from)
{
    if (to >= 0 && to == heddle_comm_rank(comm)) {
        return to_itself(hd_comm_rank_name(comm, to), send, send_bytes, recv, recv_bytes);
    }
    if (hd_comm_pair_ground(comm)->link == NULL) {
        return hd_comm_send_by_transport(comm, send, send_bytes, to, recv, recv_bytes, from);
    }
    return send_and_receive(comm, send, send_bytes, to, recv, recv_bytes, from);
}

static heddle_status carry_images(heddle_comm *comm, const void *send, size_t send_bytes, int to, void *recv,
                                  size_t recv_bytes, int from, heddle_stream stream)
{
    heddle_status st;
    hd_image out = {0}, in = {0};
    HD_TRY(hd_image_open(&out, comm, send, to >= 0 ? send_bytes : 0, 1, stream, "sendrecv"));
    HD_TRY(hd_image_open(&in, comm, recv, from >= 0 ? recv_bytes : 0, 0, stream, "sendrecv"));
    HD_TRY(carry(comm, out.host, send_bytes, to, in.host, recv_bytes, from));
    st = hd_image_write(&in);
out:
    hd_image_close(&out);
    hd_image_close(&in);
    return st;
}

heddle_status heddle_comm_sendrecv(heddle_comm *comm, const void *send, size_t send_bytes, int to, void *recv,
                                   size_t recv_bytes, int from, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(comm));
    if (to >= 0 && send_bytes > 0) {
        HD_TRY(HD_NEED(send));
    }
    if (from >= 0 && recv_bytes > 0) {
        HD_TRY(HD_NEED(recv));
    }
    int rank = heddle_comm_rank(comm), size = heddle_comm_size(comm);
    if (to < -1 || to >= size || from < -1 || from >= size) {
        return hd_fail(HEDDLE_ERR_ARG, "sendrecv to rank %d and from rank %d of %d (-1: none)", to, from, size);
    }
    if (to != from && (to == rank || from == rank)) {
        return hd_fail(HEDDLE_ERR_ARG, "sendrecv to rank %d and from rank %d: rank %d would wait for itself", to, from,
                       rank);
    }
    HD_TRY(hd_comm_begin(comm, "sendrecv"));
    st = hd_comm_device(comm) == NULL ? carry(comm, send, send_bytes, to, recv, recv_bytes, from)
                                      : carry_images(comm, send, send_bytes, to, recv, recv_bytes, from, stream);
out:
    return st;
}
