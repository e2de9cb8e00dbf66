/* A communicator over somebody's transport table (heddle/sys/transport.h). The transport is asked once who sits on the
 * same host; those ranks then share memory as in "shm", and the transport carries what goes to the others. */
#include "runtime/comm/transport/callbacks.h"
#include "runtime/comm/comm_private.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    TAGS = 32768,      /* what every MPI grants */
    POLL_TURNS = 16,   /* a look at the transport costs more than one at memory */
    YIELD_TURNS = 1024 /* a neighbour may keep the core for milliseconds */
};

typedef struct callbacks {
    heddle_transport table;
    void *ctx;
    char name[32];
    hd_comm_ops ops;
    unsigned turns;
    int crowded; /* more ranks than cores on this host: give the core away at once */
    /* An abort from a thread that may not use the transport waits here for the one that may. */
    pthread_t owner;
    pthread_mutex_t lock;
    _Atomic int pending;
    char pending_why[HD_WHY_BYTES];
} callbacks;

/* --- operations --------------------------------------------------------------------------------------------------- */

static callbacks *of(const heddle_comm *comm)
{
    return comm->ctx;
}

static void send_pending(callbacks *c)
{
    if (__builtin_expect(atomic_load(&c->pending), 0)) {
        char why[HD_WHY_BYTES];
        pthread_mutex_lock(&c->lock);
        snprintf(why, sizeof why, "%s", c->pending_why);
        atomic_store(&c->pending, 0);
        pthread_mutex_unlock(&c->lock);
        heddle_ignore(c->table.abort_send(c->ctx, why));
    }
}

static heddle_status callbacks_allgather(heddle_comm *comm, const void *send, void *recv, size_t bytes)
{
    callbacks *c = of(comm);
    send_pending(c);
    return c->table.allgather(c->ctx, send, recv, bytes, hd_comm_deadline_ns(comm, 0));
}

static heddle_status callbacks_sendrecv(heddle_comm *comm, const void *send, size_t send_bytes, int to, void *recv,
                                        size_t recv_bytes, int from)
{
    callbacks *c = of(comm);
    const hd_two_way way = {send, send_bytes, to, recv, recv_bytes, from};
    send_pending(c);
    return hd_callbacks_sendrecv(comm, &c->table, c->ctx, &way);
}

static heddle_status callbacks_exchange_create(heddle_comm *comm, void **out, const heddle_message *messages,
                                               int nmessages, int tag)
{
    callbacks *c = of(comm);
    return c->table.exchange_create(c->ctx, out, messages, nmessages, tag % TAGS);
}

static heddle_status callbacks_exchange_start(heddle_comm *comm, void *exchange, const void *src, void *dst)
{
    callbacks *c = of(comm);
    return c->table.exchange_start(c->ctx, exchange, src, dst);
}

static heddle_status callbacks_exchange_test(heddle_comm *comm, void *exchange, int *done)
{
    callbacks *c = of(comm);
    return c->table.exchange_test(c->ctx, exchange, done);
}

static void callbacks_exchange_destroy(heddle_comm *comm, void *exchange)
{
    callbacks *c = of(comm);
    c->table.exchange_destroy(c->ctx, exchange);
}

static heddle_status callbacks_withdraw(heddle_comm *comm)
{
    callbacks *c = of(comm);
    return c->table.withdraw != NULL ? c->table.withdraw(c->ctx) : HEDDLE_OK;
}

static int callbacks_exchange_missing(heddle_comm *comm, void *exchange, int *peers, int capacity)
{
    callbacks *c = of(comm);
    return c->table.exchange_missing != NULL ? c->table.exchange_missing(c->ctx, exchange, peers, capacity) : 0;
}

static heddle_status callbacks_abort(heddle_comm *comm, const char *why)
{
    callbacks *c = of(comm);
    if (pthread_equal(pthread_self(), c->owner)) {
        return c->table.abort_send(c->ctx, why);
    }
    pthread_mutex_lock(&c->lock);
    hd_copy_text(c->pending_why, sizeof c->pending_why, why);
    atomic_store(&c->pending, 1);
    pthread_mutex_unlock(&c->lock);
    return HEDDLE_OK;
}

static heddle_status hear_abort(const callbacks *c)
{
    int by = -1;
    char why[HD_WHY_BYTES] = "";
    const heddle_status st = c->table.abort_poll(c->ctx, &by, why, sizeof why);
    return st != HEDDLE_OK || by < 0 ? st : hd_fail(HEDDLE_ERR_PEER, "rank %d gave up: %s", by, why);
}

