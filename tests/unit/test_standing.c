/* When ranks are found to wait for one another, turn by turn: never because of what one said earlier, always when all
 * have looked in vain since. One thread plays all ranks. */
#include "case.h"

#include "runtime/comm/ground/ground.h"

#include <stdio.h>
#include <string.h>

enum { RANKS = 4, MANY = 200, SLOW_LOOKS = 50 };

static hd_group *group[RANKS];

static void open_groups(void)
{
    hd_team *team = NULL;
    HD_OK(hd_team_create(&team, RANKS));
    for (int i = 0; i < RANKS; i++) {
        HD_OK(hd_group_of_team(&group[i], team, i));
    }
    hd_team_release(team);
}

static void close_groups(void)
{
    for (int i = 0; i < RANKS; i++) {
        hd_group_destroy(group[i]);
    }
}

/* Rank `rank` has looked in vain for what one of two others may bring; b < 0: one. */
static heddle_status looks(int rank, uint64_t key, int a, int b)
{
    hd_stand stand = {.key = key, .peer = {a, b}, .npeers = b < 0 ? 1 : 2};
    snprintf(stand.text, sizeof stand.text, "call %d", rank);
    return hd_group_stand(group[rank], &stand);
}

static void look_on(int rank, uint64_t key, int peer, int times)
{
    for (int i = 0; i < times; i++) {
        HD_OK(looks(rank, key, peer, -1));
    }
}

HD_CASE(two_that_look_on_are_told)
{
    open_groups();
    look_on(0, 1, 1, 1);
    heddle_status st = HEDDLE_OK;
    int turns = 0;
    for (; turns < 10 && st == HEDDLE_OK; turns++) {
        HD_OK(looks(1, 1, 0, -1)); /* the first of them decides */
        st = looks(0, 1, 1, -1);
    }
    assert_int_equal(st, HEDDLE_ERR_MISMATCH);
    assert_in_range(turns, 4, 5);
    assert_string_equal(heddle_last_error(),
                        "rank 1 is in call 1, while rank 0 is in call 0: they wait for one another");
    for (int i = 0; i < RANKS; i++) {
        HD_FAILS(HEDDLE_ERR_MISMATCH, hd_group_check(group[i]));
    }
    close_groups();
}

/* It sleeps, and what it waits for may have come: what it has said counts for nothing before it has looked again. */
HD_CASE(who_has_not_looked_again_is_not_believed)
{
    open_groups();
    look_on(1, 1, 0, 5);
    look_on(0, 1, 1, MANY);
    HD_OK(looks(1, 1, 0, -1));
    look_on(0, 1, 1, MANY);
    HD_OK(looks(1, 1, 0, -1));
    HD_FAILS(HEDDLE_ERR_MISMATCH, looks(0, 1, 1, -1));
    close_groups();
}

/* In another turn all begins anew, on either side, and when one goes on and comes back. */
HD_CASE(what_has_come_is_noticed)
{
    open_groups();
    for (uint64_t key = 1; key < MANY; key++) {
        look_on(1, key, 0, 1);
        look_on(0, 1, 1, 2);
        look_on(1, key, 0, 1);
        look_on(0, 1, 1, 1);
        look_on(1, key, 0, 1);
    }
    for (uint64_t key = 2; key < MANY; key++) {
        look_on(0, key, 1, 3);
        look_on(1, 1, 0, 3);
    }
    for (int i = 0; i < MANY; i++) {
        look_on(0, 1, 1, 2);
        look_on(1, 1, 0, 2);
        look_on(0, 1, 1, 1);
        hd_group_move_on(group[i % 2]);
    }
    close_groups();
}

/* Either of two may let a rank go on: it is stuck when both are. */
HD_CASE(all_of_whom_it_waits_for)
{
    open_groups();
    for (int i = 0; i < MANY; i++) {
        HD_OK(looks(0, 1, 1, 2));
        look_on(1, 1, 0, 1);
    }
    for (int i = 0; i < MANY; i++) { /* rank 3 goes on */
        HD_OK(looks(0, 1, 1, 2));
        look_on(1, 1, 0, 1);
        look_on(2, 1, 3, 1);
    }
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < 10 && st == HEDDLE_OK; i++) {
        look_on(1, 1, 0, 1);
        HD_OK(looks(3, 1, 2, -1));
        st = looks(0, 1, 1, 2);
        st = st == HEDDLE_OK ? looks(2, 1, 3, -1) : st; /* it and rank 3 are stuck by themselves */
    }
    assert_int_equal(st, HEDDLE_ERR_MISMATCH);
    close_groups();
}

/* A message may be on its way for some time. */
HD_CASE(messages_take_longer)
{
    open_groups();
    hd_stand slow = {.key = 1, .peer = {0}, .npeers = 1, .is_slow = 1, .text = "call 1"};
    heddle_status st = HEDDLE_OK;
    int turns = 0;
    for (; turns < MANY && st == HEDDLE_OK; turns++) {
        HD_OK(hd_group_stand(group[1], &slow));
        st = looks(0, 1, 1, -1);
    }
    assert_int_equal(st, HEDDLE_ERR_MISMATCH);
    assert_true(turns > SLOW_LOOKS);
    close_groups();
}
