/* A few timed executions confirm what the rules chose: the copy kernel, how private memory is reached, whether messages
 * are packed. The slowest rank's time counts and all ranks take the same decision. */
#include "runtime/reshard/plan.h"

#include <stdio.h>
#include <string.h>

enum {
    BUDGET_NS = 40000000, /* for all timed executions of a plan */
    SAMPLE_NS = 20000,    /* shorter executions are repeated */
    MIN_ROUNDS = 11,      /* fewer say nothing on a busy machine */
    MAX_ROUNDS = 200,
    MAX_REPEATS = 64,
    MAX_WAYS = 5,
    MARGIN_PERCENT = 5, /* the rule's choice stays unless another is so much faster */
    WARM_CACHES = 2     /* up to so many shared caches a sample starts with an execution that does not count */
};

/* One thing to decide: `ways` alternatives, way 0 by rule. */
typedef struct trial {
    heddle_reshard *twin;
    void *src, *dst;
    int ways;
    int repeats, rounds;
    int64_t best_ns[MAX_WAYS]; /* of this rank, then of the slowest */
    double share[MAX_WAYS];    /* time against way 0's of the same round, reached in three rounds of four */
} trial;

static heddle_status trial_buffer(void **out, heddle_reshard *twin, int64_t bytes)
{
    if (twin->request.options.memory == HEDDLE_MEMORY_ANY) {
        return hd_alloc_aligned(out, 4096, (size_t)bytes, "trials of a reshard");
    }
    return heddle_buffer_alloc(out, twin->comm, (size_t)bytes, hd_plan_space(twin));
}

static void free_trial_buffer(heddle_reshard *twin, void *buffer)
{
    if (twin->request.options.memory == HEDDLE_MEMORY_ANY) {
        hd_free(buffer);
    } else if (buffer != NULL) {
        heddle_buffer_free(twin->comm, buffer);
    }
}

/* --- ways --------------------------------------------------------------------------------------------------------- */

typedef heddle_status (*way_fn)(heddle_reshard *plan, heddle_reshard *twin, int way);

static hd_transfer_info info_of(const heddle_reshard *plan, int phase)
{
    hd_transfer_info info;
    hd_transfer_get_info(&info, plan->transfer[phase]);
    return info;
}

/* Candidates for the lanes that carry most. */
static int kernel_ways(const heddle_reshard *plan, const hd_copy_kernel **out)
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
    return best == NULL ? 0 : hd_lanes_candidates(best, out, MAX_WAYS, &hint);
}

static void choose_everywhere(heddle_reshard *plan, const hd_copy_kernel *kernel, const hd_copy_hint *hint)
{
    for (int p = 0; p < plan->nphases; p++) {
        hd_transfer_use_kernel(plan->transfer[p], kernel, hint);
    }
}

static heddle_status use_kernel(heddle_reshard *plan, heddle_reshard *twin, int way)
{
    const hd_copy_kernel *candidate[MAX_WAYS];
    hd_copy_hint hint = info_of(plan, 0).hint;
    int n = kernel_ways(plan, candidate);
    if (n > 0) {
        choose_everywhere(twin, candidate[way < n ? way : n - 1], &hint);
    }
    return HEDDLE_OK;
}

/* Who moves, and whose rows it follows; way 0 is put together from the rule by the caller. */
static heddle_status use_direction(heddle_reshard *plan, heddle_reshard *twin, int way)
{
    int rule = plan->rule_direction, direction = way == 0 ? rule : way <= rule ? way - 1 : way;
    hd_copy_hint hint = info_of(plan, 0).hint;
    heddle_status st = hd_transfer_use_direction(twin->transfer[0], direction & 1, direction >> 1);
    if (st == HEDDLE_OK) {
        choose_everywhere(twin, plan->request.kernel, &hint);
    }
    return hd_comm_agree(plan->comm, st);
}

static heddle_status use_reach(heddle_reshard *plan, heddle_reshard *twin, int way)
{
    (void)plan;
    for (int p = 0; p < twin->nphases; p++) {
        hd_transfer_use_reach(twin->transfer[p], way == 0 ? HD_REACH_STAGED : HD_REACH_READV);
    }
    return HEDDLE_OK;
}

/* Both kinds exist while they are compared. */
static heddle_status use_mail(heddle_reshard *plan, heddle_reshard *twin, int way)
{
    (void)plan;
    for (int p = 0; p < twin->nphases; p++) {
        hd_transfer_use_packed(twin->transfer[p], way);
    }
    return HEDDLE_OK;
}

/* --- timing ------------------------------------------------------------------------------------------------------- */

static heddle_status sample(trial *t, int repeats, int64_t *ns)
{
    heddle_status st = HEDDLE_OK;
    int64_t start = hd_now_ns();
    for (int i = 0; i < repeats; i++) {
        HD_TRY(hd_plan_run(t->twin, t->src, t->dst));
    }
    *ns = (hd_now_ns() - start) / repeats;
out:
    return st;
}

