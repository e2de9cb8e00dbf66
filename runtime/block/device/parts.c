/* A box whose workspace would be too large goes through its stage in parts, one behind the other. A row's results do
 * not depend on how many rows there are: parts change no bit of them. What is summed over rows (gradients of parameters
 * and conditioning) is added up part by part. */
#include "runtime/block/device/device.h"

#include "runtime/base/base.h"
#include "runtime/block/sharded.h"

static const int64_t MOST_BYTES = (int64_t)2 << 30; /* where the program says nothing */

/* The box as groups of units: a part is some neighbours of one group. */
typedef struct cutting {
    int64_t groups, units, rows; /* rows: of a unit */
} cutting;

static int64_t outers_of_sample(const hd_block_view *box)
{
    return box->samples > 0 ? box->outer / box->samples : 0;
}

static cutting cut_by(const hd_block_view *box, hd_on_cut cut)
{
    switch (cut) {
    case HD_ON_SAMPLES:
        return (cutting){1, box->samples, box->sample_rows};
    case HD_ON_OUTER:
        return (cutting){box->samples, outers_of_sample(box), box->t * box->inner};
    case HD_ON_INNER:
        return (cutting){box->outer, box->inner, box->t};
    case HD_ON_WHOLE:
        break;
    }
    return (cutting){1, 1, box->samples * box->sample_rows};
}

