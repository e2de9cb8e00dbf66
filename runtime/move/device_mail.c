/* A phase of a plan as messages between devices: pack, exchange, unpack or add. */
#include "runtime/move/device_mail.h"
#include "runtime/move/device_sum.h"

#include <string.h>

struct hd_device_mail {
    heddle_comm *comm;
    hd_device *device;
    heddle_dtype dtype;
    hd_comm_letters letters;
    int64_t *send_at, *recv_at;               /* where a message lies */
    unsigned char *send_packed, *recv_packed; /* 1: in the staging */
    int *send_to;                             /* ranks of comm */
    char *stage;
    int64_t stage_bytes, bytes, packed_bytes;
    hd_device_list clear, before, after;
    hd_device_sums sums; /* in the staging */
};

/* While it is made. */
typedef struct making {
    hd_device_mail *mail;
    const hd_mail_spec *spec;
    int rank;
    hd_device_box *before, *after;
    int nbefore, nafter;
    int64_t own_at;   /* of the own part in the staging, where it is a term; -1: no such part */
    int64_t *part_at; /* [recv.count] of terms, in the staging */
} making;

/* The order in which the bytes of a part travel, the same at both ends. */
static hd_copy stream_of(const making *m, const hd_part *part)
{
    hd_copy copy = part->copy;
    if (m->spec->any_adds) {
        hd_copy_walk(&copy, HD_SIDE_DST);
    } else {
        hd_copy_stream(&copy);
    }
    return copy;
}

/* --- what is sent ------------------------------------------------------------------------------------------------- */

static int64_t pack(making *m, hd_copy copy)
{
    int64_t bytes = hd_copy_bytes(&copy), at = hd_device_reserve(&m->mail->stage_bytes, bytes);
    hd_copy_make_dense(&copy, HD_SIDE_DST, at);
    m->before[m->nbefore++] = hd_device_box_of(&copy, 0, 1);
    m->mail->packed_bytes += bytes;
    return at;
}

static void add_send(making *m, const hd_part *part)
{
    hd_device_mail *mail = m->mail;
    hd_copy copy = stream_of(m, part);
    heddle_message whole = hd_copy_message(&copy, HD_SIDE_SRC, part->peer);
    int i = mail->letters.nsends++;
    mail->letters.send[i] =
        (heddle_device_message){.bytes = hd_copy_bytes(&copy), .peer = hd_comm_rank_name(mail->comm, part->peer)};
    mail->send_to[i] = part->peer;
    mail->bytes += mail->letters.send[i].bytes;
    mail->send_packed[i] = whole.nloops > 0;
    mail->send_at[i] = whole.nloops > 0 ? pack(m, copy) : whole.offset_bytes;
}

static void add_sends(making *m)
{
    const hd_parts *send = &m->spec->phase->send;
    for (int i = 0; i < send->count; i++) {
        const hd_part *part = &send->part[i];
        if (part->peer != m->rank) {
            add_send(m, part);
        } else if (m->spec->phase->adds) {
            m->own_at = pack(m, stream_of(m, part));
        } else {
            hd_copy copy = part->copy;
            hd_copy_walk(&copy, HD_SIDE_DST);
            m->before[m->nbefore++] = hd_device_box_of(&copy, 0, 0);
        }
    }
}

/* --- what is received --------------------------------------------------------------------------------------------- */

/* From the staging to its place. */
static void unpack(making *m, hd_copy copy, int64_t at)
{
    hd_copy_make_dense(&copy, HD_SIDE_SRC, at);
    m->after[m->nafter++] = hd_device_box_of(&copy, 1, 0);
    m->mail->packed_bytes += hd_copy_bytes(&copy);
}

