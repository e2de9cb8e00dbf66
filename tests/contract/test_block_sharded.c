/* Blocks whose mixed dim is sharded, by every method: the part of every rank is that of a block that holds everything,
 * and what is sent is what was planned. */
#include "block_calls.h"
#include "case.h"

#include "kernels/small_float.h"
#include "runtime/verify/random.h"

#include <heddle/heddle.h>
#include <heddle/train/tape.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct job {
    heddle_stage_kind kind;
    const char *shape, *mesh, *layout, *method;
    int mixed_dim, heads, flags; /* 1 rope, 2 qk_norm or causal, 4 no modulation; decay by flags % 3 */
} job;

/* --- one block, and everything about it, the same on every rank --------------------------------------------------- */

typedef struct world {
    heddle_block_options options;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_block *whole, *mine;
    heddle_conditioning conditioning;
    float *x, *vector; /* everything */
    int64_t elems, vector_elems;
    heddle_box all, box;
    random_source source;
} world;

static void *room(int64_t elems, size_t bytes)
{
    void *memory = calloc((size_t)elems + 1, bytes);
    assert_non_null(memory);
    return memory;
}

static heddle_status open_world(world *w, const job *j, heddle_comm *comm)
{
    memset(w, 0, sizeof *w);
    w->source.state = 11;
    heddle_block_options_init(&w->options);
    w->options.kind = j->kind;
    w->options.mixed_dim = j->mixed_dim;
    w->options.heads = j->heads;
    w->options.rope = j->flags & 1;
    w->options.qk_norm = j->kind == HEDDLE_STAGE_ATTENTION && (j->flags & 2) != 0;
    w->options.causal = j->kind == HEDDLE_STAGE_LINEAR && (j->flags & 2) != 0;
    w->options.modulate = (j->flags & 4) == 0;
    w->options.decay = (const double[]){0.9, 0, 1}[j->flags % 3];
    heddle_status st = heddle_shape_parse(&w->options.shape, j->shape);
    st = st != HEDDLE_OK ? st : heddle_mesh_parse(&w->mesh, j->mesh);
    st = st != HEDDLE_OK ? st : heddle_layout_parse(&w->layout, j->layout, &w->options.shape, &w->mesh);
    st = st != HEDDLE_OK ? st : heddle_block_create(&w->whole, &w->options);
    st = st != HEDDLE_OK ? st : heddle_block_seed(w->whole, 5);
    st = st != HEDDLE_OK ? st : heddle_block_create(&w->mine, &w->options);
    st = st != HEDDLE_OK ? st : heddle_block_seed(w->mine, 5);
    heddle_layout everywhere = heddle_layout_replicated();
    int rank = heddle_comm_rank(comm);
    st = st != HEDDLE_OK ? st : heddle_layout_box(&w->all, &w->options.shape, &w->mesh, &everywhere, rank);
    st = st != HEDDLE_OK ? st : heddle_layout_box(&w->box, &w->options.shape, &w->mesh, &w->layout, rank);
    if (st != HEDDLE_OK) {
        return st;
    }
    int last = w->options.shape.ndim - 1;
    w->elems = heddle_box_elems(&w->all);
    w->vector_elems = w->all.len[0] * 6 * w->all.len[last];
    w->x = room(w->elems, sizeof(float));
    w->vector = room(w->vector_elems, sizeof(float));
    for (int64_t i = 0; i < w->elems; i++) {
        w->x[i] = hd_f32_from_bf16(hd_bf16_from_f32(2 * (float)random_unit(&w->source)));
    }
    for (int64_t i = 0; i < w->vector_elems; i++) {
        w->vector[i] = (float)random_unit(&w->source);
    }
    w->conditioning.vector = w->vector;
    return heddle_block_shard_attention(w->mine, comm, &w->mesh, &w->layout, j->method);
}

static void close_world(world *w)
{
    heddle_block_destroy(w->mine);
    heddle_block_destroy(w->whole);
    free(w->x);
    free(w->vector);
}

/* --- boxes -------------------------------------------------------------------------------------------------------- */

