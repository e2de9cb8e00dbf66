/* Making an attention object: every step that can fail on one rank is followed by an agreement. */
#include "runtime/attention/attention_private.h"

#include <stdio.h>
#include <string.h>

const hd_core_method *hd_core_method_of(const hd_attn_problem *problem)
{
    switch (problem->options.method) {
    case HEDDLE_ATTENTION_RSA:
        return problem->options.projected_length > 0 ? &hd_core_projected : &hd_core_rsa;
    case HEDDLE_ATTENTION_GATHER_KV:
        return &hd_core_gather;
    default: /* local, ulysses: a ring of one */
        return &hd_core_ring;
    }
}

/* --- what is compared --------------------------------------------------------------------------------------------- */

static void describe(hd_fields *fields, const hd_attn_problem *p, const heddle_mesh *mesh, const heddle_layout *layout)
{
    const heddle_attention_options *o = &p->options;
    hd_object_describe(fields, &p->shape, mesh, layout);
    hd_fields_add(fields, "method", "%s", heddle_attention_method_name(o->method));
    hd_fields_add(fields, "number of key heads", "%lld", (long long)o->kv_heads);
    hd_fields_add(fields, "mask", "%s", o->causal ? "causal" : "bidirectional");
    hd_fields_add(fields, "placement", "%s", o->placement == HEDDLE_PLACEMENT_ZIGZAG ? "zigzag" : "blocks");
    hd_fields_add(fields, "set of key lengths", "%016llx", (unsigned long long)p->key_lengths_hash);
    hd_fields_add(fields, "scale", "%a", o->scale);
    hd_fields_add(fields, "log-sum-exp option", "%d", o->log_sum_exp != 0);
    hd_fields_add(fields, "forward-only option", "%d", o->forward_only != 0);
    hd_fields_add(fields, "all-reduce option", "%d", o->rsa_all_reduce != 0);
    hd_fields_add(fields, "projected length", "%lld", (long long)o->projected_length);
    hd_fields_add(fields, "space", "%d", (int)o->space);
}

/* --- groups ------------------------------------------------------------------------------------------------------- */

/* A mesh in which the sequence's axes first..last are one; *axis gets its index. */
static heddle_mesh merge_axes(int *axis, const heddle_mesh *mesh, int first, int last)
{
    heddle_mesh merged = {.naxes = 0};
    for (int a = 0; a < mesh->naxes; a++) {
        if (a <= first || a > last) {
            merged.axis[merged.naxes++] = mesh->axis[a];
        } else {
            merged.axis[merged.naxes - 1].size *= mesh->axis[a].size;
        }
    }
    *axis = first;
    return merged;
}

static heddle_status group_over(heddle_comm **out, heddle_comm **owned, heddle_comm *comm, const heddle_mesh *mesh,
                                int first, int last)
{
    heddle_status st = HEDDLE_OK;
    int axis;
    heddle_mesh merged = merge_axes(&axis, mesh, first, last);
    int size = merged.axis[axis].size;
    if (size == 1) {
        *out = NULL;
    } else if (size == heddle_comm_size(comm)) {
        *out = comm;
    } else {
        HD_TRY(heddle_comm_axis_group(owned, comm, &merged, axis));
        *out = *owned;
    }
out:
    return st;
}

static heddle_status make_groups(heddle_attention *a, const heddle_mesh *mesh)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = &a->problem;
    int first = p->first_axis, last = p->second_axis >= 0 ? p->second_axis : first;
    if (p->nranks == 1) {
        return HEDDLE_OK;
    }
    if (p->options.method == HEDDLE_ATTENTION_USP) {
        HD_TRY(group_over(&a->ring, &a->part[0], a->comm, mesh, first, first));
        HD_TRY(group_over(&a->spread, &a->part[1], a->comm, mesh, last, last));
    } else {
        HD_TRY(group_over(p->spread > 1 ? &a->spread : &a->ring, &a->part[0], a->comm, mesh, first, last));
    }
out:
    return st;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static heddle_status take(void **out, heddle_attention *a, int64_t bytes)
{
    a->workspace_bytes += bytes;
    return hd_room_want(&a->user, HD_ROOM_METHOD, out, bytes);
}

/* What backward needs of forward. */
static heddle_status take_saved(void **out, heddle_attention *a, int64_t bytes)
{
    a->saved_bytes += bytes;
    return a->core.keeps ? heddle_buffer_alloc(out, a->comm, (size_t)(bytes > 0 ? bytes : 1), HEDDLE_SPACE_HOST)
                         : hd_room_want(&a->user, HD_ROOM_METHOD, out, bytes);
}