static heddle_status callbacks_check(heddle_comm *comm)
{
    callbacks *c = of(comm);
    if (c == NULL || !pthread_equal(pthread_self(), c->owner)) { /* NULL: being made, all ranks share memory */
        return HEDDLE_OK;
    }
    send_pending(c);
    return c->turns++ % POLL_TURNS == 0 ? hear_abort(c) : HEDDLE_OK;
}

/* Most transports only move while they are asked: looking often is what moves the bytes, and nobody rings when they
 * have come, so no sleeping. */
static void callbacks_relax(heddle_comm *comm, int round)
{
    if (of(comm)->crowded || round % YIELD_TURNS == YIELD_TURNS - 1) {
        sched_yield();
    }
}

static void callbacks_free(callbacks *c)
{
    pthread_mutex_destroy(&c->lock);
    hd_free(c);
}

static void callbacks_destroy(heddle_comm *comm)
{
    callbacks *c = of(comm);
    send_pending(c);
    c->table.destroy(c->ctx);
    callbacks_free(c);
}

static const hd_comm_ops callbacks_ops = {
    .allgather = callbacks_allgather,
    .sendrecv = callbacks_sendrecv,
    .exchange_create = callbacks_exchange_create,
    .exchange_start = callbacks_exchange_start,
    .exchange_test = callbacks_exchange_test,
    .exchange_destroy = callbacks_exchange_destroy,
    .exchange_missing = callbacks_exchange_missing,
    .withdraw = callbacks_withdraw,
    .abort = callbacks_abort,
    .check = callbacks_check,
    .relax = callbacks_relax,
    .destroy = callbacks_destroy,
};

/* --- making ------------------------------------------------------------------------------------------------------- */

static heddle_status join_look(void *ctx)
{
    return hear_abort(ctx);
}

/* A rank that fails gives up (tell_failure), of which others hear wherever they wait: on its host while they meet, on
 * others when all tell one another that they have met. */
static heddle_status join_together(hd_group **group, hd_join *join, callbacks *c)
{
    heddle_status st = HEDDLE_OK;
    char met = 1, *all = NULL;
    HD_TRY(hd_alloc((void **)&all, (size_t)c->table.size, sizeof met, "ranks that have met"));
    join->look = join_look;
    join->ctx = c;
    HD_TRY(hd_group_join(group, join));
    st = c->table.allgather(c->ctx, &met, all, sizeof met, join->deadline_ns);
out:
    if (st != HEDDLE_OK) {
        hd_group_destroy(*group);
        *group = NULL;
    }
    hd_free(all);
    return st;
}

/* The ranks of this host, in order; the first one's random bytes are the key they meet under. */
static heddle_status make_group(hd_group **group, int *member, callbacks *c, const hd_introduction *all,
                                const heddle_comm_options *options, int64_t deadline_ns)
{
    char key[40];
    int *ranks = NULL, n = 0;
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_alloc((void **)&ranks, (size_t)c->table.size, sizeof *ranks, "ranks of this host"));
    for (int r = 0; r < c->table.size; r++) {
        member[r] = -1;
        if (hd_introductions_meet(all, c->table.size, c->table.rank, r, options)) {
            ranks[n] = r;
            member[r] = n++;
        }
    }
    snprintf(key, sizeof key, "%016llx%016llx", (unsigned long long)all[ranks[0]].word[2],
             (unsigned long long)all[ranks[0]].word[3]);
    hd_join join = {
        .key = key,
        .n = n,
        .me = member[c->table.rank],
        .ranks = ranks,
        .deadline_ns = deadline_ns,
        .arena_bytes = options->arena_bytes,
        .interrupt = hd_options_interrupt(options),
    };
    HD_TRY(join_together(group, &join, c));
out:
    hd_free(ranks);
    return st;
}

static heddle_status take_traits(hd_traits *traits, const heddle_transport *t)
{
    const unsigned host = 1u << HEDDLE_SPACE_HOST;
    if (t->link < HEDDLE_LINK_UNKNOWN || t->link > HEDDLE_LINK_NETWORK || t->latency_ns < 0 || t->bytes_per_s < 0 ||
        (t->spaces != 0 && (t->spaces & host) == 0)) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "heddle_comm_from_callbacks: link %d, spaces 0x%x, latency_ns %lld, bytes_per_s %lld; wanted a "
                       "link class, host memory among the spaces, and no negative numbers",
                       (int)t->link, t->spaces, (long long)t->latency_ns, (long long)t->bytes_per_s);
    }
    *traits = (hd_traits){
        .link = t->link,
        .spaces = t->spaces != 0 ? t->spaces : host,
        .stream_ordered = t->stream_ordered,
        .latency_ns = t->latency_ns,
        .bytes_per_s = t->bytes_per_s,
    };
    return HEDDLE_OK;
}

