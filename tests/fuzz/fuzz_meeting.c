/* libFuzzer: any bytes as what a stranger says at a rank's door, who never comes in; and as the words of one that knows
 * the secret, of which only those are taken that can be worked with. */
#include "runtime/comm/ground/door.h"
#include "runtime/comm/transport/tcp_gather.h"

#include "fuzz.h"

#include <stddef.h>
#include <string.h>

enum { LOOKS = 4, ME = 0 };

/* What hd_tcp's doors do with a visitor, who here never knows the secret. */
static heddle_status let_in(void *ctx, hd_visitor *v, int *is_over)
{
    const hd_door *door = ctx;
    const int heard = hd_door_hear(v, v->proof, sizeof v->proof);
    fuzz_need(v->shake.knock.magic == HD_KNOCK_MAGIC && v->shake.knock.to == ME);
    fuzz_need(heard <= 0 || !hd_proves(v->proof, door->secret, &v->shake, HD_CALLER));
    *is_over = heard != 0;
    return HEDDLE_OK;
}

static void knock(const hd_secret *secret, const uint8_t *data, size_t size)
{
    static int listener = -1;
    static uint8_t port[2];
    hd_tcp_address_of_system at = {.four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    hd_door door = {.secret = secret, .me = ME, .enter = let_in, .ctx = &door};
    if (listener < 0) {
        listener = hd_tcp_bind(0, 1);
        fuzz_need(listener >= 0 && hd_tcp_port(listener, port) == 0);
    }
    memcpy(&at.four.sin_port, port, sizeof port);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct linger at_once = {.l_onoff = 1}; /* ports are not left waiting */
    fuzz_need(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
    fuzz_need(connect(fd, &at.any, sizeof at.four) == 0);
    fuzz_need(size == 0 || send(fd, data, size, MSG_NOSIGNAL) == (ssize_t)size);
    door.listener = listener;
    hd_door_open(&door);
    for (int i = 0; i < LOOKS; i++) {
        fuzz_need(hd_door_turn(&door, i == 0 ? 100 : 0) == HEDDLE_OK);
        fuzz_need(hd_door_visitors(&door, NULL) <= 1);
    }
    hd_door_close(&door);
    close(fd);
}

/* The bytes are the word up to its seal, which is right. */
static void say(const hd_secret *secret, const uint8_t *data, size_t size)
{
    hd_tcp_hello hello = {0};
    hd_tcp_notice notice = {0};
    hd_handshake shake = {0};
    memcpy(&hello, data, size < offsetof(hd_tcp_hello, seal) ? size : offsetof(hd_tcp_hello, seal));
    hd_seal(hello.seal, secret, &shake, HD_CALLER, &hello, offsetof(hd_tcp_hello, seal));
    fuzz_need(!hd_tcp_read_hello(&hello, secret, &shake) || hello.place_bytes == (int32_t)sizeof hello.place);
    memcpy(&notice, data, size < offsetof(hd_tcp_notice, seal) ? size : offsetof(hd_tcp_notice, seal));
    hd_seal(notice.seal, secret, &shake, HD_CALLEE, &notice, offsetof(hd_tcp_notice, seal));
    if (hd_tcp_read_notice(&notice, secret, &shake)) {
        fuzz_need(strnlen(notice.text, sizeof notice.text) < sizeof notice.text);
        fuzz_need(strcmp(heddle_status_name((heddle_status)notice.status), "unknown") != 0);
    }
    notice.seal[0] ^= 1;
    fuzz_need(!hd_tcp_read_notice(&notice, secret, &shake));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    hd_secret secret;
    hd_secret_of(&secret, "fuzz", 4);
    knock(&secret, data, size);
    say(&secret, data, size);
    return 0;
}
