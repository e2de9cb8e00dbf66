/* Calls by name, each thread's own: what the others do meanwhile (those that look after ranks ask for events) changes
 * no number. */
#include "sim.h"

enum { MOST_NAMES = 96 };

static _Thread_local struct {
    const char *name;
    int64_t calls;
} counted[MOST_NAMES];

void hd_sim_count_call(const char *name)
{
    int at = 0;
    while (counted[at].name != NULL && strcmp(counted[at].name, name) != 0) {
        at++;
    }
    if (at == MOST_NAMES - 1) {
        hd_sim_die("calls of more than %d names", MOST_NAMES - 1);
    }
    counted[at].name = name;
    counted[at].calls++;
}

const char *hd_sim_calls_by_name(int at, int64_t *calls)
{
    *calls = counted[at].calls;
    return counted[at].name;
}
