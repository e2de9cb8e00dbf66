/* Every way is timed alone: it runs until the caches are its own, then a few samples of it count. All of them once,
 * then the rule's and the fastest others round after round; the winner then runs longer, and must keep the time that it
 * won with. */
#include "runtime/reshard/trial.h"

#include <stdlib.h>

enum {
    BUDGET_NS = 40000000, /* for the rounds of the finalists */
    LONG_NS = 150000000,  /* an execution by messages that takes so long is not repeated for the sake of trials */
    SAMPLE_NS = 20000,    /* shorter executions are repeated */
    MAX_REPEATS = 64,
    SAMPLES = 3,       /* of a way in a round, where caches matter; the median counts */
    MIN_ROUNDS = 7,    /* fewer say little on a busy machine */
    MAIL_ROUNDS = 3,   /* of messages: the slowest of three must be the faster one */
    SECOND_ROUNDS = 4, /* of a second look, which takes longer */
    LONGER = 4,        /* times as many executions before the second look */
    FAR_PERCENT = 25   /* more than was said */
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

static int by_length(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static int64_t median_of(int64_t *ns, int n)
{
    qsort(ns, (size_t)n, sizeof *ns, by_length);
    return ns[n / 2];
}

/* A shared machine changes its speed between rounds, so a way is compared with way 0 of the same round; and it must be
 * the faster one in three rounds of four, or noise would choose. */
int hd_trial_winner(double *share, const int64_t *round_ns, int rounds, int ways)
{
    int best = 0;
    double best_share = (100 - HD_TRIAL_MARGIN_PERCENT) / 100.0;
    for (int w = 0; w < ways; w++) {
        double of_round[HD_TRIAL_ROUNDS];
        for (int i = 0; i < rounds; i++) {
            of_round[i] = (double)round_ns[i * ways + w] / (double)(round_ns[i * ways] + 1);
        }
        qsort(of_round, (size_t)rounds, sizeof *of_round, by_value);
        share[w] = of_round[rounds * 3 / 4];
        if (w > 0 && share[w] < best_share) {
            best = w;
            best_share = share[w];
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

/* How a way is timed. */
typedef struct pace {
    int settle, samples, repeats; /* executions that do not count; samples, each of so many executions */
} pace;

/* By this rank's clock. */
static heddle_status time_way(const hd_trial *t, const pace *by, int way, int64_t *ns)
{
    heddle_status st = HEDDLE_OK;
    int64_t sample[SAMPLES], unheard;
    HD_TRY(t->use(t, t->twin, way));
    HD_TRY(t->run(t, by->settle, &unheard));
    for (int i = 0; i < by->samples; i++) {
        HD_TRY(t->run(t, by->repeats, &sample[i]));
        sample[i] /= by->repeats;
    }
    *ns = median_of(sample, by->samples);
out:
    return st;
}

static int between(int64_t value, int least, int most)
{
    return value < least ? least : value > most ? most : (int)value;
}

/* first_ns: an execution of the rule's way. */
static heddle_status choose_pace(pace *by, int64_t *first_ns, const hd_trial *t)
{
    heddle_status st = HEDDLE_OK;
    const pace once = {1, 1, 1};
    const int settles = t->is_cached && !t->by_messages;
    HD_TRY(time_way(t, &once, 0, first_ns));
    HD_TRY(hd_trial_largest(t->plan, first_ns, 1));
    *by = (pace){settles ? HD_SETTLE : 1, settles ? SAMPLES : 1,
                 between(SAMPLE_NS / (*first_ns + 1) + 1, 1, MAX_REPEATS)};
out:
    return st;
}

/* first: one time of every way. */
static heddle_status choose_finalists(hd_trial *t, const pace *by, int64_t *first)
{
    heddle_status st = HEDDLE_OK;
    for (int w = 0; w < t->ways; w++) {
        HD_TRY(time_way(t, by, w, &first[w]));
    }
    HD_TRY(hd_trial_largest(t->plan, first, t->ways));
    t->nfinalists = hd_trial_finalists(t->finalist, first, t->ways);
out:
    return st;
}

/* What a round takes, by what has been seen. */
static int64_t round_ns(const hd_trial *t, const pace *by, const int64_t *first)
{
    int64_t sum_ns = 1;
    for (int i = 0; i < t->nfinalists; i++) {
        sum_ns += first[t->finalist[i]] * (by->settle + by->samples * by->repeats);
    }
    return sum_ns;
}

/* Round by round; *winner counts finalists. */
static heddle_status compare(int *winner, hd_trial *t, const pace *by)
{
    heddle_status st = HEDDLE_OK;
    int n = t->nfinalists;
    int64_t ns[HD_TRIAL_ROUNDS * HD_TRIAL_FINALISTS];
    for (int r = 0; r < t->rounds; r++) {
        for (int i = 0; i < n; i++) {
            int k = (i + r) % n; /* nobody always comes behind the same one */
            HD_TRY(time_way(t, by, t->finalist[k], &ns[r * n + k]));
        }
    }
    HD_TRY(hd_trial_largest(t->plan, ns, t->rounds * n));
    *winner = hd_trial_winner(t->share, ns, t->rounds, n);
    for (int i = 0; i < n; i++) {
        int64_t of_way[HD_TRIAL_ROUNDS];
        for (int r = 0; r < t->rounds; r++) {
            of_way[r] = ns[r * n + i];
        }
        t->said_ns[i] = median_of(of_way, t->rounds);
    }
out:
    return st;
}

heddle_status hd_trial_run(int *winner, hd_trial *t)
{
    heddle_status st = HEDDLE_OK;
    const int looks = t->by_messages ? 1 : HD_TRIAL_LOOKS, least = t->by_messages ? MAIL_ROUNDS : MIN_ROUNDS;
    int64_t first[HD_TRIAL_WAYS];
    pace by;
    int best = 0;
    *winner = t->nfinalists = t->looks = 0;
    HD_TRY(choose_pace(&by, &t->alone_ns, t));
    t->is_steady = t->by_messages && t->alone_ns > LONG_NS;
    if (t->is_steady) {
        goto out;
    }
    HD_TRY(choose_finalists(t, &by, first));
    for (; t->looks < looks && !t->is_steady; t->looks++) {
        t->rounds =
            between(BUDGET_NS / round_ns(t, &by, first), t->looks == 0 ? least : SECOND_ROUNDS, HD_TRIAL_ROUNDS);
        HD_TRY(compare(&best, t, &by));
        by.settle *= t->by_messages ? 1 : LONGER;
        HD_TRY(time_way(t, &by, t->finalist[best], &t->alone_ns));
        HD_TRY(hd_trial_largest(t->plan, &t->alone_ns, 1));
        t->is_steady = t->alone_ns * 100 <= t->said_ns[best] * (100 + FAR_PERCENT);
    }
    *winner = t->finalist[best];
out:
    return st;
}

heddle_status hd_trial_adopt(const hd_trial *t, int winner)
{
    heddle_status st = t->use(t, t->plan, winner);
    return st == HEDDLE_OK && t->twin != t->plan ? t->use(t, t->twin, winner) : st;
}
