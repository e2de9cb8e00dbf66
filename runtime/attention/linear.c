/* Linear attention: the object. */
#include "runtime/attention/attention_internal.h"
#include "runtime/attention/linear_internal.h"
#include "runtime/base/hash.h"
#include "runtime/device/device.h"

#include <string.h>

static heddle_status take(heddle_linear_attention *a, int part, unsigned char **out, int64_t bytes)
{
    a->workspace_bytes += bytes;
    a->room_bytes += part == HD_ROOM_THREADS ? bytes : 0;
    return hd_room_want(&a->user, part, (void **)out, bytes);
}

static heddle_status take_saved(heddle_linear_attention *a, unsigned char **out, int64_t bytes)
{
    a->saved_bytes += bytes;
    return a->keeps ? hd_alloc_aligned((void **)out, 64, (size_t)bytes + 64, "states of a linear attention")
                    : hd_room_want(&a->user, HD_ROOM_METHOD, (void **)out, bytes);
}

/* States between chunks: to the left of a chunk for the causal form, to the right as well for the bidirectional one.
 * Those of k and v are kept for backward, those of the gradients are workspace. bf16 results are added up in f32
 * (part). */
static heddle_status make_memory(heddle_linear_attention *a)
{
    heddle_status st = HEDDLE_OK;
    const hd_linear_problem *p = &a->problem;
    int64_t real = (int64_t)a->kernels->real_bytes, heads = p->batch * p->heads;
    int64_t states_bytes = heads * p->nchunks * a->padded_elems * real;
    for (int i = 0; i < HD_STATES; i++) {
        int two_sided = i == HD_STATES_KV_RIGHT || i == HD_STATES_G_LEFT;
        if (!two_sided || p->options.bidirectional) {
            int saved = i == HD_STATES_KV_LEFT || i == HD_STATES_KV_RIGHT;
            HD_TRY(saved ? take_saved(a, &a->states[i], states_bytes)
                         : take(a, HD_ROOM_METHOD, &a->states[i], states_bytes));
        }
    }
    a->scratch_bytes = (int64_t)(a->kernels->scratch_bytes(&a->dims) + 127) / 64 * 64;
    HD_TRY(take(a, HD_ROOM_THREADS, &a->scratch, p->options.threads * a->scratch_bytes));
    HD_TRY(take(a, HD_ROOM_THREADS, &a->carry, p->options.threads * 2 * a->padded_elems * real));
    HD_TRY(take(a, HD_ROOM_METHOD, &a->last, p->state_bytes));
    if (p->shape.dtype == HEDDLE_BF16) {
        HD_TRY(take(a, HD_ROOM_METHOD, &a->part[0], heads * p->rows * p->dv * real));
        HD_TRY(take(a, HD_ROOM_METHOD, &a->part[1], heads * p->rows * p->dk * real));
    }
out:
    return st;
}

static void plan(heddle_attention_traffic *out, const hd_linear_problem *p)
{
    hd_sends s;
    hd_method_sends(&s, p->method, &p->members, p->me, hd_group_all(&p->members));
    *out = (heddle_attention_traffic){(int64_t)s.forward_bytes, s.forward_messages, (int64_t)s.backward_bytes,
                                      s.backward_messages};
}

/* What can be done without the others. */
static heddle_status make_alone(heddle_linear_attention **out, heddle_comm *comm, const heddle_shape *shape,
                                const heddle_mesh *mesh, const heddle_layout *layout,
                                const heddle_linear_attention_options *options, int keeps)
{
    heddle_status st = HEDDLE_OK;
    heddle_linear_attention *a = NULL;
    const hd_kernels *kernels = NULL;
    HD_TRY(hd_alloc((void **)&a, 1, sizeof *a, "a linear attention"));
    *out = a;
    a->keeps = keeps;
    HD_TRY(hd_linear_problem_make(&a->problem, shape, mesh, layout, options, heddle_comm_rank(comm)));
    if (heddle_mesh_size(mesh) != heddle_comm_size(comm)) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "linear attention: the mesh has %d ranks, the communicator %d",
                       heddle_mesh_size(mesh), heddle_comm_size(comm));
    }
    a->comm = comm;
    plan(&a->planned, &a->problem);
    if (a->problem.options.space == HEDDLE_SPACE_DEVICE) {
        return HEDDLE_OK; /* what it has there comes when all have asked for the same */
    }
    HD_TRY(hd_kernels_cpu(&kernels));
    a->kernels = hd_kernels_linear(kernels, a->problem.real);
    a->dims = (hd_linear_dims){.dk = a->problem.dk,
                               .dv = a->problem.dv,
                               .chunk_rows = a->problem.chunk_rows,
                               .bidirectional = a->problem.options.bidirectional};
    a->padded_elems = a->problem.dk * a->kernels->padded(a->problem.dv);
    HD_TRY(make_memory(a));
    a->problem.members.padded_width_v = a->kernels->padded(a->problem.dv);
