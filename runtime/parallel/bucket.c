/* Life of a bucket: who is summed, in which steps, in which memory.
 *
 * The sum goes axis by axis, the outermost first, and is the same whatever becomes of the result: every axis is a
 * reduce-scatter of what the axes before it have left to this rank (n@a, nested), then one reshard brings the blocks to
 * where they are wanted: everywhere, or to the blocks of the shard axis. So with and without a shard axis the same
 * numbers are added in the same order.
 */
#include "runtime/base/hash.h"
#include "runtime/parallel/parallel_internal.h"

#include <stdio.h>
#include <string.h>

static const int64_t HD_BUCKET_MAX_ELEMS = ((int64_t)1 << 62) / (int64_t)sizeof(float); /* a shape's limit */

void heddle_bucket_options_init(heddle_bucket_options *options)
{
    if (options != NULL) {
        *options = (heddle_bucket_options){.struct_bytes = sizeof *options, .shard_axis = -1};
    }
}

static heddle_status check_axes(const heddle_bucket_options *o, const heddle_mesh *mesh)
{
    unsigned all = o->sum_axes | o->average_axes | o->norm_axes;
    if (all >> mesh->naxes != 0) {
        return hd_fail(HEDDLE_ERR_ARG, "a bucket over axes 0x%x of a mesh with %d axes", all, mesh->naxes);
    }
    if ((o->sum_axes & o->average_axes) != 0) {
        return hd_fail(HEDDLE_ERR_ARG, "axes 0x%x are to be summed and averaged", o->sum_axes & o->average_axes);
    }
    if (((o->sum_axes | o->average_axes) & o->norm_axes) != 0) {
        return hd_fail(HEDDLE_ERR_ARG, "norm axes 0x%x are summed already", o->norm_axes);
    }
    if (o->shard_axis < -1 || (o->shard_axis >= 0 && (o->shard_axis >= mesh->naxes ||
                                                      !((o->sum_axes | o->average_axes) >> o->shard_axis & 1u)))) {
        return hd_fail(HEDDLE_ERR_ARG, "shard axis %d is neither summed nor averaged (axes 0x%x)", o->shard_axis,
                       o->sum_axes | o->average_axes);
    }
    return hd_check_ms(o->deadline_ms, "deadline_ms");
}

static heddle_status take_parts(heddle_bucket *bucket, const heddle_bucket_part *parts, int nparts)
{
    heddle_status st = HEDDLE_OK;
    const int rank = hd_comm_rank_name(bucket->comm, heddle_comm_rank(bucket->comm));
    if (nparts < 0) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_bucket_create: nparts is %d on rank %d", nparts, rank);
    }
    for (int i = 0; i < nparts; i++) {
        const heddle_bucket_part *part = &parts[i];
        if (part->elems < 0 || part->elems > HD_BUCKET_MAX_ELEMS - bucket->elems) {
            return hd_fail(HEDDLE_ERR_ARG,
                           "heddle_bucket_create: parts[%d].elems is %lld on rank %d, with %lld before it and at most "
                           "%lld (2^62 bytes) in a bucket",
                           i, (long long)part->elems, rank, (long long)bucket->elems, (long long)HD_BUCKET_MAX_ELEMS);
        }
        if (part->elems > 0 && (part->param == NULL || part->grad == NULL)) {
            return hd_fail(HEDDLE_ERR_ARG, "heddle_bucket_create: parts[%d].%s is NULL on rank %d, with %lld elements",
                           i, part->param == NULL ? "param" : "grad", rank, (long long)part->elems);
        }
        bucket->elems += part->elems;
    }
    HD_TRY(hd_alloc((void **)&bucket->part, (size_t)nparts, sizeof *parts, "a bucket's parts"));
    if (nparts > 0) {
        memcpy(bucket->part, parts, (size_t)nparts * sizeof *parts);
    }
    bucket->nparts = nparts;
out:
    return st;
}

