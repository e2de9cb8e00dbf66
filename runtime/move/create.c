/* Making transfers. Every step that can fail on one rank is followed by an agreement, so that no rank is left
 * waiting. */
#include "runtime/move/transfer.h"

#include <string.h>

int64_t hd_transfer_reserve(hd_transfer *t, int64_t bytes)
{
    int64_t offset = t->staging_bytes;
    t->staging_bytes = (offset + bytes + 4095) / 4096 * 4096;
    return offset;
}

void hd_item_stream(hd_copy *copy, const hd_transfer *t)
{
    if (t->any_adds) {
        hd_copy_walk(copy, HD_SIDE_DST);
    } else {
        hd_copy_stream(copy);
    }
}

/* --- what the ranks tell one another: geometry of every transfer, and with whom they are linked ---------------- */

/* One gather for all transfers of an object: each rank's record is its geometries, then one bit per rank it is linked
 * with. */
typedef struct survey {
    size_t record_bytes, links_at; /* of a rank's record; where its bits begin */
    char *own, *all;
} survey;

static heddle_status survey_alloc(survey *s, int nranks, int ntransfers)
{
    heddle_status st = HEDDLE_OK;
    s->links_at = (size_t)ntransfers * sizeof(hd_geometry);
    s->record_bytes = s->links_at + ((size_t)nranks + 63) / 64 * sizeof(uint64_t);
    HD_TRY(hd_alloc((void **)&s->own, 1, s->record_bytes, "geometry of a transfer"));
    HD_TRY(hd_alloc((void **)&s->all, (size_t)nranks, s->record_bytes, "geometry of a transfer"));
out:
    return st;
}

static hd_geometry *geometry(char *records, int transfer)
{
    return (hd_geometry *)(void *)records + transfer;
}

static uint64_t *link_words(const survey *s, char *record)
{
    return (uint64_t *)(void *)(record + s->links_at);
}

/* Near: loads and stores. Linked: shared flags, but memory that a peer cannot reach, so it is staged. Else:
 * messages. */
static void note_peers(hd_geometry *out, uint64_t *link_word, hd_transfer *t, const hd_items *items, int is_send)
{
    for (int i = 0; i < items->count; i++) {
        int peer = items->item[i].peer;
        int near = hd_channel_near(t->channel, peer), linked = hd_channel_linked(t->channel, peer);
        int64_t bytes = hd_copy_bytes(&items->item[i].copy);
        if (peer == t->channel->rank) {
            continue;
        }
        out->near += near;
        out->staged += linked && !near;
        out->mail += !linked;
        t->channel->has_near |= near;
        link_word[peer / 64] |= (uint64_t)linked << peer % 64;
        if (is_send) {
            t->bytes_near += near ? bytes : 0;
            t->bytes_messages += near ? 0 : bytes;
            t->messages += !near;
        }
    }
}

/* What others need to know to choose like this rank: who is near, how its largest item lies. */
static void describe(hd_geometry *out, uint64_t *link_word, hd_transfer *t, int64_t footprint_bytes)
{
    out->adds = t->adds;
    out->clears = t->clears;
    out->footprint_bytes = footprint_bytes;
    note_peers(out, link_word, t, &t->send, 1);
    note_peers(out, link_word, t, &t->recv, 0);
    for (int i = 0; i < t->recv.count; i++) {
        hd_copy copy = t->recv.item[i].copy;
        if (t->adds) {
            hd_copy_walk(&copy, HD_SIDE_DST);
        }
        if (hd_copy_bytes(&copy) > out->largest_bytes) {
            out->largest_bytes = hd_copy_bytes(&copy);
            out->run_bytes = copy.run_bytes;
            out->src_stretch_bytes = hd_copy_stretch(&copy, HD_SIDE_SRC);
            out->dst_stretch_bytes = hd_copy_stretch(&copy, HD_SIDE_DST);
        }
    }
}

