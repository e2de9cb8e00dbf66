/* Ranks that a communicator of NCCL knows already. Its messages between devices tell them once where everybody sits and
 * a key; then they join as processes of one host, or by connections between hosts, because NCCL has neither deadlines
 * nor news of who gives up; and the communicator is lent to the wire nccl. */
#include "runtime/comm/transport/callbacks.h"
#include "runtime/comm/transport/tcp.h"
#include "runtime/comm/transport/transport.h"
#include "runtime/device/enqueued.h"
#include "runtime/device/messages.h"

#include <heddle/nccl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { KEY_BYTES = 40 };

/* The first word of a rank: who it is, and where it listens. */
typedef struct first_word {
    hd_introduction who;
    hd_tcp_place place;
} first_word;

typedef struct meeting {
    const heddle_comm_options *options;
    hd_interrupt interrupt;
    int64_t deadline_ns;
    hd_device *device;
    hd_messages messages; /* its handle is one by which the first word goes */
    int rank, size, listener;
    hd_introduction *who; /* [size] what came of all */
    hd_tcp_place *place;  /* [size] */
} meeting;

/* The device is the handle's own, unless the options name one. */
static heddle_status find_device(meeting *b, void *handle)
{
    heddle_status st = HEDDLE_OK;
    const char *asked = b->options->device, *folder = b->options->module_folder;
    int number = 0;
    char name[32];
    HD_TRY(hd_device_open(&b->device, asked != NULL ? asked : "cuda:current", folder, 0));
    HD_TRY(hd_messages_load(&b->messages, "nccl", folder, b->device));
    HD_TRY(b->messages.table->look(handle, &b->rank, &b->size, &number));
    if (asked == NULL && number != b->device->number) {
        hd_device_close(b->device);
        b->device = NULL;
        snprintf(name, sizeof name, "cuda:%d", number);
        HD_TRY(hd_device_open(&b->device, name, folder, 0));
    }
    st = b->messages.table->borrow(&b->messages.handle, handle, b->rank, b->size, b->device->number);
out:
    return st;
}

/* --- the first word ----------------------------------------------------------------------------------------------- */

/* Own words at place `rank` of the device's memory, everybody's after it. */
static heddle_status enqueue(const meeting *b, char *words, first_word *all, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = b->device->library;
    const int64_t bytes = sizeof *all;
    heddle_device_message *send = NULL, *recv = NULL;
    int n = 0;
    HD_TRY(hd_alloc((void **)&send, (size_t)b->size, sizeof *send, "the first messages of ranks"));
    HD_TRY(hd_alloc((void **)&recv, (size_t)b->size, sizeof *recv, "the first messages of ranks"));
    for (int r = 0; r < b->size; r++) {
        if (r != b->rank) {
            send[n] = (heddle_device_message){words + b->rank * bytes, bytes, r};
            recv[n++] = (heddle_device_message){words + r * bytes, bytes, r};
        }
    }
    HD_TRY(library->copy(words + b->rank * bytes, bytes, &all[b->rank], bytes, bytes, 1, b->device->number, stream));
    st = b->messages.table->exchange(b->messages.handle, send, n, recv, n, stream);
out:
    hd_free(send);
    hd_free(recv);
    return st;
}

static heddle_status look_at_time(meeting *b)
{
    if (hd_interrupted(&b->interrupt)) {
        return hd_fail(HEDDLE_ERR_INTERRUPTED, "rank %d: interrupted while ranks met", b->rank);
    }
    return hd_now_ns() <= b->deadline_ns
               ? HEDDLE_OK
               : hd_fail(HEDDLE_ERR_TIMEOUT,
                         "rank %d of %d: not all ranks of the communicator of NCCL came before the deadline (%lld ms)",
                         b->rank, b->size, (long long)hd_options_deadline_ms(b->options));
}

static heddle_status look(void *arg)
{
    meeting *b = arg;
    int is_enqueued = 0;
    heddle_status st = b->messages.table->test(b->messages.handle, &is_enqueued);
    return st == HEDDLE_OK ? look_at_time(b) : st;
}

/* Until what was begun is enqueued and, of a stream, has happened. */
static heddle_status await(meeting *b, hd_enqueued *enqueued, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    int is_enqueued = 0, done = 0;
    for (int turn = 0; !is_enqueued; turn++) {
        HD_TRY(turn > 0 ? look_at_time(b) : HEDDLE_OK);
        HD_TRY(b->messages.table->test(b->messages.handle, &is_enqueued));
        hd_nap(turn);
    }
    HD_TRY(hd_enqueued_end(enqueued, stream, HEDDLE_OK));
    HD_TRY(hd_enqueued_await(&done, enqueued, INT64_MAX, look, b)); /* which knows the deadline */
    st = b->messages.table->test(b->messages.handle, &is_enqueued); /* what failed has ended, too */
out:
    return st;
}

/* Everybody's words to the host, once they are there: until then it is not asked for, as that could wait for them. */
static heddle_status meet(first_word *all, meeting *b, char *words, hd_enqueued *enqueued, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    const int64_t bytes = b->size * (int64_t)sizeof *all;
    HD_TRY(enqueue(b, words, all, stream));
    HD_TRY(await(b, enqueued, stream));
    HD_TRY(b->device->library->copy(all, bytes, words, bytes, bytes, 1, b->device->number, stream));
    st = await(b, enqueued, stream);
out:
    return st;
}

