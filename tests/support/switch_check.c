#include "switch_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANARY_BYTES = 64, CANARY = 0xA5, ROUNDS = 2 };

typedef struct side {
    heddle_box box;
    int64_t stride[HEDDLE_MAX_DIMS];
    int64_t elems;
    int is_zero; /* another rank has the values of what these are terms of */
    unsigned char *data;
} side;

static int wrong(char *text, const char *line, const char *what)
{
    snprintf(text, SWITCH_TEXT_BYTES, "%.400s: %.500s", line, what);
    return -1;
}

/* What the element with this global index looks like in round `round`. */
static void value_of(unsigned char *out, size_t elem_bytes, int64_t index, int round)
{
    uint64_t v = ((uint64_t)index + 1) * 0x9E3779B97F4A7C15u + (uint64_t)round * 0xD1B54A32D192ED03u;
    v ^= v >> 31;
    memcpy(out, &v, elem_bytes);
}

/* Fills (or checks) the local array element by element; returns the global index of the first wrong one, -1: none. */
static int64_t walk(const heddle_shape *shape, const side *s, int round, int fill)
{
    size_t elem_bytes = heddle_dtype_bytes(shape->dtype);
    for (int64_t k = 0; k < s->elems; k++) {
        int64_t rest = k;
        int64_t at = 0;
        int64_t index = 0;
        int64_t scale = 1;
        for (int d = shape->ndim - 1; d >= 0; d--) {
            int64_t i = rest % s->box.len[d];
            rest /= s->box.len[d];
            at += i * s->stride[d];
            index += (s->box.lo[d] + i) * scale;
            scale *= shape->dim[d].extent;
        }
        unsigned char value[8] = {0};
        if (!s->is_zero) {
            value_of(value, elem_bytes, index, round);
        }
        unsigned char *element = s->data + (size_t)at * elem_bytes;
        if (fill) {
            memcpy(element, value, elem_bytes);
        } else if (memcmp(element, value, elem_bytes) != 0) {
            return index;
        }
    }
    return -1;
}

/* Of replicas that become terms of a sum the first one has the values. */
static int is_later_term(const heddle_reshard_line *line, int rank)
{
    int is_later = 0;
    for (int a = line->mesh.naxes - 1; a >= 0; a--) {
        is_later |= line->to.dim_of_axis[a] == HEDDLE_PARTIAL && rank % line->mesh.axis[a].size != 0;
        rank /= line->mesh.axis[a].size;
    }
    return is_later;
}

static heddle_status side_init(side *s, heddle_comm *comm, const heddle_reshard_line *line, int is_dst)
{
    const heddle_order *order = is_dst ? &line->to_order : &line->from_order;
    heddle_status st =
        heddle_layout_box(&s->box, &line->shape, &line->mesh, is_dst ? &line->to : &line->from, heddle_comm_rank(comm));
    if (st != HEDDLE_OK) {
        return st;
    }
    s->elems = heddle_box_elems(&s->box);
    s->is_zero = is_dst && is_later_term(line, heddle_comm_rank(comm));
    heddle_box_strides(s->stride, &s->box, order->ndim > 0 ? order : NULL);
    size_t bytes = (size_t)s->elems * heddle_dtype_bytes(line->shape.dtype);
    void *memory = NULL;
    st = heddle_buffer_alloc(&memory, comm, bytes + CANARY_BYTES, HEDDLE_SPACE_HOST);
    s->data = memory;
    if (st == HEDDLE_OK) {
        memset(s->data, CANARY, bytes + CANARY_BYTES);
    }
    return st;
}

static int canary_lives(const side *s, const heddle_shape *shape)
{
    const unsigned char *canary = s->data + (size_t)s->elems * heddle_dtype_bytes(shape->dtype);
    for (int i = 0; i < CANARY_BYTES; i++) {
        if (canary[i] != CANARY) {
            return 0;
        }
    }
    return 1;
}

static int counts_agree(const heddle_reshard *reshard, const heddle_reshard_line *line, int rank, int64_t *total_to,
                        char *text)
{
    char what[256];
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    heddle_peer_bytes sends[64];
    int count = 0;
    if (heddle_reshard_get_info(&info, reshard) != HEDDLE_OK ||
        heddle_reshard_sends(sends, 64, &count, line, rank) != HEDDLE_OK || count > 64) {
        return wrong(text, "counts", heddle_last_error());
    }
    for (int peer = 0; peer < info.nranks; peer++) {
        int64_t planned = 0;
        for (int i = 0; i < count; i++) {
            planned += sends[i].peer == peer ? sends[i].bytes : 0;
        }
        if (info.bytes_to[peer] != planned || info.measured_bytes_to[peer] != ROUNDS * planned) {
            snprintf(what, sizeof(what), "rank %d to %d: planned %lld, info %lld, measured %lld in %d executions", rank,
                     peer, (long long)planned, (long long)info.bytes_to[peer], (long long)info.measured_bytes_to[peer],
                     ROUNDS);
            return wrong(text, info.line, what);
        }
        if (total_to != NULL) {
            total_to[peer] += info.measured_bytes_to[peer];
        }
    }
    if (info.bytes_peer_path + info.bytes_messages != info.bytes_sent) {
        return wrong(text, info.line, "bytes of the peer path and of messages do not add up");
    }
    return 0;
}

