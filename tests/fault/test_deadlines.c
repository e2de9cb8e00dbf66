/* Deadlines of what lives longer than they do, and deadlines of its own of what waits: of every kind that ranks
 * make together and use again (living_things.h). */
#include "case.h"
#include "check.h"
#include "fake_transport.h"
#include "living_things.h"
#include "time_limit.h"

#include "runtime/comm/comm_internal.h"

#include <stdatomic.h>
#include <time.h>

enum { LATE = 1, MOST_WORDS = 64, MOST_TRIES = 3 };
static const double SHORT_S = 0.03, LONG_S = 60, LIMIT_S = 8, LIFE_S = 1;

static int64_t ms(double seconds)
{
    return hd_test_wait_ns(seconds) / 1000000;
}

static void sleep_ms(int64_t n)
{
    nanosleep(&(struct timespec){.tv_sec = n / 1000, .tv_nsec = n % 1000 * 1000000}, NULL);
}

/* --- a rank that stops before its n-th word: a flag or a message ------------------------------------------------ */

/* Ranks are threads of the case's process. */
static _Thread_local int words, stops_at;
static _Thread_local hd_comm_view view;
static atomic_int begun, told, ended, waited_out; /* ranks; `told`: that somebody is late */
static int others;

/* Until another rank has given up: one that does waits for a copy that this one has announced. */
static void stop(void)
{
    const int64_t end_ns = hd_now_ns() + hd_test_limit_ns(LIMIT_S);
    while (atomic_load(view.alarm) == 0 && atomic_load(&told) == 0 && atomic_load(&ended) < others &&
           atomic_load(&waited_out) == 0) {
        if (hd_now_ns() > end_ns) {
            atomic_store(&waited_out, 1);
        }
        sleep_ms(1);
    }
}

static void say_word(void)
{
    if (++words == stops_at) {
        stop();
    }
}

heddle_status __real_hd_link_post(hd_link *link, int peer, int slot, uint64_t sequence, const uint64_t *word, int n);
heddle_status __wrap_hd_link_post(hd_link *link, int peer, int slot, uint64_t sequence, const uint64_t *word, int n);
heddle_status __wrap_hd_link_post(hd_link *link, int peer, int slot, uint64_t sequence, const uint64_t *word, int n)
{
    say_word();
    return __real_hd_link_post(link, peer, slot, sequence, word, n);
}

heddle_status __real_hd_exchange_start(hd_exchange *exchange, const void *src, void *dst);
heddle_status __wrap_hd_exchange_start(hd_exchange *exchange, const void *src, void *dst);
heddle_status __wrap_hd_exchange_start(hd_exchange *exchange, const void *src, void *dst)
{
    say_word();
    return __real_hd_exchange_start(exchange, src, dst);
}

typedef struct stopping {
    const living *of;
    int at;              /* the word before which the late rank stops; 0: before all, -1: never */
    int64_t deadline_ms; /* of the thing; 0: the communicator's */
    int words;           /* of the late rank */
    _Atomic int64_t waited_ns;
} stopping;

/* Sentences call ranks by their numbers in the communicator that the user opened. */
static int names_only(int first, int nranks)
{
    int rank, names = 0;
    for (const char *at = heddle_last_error(); (at = strstr(at, "rank ")) != NULL; at++) {
        names++;
        if (sscanf(at, "rank %d", &rank) == 1 && (rank < first || rank >= first + nranks)) {
            return 0;
        }
    }
    return names > 0;
}

