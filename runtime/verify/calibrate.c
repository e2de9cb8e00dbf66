/* Turns through the list of operations, and what their times come to. */
#include "runtime/verify/calibrate.h"
#include "runtime/verify/attention_bench.h"
#include "runtime/verify/samples.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUGH_S = 3, LEAST_TURNS = 4 /* of the host */, CROWDS = 16, CROWDS_LEAST = 2, CROWD_PART = 10 };
enum { MOST_OVERLAP = 32768, ROUGH_OVERLAP = 64 };           /* rows of all ranks on devices */
enum { COLD_BYTES = 256 << 20, ROUGH_COLD_BYTES = 1 << 16 }; /* twice the cache of today's largest devices */
enum { ROUGH_CACHE_BYTES = 16 << 20 }; /* of hundreds of MiB, which take longer to go through than most operations */

/* Times of `seconds`: all turns, with those for what did not agree, but for the least; and a device's. */
static const double LONGEST = 2.5, DEVICE_LONGEST = 2;

/* What all runs of a sitting have. */
typedef struct sitting {
    heddle_comm *comm;
    const calibrate_options *o;
    char *others; /* of so many bytes */
    int64_t others_bytes;
    calibrate_there on_device;
    const calibrate_there *there; /* NULL: in host memory */
} sitting;

/* Is there operation `index`? It is described in run->sample. */
static int describe(calibrate_run *run, const sitting *s, calibrate_sample *sample, int index)
{
    sample->about = (heddle_measured){.ranks = 0};
    *run = (calibrate_run){.comm = s->comm,
                           .there = s->there,
                           .sample = sample,
                           .others = s->others,
                           .others_bytes = s->others_bytes,
                           .is_rough = s->o->seconds < ROUGH_S,
                           .shares_core = s->o->shares_cores};
    int works = 0;
    if (calibrate_work_at(run, index)) {
        return 1;
    }
    calibrate_sample unused = {.times = 0};
    calibrate_run counting = {.there = s->there, .sample = &unused, .is_rough = run->is_rough};
    while (calibrate_work_at(&counting, works)) {
        unused.about.nterms = 0;
        works++;
    }
    return calibrate_exchange_at(run, heddle_comm_size(s->comm), index - works);
}

/* Through what does not agree yet, which is all of the list at first. */
static heddle_status turn(calibrate_result *out, const sitting *sit, int number, int turns)
{
    const calibrate_options *o = sit->o;
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < out->samples && st == HEDDLE_OK; i++) {
        calibrate_run run;
        if (out->sample[i].agrees) {
            continue;
        }
        (void)describe(&run, sit, &out->sample[i], i);
        if (o->watch != NULL && heddle_comm_rank(sit->comm) == 0) {
            o->watch(&out->sample[i], number * out->samples + i, turns * out->samples);
        }
        st = calibrate_time_operation(&run, o->seconds * 1e3 / (turns * out->samples) / 2); /* opening takes as long */
    }
    return st;
}

/* A ring hides hops behind work where ranks do not move bytes themselves: by how much is seen in attention, its work
 * and its hops, alone and together. */