static heddle_status take_backward_memory(heddle_attention *a)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = &a->problem;
    int64_t all_elems = a->q_elems + 2 * a->kv_elems;
    HD_TRY(take(&a->d_o, a, a->q_elems * p->elem_bytes));
    HD_TRY(take(&a->delta, a, a->row_elems * p->real_bytes));
    HD_TRY(take(&a->grad, a, all_elems * p->real_bytes));
    if (p->dtype == HEDDLE_BF16) {
        HD_TRY(take(&a->wide_d_o, a, a->q_elems * p->real_bytes));
        if (p->spread > 1) {
            HD_TRY(take(&a->narrow_grad, a, all_elems * p->elem_bytes));
        }
    }
out:
    return st;
}

static heddle_status take_all_memory(heddle_attention *a)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = &a->problem;
    const hd_head_part *part = &p->part[p->rank % p->spread];
    int64_t own_rows = p->batch * p->member_rows[p->rank].rows;
    int64_t part_rows = p->batch * p->held[p->rank / p->spread].rows;
    a->row_elems = part->nq * part_rows;
    a->q_elems = a->row_elems * p->width;
    a->kv_elems = part->nkv * part_rows * p->width;
    HD_TRY(hd_alloc((void **)&a->sources, (size_t)p->spread, sizeof(void *), "an attention"));
    HD_TRY(take_saved(&a->qkv, a, (a->q_elems + 2 * a->kv_elems) * p->elem_bytes));
    HD_TRY(take_saved(&a->o, a, a->q_elems * p->real_bytes));
    if (p->options.method != HEDDLE_ATTENTION_RSA || p->options.projected_length > 0) {
        HD_TRY(take_saved(&a->top, a, a->row_elems * p->real_bytes));
        HD_TRY(take_saved(&a->log_sum, a, a->row_elems * p->real_bytes));
    }
    if (p->options.log_sum_exp) {
        HD_TRY(take(&a->lse, a, a->row_elems * p->real_bytes));
    }
    if (p->dtype == HEDDLE_BF16) {
        HD_TRY(take_saved(&a->wide_q, a, a->q_elems * p->real_bytes));
        if (p->spread > 1) {
            HD_TRY(take(&a->narrow_o, a, a->q_elems * p->elem_bytes));
        }
    }
    if (p->spread > 1) {
        HD_TRY(take(&a->rows, a, p->packed_heads * own_rows * p->width * p->elem_bytes));
        if (p->options.log_sum_exp) {
            HD_TRY(take(&a->lse_rows, a, p->heads * own_rows * p->real_bytes));
        }
    }
    if (!p->options.forward_only) {
        HD_TRY(take_backward_memory(a));
    }
out:
    return st;
}

/* --- the object --------------------------------------------------------------------------------------------------- */

/* What more the method would hold if nothing were lent. */
static int64_t lent_bytes(const hd_attn_problem *p)
{
    hd_method_group members = p->members;
    hd_memory as_it_is, unlent;
    hd_method_memory(&as_it_is, p->method, &members, p->rank);
    members.lends = 0;
    hd_method_memory(&unlent, p->method, &members, p->rank);
    return (int64_t)(unlent.workspace_bytes - as_it_is.workspace_bytes);
}

/* mine: what this rank has come to before. */
static heddle_status make_core(heddle_attention *a, hd_room *room, heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    hd_core *core = &a->core;
    const hd_attn_problem *p = &a->problem;
    core->problem = p;
    core->all = a->comm;
    core->user = &a->user;
    core->kernels = hd_kernels_attn(core->table, p->real);
    core->comm = a->ring;
    core->nranks = p->ring;
    core->rank = p->rank / p->spread;
    core->part = &p->part[p->rank % p->spread];
    core->heads = core->part->nq;
    core->kv_heads = core->part->nkv;
    core->rows = p->held;
    core->threads = p->options.threads > 0 ? p->options.threads : 1;
    if (mine == HEDDLE_OK) {
        mine = hd_core_take_room(core, hd_core_most_rows(core));
    }
    if (mine == HEDDLE_OK && a->method->take != NULL) {
        mine = hd_alloc(&core->method, 1, a->method->method_bytes, "an attention");
        a->core_made = mine == HEDDLE_OK;
        mine = mine == HEDDLE_OK ? a->method->take(core) : mine;
    }
    HD_TRY(hd_comm_agree(a->comm, mine));
    a->core_made = 1;
    HD_TRY(a->method->create(core));
    a->problem.members.lends = core->lends;
    a->user.lent_bytes = lent_bytes(p);
    st = hd_room_enter(&a->user, room, a->comm);
out:
    return st;
}

static void explain(heddle_attention *a)
{
    const hd_attn_problem *p = &a->problem;
    const hd_head_part *part = &p->part[p->rank % p->spread];
    snprintf(a->why, sizeof a->why,
             "heads exchanged over %d ranks, %lld query and %lld key heads here; keys of %d ranks", p->spread,
             (long long)part->nq, (long long)part->nkv, p->ring);
}