/* The slowest rank's value of each entry. */
static heddle_status slowest(heddle_reshard *plan, int64_t *value, int n)
{
    heddle_status st = HEDDLE_OK;
    void *all = NULL;
    HD_TRY(hd_comm_agree(plan->comm, hd_alloc(&all, (size_t)plan->nranks * MAX_WAYS, sizeof(int64_t), "trial times")));
    HD_TRY(hd_comm_allgather_or_abort(plan->comm, value, all, (size_t)n * sizeof *value));
    for (int r = 0; r < plan->nranks; r++) {
        for (int i = 0; i < n; i++) {
            int64_t theirs = ((int64_t *)all)[r * n + i];
            value[i] = theirs > value[i] ? theirs : value[i];
        }
    }
out:
    hd_free(all);
    return st;
}

/* A shared machine changes its speed between rounds, so a way is compared with way 0 of the same round; and it must be
 * the faster one in three rounds of four, or noise would choose. */
static void compare_rounds(trial *t, int64_t round_ns[][MAX_WAYS], int rounds)
{
    for (int w = 0; w < t->ways; w++) {
        double share[MAX_ROUNDS];
        for (int i = 0; i < rounds; i++) {
            double next = (double)round_ns[i][w] / (double)(round_ns[i][0] + 1);
            int j = i;
            for (; j > 0 && share[j - 1] > next; j--) {
                share[j] = share[j - 1];
            }
            share[j] = next;
            t->best_ns[w] = round_ns[i][w] < t->best_ns[w] ? round_ns[i][w] : t->best_ns[w];
        }
        t->share[w] = share[rounds * 3 / 4];
    }
}

/* Every way by turns; the budget says how often. */
static heddle_status time_ways(trial *t, heddle_reshard *plan, way_fn use)
{
    heddle_status st = HEDDLE_OK;
    int64_t first[MAX_WAYS], sum = 0;
    for (int w = 0; w < t->ways; w++) {
        HD_TRY(use(plan, t->twin, w));
        HD_TRY(sample(t, 1, &first[w])); /* cold */
        HD_TRY(sample(t, 1, &first[w]));
    }
    HD_TRY(slowest(plan, first, t->ways));
    int64_t shortest = first[0];
    for (int w = 0; w < t->ways; w++) {
        shortest = first[w] < shortest ? first[w] : shortest;
    }
    int64_t repeats = SAMPLE_NS / (shortest + 1) + 1;
    repeats = repeats > MAX_REPEATS ? MAX_REPEATS : repeats;
    for (int w = 0; w < t->ways; w++) {
        sum += first[w] * repeats;
        t->best_ns[w] = first[w];
    }
    hd_copy_hint hint = info_of(t->twin, 0).hint;
    int warms = hint.footprint_bytes <= WARM_CACHES * hint.shared_cache_bytes;
    int64_t rounds = BUDGET_NS / ((1 + warms) * sum + 1), round_ns[MAX_ROUNDS][MAX_WAYS];
    rounds = rounds < MIN_ROUNDS ? MIN_ROUNDS : rounds > MAX_ROUNDS ? MAX_ROUNDS : rounds;
    for (int i = 0; i < rounds; i++) {
        for (int w = 0; w < t->ways; w++) {
            HD_TRY(use(plan, t->twin, w));
            if (warms) { /* the way before left the caches in its own state */
                HD_TRY(sample(t, 1, &round_ns[i][w]));
            }
            HD_TRY(sample(t, (int)repeats, &round_ns[i][w]));
        }
    }
    for (int i = 0; i < rounds; i++) {
        HD_TRY(slowest(plan, round_ns[i], t->ways));
    }
    compare_rounds(t, round_ns, (int)rounds);
out:
    return st;
}

static int winner(const trial *t)
{
    int best = 0;
    for (int w = 1; w < t->ways; w++) {
        if (t->share[w] * 100 < 100 - MARGIN_PERCENT && t->share[w] < t->share[best]) {
            best = w;
        }
    }
    return best;
}

static void note(heddle_reshard *plan, const trial *t, const char *const *name)
{
    size_t at = strlen(plan->trials);
    at += (size_t)snprintf(plan->trials + at, sizeof plan->trials - at, "%s", at == 0 ? "timed " : "; ");
    for (int w = 0; w < t->ways && at < sizeof plan->trials; w++) {
        at += (size_t)snprintf(plan->trials + at, sizeof plan->trials - at, "%s%s %.2f us", w > 0 ? ", " : "", name[w],
                               (double)t->best_ns[w] / 1000);
    }
}