static heddle_status time_overlap(double *out, const sitting *sit, double seconds)
{
    heddle_comm *comm = sit->comm;
    const int ranks = heddle_comm_size(comm), device_rows = sit->o->seconds < ROUGH_S ? ROUGH_OVERLAP : MOST_OVERLAP;
    attention_case *c = calloc(1, sizeof *c);
    attention_bench bench = {.samples = 0};
    char text[64];
    if (c == NULL) {
        return judge_no_memory("a problem to time", sizeof *c);
    }
    snprintf(text, sizeof text, "bf16[b=1 s=%d h=%d d=64]", sit->there != NULL ? device_rows : 256 * ranks, 2 * ranks);
    heddle_status st = heddle_shape_parse(&c->shape, text);
    snprintf(text, sizeof text, "[sp=%d]", ranks);
    st = st == HEDDLE_OK ? heddle_mesh_parse(&c->mesh, text) : st;
    c->layout = heddle_layout_replicated();
    c->layout.dim_of_axis[0] = 1;
    heddle_attention_options_init(&c->options);
    c->options.method = HEDDLE_ATTENTION_RING;
    c->options.space = sit->there != NULL ? HEDDLE_SPACE_DEVICE : HEDDLE_SPACE_HOST;
    c->options.device = sit->there != NULL ? heddle_comm_device(comm) : 0;
    st = st == HEDDLE_OK ? attention_time(&bench, comm, c, seconds) : st;
    if (st == HEDDLE_OK) {
        const double longer = fmax(bench.forward.local_min_ms, bench.forward.moving_min_ms);
        const double shorter = fmin(bench.forward.local_min_ms, bench.forward.moving_min_ms);
        *out = fmin(fmax(1 + (bench.forward.min_ms - longer) / shorter, 1), 2);
        st = samples_slowest(out, 1, comm);
    }
    free(c);
    return st;
}

/* By rank 0 alone. The others sleep for as long as that takes about: some transports poll while they wait, which takes
 * something from a core that shares with theirs. */
static heddle_status time_alone(double *ms, calibrate_run *run, double about_ms)
{
    const int is_awake = heddle_comm_rank(run->comm) == 0;
    heddle_status st = calibrate_time_runs(ms, run, is_awake);
    if (!is_awake && st == HEDDLE_OK) {
        const int64_t ns = (int64_t)(about_ms * 1e6);
        nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
    }
    return st;
}

/* One operation by rank 0 alone and by all at once, in turn. */
static heddle_status time_crowd(double *out, calibrate_run *run, double budget_ms)
{
    double alone[CROWDS], crowded[CROWDS], ms = 0;
    int times = 0;
    const double begun = samples_now_ms();
    heddle_status st = run->operation->open(run);
    st = st == HEDDLE_OK ? calibrate_time_runs(&ms, run, 1) : st;
    int goes_on = 1;
    while (goes_on && st == HEDDLE_OK) {
        st = time_alone(&alone[times], run, ms);
        st = st == HEDDLE_OK ? calibrate_time_runs(&crowded[times++], run, 1) : st;
        double spent = samples_now_ms() - begun;
        st = st == HEDDLE_OK ? samples_slowest(&spent, 1, run->comm) : st;
        goes_on = times < CROWDS_LEAST || (times < CROWDS && spent < budget_ms);
    }
    *out = heddle_comm_rank(run->comm) == 0 ? samples_median(crowded, times) / samples_median(alone, times) : 0;
    st = st == HEDDLE_OK ? samples_slowest(out, 1, run->comm) : st; /* rank 0's, as the others have 0 */
    st = st == HEDDLE_OK ? heddle_comm_barrier(run->comm) : st;
    run->operation->close(run);
    return st;
}

/* Every work of the list counts alike; they differ less than they drift. Who works alone waits for nobody, either. */
static heddle_status time_crowding(calibrate_result *out, const sitting *sit)
{
    calibrate_run run;
    calibrate_sample sample = {.times = 0};
    double product = 0, waiting = 1;
    heddle_status st = calibrate_waiting(&waiting, out->sample, out->samples, sit->comm);
    int works = 0;
    while (describe(&run, sit, &sample, works) && sample.about.ranks == 0) {
        works++;
    }
    for (int i = 0; i < works && st == HEDDLE_OK; i++) {
        double one = 1;
        (void)describe(&run, sit, &sample, i);
        st = time_crowd(&one, &run, sit->o->seconds * 1e3 / CROWD_PART / works);
        product += st == HEDDLE_OK ? log(one) : 0;
    }
    out->crowding_slowdown = waiting * fmax(exp(product / works), 1);
    return st;
}

