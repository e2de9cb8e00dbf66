/* The transport "tcp" (runtime/comm/transport/tcp_name.c): ranks that the environment tells where rank 0 is. */
#include "tcp_job.h"

#include "check.h"
#include "runtime/comm/ground/door.h"
#include "runtime/comm/transport/tcp_gather.h"
#include "slow_clock.h"
#include "switch_check.h"

/* --- how far ranks are (linked with a wrapper of this) ------------------------------------------------------------ */

static _Atomic int *waiting; /* [MOST], shared: how often each rank has come to rank 0, and waits for its word */

int __real_hd_tcp_pass(hd_tcp_patience *p, int fd, void *bytes, size_t n, short event, int64_t until_ns);
int __wrap_hd_tcp_pass(hd_tcp_patience *p, int fd, void *bytes, size_t n, short event, int64_t until_ns);
int __wrap_hd_tcp_pass(hd_tcp_patience *p, int fd, void *bytes, size_t n, short event, int64_t until_ns)
{
    const char *rank = getenv("HEDDLE_RANK");
    if (waiting != NULL && rank != NULL && event == POLLIN && n == sizeof(hd_tcp_notice)) {
        waiting[atoi(rank)]++;
    }
    return __real_hd_tcp_pass(p, fd, bytes, n, event, until_ns);
}

static job new_watched_job(void)
{
    waiting = hd_shared(MOST * sizeof *waiting);
    return new_job();
}

static void await_waiting(int rank, int times)
{
    const int64_t until_ns = hd_test_now_ns() + hd_test_limit_ns(20);
    while (waiting[rank] < times) {
        assert_true(hd_test_now_ns() < until_ns);
        usleep(1000);
    }
}

/* --- ranks that are started --------------------------------------------------------------------------------------- */

static heddle_status switches(heddle_comm *comm)
{
    char room[SWITCH_TEXT_BYTES], text[SWITCH_TEXT_BYTES] = "";
    for (int i = 0; switch_line(i, heddle_comm_size(comm), room) != NULL; i++) {
        if (switch_check(comm, room, NULL, text) != 0) {
            return heddle_set_error(HEDDLE_ERR_INTERNAL, "%s: %s; %s", room, text, heddle_last_error());
        }
    }
    return HEDDLE_OK;
}

HD_RANK_CASE(ranks_are_started, "1 tcp", "2 tcp", "4 tcp", "3 tcp forced", "4 tcp hosts=2")
{
    heddle_status st = HEDDLE_OK;
    int all[4], me = heddle_comm_rank(comm);
    CHECK(strncmp(heddle_comm_describe(comm), "tcp: ", 5) == 0);
    HD_TRY(heddle_comm_allgather(comm, &me, all, sizeof me));
    for (int r = 0; r < heddle_comm_size(comm); r++) {
        CHECK(all[r] == r);
    }
    st = switches(comm);
out:
    return st;
}

static heddle_status dies(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    (void)arg;
    HD_TRY(heddle_comm_barrier(comm));
    if (heddle_comm_rank(comm) == 1) {
        raise(SIGKILL);
    }
    for (int i = 0; i < 100000 && st == HEDDLE_OK; i++) {
        st = heddle_comm_barrier(comm);
    }
out:
    return st;
}

HD_CASE(a_started_rank_is_killed)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    for (int forced = 0; forced < 2; forced++) {
        options.force_messages = forced;
        HD_FAILS(HEDDLE_ERR_PEER, heddle_run_ranks_with(3, "tcp", &options, dies, NULL));
        assert_non_null(strstr(heddle_last_error(), "rank 1 was killed by signal 9"));
    }
}

/* --- from the environment ----------------------------------------------------------------------------------------- */

/* The same port one after another, by names and addresses of both versions. */
HD_CASE(ranks_meet_where_rank_0_is)
{
    static const char *const hosts[] = {"127.0.0.1", "localhost", "::1", "::ffff:127.0.0.1"};
    for (size_t h = 0; h < sizeof hosts / sizeof hosts[0]; h++) {
        job j = new_job();
        if (strcmp(hosts[h], "::1") == 0 && socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0) < 0) {
            continue; /* a machine without it */
        }
        for (int r = 2; r >= 0; r--) {
            start(&j, "tcp", 2, LONG_MS, switches, SECRET "HEDDLE_RANK=%d HEDDLE_SIZE=3 MASTER_ADDR=%s HEDDLE_PORT=%d",
                  r, hosts[h], j.port);
        }
        end_job(&j);
        for (int i = 0; i < 3; i++) {
            ended(j.outcome, i, HEDDLE_OK, 10, NULL);
        }
    }
}