static void add_recvs(making *m)
{
    hd_device_mail *mail = m->mail;
    const hd_parts *recv = &m->spec->phase->recv;
    int adds = m->spec->phase->adds;
    for (int i = 0; i < recv->count; i++) {
        const hd_part *part = &recv->part[i];
        hd_copy copy = stream_of(m, part);
        heddle_message whole = hd_copy_message(&copy, HD_SIDE_DST, part->peer);
        int packed = adds || whole.nloops > 0, k = mail->letters.nrecvs;
        if (part->peer == m->rank) {
            m->part_at[i] = m->own_at;
            continue;
        }
        int64_t bytes = hd_copy_bytes(&copy);
        mail->letters.recv[k] =
            (heddle_device_message){.bytes = bytes, .peer = hd_comm_rank_name(mail->comm, part->peer)};
        mail->recv_packed[k] = (unsigned char)packed;
        mail->recv_at[k] = m->part_at[i] = packed ? hd_device_reserve(&mail->stage_bytes, bytes) : whole.offset_bytes;
        mail->letters.nrecvs++;
        if (packed && !adds) {
            unpack(m, copy, mail->recv_at[k]);
        }
    }
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

static heddle_status add_sums(making *m)
{
    hd_device_mail *mail = m->mail;
    heddle_status st = hd_device_sums_make(&mail->sums, &m->spec->phase->recv, m->part_at, (int64_t)m->spec->elem_bytes,
                                           &mail->stage_bytes);
    for (int i = 0; i < mail->sums.nunpacks; i++) {
        m->after[m->nafter] = mail->sums.unpack[i];
        m->after[m->nafter++].src_base = 1;
    }
    mail->packed_bytes += mail->sums.unpacked_bytes;
    return st;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static heddle_status alloc_all(making *m)
{
    heddle_status st = HEDDLE_OK;
    hd_device_mail *mail = m->mail;
    size_t sends = (size_t)m->spec->phase->send.count, recvs = (size_t)m->spec->phase->recv.count;
    const char *what = "messages between devices";
    HD_TRY(hd_alloc((void **)&mail->letters.send, sends, sizeof *mail->letters.send, what));
    HD_TRY(hd_alloc((void **)&mail->letters.recv, recvs, sizeof *mail->letters.recv, what));
    HD_TRY(hd_alloc((void **)&mail->send_at, sends, sizeof *mail->send_at, what));
    HD_TRY(hd_alloc((void **)&mail->recv_at, recvs, sizeof *mail->recv_at, what));
    HD_TRY(hd_alloc((void **)&mail->send_packed, sends, 1, what));
    HD_TRY(hd_alloc((void **)&mail->recv_packed, recvs, 1, what));
    HD_TRY(hd_alloc((void **)&mail->send_to, sends, sizeof *mail->send_to, what));
    HD_TRY(hd_alloc((void **)&m->before, sends, sizeof *m->before, what));
    HD_TRY(hd_alloc((void **)&m->after, recvs, sizeof *m->after, what));
    HD_TRY(hd_alloc((void **)&m->part_at, recvs, sizeof *m->part_at, what));
out:
    return st;
}

static heddle_status make(making *m)
{
    heddle_status st = HEDDLE_OK;
    hd_device_mail *mail = m->mail;
    const hd_copy *clear = m->spec->phase->clear;
    int64_t deadline_ns = hd_comm_deadline_ns(mail->comm, m->spec->deadline_ms);
    HD_TRY(alloc_all(m));
    add_sends(m);
    add_recvs(m);
    HD_TRY(m->spec->phase->adds ? add_sums(m) : HEDDLE_OK);
    if (clear != NULL && hd_copy_bytes(clear) > 0) {
        hd_device_box box = hd_device_box_of(clear, 0, 0);
        HD_TRY(hd_device_list_make(&mail->clear, mail->device, &box, 1, deadline_ns));
    }
    HD_TRY(hd_device_list_make(&mail->before, mail->device, m->before, m->nbefore, deadline_ns));
    HD_TRY(hd_device_list_make(&mail->after, mail->device, m->after, m->nafter, deadline_ns));
    if (mail->stage_bytes > 0) {
        st = mail->device->library->alloc((void **)&mail->stage, mail->device->number, (size_t)mail->stage_bytes);
    }
out:
    return st;
}

heddle_status hd_device_mail_create(hd_device_mail **out, heddle_comm *comm, const hd_mail_spec *spec)
{
    making m = {.spec = spec, .rank = heddle_comm_rank(comm), .own_at = -1};
    heddle_status st = hd_alloc((void **)&m.mail, 1, sizeof *m.mail, "messages between devices");
    if (st == HEDDLE_OK) {
        m.mail->comm = comm;
        m.mail->device = hd_comm_device(comm);
        m.mail->dtype = spec->dtype;
        m.mail->letters.deadline_ms = spec->deadline_ms;
        st = make(&m);
    }
    HD_FREE_ALL(m.before, m.after, m.part_at);
    if (st != HEDDLE_OK) {
        hd_device_mail_destroy(m.mail);
        m.mail = NULL;
    }
    *out = m.mail;
    return st;
}

void hd_device_mail_destroy(hd_device_mail *mail)
{
    if (mail == NULL) {
        return;
    }
    hd_device_list_free(&mail->clear);
    hd_device_list_free(&mail->before);
    hd_device_list_free(&mail->after);
    hd_device_sums_free(&mail->sums);
    hd_device_free(mail->device, mail->stage);
    HD_FREE_ALL(mail->letters.send, mail->letters.recv, mail->send_at, mail->recv_at, mail->send_packed,
                mail->recv_packed, mail->send_to, mail);
}

void hd_device_mail_get_info(hd_device_mail_info *out, const hd_device_mail *mail)
{
    *out = (hd_device_mail_info){.bytes = mail->bytes,
                                 .messages = mail->letters.nsends,
                                 .packed_bytes = mail->packed_bytes,
                                 .memory_bytes =
                                     mail->stage_bytes + mail->clear.bytes + mail->before.bytes + mail->after.bytes};
}

/* --- executing ---------------------------------------------------------------------------------------------------- */

static heddle_status exchange(hd_device_mail *mail, const void *src, void *dst, heddle_stream stream, int is_captured)
{
    hd_comm_letters *l = &mail->letters;
    for (int i = 0; i < l->nsends; i++) {
        const char *base = mail->send_packed[i] ? mail->stage : src;
        l->send[i].data = (void *)(uintptr_t)(base + mail->send_at[i]);
    }
    for (int i = 0; i < l->nrecvs; i++) {
        l->recv[i].data = (mail->recv_packed[i] ? mail->stage : (char *)dst) + mail->recv_at[i];
    }
    return l->nsends + l->nrecvs > 0 ? hd_comm_mail_exchange(mail->comm, l, stream, is_captured) : HEDDLE_OK;
}

static heddle_status run(hd_device_mail *mail, const void *src, void *dst, heddle_stream stream, int is_captured)
{
    heddle_status st = HEDDLE_OK;
    const void *from[2] = {src, mail->stage};
    void *to[2] = {dst, mail->stage};
    HD_TRY(hd_device_list_run(&mail->clear, HD_DEVICE_CLEAR, from, to, stream));
    HD_TRY(hd_device_list_run(&mail->before, HD_DEVICE_COPY, from, to, stream));
    HD_TRY(exchange(mail, src, dst, stream, is_captured));
    HD_TRY(hd_device_sums_run(&mail->sums, mail->device, mail->stage, dst, mail->dtype, stream));
    st = hd_device_list_run(&mail->after, HD_DEVICE_COPY, from, to, stream);
out:
    return st;
}

heddle_status hd_device_mail_run(hd_device_mail *mail, const void *src, void *dst, heddle_stream stream,
                                 int is_captured, int64_t *sent)
{
    int before = 0;
    heddle_status st = mail->device->library->enter(&before, mail->device->number);
    if (st == HEDDLE_OK) {
        st = run(mail, src, dst, stream, is_captured);
        mail->device->library->leave(before);
    }
    for (int i = 0; st == HEDDLE_OK && i < mail->letters.nsends; i++) {
        sent[mail->send_to[i]] += mail->letters.send[i].bytes;
    }
    return st == HEDDLE_OK ? st : hd_comm_mail_give_up(mail->comm, st);
}