/* A collective operation ended half way, perhaps only in a group of some ranks: no other can follow, all are told. */
static int out_of_step(heddle_status st)
{
    return st == HEDDLE_ERR_TRANSPORT || st == HEDDLE_ERR_TIMEOUT;
}

static heddle_status create_all(heddle_attention *a, const heddle_mesh *mesh, hd_room *room)
{
    const int is_on_device = a->problem.options.space == HEDDLE_SPACE_DEVICE;
    heddle_status st = hd_attn_on_check(&a->problem, a->comm);
    HD_TRY(is_on_device ? hd_comm_agree(a->comm, st) : st); /* for the host all ranks find the same */
    HD_TRY(make_groups(a, mesh));
    HD_TRY(hd_comm_agree(a->comm, is_on_device ? hd_attn_on_take(a) : take_all_memory(a)));
    a->method = hd_core_method_of(&a->problem);
    if (a->spread != NULL) {
        st = hd_heads_create(&a->heads, a->spread, &a->problem);
    }
    if (!out_of_step(st)) {
        st = is_on_device ? hd_attn_on_make(a, st) : make_core(a, room, st);
    }
    if (out_of_step(st)) {
        return hd_comm_abort_with(a->comm, st);
    }
    HD_TRY(hd_comm_agree(a->comm, st));
    explain(a);
out:
    return st;
}

heddle_status heddle_attention_create(heddle_attention **out, heddle_comm *comm, const heddle_shape *shape,
                                      const heddle_mesh *mesh, const heddle_layout *layout,
                                      const heddle_attention_options *options)
{
    return hd_attention_create_in(out, comm, shape, mesh, layout, options, (hd_object_room){.keeps = 1});
}

heddle_status hd_attention_create_in(heddle_attention **out, heddle_comm *comm, const heddle_shape *shape,
                                     const heddle_mesh *mesh, const heddle_layout *layout,
                                     const heddle_attention_options *options, hd_object_room in)
{
    heddle_status st = HEDDLE_OK;
    heddle_attention *a = NULL;
    hd_fields fields = {.what = "attention"};
    static const char *const name = "heddle_attention_create";
    HD_TRY(hd_need(comm, name, "comm")); /* there is nobody to tell */
    heddle_status mine = in.mine;
    mine = mine != HEDDLE_OK
               ? mine
               : hd_need_all((const void *const[]){out, shape, mesh, layout}, 4, name, "out, shape, mesh, layout");
    if (mine == HEDDLE_OK) {
        mine = hd_alloc((void **)&a, 1, sizeof *a, "an attention");
    }
    if (mine == HEDDLE_OK) {
        a->comm = comm;
        a->core.keeps = in.keeps;
        mine = hd_kernels_cpu(&a->core.table);
    }
    if (mine == HEDDLE_OK) {
        mine = hd_attn_problem_make(&a->problem, shape, mesh, layout, options, heddle_comm_rank(comm));
    }
    if (mine == HEDDLE_OK && heddle_mesh_size(mesh) != heddle_comm_size(comm)) {
        mine = hd_fail(HEDDLE_ERR_LAYOUT, "the mesh has %d ranks, the communicator %d", heddle_mesh_size(mesh),
                       heddle_comm_size(comm));
    }
    if (mine == HEDDLE_OK) {
        describe(&fields, &a->problem, mesh, layout);
    }
    HD_TRY(hd_comm_agree_on(comm, &fields, mine));
    HD_TRY(create_all(a, mesh, in.room));
    *out = a;
    a = NULL;
out:
    heddle_attention_destroy(a);
    return st;
}

heddle_status hd_attention_enter(heddle_attention *attention, hd_room *room)
{
    return attention->on != NULL ? HEDDLE_OK : hd_room_enter(&attention->user, room, attention->comm);
}

static void free_memory(heddle_attention *a)
{
    void *saved[] = {a->qkv, a->wide_q != a->qkv ? a->wide_q : NULL, a->o, a->top, a->log_sum};
    for (size_t i = 0; a->core.keeps && i < sizeof saved / sizeof saved[0]; i++) {
        heddle_buffer_free(a->comm, saved[i]);
    }
    hd_room_leave(a->user.room);
}

void heddle_attention_destroy(heddle_attention *attention)
{
    if (attention == NULL) {
        return;
    }
    if (attention->core_made) {
        attention->method->destroy(&attention->core);
    }
    hd_attn_on_free(attention);
    HD_FREE_ALL(attention->sources, attention->core.method);
    hd_heads_destroy(&attention->heads);
    free_memory(attention);
    for (int i = 0; i < 2; i++) {
        heddle_comm_destroy(attention->part[i]);
    }
    hd_attn_problem_free(&attention->problem);
    hd_free(attention);
}
