/* Calls by name, each thread's own: what the others do meanwhile (those that look after ranks ask for events) changes
 * no number. */
#include "sim.h"

enum { MOST_NAMES = 96, MOST_THREADS = 1024 };

/* Not the threads' own variables, of which a library that is loaded has little room (of_loaded in CMakeLists.txt). */
static struct count {
    const char *name;
    int64_t calls;
} counted[MOST_THREADS][MOST_NAMES];
static _Atomic int threads;
static _Thread_local int thread; /* from 1; 0: none yet */

/* NULL: of too many threads, whose calls nobody counts. */
static struct count *own(void)
{
    thread = thread == 0 ? atomic_fetch_add(&threads, 1) + 1 : thread;
    return thread <= MOST_THREADS ? counted[thread - 1] : NULL;
}

void hd_sim_count_call(const char *name)
{
    struct count *all = own();
    int at = 0;
    while (all != NULL && all[at].name != NULL && !hd_sim_is_same(all[at].name, name)) {
        at++;
    }
    if (at == MOST_NAMES - 1) {
        hd_sim_die("calls of more than %d names", MOST_NAMES - 1);
    }
    if (all != NULL) {
        all[at].name = name;
        all[at].calls++;
    }
}

const char *hd_sim_calls_by_name(int at, int64_t *calls)
{
    const struct count *all = own();
    *calls = all != NULL ? all[at].calls : 0;
    return all != NULL ? all[at].name : NULL;
}