out:
    return st;
}

static uint64_t hash_decay(const hd_linear_problem *p)
{
    return hd_hash(HD_HASH_BASIS, p->decay, (size_t)p->shape.dim[2].extent * sizeof *p->decay);
}

/* What all ranks must ask alike. Decays are many, so they are compared by a hash. */
static void tell_fields(hd_fields *fields, const heddle_linear_attention *a, const heddle_mesh *mesh,
                        const heddle_layout *layout)
{
    const hd_linear_problem *p = &a->problem;
    fields->what = "linear attention";
    hd_object_describe(fields, &p->shape, mesh, layout);
    hd_fields_add(fields, "method", "%s", heddle_linear_method_name(p->options.method));
    hd_fields_add(fields, "dv", "%lld", (long long)p->dv);
    hd_fields_add(fields, "direction", "%s", p->options.bidirectional ? "bidirectional" : "causal");
    hd_fields_add(fields, "order", "%s", p->options.receive_first ? "receive first" : "own work first");
    hd_fields_add(fields, "decay", "%g ... (fingerprint %016llx)", p->shape.dim[2].extent > 0 ? p->decay[0] : 1,
                  (unsigned long long)hash_decay(p));
    hd_fields_add(fields, "space", "%d", (int)p->options.space);
}

static heddle_status make_flows(heddle_linear_attention *a)
{
    heddle_status st = HEDDLE_OK;
    const int shares = a->problem.method->gathers && a->problem.options.bidirectional;
    for (int i = 0; i < 2; i++) {
        hd_flow *twin = i == 1 && shares && a->problem.all_ones ? a->flow[0] : NULL;
        HD_TRY(hd_flow_create(&a->flow[i], a, i, twin));
        a->workspace_bytes += a->flow[i]->allocated_bytes;
    }
out:
    return st;
}

/* First what a rank can do alone, then the comparison of the ranks, then what takes all of them. */
heddle_status heddle_linear_attention_create(heddle_linear_attention **out, heddle_comm *comm,
                                             const heddle_shape *shape, const heddle_mesh *mesh,
                                             const heddle_layout *layout,
                                             const heddle_linear_attention_options *options)
{
    return hd_linear_attention_create_in(out, comm, shape, mesh, layout, options, (hd_object_room){.keeps = 1});
}

heddle_status hd_linear_attention_create_in(heddle_linear_attention **out, heddle_comm *comm, const heddle_shape *shape,
                                            const heddle_mesh *mesh, const heddle_layout *layout,
                                            const heddle_linear_attention_options *options, hd_object_room in)
{
    heddle_status st = HEDDLE_OK;
    heddle_linear_attention *a = NULL;
    hd_fields fields;
    static const char *const name = "heddle_linear_attention_create";
    HD_TRY(hd_need(comm, name, "comm")); /* there is nobody to tell */
    memset(&fields, 0, sizeof fields);
    heddle_status mine = in.mine;
    mine = mine != HEDDLE_OK
               ? mine
               : hd_need_all((const void *const[]){out, shape, mesh, layout}, 4, name, "out, shape, mesh, layout");
    mine = mine == HEDDLE_OK ? make_alone(&a, comm, shape, mesh, layout, options, in.keeps) : mine;
    if (mine == HEDDLE_OK) {
        tell_fields(&fields, a, mesh, layout);
    }
    HD_TRY(hd_comm_agree_on(comm, &fields, mine));
    HD_TRY(hd_comm_agree(comm, hd_linear_on_check(&a->problem, comm)));
    if (a->problem.options.space == HEDDLE_SPACE_DEVICE) {
        HD_TRY(hd_comm_agree(comm, hd_linear_on_take_all(a)));
        HD_TRY(hd_linear_on_make(a));
    } else {
        HD_TRY(a->problem.nranks > 1 ? make_flows(a) : HEDDLE_OK);
        HD_TRY(hd_comm_agree(comm, hd_room_enter(&a->user, in.room, comm)));
    }
    *out = a;
    a = NULL;
out:
    heddle_linear_attention_destroy(a);
    return st;
}

heddle_status hd_linear_attention_enter(heddle_linear_attention *attention, hd_room *room)
{
    return attention->on != NULL ? HEDDLE_OK : hd_room_enter(&attention->user, room, attention->comm);
}

