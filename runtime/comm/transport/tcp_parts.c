/* Which bytes of a message go next, and where those that come belong. */
#include "runtime/comm/transport/tcp_post.h"

/* --- out ---------------------------------------------------------------------------------------------------------- */

struct iovec hd_parcel_part(hd_tcp *tcp, hd_parcel *p, size_t at)
{
    size_t bytes = p->head.bytes - at;
    if (p->message == NULL || bytes == 0) {
        return (struct iovec){p->data + at, bytes};
    }
    size_t piece_bytes = 0;
    unsigned char *piece = hd_message_piece(p->message, (unsigned char *)p->src, at, &piece_bytes);
    if (piece_bytes >= HD_TCP_PIECE_BYTES || piece_bytes == bytes) {
        return (struct iovec){piece, piece_bytes};
    }
    bytes = bytes < HD_TCP_WINDOW_BYTES ? bytes : HD_TCP_WINDOW_BYTES;
    hd_message_pack(p->message, p->src, at, tcp->window, bytes);
    return (struct iovec){tcp->window, bytes};
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

void hd_tcp_expect(hd_tcp *tcp, int from, hd_landing *landing)
{
    hd_landing **at = &tcp->peer[from].landing;
    while (*at != NULL) {
        at = &(*at)->next;
    }
    landing->next = NULL;
    *at = landing;
}

void hd_tcp_expect_not(hd_tcp *tcp, int from, hd_landing *landing)
{
    hd_tcp_peer *q = &tcp->peer[from];
    hd_landing **at = &q->landing;
    while (*at != NULL && *at != landing) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = landing->next;
    }
    q->into = q->into == landing ? &q->nowhere : q->into;
}

/* Nothing comes behind it from there until its sender has got rid of it. */
int hd_landing_is_to_come(const hd_tcp_peer *q)
{
    const hd_landing *l = q->landing;
    while (l != NULL && l->tag != HD_TCP_PAIR_TAG) {
        l = l->next;
    }
    return l == NULL && q->head.kind == HD_LETTER_EXCHANGE && q->head.tag == HD_TCP_PAIR_TAG;
}

/* Letters of one tag match in order: one that lies here is the next one. */
hd_landing *hd_landing_take(hd_tcp_peer *q)
{
    hd_landing **at = &q->landing;
    const hd_letter *l = q->in;
    while (*at != NULL && (*at)->tag != q->head.tag) {
        at = &(*at)->next;
    }
    while (l != NULL && (l->head.kind != HD_LETTER_EXCHANGE || l->head.tag != q->head.tag)) {
        l = l->next;
    }
    hd_landing *found = *at;
    if (q->head.kind != HD_LETTER_EXCHANGE || found == NULL || l != NULL ||
        q->head.bytes != hd_message_bytes(found->message)) {
        return NULL;
    }
    *at = found->next;
    return found;
}

/* The window, unless a large piece of dst comes next. */
static unsigned char *piece_of(const hd_tcp_peer *q, size_t *bytes)
{
    const hd_landing *l = q->into;
    const size_t rest = q->head.bytes - q->filled;
    unsigned char *piece = l->message != NULL ? hd_message_piece(l->message, l->dst, q->filled, bytes) : NULL;
    return piece != NULL && (*bytes >= HD_TCP_PIECE_BYTES || *bytes == rest) ? piece : NULL;
}

struct iovec hd_landing_part(hd_tcp *tcp, const hd_tcp_peer *q)
{
    size_t bytes = 0;
    const size_t rest = q->head.bytes - q->filled;
    unsigned char *piece = piece_of(q, &bytes);
    return piece != NULL ? (struct iovec){piece, bytes}
                         : (struct iovec){tcp->window, rest < HD_TCP_WINDOW_BYTES ? rest : HD_TCP_WINDOW_BYTES};
}

void hd_landing_fill(const hd_tcp *tcp, hd_tcp_peer *q, size_t came)
{
    size_t bytes = 0;
    const hd_landing *l = q->into;
    if (l->message != NULL && piece_of(q, &bytes) == NULL) {
        hd_message_unpack(l->message, l->dst, q->filled, tcp->window, came);
    }
    q->filled += came;
    if (q->filled == q->head.bytes) {
        q->into = NULL;
        if (l->message != NULL) {
            *l->done = 1;
        }
    }
}