static int64_t place(const world *w, int64_t i)
{
    int64_t at = 0, index[HEDDLE_MAX_DIMS];
    for (int d = w->box.ndim - 1; d >= 0; d--) {
        index[d] = w->box.lo[d] + i % w->box.len[d];
        i /= w->box.len[d];
    }
    for (int d = 0; d < w->box.ndim; d++) {
        at = at * w->all.len[d] + index[d];
    }
    return at;
}

static void *to_storage(const world *w, const float *from, int part)
{
    int64_t elems = part ? heddle_box_elems(&w->box) : w->elems;
    int bf16 = w->options.shape.dtype == HEDDLE_BF16;
    void *out = room(elems, sizeof(float));
    for (int64_t i = 0; i < elems; i++) {
        float value = from[part ? place(w, i) : i];
        if (bf16) {
            ((uint16_t *)out)[i] = hd_bf16_from_f32(value);
        } else {
            ((float *)out)[i] = value;
        }
    }
    return out;
}

static double value_at(const world *w, const void *x, int64_t i)
{
    return w->options.shape.dtype == HEDDLE_BF16 ? (double)hd_f32_from_bf16(((const uint16_t *)x)[i])
                                                 : (double)((const float *)x)[i];
}

/* --- tolerances --------------------------------------------------------------------------------------------------- */

enum { FORWARD, OF_X, OF_VECTOR, OF_PROJ_BIAS, OF_PROJ_WEIGHT, OF_OTHERS, RESULTS };

/* Relative to the largest of the array, three to five times the worst of the problems below and some 800 random ones:
 *                     forward  x       vector  proj.bias  proj.weight  others
 *   attention   f32   2.5e-7   4.6e-7  3.6e-7  6.8e-7     5.5e-7       2.9e-6
 *               bf16  2.1e-3   6.5e-3  2.0e-3  1.4e-7     1.0e-5       8.8e-3
 *   linear      f32   1.3e-6   6.4e-6  5.8e-6  6.8e-7     7.7e-7       7.5e-6
 *               bf16  1.0e-3   3.0e-2  1.4e-2  2.1e-7     9.7e-6       1.8e-2
 * Forward in bf16 has the same bits but beside a tie, where the order of sums decides: one unit in the last place.
 * Linear blows up its rounding by the norm of a head's result, which may be nearly nothing. */
static double tolerance_of(const world *w, int result)
{
    static const double allowed[2][2][RESULTS] = {
        {{1e-6, 2e-6, 2e-6, 2e-6, 2e-6, 1e-5}, {0x1p-7, 2e-2, 1e-2, 1e-6, 5e-5, 3e-2}},
        {{5e-6, 3e-5, 2e-5, 2e-6, 3e-6, 3e-5}, {0x1p-7, 1e-1, 5e-2, 1e-6, 5e-5, 6e-2}},
    };
    return allowed[w->options.kind == HEDDLE_STAGE_LINEAR][w->options.shape.dtype == HEDDLE_BF16][result];
}

static int result_of(const char *parameter)
{
    return strcmp(parameter, "proj.bias") == 0     ? OF_PROJ_BIAS
           : strcmp(parameter, "proj.weight") == 0 ? OF_PROJ_WEIGHT
                                                   : OF_OTHERS;
}

static heddle_status compare(const world *w, const char *what, const void *part, const void *whole, int result)
{
    double tolerance = tolerance_of(w, result);
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < w->elems; i++) {
        scale = fmax(scale, fabs(value_at(w, whole, i)));
    }
    for (int64_t i = 0; i < heddle_box_elems(&w->box); i++) {
        double off = fabs(value_at(w, part, i) - value_at(w, whole, place(w, i))) / scale;
        worst = off <= worst ? worst : off;
    }
    if (!(worst <= tolerance)) {
        fprintf(stderr, "%s: off by %g of the largest, %g allowed\n", what, worst, tolerance);
        return HEDDLE_ERR_MISMATCH;
    }
    return HEDDLE_OK;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

static heddle_status expect_bytes(heddle_block *block, int forwards, int backwards)
{
    heddle_block_traffic traffic = {.struct_bytes = sizeof traffic};
    heddle_status st = heddle_block_get_traffic(&traffic, block);
    int64_t planned = forwards * traffic.planned_forward_bytes + backwards * traffic.planned_backward_bytes;
    if (st == HEDDLE_OK && traffic.measured_bytes != planned) {
        fprintf(stderr, "sent %lld bytes, planned %lld\n", (long long)traffic.measured_bytes, (long long)planned);
        st = HEDDLE_ERR_MISMATCH;
    }
    return st;
}

