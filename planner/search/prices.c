/* Prices, each computed once. What a stage costs in a layout follows from its largest box, of the dims that it does not
 * mix from their product, and, by a method, from the axes that shard what it mixes; what an edge costs from what each
 * axis does. So layouts of one mesh, and meshes of the same ranks, share most of them. */
#include "planner/search/near.h"

#include "runtime/base/base.h"
#include "runtime/base/hash.h"

#include <string.h>

enum { KEY_STAGE = 1, KEY_EDGE, KEY_END };

void hd_prices_free(hd_prices *p)
{
    HD_FREE_ALL(p->key, p->priced, p->slot, p->room);
    hd_near_tables_free(p);
    *p = (hd_prices){0};
}

static int *slot_of(const hd_prices *p, const hd_price_key *key)
{
    uint64_t at = 0;
    int *slot = NULL;
    for (int i = 0; i < HD_PRICE_KEY; i++) {
        at = (at ^ (uint64_t)key->part[i]) * (HD_HASH_BASIS | 1);
        at ^= at >> 29;
    }
    do {
        slot = &p->slot[at++ & (uint64_t)(p->nslots - 1)];
    } while (*slot != 0 && memcmp(&p->key[*slot - 1], key, sizeof *key) != 0);
    return slot;
}

/* Twice as many slots, at most half of them full. */
static heddle_status more_slots(hd_prices *p)
{
    void *memory = NULL;
    int nslots = p->nslots > 0 ? 2 * p->nslots : 1024;
    heddle_status st = hd_alloc(&memory, (size_t)nslots, sizeof *p->slot, "prices");
    if (st == HEDDLE_OK) {
        hd_free(p->slot);
        p->slot = memory;
        p->nslots = nslots;
        for (int i = 0; i < p->count; i++) {
            *slot_of(p, &p->key[i]) = i + 1;
        }
    }
    return st;
}

/* *out: where the price of `key` is; *is_new: it is to be filled. */
static heddle_status price_at(int *out, int *is_new, hd_prices *p, const hd_price_key *key)
{
    heddle_status st = HEDDLE_OK;
    int keys = p->capacity;
    HD_TRY(2 * p->count >= p->nslots ? more_slots(p) : HEDDLE_OK);
    int *slot = slot_of(p, key);
    *is_new = *slot == 0;
    if (*is_new) {
        HD_TRY(hd_grow((void **)&p->key, &keys, p->count, sizeof *p->key, "prices"));
        HD_TRY(hd_grow((void **)&p->priced, &p->capacity, p->count, sizeof *p->priced, "prices"));
        p->key[p->count] = *key;
        *slot = ++p->count;
    }
    *out = *slot - 1;
out:
    return st;
}

/* One that was to be filled and could not be: the last. */
static void take_back(hd_prices *p)
{
    *slot_of(p, &p->key[p->count - 1]) = 0;
    p->count--;
}

/* --- stages ------------------------------------------------------------------------------------------------------- */

int hd_search_mixes(const hd_method_stage *mixes, int dim)
{
    return dim >= 0 && (mixes->dim == dim || (mixes->dims >> dim & 1) != 0);
}

static hd_price_key stage_key(const hd_search *s, int stage, int state, const hd_method *method)
{
    hd_price_key key = {{KEY_STAGE, stage, (int64_t)(intptr_t)method}};
    const heddle_layout *layout = &s->layout[state];
    int n = 3;
    int stride = heddle_mesh_size(&s->mesh);
    int64_t cut = 1, fibres = 1;
    for (int d = 0; d < s->m->shape.ndim; d++) {
        const int is_alone = d == s->m->batch_dim || hd_search_mixes(&s->mixes[stage], d);
        const int64_t length = s->box[state].len[d];
        fibres *= is_alone ? 1 : length;
        key.part[n] = length;
        n += is_alone;
    }
    key.part[n++] = fibres;
    for (int a = 0; a < s->mesh.naxes && s->m->stage[stage].joined_rows > 0; a++) {
        int dim = layout->dim_of_axis[a];
        cut *= dim >= 0 && dim != s->m->batch_dim ? s->mesh.axis[a].size : 1;
    }
    key.part[n++] = cut; /* into which text that joins goes, also where the tokens are too few for it */
    for (int a = 0; method != &hd_method_local && a < s->mesh.naxes; a++) {
        int dim = layout->dim_of_axis[a];
        stride /= s->mesh.axis[a].size;
        if (hd_search_mixes(&s->mixes[stage], dim) && s->mesh.axis[a].size > 1) {
            key.part[n++] = (int64_t)s->mesh.axis[a].size << 32 | (int64_t)stride << 8 | dim;
        }
    }
    return key;
}