/* While others have the core a rank's work waits, which no rate of the machine should say. */
static heddle_status find_coreless(calibrate_result *out, heddle_comm *comm)
{
    double wall = 0, core = 0;
    for (int i = 0; i < out->samples; i++) {
        const calibrate_sample *s = &out->sample[i];
        wall += s->about.ranks == 0 ? s->wall_ms : 0;
        core += s->about.ranks == 0 ? s->core_ms : 0;
    }
    out->coreless = wall > core ? 1 - core / wall : 0;
    return samples_slowest(&out->coreless, 1, comm);
}

/* Would so much of one more turn end within `longest` of the time there is? */
static heddle_status is_time_for_more(int *out, const sitting *sit, int turns, double part, double spent_ms,
                                      double longest)
{
    heddle_status st = samples_slowest(&spent_ms, 1, sit->comm);
    *out = spent_ms * (turns + part) / turns <= 1e3 * longest * sit->o->seconds;
    return st;
}

/* What the turns do not agree on has more of them, while there is time. */
static heddle_status settle(calibrate_result *out, const sitting *sit, double begun)
{
    heddle_status st = HEDDLE_OK;
    int goes_on = 1;
    for (int turns = CALIBRATE_TURNS; turns < CALIBRATE_MOST_TURNS && goes_on && st == HEDDLE_OK; turns++) {
        int left = 0;
        for (int i = 0; i < out->samples; i++) {
            calibrate_conclude(&out->sample[i]);
            left += !out->sample[i].agrees;
        }
        st = is_time_for_more(&goes_on, sit, turns, (double)left / out->samples, samples_now_ms() - begun, LONGEST);
        st = goes_on && st == HEDDLE_OK ? turn(out, sit, turns, turns + 1) : st;
    }
    return st;
}

/* Of a device: what launches cost, by what ranks exchange, and who makes products of bf16. */
static heddle_status find_device(calibrate_result *out, const sitting *sit)
{
    heddle_status st = HEDDLE_OK;
    int is_found = sit->there == NULL;
    for (int i = 0; i < out->samples && st == HEDDLE_OK; i++) {
        calibrate_run run;
        const calibrate_sample *s = &out->sample[i];
        out->launch_s = s->about.ranks == 0 && s->about.nterms == 0 ? s->about.seconds : out->launch_s;
        if (s->wire[0] != '\0') {
            snprintf(out->wire, sizeof out->wire, "%s", s->wire);
        }
        if (!is_found && strcmp(s->kind, "mlp") == 0 && s->about.term[0].dtype == HEDDLE_BF16) {
            calibrate_sample unused = {.times = 0};
            is_found = describe(&run, sit, &unused, i);
            st = calibrate_there_products(out, &run);
        }
    }
    return st;
}

static heddle_status measure(calibrate_result *out, const sitting *sit)
{
    const int turns = sit->o->seconds >= ROUGH_S ? CALIBRATE_TURNS : 1;
    const int least = sit->there != NULL ? 1 : LEAST_TURNS;
    const double begun = samples_now_ms(), longest = sit->there != NULL ? DEVICE_LONGEST : LONGEST;
    int done = 0, goes_on = 1;
    heddle_status st = HEDDLE_OK;
    calibrate_run run;
    while (out->samples < CALIBRATE_SAMPLES && describe(&run, sit, &out->sample[out->samples], out->samples)) {
        out->samples++;
    }
    while (done < turns && goes_on && st == HEDDLE_OK) {
        st = turn(out, sit, done, turns);
        done++;
        if (done < turns && done >= least && st == HEDDLE_OK) { /* opening operations takes what it takes */
            st = is_time_for_more(&goes_on, sit, done, 1, samples_now_ms() - begun, longest);
        }
    }
    if (sit->there == NULL && done == CALIBRATE_TURNS && st == HEDDLE_OK) {
        st = settle(out, sit, begun);
    }
    for (int i = 0; i < out->samples && st == HEDDLE_OK; i++) {
        calibrate_conclude(&out->sample[i]);
    }
    st = st == HEDDLE_OK ? find_coreless(out, sit->comm) : st;
    st = st == HEDDLE_OK ? find_device(out, sit) : st;
    if (st == HEDDLE_OK && heddle_comm_size(sit->comm) > 1) {
        const int is_crowd = sit->there == NULL || out->devices < heddle_comm_size(sit->comm);
        st = time_overlap(&out->overlap_slowdown, sit, sit->o->seconds / 20);
        st = st == HEDDLE_OK && is_crowd ? time_crowding(out, sit) : st;
    }
    if (sit->o->watch != NULL && heddle_comm_rank(sit->comm) == 0) {
        sit->o->watch(NULL, 0, 0);
    }
    return st;
}

