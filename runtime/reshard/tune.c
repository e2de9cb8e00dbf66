/* A few timed executions confirm what the rules chose: who moves and with which kernel, how private memory is reached,
 * whether messages are packed. */
#include "runtime/reshard/trial.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A source of zeros would lie: Zen 4 streams them past its caches three times as fast as anything else. These bytes are
 * an ordinary number in every dtype. */
enum { ANY_DATA = 0x3f };

static heddle_status trial_buffer(void **out, heddle_reshard *twin, int64_t bytes)
{
    if (twin->bare->spec.any_memory) {
        return hd_alloc_aligned(out, 4096, (size_t)bytes, "trials of a reshard");
    }
    return heddle_buffer_alloc(out, twin->comm, (size_t)bytes, HEDDLE_SPACE_HOST);
}

static void free_trial_buffer(heddle_reshard *twin, void *buffer)
{
    if (twin->bare->spec.any_memory) {
        hd_free(buffer);
    } else if (buffer != NULL) {
        heddle_buffer_free(twin->comm, buffer);
    }
}

__attribute__((format(printf, 2, 3))) static void say(heddle_reshard *plan, const char *format, ...)
{
    size_t at = strlen(plan->trials);
    va_list args;
    va_start(args, format);
    vsnprintf(plan->trials + at, sizeof plan->trials - at, format, args);
    va_end(args);
}

/* The times, and what decided. */
static void note(heddle_reshard *plan, const hd_trial *t, int winner, const char *const *name)
{
    int best = 0; /* the winner, or what came nearest to the rule's way */
    say(plan, "%s", plan->trials[0] == 0 ? "timed " : "; ");
    if (t->nfinalists == 0) {
        say(plan, "%s %.2f us, too long to try %d other way%s", name[0], (double)t->alone_ns / 1000, t->ways - 1,
            t->ways > 2 ? "s" : "");
        return;
    }
    if (t->ways > t->nfinalists) {
        say(plan, "%d ways, at length ", t->ways);
    }
    for (int i = 0; i < t->nfinalists; i++) {
        say(plan, "%s%s %.2f us", i > 0 ? ", " : "", name[t->finalist[i]], (double)t->said_ns[i] / 1000);
        int is_better = winner != 0 ? t->finalist[i] == winner : i > 0 && (best == 0 || t->share[i] < t->share[best]);
        best = is_better ? i : best;
    }
    if (winner != 0) {
        say(plan, ": %s is taken, in three rounds of four it has at most %.2f of the first one's time", name[winner],
            t->share[best]);
    } else {
        say(plan, ": the first stays, in three rounds of four %s has up to %.2f of its time, wanted %.2f",
            name[t->finalist[best]], t->share[best], (100 - HD_TRIAL_MARGIN_PERCENT) / 100.0);
    }
    if (!t->is_steady) {
        say(plan, "; not steady: by itself it takes %.2f us", (double)t->alone_ns / 1000);
    }
}

static heddle_status run_twin(const hd_trial *t, int executions, int64_t *ns)
{
    heddle_status st = HEDDLE_OK;
    int64_t start_ns = hd_now_ns();
    for (int i = 0; i < executions; i++) {
        HD_TRY(t->twin->bare->carrier->run(t->twin->bare, t->src, t->dst, HEDDLE_NO_STREAM));
    }
    *ns = hd_now_ns() - start_ns;
out:
    return st;
}

static hd_transfer_info info_of(const heddle_reshard *plan, int phase)
{
    hd_transfer_info info;
    hd_transfer_get_info(&info, plan->bare->transfer[phase]);
    return info;
}

/* --- who moves, with which kernel: pairs, for the best kernel of one direction is not that of another ------------- */

enum {
    DIRECTIONS = 4,
    KERNELS = 5,       /* of the rule's direction */
    OTHER_KERNELS = 3, /* of each other one: the best guesses */
    NAME_BYTES = 48
};
_Static_assert(KERNELS + (DIRECTIONS - 1) * OTHER_KERNELS <= HD_TRIAL_WAYS, "more pairs than ways");

typedef struct copy_way {
    int direction;                /* push + 2 * walk_src */
    const hd_copy_kernel *kernel; /* this rank's; NULL: it copies nothing */
} copy_way;

typedef struct copy_ways {
    copy_way way[HD_TRIAL_WAYS];
    int count; /* the same on every rank */
} copy_ways;

static int direction_of(const hd_transfer_info *t)
{
    return (t->push != 0) + 2 * (t->walk_src != 0);
}

/* Collective. */
static heddle_status turn(heddle_reshard *plan, int direction)
{
    hd_transfer_info first = info_of(plan, 0);
    return direction == direction_of(&first)
               ? HEDDLE_OK
               : hd_comm_agree(plan->comm,
                               hd_transfer_use_direction(plan->bare->transfer[0], direction & 1, direction >> 1));
}