static heddle_status price_stage(hd_priced *out, const hd_search *s, int stage, int state, const hd_method *method)
{
    hd_price price;
    heddle_status st = hd_price_stage(&price, &s->pricer, stage, &s->layout[state], method);
    if (st == HEDDLE_OK) {
        const hd_extras extras = {.methods = method != &hd_method_local, .elems = s->elems[state]};
        out->cost = hd_aim_cost(&s->aim, &price, &extras);
        out->time_ps = price.time_ps;
        out->kept = s->pricer.backward ? price.kept_bytes : 0;
        out->need = hd_add_saturated(hd_add_saturated(price.input_bytes, out->kept), price.workspace_bytes);
    }
    return st;
}

/* A method's ranks may lie otherwise on another mesh where blocks are uneven: then what all ranks send together is not
 * shared. The busiest of them, which seconds go by, sends the same where every group lies alike. */
heddle_status hd_search_stage_price(hd_priced *out, hd_search *s, int stage, int state, const hd_method *method)
{
    heddle_status st = HEDDLE_OK;
    int at = 0;
    int is_new = 0;
    unsigned all = (1u << s->mesh.naxes) - 1;
    if (method != &hd_method_local && s->even[state] != all && !(s->aim.is_time && hd_pricer_nests(&s->pricer))) {
        return price_stage(out, s, stage, state, method);
    }
    const hd_price_key key = stage_key(s, stage, state, method);
    HD_TRY(price_at(&at, &is_new, s->prices, &key));
    if (is_new) {
        st = price_stage(&s->prices->priced[at], s, stage, state, method);
        if (st != HEDDLE_OK) {
            take_back(s->prices);
            goto out;
        }
    }
    *out = s->prices->priced[at];
out:
    return st;
}

/* --- edges -------------------------------------------------------------------------------------------------------- */

/* Stages before which the activation has as many channels have the same edges before them. */
heddle_status hd_search_widths(hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    HD_TRY(hd_alloc(&memory, (size_t)s->m->nstages, sizeof *s->width_of, "stages"));
    s->width_of = memory;
    for (int k = 0; k < s->m->nstages; k++) {
        int same = 0;
        while (s->m->stage[same].in_channels != s->m->stage[k].in_channels) {
            same++;
        }
        s->width_of[k] = same < k ? s->width_of[same] : s->nwidths++;
    }
    s->is_monotone = s->pricer.machine == NULL || hd_machine_is_monotone(s->pricer.machine);
out:
    return st;
}

heddle_status hd_search_edges(hd_search *s)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    const size_t edges = (size_t)s->nwidths * (size_t)s->nlayouts * (size_t)s->nlayouts;
    if (s->edge != NULL) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_alloc(&memory, edges, sizeof *s->edge, "edges"));
    s->edge = memory;
    if (s->is_monotone) {
        HD_TRY(hd_alloc(&memory, edges, sizeof *s->least, "edges"));
        s->least = memory;
    }
out:
    return st;
}

static heddle_status price_edge(hd_priced *out, const hd_search *s, int64_t channels, int from, int to, int is_last)
{
    heddle_status st = HEDDLE_OK;
    hd_price price;
    hd_price forward;
    hd_pricer there = s->pricer;
    there.channels = channels;
    HD_TRY(hd_price_edge(&price, &there, &s->layout[from], &s->layout[to], is_last));
    forward = price;
    if (there.backward && from != to) {
        there.backward = 0;
        HD_TRY(hd_price_edge(&forward, &there, &s->layout[from], &s->layout[to], is_last));
    }
    const hd_extras extras = {.switches = from != to && forward.moved.bytes_total > 0};
    out->cost = hd_aim_cost(&s->aim, &price, &extras);
    out->time_ps = price.time_ps;
    out->kept = 0;
    out->need = hd_add_saturated(price.input_bytes, price.workspace_bytes);
out:
    return st;
}

/* Dims by what an edge does to them: of those of one extent the one that is cut first counts as the first of them. */
typedef struct names {
    int of[HEDDLE_MAX_DIMS]; /* and one more; 0: not cut yet */
    unsigned taken;
} names;

static int64_t name_of(names *n, const heddle_shape *shape, int dim)
{
    int name = 0;
    if (dim >= 0 && n->of[dim] == 0) {
        while ((n->taken >> name & 1) != 0 || shape->dim[name].extent != shape->dim[dim].extent) {
            name++;
        }
        n->taken |= 1u << name;
        n->of[dim] = name + 1;
    }
    return dim >= 0 ? n->of[dim] : dim + 16;
}

