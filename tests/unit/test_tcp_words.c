/* What ranks say to rank 0 and it to them while they meet by TCP (runtime/comm/transport/tcp_gather.h) counts in its
 * own conversation alone, and as it was said. */
#include "case.h"

#include "runtime/comm/transport/tcp_gather.h"

#include <string.h>

static hd_secret secret;
static hd_handshake talk, other_talk;
static hd_tcp_hello hello;
static hd_tcp_notice notice;

static void say(void)
{
    hd_secret_of(&secret, "sesame", 6);
    assert_int_equal(hd_handshake_begin(&talk, 1, 0) | hd_handshake_begin(&other_talk, 1, 0), 0);
    hello = (hd_tcp_hello){.size = 3, .place_bytes = (int32_t)sizeof hello.place};
    notice = (hd_tcp_notice){.status = HEDDLE_OK, .size = 3};
    hd_seal(hello.seal, &secret, &talk, HD_CALLER, &hello, offsetof(hd_tcp_hello, seal));
    hd_seal(notice.seal, &secret, &talk, HD_CALLEE, &notice, offsetof(hd_tcp_notice, seal));
}

HD_CASE(what_is_said_is_read)
{
    say();
    assert_true(hd_tcp_read_hello(&hello, &secret, &talk));
    assert_true(hd_tcp_read_notice(&notice, &secret, &talk));
}

HD_CASE(any_byte_that_is_another_is_noticed)
{
    say();
    for (size_t i = 0; i < sizeof hello; i++) {
        hd_tcp_hello changed = hello;
        ((unsigned char *)&changed)[i] ^= 1;
        assert_false(hd_tcp_read_hello(&changed, &secret, &talk));
    }
    for (size_t i = 0; i < sizeof notice; i++) {
        hd_tcp_notice changed = notice;
        ((unsigned char *)&changed)[i] ^= 1;
        assert_false(hd_tcp_read_notice(&changed, &secret, &talk));
    }
}

HD_CASE(what_was_said_elsewhere_is_not_taken)
{
    hd_secret another;
    say();
    hd_secret_of(&another, "sesamE", 6);
    assert_false(hd_tcp_read_hello(&hello, &secret, &other_talk) || hd_tcp_read_hello(&hello, &another, &talk));
    assert_false(hd_tcp_read_notice(&notice, &secret, &other_talk) || hd_tcp_read_notice(&notice, &another, &talk));
    hd_seal(hello.seal, &secret, &talk, HD_CALLEE, &hello, offsetof(hd_tcp_hello, seal)); /* as the other side */
    assert_false(hd_tcp_read_hello(&hello, &secret, &talk));
    hd_prove(hello.seal, &secret, &talk, HD_CALLER); /* a proof is no seal */
    assert_false(hd_tcp_read_hello(&hello, &secret, &talk));
}

/* Those who know the secret may still be of another version of the library. */
HD_CASE(what_no_rank_says_is_not_taken)
{
    say();
    hello.place_bytes++;
    hd_seal(hello.seal, &secret, &talk, HD_CALLER, &hello, offsetof(hd_tcp_hello, seal));
    assert_false(hd_tcp_read_hello(&hello, &secret, &talk));
    for (int i = 0; i < 3; i++) {
        notice.status = i == 0 ? -1 : i == 1 ? HEDDLE_ERR_INTERRUPTED + 1 : HEDDLE_OK;
        memset(notice.text, 'x', i == 2 ? sizeof notice.text : 0);
        hd_seal(notice.seal, &secret, &talk, HD_CALLEE, &notice, offsetof(hd_tcp_notice, seal));
        assert_false(hd_tcp_read_notice(&notice, &secret, &talk));
    }
}