static heddle_status tune_direction(heddle_reshard *plan, trial *t)
{
    static const char *const direction[] = {"pull in dst order", "push in dst order", "pull in src order",
                                            "push in src order"};
    heddle_status st = HEDDLE_OK;
    const hd_transfer_info first = info_of(plan, 0);
    const char *name[4];
    int best;
    if (!first.is_open || !first.any_near || first.any_messages || plan->nphases > 1) {
        return HEDDLE_OK;
    }
    plan->rule_direction = (first.push != 0) + 2 * (first.walk_src != 0);
    for (int w = 0, rule = plan->rule_direction; w < 4; w++) {
        name[w] = direction[w == 0 ? rule : w <= rule ? w - 1 : w];
    }
    t->ways = 4;
    HD_TRY(time_ways(t, plan, use_direction));
    best = winner(t);
    HD_TRY(use_direction(plan, t->twin, best));
    if (t->twin != plan) {
        HD_TRY(use_direction(plan, plan, best));
    }
    note(plan, t, name);
out:
    return st;
}

static heddle_status tune_kernel(heddle_reshard *plan, trial *t)
{
    heddle_status st = HEDDLE_OK;
    const hd_copy_kernel *candidate[MAX_WAYS];
    const char *name[MAX_WAYS] = {"-", "-", "-", "-", "-"};
    int own = kernel_ways(plan, candidate);
    int64_t ways = own;
    HD_TRY(slowest(plan, &ways, 1));
    t->ways = (int)ways;
    if (t->ways < 2 || plan->request.kernel != NULL) {
        goto out;
    }
    for (int i = 0; i < own; i++) {
        name[i] = candidate[i]->name;
    }
    HD_TRY(time_ways(t, plan, use_kernel));
    HD_TRY(use_kernel(plan, plan, winner(t)));
    HD_TRY(use_kernel(plan, t->twin, winner(t)));
    note(plan, t, name);
out:
    return st;
}

static heddle_status tune_reach(heddle_reshard *plan, trial *t)
{
    static const char *const name[] = {"staged", "process_vm_readv"};
    heddle_status st = HEDDLE_OK;
    int used = 0, works = 0;
    for (int p = 0; p < plan->nphases; p++) {
        hd_transfer_info info = info_of(plan, p);
        used |= info.is_private;
        if (info.is_private && info.any_adds) {
            goto out; /* terms are added where they lie: they must be readable by loads */
        }
    }
    if (!used || !hd_plan_any_near(plan)) {
        goto out;
    }
    HD_TRY(hd_channel_probe_readv(plan->channel, &works));
    int64_t fails = !works;
    HD_TRY(slowest(plan, &fails, 1));
    if (fails) {
        snprintf(plan->trials, sizeof plan->trials, "process_vm_readv is not permitted here");
        goto out;
    }
    t->ways = 2;
    HD_TRY(time_ways(t, plan, use_reach));
    HD_TRY(use_reach(plan, plan, winner(t)));
    HD_TRY(use_reach(plan, t->twin, winner(t)));
    note(plan, t, name);
out:
    return st;
}

static heddle_status open_spare(heddle_reshard *plan)
{
    heddle_status st = HEDDLE_OK;
    for (int p = 0; p < plan->nphases && st == HEDDLE_OK; p++) {
        st = hd_transfer_open_spare(plan->transfer[p]);
    }
    return st;
}

static heddle_status tune_mail(heddle_reshard *plan, trial *t)
{
    static const char *const name[] = {"typed messages", "packed messages"};
    heddle_status st = HEDDLE_OK;
    int best;
    if (!hd_plan_any_messages(plan)) {
        goto out;
    }
    HD_TRY(open_spare(t->twin));
    t->ways = 2;
    HD_TRY(time_ways(t, plan, use_mail));
    best = winner(t);
    if (t->twin != plan && best == 1) {
        HD_TRY(open_spare(plan));
    }
    HD_TRY(use_mail(plan, plan, best));
    HD_TRY(use_mail(plan, t->twin, best));
    note(plan, t, name);
out:
    for (int p = 0; p < plan->nphases; p++) {
        hd_transfer_drop_spare(plan->transfer[p]);
    }
    return st;
}

static void forget_executions(heddle_reshard *plan)
{
    plan->executions = 0;
    memset(hd_channel_sent(plan->channel), 0, (size_t)plan->nranks * sizeof(int64_t));
}

heddle_status hd_plan_tune(heddle_reshard *plan)
{
    heddle_status st = HEDDLE_OK;
    trial t = {0};
    int possible = plan->request.options.tuning == HEDDLE_TUNING_TRIALS;
    if (!possible) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_twin_create(&t.twin, plan, &possible));
    if (!possible) {
        goto out;
    }
    st = trial_buffer(&t.src, t.twin, t.twin->request.src_bytes);
    st = st == HEDDLE_OK ? trial_buffer(&t.dst, t.twin, t.twin->request.dst_bytes) : st;
    HD_TRY(hd_comm_agree(plan->comm, st));
    HD_TRY(tune_mail(plan, &t));
    HD_TRY(tune_reach(plan, &t));
    HD_TRY(tune_direction(plan, &t));
    HD_TRY(tune_kernel(plan, &t));
    HD_TRY(heddle_comm_barrier(plan->comm)); /* nobody uses the twin any more */
    forget_executions(plan);
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