/* Neighbouring axes that do the same are one axis of more ranks, and an axis of one rank is none. */
static hd_price_key edge_key(const hd_search *s, int64_t channels, int from, int to)
{
    names known = {{0}, 0};
    hd_price_key key = {{KEY_EDGE, channels}};
    const heddle_layout *a = &s->layout[from];
    const heddle_layout *b = &s->layout[to];
    int64_t *last = NULL;
    int n = 2;
    for (int axis = 0; axis < s->mesh.naxes; axis++) {
        int size = s->mesh.axis[axis].size;
        if (size == 1) {
            continue;
        }
        const int64_t before = name_of(&known, &s->m->shape, a->dim_of_axis[axis]);
        const int64_t does = before << 8 | name_of(&known, &s->m->shape, b->dim_of_axis[axis]);
        if (last != NULL && (*last & 0xffff) == does && (s->even[from] & s->even[to] & 1u << axis) != 0) {
            *last = (*last >> 16) * size << 16 | does;
        } else {
            last = &key.part[n++];
            *last = (int64_t)size << 16 | does;
        }
    }
    return key;
}

static size_t edge_at(const hd_search *s, int step, int from, int to)
{
    const size_t row = (size_t)s->width_of[step % s->m->nstages] * (size_t)s->nlayouts + (size_t)from;
    return row * (size_t)s->nlayouts + (size_t)to;
}

heddle_status hd_search_edge_price(const hd_priced **out, hd_search *s, int step, int from, int to)
{
    heddle_status st = HEDDLE_OK;
    const int stage = step % s->m->nstages;
    int *known = &s->edge[edge_at(s, step, from, to)];
    int at = *known - 1;
    int is_new = 0;
    if (*known == 0) {
        int64_t channels = s->m->stage[stage].in_channels;
        int is_end = from >= s->nstates || to >= s->nstates; /* a layout that no stage is in: like no other */
        const hd_price_key key =
            is_end ? (hd_price_key){{KEY_END, channels, from, to}} : edge_key(s, channels, from, to);
        HD_TRY(price_at(&at, &is_new, s->prices, &key));
        if (is_new) {
            st = price_edge(&s->prices->priced[at], s, channels, from, to, 0);
            if (st != HEDDLE_OK) {
                take_back(s->prices);
                goto out;
            }
        }
        *known = at + 1;
        if (s->least != NULL) {
            int64_t first = s->prices->priced[at].cost.part[0];
            s->least[edge_at(s, step, from, to)] = first < INT64_MAX ? first + 1 : first;
        }
    }
    *out = &s->prices->priced[at];
out:
    return st;
}

/* Of a few ranks; one less, for the last digit of a product of powers. Where hosts cut across the axes it is the price,
 * for a few ranks take as long there as all. */
heddle_status hd_search_edge_least(int64_t *out, hd_search *s, int step, int from, int to)
{
    heddle_status st = HEDDLE_OK;
    int64_t *known = s->least != NULL ? &s->least[edge_at(s, step, from, to)] : NULL;
    const hd_priced *edge = NULL;
    *out = 0;
    if (known != NULL && *known == 0 && s->near != NULL) {
        HD_TRY(hd_near_tell(known, s->near, step % s->m->nstages, from, to));
    }
    if (known != NULL && *known == 0 && !hd_pricer_nests(&s->pricer)) {
        HD_TRY(hd_search_edge_price(&edge, s, step, from, to));
    } else if (known != NULL && *known == 0) {
        hd_price price;
        hd_pricer few = s->pricer;
        const hd_extras extras = {0, 0, 0};
        few.channels = s->m->stage[step % s->m->nstages].in_channels;
        few.of_few = 1;
        HD_TRY(hd_price_edge(&price, &few, &s->layout[from], &s->layout[to], 0));
        hd_cost cost = hd_aim_cost(&s->aim, &price, &extras);
        *known = cost.part[0] > 1 ? cost.part[0] : 1;
    }
    *out = known != NULL ? *known - 1 : 0;
out:
    return st;
}

const int64_t *hd_search_edge_known(const hd_search *s, int step, int from)
{
    return s->least != NULL ? &s->least[edge_at(s, step, from, 0)] : NULL;
}

heddle_status hd_search_last_price(hd_priced *out, hd_search *s, int from)
{
    memset(out, 0, sizeof *out);
    return s->epilogue >= 0 ? price_edge(out, s, s->m->stage[s->m->nstages - 1].channels, from, s->epilogue, 1)
                            : HEDDLE_OK;
}

heddle_status hd_search_edge_of(hd_priced *out, hd_search *s, const hd_walk *walk, int step)
{
    heddle_status st = HEDDLE_OK;
    const int before = step > 0 ? walk->state[step - 1] : s->prologue;
    const hd_priced *edge = NULL;
    memset(out, 0, sizeof *out);
    if (step == s->nsteps) {
        st = hd_search_last_price(out, s, before);
    } else if (before >= 0 && before != walk->state[step]) {
        HD_TRY(hd_search_edge_price(&edge, s, step, before, walk->state[step]));
        *out = *edge;
    }
out:
    return st;
}
