/* Which way of a plan wins, of made-up times and by a made-up clock. */
#include "case.h"
#include "check.h"
#include "runtime/reshard/trial.h"

enum { DIRECTIONS = 4, KERNELS = 5, PAIRS = DIRECTIONS * KERNELS, ROUNDS = 12 };

HD_CASE(the_rules_way_is_always_a_finalist)
{
    int out[HD_TRIAL_FINALISTS];
    const int64_t ns[] = {900, 700, 100, 600, 200, 300, 800, 400};
    const int wanted[] = {0, 2, 4, 5, 7};
    assert_int_equal(hd_trial_finalists(out, ns, 8), 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(out[i], wanted[i]);
    }
}

HD_CASE(few_ways_are_all_finalists)
{
    int out[HD_TRIAL_FINALISTS];
    const int64_t ns[] = {5, 5, 5, 5, 5, 5, 5};
    for (int ways = 1; ways <= 7; ways++) {
        int n = ways < HD_TRIAL_FINALISTS ? ways : HD_TRIAL_FINALISTS;
        assert_int_equal(hd_trial_finalists(out, ns, ways), n);
        for (int i = 0; i < n; i++) {
            assert_int_equal(out[i], i); /* of equals the earlier */
        }
    }
}

/* With the rule's kernel no direction is worth a change, and in the rule's direction no kernel is: who tries one after
 * the other stays where it is. Together, direction 2 and kernel 3 are a fifth faster. */
static int64_t pair_ns(int direction, int kernel)
{
    return direction == 2 && kernel == 3 ? 800 : 1000 + 10 * direction + 7 * kernel;
}

HD_CASE(the_best_pair_is_found)
{
    int64_t first[PAIRS], ns[ROUNDS * HD_TRIAL_FINALISTS];
    int finalist[HD_TRIAL_FINALISTS];
    double share[HD_TRIAL_FINALISTS];
    for (int w = 0; w < PAIRS; w++) {
        first[w] = pair_ns(w / KERNELS, w % KERNELS);
    }
    int n = hd_trial_finalists(finalist, first, PAIRS);
    assert_int_equal(n, HD_TRIAL_FINALISTS);
    for (int r = 0; r < ROUNDS; r++) {
        for (int i = 0; i < n; i++) {
            ns[r * n + i] = (1 + r % 3) * first[finalist[i]]; /* the machine changes its speed from round to round */
        }
    }
    assert_int_equal(finalist[hd_trial_winner(share, ns, ROUNDS, n)], 2 * KERNELS + 3);
}

/* Two ways, of which the other one takes `percent` of the rule's time in `rounds` rounds of twelve, else twice. */
static int wins(int percent, int rounds)
{
    int64_t ns[ROUNDS * 2];
    double share[2];
    for (int r = 0; r < ROUNDS; r++) {
        ns[2 * r] = 100000;
        ns[2 * r + 1] = r < rounds ? 1000 * percent : 200000;
    }
    return hd_trial_winner(share, ns, ROUNDS, 2);
}

HD_CASE(the_rules_way_stays_without_good_reason)
{
    assert_int_equal(wins(100, 12), 0); /* a tie */
    assert_int_equal(wins(96, 12), 0);
    assert_int_equal(wins(94, 12), 1);
    assert_int_equal(wins(50, 9), 0); /* three rounds of four, and one more */
    assert_int_equal(wins(50, 10), 1);
}

HD_CASE(of_two_that_are_faster_the_fastest_wins)
{
    const int64_t ns[] = {100, 80, 70, 75, 200, 160, 140, 150};
    double share[4];
    assert_int_equal(hd_trial_winner(share, ns, 2, 4), 2);
    assert_true(share[2] > 0.68 && share[2] <= 0.70); /* what the sentence says */
}

/* --- a clock that is made up -------------------------------------------------------------------------------------- */

enum { STEPS = 3, ENDLESS = 1 << 20, US = 1000 };

/* What the executions of a way take, one after the other since it came into use. */
typedef struct series {
    struct {
        int executions;
        int64_t us;
    } step[STEPS];
} series;

static struct {
    const series *of_way;
    int way, since;
    int64_t all; /* executions of the trial */
} fake;

static heddle_status use_series(const hd_trial *t, heddle_reshard *plan, int way)
{
    (void)plan;
    fake.of_way = t->of_use;
    fake.way = way;
    fake.since = 0;
    return HEDDLE_OK;
}

static heddle_status run_series(const hd_trial *t, int executions, int64_t *ns)
{
    (void)t;
    *ns = 0;
    for (int i = 0; i < executions; i++, fake.since++, fake.all++) {
        const series *s = &fake.of_way[fake.way];
        int step = 0, before = 0;
        while (fake.since >= before + s->step[step].executions) {
            before += s->step[step++].executions;
        }
        *ns += s->step[step].us * US;
    }
    return HEDDLE_OK;
}

