/* Giving a block's attention a method for a sharded mixed dim. */
#include "runtime/block/sharded.h"
#include "runtime/base/base.h"
#include "runtime/base/hash.h"
#include "runtime/block/inner.h"

#include <stdio.h>
#include <string.h>

/* --- agreement ---------------------------------------------------------------------------------------------------- */

enum { REQUEST_BYTES = 1000 };

typedef struct request {
    uint64_t hash; /* of the whole text */
    int64_t status;
    char text[REQUEST_BYTES]; /* what is asked for, cut; or what is wrong with it */
} request;

static heddle_status compare(const request *all, int size, int rank)
{
    if (all[rank].status != HEDDLE_OK) {
        return hd_fail((heddle_status)all[rank].status, "%s", all[rank].text);
    }
    for (int r = 0; r < size; r++) {
        if (all[r].status != HEDDLE_OK) {
            return hd_fail(HEDDLE_ERR_PEER, "rank %d: %s", r, all[r].text);
        }
    }
    for (int r = 1; r < size; r++) {
        if (all[r].hash != all[0].hash) {
            return hd_fail(HEDDLE_ERR_MISMATCH, "rank %d asks for %.200s, rank 0 for %.200s", r, all[r].text,
                           all[0].text);
        }
    }
    return HEDDLE_OK;
}

/* Collective: HEDDLE_OK when all ranks ask for the same and `mine` is HEDDLE_OK everywhere. */
static heddle_status agree(heddle_comm *comm, heddle_status mine, const char *text)
{
    heddle_status st = HEDDLE_OK;
    request own = {.hash = hd_hash(HD_HASH_BASIS, text, strlen(text)), .status = mine}, *all = NULL;
    int size = heddle_comm_size(comm);
    hd_copy_text(own.text, sizeof own.text, mine == HEDDLE_OK ? text : heddle_last_error());
    st = hd_alloc((void **)&all, (size_t)size, sizeof *all, "an agreement of ranks");
    if (st != HEDDLE_OK) {
        heddle_ignore(heddle_comm_abort(comm, heddle_last_error()));
        return st;
    }
    HD_TRY(heddle_comm_allgather(comm, &own, all, sizeof own));
    st = compare(all, size, heddle_comm_rank(comm));
out:
    hd_free(all);
    return st;
}

/* --- what is asked for -------------------------------------------------------------------------------------------- */

static heddle_status check_layout(const heddle_block *block, const heddle_comm *comm, const heddle_mesh *mesh,
                                  const heddle_layout *layout)
{
    heddle_status st = HEDDLE_OK;
    const heddle_shape *shape = &block->options.shape;
    HD_TRY(heddle_layout_check(layout, shape, mesh));
    if (heddle_mesh_size(mesh) != heddle_comm_size(comm)) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "the mesh has %d ranks, the communicator %d", heddle_mesh_size(mesh),
                       heddle_comm_size(comm));
    }
    for (int a = 0; a < mesh->naxes; a++) {
        if (layout->dim_of_axis[a] == HEDDLE_PARTIAL) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "a block cannot work on partial sums over mesh axis %s",
                           mesh->axis[a].name);
        }
        if (layout->dim_of_axis[a] == shape->ndim - 1 && mesh->axis[a].size > 1) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "a block wants whole channels; mesh axis %s shards dim %s",
                           mesh->axis[a].name, shape->dim[shape->ndim - 1].name);
        }
    }
out:
    return st;
}

/* The mesh of the axes that shard the mixed dim, and the dim's blocks on it; returns the axes, a bit each. */
static unsigned take_axes(hd_block_sharded *s, const heddle_mesh *mesh, const heddle_layout *layout, int mixed)
{
    unsigned axes = 0;
    int coords[HEDDLE_MAX_AXES], from = 0, to = 0;
    s->layout = heddle_layout_replicated();
    heddle_ignore(heddle_mesh_coords(coords, mesh, heddle_comm_rank(s->comm)));
    for (int a = 0; a < mesh->naxes; from += layout->nshards[a], a++) {
        if (layout->dim_of_axis[a] != mixed) {
            continue;
        }
        int i = s->mesh.naxes++;
        axes |= 1u << a;
        s->mesh.axis[i] = mesh->axis[a];
        s->layout.dim_of_axis[i] = 1;
        s->layout.nshards[i] = layout->nshards[a];
        memcpy(&s->layout.shard_len[to], &layout->shard_len[from], (size_t)layout->nshards[a] * sizeof(int64_t));
        to += layout->nshards[a];
        s->rank = s->rank * mesh->axis[a].size + coords[a];
    }
    return axes;
}

