/* Inside of the wire nccl, for device_messages.c and device_messages_open.c. */
#ifndef HD_COMM_DEVICE_MESSAGES_H
#define HD_COMM_DEVICE_MESSAGES_H

#include "runtime/comm/comm_private.h"
#include "runtime/device/messages.h"

#include <pthread.h>

struct hd_comm_mail {
    heddle_comm *root;
    const hd_device *device;
    pthread_mutex_t lock; /* of what follows, up to the thread */
    hd_messages messages;
    void *begun, *ended; /* events around the last exchange; not of those in graphs */
    int is_recorded;     /* it has not ended, as far as is known */
    int64_t late_ns;     /* 0: it has not begun, as far as is known */
    int64_t deadline_ms;
    heddle_status broken;
    char why[1024];
    pthread_t watch;
    struct pollfd *life; /* its own */
    pthread_cond_t ends;
    int is_watched, shall_end;
};

/* What is waited for in turns: yields first, then sleeps for a moment. */
void hd_comm_mail_nap(int turn);
/* With the lock, while nobody else knows of it without. done: of what the library has begun. */
heddle_status hd_comm_mail_look(hd_comm_mail *mail, int *done);
/* Until the library has done what it has begun, which may need the other ranks. */
heddle_status hd_comm_mail_settle(hd_comm_mail *mail, int64_t deadline_ms, const char *what);
/* Begins to enqueue it. */
heddle_status hd_comm_mail_begin(hd_comm_mail *mail, const hd_comm_letters *letters, heddle_stream stream);
heddle_status hd_comm_mail_start_watch(hd_comm_mail *mail);
void hd_comm_mail_stop_watch(hd_comm_mail *mail);

#endif
