/* The list of methods, and prices. */
#include "runtime/method/method.h"

#include "runtime/base/base.h"

#include <string.h>

enum { SOFTMAX_METHODS = 6 };

static const hd_method *const softmax_methods[] = {&hd_method_local, &hd_method_ulysses,   &hd_method_usp,
                                                   &hd_method_ring,  &hd_method_gather_kv, &hd_method_rsa,
                                                   &hd_method_halo,  &hd_method_sums};
static const hd_method *const linear_methods[] = {&hd_method_local, &hd_method_lasp, &hd_method_scan, &hd_method_lasp2};
_Static_assert(sizeof softmax_methods / sizeof softmax_methods[0] <= HD_METHODS_MAX, "a module has all of these");

/* A module is dealt out like softmax attention, and has the last ones for itself. A kind that mixes no dim, and a cross
 * stage, has one way: local. */
const hd_method *hd_method_at(heddle_stage_kind kind, int index)
{
    int count = kind == HEDDLE_STAGE_MODULE      ? (int)(sizeof softmax_methods / sizeof softmax_methods[0])
                : kind == HEDDLE_STAGE_ATTENTION ? SOFTMAX_METHODS
                : kind == HEDDLE_STAGE_LINEAR    ? (int)(sizeof linear_methods / sizeof linear_methods[0])
                                                 : 1;
    return index < 0 || index >= count   ? NULL
           : kind == HEDDLE_STAGE_LINEAR ? linear_methods[index]
                                         : softmax_methods[index];
}

const hd_method *hd_method_find(heddle_stage_kind kind, const char *name)
{
    const hd_method *method = NULL;
    for (int i = 0; (method = hd_method_at(kind, i)) != NULL; i++) {
        if (strcmp(method->name, name) == 0) {
            return method;
        }
    }
    return NULL;
}

const hd_method *hd_method_of(const hd_method_stage *stage, int index)
{
    const hd_method *method = NULL;
    for (int i = 0; (method = hd_method_at(stage->kind, i)) != NULL; i++) {
        int is_its = stage->kind != HEDDLE_STAGE_MODULE || i == 0 || (stage->dim >= 0 && stage->methods >> i & 1U);
        if (is_its && index-- == 0) {
            break;
        }
    }
    return method;
}

const hd_method *hd_method_find_of(const hd_method_stage *stage, const char *name)
{
    const hd_method *method = NULL;
    for (int i = 0; (method = hd_method_of(stage, i)) != NULL && strcmp(method->name, name) != 0; i++) {
    }
    return method;
}

