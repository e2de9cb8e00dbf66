#include "runtime/comm/transport/tcp_bytes.h"

#include <string.h>

/* A run of a message, and how the next one is found. */
typedef struct run {
    const heddle_message *message;
    int64_t index[HEDDLE_MAX_LOOPS];
    int64_t at; /* of its first byte */
} run;

size_t hd_message_bytes(const heddle_message *message)
{
    int64_t bytes = message->run_bytes;
    for (int l = 0; l < message->nloops; l++) {
        bytes *= message->count[l];
    }
    return (size_t)bytes;
}

static run run_of(const heddle_message *message, int64_t number)
{
    run r = {.message = message, .at = message->offset_bytes};
    for (int l = message->nloops - 1; l >= 0; l--) {
        r.index[l] = number % message->count[l];
        number /= message->count[l];
        r.at += r.index[l] * message->stride_bytes[l];
    }
    return r;
}

static void go_on(run *r)
{
    const heddle_message *m = r->message;
    for (int l = m->nloops - 1; l >= 0; l--) {
        r->at += m->stride_bytes[l];
        if (++r->index[l] < m->count[l]) {
            return;
        }
        r->at -= m->count[l] * m->stride_bytes[l];
        r->index[l] = 0;
    }
}

unsigned char *hd_message_piece(const heddle_message *message, unsigned char *buffer, size_t at, size_t *bytes)
{
    const size_t run_bytes = (size_t)message->run_bytes;
    const run r = run_of(message, (int64_t)(at / run_bytes));
    *bytes = run_bytes - at % run_bytes;
    return buffer + r.at + at % run_bytes;
}

void hd_message_pack(const heddle_message *message, const unsigned char *buffer, size_t at, unsigned char *packed,
                     size_t bytes)
{
    const size_t run_bytes = (size_t)message->run_bytes;
    size_t skip = at % run_bytes;
    for (run r = run_of(message, (int64_t)(at / run_bytes)); bytes > 0; go_on(&r)) {
        const size_t now = run_bytes - skip < bytes ? run_bytes - skip : bytes;
        memcpy(packed, buffer + r.at + skip, now);
        packed += now;
        bytes -= now;
        skip = 0;
    }
}

void hd_message_unpack(const heddle_message *message, unsigned char *buffer, size_t at, const unsigned char *packed,
                       size_t bytes)
{
    const size_t run_bytes = (size_t)message->run_bytes;
    size_t skip = at % run_bytes;
    for (run r = run_of(message, (int64_t)(at / run_bytes)); bytes > 0; go_on(&r)) {
        const size_t now = run_bytes - skip < bytes ? run_bytes - skip : bytes;
        memcpy(buffer + r.at + skip, packed, now);
        packed += now;
        bytes -= now;
        skip = 0;
    }
}
