/* Ways are timed by turns: all of them a few times, then the rule's and the fastest others until the budget is spent.
 */
#include "runtime/reshard/trial.h"

#include <stdlib.h>

enum {
    BUDGET_NS = 40000000, /* for the rounds of the finalists */
    SAMPLE_NS = 20000,    /* shorter executions are repeated */
    MAX_REPEATS = 64,
    FIRST_ROUNDS = 3, /* that choose the finalists */
    MIN_ROUNDS = 11,  /* fewer say nothing on a busy machine */
    MARGIN_PERCENT = 5,
    WARM_CACHES = 2 /* up to so many shared caches a sample starts with an execution that does not count */
};

/* --- decisions ---------------------------------------------------------------------------------------------------- */

int hd_trial_finalists(int *out, const int64_t *ns, int ways)
{
    int n = 0;
    for (int w = 0; w < ways; w++) {
        int faster = 0; /* others */
        for (int other = 1; other < ways; other++) {
            faster += ns[other] < ns[w] || (ns[other] == ns[w] && other < w);
        }
        if (w == 0 || faster < HD_TRIAL_FINALISTS - 1) {
            out[n++] = w;
        }
    }
    return n;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A shared machine changes its speed between rounds, so a way is compared with way 0 of the same round; and it must be
 * the faster one in three rounds of four, or noise would choose. */
int hd_trial_winner(const int64_t *round_ns, int rounds, int ways)
{
    int best = 0;
    double best_share = (100 - MARGIN_PERCENT) / 100.0;
    for (int w = 1; w < ways; w++) {
        double share[HD_TRIAL_ROUNDS];
        for (int i = 0; i < rounds; i++) {
            share[i] = (double)round_ns[i * ways + w] / (double)(round_ns[i * ways] + 1);
        }
        qsort(share, (size_t)rounds, sizeof *share, by_value);
        if (share[rounds * 3 / 4] < best_share) {
            best = w;
            best_share = share[rounds * 3 / 4];
        }
    }
    return best;
}

/* --- timing ------------------------------------------------------------------------------------------------------- */

heddle_status hd_trial_largest(heddle_reshard *plan, int64_t *value, int n)
{
    heddle_status st = HEDDLE_OK;
    int64_t *all = NULL;
    size_t values = (size_t)plan->nranks * (size_t)n;
    HD_TRY(hd_comm_agree(plan->comm, hd_alloc((void **)&all, values, sizeof *all, "trial times")));
    HD_TRY(hd_comm_allgather_or_abort(plan->comm, value, all, (size_t)n * sizeof *value));
    for (int r = 0; r < plan->nranks; r++) {
        for (int i = 0; i < n; i++) {
            int64_t theirs = all[(size_t)r * (size_t)n + (size_t)i];
            value[i] = theirs > value[i] ? theirs : value[i];
        }
    }
out:
    hd_free(all);
    return st;
}

static heddle_status sample(const hd_trial *t, int repeats, int64_t *ns)
{
    heddle_status st = HEDDLE_OK;
    int64_t start = hd_now_ns();
    for (int i = 0; i < repeats; i++) {
        HD_TRY(hd_plan_run(t->twin, t->src, t->dst));
    }
    *ns = (hd_now_ns() - start) / repeats;
out:
    return st;
}

/* How ways are timed by turns. */
typedef struct turns {
    const int *way; /* NULL: all */
    int ways, rounds, repeats;
    int warms; /* the way before leaves the caches in its own state: one execution before does not count */
} turns;

/* ns[rounds][ways] */
static heddle_status take_turns(const hd_trial *t, const turns *by, int64_t *ns)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < by->rounds * by->ways; i++) {
        int w = i % by->ways;
        HD_TRY(t->use(t, t->twin, by->way != NULL ? by->way[w] : w));
        if (by->warms) {
            HD_TRY(sample(t, 1, &ns[i]));
        }
        HD_TRY(sample(t, by->repeats, &ns[i]));
    }
    st = hd_trial_largest(t->plan, ns, by->rounds * by->ways);
out:
    return st;
}

static int64_t shortest(const int64_t *ns, int n)
{
    int64_t least = ns[0];
    for (int i = 1; i < n; i++) {
        least = ns[i] < least ? ns[i] : least;
    }
    return least;
}

static int between(int64_t value, int least, int most)
{
    return value < least ? least : value > most ? most : (int)value;
}

/* first: one time of every way, the fastest of what has been seen afterwards. */
static heddle_status choose_finalists(hd_trial *t, turns *by, int64_t *first)
{
    heddle_status st = HEDDLE_OK;
    int64_t ns[FIRST_ROUNDS * HD_TRIAL_WAYS];
    if (t->ways > HD_TRIAL_FINALISTS) {
        by->rounds = FIRST_ROUNDS;
        HD_TRY(take_turns(t, by, ns));
        for (int w = 0; w < t->ways; w++) {
            first[w] = ns[w];
            for (int i = 1; i < FIRST_ROUNDS; i++) {
                first[w] = ns[i * t->ways + w] < first[w] ? ns[i * t->ways + w] : first[w];
            }
        }
    }
    t->nfinalists = hd_trial_finalists(t->finalist, first, t->ways);
    by->way = t->finalist;
    by->ways = t->nfinalists;
out:
    return st;
}

heddle_status hd_trial_run(int *winner, hd_trial *t)
{
    heddle_status st = HEDDLE_OK;
    int64_t first[HD_TRIAL_WAYS], ns[HD_TRIAL_ROUNDS * HD_TRIAL_FINALISTS], sum_ns = 0;
    turns by = {.ways = t->ways, .rounds = 1, .repeats = 1, .warms = 1};
    HD_TRY(take_turns(t, &by, first));
    by.repeats = between(SAMPLE_NS / (shortest(first, t->ways) + 1) + 1, 1, MAX_REPEATS);
    hd_transfer_info info;
    hd_transfer_get_info(&info, t->twin->transfer[0]);
    by.warms = info.hint.footprint_bytes <= WARM_CACHES * info.hint.shared_cache_bytes;
    HD_TRY(choose_finalists(t, &by, first));
    for (int i = 0; i < t->nfinalists; i++) {
        sum_ns += first[t->finalist[i]] * by.repeats;
    }
    by.rounds = between(BUDGET_NS / ((1 + by.warms) * sum_ns + 1), MIN_ROUNDS, HD_TRIAL_ROUNDS);
    HD_TRY(take_turns(t, &by, ns));
    for (int i = 0; i < t->nfinalists; i++) {
        t->best_ns[i] = first[t->finalist[i]];
        for (int r = 0; r < by.rounds; r++) {
            t->best_ns[i] = ns[r * by.ways + i] < t->best_ns[i] ? ns[r * by.ways + i] : t->best_ns[i];
        }
    }
    *winner = t->finalist[hd_trial_winner(ns, by.rounds, by.ways)];
out:
    return st;
}

heddle_status hd_trial_adopt(const hd_trial *t, int winner)
{
    heddle_status st = t->use(t, t->plan, winner);
    return st == HEDDLE_OK && t->twin != t->plan ? t->use(t, t->twin, winner) : st;
}
