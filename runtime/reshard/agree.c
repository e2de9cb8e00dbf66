/* Ranks compare what they ask for before anything else happens. */
#include "runtime/reshard/plan.h"

#include <stdio.h>
#include <string.h>

enum { SENTENCE_BYTES = 240 };

static const char *const field_name[HD_NFIELDS] = {
    "library version", "dtype",      "dims",     "extents",       "mesh",          "from layout",
    "to layout",       "from order", "to order", "memory option", "tuning option", "kernel"};

static void text_of_order(char *out, size_t bytes, const heddle_order *order)
{
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < order->ndim && at < bytes; i++) {
        at += (size_t)snprintf(out + at, bytes - at, "%s%d", i > 0 ? "," : "", order->dim[i]);
    }
}

static void text_of_dims(char *out, size_t bytes, const heddle_shape *shape, int extents)
{
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < shape->ndim && at < bytes; i++) {
        const char *gap = i > 0 ? " " : "";
        at += (size_t)(extents ? snprintf(out + at, bytes - at, "%s%s=%lld", gap, shape->dim[i].name,
                                          (long long)shape->dim[i].extent)
                               : snprintf(out + at, bytes - at, "%s%s", gap, shape->dim[i].name));
    }
}

/* A field as text: what is compared (by its hash), and what a mismatch prints. */
static void text_of_field(char *out, size_t bytes, const hd_request *request, int field)
{
    const heddle_reshard_line *line = &request->line;
    out[0] = 0;
    switch (field) {
    case 0:
        snprintf(out, bytes, "%zu %zu", sizeof(hd_facts), sizeof(hd_transfer_spec));
        break;
    case 1:
        snprintf(out, bytes, "%s", heddle_dtype_name(line->shape.dtype));
        break;
    case 2:
    case 3:
        text_of_dims(out, bytes, &line->shape, field == 3);
        break;
    case 4:
        heddle_mesh_format(out, bytes, &line->mesh);
        break;
    case 5:
    case 6:
        heddle_layout_format(out, bytes, field == 5 ? &line->from : &line->to, &line->shape, &line->mesh);
        break;
    case 7:
    case 8:
        text_of_order(out, bytes, field == 7 ? &line->from_order : &line->to_order);
        break;
    case 9:
        snprintf(out, bytes, "%s", request->options.memory == HEDDLE_MEMORY_ANY ? "any" : "peer");
        break;
    case 10:
        snprintf(out, bytes, "%s", request->options.tuning == HEDDLE_TUNING_RULES ? "rules" : "trials");
        break;
    default:
        snprintf(out, bytes, "%s", request->kernel != NULL ? request->kernel->name : "chosen");
        break;
    }
}

static uint64_t hash_text(const char *text)
{
    uint64_t h = 1469598103934665603u;
    for (; *text != 0; text++) {
        h = (h ^ (unsigned char)*text) * 1099511628211u;
    }
    return h;
}

static heddle_status tell_mismatch(heddle_comm *comm, const hd_request *request, int rank, int field)
{
    heddle_status st = HEDDLE_OK;
    char full[HEDDLE_LINE_BYTES], text[SENTENCE_BYTES / 2] = "";
    void *all = NULL;
    text_of_field(full, sizeof full, request, field);
    snprintf(text, sizeof text, "%s", full);
    st = hd_alloc(&all, (size_t)heddle_comm_size(comm), sizeof text, "fields of all ranks");
    if (st != HEDDLE_OK) {
        heddle_comm_abort(comm, "out of memory while telling of a mismatch");
        return st;
    }
    HD_TRY(hd_gather(comm, text, all, sizeof text));
    st = hd_fail(HEDDLE_ERR_MISMATCH, "rank %d asks for another reshard: %s '%s', rank 0 has '%s'", rank,
                 field_name[field], (char *)all + (size_t)rank * sizeof text, (char *)all);
out:
    hd_free(all);
    return st;
}

heddle_status hd_facts_agree(hd_facts *facts, heddle_comm *comm, const hd_request *request)
{
    heddle_status st = HEDDLE_OK;
    char text[HEDDLE_LINE_BYTES];
    hd_facts own;
    memset(&own, 0, sizeof own);
    for (int f = 0; f < HD_NFIELDS; f++) {
        text_of_field(text, sizeof text, request, f);
        own.field[f] = hash_text(text);
    }
    memcpy(own.src_stride_elems, request->src_stride_elems, sizeof own.src_stride_elems);
    memcpy(own.dst_stride_elems, request->dst_stride_elems, sizeof own.dst_stride_elems);
    own.src_bytes = request->src_bytes;
    own.dst_bytes = request->dst_bytes;
    HD_TRY(hd_gather(comm, &own, facts, sizeof own));
    for (int r = 1; r < heddle_comm_size(comm); r++) {
        for (int f = 0; f < HD_NFIELDS; f++) {
            if (facts[r].field[f] != facts[0].field[f]) {
                st = tell_mismatch(comm, request, r, f);
                goto out;
            }
        }
    }
out:
    return st;
}