/* `count` units from the first one of a group on; x of rows that lie apart is another one. */
static hd_block_view part_of(const hd_block_view *box, hd_on_cut cut, int64_t group, int64_t count)
{
    hd_block_view part = *box;
    if (cut == HD_ON_SAMPLES) {
        part.samples = count;
        part.outer = count * outers_of_sample(box);
    } else if (cut == HD_ON_OUTER) {
        part.first_sample += group;
        part.outer = count;
    } else if (cut == HD_ON_INNER) {
        part.first_sample += group / outers_of_sample(box);
        part.outer = 1;
        part.inner = count;
    }
    if (cut == HD_ON_OUTER || cut == HD_ON_INNER) {
        part.samples = 1;
        part.sample_rows = part.outer * part.t * part.inner;
    }
    return part;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* Element `index` of `elems`, of an array of so many bytes; NULL stays NULL. */
static char *forward_by(char *array, size_t bytes, int64_t index, int64_t elems)
{
    return array != NULL && index > 0 ? array + bytes / (size_t)elems * (size_t)index : array;
}

static heddle_status kept_by(hd_kept *out, const hd_on_call *call, const hd_block_view *part, int64_t row)
{
    size_t bytes[HD_KEEPS];
    const hd_block_view *box = call->view;
    const int64_t rows = box->samples * box->sample_rows;
    heddle_status st = hd_keep_bytes(bytes, call->block, box);
    *out = (hd_kept){
        forward_by(call->kept.x, bytes[HD_KEEP_X], row, rows),
        forward_by(call->kept.wide, bytes[HD_KEEP_WIDE], row, rows),
        forward_by(call->kept.o, bytes[HD_KEEP_O], row, rows),
        forward_by(call->kept.mixer, bytes[HD_KEEP_MIXER], row, rows),
        forward_by(call->kept.text, bytes[HD_KEEP_TEXT], part->first_sample - box->first_sample, box->samples),
        call->kept.again,
        NULL};
    return st;
}

/* Rows of fibres beside one another, out of the box or back into it: tokens lie `inner` rows apart there. */
static heddle_status bring(const hd_on_call *call, char *box_rows, int64_t box_inner, int is_back)
{
    const int64_t row = call->c * (int64_t)hd_block_elem_bytes(call->block);
    const int64_t run = call->view->inner * row, step = box_inner * row;
    const hd_device *device = call->on->device;
    char *rows = call->view->x;
    return call->is_dry ? HEDDLE_OK
           : is_back
               ? device->library->copy(box_rows, step, rows, run, run, call->view->t, device->number, call->stream)
               : device->library->copy(rows, run, box_rows, step, run, call->view->t, device->number, call->stream);
}

/* `count` units from `unit` of a group on. */
static heddle_status run_part(const hd_on_call *of, hd_on_stage stage, hd_on_cut cut, int64_t group, int64_t unit,
                              int64_t count, size_t *most)
{
    heddle_status st = HEDDLE_OK;
    const hd_block_view *box = of->view;
    const cutting all = cut_by(box, cut);
    const int64_t row = (group * all.units + unit) * all.rows;
    const int64_t at = cut == HD_ON_INNER ? group * box->t * box->inner + unit : row; /* of the box's rows */
    char *x = box->x + (of->is_dry ? 0 : (size_t)(at * of->c) * hd_block_elem_bytes(of->block));
    hd_block_view part = part_of(box, cut, group, count);
    hd_on_call call = *of;
    part.first_sample += cut == HD_ON_SAMPLES ? unit : 0;
    part.x = x;
    HD_TRY(kept_by(&call.kept, of, &part, of->is_dry ? 0 : row));
    call.view = &part;
    call.rows = part.samples * part.sample_rows;
    if (cut == HD_ON_INNER) {
        part.x = hd_on_take(&call, call.rows * call.c, hd_block_elem_bytes(call.block));
        HD_TRY(bring(&call, x, box->inner, 0));
    }
    HD_TRY(stage(&call));
    HD_TRY(cut == HD_ON_INNER ? bring(&call, x, box->inner, 1) : HEDDLE_OK);
    *most = call.most;
out:
    return st;
}

heddle_status hd_on_each_part(hd_on_call *call, hd_on_stage stage, const hd_on_parts *parts)
{
    heddle_status st = HEDDLE_OK;
    const cutting all = cut_by(call->view, parts->cut);
    const int64_t step = parts->cut == HD_ON_WHOLE ? all.units : parts->units;
    for (int64_t group = 0; group < all.groups; group++) {
        for (int64_t unit = 0; unit < all.units; unit += step) {
            const int64_t left = all.units - unit;
            HD_TRY(run_part(call, stage, parts->cut, group, unit, left < step ? left : step, &call->most));
        }
    }
out:
    return st;
}

/* --- dividing ----------------------------------------------------------------------------------------------------- */

static const heddle_conditioning nowhere = {HD_ON_NOWHERE, HD_ON_NOWHERE, NULL};
static const heddle_conditioning_gradient wanted_nowhere = {HD_ON_NOWHERE, HD_ON_NOWHERE};

heddle_status hd_on_part_bytes(size_t *bytes, const hd_on_call *of, hd_on_stage stage, const hd_on_parts *parts)
{
    hd_on_call call = *of;
    hd_block_view view = *of->view;
    const int64_t count = parts->cut == HD_ON_WHOLE ? 1 : parts->units;
    view.conditioning = &nowhere;
    view.x = HD_ON_NOWHERE;
    call.view = &view;
    call.wanted = &wanted_nowhere;
    call.is_dry = 1;
    call.base = HD_ON_NOWHERE;
    call.used = call.most = 0;
    return run_part(&call, stage, parts->cut, 0, 0, count, bytes);
}

/* The larger one of both ways. */
static heddle_status need(size_t *bytes, const hd_on_call *of, const hd_on_stage *ways, const hd_on_parts *parts)
{
    heddle_status st = HEDDLE_OK;
    hd_on_call call = *of;
    size_t back = 0;
    HD_TRY(hd_on_part_bytes(bytes, &call, ways[0], parts));
    if (ways[1] != NULL) {
        call.keeps = 1;
        HD_TRY(hd_on_part_bytes(&back, &call, ways[1], parts));
    }
    *bytes = *bytes > back ? *bytes : back;
out:
    return st;
}

/* The most units that fit, of those that one unit fits of; as many in each part. */
static heddle_status fill(hd_on_parts *parts, size_t *bytes, const hd_on_call *call, const hd_on_stage *ways,
                          size_t most)
{
    heddle_status st = HEDDLE_OK;
    const int64_t units = cut_by(call->view, parts->cut).units;
    int64_t fits = 1, too_many = units + 1;
    while (too_many - fits > 1) {
        parts->units = fits + (too_many - fits) / 2;
        HD_TRY(need(bytes, call, ways, parts));
        *(*bytes <= most ? &fits : &too_many) = parts->units;
    }
    const int64_t count = (units + fits - 1) / fits;
    parts->units = (units + count - 1) / count;
    st = need(bytes, call, ways, parts);
out:
    return st;
}

static heddle_status refuse(const hd_on_call *call, const hd_on_parts *parts, size_t bytes)
{
    const int is_whole = parts->cut == HD_ON_WHOLE;
    const long long rows = is_whole ? call->rows : cut_by(call->view, parts->cut).rows;
    return hd_fail(HEDDLE_ERR_ARG,
                   "most_workspace_bytes %lld of a block: on device %s it takes %zu bytes for %lld rows, %s",
                   (long long)call->block->options.most_workspace_bytes, call->on->device->name, bytes, rows,
                   is_whole                     ? "which attention over a sharded dim has at once"
                   : call->block->mixer != NULL ? "one fibre"
                                                : "the fewest there are");
}

heddle_status hd_on_divide(hd_on_parts *out, size_t *bytes, const hd_on_call *call, hd_on_stage forward,
                           hd_on_stage back)
{
    static const hd_on_cut cuts[] = {HD_ON_SAMPLES, HD_ON_OUTER, HD_ON_INNER};
    heddle_status st = HEDDLE_OK;
    const hd_on_stage ways[] = {forward, back};
    const heddle_block *block = call->block;
    const size_t most =
        (size_t)(block->options.most_workspace_bytes > 0 ? block->options.most_workspace_bytes : MOST_BYTES);
    const int is_at_once = call->rows == 0 || (block->sharded != NULL && block->sharded->group != NULL);
    *out = (hd_on_parts){HD_ON_WHOLE, 0};
    HD_TRY(need(bytes, call, ways, out));
    for (int i = 0; i < 3 && !is_at_once && *bytes > most; i++) {
        if (cuts[i] == HD_ON_INNER && call->view->inner == 1) {
            break;
        }
        *out = (hd_on_parts){cuts[i], 1};
        HD_TRY(need(bytes, call, ways, out));
        HD_TRY(*bytes <= most ? fill(out, bytes, call, ways, most) : HEDDLE_OK);
    }
    st = *bytes > most && block->options.most_workspace_bytes > 0 ? refuse(call, out, *bytes) : HEDDLE_OK;
out:
    return st;
}