static int run_rounds(heddle_reshard *reshard, const heddle_reshard_line *line, const char *text_line, side *src,
                      side *dst, char *text)
{
    char what[128];
    for (int round = 0; round < ROUNDS; round++) {
        walk(&line->shape, src, round, 1);
        if (heddle_reshard_execute(reshard, src->data, dst->data, HEDDLE_NO_STREAM) != HEDDLE_OK) {
            return wrong(text, text_line, heddle_last_error());
        }
        int64_t bad = walk(&line->shape, dst, round, 0);
        if (bad >= 0) {
            snprintf(what, sizeof(what), "round %d: element with global index %lld is wrong", round, (long long)bad);
            return wrong(text, text_line, what);
        }
        if (!canary_lives(src, &line->shape) || !canary_lives(dst, &line->shape)) {
            return wrong(text, text_line, "bytes behind a buffer were written");
        }
    }
    return 0;
}

int switch_check(heddle_comm *comm, const char *text_line, int64_t *total_to, char *text)
{
    heddle_reshard_line line;
    heddle_reshard *reshard = NULL;
    heddle_reshard_options options;
    side src = {.data = NULL};
    side dst = {.data = NULL};
    int result = -1;
    heddle_reshard_options_init(&options);
    options.tuning = total_to != NULL ? HEDDLE_TUNING_RULES : HEDDLE_TUNING_TRIALS; /* trials move bytes too */
    if (heddle_reshard_parse(&line, text_line) != HEDDLE_OK || side_init(&src, comm, &line, 0) != HEDDLE_OK ||
        side_init(&dst, comm, &line, 1) != HEDDLE_OK ||
        heddle_reshard_create_line(&reshard, comm, &line, &options) != HEDDLE_OK) {
        wrong(text, text_line, heddle_last_error());
    } else {
        result = run_rounds(reshard, &line, text_line, &src, &dst, text);
        result = result != 0 ? result : counts_agree(reshard, &line, heddle_comm_rank(comm), total_to, text);
        if (heddle_comm_barrier(comm) != HEDDLE_OK && result == 0) {
            result = wrong(text, text_line, heddle_last_error());
        }
    }
    heddle_reshard_destroy(reshard);
    heddle_buffer_free(comm, src.data);
    heddle_buffer_free(comm, dst.data);
    return result;
}

const char *switch_line(int index, int nranks, char room[SWITCH_TEXT_BYTES])
{
    /* %d: all ranks; the last ones need an even number of them */
    static const char *const pattern[] = {
        "bf16[t=8 s=16 c=24] on [sp=%d]: t@sp -> s@sp",
        "f32[b=2 t=7 s=13 c=5] on [sp=%d]: t@sp -> s@sp",
        "f64[t=5 s=9 c=3] on [sp=%d]: s@sp -> t@sp",
        "u8[t=3 s=5 c=1] on [sp=%d]: t@sp -> s@sp as c,s,t",
        "i32[t=1 s=2 c=64] on [sp=%d]: t@sp -> c@sp",
        "f16[b=2 t=4 s=6 c=8] on [sp=%d]: t@sp -> s@sp as b,s,t,c",
        "bf16[t=4 s=6 c=8] on [sp=%d]: t@sp -> *",
        "i8[t=9 s=4 c=16] on [sp=%d]: * -> s@sp",
        "f32[t=64 s=64 c=96] on [sp=%d]: t@sp -> s@sp",
        "bf16[t=6 s=8 c=4] on [node=2 sp=%d]: t@node,s@sp -> s@node,t@sp",
        "f32[t=12 s=5 c=3] on [node=2 sp=%d]: t@node,t@sp -> s@node,s@sp",
        "i64[t=6 s=8 c=4] on [node=2 sp=%d]: t@sp -> s@sp",
        "f32[t=6 s=8 c=4] on [node=2 sp=%d]: t@node -> s@node,sum@sp",
    };
    enum { FLAT = 9, ALL = 13 };
    int count = nranks % 2 == 0 ? ALL : FLAT;
    if (index < 0 || index >= count) {
        return NULL;
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(room, SWITCH_TEXT_BYTES, pattern[index], index < FLAT ? nranks : nranks / 2);
#pragma GCC diagnostic pop
    return room;
}
