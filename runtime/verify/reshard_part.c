/* One rank's array for the judge: with guards around it and gaps between its rows, filled, checked, written to
 * files. */
#include "runtime/verify/device_array.h"
#include "runtime/verify/judge.h"
#include "runtime/verify/reshard_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 256, CANARY = 0xC5 };

static const heddle_layout *layout_of(const verify_part *part)
{
    return part->is_to ? &part->line->to : &part->line->from;
}

static int dim_at(const verify_part *part, int position)
{
    const heddle_order *order = part->is_to ? &part->line->to_order : &part->line->from_order;
    return order->ndim > 0 ? order->dim[position] : position;
}

/* Calls visit(context, element, at) for every element in memory order until it returns 0; the result of the last. */
typedef int (*visit_fn)(void *context, char *element, const int64_t *at);

static int visit_elements(const verify_part *part, visit_fn visit, void *context)
{
    int ndim = part->box.ndim, going = 1;
    int64_t bytes = (int64_t)heddle_dtype_bytes(part->line->shape.dtype);
    int64_t at[HEDDLE_MAX_DIMS];
    memcpy(at, part->box.lo, sizeof at);
    if (heddle_box_elems(&part->box) == 0) {
        return 1;
    }
    char *element = part->data;
    while ((going = visit(context, element, at)) != 0) {
        int k = ndim - 1;
        for (; k >= 0; k--) {
            int d = dim_at(part, k);
            element += part->stride_elems[d] * bytes;
            if (++at[d] < part->box.lo[d] + part->box.len[d]) {
                break;
            }
            element -= part->stride_elems[d] * bytes * part->box.len[d];
            at[d] = part->box.lo[d];
        }
        if (k < 0) {
            break;
        }
    }
    return going;
}

static int mark_owned(void *context, char *element, const int64_t *at)
{
    const verify_part *part = context;
    (void)at;
    memset(part->owned + (element - part->data), 1, heddle_dtype_bytes(part->line->shape.dtype));
    return 1;
}

/* pad_elems: so many elements that belong to nobody behind every step of every dim. */
static void choose_strides(verify_part *part, int64_t pad_elems)
{
    int64_t stride = 1, last = 0;
    for (int k = part->box.ndim - 1; k >= 0; k--) {
        int d = dim_at(part, k);
        int64_t len = part->box.len[d] > 0 ? part->box.len[d] : 1;
        part->stride_elems[d] = stride;
        last += stride * (len - 1);
        stride = stride * len + pad_elems;
    }
    part->span_bytes =
        heddle_box_elems(&part->box) > 0 ? (size_t)(last + 1) * heddle_dtype_bytes(part->line->shape.dtype) : 0;
}

heddle_status verify_part_make(verify_part *out, heddle_comm *comm, const heddle_reshard_line *line, int is_to,
                               const verify_storage *storage)
{
    memset(out, 0, sizeof *out);
    out->line = line;
    out->is_to = is_to;
    out->rank = heddle_comm_rank(comm);
    heddle_status st = heddle_layout_box(&out->box, &line->shape, &line->mesh, layout_of(out), out->rank);
    st = st != HEDDLE_OK ? st : heddle_mesh_coords(out->coords, &line->mesh, out->rank);
    if (st != HEDDLE_OK) {
        return st;
    }
    choose_strides(out, storage->pad_elems);
    size_t shift = (size_t)storage->misaligned_elems * heddle_dtype_bytes(line->shape.dtype);
    out->memory_bytes = 2 * GUARD_BYTES + shift + out->span_bytes;
    void *memory = NULL, *on_device = NULL;
    const int is_image = heddle_comm_device(comm) >= 0;
    out->comm = comm;
    out->is_lent = !is_image && !storage->private_memory;
    if (out->is_lent) {
        st = heddle_buffer_alloc(&memory, comm, out->memory_bytes, HEDDLE_SPACE_HOST);
    } else {
        memory = malloc(out->memory_bytes);
        st = is_image ? heddle_buffer_alloc(&on_device, comm, out->memory_bytes, HEDDLE_SPACE_DEVICE) : st;
    }
    out->on_device = on_device;
    out->owned = storage->pad_elems > 0 && st == HEDDLE_OK ? calloc(out->span_bytes + 1, 1) : NULL;
    out->memory = memory;
    if (st != HEDDLE_OK) {
        return st;
    }
    if (memory == NULL || (storage->pad_elems > 0 && out->owned == NULL)) {
        const double bytes = (double)out->memory_bytes + (storage->pad_elems > 0 ? (double)out->span_bytes + 1 : 0);
        verify_part_free(out);
        return judge_no_memory(is_to ? "a destination and its canaries" : "a source and its canaries", bytes);
    }
    out->data = out->memory + GUARD_BYTES + shift;
    if (out->owned != NULL) {
        visit_elements(out, mark_owned, out);
    }
    return HEDDLE_OK;
}

