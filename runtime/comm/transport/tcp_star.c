#include "runtime/comm/transport/tcp_star.h"

#include "runtime/base/base.h"

#include <errno.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

static int nlines(const hd_tcp_star *star)
{
    return star->rank == 0 ? star->size : 1;
}

heddle_status hd_tcp_star_make(hd_tcp_star *star, int rank, int size)
{
    *star = (hd_tcp_star){.rank = rank, .size = size};
    heddle_status st = hd_alloc((void **)&star->line, (size_t)nlines(star), sizeof *star->line, "a meeting of ranks");
    for (int r = 0; st == HEDDLE_OK && r < nlines(star); r++) {
        star->line[r] = (struct pollfd){.fd = -1, .events = POLLIN};
    }
    return st;
}

static void hang_up(struct pollfd *line)
{
    if (line->fd >= 0) {
        close(line->fd);
        line->fd = -1;
    }
}

static void tell_others(const hd_tcp_star *star, int32_t dead)
{
    for (int r = 1; r < star->size; r++) {
        if (r != dead && star->line[r].fd >= 0) {
            (void)!send(star->line[r].fd, &dead, sizeof dead, MSG_DONTWAIT | MSG_NOSIGNAL);
        }
    }
}

/* Rank 0: a word of another one, or its end. */
static void hear_other(hd_tcp_star *star, int r)
{
    char word;
    const ssize_t got = recv(star->line[r].fd, &word, 1, MSG_DONTWAIT);
    if (got == 1) {
        hang_up(&star->line[r]);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        tell_others(star, r);
        star->dead = 1 + r;
    }
}

static void hear_first(hd_tcp_star *star)
{
    int32_t dead = 0; /* where nothing comes rank 0 has ended itself */
    const ssize_t got = recv(star->line[0].fd, &dead, sizeof dead, MSG_DONTWAIT);
    if (got >= 0 || (errno != EAGAIN && errno != EINTR)) {
        star->dead = got == sizeof dead && dead > 0 && dead < star->size ? 1 + dead : 1;
    }
}

int hd_tcp_star_dead(hd_tcp_star *star)
{
    const int any = star->dead == 0 ? poll(star->line, (nfds_t)nlines(star), 0) : 0;
    for (int r = 0; any > 0 && r < nlines(star) && star->dead == 0; r++) {
        if (star->line[r].fd >= 0 && star->line[r].revents != 0) {
            star->rank == 0 ? hear_other(star, r) : hear_first(star);
        }
    }
    return star->dead;
}

void hd_tcp_star_leave(hd_tcp_star *star)
{
    static const char word = 1;
    (void)!send(star->line[0].fd, &word, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    hang_up(&star->line[0]);
}

int hd_tcp_star_missing(const hd_tcp_star *star)
{
    int r = star->size - 1;
    while (r > 0 && star->line[r].fd < 0) {
        r--;
    }
    return r;
}

void hd_tcp_star_free(hd_tcp_star *star)
{
    for (int r = 0; star->line != NULL && r < nlines(star); r++) {
        hang_up(&star->line[r]);
    }
    hd_free(star->line);
    star->line = NULL;
}