int64_t hd_add_saturated(int64_t a, int64_t b)
{
    int64_t sum = 0;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

int64_t hd_saturated(__int128 value)
{
    return value > INT64_MAX ? INT64_MAX : (int64_t)value;
}

/* NULL: it may run. First what rules out all methods, then what the method itself says. */
const char *hd_method_why_not(char *reason, const hd_method *method, const hd_method_group *group)
{
    if (method != &hd_method_local && group->why_not[0] != '\0') {
        return group->why_not;
    }
    return method->why_not != NULL ? method->why_not(reason, group) : NULL;
}

static void add(hd_edge_cost *cost, const hd_method_group *g, __int128 busiest, __int128 bytes, int64_t messages)
{
    /* A factor beyond 2^63 saturates; products of two that are not fit in 126 bits. */
    cost->bytes_per_rank_max = hd_saturated((__int128)g->fibres_max * hd_saturated(busiest));
    cost->bytes_total = hd_saturated((__int128)hd_saturated(g->fibres_total) * hd_saturated(bytes));
    cost->messages = hd_saturated((__int128)g->busy_groups * messages);
}

void hd_method_sends(hd_sends *out, const hd_method *method, const hd_method_group *group, int member, hd_members among)
{
    *out = (hd_sends){0, 0, 0, 0, 0, 0};
    if (group->fibres > 0 && method->states != NULL) {
        hd_sends_states(out, group, member, among, method);
    } else if (group->fibres > 0 && method->sends != NULL) {
        method->sends(out, group, member, among);
    }
}

static int64_t of_all_fibres(const hd_method_group *g, __int128 a_fibre)
{
    return hd_saturated((__int128)g->fibres_max * hd_saturated(a_fibre));
}

static __int128 larger(__int128 a, __int128 b)
{
    return a > b ? a : b;
}

/* Of the members that were visited: what the busiest ones do, and what all send. */
typedef struct tally {
    const hd_method *method;
    const hd_method_group *group;
    hd_sends most, all;
    hd_memory held;
    hd_flops longest;
} tally;

static void add_members(void *context, int member, int count)
{
    tally *t = context;
    const hd_method_group *group = t->group;
    const int spread = hd_group_spread(t->method, group);
    const __int128 queries = hd_group_rows(group, member / spread * spread, spread);
    hd_sends one;
    hd_memory memory;
    hd_flops flops;
    hd_method_sends(&one, t->method, group, member, hd_group_all(group));
    hd_method_memory(&memory, t->method, group, member);
    hd_method_flops(&flops, t->method, group, member, queries * group->sequence);
    t->most.forward_bytes = larger(t->most.forward_bytes, one.forward_bytes);
    t->most.backward_bytes = larger(t->most.backward_bytes, one.backward_bytes);
    t->all.forward_bytes += one.forward_bytes * count;
    t->all.backward_bytes += one.backward_bytes * count;
    t->all.forward_messages += one.forward_messages * count;
    t->all.backward_messages += one.backward_messages * count;
    t->held.saved_bytes = larger(t->held.saved_bytes, memory.saved_bytes);
    t->held.workspace_bytes = larger(t->held.workspace_bytes, memory.workspace_bytes);
    t->longest.forward = larger(t->longest.forward, flops.forward);
    t->longest.backward = larger(t->longest.backward, flops.backward);
}

/* The busiest rank's bytes are those of the busiest member and the fullest fibres: the two are independent, since
 * members are cut along the mixed dim and fibres along all others. */
void hd_method_price(hd_method_cost *out, const hd_method *method, const hd_method_group *group)
{
    tally t = {.method = method, .group = group};
    memset(out, 0, sizeof *out);
    if (method == &hd_method_local) {
        return;
    }
    hd_method_kinds(method, group, NULL, 0, add_members, &t);
    add(&out->forward, group, t.most.forward_bytes, t.all.forward_bytes, t.all.forward_messages);
    add(&out->backward, group, t.most.backward_bytes, t.all.backward_bytes, t.all.backward_messages);
    out->saved_bytes = of_all_fibres(group, t.held.saved_bytes);
    out->workspace_bytes = of_all_fibres(group, t.held.workspace_bytes);
    out->forward_flops = of_all_fibres(group, t.longest.forward);
    out->backward_flops = of_all_fibres(group, t.longest.backward);
}

int hd_group_spread(const hd_method *method, const hd_method_group *group)
{
    return method->heads_over != NULL ? method->heads_over(group) : 1;
}

/* Heads that do not divide leave some ranks idle: the work of the fullest rank against an even part. */
double hd_method_head_waste_percent(const hd_method *method, const hd_method_group *group)
{
    int64_t over = hd_group_spread(method, group);
    int64_t most = over > 0 ? (group->heads + over - 1) / over : group->heads;
    return group->heads > 0 ? ((double)(most * over) / (double)group->heads - 1.0) * 100.0 : 0.0;
}

static int has_window(const hd_method_stage *s)
{
    int64_t any = 0;
    for (int d = 0; d < HEDDLE_MAX_DIMS; d++) {
        any |= s->window[d];
    }
    return any != 0;
}

const char *hd_method_stage_refusal(const hd_method_stage *s)
{
    const int is_softmax = s->kind == HEDDLE_STAGE_ATTENTION;
    const char *known[] = {
        s->kind == HEDDLE_STAGE_MODULE ? "kind module, a framework's own" : NULL,
        (s->dims & (s->dims - 1)) != 0 ? "attention over several dims at once" : NULL,
        is_softmax && s->kv_heads > 0 && s->kv_heads != s->heads ? "fewer heads of keys than of queries" : NULL,
        is_softmax && s->causal ? "causal softmax attention" : NULL,
        s->joined_rows > 0 ? "text that joins the sequence" : NULL,
        has_window(s) ? "attention within a window" : NULL,
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i] != NULL) {
            return known[i];
        }
    }
    return NULL;
}
