/* Inside of the wire nccl, for device_nccl*.c. */
#ifndef HD_COMM_DEVICE_NCCL_H
#define HD_COMM_DEVICE_NCCL_H

#include "runtime/comm/comm_private.h"
#include "runtime/device/messages.h"

#include <pthread.h>

/* That who is to blame needs to get here: the system closes the connections of a rank that dies before it says that it
 * has ended, and on a busy machine much later. */
enum { HD_NCCL_NEWS_NS = 1000000000 };

/* An exchange that is in a stream, not of one that is in a graph. */
typedef struct hd_nccl_span {
    struct hd_nccl_span *next;
    void *begun, *ended; /* events around it */
    int64_t late_ns;     /* 0: it has not begun, as far as is known */
    int64_t deadline_ms; /* from its beginning on */
} hd_nccl_span;

struct hd_comm_nccl {
    heddle_comm *root;
    const hd_device *device;
    pthread_mutex_t lock; /* of what follows, up to the thread */
    hd_messages messages;
    hd_nccl_span *under_way, *last; /* in the order of the calls; not known to have ended */
    hd_nccl_span *spare;
    hd_broken broken;
    pthread_t watch;     /* ends the library's handle, too, which may take as long as graphs live that have its work */
    struct pollfd *life; /* its own */
    pthread_cond_t news;
    int is_watched, shall_end, gives_up, has_ended, is_left;
    int64_t gone_ns; /* when the thread first heard of the library that some rank is gone; 0 */
};

/* With the lock, while nobody else knows of it without. done: of what the library has begun. */
heddle_status hd_comm_nccl_look(hd_comm_nccl *nccl, int *done);
/* Does the library say so because some rank is gone? Then there is a better reason. */
int hd_comm_nccl_is_gone(heddle_status st);
/* Until the library has done what it has begun, which may need the other ranks. */
heddle_status hd_comm_nccl_settle(hd_comm_nccl *nccl, int64_t deadline_ms, const char *what);
/* Begins to enqueue it. */
heddle_status hd_comm_nccl_begin(hd_comm_nccl *nccl, const hd_nccl_batch *batch, heddle_stream stream);

/* device_nccl_watch.c. With the lock, these three. */
void hd_comm_nccl_break_off(hd_comm_nccl *nccl, heddle_status st); /* with the sentence of the moment */
/* HEDDLE_ERR_TIMEOUT: an exchange that its stream has come to has not ended in time. all: not the oldest one only. */
heddle_status hd_comm_nccl_look_at_clock(hd_comm_nccl *nccl, int all);
heddle_status hd_comm_nccl_add_spare(hd_comm_nccl *nccl);
heddle_status hd_comm_nccl_start_watch(hd_comm_nccl *nccl);
/* The library's handle is ended, and the nccl freed: by the watch alone where that takes too long. */
void hd_comm_nccl_end(hd_comm_nccl *nccl, int gives_up);
void hd_comm_nccl_free(hd_comm_nccl *nccl);

#endif