/* Collective. */
static heddle_status introduce(first_word *all, meeting *b)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = b->device->library;
    const int number = b->device->number;
    heddle_stream stream = NULL;
    void *words = NULL;
    hd_enqueued enqueued = {0};
    HD_TRY(hd_introduce(&all[b->rank].who, b->options));
    if (b->size == 1) {
        return HEDDLE_OK;
    }
    if (hd_tcp_listen(&b->listener, &all[b->rank].place, 0) != HEDDLE_OK) {
        memset(&all[b->rank].place, 0, sizeof all->place); /* it matters on several hosts alone */
    }
    HD_TRY(library->alloc(&words, number, (size_t)b->size * sizeof *all));
    HD_TRY(library->stream_create(&stream, number));
    HD_TRY(hd_enqueued_open(&enqueued, b->device));
    st = meet(all, b, words, &enqueued, stream);
    words = st == HEDDLE_OK ? words : NULL; /* until the caller ends it messages may come: the memory stays */
out:
    hd_enqueued_close(&enqueued);
    library->stream_destroy(stream, number);
    library->free(words, number);
    return st;
}

/* --- what follows from it ----------------------------------------------------------------------------------------- */

/* Collective. What everybody has said, in arrays of its own. */
static heddle_status gather(meeting *b)
{
    heddle_status st;
    first_word *all = NULL;
    HD_TRY(hd_alloc((void **)&all, (size_t)b->size, sizeof *all, "introductions of the ranks"));
    HD_TRY(hd_alloc((void **)&b->who, (size_t)b->size, sizeof *b->who, "introductions of the ranks"));
    HD_TRY(hd_alloc((void **)&b->place, (size_t)b->size, sizeof *b->place, "places of the ranks"));
    HD_TRY(introduce(all, b));
    for (int r = 0; r < b->size; r++) {
        b->who[r] = all[r].who;
        b->place[r] = all[r].place;
    }
    st = hd_introductions_agree(b->who, b->size);
out:
    hd_free(all);
    return st;
}

static int is_one_host(const meeting *b)
{
    for (int r = 1; r < b->size; r++) {
        if (!hd_introductions_meet(b->who, b->size, 0, r, b->options)) {
            return 0;
        }
    }
    return 1;
}

static heddle_status join_hosts(heddle_comm **out, meeting *b, const heddle_comm_options *options)
{
    heddle_status st;
    hd_tcp *tcp = NULL;
    const hd_tcp_meeting m = {.rank = b->rank,
                              .size = b->size,
                              .place = b->place,
                              .key = {b->who[0].word[2], b->who[0].word[3]},
                              .deadline_ns = b->deadline_ns,
                              .interrupt = b->interrupt};
    for (int r = 0; r < b->size; r++) {
        if (b->place[r].port[0] == 0 && b->place[r].port[1] == 0) {
            return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                           "the ranks of the communicator of NCCL are on several hosts, and rank %d has no address to "
                           "listen at",
                           r);
        }
    }
    HD_TRY(hd_tcp_open(&tcp, &m, b->listener));
    const heddle_transport table = hd_tcp_table(tcp);
    HD_TRY(heddle_comm_from_callbacks(out, &table, tcp, options));
    tcp = NULL; /* the communicator's */
out:
    hd_tcp_close(tcp);
    return st;
}

/* Under rank 0's random word. */
static heddle_status join(heddle_comm **out, meeting *b, void *handle)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm *comm = NULL;
    heddle_comm_options options = *b->options;
    char key[KEY_BYTES];
    const uint64_t *word = b->who[0].word;
    options.device = NULL; /* below, with what is lent */
    options.wire = HEDDLE_WIRE_AUTO;
    snprintf(key, sizeof key, "%016llx%016llx", (unsigned long long)word[2], (unsigned long long)word[3]);
    HD_TRY(is_one_host(b) ? hd_join_shm(&comm, key, b->rank, b->size, &options) : join_hosts(&comm, b, &options));
    comm->lent = handle;
    st = hd_comm_attach(comm, b->device->name, HEDDLE_WIRE_NCCL, options.module_folder, HEDDLE_OK);
    comm->lent = NULL;
    HD_TRY(st);
    *out = comm;
    comm = NULL;
out:
    heddle_comm_destroy(comm);
    return st;
}

static heddle_status check(const heddle_comm_options *options)
{
    int fits = options->wire == HEDDLE_WIRE_AUTO || options->wire == HEDDLE_WIRE_NCCL;
    return fits ? HEDDLE_OK
                : hd_fail(HEDDLE_ERR_ARG, "heddle_comm_from_nccl: wire is %d, wanted %d or 0", (int)options->wire,
                          (int)HEDDLE_WIRE_NCCL);
}

heddle_status heddle_comm_from_nccl(heddle_comm **out, struct ncclComm *borrowed, const heddle_comm_options *given)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm_options options;
    meeting b = {.options = &options, .listener = -1};
    HD_TRY(HD_NEED(out, borrowed));
    HD_TRY(hd_options_check(&options, given));
    HD_TRY(check(&options));
    b.deadline_ns = hd_now_ns() + hd_options_deadline_ms(&options) * 1000000;
    b.interrupt = hd_options_interrupt(&options);
    HD_TRY(find_device(&b, borrowed));
    HD_TRY(gather(&b));
    hd_messages_end(&b.messages, 0);
    st = join(out, &b, borrowed);
out:
    hd_messages_end(&b.messages, 0);
    hd_device_close(b.device);
    hd_free(b.who);
    hd_free(b.place);
    if (b.listener >= 0) {
        close(b.listener);
    }
    return st;
}
