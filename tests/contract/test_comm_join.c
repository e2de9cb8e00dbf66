/* Processes that name the same key are one communicator's ranks, whatever the environment says; no others are. */
#include "meeting_job.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { PROCESSES = 4 };

typedef struct result {
    heddle_status status;
    int64_t sum; /* of one hexadecimal digit per process */
    char sentence[512];
} result;

static pid_t start(result *o, const char *key, int process)
{
    pid_t pid = fork();
    if (pid == 0) {
        heddle_comm *comm = NULL;
        setenv("HEDDLE_RANK", "0", 1);
        setenv("HEDDLE_SIZE", "7", 1);
        setenv("HEDDLE_KEY", "another", 1);
        o->sum = (int64_t)1 << (4 * process);
        o->status = heddle_comm_join(&comm, key, process % 2, 2, NULL);
        o->status = o->status == HEDDLE_OK ? heddle_comm_allreduce_sum(comm, &o->sum, 1, HEDDLE_I64) : o->status;
        snprintf(o->sentence, sizeof o->sentence, "%s", heddle_last_error());
        heddle_comm_destroy(comm);
        _exit(0);
    }
    return pid;
}

HD_CASE(two_jobs_whose_keys_differ_in_the_last_letter)
{
    char key[300];
    pid_t pid[PROCESSES];
    result *o = hd_shared(PROCESSES * sizeof *o);
    memset(key, 'k', sizeof key);
    for (int i = 0; i < PROCESSES; i++) {
        snprintf(key + 250, sizeof key - 250, ".%d.%d", (int)getpid(), i / 2);
        pid[i] = start(&o[i], key, i);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int wait_status = 0;
        assert_int_equal(waitpid(pid[i], &wait_status, 0), pid[i]);
        assert_int_equal(wait_status, 0);
        if (o[i].status != HEDDLE_OK || o[i].sum != (i < 2 ? 0x11 : 0x1100)) {
            fail_msg("process %d: sum %llx: %s", i, (unsigned long long)o[i].sum, o[i].sentence);
        }
    }
}