static void take_shape(hd_block_sharded *s, const heddle_block *block)
{
    static const char *const name[] = {"f", "s", "h", "d"};
    int mixed = block->options.mixed_dim;
    s->fibres = 1;
    for (int d = 0; d < s->box.ndim - 1; d++) {
        s->fibres *= d == mixed ? 1 : s->box.len[d];
    }
    int64_t extent[] = {s->fibres, block->options.shape.dim[mixed].extent, block->options.heads, block->head_channels};
    s->shape.dtype = hd_mixer_dtype(block);
    s->shape.ndim = 4;
    for (int d = 0; d < 4; d++) {
        snprintf(s->shape.dim[d].name, sizeof s->shape.dim[d].name, "%s", name[d]);
        s->shape.dim[d].extent = extent[d];
    }
}

/* Parses the method, and lets the pure part of attention judge it. */
static heddle_status take_method(hd_block_sharded *s, const heddle_block *block, const char *method)
{
    heddle_status st = HEDDLE_OK;
    int linear = block->options.kind == HEDDLE_STAGE_LINEAR;
    const heddle_dim *mixed = &block->options.shape.dim[block->options.mixed_dim];
    heddle_attention_options_init(&s->options);
    heddle_linear_attention_options_init(&s->linear_options);
    s->linear_options.decay = block->decay;
    s->linear_options.bidirectional = !block->options.causal;
    s->options.threads = block->seats;
    s->options.space = block->options.space;
    s->options.device = s->options.space == HEDDLE_SPACE_DEVICE ? heddle_comm_device(s->comm) : 0;
    s->linear_options.threads = block->seats;
    s->linear_options.space = s->options.space;
    s->linear_options.device = s->options.device;
    st = linear ? heddle_linear_method_parse(&s->linear_options.method, method)
                : heddle_attention_method_parse(&s->options.method, method);
    if (st != HEDDLE_OK) {
        return HEDDLE_ERR_ARG; /* the sentence is that of the parser */
    }
    if (s->mesh.naxes == 0) {
        return strcmp(method, "local") == 0
                   ? HEDDLE_OK
                   : hd_fail(HEDDLE_ERR_LAYOUT, "method %s wants dim %s sharded, the layout leaves it whole", method,
                             mixed->name);
    }
    HD_TRY(linear ? heddle_linear_attention_plan_traffic(&s->planned, &s->shape, &s->mesh, &s->layout,
                                                         &s->linear_options, s->rank)
                  : heddle_attention_plan_traffic(&s->planned, &s->shape, &s->mesh, &s->layout, &s->options, s->rank));
out:
    return st;
}

static heddle_status take_request(hd_block_sharded *s, unsigned *axes, const heddle_block *block,
                                  const heddle_mesh *mesh, const heddle_layout *layout, const char *method)
{
    heddle_status st = HEDDLE_OK;
    if (block->options.kind != HEDDLE_STAGE_ATTENTION && block->options.kind != HEDDLE_STAGE_LINEAR) {
        return hd_fail(HEDDLE_ERR_ARG, "a stage of kind %s mixes no dim: it has no attention to shard",
                       block->options.kind == HEDDLE_STAGE_MLP ? "MLP" : "CROSS");
    }
    if (block->options.space != HEDDLE_SPACE_HOST &&
        heddle_comm_device(s->comm) != heddle_comm_device(block->options.comm)) {
        return hd_fail(HEDDLE_ERR_ARG, "the block is on a device that the communicator does not have");
    }
    if (block->sharded != NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "the block's attention has a method already");
    }
    HD_TRY(check_layout(block, s->comm, mesh, layout));
    HD_TRY(heddle_layout_box(&s->box, &block->options.shape, mesh, layout, heddle_comm_rank(s->comm)));
    *axes = take_axes(s, mesh, layout, block->options.mixed_dim);
    take_shape(s, block);
    HD_TRY(take_method(s, block, method));
out:
    return st;
}

