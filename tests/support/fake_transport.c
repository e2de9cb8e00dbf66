#include "fake_transport.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KIND_EXCHANGE = 0, KIND_SENDRECV = 1, KIND_GATHER = 2, WHY_BYTES = 256 };

typedef struct letter {
    struct letter *next;
    int from, kind, tag;
    size_t bytes;
    unsigned char data[];
} letter;

struct fake_world {
    int size;
    pthread_mutex_t lock;
    letter *queue[FAKE_RANKS]; /* oldest first */
    int aborted_by;
    char why[WHY_BYTES];
    int alive;
    int64_t moved[FAKE_RANKS][FAKE_RANKS];
};

typedef struct fake {
    fake_world *world;
    int rank;
    const char *fail_slot;
    int fail_in;
} fake;

typedef struct fake_exchange {
    int nmessages, tag;
    heddle_message *message;
    int *done;
    unsigned char *dst;
} fake_exchange;

static int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static heddle_status counted(fake *f, const char *slot)
{
    if (f->fail_slot != NULL && strcmp(f->fail_slot, slot) == 0 && --f->fail_in == 0) {
        return heddle_set_error(HEDDLE_ERR_TRANSPORT, "rank %d: fake %s fails as asked", f->rank, slot);
    }
    return HEDDLE_OK;
}

static letter *write_letter(int from, int kind, int tag, size_t bytes)
{
    letter *l = malloc(sizeof(*l) + bytes);
    if (l == NULL) {
        abort();
    }
    *l = (letter){.from = from, .kind = kind, .tag = tag, .bytes = bytes};
    return l;
}

static void post(fake_world *w, int to, letter *l)
{
    pthread_mutex_lock(&w->lock);
    letter **end = &w->queue[to];
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = l;
    if (l->kind == KIND_EXCHANGE) {
        w->moved[l->from][to] += (int64_t)l->bytes;
    }
    pthread_mutex_unlock(&w->lock);
}

