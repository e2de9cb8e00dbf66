/* Ranks compare what they ask for: the first field that differs is named with both texts, on every rank. */
#include "case.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"

#include <stdio.h>
#include <string.h>

enum { RANKS = 4, LONG = 1000 };

typedef struct asked {
    int differs; /* rank that asks for something else; -1: none */
    int fields;  /* how many that one has */
    int teams;   /* 1: ranks 0 and 1, ranks 2 and 3 */
    int fails;   /* rank that has a mistake; -1 */
    const char *wanted;
} asked;

static heddle_status ask(heddle_comm *comm, void *arg)
{
    const asked *a = arg;
    int rank = heddle_comm_rank(comm), differs = rank == a->differs;
    char text[LONG + 1];
    hd_fields fields = {.what = "thing", .team = a->teams ? rank / 2 : 0};
    memset(text, 'x', LONG);
    text[LONG] = 0;
    text[LONG - 1] = differs && a->fields == 3 ? 'y' : 'x'; /* behind what a sentence shows */
    hd_fields_add(&fields, "size", "%d", a->teams ? rank / 2 : 7);
    hd_fields_add(&fields, "colour", "%s", differs && a->fields == 2 ? "red" : "blue");
    hd_fields_add(&fields, "list", "%s", text);
    if (differs && a->fields == 4) {
        hd_fields_add(&fields, "lid", "on");
    }
    heddle_status mine = rank == a->fails ? hd_fail(HEDDLE_ERR_ARG, "rank %d is wrong", rank) : HEDDLE_OK;
    heddle_status st = hd_comm_agree_on(comm, &fields, mine);
    heddle_status expected = a->fails == rank  ? HEDDLE_ERR_ARG
                             : a->fails >= 0   ? HEDDLE_ERR_PEER
                             : a->differs >= 0 ? HEDDLE_ERR_MISMATCH
                                               : HEDDLE_OK;
    if (st != expected || (a->wanted != NULL && strstr(heddle_last_error(), a->wanted) == NULL)) {
        return hd_fail(HEDDLE_ERR_INTERNAL, "%s, wanted %s with '%s'; it says: %.300s", heddle_status_name(st),
                       heddle_status_name(expected), a->wanted != NULL ? a->wanted : "", heddle_last_error());
    }
    return heddle_comm_barrier(comm); /* as usable as before */
}

static void run(asked a)
{
    HD_OK(heddle_run_ranks(RANKS, "threads", ask, &a));
}

HD_CASE(the_first_field_is_named)
{
    run((asked){.differs = -1, .fails = -1});
    run((asked){.differs = 2,
                .fields = 2,
                .fails = -1,
                .wanted = "rank 2 asks for another thing: its colour is 'red', rank 0's is 'blue'"});
    run((asked){.differs = 0,
                .fields = 2,
                .fails = -1,
                .wanted = "rank 1 asks for another thing: its colour is 'blue', rank 0's is 'red'"});
    run((asked){.differs = 1, .fields = 3, .fails = -1, .wanted = "rank 1 asks for another thing: its list is 'xxx"});
    run((asked){.differs = 3, .fields = 4, .fails = -1, .wanted = "rank 3 asks for another thing: its "});
}

HD_CASE(only_a_team_must_agree)
{
    run((asked){.differs = -1, .fails = -1, .teams = 1});
    run((asked){.differs = 3,
                .fields = 2,
                .teams = 1,
                .fails = -1,
                .wanted = "rank 3 asks for another thing: its colour is 'red', rank 2's is 'blue'"});
}

HD_CASE(a_mistake_of_one_is_told_to_all)
{
    run((asked){.differs = 1, .fields = 2, .fails = 2, .wanted = "rank 2 is wrong"});
}

/* In the groups of ranks 0, 2 and of 1, 3 ranks are called as in the communicator that was opened. */
HD_RANK_CASE(ranks_of_groups_have_their_own_numbers, "4 threads", "4 shm")
{
    const heddle_mesh mesh = {.naxes = 2, .axis = {{"up", 2}, {"on", 2}}};
    heddle_comm *group = NULL;
    const int rank = heddle_comm_rank(comm), odd = rank % 2;
    heddle_status st = heddle_comm_axis_group(&group, comm, &mesh, 0);
    if (st != HEDDLE_OK) {
        return st;
    }
    asked other = {.differs = 1,
                   .fields = 2,
                   .fails = -1,
                   .wanted = odd ? "rank 3 asks for another thing: its colour is 'red', rank 1's is 'blue'"
                                 : "rank 2 asks for another thing: its colour is 'red', rank 0's is 'blue'"};
    asked mistake = {.differs = -1, .fails = 1, .wanted = odd ? "rank 3: " : "rank 2: "};
    st = ask(group, &other);
    if (st == HEDDLE_OK) {
        mistake.wanted = rank < 2 ? mistake.wanted : NULL;
        st = ask(group, &mistake);
    }
    heddle_comm_destroy(group);
    return st;
}

/* Whoever gives up says why in `why`, too, and everybody else hears it. */
HD_RANK_CASE(one_gives_up_for_all, "4 threads", "4 shm")
{
    char why[64] = "";
    heddle_status st = HEDDLE_OK;
    if (heddle_comm_rank(comm) == 1) {
        st = hd_comm_give_up(comm, hd_fail(HEDDLE_ERR_NOMEM, "no room for the thing"), why, sizeof why);
        return st == HEDDLE_ERR_NOMEM && strcmp(why, "no room for the thing") == 0 &&
                       strcmp(heddle_last_error(), why) == 0
                   ? HEDDLE_OK
                   : hd_fail(HEDDLE_ERR_INTERNAL, "gave up with %s: '%s'", heddle_status_name(st), why);
    }
    st = heddle_comm_barrier(comm);
    return st == HEDDLE_ERR_PEER && strstr(heddle_last_error(), "rank 1 gave up: no room for the thing") != NULL
               ? HEDDLE_OK
               : hd_fail(HEDDLE_ERR_INTERNAL, "heard %s: %.200s", heddle_status_name(st), heddle_last_error());
}
