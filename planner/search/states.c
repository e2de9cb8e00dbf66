/* The states: all layouts that put every mesh axis on a batch or sequence dim or replicate over it. */
#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

static int64_t power(int base, int exponent)
{
    int64_t result = 1;
    while (exponent-- > 0) {
        result *= base;
    }
    return result;
}

static heddle_status room(hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    HD_TRY(hd_alloc(&memory, (size_t)s->nstates + 2, sizeof *s->layout, "layouts"));
    s->layout = memory;
    HD_TRY(hd_alloc(&memory, (size_t)s->nstates, sizeof *s->box, "layouts"));
    s->box = memory;
    HD_TRY(hd_alloc(&memory, (size_t)s->nstates, sizeof *s->elems, "layouts"));
    s->elems = memory;
    HD_TRY(hd_alloc(&memory, (size_t)s->nstates, sizeof *s->even, "layouts"));
    s->even = memory;
out:
    return st;
}

static unsigned even_axes(const hd_search *s, const heddle_layout *layout)
{
    unsigned even = 0;
    for (int a = 0; a < s->mesh.naxes; a++) {
        int dim = layout->dim_of_axis[a];
        int64_t blocks = 1;
        for (int k = 0; dim >= 0 && k < s->mesh.naxes; k++) {
            blocks *= layout->dim_of_axis[k] == dim ? s->mesh.axis[k].size : 1;
        }
        even |= (unsigned)(dim < 0 || s->m->shape.dim[dim].extent % blocks == 0) << a;
    }
    return even;
}

/* Digit a of state i in base (shardable dims + 1) says what axis a does; replicated comes last. */
heddle_status hd_search_states(hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    int dims[HEDDLE_MAX_DIMS];
    int ndims = 0;
    for (int d = 0; d < s->m->shape.ndim; d++) {
        if (d != s->m->channel_dim) {
            dims[ndims++] = d;
        }
    }
    while (s->idle_digit < ndims && s->m->shape.dim[dims[s->idle_digit]].extent != 1) {
        s->idle_digit++;
    }
    int64_t count = power(ndims + 1, s->mesh.naxes);
    if (count > HD_SEARCH_STATES) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "%lld layouts of %d dims over %d mesh axes; the planner searches at most %d (meshes of one or "
                       "two axes)",
                       (long long)count, ndims, s->mesh.naxes, HD_SEARCH_STATES);
    }
    s->nstates = (int)count;
    HD_TRY(room(s));
    for (int i = 0; i < s->nstates; i++) {
        int rest = i;
        for (int a = 0; a < HEDDLE_MAX_AXES; a++, rest /= ndims + 1) { /* a layout has much room: it is zero already */
            int digit = a < s->mesh.naxes ? rest % (ndims + 1) : ndims;
            s->layout[i].dim_of_axis[a] = digit < ndims ? dims[digit] : HEDDLE_REPLICATED;
        }
        /* Balanced blocks: rank 0 has the largest. */
        HD_TRY(heddle_layout_box(&s->box[i], &s->m->shape, &s->mesh, &s->layout[i], 0));
        s->elems[i] = heddle_box_elems(&s->box[i]);
        s->even[i] = even_axes(s, &s->layout[i]);
    }
    s->nlayouts = s->nstates;
out:
    return st;
}

int hd_search_like(const hd_search *s, int state, int digit)
{
    const int base = s->m->shape.ndim; /* all dims but the channels, and none */
    int like = state;
    for (int a = 0, place = 1; a < s->mesh.naxes; a++, place *= base) {
        const int dim = s->layout[state].dim_of_axis[a];
        const int is_idle = dim == HEDDLE_REPLICATED || s->m->shape.dim[dim].extent == 1;
        like += is_idle ? (digit - state / place % base) * place : 0;
    }
    return like;
}

heddle_status hd_search_end(int *out, hd_search *s, const char *what, const char *text)
{
    heddle_layout layout;
    heddle_status st = heddle_layout_parse(&layout, text, &s->m->shape, &s->mesh);
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "%s", what);
    }
    for (int i = 0; i < s->nlayouts; i++) {
        if (heddle_layout_equal(&s->layout[i], &layout, &s->mesh)) {
            *out = i;
            return HEDDLE_OK;
        }
    }
    s->layout[s->nlayouts] = layout;
    *out = s->nlayouts++;
    return HEDDLE_OK;
}