/* What torchrun says on two hosts: `auto` takes tcp, at the port behind MASTER_PORT. */
HD_CASE(auto_takes_tcp_where_not_all_are_here)
{
    job j = new_job();
    for (int r = 0; r < 4; r++) {
        start(&j, "auto", 2, LONG_MS, switches,
              SECRET "RANK=%d WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=%d "
                     "TORCHELASTIC_RUN_ID=none",
              r, j.port - 1);
    }
    end_job(&j);
    for (int i = 0; i < 4; i++) {
        ended(j.outcome, i, HEDDLE_OK, 10, NULL);
        assert_non_null(strstr(j.outcome[i].describe, "auto chose tcp because the environment says RANK="));
    }
}

HD_CASE(what_the_environment_lacks_is_said)
{
    static const struct {
        const char *words, *where;
        heddle_status status;
        const char *says[2];
    } table[] = {
        {"", "tcp", HEDDLE_ERR_UNSUPPORTED, {"the environment names no ranks", "MASTER_ADDR"}},
        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=9",
         "tcp",
         HEDDLE_ERR_ARG,
         {"HEDDLE_KEY is not set", "openssl"}},
        {"RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=h MASTER_PORT=9",
         "auto",
         HEDDLE_ERR_ARG,
         {"1 of the ranks on this host, so tcp is needed", "HEDDLE_KEY is not set"}},
        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=9 HEDDLE_KEY=0123456789abcde",
         "tcp",
         HEDDLE_ERR_ARG,
         {"HEDDLE_KEY has 15 characters", "at least 16"}},
        {SECRET "RANK=1 WORLD_SIZE=2 MASTER_PORT=9", "tcp", HEDDLE_ERR_ARG, {"MASTER_ADDR is not set"}},
        {SECRET "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h",
         "tcp",
         HEDDLE_ERR_ARG,
         {"neither MASTER_PORT nor HEDDLE_PORT is set"}},
        {SECRET "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=65535", "tcp", HEDDLE_ERR_ARG, {"from 1 to 65534"}},
        {SECRET "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h HEDDLE_PORT=0", "tcp", HEDDLE_ERR_ARG, {"HEDDLE_PORT='0'", "65535"}},
        {SECRET "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h HEDDLE_PORT=7x", "tcp", HEDDLE_ERR_ARG, {"HEDDLE_PORT='7x'"}},
        {SECRET "RANK=1 WORLD_SIZE=2 MASTER_ADDR=no.name.invalid MASTER_PORT=9",
         "tcp",
         HEDDLE_ERR_TIMEOUT,
         {"rank 0 at no.name.invalid port 10", "no address is known of it"}},
        {SECRET "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 HEDDLE_PORT=9",
         "tcp",
         HEDDLE_ERR_TIMEOUT,
         {"did not get through to rank 0 at 127.0.0.1 port 9", "Connection refused"}},
    };
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = 300;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        heddle_comm *comm = NULL;
        environment(table[i].words);
        const heddle_status got = heddle_comm_open(&comm, table[i].where, &options);
        for (int k = 0; k < 2; k++) {
            if (got != table[i].status ||
                (table[i].says[k] != NULL && strstr(heddle_last_error(), table[i].says[k]) == NULL)) {
                fail_msg("'%s': %s: %s", table[i].words, heddle_status_name(got), heddle_last_error());
            }
        }
    }
}

HD_CASE(the_port_is_taken)
{
    job j = new_job();
    const struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)j.port)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(bind(fd, (const struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 1) == 0);
    start_rank(&j, 0, 2, SHORT_MS);
    assert_int_equal(waitpid(j.pid[0], NULL, 0), j.pid[0]);
    ended(j.outcome, 0, HEDDLE_ERR_TRANSPORT, 1, "rank 0 cannot listen at port", "Address already in use",
          "HEDDLE_PORT", NULL);
    close(fd);
}

/* --- not those who should ----------------------------------------------------------------------------------------- */

HD_CASE(a_rank_is_missing)
{
    job j = new_job();
    start_rank(&j, 0, 4, SHORT_MS);
    start_rank(&j, 3, 4, LONG_MS);
    start_rank(&j, 1, 4, LONG_MS);
    end_job(&j);
    for (int i = 0; i < 3; i++) {
        ended(j.outcome, i, HEDDLE_ERR_TIMEOUT, 4, "3 of 4 ranks came to rank 0 at port", "rank 2 did not", NULL);
    }
}

/* It waits for the end of rank 0's patience as any stranger would; rank 0 says what became of it. */
HD_CASE(a_rank_has_another_word)
{
    job j = new_job();
    start_rank(&j, 0, 2, SHORT_MS);
    start(&j, "tcp", 1, SHORT_MS, NULL,
          "HEDDLE_KEY=0123456789abcdeF HEDDLE_RANK=1 HEDDLE_SIZE=2 MASTER_ADDR=127.0.0.1 HEDDLE_PORT=%d", j.port);
    end_job(&j);
    ended(j.outcome, 0, HEDDLE_ERR_TIMEOUT, 4, "1 of 2 ranks came", "rank 1 did not",
          "did not show that it knows HEDDLE_KEY", NULL);
    ended(j.outcome, 1, HEDDLE_ERR_TIMEOUT, 4, "rank 1 of 2 did not get through to rank 0", NULL);
}

