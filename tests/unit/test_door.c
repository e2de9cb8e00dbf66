/* The door of a rank where others are to come (runtime/comm/ground/door.h): who stays and who goes when many come. */
#include "case.h"

#include "runtime/comm/ground/door.h"
#include "runtime/comm/ground/join_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static hd_secret secret;
static hd_door door;
static struct sockaddr_un address;
static socklen_t address_bytes;
static int entered; /* times that somebody with an answer has said more */

static heddle_status enter(void *ctx, hd_visitor *visitor, int *is_over)
{
    char some[64];
    (void)ctx;
    entered++;
    *is_over = recv(visitor->fd, some, sizeof some, MSG_DONTWAIT) <= 0;
    return HEDDLE_OK;
}

static void open_door(void)
{
    hd_secret_of(&secret, &(int){getpid()}, sizeof(int));
    address_bytes = hd_meeting_address(&address, &secret, 0);
    door = (hd_door){
        .listener = hd_meeting_listen(&address, address_bytes), .secret = &secret, .is_of_host = 1, .enter = enter};
    assert_true(door.listener >= 0);
    hd_door_open(&door);
}

static int comes(void)
{
    const int fd = hd_meeting_connect(&address, address_bytes);
    assert_true(fd >= 0);
    HD_OK(hd_door_turn(&door, 0));
    return fd;
}

/* 1: the answer is there. */
static int knocks(int fd)
{
    hd_handshake shake;
    hd_answer a;
    assert_int_equal(hd_handshake_begin(&shake, 1, 0), 0);
    if (send(fd, &shake.knock, sizeof shake.knock, MSG_NOSIGNAL) != sizeof shake.knock) {
        return 0;
    }
    HD_OK(hd_door_turn(&door, 0));
    if (recv(fd, &a, sizeof a, MSG_DONTWAIT) != sizeof a) {
        return 0;
    }
    memcpy(shake.nonce, a.nonce, sizeof a.nonce);
    return hd_proves(a.proof, &secret, &shake, HD_CALLEE);
}

HD_CASE(the_oldest_that_say_nothing_go)
{
    pid_t silent = 0;
    open_door();
    const int first = comes();
    assert_true(knocks(first));
    for (int i = 0; i < 2 * HD_DOOR_VISITORS; i++) {
        (void)comes();
    }
    const int late = comes();
    for (int i = 0; i < HD_DOOR_VISITORS / 2; i++) {
        (void)comes();
    }
    assert_int_equal(hd_door_visitors(&door, &silent), HD_DOOR_VISITORS);
    assert_int_equal(silent, getpid());
    assert_true(knocks(late)); /* after it many have come, but older ones were there to go */
    assert_int_equal(entered, 0);
    assert_int_equal(send(first, "x", 1, MSG_NOSIGNAL), 1); /* and one that has an answer stays before all others */
    HD_OK(hd_door_turn(&door, 0));
    assert_int_equal(entered, 1);
    hd_door_close(&door);
    assert_int_equal(hd_door_visitors(&door, NULL), 0);
}

HD_CASE(visitors_do_not_cost_the_last_descriptor)
{
    struct rlimit few;
    open_door();
    for (int i = 0; i < 8; i++) {
        assert_true(hd_meeting_connect(&address, address_bytes) >= 0);
    }
    int extra = hd_meeting_connect(&address, address_bytes);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &few), 0);
    few.rlim_cur = (rlim_t)extra + 3; /* of nine that came, two have a descriptor each */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    HD_OK(hd_door_turn(&door, 0));
    assert_int_equal(door.error, 0);
    assert_int_equal(hd_door_visitors(&door, NULL), 2);
    assert_true(knocks(extra)); /* the last one is one of them */
    hd_door_close(&door);
    while (dup(0) >= 0) {
    }
    assert_int_equal(hd_meeting_connect(&address, address_bytes), -1);
    close(extra);
    extra = hd_meeting_connect(&address, address_bytes);
    assert_true(extra >= 0); /* waits at the door, and no descriptor is left */
    HD_OK(hd_door_turn(&door, 0));
    assert_int_equal(door.error, EMFILE);
    few.rlim_cur = few.rlim_max; /* who looks for leaks opens files */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
}
