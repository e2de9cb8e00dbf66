/* Faults for tests: fault(SPEC):WHERE opens WHERE and breaks it on purpose.
 *
 *   SPEC     ITEM, ITEM, ...
 *   ITEM     fail=N[@R]     the N-th transport call (from 1) fails with HEDDLE_ERR_TRANSPORT, once
 *            kill=N[@R]     the rank ends itself by SIGKILL at its N-th call (ranks that are processes)
 *            delay=Tms[@R]  every call waits T milliseconds first (T may have a fraction)
 *            reorder=SEED   every call waits for a random 0 .. 200 us first, so that ranks overtake one another
 *   R        a rank, or * for all (the default)
 *
 * Calls that count: barrier, allgather, allreduce, sendrecv, link post and wait, exchange start and test, buffer alloc,
 * of the communicator and of its axis groups together.
 */
#include "runtime/comm/transport/transport.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALL_RANKS = -1, REORDER_NS = 200000 };

typedef enum fault_kind { FAULT_FAIL, FAULT_KILL, FAULT_DELAY, FAULT_REORDER } fault_kind;

typedef struct item {
    fault_kind kind;
    double number;
    int rank;
} item;

enum { MAX_ITEMS = 16 };

struct hd_fault {
    hd_breaker breaker; /* first: what the communicator has is this */
    item item[MAX_ITEMS];
    int nitems;
    int rank;
    int dies; /* ranks are processes: they can be killed */
    uint64_t calls;
    uint64_t random;
};

static const struct {
    const char *name;
    const char *unit;
    fault_kind kind;
} kinds[] = {{"fail=", "", FAULT_FAIL},
             {"kill=", "", FAULT_KILL},
             {"delay=", "ms", FAULT_DELAY},
             {"reorder=", "", FAULT_REORDER}};

/* One ITEM at *at; NULL: malformed. */
static const char *parse_item(item *out, const char *at)
{
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        size_t length = strlen(kinds[k].name);
        if (strncmp(at, kinds[k].name, length) != 0) {
            continue;
        }
        char *end = NULL;
        out->kind = kinds[k].kind;
        out->rank = ALL_RANKS;
        out->number = strtod(at + length, &end);
        int good = end != at + length && out->number >= 0 && out->number < 1e15 &&
                   strncmp(end, kinds[k].unit, strlen(kinds[k].unit)) == 0;
        if (!good) {
            return NULL;
        }
        at = end + strlen(kinds[k].unit);
        if (at[0] == '@' && at[1] == '*') {
            at += 2;
        } else if (at[0] == '@') {
            long rank = strtol(at + 1, &end, 10);
            if (end == at + 1 || rank < 0 || rank > HEDDLE_COMM_MAX_RANKS) {
                return NULL;
            }
            out->rank = (int)rank;
            at = end;
        }
        return at;
    }
    return NULL;
}

heddle_status hd_fault_parse(hd_fault **out, const char *where, const char **inner)
{
    static const char prefix[] = "fault(";
    *out = NULL;
    *inner = where;
    if (strncmp(where, prefix, sizeof prefix - 1) != 0) {
        return HEDDLE_OK;
    }
    hd_fault *fault = NULL;
    heddle_status st = hd_alloc((void **)&fault, 1, sizeof *fault, "a fault transport");
    if (st != HEDDLE_OK) {
        return st;
    }
    const char *at = where + sizeof prefix - 1;
    while (at != NULL && *at != ')') {
        const char *next = fault->nitems < MAX_ITEMS ? parse_item(&fault->item[fault->nitems++], at) : NULL;
        if (next == NULL || (*next != ',' && *next != ')')) {
            break;
        }
        at = *next == ',' ? next + 1 : next;
    }
    if (at[0] != ')' || at[1] != ':') {
        st = hd_fail(HEDDLE_ERR_PARSE,
                     "column %d of '%s': wanted fail=N[@R], kill=N[@R], delay=Tms[@R] or reorder=SEED, then '):'",
                     (int)(at - where) + 1, where);
        hd_free(fault);
        return st;
    }
    *inner = at + 2;
    *out = fault;
    return HEDDLE_OK;
}

void hd_fault_destroy(hd_fault *fault)
{
    hd_free(fault);
}

static void wait_ns(int64_t ns)
{
    const struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    nanosleep(&t, NULL);
}

static int64_t random_ns(hd_fault *fault)
{
    fault->random = fault->random * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((fault->random >> 33) % REORDER_NS);
}

static heddle_status count_call(hd_breaker *breaker, const char *call)
{
    hd_fault *fault = (hd_fault *)breaker;
    uint64_t now = ++fault->calls;
    for (int i = 0; i < fault->nitems; i++) {
        const item *it = &fault->item[i];
        if (it->rank != ALL_RANKS && it->rank != fault->rank) {
            continue;
        }
        if (it->kind == FAULT_DELAY) {
            wait_ns((int64_t)(it->number * 1e6));
        } else if (it->kind == FAULT_REORDER) {
            wait_ns(random_ns(fault));
        } else if ((uint64_t)it->number == now && it->kind == FAULT_KILL && fault->dies) {
            raise(SIGKILL);
        } else if ((uint64_t)it->number == now) {
            return hd_fail(HEDDLE_ERR_TRANSPORT, "rank %d: injected fault in transport call %llu (%s)", fault->rank,
                           (unsigned long long)now, call);
        }
    }
    return HEDDLE_OK;
}

static void destroy_breaker(hd_breaker *breaker)
{
    hd_fault_destroy((hd_fault *)breaker);
}

void hd_fault_attach(heddle_comm *comm, hd_fault *fault)
{
    fault->breaker = (hd_breaker){.call = count_call, .destroy = destroy_breaker};
    fault->rank = comm->rank;
    fault->dies = comm->group->team == NULL;
    comm->breaker = &fault->breaker;
    for (int i = 0; i < fault->nitems; i++) {
        if (fault->item[i].kind == FAULT_REORDER) {
            fault->random = ((uint64_t)fault->item[i].number * 64 + (uint64_t)comm->rank) * 2654435761u + 1;
        }
    }
}