/* Whoever comes within a second hears of it. */
HD_CASE(a_rank_says_another_size)
{
    slow_down();
    for (int later = 0; later < 2; later++) {
        job j = new_job();
        start_rank(&j, later ? 2 : 0, 3, LONG_MS);
        usleep(50000);
        start_rank(&j, 1, 2, LONG_MS);
        start_rank(&j, later ? 0 : 2, 3, LONG_MS);
        end_job(&j);
        for (int i = 0; i < 3; i++) {
            ended(j.outcome, i, HEDDLE_ERR_MISMATCH, 6, "a process came as rank 1 of 2, but rank 0 is one of 3", NULL);
        }
    }
}

HD_CASE(two_say_the_same_rank)
{
    slow_down();
    job j = new_watched_job();
    start_rank(&j, 0, 3, LONG_MS);
    start_rank(&j, 1, 3, LONG_MS);
    start_rank(&j, 1, 3, LONG_MS);
    await_waiting(1, 2);
    start_rank(&j, 2, 3, LONG_MS); /* after the conflict */
    end_job(&j);
    for (int i = 0; i < 4; i++) {
        ended(j.outcome, i, HEDDLE_ERR_MISMATCH, 6, "two processes came as rank 1 of 3", NULL);
    }
}

/* --- strangers ---------------------------------------------------------------------------------------------------- */

/* They say nothing, rubbish, a knock and rubbish, a knock and nothing more; some hang up. Ranks meet beside them. */
HD_CASE(strangers_change_nothing)
{
    static unsigned char noise[5000];
    int fd[400], n = 0;
    job j = new_job();
    memset(noise, 0x41, sizeof noise);
    start_rank(&j, 0, 3, LONG_MS);
    start_rank(&j, 2, 3, LONG_MS);
    for (int i = 0; i < 400; i++) {
        hd_handshake shake;
        assert_int_equal(hd_handshake_begin(&shake, 1, 0), 0);
        fd[n] = call(&j);
        const size_t bytes = i % 4 == 0 ? 0 : i % 4 == 1 ? sizeof noise : sizeof shake.knock;
        (void)!send(fd[n], i % 4 == 1 ? (void *)noise : (void *)&shake.knock, bytes, MSG_NOSIGNAL);
        if (i % 4 == 3) {
            (void)!send(fd[n], noise, sizeof noise, MSG_NOSIGNAL);
        }
        if (i % 8 < 4) {
            close(fd[n--]);
        }
        n++;
    }
    start_rank(&j, 1, 3, LONG_MS);
    end_job(&j);
    while (n > 0) {
        close(fd[--n]);
    }
    for (int i = 0; i < 3; i++) {
        ended(j.outcome, i, HEDDLE_OK, 12, NULL);
    }
}

/* --- the end of a rank -------------------------------------------------------------------------------------------- */

HD_CASE(a_rank_that_waits_is_killed)
{
    job j = new_watched_job();
    start_rank(&j, 0, 4, LONG_MS);
    start_rank(&j, 1, 4, LONG_MS);
    start_rank(&j, 2, 4, LONG_MS);
    await_waiting(1, 1);
    await_waiting(2, 1);
    kill(j.pid[1], SIGKILL);
    end_job(&j);
    ended(j.outcome, 0, HEDDLE_ERR_PEER, 6, "rank 1 came and left again; rank", "had not come yet", NULL);
    ended(j.outcome, 2, HEDDLE_ERR_PEER, 6, "rank 0 gave up while ranks met: rank 1 came and left again", NULL);
}

HD_CASE(rank_0_is_killed)
{
    job j = new_watched_job();
    start_rank(&j, 0, 3, LONG_MS);
    start_rank(&j, 1, 3, LONG_MS);
    await_waiting(1, 1);
    kill(j.pid[0], SIGKILL);
    end_job(&j);
    ended(j.outcome, 1, HEDDLE_ERR_PEER, 6, "rank 0 ended while rank 1 waited", NULL);
}

/* At any moment: the others end, by their deadline at the latest. */
HD_CASE(a_rank_is_killed_at_any_time)
{
    for (int i = 0; i < 12; i++) {
        job j = new_job();
        for (int r = 0; r < 3; r++) {
            start(&j, "tcp", 1, 300, switches,
                  SECRET "HEDDLE_RANK=%d HEDDLE_SIZE=3 MASTER_ADDR=127.0.0.1 HEDDLE_PORT=%d", r, j.port);
        }
        usleep((useconds_t)(1000 * i));
        kill(j.pid[i % 3], SIGKILL);
        end_job(&j);
        for (int r = 0; r < 3; r++) {
            assert_true(j.outcome[r].seconds * 1e9 < (double)hd_test_limit_ns(5));
        }
    }
}