/* The oldest letter that fits, or NULL. */
static letter *fetch(fake_world *w, int to, int from, int kind, int tag)
{
    letter *found = NULL;
    pthread_mutex_lock(&w->lock);
    for (letter **at = &w->queue[to]; *at != NULL; at = &(*at)->next) {
        if ((*at)->from == from && (*at)->kind == kind && (*at)->tag == tag) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return found;
}

static heddle_status await(fake *f, letter **out, int from, int kind, int64_t deadline_ns)
{
    for (;;) {
        *out = fetch(f->world, f->rank, from, kind, 0);
        if (*out != NULL) {
            return HEDDLE_OK;
        }
        char why[WHY_BYTES];
        pthread_mutex_lock(&f->world->lock);
        int by = f->world->aborted_by;
        memcpy(why, f->world->why, sizeof(why));
        pthread_mutex_unlock(&f->world->lock);
        if (by >= 0 && by != f->rank) {
            return heddle_set_error(HEDDLE_ERR_PEER, "rank %d gave up: %s", by, why);
        }
        if (now_ns() > deadline_ns) {
            return heddle_set_error(HEDDLE_ERR_TIMEOUT, "rank %d: rank %d did not come in time", f->rank, from);
        }
        sched_yield();
    }
}

static heddle_status fake_allgather(void *ctx, const void *send, void *recv, size_t bytes, int64_t deadline_ns)
{
    fake *f = ctx;
    heddle_status st = counted(f, "allgather");
    for (int r = 0; r < f->world->size && st == HEDDLE_OK; r++) {
        letter *l = write_letter(f->rank, KIND_GATHER, 0, bytes);
        memcpy(l->data, send, bytes);
        post(f->world, r, l);
    }
    for (int r = 0; r < f->world->size && st == HEDDLE_OK; r++) {
        letter *l = NULL;
        st = await(f, &l, r, KIND_GATHER, deadline_ns);
        if (st == HEDDLE_OK) {
            memcpy((char *)recv + (size_t)r * bytes, l->data, bytes);
            free(l);
        }
    }
    return st;
}

static heddle_status fake_sendrecv(void *ctx, const void *send, size_t send_bytes, int to, void *recv,
                                   size_t recv_bytes, int from, int64_t deadline_ns)
{
    fake *f = ctx;
    heddle_status st = counted(f, "sendrecv");
    if (st == HEDDLE_OK && to >= 0) {
        letter *l = write_letter(f->rank, KIND_SENDRECV, 0, send_bytes);
        memcpy(l->data, send, send_bytes);
        post(f->world, to, l);
    }
    if (st == HEDDLE_OK && from >= 0) {
        letter *l = NULL;
        st = await(f, &l, from, KIND_SENDRECV, deadline_ns);
        if (st == HEDDLE_OK) {
            if (l->bytes != recv_bytes) {
                st = heddle_set_error(HEDDLE_ERR_TRANSPORT, "%zu bytes came, wanted %zu", l->bytes, recv_bytes);
            } else {
                memcpy(recv, l->data, recv_bytes);
            }
            free(l);
        }
    }
    return st;
}

/* Calls back for every run of a message; to_packed: from the buffer into `packed`, else the other way. */
static void walk(const heddle_message *m, unsigned char *buffer, unsigned char *packed, int to_packed)
{
    int64_t turns = 1;
    for (int i = 0; i < m->nloops; i++) {
        turns *= m->count[i];
    }
    for (int64_t k = 0; k < turns; k++) {
        int64_t rest = k;
        int64_t at = m->offset_bytes;
        for (int i = m->nloops - 1; i >= 0; i--) {
            at += rest % m->count[i] * m->stride_bytes[i];
            rest /= m->count[i];
        }
        memcpy(to_packed ? packed : buffer + at, to_packed ? buffer + at : packed, (size_t)m->run_bytes);
        packed += m->run_bytes;
    }
}

static size_t bytes_of(const heddle_message *m)
{
    int64_t bytes = m->run_bytes;
    for (int i = 0; i < m->nloops; i++) {
        bytes *= m->count[i];
    }
    return (size_t)bytes;
}

static void alive(fake_world *w, int change)
{
    pthread_mutex_lock(&w->lock);
    w->alive += change;
    pthread_mutex_unlock(&w->lock);
}

static heddle_status fake_exchange_create(void *ctx, void **out, const heddle_message *messages, int nmessages, int tag)
{
    fake *f = ctx;
    heddle_status st = counted(f, "exchange_create");
    if (st != HEDDLE_OK) {
        return st;
    }
    fake_exchange *x = calloc(1, sizeof(*x));
    x->nmessages = nmessages;
    x->tag = tag;
    x->message = calloc((size_t)nmessages + 1, sizeof(*x->message));
    x->done = calloc((size_t)nmessages + 1, sizeof(int));
    if (nmessages > 0) {
        memcpy(x->message, messages, (size_t)nmessages * sizeof(*messages));
    }
    alive(f->world, 1);
    *out = x;
    return HEDDLE_OK;
}

static heddle_status fake_exchange_start(void *ctx, void *exchange, const void *src, void *dst)
{
    fake *f = ctx;
    fake_exchange *x = exchange;
    heddle_status st = counted(f, "exchange_start");
    x->dst = dst;
    for (int i = 0; i < x->nmessages && st == HEDDLE_OK; i++) {
        const heddle_message *m = &x->message[i];
        size_t bytes = bytes_of(m);
        x->done[i] = m->is_send || bytes == 0;
        if (m->is_send && bytes > 0) {
            letter *l = write_letter(f->rank, KIND_EXCHANGE, x->tag, bytes);
            walk(m, (unsigned char *)(uintptr_t)src, l->data, 1);
            post(f->world, m->peer, l);
        }
    }
    return st;
}

static heddle_status fake_exchange_test(void *ctx, void *exchange, int *done)
{
    fake *f = ctx;
    fake_exchange *x = exchange;
    heddle_status st = counted(f, "exchange_test");
    *done = 1;
    for (int i = 0; i < x->nmessages && *done && st == HEDDLE_OK;
         i++) { /* in order: the next one may be of this pair */
        letter *l = x->done[i] ? NULL : fetch(f->world, f->rank, x->message[i].peer, KIND_EXCHANGE, x->tag);
        if (l != NULL) {
            if (l->bytes != bytes_of(&x->message[i])) {
                st = heddle_set_error(HEDDLE_ERR_TRANSPORT, "message %d has %zu bytes, wanted %zu", i, l->bytes,
                                      bytes_of(&x->message[i]));
            } else {
                walk(&x->message[i], x->dst, l->data, 0);
            }
            x->done[i] = 1;
            free(l);
        }
        *done = x->done[i];
    }
    return st;
}

static void fake_exchange_destroy(void *ctx, void *exchange)
{
    fake *f = ctx;
    fake_exchange *x = exchange;
    if (x != NULL) {
        free(x->message);
        free(x->done);
        free(x);
        alive(f->world, -1);
    }
}

static heddle_status fake_abort_send(void *ctx, const char *why)
{
    fake *f = ctx;
    pthread_mutex_lock(&f->world->lock);
    if (f->world->aborted_by < 0) {
        snprintf(f->world->why, WHY_BYTES, "%s", why);
        f->world->aborted_by = f->rank;
    }
    pthread_mutex_unlock(&f->world->lock);
    return HEDDLE_OK;
}

static heddle_status fake_abort_poll(void *ctx, int *aborted_by, char *why, size_t why_bytes)
{
    fake *f = ctx;
    pthread_mutex_lock(&f->world->lock);
    *aborted_by = f->world->aborted_by == f->rank ? -1 : f->world->aborted_by;
    snprintf(why, why_bytes, "%s", f->world->why);
    pthread_mutex_unlock(&f->world->lock);
    return HEDDLE_OK;
}

static void fake_destroy(void *ctx)
{
    fake *f = ctx;
    alive(f->world, -1);
    free(f);
}

/* --- the world ---------------------------------------------------------------------------------------------------- */

fake_world *fake_world_create(int size)
{
    fake_world *w = calloc(1, sizeof(*w));
    w->size = size;
    w->aborted_by = -1;
    pthread_mutex_init(&w->lock, NULL);
    return w;
}

void fake_world_destroy(fake_world *world)
{
    for (int r = 0; r < world->size; r++) {
        while (world->queue[r] != NULL) {
            letter *next = world->queue[r]->next;
            free(world->queue[r]);
            world->queue[r] = next;
        }
    }
    pthread_mutex_destroy(&world->lock);
    free(world);
}

void *fake_rank(fake_world *world, int rank, heddle_transport *table)
{
    fake *f = calloc(1, sizeof(*f));
    f->world = world;
    f->rank = rank;
    alive(world, 1);
    *table = (heddle_transport){
        .struct_bytes = sizeof(*table),
        .name = "fake",
        .rank = rank,
        .size = world->size,
        .allgather = fake_allgather,
        .exchange_create = fake_exchange_create,
        .exchange_start = fake_exchange_start,
        .exchange_test = fake_exchange_test,
        .exchange_destroy = fake_exchange_destroy,
        .sendrecv = fake_sendrecv,
        .abort_send = fake_abort_send,
        .abort_poll = fake_abort_poll,
        .destroy = fake_destroy,
        .link = HEDDLE_LINK_NETWORK,
        .latency_ns = 25000,
        .bytes_per_s = 12500000000,
    };
    return f;
}

void fake_fail_at(void *ctx, const char *slot, int n)
{
    fake *f = ctx;
    f->fail_slot = slot;
    f->fail_in = n;
}

int64_t fake_bytes(const fake_world *world, int from, int to)
{
    return world->moved[from][to];
}

int fake_alive(const fake_world *world)
{
    return world->alive;
}