HD_CASE(what_is_refused)
{
    heddle_comm *comm = NULL;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_join(&comm, "k", 2, 2, NULL));
    assert_non_null(strstr(heddle_last_error(), "rank 2 of 2"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_join(&comm, "k", -1, 2, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_join(&comm, "k", 0, 0, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_join(&comm, "k", 0, HEDDLE_COMM_MAX_RANKS + 1, NULL));
    assert_non_null(strstr(heddle_last_error(), "65536"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_join(&comm, "k", 0, INT_MAX, NULL)); /* asks for no memory before */
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_join(&comm, "", 0, 1, NULL));
    assert_null(comm);
}

/* --- the key ------------------------------------------------------------------------------------------------------ */

/* Does all that rank 1 of 2 does, and says "1" when it is told of the ranks, else "0". */
static void plays_rank_1(const job *j, const hd_secret *secret)
{
    hd_handshake shake;
    hd_answer a = {.nonce = {0}};
    hd_hello h = {.control_bytes = sizeof(hd_control), .n = 2, .index = 1, .pid = getpid(), .has_life = 1};
    hd_batch b;
    const int fd = until_connected(j), own[] = {memfd_create("arena", 0), (int)syscall(SYS_pidfd_open, getpid(), 0)};
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    if (hd_handshake_begin(&shake, 1, 0) != 0 || ftruncate(own[0], sizeof(hd_control)) != 0) {
        _exit(1);
    }
    (void)!send(fd, &shake.knock, sizeof shake.knock, MSG_NOSIGNAL);
    (void)poll(&ready, 1, 5000);
    (void)!recv(fd, &a, sizeof a, MSG_DONTWAIT);
    memcpy(shake.nonce, a.nonce, sizeof shake.nonce);
    hd_prove(h.proof, secret, &shake, HD_CALLER);
    (void)!hd_send_fds(fd, &h, sizeof h, own, 2);
    (void)poll(&ready, 1, 5000);
    if (write(j->ready[1], recv(fd, &b, sizeof b, MSG_DONTWAIT) == sizeof b ? "1" : "0", 1) != 1) {
        _exit(1);
    }
}

static void knows_the_key(const job *j)
{
    plays_rank_1(j, &j->secret);
}

static void knows_another_key(const job *j)
{
    hd_secret other;
    hd_secret_of(&other, "another", 7);
    plays_rank_1(j, &other);
}

HD_CASE(only_this_user_with_the_key_is_let_in)
{
    static const struct {
        void (*does)(const job *j);
        int is_root, is_in;
    } table[] = {{knows_the_key, 1, 1}, {knows_another_key, 1, 0}, {knows_the_key, 0, 0}};
    for (int i = 0; i < (getuid() == 0 ? 3 : 2); i++) {
        char byte = 0;
        job j = new_job();
        start_other(&j, table[i].is_root ? getuid() : NOBODY, table[i].does);
        start_rank(&j, 0, 2, 1000);
        assert_int_equal(read(j.ready[0], &byte, 1), 1);
        assert_int_equal(byte, table[i].is_in ? '1' : '0');
        end_job(&j);
        assert_int_not_equal(j.outcome[0].status, HEDDLE_OK); /* who plays rank 1 does nothing more */
        assert_true((strstr(j.outcome[0].sentence, "1 of 2 ranks came") == NULL) == table[i].is_in);
    }
    if (getuid() != 0) {
        hd_not_here("root", "only root can act as another user");
    }
}

/* Listens where rank 0 should, and answers as well as it can: rank 1 hands it nothing. */
static void plays_rank_0(const job *j)
{
    hd_answer a;
    hd_secret other;
    hd_handshake shake = {.version = 0};
    unsigned char more[256];
    int fds[HD_MEETING_FDS], nfds = 0;
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (bind(listener, (const struct sockaddr *)&j->address, j->address_bytes) != 0 || listen(listener, 9) != 0) {
        _exit(1);
    }
    stands_there(j);
    for (int visits = 0;; visits++) {
        const int fd = accept(listener, NULL, NULL);
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        (void)!recv(fd, &shake.knock, sizeof shake.knock, 0);
        hd_secret_of(&other, "another", 7);
        memset(a.nonce, 1, sizeof a.nonce);
        memcpy(shake.nonce, a.nonce, sizeof a.nonce);
        hd_prove(a.proof, &other, &shake, HD_CALLEE);
        (void)!send(fd, &a, sizeof a, MSG_NOSIGNAL);
        (void)poll(&ready, 1, 5000);
        const ssize_t got = hd_receive_fds(fd, more, sizeof more, fds, &nfds);
        if (visits == 0 && write(j->ready[1], got == 0 && nfds == 0 ? "0" : "1", 1) != 1) {
            _exit(1);
        }
        close(fd);
    }
}

HD_CASE(a_rank_gives_nothing_to_who_does_not_know_the_key)
{
    char byte = 0;
    job j = new_job();
    start_other(&j, getuid(), plays_rank_0);
    await_others(&j, 1);
    start_rank(&j, 1, 2, 1000);
    assert_int_equal(read(j.ready[0], &byte, 1), 1);
    assert_int_equal(byte, '0');
    end_job(&j);
    ended(j.outcome, 1, HEDDLE_ERR_TIMEOUT, 4, "which does not know the key", NULL);
}

/* All can read the names of sockets. */
HD_CASE(no_name_shows_the_key)
{
    char line[512], name[32];
    int names = 0;
    job j = new_job();
    start_rank(&j, 0, 2, LONG_MS);
    close(until_connected(&j));
    FILE *all = fopen("/proc/net/unix", "r");
    assert_non_null(all);
    snprintf(name, sizeof name, "@%s", j.address.sun_path + 1);
    while (fgets(line, sizeof line, all) != NULL) {
        names += strstr(line, name) != NULL;
        assert_null(strstr(line, "sesame"));
    }
    fclose(all);
    assert_true(names > 0);
    start_rank(&j, 1, 2, LONG_MS);
    end_job(&j);
    ended(j.outcome, 1, HEDDLE_OK, 10, NULL);
}