/* Ranks that this one is connected with by links: a refusal reaches all of them before anything moves. */
static void find_component(hd_channel *c, const survey *s)
{
    enum { SEEN = 1, VISITED = 2 };
    memset(c->component, 0, (size_t)c->nranks);
    c->component[c->rank] = SEEN;
    for (int grew = 1; grew;) {
        grew = 0;
        for (int r = 0; r < c->nranks; r++) {
            const uint64_t *link_word = link_words(s, s->all + (size_t)r * s->record_bytes);
            for (int k = 0; c->component[r] == SEEN && k < c->nranks; k++) {
                if (!c->component[k] && (link_word[k / 64] >> k % 64 & 1)) {
                    c->component[k] = SEEN;
                    grew = 1;
                }
            }
            c->component[r] = c->component[r] ? VISITED : 0;
        }
    }
    for (int r = 0; r < c->nranks; r++) {
        c->component[r] = c->component[r] == VISITED && r != c->rank;
    }
}

/* --- one transfer ------------------------------------------------------------------------------------------------- */

static heddle_status take_items(hd_items *out, const hd_items *items)
{
    heddle_status st =
        hd_alloc((void **)&out->item, (size_t)items->count + 1, sizeof *out->item, "items of a transfer");
    if (st == HEDDLE_OK && items->count > 0) {
        memcpy(out->item, items->item, (size_t)items->count * sizeof *out->item);
        out->count = items->count;
    }
    return st;
}

/* Own copy of what was asked for: the caller's lists end with the call. */
static heddle_status take(hd_transfer **out, hd_channel *channel, const hd_transfer_spec *spec)
{
    heddle_status st = HEDDLE_OK;
    hd_transfer *t = NULL;
    if (spec->space != HEDDLE_SPACE_HOST) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "a %s of memory in space %d: ways between ranks lead from host memory (%d)",
                       channel->options.what, (int)spec->space, (int)HEDDLE_SPACE_HOST);
    }
    HD_TRY(hd_alloc((void **)&t, 1, sizeof *t, "a transfer"));
    *out = t;
    t->channel = channel;
    t->src_bytes = spec->src_bytes;
    t->dst_bytes = spec->dst_bytes;
    t->space = spec->space;
    t->kernels = spec->kernels;
    t->add = spec->add;
    t->add_streamed = spec->add_streamed;
    t->adds = spec->adds;
    t->lends = spec->lends;
    t->any_src = spec->any_src;
    t->any_dst = spec->any_dst;
    t->clears = spec->clear != NULL;
    if (spec->clear != NULL) {
        t->clear = *spec->clear;
    }
    t->kernel = spec->kernel;
    t->reach = HD_REACH_STAGED;
    t->hint.shared_cache_bytes = (int64_t)heddle_comm_shared_cache_bytes(channel->comm);
    HD_TRY(take_items(&t->send, &spec->send));
    HD_TRY(take_items(&t->recv, &spec->recv));
out:
    return st;
}

void hd_transfer_destroy(hd_transfer *t)
{
    if (t == NULL) {
        return;
    }
    hd_peer_free(t);
    hd_sums_free(&t->sum);
    hd_mail_free(&t->mail);
    hd_mail_free(&t->spare);
    hd_private_free(&t->own);
    if (t->staging != NULL) {
        heddle_buffer_free(t->channel->comm, t->staging);
    }
    HD_FREE_ALL(t->send.item, t->recv.item, t);
}

/* The order matters: staging is reserved by the first three and allocated once, at the end. */
static heddle_status build(hd_transfer *t)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(t->any_mail ? hd_mail_build(t, 0) : HEDDLE_OK);
    HD_TRY(hd_peer_build(t));
    HD_TRY(t->adds ? hd_sums_build(t) : HEDDLE_OK);
    t->own.is_private = t->any_src && !hd_comm_shares_address_space(t->channel->comm);
    HD_TRY(t->own.is_private || t->any_staged ? hd_private_build(t) : HEDDLE_OK);
    if (t->staging_bytes > 0) {
        HD_TRY(heddle_buffer_alloc((void **)&t->staging, t->channel->comm, (size_t)t->staging_bytes, t->space));
    }
out:
    return st;
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