/* What else is in the caches. */
static heddle_status hold_others(sitting *sit)
{
    const size_t bytes = (size_t)sit->others_bytes + 1;
    if (sit->there != NULL) {
        void *there = NULL;
        const heddle_status st = heddle_buffer_alloc(&there, sit->comm, bytes, HEDDLE_SPACE_DEVICE);
        sit->others = there;
        return st;
    }
    sit->others = malloc(bytes);
    if (sit->others == NULL) {
        return judge_no_memory("what caches hold", (double)bytes);
    }
    memset(sit->others, 1, bytes); /* pages of its own */
    return HEDDLE_OK;
}

static heddle_status sit_down(sitting *sit, calibrate_result *out)
{
    heddle_status st = HEDDLE_OK;
    out->is_rough = sit->o->seconds < ROUGH_S;
    sit->others_bytes = sit->o->cache_bytes;
    if (out->is_rough && sit->others_bytes > ROUGH_CACHE_BYTES) {
        sit->others_bytes = ROUGH_CACHE_BYTES;
    }
    if (heddle_comm_device(sit->comm) >= 0) {
        st = calibrate_there_make(&sit->on_device, sit->comm);
        sit->there = &sit->on_device;
        sit->others_bytes = out->is_rough ? ROUGH_COLD_BYTES : COLD_BYTES;
    }
    out->sample = calloc(CALIBRATE_SAMPLES + 1, sizeof *out->sample);
    if (st == HEDDLE_OK && out->sample == NULL) {
        return judge_no_memory("times", (CALIBRATE_SAMPLES + 1) * (double)sizeof *out->sample);
    }
    return st == HEDDLE_OK ? hold_others(sit) : st;
}

static void get_up(sitting *sit)
{
    if (sit->there == NULL) {
        free(sit->others);
        return;
    }
    heddle_buffer_free(sit->comm, sit->others);
    calibrate_there_free(&sit->on_device, sit->comm);
}

heddle_status calibrate_measure(calibrate_result *out, heddle_comm *comm, const calibrate_options *options)
{
    sitting sit = {.comm = comm, .o = options};
    int lacks = 0, speaks = 0;
    *out = (calibrate_result){.overlap_slowdown = 1, .crowding_slowdown = 1};
    const heddle_status mine = sit_down(&sit, out);
    heddle_status st = judge_first_problem(&lacks, &speaks, comm, mine != HEDDLE_OK);
    if (st == HEDDLE_OK && lacks && mine == HEDDLE_OK) {
        st = heddle_set_error(HEDDLE_ERR_PEER, "another rank cannot measure: it says why");
    }
    st = mine != HEDDLE_OK ? mine : st;
    st = st == HEDDLE_OK && sit.there != NULL ? calibrate_there_share(out, sit.there, comm) : st;
    st = st == HEDDLE_OK ? measure(out, &sit) : st;
    get_up(&sit);
    return st;
}

void calibrate_free(calibrate_result *result)
{
    free(result->sample);
    *result = (calibrate_result){.sample = NULL};
}