/* Whoever waits for the late rank is told so, or that another has given up; nobody else is. */
static heddle_status one_stops_of(heddle_comm *comm, stopping *s, int first)
{
    const living *of = s->of;
    const int is_late = heddle_comm_rank(comm) == LATE;
    heddle_status st;
    thing *t = calloc(1, sizeof *t);
    CHECK(t != NULL);
    HD_TRY(of->make(t, comm, of, s->deadline_ms));
    HD_TRY(of->use(t, comm, of));
    HD_TRY(heddle_comm_barrier(comm));
    atomic_fetch_add(&begun, 1);
    const int64_t began_ns = hd_now_ns();
    hd_comm_get_view(&view, comm);
    words = 0;
    stops_at = is_late ? s->at : 0;
    if (is_late && s->at == 0) {
        stop();
    }
    st = of->use(t, comm, of);
    if (is_late) {
        s->words = words;
    } else if (st == HEDDLE_ERR_TIMEOUT) {
        atomic_store(&s->waited_ns, hd_now_ns() - began_ns);
        atomic_fetch_add(&told, 1);
    }
    atomic_fetch_add(&ended, !is_late);
    CHECK(st == HEDDLE_OK || (s->at >= 0 && (st == HEDDLE_ERR_TIMEOUT || st == HEDDLE_ERR_PEER)));
    CHECK(st == HEDDLE_OK || names_only(first, of->ranks));
out:
    unmake(t);
    return st == HEDDLE_ERR_TIMEOUT || st == HEDDLE_ERR_PEER ? HEDDLE_OK : st;
}

/* The ranks of the thing are the last ones of twice as many, or all. */
static heddle_status one_stops(heddle_comm *comm, void *arg)
{
    stopping *s = arg;
    const int half = heddle_comm_size(comm) / 2;
    const heddle_mesh mesh = {.naxes = 2, .axis = {{"half", 2}, {"in", half}}};
    heddle_comm *group = NULL;
    heddle_status st;
    if (s->of->ranks > half) {
        return one_stops_of(comm, s, 0);
    }
    HD_TRY(heddle_comm_axis_group(&group, comm, &mesh, 1));
    st = heddle_comm_rank(comm) < half ? HEDDLE_OK : one_stops_of(group, s, half);
out:
    heddle_comm_destroy(group);
    return st;
}

typedef struct way {
    const char *name;
    int force_messages, pretend_hosts, by_callbacks;
    int is_half; /* the thing is of a group */
} way;

static const way ways[] = {{"links", .is_half = 1},
                           {"messages", .force_messages = 1, .by_callbacks = 1},
                           {"two hosts", .pretend_hosts = 2, .by_callbacks = 1}};
enum { BY_MESSAGES = 1, WAYS = sizeof ways / sizeof *ways };

typedef struct run_of {
    heddle_rank_main fn;
    void *arg;
} run_of;

static int fake_rank_runs(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    const run_of *r = arg;
    const heddle_status st = opened == HEDDLE_OK ? r->fn(comm, r->arg) : opened;
    if (st != HEDDLE_OK) {
        print_error("rank %d: %s\n", rank, heddle_last_error());
    }
    return st != HEDDLE_OK;
}

static int run_by(const way *w, int ranks, int64_t deadline_ms, heddle_rank_main fn, void *arg)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.bind = HEDDLE_BIND_NONE;
    options.arena_bytes = 64 << 20;
    options.deadline_ms = deadline_ms;
    options.force_messages = w->force_messages;
    options.pretend_hosts = w->pretend_hosts;
    if (!w->by_callbacks) {
        return heddle_run_ranks_with(ranks, "threads", &options, fn, arg) == HEDDLE_OK;
    }
    fake_world *world = fake_world_create(ranks);
    run_of of = {fn, arg};
    const fake_run run = {.world = world, .options = options, .fn = fake_rank_runs, .arg = &of};
    const int failed = fake_run_ranks(&run, ranks);
    fake_world_destroy(world);
    return failed == 0;
}

/* Where the short deadline is the communicator's, a busy machine may be too slow for what comes before the late word:
 * then it is tried again with a longer one. */
static int run_once(stopping *s, const way *w, int is_own, int64_t short_ms)
{
    const int64_t long_ms = ms(LONG_S);
    s->deadline_ms = is_own ? s->at < 0 ? long_ms : short_ms : 0;
    s->waited_ns = 0;
    begun = told = ended = waited_out = 0;
    others = s->of->ranks - 1;
    return run_by(w, s->of->ranks << w->is_half, is_own || s->at < 0 ? long_ms : short_ms, one_stops, s);
}