static heddle_status take_table(heddle_transport *t, const heddle_transport *given)
{
    heddle_status st = hd_need(given, "heddle_comm_from_callbacks", "transport");
    *t = (heddle_transport){.struct_bytes = sizeof *t};
    st = st == HEDDLE_OK ? hd_struct_take(t, given, HD_STRUCT(heddle_transport, destroy)) : st;
    if (st != HEDDLE_OK) {
        return st;
    }
    if (t->size < 1 || t->size > HEDDLE_COMM_MAX_RANKS || t->rank < 0 || t->rank >= t->size) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_comm_from_callbacks: rank %d of %d ranks; at most %d ranks", t->rank,
                       t->size, HEDDLE_COMM_MAX_RANKS);
    }
    const struct {
        const char *name;
        int missing;
    } slot[] = {
        {"name", t->name == NULL},
        {"allgather", t->allgather == NULL},
        {"exchange_create", t->exchange_create == NULL},
        {"exchange_start", t->exchange_start == NULL},
        {"exchange_test", t->exchange_test == NULL},
        {"exchange_destroy", t->exchange_destroy == NULL},
        {"sendrecv", t->sendrecv == NULL},
        {"abort_send", t->abort_send == NULL},
        {"abort_poll", t->abort_poll == NULL},
        {"destroy", t->destroy == NULL},
    };
    for (size_t i = 0; i < sizeof slot / sizeof slot[0]; i++) {
        if (slot[i].missing) {
            return hd_fail(HEDDLE_ERR_ARG, "heddle_comm_from_callbacks: slot '%s' of the transport table is NULL",
                           slot[i].name);
        }
    }
    return HEDDLE_OK;
}

static heddle_status callbacks_new(callbacks **out, const heddle_transport *transport, void *ctx)
{
    callbacks *c = NULL;
    heddle_status st = hd_alloc((void **)&c, 1, sizeof *c, "a communicator over callbacks");
    if (st != HEDDLE_OK) {
        return st;
    }
    c->table = *transport;
    c->ctx = ctx;
    snprintf(c->name, sizeof c->name, "%s", transport->name);
    c->table.name = c->name;
    c->ops = callbacks_ops;
    c->ops.name = c->name;
    c->owner = pthread_self();
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return HEDDLE_OK;
}

/* The others wait for this rank; the sentence must survive whatever the transport says on the way. */
static void tell_failure(const heddle_transport *transport, void *ctx)
{
    const hd_sentence why = hd_sentence_keep();
    heddle_ignore(transport->abort_send(ctx, why.text));
    heddle_ignore(hd_sentence_say(&why, HEDDLE_OK));
}

heddle_status heddle_comm_from_callbacks(heddle_comm **out, const heddle_transport *given_table, void *ctx,
                                         const heddle_comm_options *given)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm_options options;
    heddle_transport table;
    hd_traits messages;
    const heddle_transport *transport = &table;
    int others_wait = 0;
    callbacks *c = NULL;
    hd_introduction *all = NULL, mine;
    int *member = NULL;
    hd_group *group = NULL;
    HD_TRY(HD_NEED(out));
    HD_TRY(hd_options_check(&options, given));
    HD_TRY(take_table(&table, given_table));
    HD_TRY(take_traits(&messages, &table));
    others_wait = 1;
    int64_t deadline_ns = hd_now_ns() + hd_options_deadline_ms(&options) * 1000000;
    HD_TRY(callbacks_new(&c, transport, ctx));
    HD_TRY(hd_alloc((void **)&all, (size_t)transport->size, sizeof *all, "introductions of the ranks"));
    HD_TRY(hd_alloc((void **)&member, (size_t)transport->size, sizeof *member, "places of the ranks"));
    HD_TRY(hd_introduce(&mine, &options));
    HD_TRY(transport->allgather(ctx, &mine, all, sizeof mine, deadline_ns));
    HD_TRY(hd_introductions_agree(all, transport->size));
    c->crowded = hd_introductions_on_host(all, transport->size, transport->rank) > sysconf(_SC_NPROCESSORS_ONLN);
    HD_TRY(make_group(&group, member, c, all, &options, deadline_ns));
    const hd_comm_parts parts = {
        .name = c->name,
        .messages = &messages,
        .rank = transport->rank,
        .size = transport->size,
        .ops = &c->ops,
        .ctx = c,
        .group = group,
        .member = member,
        .options = &options,
    };
    HD_TRY(hd_comm_new(out, &parts));
    c = NULL; /* the communicator's now */
out:
    if (others_wait && st != HEDDLE_OK && st != HEDDLE_ERR_MISMATCH && st != HEDDLE_ERR_PEER &&
        st != HEDDLE_ERR_TIMEOUT) {
        tell_failure(transport, ctx);
    }
    if (c != NULL) {
        callbacks_free(c);
    }
    hd_free(member);
    hd_free(all);
    return st;
}