static heddle_status take(heddle_bucket *bucket, const heddle_mesh *mesh, const heddle_bucket_part *parts, int nparts,
                          const heddle_bucket_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_bucket_options *o = &bucket->options;
    heddle_bucket_options_init(o);
    HD_TRY(hd_struct_take(o, options, HD_STRUCT(heddle_bucket_options, average_axes)));
    HD_TRY(hd_kernels_cpu(&bucket->kernels));
    HD_TRY(heddle_mesh_check(mesh));
    int nranks = heddle_comm_size(bucket->comm);
    if (heddle_mesh_size(mesh) != nranks) {
        return hd_fail(HEDDLE_ERR_ARG, "the mesh has %d ranks, the communicator %d", heddle_mesh_size(mesh), nranks);
    }
    HD_TRY(check_axes(o, mesh));
    HD_TRY(take_parts(bucket, parts, nparts));
    bucket->shard = -1;
    bucket->divisor = 1;
    for (int a = 0; a < mesh->naxes; a++) {
        if (!((o->sum_axes | o->average_axes) >> a & 1u)) {
            continue;
        }
        if (a == o->shard_axis && mesh->axis[a].size > 1) {
            bucket->shard = bucket->mesh.naxes;
        }
        if (o->average_axes >> a & 1u) {
            bucket->divisor *= (float)mesh->axis[a].size;
        }
        bucket->mesh.axis[bucket->mesh.naxes++] = mesh->axis[a];
    }
    if (bucket->mesh.naxes == 0) {
        bucket->mesh = (heddle_mesh){.naxes = 1, .axis = {{"one", 1}}};
    }
out:
    return st;
}

/* Which ranks are summed with this one, as a number: this rank's without its coordinates on those axes. */
static int64_t team_of(const heddle_mesh *mesh, unsigned axes, int rank)
{
    int coords[HEDDLE_MAX_AXES];
    int64_t team = 0;
    if (heddle_mesh_coords(coords, mesh, rank) != HEDDLE_OK) {
        return 0;
    }
    for (int a = 0; a < mesh->naxes; a++) {
        team = team * mesh->axis[a].size + (axes >> a & 1u ? 0 : coords[a]);
    }
    return team;
}

static uint64_t hash_parts(const heddle_bucket *bucket)
{
    uint64_t hash = HD_HASH_BASIS;
    for (int i = 0; i < bucket->nparts; i++) {
        const int64_t part[2] = {bucket->part[i].elems, bucket->part[i].decay};
        hash = hd_hash(hash, part, sizeof part);
    }
    return hash;
}

static heddle_status check_space(heddle_bucket *bucket)
{
    heddle_status st;
    const heddle_bucket_options *o = &bucket->options;
    const int me = heddle_comm_rank(bucket->comm);
    HD_TRY(hd_comm_need_space(bucket->comm, o->space, o->device, "a bucket"));
    bucket->device = o->space == HEDDLE_SPACE_DEVICE ? hd_comm_device(bucket->comm) : NULL;
    if (bucket->device != NULL && bucket->device->library->kernels == NULL && o->average_axes != 0) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "a bucket: axes 0x%x are averaged, and device %s has no kernels",
                       o->average_axes, bucket->device->name);
    }
    for (int i = 0; i < 2 * bucket->nparts; i++) {
        const heddle_bucket_part *part = &bucket->part[i / 2];
        hd_stray stray = HD_STRAY_NOT;
        HD_TRY(hd_device_stray(&stray, hd_comm_device(bucket->comm), o->space, i % 2 == 0 ? part->param : part->grad));
        if (stray != HD_STRAY_NOT && part->elems > 0) {
            return hd_fail(
                HEDDLE_ERR_ARG, "heddle_bucket_create: parts[%d].%s is memory of %s on rank %d, not of %s", i / 2,
                i % 2 == 0 ? "param" : "grad", stray == HD_STRAY_HOST ? "the host" : "another device or space",
                hd_comm_rank_name(bucket->comm, me), bucket->device != NULL ? bucket->device->name : "the host");
        }
    }
out:
    return st;
}

