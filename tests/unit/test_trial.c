/* Which way of a plan wins, of made-up times. */
#include "case.h"
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
    assert_int_equal(finalist[hd_trial_winner(ns, ROUNDS, n)], 2 * KERNELS + 3);
}

/* Two ways, of which the other one takes `percent` of the rule's time in `rounds` rounds of twelve, else twice. */
static int wins(int percent, int rounds)
{
    int64_t ns[ROUNDS * 2];
    for (int r = 0; r < ROUNDS; r++) {
        ns[2 * r] = 100000;
        ns[2 * r + 1] = r < rounds ? 1000 * percent : 200000;
    }
    return hd_trial_winner(ns, ROUNDS, 2);
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
    assert_int_equal(hd_trial_winner(ns, 2, 4), 2);
}