void heddle_linear_attention_destroy(heddle_linear_attention *attention)
{
    if (attention == NULL) {
        return;
    }
    hd_linear_on_free(attention);
    hd_flow_destroy(attention->flow[1]);
    hd_flow_destroy(attention->flow[0]);
    if (attention->keeps) {
        HD_FREE_ALL(attention->states[HD_STATES_KV_LEFT], attention->states[HD_STATES_KV_RIGHT]);
    }
    hd_room_leave(attention->user.room);
    hd_linear_problem_free(&attention->problem);
    hd_free(attention);
}

heddle_status heddle_linear_attention_plan_traffic(heddle_attention_traffic *out, const heddle_shape *shape,
                                                   const heddle_mesh *mesh, const heddle_layout *layout,
                                                   const heddle_linear_attention_options *options, int rank)
{
    heddle_status st = HEDDLE_OK;
    hd_linear_problem p;
    HD_TRY(HD_NEED(out, shape, mesh, layout));
    HD_TRY(hd_linear_problem_make(&p, shape, mesh, layout, options, rank));
    plan(out, &p);
    hd_linear_problem_free(&p);
out:
    return st;
}

heddle_status heddle_linear_attention_state(void *out, const heddle_linear_attention *attention,
                                            heddle_linear_state convention, heddle_stream stream)
{
    const heddle_linear_attention *a = attention;
    if (out == NULL || a == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_linear_attention_state: %s is NULL", out == NULL ? "out" : "attention");
    }
    if (convention != HEDDLE_LINEAR_STATE_PLAIN && convention != HEDDLE_LINEAR_STATE_DECAYED) {
        return hd_fail(HEDDLE_ERR_ARG, "linear attention: convention is %d, wanted 0 (plain: S) or 1 (decayed: g S)",
                       (int)convention);
    }
    if (a->forwards == 0 || a->problem.options.bidirectional) {
        return hd_fail(HEDDLE_ERR_ARG, "linear attention: %s",
                       a->forwards == 0 ? "there was no forward" : "the bidirectional form has no last state");
    }
    if (a->on != NULL) {
        return hd_linear_on_state(out, a, convention == HEDDLE_LINEAR_STATE_DECAYED, stream);
    }
    int64_t elems = a->problem.dk * a->problem.dv;
    for (int64_t i = 0; i * elems < a->problem.state_elems; i++) {
        double decay = convention == HEDDLE_LINEAR_STATE_DECAYED ? hd_linear_decay(a, i) : 1;
        size_t at = (size_t)(i * elems) * a->kernels->real_bytes;
        a->kernels->scale((char *)out + at, decay, (const char *)a->last + at, elems);
    }
    return HEDDLE_OK;
}

heddle_status heddle_linear_attention_get_info(heddle_linear_attention_info *out,
                                               const heddle_linear_attention *attention)
{
    const heddle_linear_attention *a = attention;
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, attention));
    static const char *const why[] = {
        "the whole sequence is here: one walk over its chunks",
        "states travel from rank to rank; the work on the own rows comes first, one fold of a state is serial",
        "every rank gathers all states and folds those before it; the products inside the chunks hide the gather",
        "exclusive scan of the states; the products inside the chunks hide its first steps"};
    const hd_flow_method *method = hd_flow_method_of(a->problem.options.method);
    hd_memory memory;
    hd_flops flops;
    hd_method_memory(&memory, a->problem.method, &a->problem.members, a->problem.me);
    hd_method_flops(&flops, a->problem.method, &a->problem.members, a->problem.me, 0);
    heddle_linear_attention_info info = {
        .method = heddle_linear_method_name(a->problem.options.method),
        .planned = a->planned,
        .measured = a->measured,
        .forwards = a->forwards,
        .backwards = a->backwards,
        .state_bytes = a->problem.state_bytes,
        .serial_steps = a->problem.nranks > 1 ? method->serial_steps(a->problem.nranks) : 0,
        .saved_bytes = a->saved_bytes,
        .workspace_bytes = a->workspace_bytes,
        .planned_saved_bytes = (int64_t)memory.saved_bytes,
        .planned_workspace_bytes = (int64_t)memory.workspace_bytes,
        .room_bytes = a->room_bytes,
        .forward_flops = (int64_t)flops.forward,
        .backward_flops = (int64_t)flops.backward,
        .wait_ns = a->wait_ns,
        .chunk_rows = a->problem.chunk_rows,
        .kernel = a->on == NULL ? a->kernels->name : NULL,
        .why = a->problem.options.receive_first ? "the published order: receive, all work, send"
               : a->problem.nranks == 1         ? why[0]
                                                : why[a->problem.options.method]};
    if (a->on != NULL) {
        hd_linear_on_inform(&info, a);
    }
    st = hd_struct_give(out, &info, HD_STRUCT(heddle_linear_attention_info, method));
out:
    return st;
}