/* The kernels worth trying for the lanes that carry most; the one that was asked for alone. */
static int kernels_of(const heddle_reshard *plan, const hd_copy_kernel **out, int capacity)
{
    int64_t most = 0;
    const hd_lanes *best = NULL;
    for (int p = 0; p < plan->nphases; p++) {
        hd_transfer_info t = info_of(plan, p);
        const hd_lanes *set[] = {t.lanes, t.pack};
        for (int k = 0; k < 2; k++) {
            if (hd_lanes_bytes(set[k]) > most) {
                most = hd_lanes_bytes(set[k]);
                best = set[k];
            }
        }
    }
    hd_copy_hint hint = info_of(plan, 0).hint;
    out[0] = plan->request.kernel;
    return best == NULL ? 0 : out[0] != NULL ? 1 : hd_lanes_candidates(best, out, capacity, &hint);
}

/* One direction. A rank that knows fewer kernels than another tries its last one again. */
static heddle_status list_direction(copy_ways *out, heddle_reshard *plan, int direction, int kernels)
{
    const hd_copy_kernel *kernel[KERNELS];
    heddle_status st = turn(plan, direction);
    int own = st == HEDDLE_OK ? kernels_of(plan, kernel, kernels) : 0;
    int64_t most = own;
    HD_TRY(st);
    HD_TRY(hd_trial_largest(plan, &most, 1));
    for (int k = 0; k < most; k++) {
        out->way[out->count++] = (copy_way){direction, own > 0 ? kernel[k < own ? k : own - 1] : NULL};
    }
out:
    return st;
}

/* The rule's direction first, with the rule's kernel. */
static heddle_status list_copies(copy_ways *out, heddle_reshard *plan)
{
    heddle_status st = HEDDLE_OK;
    const hd_transfer_info first = info_of(plan, 0);
    int is_open = first.is_open && first.any_near && !first.any_messages && plan->nphases == 1;
    int rule = direction_of(&first);
    HD_TRY(list_direction(out, plan, rule, KERNELS));
    for (int direction = 0; is_open && direction < DIRECTIONS; direction++) {
        if (direction != rule) {
            HD_TRY(list_direction(out, plan, direction, OTHER_KERNELS));
        }
    }
    st = turn(plan, rule);
out:
    return st;
}

static heddle_status use_copies(const hd_trial *t, heddle_reshard *plan, int way)
{
    const copy_way *w = &((const copy_ways *)t->of_use)->way[way];
    hd_copy_hint hint = info_of(t->plan, 0).hint;
    heddle_status st = turn(plan, w->direction);
    for (int p = 0; p < plan->nphases && st == HEDDLE_OK; p++) {
        hd_transfer_use_kernel(plan->bare->transfer[p], w->kernel, &hint);
    }
    return st;
}

static void note_copies(heddle_reshard *plan, const hd_trial *t, int winner, const copy_ways *ways)
{
    static const char *const mover[DIRECTIONS] = {"pull in dst order, ", "push in dst order, ", "pull in src order, ",
                                                  "push in src order, "};
    char text[HD_TRIAL_WAYS][NAME_BYTES];
    const char *name[HD_TRIAL_WAYS];
    int moves = ways->way[0].direction != ways->way[ways->count - 1].direction;
    for (int w = 0; w < ways->count; w++) {
        const copy_way *way = &ways->way[w];
        snprintf(text[w], NAME_BYTES, "%s%s", moves ? mover[way->direction] : "",
                 way->kernel != NULL ? way->kernel->name : "-");
        name[w] = text[w];
    }
    note(plan, t, winner, name);
}

static heddle_status tune_copies(heddle_reshard *plan, hd_trial *t)
{
    heddle_status st = HEDDLE_OK;
    copy_ways ways = {.count = 0};
    int winner;
    HD_TRY(list_copies(&ways, plan));
    t->use = use_copies;
    t->of_use = &ways;
    t->ways = ways.count;
    if (t->ways > 1) {
        HD_TRY(hd_trial_run(&winner, t));
        HD_TRY(hd_trial_adopt(t, winner));
        note_copies(plan, t, winner, &ways);
    }
out:
    return st;
}

/* --- how private memory is reached -------------------------------------------------------------------------------- */

static heddle_status use_reach(const hd_trial *t, heddle_reshard *plan, int way)
{
    (void)t;
    for (int p = 0; p < plan->nphases; p++) {
        hd_transfer_use_reach(plan->bare->transfer[p], way == 0 ? HD_REACH_STAGED : HD_REACH_READV);
    }
    return HEDDLE_OK;
}

