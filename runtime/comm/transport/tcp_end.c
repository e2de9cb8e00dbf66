/* The end of a rank's connections: what it still says, and until when it is waited for. */
#include "runtime/base/base.h"
#include "runtime/comm/transport/tcp_post.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

enum { FLUSH_NS = 1000000000 };

int hd_tcp_all_out(const hd_tcp *tcp)
{
    for (int r = 0; r < tcp->size; r++) {
        if (tcp->peer[r].fd >= 0 && tcp->peer[r].out != NULL) {
            return 0;
        }
    }
    return 1;
}

/* What was posted lies with the others' kernels. A close while something of theirs is unread resets the connection, and
 * what has not come there by then is lost, the word of an end with it. */
static int has_arrived(const hd_tcp *tcp)
{
    for (int r = 0; r < tcp->size; r++) {
        const hd_tcp_peer *q = &tcp->peer[r];
        int left = 0;
        if (q->fd >= 0 && !q->is_silenced && (q->out != NULL || (ioctl(q->fd, SIOCOUTQ, &left) == 0 && left > 0))) {
            return 0;
        }
    }
    return 1;
}

static void free_peer(hd_tcp *tcp, int r)
{
    hd_tcp_peer *q = &tcp->peer[r];
    if (q->fd >= 0) {
        q->said_goodbye = 1;
        hd_tcp_hang_up(tcp, r, "");
    }
    hd_free(q->coming);
    while (q->in != NULL) {
        hd_letter *l = q->in;
        q->in = l->next;
        hd_free(l);
    }
}

/* Who gave up may have said so by now, and this end may be seen before its word. */
static void say_last_words(hd_tcp *tcp)
{
    hd_tcp_turn(tcp);
    if (tcp->aborted_by >= 0 && tcp->why[0] != 0) {
        heddle_ignore(hd_tcp_tell_end(tcp, tcp->aborted_by, tcp->why));
    }
    for (int r = 0; r < tcp->size && tcp->aborted_by < 0; r++) {
        heddle_ignore(hd_tcp_send(tcp, r, HD_LETTER_GOODBYE, "", 1));
    }
}

void hd_tcp_close(hd_tcp *tcp)
{
    if (tcp == NULL) {
        return;
    }
    const int64_t end_ns = hd_now_ns() + FLUSH_NS;
    const int n = tcp->peer != NULL && tcp->fds != NULL ? tcp->size : 0;
    if (n > 0) {
        say_last_words(tcp);
    }
    while (n > 0 && !has_arrived(tcp) && hd_now_ns() < end_ns) {
        hd_tcp_turn(tcp);
        hd_tcp_sleep(tcp);
    }
    for (int r = 0; r < n; r++) {
        free_peer(tcp, r);
    }
    HD_FREE_ALL(tcp->peer, tcp->fds, tcp->window, tcp);
}