static heddle_status build_all(hd_transfer **transfer, int n, hd_channel *c, const survey *s)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < n; i++) {
        hd_peer_choose(transfer[i], geometry(s->all, i), s->record_bytes);
        c->any_mail |= transfer[i]->any_mail;
    }
    if (c->options.refusal != NULL && c->guard == NULL) {
        find_component(c, s);
        c->guard = transfer[0];
        c->guard->is_guard = 1;
    }
    for (int i = 0; i < n; i++) {
        HD_TRY(build(transfer[i]));
    }
out:
    return st;
}

/* Links and exchanges are collective, so all ranks come here or none. */
static heddle_status open_ways(hd_transfer **transfer, int n, hd_channel *c)
{
    heddle_status st = HEDDLE_OK;
    int any_link = 0;
    for (int i = 0; i < n; i++) {
        any_link |= transfer[i]->any_near | transfer[i]->any_staged;
    }
    if (any_link && c->link == NULL) {
        HD_TRY(hd_link_create(&c->link, c->comm));
        hd_link_serves(c->link, c->call, c->options.line);
    }
    for (int i = 0; i < n; i++) {
        hd_mail *mail = &transfer[i]->mail;
        if (transfer[i]->any_mail) {
            HD_TRY(hd_exchange_create(&mail->exchange, c->comm, mail->message, mail->nmessages));
        }
    }
out:
    return st;
}

heddle_status hd_transfers_create(hd_transfer **out, hd_channel *c, const hd_transfer_spec *spec, int n,
                                  heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    survey s = {0};
    memset(out, 0, (size_t)n * sizeof *out);
    for (int i = 0; i < n && mine == HEDDLE_OK; i++) {
        mine = take(&out[i], c, &spec[i]);
    }
    if (mine == HEDDLE_OK) {
        mine = survey_alloc(&s, c->nranks, n);
    }
    HD_TRY(hd_comm_agree(c->comm, mine));
    for (int i = 0; i < n; i++) {
        describe(geometry(s.own, i), link_words(&s, s.own), out[i], spec[i].footprint_bytes);
    }
    HD_TRY(hd_comm_allgather_or_abort(c->comm, s.own, s.all, s.record_bytes));
    HD_TRY(hd_comm_agree(c->comm, build_all(out, n, c, &s)));
    HD_TRY(hd_comm_agree(c->comm, open_ways(out, n, c)));
out:
    for (int i = 0; i < n && st != HEDDLE_OK; i++) {
        c->guard = c->guard == out[i] ? NULL : c->guard;
        hd_transfer_destroy(out[i]);
        out[i] = NULL;
    }
    hd_free(s.own);
    hd_free(s.all);
    return st;
}

/* --- what was chosen ---------------------------------------------------------------------------------------------- */

void hd_transfer_get_info(hd_transfer_info *out, const hd_transfer *t)
{
    *out = (hd_transfer_info){.bytes_near = t->bytes_near,
                              .bytes_messages = t->bytes_messages,
                              .messages = t->messages,
                              .workspace_bytes = t->staging_bytes + t->mail.packed_bytes,
                              .any_near = t->any_near,
                              .any_messages = t->any_mail || t->any_staged,
                              .any_mail = t->any_mail,
                              .any_adds = t->any_adds,
                              .adds = t->adds,
                              .push = t->push,
                              .walk_src = t->walk_src,
                              .is_open = t->is_open,
                              .streams = t->streams,
                              .is_private = t->own.is_private,
                              .reach = t->reach,
                              .lanes = &t->lanes,
                              .pack = &t->own.pack,
                              .hint = t->hint};
}

void hd_transfer_use_kernel(hd_transfer *t, const hd_copy_kernel *kernel, const hd_copy_hint *hint)
{
    hd_lanes_choose(&t->lanes, kernel, hint);
    hd_lanes_choose(&t->own.pack, kernel, hint);
    hd_lanes_choose(&t->own.pack_mail, kernel, hint);
    for (int i = 0; i < t->own.nfrom; i++) {
        hd_lanes_choose(&t->own.direct[i], kernel, hint);
        hd_lanes_choose(&t->own.staged[i], kernel, hint);
    }
}

void hd_transfer_use_reach(hd_transfer *t, hd_reach reach)
{
    t->reach = reach;
}
