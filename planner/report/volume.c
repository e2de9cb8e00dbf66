/* What a reshard moves between which ranks. */
#include "planner/report/volume.h"

#include "planner/report/text.h"

#include <stdlib.h>
#include <string.h>

enum { TABLE_RANKS = 16, CHUNK_BYTES = 1 << 20 };

/* Large matrices have millions of numbers: printf is too slow for them. */
typedef struct output {
    size_t used_bytes;
    char chunk[CHUNK_BYTES];
} output;

static void put_text(output *out, const char *text, size_t n)
{
    if (out->used_bytes + n > CHUNK_BYTES) {
        fwrite(out->chunk, 1, out->used_bytes, stdout);
        out->used_bytes = 0;
    }
    memcpy(out->chunk + out->used_bytes, text, n);
    out->used_bytes += n;
}

static void put_number(output *out, int64_t value)
{
    char digits[24], *at = digits + sizeof digits;
    do {
        *--at = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    put_text(out, at, (size_t)(digits + sizeof digits - at));
}

typedef struct volume {
    const heddle_reshard_line *line;
    int nranks;
    heddle_peer_bytes *sends;       /* [nranks], of one rank */
    int64_t *sent, *received;       /* [nranks] */
    int64_t total, messages, pairs; /* pairs: (from, to) with anything to move */
    int most_peers;
    output *json; /* NULL: none wanted */
} volume;

static void put_row(volume *v, int rank, int count)
{
    output *out = v->json;
    int at = 0;
    put_text(out, rank > 0 ? ",\n[" : "\n[", rank > 0 ? 3 : 2);
    for (int peer = 0; peer < v->nranks; peer++) {
        if (peer > 0) {
            put_text(out, ",", 1);
        }
        if (at < count && v->sends[at].peer == peer) {
            put_number(out, v->sends[at++].bytes);
        } else {
            put_text(out, "0", 1);
        }
    }
    put_text(out, "]", 1);
}

static heddle_status count_rank(volume *v, int rank, int *count)
{
    heddle_status st = heddle_reshard_sends(v->sends, v->nranks, count, v->line, rank);
    if (st != HEDDLE_OK) {
        return st;
    }
    for (int i = 0; i < *count; i++) {
        const heddle_peer_bytes *send = &v->sends[i];
        v->sent[rank] += send->bytes;
        v->received[send->peer] += send->bytes;
        v->messages += send->messages;
    }
    v->total += v->sent[rank];
    v->pairs += *count;
    v->most_peers = *count > v->most_peers ? *count : v->most_peers;
    return HEDDLE_OK;
}

static int64_t largest(const int64_t *values, int n, int *where)
{
    *where = 0;
    for (int i = 1; i < n; i++) {
        *where = values[i] > values[*where] ? i : *where;
    }
    return values[*where];
}

static int64_t smallest(const int64_t *values, int n)
{
    int64_t least = values[0];
    for (int i = 1; i < n; i++) {
        least = values[i] < least ? values[i] : least;
    }
    return least;
}

static heddle_status print_json(volume *v)
{
    char text[HEDDLE_LINE_BYTES + 64];
    int where = 0, n = 0;
    heddle_status st = heddle_reshard_format(text, HEDDLE_LINE_BYTES, v->line);
    put_text(v->json, "{\"schema\": \"heddle-traffic-1\", \"line\": \"", 40);
    put_text(v->json, text, strlen(text));
    n = snprintf(text, sizeof text, "\", \"ranks\": %d, \"bytes\": [", v->nranks);
    put_text(v->json, text, (size_t)n);
    for (int rank = 0, count = 0; rank < v->nranks && st == HEDDLE_OK; rank++) {
        st = count_rank(v, rank, &count);
        if (st == HEDDLE_OK) {
            put_row(v, rank, count);
        }
    }
    if (st == HEDDLE_OK) {
        fwrite(v->json->chunk, 1, v->json->used_bytes, stdout);
        printf("],\n\"messages\": %lld, \"bytes_total\": %lld, \"bytes_per_rank_max\": %lld, ", (long long)v->messages,
               (long long)v->total, (long long)largest(v->sent, v->nranks, &where));
        printf("\"bytes_received_max\": %lld}\n", (long long)largest(v->received, v->nranks, &where));
    }
    return st;
}

static void print_table_row(const volume *v, int rank, int count)
{
    int at = 0;
    printf("%6d", rank);
    for (int peer = 0; peer < v->nranks; peer++) {
        if (at < count && v->sends[at].peer == peer) {
            printf(" %12lld", (long long)v->sends[at++].bytes);
        } else {
            printf(" %12s", ".");
        }
    }
    printf("  | %14lld\n", (long long)v->sent[rank]);
}

static heddle_status print_text(volume *v)
{
    char text[HEDDLE_LINE_BYTES];
    int table = v->nranks <= TABLE_RANKS, where = 0;
    heddle_status st = heddle_reshard_format(text, sizeof text, v->line);
    for (int rank = 0, count = 0; rank < v->nranks && st == HEDDLE_OK; rank++) {
        st = count_rank(v, rank, &count);
        if (st == HEDDLE_OK && rank == 0) {
            printf("%s\n", text);
            for (int peer = 0; table && peer < v->nranks; peer++) {
                printf("%s %12d", peer == 0 ? "  from" : "", peer);
            }
            printf("%s", table ? "  |           sent\n" : "");
        }
        if (st == HEDDLE_OK && table) {
            print_table_row(v, rank, count);
        }
    }
    if (st != HEDDLE_OK) {
        return st;
    }
    int64_t most = largest(v->sent, v->nranks, &where);
    printf("total %lld bytes in %lld message%s between %lld pair%s of ranks; a rank sends to at most %d other%s\n",
           (long long)v->total, (long long)v->messages, report_s(v->messages), (long long)v->pairs, report_s(v->pairs),
           v->most_peers, report_s(v->most_peers));
    printf("sent per rank: most %lld (rank %d), mean %.1f, least %lld bytes\n", (long long)most, where,
           (double)v->total / v->nranks, (long long)smallest(v->sent, v->nranks));
    most = largest(v->received, v->nranks, &where);
    printf("received per rank: most %lld (rank %d), least %lld bytes\n", (long long)most, where,
           (long long)smallest(v->received, v->nranks));
    return HEDDLE_OK;
}

heddle_status report_volume(const heddle_reshard_line *line, int json)
{
    volume v = {.line = line, .nranks = heddle_mesh_size(&line->mesh)};
    size_t n = (size_t)v.nranks;
    heddle_status st = HEDDLE_OK;
    v.sends = calloc(n, sizeof *v.sends);
    v.sent = calloc(n, sizeof *v.sent);
    v.received = calloc(n, sizeof *v.received);
    v.json = json ? calloc(1, sizeof *v.json) : NULL;
    if (v.sends == NULL || v.sent == NULL || v.received == NULL || (json && v.json == NULL)) {
        st = heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %zu bytes of counts for %d ranks",
                              n * (sizeof *v.sends + sizeof *v.sent + sizeof *v.received) + (json ? sizeof *v.json : 0),
                              v.nranks);
    } else {
        st = json ? print_json(&v) : print_text(&v);
    }
    free(v.sends);
    free(v.sent);
    free(v.received);
    free(v.json);
    return st;
}