static heddle_status try_series_by(hd_trial *t, int *winner, heddle_comm *comm, const series *of_way, int ways,
                                   int by_messages)
{
    heddle_reshard plan = {.comm = comm, .nranks = heddle_comm_size(comm)};
    *t = (hd_trial){.plan = &plan, .twin = &plan, .is_cached = 1, .use = use_series, .run = run_series};
    t->by_messages = by_messages;
    t->of_use = of_way;
    t->ways = ways;
    fake.all = 0;
    heddle_status st = hd_trial_run(winner, t);
    t->plan = t->twin = NULL;
    return st;
}

static heddle_status try_series(hd_trial *t, int *winner, heddle_comm *comm, const series *of_way, int ways)
{
    return try_series_by(t, winner, comm, of_way, ways, 0);
}

/* As recorded of 2 MB on a Zen 4: plain stores behind non-temporal ones fetch their lines once more, and non-temporal
 * ones behind plain ones find them at hand. Who times by turns sees the wrong one win. */
HD_RANK_CASE(each_way_is_timed_alone, "1 self")
{
    const series ways[] = {{{{1, 93}, {1, 53}, {ENDLESS, 30}}}, {{{2, 25}, {1, 40}, {ENDLESS, 77}}}};
    hd_trial t;
    int winner = -1;
    CHECK_OR_RETURN(try_series(&t, &winner, comm, ways, 2) == HEDDLE_OK);
    CHECK_OR_RETURN(winner == 0);
    CHECK_OR_RETURN(t.said_ns[0] == 30 * US); /* what executions take */
    CHECK_OR_RETURN(t.said_ns[1] == 77 * US);
    CHECK_OR_RETURN(t.is_steady && t.looks == 1);
    return HEDDLE_OK;
}

HD_RANK_CASE(a_way_that_cannot_keep_its_time_is_looked_at_again, "1 self")
{
    const series ways[] = {{{{ENDLESS, 100}}}, {{{20, 50}, {ENDLESS, 300}}}, {{{ENDLESS, 80}}}};
    hd_trial t;
    int winner = -1;
    CHECK_OR_RETURN(try_series(&t, &winner, comm, ways, 3) == HEDDLE_OK);
    CHECK_OR_RETURN(winner == 2);
    CHECK_OR_RETURN(t.said_ns[1] == 300 * US);
    CHECK_OR_RETURN(t.is_steady && t.looks == 2);
    return HEDDLE_OK;
}

HD_RANK_CASE(what_is_never_steady_is_said_and_ends, "1 self")
{
    const series ways[] = {{{{ENDLESS, 400}}}, {{{20, 50}, {50, 100}, {ENDLESS, 300}}}};
    hd_trial t;
    int winner = -1;
    CHECK_OR_RETURN(try_series(&t, &winner, comm, ways, 2) == HEDDLE_OK);
    CHECK_OR_RETURN(!t.is_steady && t.looks == HD_TRIAL_LOOKS);
    CHECK_OR_RETURN(t.alone_ns == 300 * US);
    CHECK_OR_RETURN(fake.all < 20000);
    return HEDDLE_OK;
}

HD_RANK_CASE(long_executions_are_few, "1 self")
{
    const series ways[] = {{{{ENDLESS, 90000}}}, {{{ENDLESS, 50000}}}};
    hd_trial t;
    int winner = -1;
    CHECK_OR_RETURN(try_series(&t, &winner, comm, ways, 2) == HEDDLE_OK);
    CHECK_OR_RETURN(winner == 1);
    CHECK_OR_RETURN(fake.all < 250);
    return HEDDLE_OK;
}

/* A slow network: 24 MB/s made 170 s of a hundred executions each for thirteen edges of 600 KB. */
HD_RANK_CASE(messages_are_timed_a_few_times, "1 self")
{
    const series slow[] = {{{{ENDLESS, 24000}}}, {{{ENDLESS, 20000}}}},
                 slower[] = {{{{ENDLESS, 200000}}}, {{{ENDLESS, 20000}}}};
    hd_trial t;
    int winner = -1;
    CHECK_OR_RETURN(try_series_by(&t, &winner, comm, slow, 2, 1) == HEDDLE_OK);
    CHECK_OR_RETURN(winner == 1 && t.is_steady);
    CHECK_OR_RETURN(fake.all < 25);
    CHECK_OR_RETURN(try_series_by(&t, &winner, comm, slower, 2, 1) == HEDDLE_OK);
    CHECK_OR_RETURN(winner == 0 && t.nfinalists == 0 && t.is_steady);
    CHECK_OR_RETURN(fake.all == 2);
    return HEDDLE_OK;
}