static heddle_status tune_reach(heddle_reshard *plan, hd_trial *t)
{
    static const char *const name[] = {"staged", "process_vm_readv"};
    heddle_status st = HEDDLE_OK;
    int used = 0, works = 0, winner;
    for (int p = 0; p < plan->nphases; p++) {
        hd_transfer_info info = info_of(plan, p);
        used |= info.is_private;
        if (info.is_private && info.any_adds) {
            goto out; /* terms are added where they lie: they must be readable by loads */
        }
    }
    if (!used || !(hd_plan_ways(plan) & HD_WAY_NEAR)) {
        goto out;
    }
    HD_TRY(hd_channel_probe_readv(plan->bare->channel, &works));
    int64_t fails = !works;
    HD_TRY(hd_trial_largest(plan, &fails, 1));
    if (fails) {
        snprintf(plan->trials, sizeof plan->trials, "process_vm_readv is not permitted here");
        goto out;
    }
    t->use = use_reach;
    t->ways = 2;
    HD_TRY(hd_trial_run(&winner, t));
    HD_TRY(hd_trial_adopt(t, winner));
    note(plan, t, winner, name);
out:
    return st;
}

/* --- whether long sums go past the caches ------------------------------------------------------------------------- */

static heddle_status use_sum(const hd_trial *t, heddle_reshard *plan, int way)
{
    for (int p = 0; p < plan->nphases; p++) {
        hd_transfer_use_sum(plan->bare->transfer[p], way ^ *(const int *)t->of_use);
    }
    return HEDDLE_OK;
}

/* Below the shared cache there is nothing to ask. */
static heddle_status tune_sum(heddle_reshard *plan, hd_trial *t)
{
    static const char *const name[] = {"sum_rows", "sum_rows_nt"};
    heddle_status st = HEDDLE_OK;
    const hd_transfer_info first = info_of(plan, 0);
    const char *const by_way[] = {name[first.streams], name[!first.streams]};
    int winner;
    if (!first.any_adds || first.hint.footprint_bytes < first.hint.shared_cache_bytes / 2) {
        goto out;
    }
    t->use = use_sum;
    t->of_use = &first.streams;
    t->ways = 2;
    HD_TRY(hd_trial_run(&winner, t));
    HD_TRY(hd_trial_adopt(t, winner));
    note(plan, t, winner, by_way);
out:
    return st;
}

/* --- whether messages are packed ---------------------------------------------------------------------------------- */

/* Both kinds exist while they are compared. */
static heddle_status use_mail(const hd_trial *t, heddle_reshard *plan, int way)
{
    (void)t;
    for (int p = 0; p < plan->nphases; p++) {
        hd_transfer_use_packed(plan->bare->transfer[p], way);
    }
    return HEDDLE_OK;
}

static heddle_status open_spare(heddle_reshard *plan)
{
    heddle_status st = HEDDLE_OK;
    for (int p = 0; p < plan->nphases && st == HEDDLE_OK; p++) {
        st = hd_transfer_open_spare(plan->bare->transfer[p]);
    }
    return st;
}

static heddle_status tune_mail(heddle_reshard *plan, hd_trial *t)
{
    static const char *const name[] = {"typed messages", "packed messages"};
    heddle_status st = HEDDLE_OK;
    int winner;
    if (!t->by_messages) {
        goto out;
    }
    HD_TRY(open_spare(t->twin));
    t->use = use_mail;
    t->ways = 2;
    HD_TRY(hd_trial_run(&winner, t));
    if (t->twin != plan && winner == 1) {
        HD_TRY(open_spare(plan));
    }
    HD_TRY(hd_trial_adopt(t, winner));
    note(plan, t, winner, name);
out:
    for (int p = 0; p < plan->nphases; p++) {
        hd_transfer_drop_spare(plan->bare->transfer[p]);
    }
    return st;
}

heddle_status hd_plan_tune(heddle_reshard *plan)
{
    heddle_status st = HEDDLE_OK;
    hd_trial t = {.plan = plan, .run = run_twin};
    int possible = 0;
    HD_TRY(hd_twin_create(&t.twin, plan, &possible));
    if (!possible) {
        goto out;
    }
    st = trial_buffer(&t.src, t.twin, t.twin->request.src_bytes);
    st = st == HEDDLE_OK ? trial_buffer(&t.dst, t.twin, t.twin->request.dst_bytes) : st;
    HD_TRY(hd_comm_agree(plan->comm, st));
    memset(t.src, ANY_DATA, (size_t)t.twin->request.src_bytes);
    hd_copy_hint hint = info_of(t.twin, 0).hint;
    t.is_cached = hint.footprint_bytes <= hint.shared_cache_bytes;
    for (int p = 0; p < plan->nphases; p++) {
        t.by_messages |= info_of(plan, p).any_mail;
    }
    HD_TRY(tune_mail(plan, &t));
    HD_TRY(tune_reach(plan, &t));
    HD_TRY(tune_sum(plan, &t));
    HD_TRY(tune_copies(plan, &t));
    HD_TRY(heddle_comm_barrier(plan->comm)); /* nobody uses the twin any more */
    hd_route_forget(plan->bare);
out:
    if (t.twin != NULL) {
        free_trial_buffer(t.twin, t.src);
        free_trial_buffer(t.twin, t.dst);
    }
    if (t.twin != plan) {
        heddle_reshard_destroy(t.twin);
    }
    return st;
}