/* All ranks the same axes; ranks that are summed the same parts. */
static heddle_status agree(heddle_bucket *bucket, const heddle_mesh *mesh, heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    const heddle_bucket_options *o = &bucket->options;
    hd_fields asked = {.what = "bucket"};
    hd_fields parts = {.what = "list of parameters"};
    char text[HEDDLE_LINE_BYTES] = "";
    if (mine == HEDDLE_OK) {
        mine = heddle_mesh_format(text, sizeof text, mesh);
    }
    hd_fields_add(&asked, "mesh", "%s", text);
    hd_fields_add(&asked, "set of summed axes", "0x%x", o->sum_axes);
    hd_fields_add(&asked, "set of averaged axes", "0x%x", o->average_axes);
    hd_fields_add(&asked, "shard axis", "%d", o->shard_axis);
    hd_fields_add(&asked, "set of norm axes", "0x%x", o->norm_axes);
    hd_fields_add(&asked, "space", "%d", (int)o->space);
    HD_TRY(hd_comm_agree_on(bucket->comm, &asked, mine));
    parts.team = team_of(mesh, o->sum_axes | o->average_axes, heddle_comm_rank(bucket->comm));
    hd_fields_add(&parts, "number of elements", "%lld", (long long)bucket->elems);
    hd_fields_add(&parts, "number of parts", "%d", bucket->nparts);
    hd_fields_add(&parts, "sizes and decays", "%016llx", (unsigned long long)hash_parts(bucket));
    HD_TRY(hd_comm_agree_on(bucket->comm, &parts, check_space(bucket)));
out:
    return st;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

typedef struct layouts {
    heddle_layout at[HD_BUCKET_STEPS + 1]; /* before the steps, and behind each */
    heddle_layout wanted;
} layouts;

static heddle_shape shape_of(const heddle_bucket *bucket)
{
    return (heddle_shape){.dtype = HEDDLE_F32, .ndim = 1, .dim = {{.name = "n", .extent = bucket->elems}}};
}

static void find_steps(layouts *out, heddle_bucket *bucket)
{
    const heddle_mesh *mesh = &bucket->mesh;
    heddle_layout *at = out->at;
    int n = 0;
    at[0] = out->wanted = heddle_layout_replicated();
    for (int a = 0; a < mesh->naxes; a++) {
        at[0].dim_of_axis[a] = mesh->axis[a].size > 1 ? HEDDLE_PARTIAL : HEDDLE_REPLICATED;
    }
    for (int a = 0; a < mesh->naxes; a++) {
        if (mesh->axis[a].size > 1) {
            at[n + 1] = at[n];
            at[++n].dim_of_axis[a] = 0;
        }
    }
    if (bucket->shard >= 0) {
        out->wanted.dim_of_axis[bucket->shard] = 0;
    }
    if (!heddle_layout_equal(&at[n], &out->wanted, mesh)) {
        at[++n] = out->wanted;
    }
    bucket->nsteps = n;
}

static heddle_status box_of(heddle_box *out, const heddle_bucket *bucket, const heddle_layout *layout)
{
    const heddle_shape shape = shape_of(bucket);
    return heddle_layout_box(out, &shape, &bucket->mesh, layout, heddle_comm_rank(bucket->group));
}

static heddle_status buffer(float **out, heddle_bucket *bucket, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    const size_t some = bytes > 0 ? bytes : 1;
    HD_TRY(bucket->device != NULL ? hd_device_alloc(bucket->device, &memory, some, HD_DEVICE_FOR_PEERS)
                                  : heddle_buffer_alloc(&memory, bucket->group, some, HEDDLE_SPACE_HOST));
    *out = memory;
    bucket->buffer_bytes += (int64_t)bytes;
out:
    return st;
}

/* Steps go flat -> block[0] -> block[1] -> block[0] ..., and where everything is wanted everywhere back to flat. Before
 * the steps are made, when ranks map what their peers have. */
static heddle_status make_buffers(heddle_bucket *bucket, const layouts *of)
{
    heddle_status st = HEDDLE_OK;
    heddle_box box;
    HD_TRY(box_of(&box, bucket, &of->wanted));
    bucket->own_lo = box.lo[0];
    bucket->own_elems = box.len[0];
    const int back = bucket->shard < 0; /* the last step fills flat */
    int64_t need[2] = {back ? 0 : bucket->own_elems, 0};
    if (bucket->nsteps == 0) {
        return HEDDLE_OK;
    }
    for (int i = 0; i < bucket->nsteps - back; i++) {
        HD_TRY(box_of(&box, bucket, &of->at[i + 1]));
        need[i % 2] = box.len[0] > need[i % 2] ? box.len[0] : need[i % 2];
    }
    HD_TRY(buffer(&bucket->flat, bucket, (size_t)bucket->elems * sizeof(float)));
    for (int i = 0; i < 2; i++) {
        HD_TRY(buffer(&bucket->block[i], bucket, (size_t)need[i] * sizeof(float)));
    }
    for (int i = 0; i < bucket->nsteps; i++) {
        bucket->step[i].src = i == 0 ? bucket->flat : bucket->step[i - 1].dst;
        bucket->step[i].dst = back && i == bucket->nsteps - 1 ? bucket->flat : bucket->block[i % 2];
    }
out:
    return st;
}

static heddle_status add_reshard(heddle_reshard **out, heddle_bucket *bucket, const heddle_layout *from,
                                 const heddle_layout *to)
{
    heddle_reshard_options options;
    const heddle_shape shape = shape_of(bucket);
    heddle_reshard_options_init(&options);
    options.deadline_ms = bucket->options.deadline_ms;
    options.space = bucket->options.space;
    options.device = bucket->options.device;
    return heddle_reshard_create(out, bucket->group, &shape, &bucket->mesh, from, to, &options);
}

static heddle_status make_steps(heddle_bucket *bucket, const layouts *of)
{
    heddle_status st = HEDDLE_OK;
    const heddle_layout whole = heddle_layout_replicated();
    for (int i = 0; i < bucket->nsteps; i++) {
        HD_TRY(add_reshard(&bucket->step[i].reshard, bucket, &of->at[i], &of->at[i + 1]));
    }
    st = bucket->shard >= 0 ? add_reshard(&bucket->gather, bucket, &of->wanted, &whole) : HEDDLE_OK;
out:
    return st;
}

/* Ranks that share a norm are not those that are summed, so all hear of each part how it went before the next one. */
static heddle_status make_all(heddle_bucket *bucket)
{
    heddle_status st;
    layouts of;
    find_steps(&of, bucket);
    st = make_buffers(bucket, &of);
    st = st == HEDDLE_OK ? hd_bucket_on_make(bucket) : st;
    HD_TRY(hd_creation_end(bucket->comm, st));
    HD_TRY(hd_creation_end(bucket->comm, make_steps(bucket, &of)));
    if (hd_bucket_on_has_sum(bucket)) {
        st = hd_creation_end(bucket->comm, hd_bucket_on_make_sum(bucket));
    }
out:
    return st;
}

heddle_status heddle_bucket_create(heddle_bucket **out, heddle_comm *comm, const heddle_mesh *mesh,
                                   const heddle_bucket_part *parts, int nparts, const heddle_bucket_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_bucket *bucket = NULL;
    HD_TRY(HD_NEED(comm)); /* there is nobody to tell */
    st = HD_NEED(out, mesh);
    st = st == HEDDLE_OK && nparts > 0 ? HD_NEED(parts) : st;
    st = st == HEDDLE_OK ? hd_alloc((void **)&bucket, 1, sizeof *bucket, "a bucket") : st;
    if (bucket == NULL) {
        return hd_comm_agree(comm, st);
    }
    bucket->comm = comm;
    HD_TRY(agree(bucket, mesh, take(bucket, mesh, parts, nparts, options)));
    const heddle_bucket_options *o = &bucket->options;
    unsigned summed = o->sum_axes | o->average_axes;
    unsigned norm = o->norm_axes | (o->shard_axis >= 0 ? 1u << o->shard_axis : 0);
    HD_TRY(heddle_comm_axes_group(&bucket->group, comm, mesh, summed));
    if (norm != 0) {
        HD_TRY(heddle_comm_axes_group(&bucket->norm_group, comm, mesh, norm));
    }
    HD_TRY(make_all(bucket));
    *out = bucket;
    bucket = NULL;
out:
    heddle_bucket_destroy(bucket);
    return st;
}

void heddle_bucket_destroy(heddle_bucket *bucket)
{
    if (bucket == NULL) {
        return;
    }
    for (int i = 0; i < bucket->nsteps; i++) {
        heddle_reshard_destroy(bucket->step[i].reshard);
    }
    heddle_reshard_destroy(bucket->gather);
    float *const all[] = {bucket->flat, bucket->block[0], bucket->block[1]};
    for (int i = 0; i < 3; i++) {
        if (bucket->device != NULL) {
            hd_bucket_on_release(bucket, all[i]);
        } else {
            heddle_buffer_free(bucket->group, all[i]);
        }
    }
    hd_bucket_on_free(bucket);
    heddle_comm_destroy(bucket->norm_group);
    heddle_comm_destroy(bucket->group);
    hd_free(bucket->part);
    hd_free(bucket);
}