static heddle_status forward_case(heddle_comm *comm, void *arg)
{
    world w;
    heddle_status st = open_world(&w, arg, comm);
    if (st == HEDDLE_OK) {
        void *whole = to_storage(&w, w.x, 0), *part = to_storage(&w, w.x, 1);
        for (int twice = 0; twice < 2 && st == HEDDLE_OK; twice++) {
            st = forward_on(w.whole, whole, &w.all, &w.conditioning);
            st = st != HEDDLE_OK ? st : forward_on(w.mine, part, &w.box, &w.conditioning);
            st = st != HEDDLE_OK ? st : compare(&w, "forward", part, whole, FORWARD);
            st = st != HEDDLE_OK ? st : expect_bytes(w.mine, 1 + twice, 0);
        }
        free(whole);
        free(part);
    }
    close_world(&w);
    return st;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* Ranks that hold the same part: their gradients are all the same, and the sum counts each. */
static int replicas(const world *w)
{
    int count = 1;
    for (int a = 0; a < w->mesh.naxes; a++) {
        count *= w->layout.dim_of_axis[a] == HEDDLE_REPLICATED ? w->mesh.axis[a].size : 1;
    }
    return count;
}

/* A gradient of one parameter, of both blocks. */
typedef struct pair {
    const char *name;
    float *part, *whole;
    int64_t elems;
} pair;

static heddle_status sum_and_compare(heddle_comm *comm, const pair *p, int times, double allowed)
{
    double worst = 0;
    float *sum = room(p->elems, sizeof *sum);
    memcpy(sum, p->part, (size_t)p->elems * sizeof *sum);
    heddle_status st = heddle_comm_allreduce_sum(comm, sum, p->elems, HEDDLE_F32);
    for (int64_t i = 0; i < p->elems; i++) {
        double off = fabs((double)sum[i] / times - (double)p->whole[i]);
        worst = off <= worst ? worst : off;
    }
    free(sum);
    if (st == HEDDLE_OK && !(worst <= allowed)) {
        fprintf(stderr, "gradient of %s: off by %g, %g allowed\n", p->name, worst, allowed);
        st = HEDDLE_ERR_MISMATCH;
    }
    return st;
}

static double largest(const pair *p)
{
    double value = 0;
    for (int64_t i = 0; i < p->elems; i++) {
        value = fmax(value, fabs((double)p->whole[i]));
    }
    return value;
}

/* With one token q and k have no gradient but rounding: the scale of every parameter is at least this part of the
 * largest gradient of all. */
static const double cancelled = 1e-2;

static heddle_status compare_gradients(heddle_comm *comm, world *w, float *vectors)
{
    heddle_status st = HEDDLE_OK;
    int n = heddle_block_nparams(w->mine);
    double most = 1e-9;
    pair p[16] = {[0] = {.name = "vector", .part = vectors, .whole = vectors + w->vector_elems}};
    p[0].elems = w->options.modulate ? w->vector_elems : 0;
    for (int i = 0; i < n && st == HEDDLE_OK; i++) {
        heddle_param part = {.struct_bytes = sizeof part}, whole = {.struct_bytes = sizeof whole};
        st = heddle_block_gradient(&part, w->mine, i);
        st = st != HEDDLE_OK ? st : heddle_block_gradient(&whole, w->whole, i);
        p[1 + i] = (pair){part.name, part.data, whole.data, part.extent[0] * (part.ndim == 2 ? part.extent[1] : 1)};
        most = fmax(most, largest(&p[1 + i]));
    }
    for (int i = 0; i <= n && st == HEDDLE_OK; i++) {
        double scale = fmax(largest(&p[i]), i == 0 ? 1e-9 : cancelled * most);
        int result = i == 0 ? OF_VECTOR : result_of(p[i].name);
        st = sum_and_compare(comm, &p[i], replicas(w), tolerance_of(w, result) * scale);
    }
    return st;
}

/* Two forwards in flight; the older one goes back last, the younger one twice or (recompute) once. */
static heddle_status both_ways(heddle_comm *comm, world *w, int recompute)
{
    heddle_tape *tape[4] = {NULL}; /* mine, whole, mine of the second, whole of the second */
    heddle_tape_options options;
    float *gradient = room(w->elems, sizeof *gradient), *vectors = room(2 * w->vector_elems, sizeof *vectors);
    heddle_conditioning_gradient into[2] = {{.vector = vectors}, {.vector = vectors + w->vector_elems}};
    for (int64_t i = 0; i < w->elems; i++) {
        gradient[i] = (float)random_unit(&w->source);
    }
    void *whole = to_storage(w, w->x, 0), *part = to_storage(w, w->x, 1);
    heddle_status st = HEDDLE_OK;
    heddle_tape_options_init(&options);
    options.recompute = recompute;
    for (int i = 0; i < 4 && st == HEDDLE_OK; i++) {
        st = heddle_tape_create(&tape[i], i & 1 ? w->whole : w->mine, &options);
    }
    for (int i = 0; i < 2 && st == HEDDLE_OK; i++) {
        st = forward_tape_on(w->mine, part, &w->box, &w->conditioning, tape[2 * i]);
        st = st != HEDDLE_OK ? st : forward_tape_on(w->whole, whole, &w->all, &w->conditioning, tape[2 * i + 1]);
        st = st != HEDDLE_OK ? st : compare(w, "forward with a tape", part, whole, FORWARD);
    }
    free(whole);
    free(part);
    static const int order[] = {1, 1, 0};
    for (int i = recompute; i < 3 && st == HEDDLE_OK; i++) {
        whole = to_storage(w, gradient, 0);
        part = to_storage(w, gradient, 1);
        st = backward_on(w->mine, part, &w->conditioning, &into[0], tape[2 * order[i]]);
        st = st != HEDDLE_OK ? st : backward_on(w->whole, whole, &w->conditioning, &into[1], tape[2 * order[i] + 1]);
        st = st != HEDDLE_OK ? st : compare(w, "gradient of x", part, whole, OF_X);
        free(whole);
        free(part);
    }
    st = st != HEDDLE_OK ? st : compare_gradients(comm, w, vectors);
    /* one forward more for the older tape, or one for each that recomputes */
    st = st != HEDDLE_OK ? st : expect_bytes(w->mine, recompute ? 4 : 3, recompute ? 2 : 3);
    for (int i = 0; i < 4; i++) {
        heddle_tape_destroy(tape[i]);
    }
    free(gradient);
    free(vectors);
    return st;
}

static heddle_status backward_case(heddle_comm *comm, void *arg)
{
    world w;
    heddle_status st = open_world(&w, arg, comm);
    st = st != HEDDLE_OK ? st : both_ways(comm, &w, ((const job *)arg)->flags >> 2 & 1);
    close_world(&w);
    return st;
}

/* --- problems ----------------------------------------------------------------------------------------------------- */

static void run(int ranks, const char *transport, heddle_rank_main fn, job j)
{
    heddle_status st = heddle_run_ranks(ranks, transport, fn, &j);
    if (st != HEDDLE_OK) {
        fail_msg("%s on %s: %s by %s, mixed dim %d, flags %d, %s: %s", j.shape, j.mesh, j.layout, j.method, j.mixed_dim,
                 j.flags, transport, heddle_last_error());
    }
}

static void run_share(int ranks, const char *transport, heddle_rank_main fn, job j)
{
    if (hd_goes("%s %s %s %s %s %d %d", j.shape, j.mesh, j.layout, j.method, transport, fn == backward_case, j.flags)) {
        run(ranks, transport, fn, j);
    }
}

static const char *const softmax_methods[] = {"ulysses", "ring", "rsa", "gather-kv"};
static const char *const linear_methods[] = {"lasp", "lasp2", "scan"};

/* One problem for each method: a process of its own makes oneDNN's kernels anew, which takes longer than the rest. */
static void over_few_problems(heddle_rank_main fn, heddle_stage_kind kind, const char *transport)
{
    int linear = kind == HEDDLE_STAGE_LINEAR;
    for (int m = 0; m < (linear ? 3 : 4); m++) {
        run(2 + m, transport, fn,
            (job){kind, "f32[b=2 t=13 s=5 c=24]", (const char *[]){"[sp=2]", "[sp=3]", "[sp=4]", "[sp=5]"}[m], "t@sp",
                  linear ? linear_methods[m] : softmax_methods[m], 1, 2, 3 * m});
    }
}

/* Every method at least once; where fewer rounds are wanted the rest by its share. */
static void over_all_problems(heddle_rank_main fn, heddle_stage_kind kind, const char *transport)
{
    int linear = kind == HEDDLE_STAGE_LINEAR, flags = 0;
    for (int m = 0; m < (linear ? 3 : 4); m++) {
        const char *method = linear ? linear_methods[m] : softmax_methods[m];
        for (int ranks = 1; ranks <= 5; ranks++) {
            char mesh[32];
            snprintf(mesh, sizeof mesh, "[sp=%d]", ranks);
            const char *shape = flags & 1 ? "f32[b=2 t=13 s=5 c=24]" : "f32[b=1 t=3 s=150 c=32]";
            (ranks == 2 + m ? run : run_share)(
                ranks, transport, fn,
                (job){kind, shape, mesh, flags & 1 ? "t@sp" : "s@sp", method, flags & 1 ? 1 : 2, 4, flags});
            flags++;
        }
        run_share(3, transport, fn, (job){kind, "bf16[b=2 t=13 s=5 c=24]", "[sp=3]", "t@sp", method, 1, 2, flags});
        run_share(4, transport, fn,
                  (job){kind, "f32[b=2 t=9 s=3 c=24]", "[sp=4]", "t@sp(0 4 0 5)", method, 1, 3, flags});
        run_share(5, transport, fn, (job){kind, "f32[b=2 t=3 s=4 c=16]", "[sp=5]", "t@sp", method, 1, 2, flags});
        run_share(4, transport, fn,
                  (job){kind, "f32[b=3 t=7 s=4 c=16]", "[dp=2 sp=2]", "b@dp,t@sp", method, 1, 2, flags});
        run_share(4, transport, fn,
                  (job){kind, "f32[b=2 t=7 s=5 c=16]", "[sp=2 x=2]", "t@sp,s@x", method, 2, 2, flags});
        run_share(4, transport, fn, (job){kind, "f32[b=1 t=7 s=5 c=16]", "[x=2 sp=2]", "s@sp", method, 2, 2, flags});
        run_share(4, transport, fn, (job){kind, "f32[b=2 t=11 s=3 c=16]", "[u=2 v=2]", "t@u,t@v", method, 1, 2, flags});
    }
    if (!linear) {
        run_share(4, transport, fn, (job){kind, "f32[b=2 t=11 s=3 c=24]", "[u=2 v=2]", "t@u(4 7),t@v", "usp", 1, 3, 3});
        run_share(6, transport, fn, (job){kind, "f32[b=3 t=11 s=3 c=24]", "[u=2 dp=1 v=3]", "t@u,t@v", "usp", 1, 3, 0});
        run_share(4, transport, fn, (job){kind, "bf16[b=3 t=5 s=11 c=24]", "[t=1 u=2 v=2]", "s@u,s@v", "usp", 2, 3, 1});
    }
    run_share(2, transport, fn, (job){kind, "f32[b=2 t=11 s=3 c=24]", "[sp=2]", "s@sp", "local", 1, 3, 3});
    run_share(3, transport, fn, (job){kind, "f32[b=1 t=5 s=4 c=16]", "[dp=3]", "*", "local", 1, 2, 1});
    run_share(3, transport, fn,
              (job){kind, "f32[b=1 t=5 s=4 c=16]", "[dp=3 sp=1]", "b@dp,t@sp", linear ? "lasp" : "ring", 1, 2, 1});
    run_share(6, transport, fn,
              (job){kind, "f32[b=2 t=5 s=4 c=16]", "[dp=3 sp=2]", "b@dp,t@sp", linear ? "lasp" : "ring", 1, 2, 1});
}

/* --- random problems ---------------------------------------------------------------------------------------------- */

typedef struct drawn {
    char shape[96], mesh[64], layout[128];
    int ranks;
} drawn;

static int within(random_source *dice, int low, int high)
{
    return (int)random_between(dice, low, high);
}

/* Explicit lengths of `n` blocks of `extent`, some empty, or none. */
static void draw_blocks(char *out, size_t bytes, random_source *dice, int extent, int n)
{
    *out = 0;
    if (within(dice, 0, 1) == 0) {
        return;
    }
    snprintf(out, bytes, "(");
    for (int i = 0, left = extent; i < n; i++) {
        int length = i == n - 1 ? left : within(dice, 0, left);
        snprintf(out + strlen(out), bytes - strlen(out), "%s%d", i > 0 ? " " : "", length);
        left -= length;
    }
    snprintf(out + strlen(out), bytes - strlen(out), ")");
}

/* A block whose dim t is on one or two axes, with b or s on another or none. */
static job draw_problem(drawn *text, random_source *dice, heddle_stage_kind kind)
{
    int linear = kind == HEDDLE_STAGE_LINEAR, two = within(dice, 0, 2) == 0, other = within(dice, 0, 2);
    int t = within(dice, 0, 24), first = within(dice, 1, two ? 3 : 5), second = two ? within(dice, 1, 3) : 1;
    int third = within(dice, 1, first * second > 4 ? 1 : 2), heads = within(dice, 1, 4);
    char blocks[48];
    draw_blocks(blocks, sizeof blocks, dice, t, first);
    snprintf(text->shape, sizeof text->shape, "%s[b=%d t=%d s=%d c=%d]", within(dice, 0, 4) == 0 ? "bf16" : "f32",
             within(dice, 1, 3), t, within(dice, 1, 4), heads * 2 * within(dice, 2, 6));
    snprintf(text->mesh, sizeof text->mesh, within(dice, 0, 1) ? "[z=%3$d x=%1$d y=%2$d]" : "[x=%1$d y=%2$d z=%3$d]",
             first, second, third);
    snprintf(text->layout, sizeof text->layout, "t@x%s%s%s", blocks, two ? ",t@y" : "",
             (const char *[]){"", ",b@z", ",s@z"}[other]);
    text->ranks = first * second * third;
    int methods = linear ? 3 : two ? 5 : 4, m = within(dice, 0, methods - 1);
    const char *method = m == 4 ? "usp" : linear ? linear_methods[m] : softmax_methods[m];
    return (job){kind, text->shape, text->mesh, text->layout, method, 1, heads, within(dice, 0, 11)};
}

static void random_problems(void **state)
{
    (void)state;
    random_source dice = {2024};
    for (int i = 0; i < 2 * hd_rounds(30); i++) {
        drawn text;
        job j = draw_problem(&text, &dice, i & 1 ? HEDDLE_STAGE_LINEAR : HEDDLE_STAGE_ATTENTION);
        run(text.ranks, "threads", i % 3 == 0 ? forward_case : backward_case, j);
    }
}

static void softmax_forward_on_threads(void **state)
{
    (void)state;
    over_all_problems(forward_case, HEDDLE_STAGE_ATTENTION, "threads");
}

static void linear_forward_on_threads(void **state)
{
    (void)state;
    over_all_problems(forward_case, HEDDLE_STAGE_LINEAR, "threads");
}

static void softmax_forward_on_processes(void **state)
{
    (void)state;
    over_all_problems(forward_case, HEDDLE_STAGE_ATTENTION, "shm");
}

static void linear_forward_on_processes(void **state)
{
    (void)state;
    over_all_problems(forward_case, HEDDLE_STAGE_LINEAR, "shm");
}

static void softmax_backward_on_threads(void **state)
{
    (void)state;
    over_all_problems(backward_case, HEDDLE_STAGE_ATTENTION, "threads");
}

static void linear_backward_on_threads(void **state)
{
    (void)state;
    over_all_problems(backward_case, HEDDLE_STAGE_LINEAR, "threads");
}

static void backward_on_processes(void **state)
{
    (void)state;
    over_few_problems(backward_case, HEDDLE_STAGE_ATTENTION, "shm");
    over_few_problems(backward_case, HEDDLE_STAGE_LINEAR, "shm");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(softmax_forward_on_threads),   cmocka_unit_test(linear_forward_on_threads),
        cmocka_unit_test(softmax_forward_on_processes), cmocka_unit_test(linear_forward_on_processes),
        cmocka_unit_test(softmax_backward_on_threads),  cmocka_unit_test(linear_backward_on_threads),
        cmocka_unit_test(backward_on_processes),        cmocka_unit_test(random_problems),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
