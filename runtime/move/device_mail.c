/* A phase of a plan as messages between devices: pack, exchange, unpack or add. */
#include "runtime/move/device_mail.h"

#include <string.h>

enum { ALIGNMENT = 256 };

/* Terms for one place, dense in the staging, in rank order. */
typedef struct mail_sum {
    int first, nterms; /* in term_at */
    int64_t elems, result_at;
    int is_direct; /* result_at is in dst, not in the staging */
} mail_sum;

struct hd_device_mail {
    heddle_comm *comm;
    const hd_device *device;
    heddle_dtype dtype;
    hd_comm_letters letters;
    int64_t *send_at, *recv_at;               /* where a message lies */
    unsigned char *send_packed, *recv_packed; /* 1: in the staging */
    int *send_to;                             /* ranks of comm */
    char *stage;
    int64_t stage_bytes, bytes, packed_bytes;
    hd_device_list clear, before, after;
    mail_sum *sum;
    int64_t *term_at;
    const void **term; /* scratch */
    int nsums, nterms;
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

static int64_t reserve(hd_device_mail *mail, int64_t bytes)
{
    int64_t at = mail->stage_bytes;
    mail->stage_bytes = (at + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

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
    int64_t bytes = hd_copy_bytes(&copy), at = reserve(m->mail, bytes);
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
        mail->recv_at[k] = m->part_at[i] = packed ? reserve(mail, bytes) : whole.offset_bytes;
        mail->letters.nrecvs++;
        if (packed && !adds) {
            unpack(m, copy, mail->recv_at[k]);
        }
    }
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

static int is_first(const hd_parts *recv, int i)
{
    int k = 0;
    while (k < i && !hd_copy_same_place(&recv->part[k].copy, &recv->part[i].copy)) {
        k++;
    }
    return k == i;
}

static heddle_status add_sum(making *m, int first)
{
    hd_device_mail *mail = m->mail;
    const hd_parts *recv = &m->spec->phase->recv;
    mail_sum *sum = &mail->sum[mail->nsums++];
    hd_copy copy = stream_of(m, &recv->part[first]);
    int64_t bytes = hd_copy_bytes(&copy);
    heddle_message whole = hd_copy_message(&copy, HD_SIDE_DST, 0);
    *sum = (mail_sum){.first = mail->nterms, .elems = bytes / (int64_t)m->spec->elem_bytes};
    for (int i = first; i < recv->count; i++) {
        if (hd_copy_same_place(&recv->part[first].copy, &recv->part[i].copy)) {
            mail->term_at[mail->nterms++] = m->part_at[i];
            sum->nterms++;
        }
    }
    sum->is_direct = whole.nloops == 0;
    sum->result_at = sum->is_direct ? whole.offset_bytes : reserve(mail, bytes);
    if (!sum->is_direct) {
        unpack(m, copy, sum->result_at);
    }
    return sum->nterms <= HD_DEVICE_MAX_PEERS
               ? HEDDLE_OK
               : hd_fail(HEDDLE_ERR_UNSUPPORTED, "partial sums of %d ranks, the kernels of device %s add at most %d",
                         sum->nterms, mail->device->name, HD_DEVICE_MAX_PEERS);
}

static heddle_status add_sums(making *m)
{
    heddle_status st = HEDDLE_OK;
    const hd_parts *recv = &m->spec->phase->recv;
    for (int i = 0; m->spec->phase->adds && i < recv->count; i++) {
        HD_TRY(is_first(recv, i) ? add_sum(m, i) : HEDDLE_OK);
    }
out:
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
    HD_TRY(hd_alloc((void **)&mail->sum, recvs, sizeof *mail->sum, what));
    HD_TRY(hd_alloc((void **)&mail->term_at, recvs, sizeof *mail->term_at, what));
    HD_TRY(hd_alloc((void **)&mail->term, recvs, sizeof *mail->term, what));
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
    HD_TRY(add_sums(m));
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
    hd_device_free(mail->device, mail->stage);
    HD_FREE_ALL(mail->letters.send, mail->letters.recv, mail->send_at, mail->recv_at, mail->send_packed,
                mail->recv_packed, mail->send_to, mail->sum, mail->term_at, mail->term, mail);
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

static heddle_status add_up(hd_device_mail *mail, char *dst, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const hd_device_kernels *kernels = mail->device->library->kernels;
    for (int i = 0; i < mail->nsums; i++) {
        const mail_sum *sum = &mail->sum[i];
        for (int k = 0; k < sum->nterms; k++) {
            mail->term[k] = mail->stage + mail->term_at[sum->first + k];
        }
        char *result = (sum->is_direct ? dst : mail->stage) + sum->result_at;
        int code = kernels->sum(result, mail->term, sum->nterms, sum->elems, mail->dtype, stream);
        HD_TRY(mail->device->library->status(code, mail->device->number, "a launch of sums"));
    }
out:
    return st;
}

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
    HD_TRY(add_up(mail, dst, stream));
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