static void describe(char *out, size_t bytes, const heddle_block *block, const heddle_mesh *mesh,
                     const heddle_layout *layout, const char *method)
{
    const heddle_block_options *o = &block->options;
    char shape_text[HEDDLE_LINE_BYTES], mesh_text[HEDDLE_LINE_BYTES], layout_text[HEDDLE_LINE_BYTES];
    heddle_ignore(heddle_shape_format(shape_text, sizeof shape_text, &o->shape));
    heddle_ignore(heddle_mesh_format(mesh_text, sizeof mesh_text, mesh));
    heddle_ignore(heddle_layout_format(layout_text, sizeof layout_text, layout, &o->shape, mesh));
    snprintf(out, bytes, "%s attention by %s over dim %s of %s on %s: %s with %d heads, %s, decay %.17g",
             o->kind == HEDDLE_STAGE_LINEAR ? "linear" : "softmax", method, o->shape.dim[o->mixed_dim].name, shape_text,
             mesh_text, layout_text, o->heads, o->causal ? "causal" : "bidirectional", o->decay);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

heddle_status hd_sharded_check_box(const heddle_block *block, const heddle_box *box)
{
    const heddle_box *own = &block->sharded->box;
    for (int d = 0; d < own->ndim; d++) {
        if (box->lo[d] != own->lo[d] || box->len[d] != own->len[d]) {
            return hd_fail(
                HEDDLE_ERR_LAYOUT, "the box holds %lld..%lld of dim %s, the layout of the block's attention %lld..%lld",
                (long long)box->lo[d], (long long)(box->lo[d] + box->len[d]), block->options.shape.dim[d].name,
                (long long)own->lo[d], (long long)(own->lo[d] + own->len[d]));
        }
    }
    return HEDDLE_OK;
}

heddle_status hd_sharded_give_up(const heddle_block *block, heddle_status st)
{
    const int is_alone = block->sharded == NULL || block->sharded->group == NULL;
    if (is_alone || hd_block_is_held(block)) { /* of a block that is held nobody's call begins */
        return st;
    }
    const hd_sentence why = hd_sentence_keep();
    heddle_ignore(heddle_comm_abort(block->sharded->comm, why.text));
    return hd_sentence_say(&why, st);
}

void hd_sharded_destroy(hd_block_sharded *sharded)
{
    if (sharded == NULL) {
        return;
    }
    hd_sharded_destroy_object(sharded);
    heddle_comm_destroy(sharded->owned);
    hd_free(sharded);
}

/* Everything that is collective. */
static heddle_status make_group(heddle_block *block, const heddle_mesh *mesh, unsigned axes, int back)
{
    heddle_status st = HEDDLE_OK;
    hd_block_sharded *s = block->sharded;
    int members = s->mesh.naxes > 0 ? heddle_mesh_size(&s->mesh) : 1;
    if (members == 1) {
        return HEDDLE_OK;
    }
    if (members == heddle_comm_size(s->comm)) {
        s->group = s->comm;
    } else {
        HD_TRY(heddle_comm_axes_group(&s->owned, s->comm, mesh, axes));
        s->group = s->owned;
    }
    st = hd_sharded_make(block, back);
    if (st == HEDDLE_ERR_TIMEOUT || st == HEDDLE_ERR_TRANSPORT) {
        return hd_sharded_give_up(block, st);
    }
    HD_TRY(agree(s->comm, st, "a block's attention")); /* another group may have failed */
    block->mixer = &hd_mixer_sharded;
out:
    return st;
}

heddle_status heddle_block_shard_attention(heddle_block *block, heddle_comm *comm, const heddle_mesh *mesh,
                                           const heddle_layout *layout, const char *method)
{
    return hd_sharded_begin(block, comm, mesh, layout, method, HD_BACK_NEVER);
}

heddle_status hd_sharded_begin(heddle_block *block, heddle_comm *comm, const heddle_mesh *mesh,
                               const heddle_layout *layout, const char *method, int back)
{
    heddle_status st = HEDDLE_OK;
    hd_block_sharded *s = NULL;
    char *text = NULL;
    unsigned axes = 0;
    if (comm == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_block_shard_attention: comm is NULL");
    }
    if (block == NULL || mesh == NULL || layout == NULL || method == NULL) {
        st = hd_fail(HEDDLE_ERR_ARG, "heddle_block_shard_attention: %s is NULL",
                     block == NULL  ? "block"
                     : mesh == NULL ? "mesh"
                                    : (layout == NULL ? "layout" : "method"));
        return agree(comm, st, ""); /* the others hear of it */
    }
    st = hd_alloc((void **)&s, 1, sizeof *s, "attention over a sharded dim");
    if (st == HEDDLE_OK) {
        st = hd_alloc((void **)&text, 4, HEDDLE_LINE_BYTES, "attention over a sharded dim");
    }
    if (st == HEDDLE_OK) {
        s->comm = comm;
        st = take_request(s, &axes, block, mesh, layout, method);
    }
    if (st == HEDDLE_OK) {
        describe(text, (size_t)4 * HEDDLE_LINE_BYTES, block, mesh, layout, method);
    }
    HD_TRY(agree(comm, st, text != NULL ? text : ""));
    block->sharded = s;
    st = make_group(block, mesh, axes, back);
    if (st != HEDDLE_OK) {
        block->sharded = NULL;
        goto out;
    }
    s = NULL;
out:
    hd_sharded_destroy(s);
    hd_free(text);
    return st;
}

heddle_status heddle_block_get_traffic(heddle_block_traffic *out, const heddle_block *block)
{
    heddle_status st = HEDDLE_OK;
    heddle_block_traffic traffic = HEDDLE_EMPTY(heddle_block_traffic);
    HD_TRY(HD_NEED(out, block));
    if (block->sharded != NULL) {
        traffic.planned_forward_bytes = block->sharded->planned.forward_bytes;
        traffic.planned_backward_bytes = block->sharded->planned.backward_bytes;
        traffic.measured_bytes = hd_sharded_moved_bytes(block->sharded);
    }
    st = hd_struct_give(out, &traffic, HD_STRUCT(heddle_block_traffic, planned_forward_bytes));
out:
    return st;
}