/* 1: somebody waited for the late rank's word. */
static int stop_at(stopping *s, const way *w, int is_own)
{
    int64_t short_ms = ms(SHORT_S);
    int ran = run_once(s, w, is_own, short_ms);
    for (int n = 0; n < MOST_TRIES && !is_own && s->at >= 0 && begun < s->of->ranks; n++) {
        short_ms *= 3;
        ran = run_once(s, w, is_own, short_ms);
    }
    if (!ran || waited_out) {
        fail_msg("%s by %s, stopped before word %d: %s", s->of->name, w->name, s->at,
                 waited_out ? "waited beyond the deadline" : heddle_last_error());
    }
    if (told > 0 && s->waited_ns < short_ms * 900000) {
        fail_msg("%s by %s gave up after %lld ns", s->of->name, w->name, (long long)s->waited_ns);
    }
    return told > 0;
}

/* Before each of its words: each may be one that an object within waits for by a deadline of its own. */
static void stop_at_each(const living *of, const way *w)
{
    stopping s = {.of = of, .at = -1};
    int waits = 0;
    stop_at(&s, w, 1);
    const int most = s.words;
    assert_in_range(most, 0, MOST_WORDS);
    for (s.at = 0; s.at <= most; s.at++) {
        waits += stop_at(&s, w, 1);
    }
    if (waits == 0) {
        fail_msg("%s by %s: nobody waits for any of %d words", of->name, w->name, most);
    }
}

HD_CASE(a_deadline_of_its_own_holds_for_every_wait)
{
    for (int i = 0; i < LIVING; i++) {
        for (int w = 0; all_living[i].has_option && w <= BY_MESSAGES; w++) {
            if (hd_goes("%s by %s", all_living[i].name, ways[w].name)) {
                stop_at_each(&all_living[i], &ways[w]);
            }
        }
    }
}

HD_CASE(the_communicators_deadline_holds_for_all)
{
    for (int i = 0; i < LIVING; i++) {
        stopping s = {.of = &all_living[i], .at = 0};
        assert_true(stop_at(&s, &ways[0], 0));
    }
}

/* --- things that live longer than their deadline ---------------------------------------------------------------- */

/* Each is used, rests beyond the deadline, and is used again; one rank is late each time, so that the others look at
 * the clock. Each once with a deadline of its own and once with the communicator's. */
static heddle_status all_live_on(heddle_comm *comm, void *arg)
{
    thing *t[2 * LIVING] = {NULL};
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < 2 * LIVING; i++) {
        const living *of = &all_living[i / 2];
        if (of->ranks == heddle_comm_size(comm) && (i % 2 == 0 || of->has_option)) {
            t[i] = calloc(1, sizeof *t[i]);
            CHECK(t[i] != NULL);
            HD_TRY(of->make(t[i], comm, of, i % 2 == 0 ? 0 : *(const int64_t *)arg));
        }
    }
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 2 * LIVING; i++) {
            const living *of = &all_living[i / 2];
            sleep_ms(t[i] != NULL && heddle_comm_rank(comm) == turn % 2 ? 5 : 0);
            st = t[i] != NULL ? of->use(t[i], comm, of) : HEDDLE_OK;
            if (st != HEDDLE_OK) {
                heddle_ignore(
                    heddle_set_error(st, "%s, used %d times before: %s", of->name, turn, heddle_last_error()));
            }
            HD_TRY(st);
        }
        sleep_ms(turn == 0 ? *(const int64_t *)arg * 10 / 9 : 0);
    }
out:
    for (int i = 0; i < 2 * LIVING; i++) {
        if (t[i] != NULL) {
            unmake(t[i]);
        }
    }
    return st;
}

HD_CASE(things_live_longer_than_their_deadline)
{
    for (int i = 0; i < 2 * WAYS; i++) {
        int64_t deadline_ms = ms(0.9 * LIFE_S);
        int lived = run_by(&ways[i / 2], i % 2 == 0 ? 2 : 4, deadline_ms, all_live_on, &deadline_ms);
        if (!lived) { /* a busy machine? */
            deadline_ms *= 4;
            lived = run_by(&ways[i / 2], i % 2 == 0 ? 2 : 4, deadline_ms, all_live_on, &deadline_ms);
        }
        if (!lived) {
            fail_msg("by %s: %s", ways[i / 2].name, heddle_last_error());
        }
    }
}