void verify_part_free(verify_part *part)
{
    if (part->on_device != NULL) {
        heddle_buffer_free(part->comm, part->on_device);
    }
    if (part->is_lent) {
        heddle_buffer_free(part->comm, part->memory);
    } else {
        free(part->memory);
    }
    free(part->owned);
    memset(part, 0, sizeof *part);
}

void *verify_part_data(const verify_part *part)
{
    return part->on_device != NULL ? part->on_device + (part->data - part->memory) : part->data;
}

heddle_status verify_part_send(const verify_part *part, heddle_stream stream)
{
    return part->on_device == NULL
               ? HEDDLE_OK
               : judge_device_copy(part->comm, part->on_device, part->memory, part->memory_bytes, stream);
}

heddle_status verify_part_fetch(const verify_part *part, heddle_stream stream)
{
    return part->on_device == NULL
               ? HEDDLE_OK
               : judge_device_copy(part->comm, part->memory, part->on_device, part->memory_bytes, stream);
}

typedef struct visit_state {
    const verify_part *part;
    const verify_values *values;
    char *problem;
    size_t problem_bytes;
} visit_state;

static int fill_element(void *context, char *element, const int64_t *at)
{
    const visit_state *s = context;
    verify_element(element, s->values, at, s->part->coords, s->part->is_to);
    return 1;
}

void verify_part_fill(verify_part *part, const verify_values *values)
{
    memset(part->memory, CANARY, part->memory_bytes);
    if (values != NULL) {
        visit_state state = {part, values, NULL, 0};
        visit_elements(part, fill_element, &state);
    }
}

/* Bits are compared, so that NaNs and signed zeros count. */
static int check_element(void *context, char *element, const int64_t *at)
{
    const visit_state *s = context;
    const heddle_shape *shape = &s->part->line->shape;
    unsigned char wanted[8];
    uint64_t got_bits = 0, wanted_bits = 0;
    size_t bytes = heddle_dtype_bytes(shape->dtype);
    verify_element(wanted, s->values, at, s->part->coords, s->part->is_to);
    if (verify_same(element, wanted, s->part->line)) {
        return 1;
    }
    memcpy(&got_bits, element, bytes);
    memcpy(&wanted_bits, wanted, bytes);
    int n = snprintf(s->problem, s->problem_bytes, "rank %d, %s: the element at", s->part->rank,
                     s->part->is_to ? "after" : "source");
    for (int d = 0; d < shape->ndim; d++) {
        n += snprintf(s->problem + n, s->problem_bytes - (size_t)n, " %s=%lld", shape->dim[d].name, (long long)at[d]);
    }
    snprintf(s->problem + n, s->problem_bytes - (size_t)n, " is 0x%0*llx, not 0x%0*llx (round %d, offset %td bytes)",
             (int)bytes * 2, (unsigned long long)got_bits, (int)bytes * 2, (unsigned long long)wanted_bits,
             s->values->round, element - s->part->data);
    return 0;
}

/* Every byte that is no element must be what it was. `owned` tells elements from gaps; without gaps none is needed. */
static int check_canaries(const verify_part *part, char *problem, size_t problem_bytes)
{
    const unsigned char *memory = (const unsigned char *)part->memory, *data = (const unsigned char *)part->data;
    for (size_t i = 0; i < part->memory_bytes; i++) {
        const unsigned char *at = memory + i;
        if (at >= data && at < data + part->span_bytes && (part->owned == NULL || part->owned[at - data])) {
            if (part->owned == NULL) {
                i += part->span_bytes - 1;
            }
            continue;
        }
        if (*at != CANARY) {
            snprintf(problem, problem_bytes,
                     "rank %d, %s: byte %td is no part of the array of %zu bytes, but was overwritten", part->rank,
                     part->is_to ? "destination" : "source", at - data, part->span_bytes);
            return 0;
        }
    }
    return 1;
}

int verify_part_check(const verify_part *part, const verify_values *values, char *problem, size_t problem_bytes)
{
    visit_state state = {part, values, problem, problem_bytes};
    problem[0] = '\0';
    return visit_elements(part, check_element, &state) && check_canaries(part, problem, problem_bytes);
}

heddle_status verify_part_save(const verify_part *part, const char *directory)
{
    char path[4096];
    int64_t extent[HEDDLE_MAX_DIMS];
    for (int k = 0; k < part->box.ndim; k++) {
        extent[k] = part->box.len[dim_at(part, k)];
    }
    int n = snprintf(path, sizeof path, "%s/%s-%d.npy", directory, part->is_to ? "to" : "from", part->rank);
    if (n < 0 || (size_t)n >= sizeof path) {
        return heddle_set_error(HEDDLE_ERR_ARG, "--save: the path '%.40s...' is too long", directory);
    }
    return npy_write(path, npy_type_of(part->line->shape.dtype), part->box.ndim, extent, part->data);
}
