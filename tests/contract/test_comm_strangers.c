/* The ranks of a host meet while others stand at the door: another user, processes of this user that say nothing, or
 * talk of something else. */
#include "meeting_job.h"

#include <sys/random.h>

static void need_root(void)
{
    if (getuid() != 0) {
        hd_skip("root", "only root can act as another user");
    }
}

/* --- another user ------------------------------------------------------------------------------------------------- */

static void connects_and_closes(const job *j)
{
    close(until_connected(j));
    stands_there(j);
    for (;;) {
        close(knock_at(j));
    }
}

HD_CASE(another_user_floods_a_meeting)
{
    need_root();
    job j = new_job();
    start_other(&j, NOBODY, connects_and_closes);
    start_other(&j, NOBODY, connects_and_closes);
    start_rank(&j, 0, SIZE, LONG_MS);
    await_others(&j, 2);
    start_rank(&j, 1, SIZE, LONG_MS);
    start_rank(&j, 2, SIZE, LONG_MS);
    end_job(&j);
    for (int r = 0; r < SIZE; r++) {
        ended(j.outcome, r, HEDDLE_OK, 10, NULL);
    }
}

HD_CASE(no_flood_outlasts_a_deadline)
{
    need_root();
    job j = new_job();
    start_other(&j, NOBODY, connects_and_closes);
    start_other(&j, NOBODY, connects_and_closes);
    start_rank(&j, 0, SIZE, 1500);
    start_rank(&j, 1, SIZE, 1500);
    end_job(&j);
    ended(j.outcome, 0, HEDDLE_ERR_TIMEOUT, 4, "of 3 ranks came, rank ", NULL);
    ended(j.outcome, 1, HEDDLE_ERR_TIMEOUT, 4, NULL);
}

/* On the name under which the ranks meet: lets everybody in, or nobody. */
static void sits(const job *j, int backlog)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (bind(fd, (const struct sockaddr *)&j->address, j->address_bytes) != 0 || listen(fd, backlog) != 0) {
        _exit(1);
    }
    for (int i = 0; backlog == 0 && i < 2; i++) { /* fills its own queue */
        (void)knock_at(j);
    }
    stands_there(j);
    for (;;) {
        pause();
    }
}

static void sits_there(const job *j)
{
    sits(j, 100);
}

static void lets_nobody_in(const job *j)
{
    sits(j, 0);
}

HD_CASE(another_user_on_the_name)
{
    need_root();
    for (int full = 0; full < 2; full++) {
        job j = new_job();
        uid_t owner = 0;
        start_other(&j, NOBODY, full ? lets_nobody_in : sits_there);
        await_others(&j, 1);
        const int is_known = hd_meeting_owner(&j.address, j.address_bytes, &owner);
        assert_true(!is_known || owner == NOBODY);
        for (int r = 0; r < SIZE; r++) {
            start_rank(&j, r, SIZE, 500);
        }
        end_job(&j);
        for (int r = 0; r < SIZE; r++) {
            ended(j.outcome, r, HEDDLE_ERR_TIMEOUT, 3, full ? "lets nobody in" : "process ", NULL);
            ended(j.outcome, r, HEDDLE_ERR_TIMEOUT, 3, full && !is_known ? "" : "user 65534, who is another user",
                  NULL);
        }
        if (full && !is_known) {
            hd_not_here("sock_diag", "the kernel does not say whose socket it is");
        }
    }
}

/* --- this user ---------------------------------------------------------------------------------------------------- */

static void says_nothing(const job *j)
{
    for (int i = 0; i < HD_DOOR_VISITORS + 40; i++) {
        (void)until_connected(j);
    }
    stands_there(j);
    for (;;) {
        pause();
    }
}

HD_CASE(processes_that_say_nothing_keep_nobody_waiting)
{
    char who[64];
    job j = new_job();
    start_other(&j, getuid(), says_nothing);
    start_rank(&j, 0, SIZE, LONG_MS);
    await_others(&j, 1);
    start_rank(&j, 1, SIZE, LONG_MS);
    start_rank(&j, 2, SIZE, LONG_MS);
    end_job(&j);
    for (int r = 0; r < SIZE; r++) {
        ended(j.outcome, r, HEDDLE_OK, 3, NULL);
    }
    j = new_job();
    start_other(&j, getuid(), says_nothing);
    start_rank(&j, 0, SIZE, 1000);
    snprintf(who, sizeof who, "process %d connected and did not say who it is", (int)j.other[0]);
    end_job(&j);
    ended(j.outcome, 0, HEDDLE_ERR_TIMEOUT, 3, "1 of 3 ranks came, rank 1 did not", who, NULL);
}

static void talks_of_something_else(const job *j)
{
    static const size_t sizes[] = {1, 24, sizeof(hd_knock), sizeof(hd_hello), 4096};
    char noise[4096];
    for (int i = 0; i < 200; i++) {
        const int fd = until_connected(j);
        if (getrandom(noise, sizeof noise, 0) == (ssize_t)sizeof noise) {
            (void)!send(fd, noise, sizes[i % 5], MSG_NOSIGNAL);
        }
        if (i % 3 != 0) {
            close(fd);
        }
    }
    stands_there(j);
    for (;;) {
        pause();
    }
}

HD_CASE(noise_is_sent_away)
{
    job j = new_job();
    start_other(&j, getuid(), talks_of_something_else);
    start_rank(&j, 0, 2, LONG_MS);
    await_others(&j, 1);
    start_rank(&j, 1, 2, LONG_MS);
    end_job(&j);
    ended(j.outcome, 0, HEDDLE_OK, 3, NULL);
    ended(j.outcome, 1, HEDDLE_OK, 3, NULL);
}
