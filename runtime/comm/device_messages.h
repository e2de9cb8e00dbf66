/* Inside of the wire nccl, for device_messages*.c. */
#ifndef HD_COMM_DEVICE_MESSAGES_H
#define HD_COMM_DEVICE_MESSAGES_H

#include "runtime/comm/comm_private.h"
#include "runtime/device/messages.h"

#include <pthread.h>

/* An exchange that is in a stream, not of one that is in a graph. */
typedef struct hd_mail_span {
    struct hd_mail_span *next;
    void *begun, *ended; /* events around it */
    int64_t late_ns;     /* 0: it has not begun, as far as is known */
    int64_t deadline_ms; /* from its beginning on */
} hd_mail_span;

struct hd_comm_mail {
    heddle_comm *root;
    const hd_device *device;
    pthread_mutex_t lock; /* of what follows, up to the thread */
    hd_messages messages;
    hd_mail_span *under_way, *last; /* in the order of the calls; not known to have ended */
    hd_mail_span *spare;
    hd_broken broken;
    pthread_t watch;     /* ends the library's handle, too, which may take as long as graphs live that have its work */
    struct pollfd *life; /* its own */
    pthread_cond_t news;
    int is_watched, shall_end, gives_up, has_ended, is_left;
};

/* With the lock, while nobody else knows of it without. done: of what the library has begun. */
heddle_status hd_comm_mail_look(hd_comm_mail *mail, int *done);
/* Until the library has done what it has begun, which may need the other ranks. */
heddle_status hd_comm_mail_settle(hd_comm_mail *mail, int64_t deadline_ms, const char *what);
/* Begins to enqueue it. */
heddle_status hd_comm_mail_begin(hd_comm_mail *mail, const hd_comm_letters *letters, heddle_stream stream);

/* device_messages_watch.c. With the lock, these three. */
void hd_comm_mail_break_off(hd_comm_mail *mail, heddle_status st); /* with the sentence of the moment */
/* HEDDLE_ERR_TIMEOUT: an exchange that its stream has come to has not ended in time. all: not the oldest one only. */
heddle_status hd_comm_mail_look_at_clock(hd_comm_mail *mail, int all);
heddle_status hd_comm_mail_add_spare(hd_comm_mail *mail);
heddle_status hd_comm_mail_start_watch(hd_comm_mail *mail);
/* The library's handle is ended, and the mail freed: by the watch alone where that takes too long. */
void hd_comm_mail_end(hd_comm_mail *mail, int gives_up);
void hd_comm_mail_free(hd_comm_mail *mail);

#endif
