/* What stages on a device launch, and the bytes that each launch reads and writes of its memory: the table of
 * docs/blocks.md, as whole numbers, with what the table calls small. */
#include "block_on_device.h"
#include "kernels/table_device.h"
#include "tests/cudasim/cudasim.h"

#include <heddle/train/tape.h>

enum { MOST = 48 };

typedef struct launch {
    const char *name; /* part of the kernel's */
    int64_t reads, writes;
} launch;

/* Of a problem: bytes of the activation and of an element, of parameters in the type of results. */
typedef struct sizes {
    int64_t x, each, rows, c, samples, turns;
} sizes;

static sizes sizes_of(const heddle_block_options *options)
{
    const heddle_shape *shape = &options->shape;
    sizes s = {.each = (int64_t)heddle_dtype_bytes(shape->dtype), .rows = 1, .samples = shape->dim[0].extent};
    for (int d = 0; d < shape->ndim - 1; d++) {
        s.rows *= shape->dim[d].extent;
    }
    s.c = shape->dim[shape->ndim - 1].extent;
    s.x = s.rows * s.c * s.each;
    s.turns = options->rope ? shape->dim[options->mixed_dim].extent * (s.c / options->heads) * 4 : 0;
    return s;
}

/* dst [rows][n] of src [rows][k], in parts of X; to_f32: what it gives, and its bias. */
static launch layer(const sizes *s, int64_t rows, int64_t n, int64_t k, int to_f32)
{
    const int64_t each = to_f32 ? 4 : s->each;
    return (launch){"product", (rows * k + n * k) * s->each + n * each, rows * n * each};
}

static launch norm(const sizes *s, int modulate)
{
    return (launch){"norm_modulate", s->x + (modulate ? s->samples * 2 * s->c * 4 : 0), s->x};
}

/* Rows of some samples; a tape gets them as they were. */
static launch residual(const sizes *s, int64_t rows, int modulate, int keeps)
{
    const int64_t x = rows * s->c * s->each;
    return (launch){"gate_residual", x + rows * s->c * 4 + (modulate ? s->samples * s->c * 4 : 0), keeps ? 2 * x : x};
}

/* Norms and rotation of heads. */
static int turn_heads(launch *out, const heddle_block_options *options)
{
    const sizes s = sizes_of(options);
    out[0] =
        (launch){"norm_rotate", 2 * s.x + (options->qk_norm ? 2 * s.c / options->heads * 4 : 0) + s.turns, 2 * s.x};
    return options->qk_norm || options->rope;
}

static int attention_launches(launch *out, const heddle_block_options *options, int keeps)
{
    const sizes s = sizes_of(options);
    const int64_t stats = keeps ? s.rows * options->heads * 2 * 4 : 0;
    int n = 0;
    out[n++] = norm(&s, options->modulate);
    out[n++] = layer(&s, s.rows, 3 * s.c, s.c, 0);
    n += turn_heads(out + n, options);
    out[n++] = (launch){"attention", 3 * s.x, s.x + stats};
    out[n++] = layer(&s, s.rows, s.c, s.c, 1);
    out[n++] = residual(&s, s.rows, options->modulate, keeps);
    return n;
}

static int mlp_launches(launch *out, const heddle_block_options *options, int keeps)
{
    const sizes s = sizes_of(options);
    const int64_t hidden = options->mlp_channels, wide = s.rows * hidden * s.each;
    int n = 0;
    out[n++] = norm(&s, options->modulate);
    out[n++] = layer(&s, s.rows, hidden, s.c, 0);
    out[n++] = (launch){"gelu", wide, wide};
    out[n++] = layer(&s, s.rows, s.c, hidden, 1);
    out[n++] = residual(&s, s.rows, options->modulate, keeps);
    return n;
}

/* The first of two samples has a whole text, the second none. */
static int cross_launches(launch *out, const heddle_block_options *options, int keeps)
{
    const sizes s = sizes_of(options);
    const int64_t words = s.samples * options->text_tokens, seen = options->text_tokens, half = s.rows / 2;
    const int64_t stats = keeps ? half * options->heads * 2 * 4 : 0;
    int n = 0;
    if (s.each != 4) {
        out[n++] = (launch){"convert", words * s.c * 4, words * s.c * s.each};
    }
    out[n++] = layer(&s, words, 2 * s.c, s.c, 0);
    out[n++] = layer(&s, s.rows, s.c, s.c, 0);
    out[n++] = (launch){"attention", s.x / 2 + seen * 2 * s.c * s.each, s.x / 2 + stats};
    out[n++] = layer(&s, half, s.c, s.c, 1);
    out[n++] = residual(&s, half, 0, keeps);
    return n;
}

/* --- backward, of what a tape has, with the gradients of the conditioning ----------------------------------------- */

/* dst [rows][k] of dy [rows][n] and a weight [n][k]; each: bytes of an element of dy and the weight. */
static launch through(int64_t rows, int64_t n, int64_t k, int64_t each, int64_t dst_each)
{
    return (launch){"product", (rows * n + n * k) * each, rows * k * dst_each};
}

/* Sums over rows of n columns of `each` bytes, in pieces of 256 rows of a sample; `other`: bytes that they are taken
 * with, and kinds of sums; wanted: arrays that get them. */
static int columns(launch *out, int64_t samples, int64_t rows, int64_t n, int64_t each, int64_t other, int kinds,
                   int wanted)
{
    const int64_t parts = samples * ((rows / samples + 255) / 256) * n * 4;
    out[0] = (launch){"add_columns", rows * n * each + other, kinds * parts};
    out[1] = (launch){"add_parts", wanted * (parts + samples * n * 4), wanted * samples * n * 4};
    return 2;
}

/* Of a weight [n][k] and its bias, from dy [rows][n] and x [rows][k]. */
static int weight(launch *out, int64_t rows, int64_t n, int64_t k, int64_t each)
{
    out[0] = (launch){"product", rows * (n + k) * each + n * k * 4, n * k * 4};
    return 1 + columns(out + 1, 1, rows, n, each, 0, 1, 1);
}

/* dy through the gate and the last layer, k to c. */
static int out_through(launch *out, const sizes *s, int64_t k, int64_t dst_each, int modulate)
{
    int n = 0;
    if (modulate) {
        out[n++] = (launch){"scale_rows", s->x + s->samples * s->c * 4, s->x};
    }
    out[n++] = through(s->rows, s->c, k, s->each, dst_each);
    return n;
}

/* Gradients of that layer and of the gate, for which its result is made again. */
static int out_weight(launch *out, const sizes *s, int64_t k, int modulate)
{
    int n = weight(out, s->rows, s->c, k, s->each);
    if (modulate) {
        out[n++] = layer(s, s->rows, s->c, k, 1);
        n += columns(out + n, s->samples, s->rows, s->c, 4, s->x, 2, 1);
    }
    return n;
}

/* Through the first layer, c to n, and the norm. */
static int in_back(launch *out, const sizes *s, int64_t width, int modulate)
{
    const int64_t dm = s->rows * s->c * 4, stats = modulate ? s->rows * 8 : 0;
    int n = 0;
    out[n++] = norm(s, modulate);
    n += weight(out + n, s->rows, width, s->c, s->each);
    out[n++] = through(s->rows, width, s->c, s->each, 4);
    out[n++] = (launch){"norm_back", 2 * s->x + dm + (modulate ? s->samples * s->c * 4 : 0), s->x + stats};
    return modulate ? n + columns(out + n, s->samples, s->rows, s->c, 4, s->x + stats, 2, 2) : n;
}

/* q, o and their gradients are q bytes, k and v together kv; of f32 in the case of cross-attention. */
static int attention_back(launch *out, int64_t q, int64_t kv, int64_t stats, int64_t dq, int64_t dkv)
{
    out[0] = (launch){"attention_delta", 2 * q, stats};
    out[1] = (launch){"attention_dq", 2 * q + kv + 3 * stats, dq};
    out[2] = (launch){"attention_dkv", 2 * q + kv + 3 * stats, dkv};
    return 3;
}

static int heads_back(launch *out, const sizes *s, const heddle_block_options *options, int64_t parts)
{
    const int64_t norms = 2 * s->c / options->heads * 4;
    if (!options->qk_norm) {
        out[0] = (launch){"norm_rotate_back", 2 * s->x + s->turns, 2 * s->x};
        return options->rope;
    }
    out[0] = (launch){"norm_rotate_back", 4 * s->x + norms + s->turns, 2 * s->x + parts};
    out[1] = (launch){"add_parts", parts + norms, norms};
    return 2;
}

/* keeps: bytes of the parts of sums that gradients of the norms of heads are made of. */
static int attention_back_launches(launch *out, const heddle_block_options *options, int parts)
{
    const sizes s = sizes_of(options);
    int n = turn_heads(out, options);
    n += out_through(out + n, &s, s.c, s.each, options->modulate);
    n += out_weight(out + n, &s, s.c, options->modulate);
    n += attention_back(out + n, s.x, 2 * s.x, s.rows * options->heads * 4, s.x, 2 * s.x);
    n += heads_back(out + n, &s, options, parts);
    return n + in_back(out + n, &s, 3 * s.c, options->modulate);
}

static int mlp_back_launches(launch *out, const heddle_block_options *options, int parts)
{
    const sizes s = sizes_of(options);
    const int64_t hidden = options->mlp_channels, wide = s.rows * hidden * s.each;
    int n = out_through(out, &s, hidden, s.each, options->modulate);
    (void)parts;
    out[n++] = (launch){"gelu_back", 2 * wide, 2 * wide};
    n += out_weight(out + n, &s, hidden, options->modulate);
    return n + in_back(out + n, &s, hidden, options->modulate);
}

static int text_back(launch *out, const sizes *s, int64_t seen)
{
    const int64_t c = s->c;
    int n = 0;
    if (s->each != 4) {
        out[n++] = (launch){"convert", 2 * c * c * s->each, 2 * c * c * 4};
    }
    n += weight(out + n, seen, 2 * c, c, 4);
    out[n++] = through(seen, 2 * c, c, 4, 4);
    out[n++] = (launch){"gate_residual", 2 * seen * c * 4, seen * c * 4};
    return n;
}

static int cross_back_launches(launch *out, const heddle_block_options *options, int parts)
{
    const sizes s = sizes_of(options);
    const int64_t words = s.samples * options->text_tokens, seen = options->text_tokens, half = s.rows / 2, c = s.c;
    int n = 0;
    (void)parts;
    if (s.each != 4) {
        out[n++] = (launch){"convert", words * c * 4, words * c * s.each};
    }
    out[n++] = through(half, c, c, s.each, s.each);
    n += weight(out + n, half, c, c, s.each);
    n += attention_back(out + n, s.x / 2, seen * 2 * c * s.each, half * options->heads * 4, half * c * 4,
                        seen * 2 * c * 4);
    if (s.each != 4) {
        out[n++] = (launch){"convert", half * c * 4, half * c * s.each};
    }
    n += weight(out + n, half, c, c, s.each);
    out[n++] = through(half, c, c, s.each, 4);
    out[n++] = residual(&s, half, 0, 0);
    return n + text_back(out + n, &s, seen);
}

typedef struct counting {
    void (*set)(int is_counted);
    const hd_sim_traffic *(*at)(int kernel);
} counting;

static counting counting_of(void)
{
    static const char *const names[] = {"hd_sim_set_counted", "hd_sim_counted"};
    counting c;
    device_sim sim;
    HD_OK(device_sim_get(&sim));
    HD_OK(sim_functions(&c, sim.handle, names, 2));
    return c;
}

static void compare(const counting *c, const launch *wanted, int n, const char *what)
{
    for (int i = 0; i < n; i++) {
        const hd_sim_traffic *got = c->at(i);
        if (got == NULL) {
            fail_msg("%s: %d launches, wanted %d", what, i, n);
        }
        if (strstr(got->name, wanted[i].name) == NULL || got->read_bytes != wanted[i].reads ||
            got->written_bytes != wanted[i].writes) {
            fail_msg("%s, launch %d: %s reads %lld bytes and writes %lld, wanted %s, %lld and %lld", what, i, got->name,
                     (long long)got->read_bytes, (long long)got->written_bytes, wanted[i].name,
                     (long long)wanted[i].reads, (long long)wanted[i].writes);
        }
    }
    if (c->at(n) != NULL) {
        fail_msg("%s: more than %d launches: %s", what, n, c->at(n)->name);
    }
}

typedef int (*launches_fn)(launch *out, const heddle_block_options *options, int how);

enum { FORWARD, FORWARD_TAPE, BACKWARD, CALLS };

/* Bytes of the sums that a norm's gradient is made of, as the kernels say. */
static int parts_of(heddle_comm *comm, const heddle_block_options *options)
{
    const sizes s = sizes_of(options);
    static const float any[HD_DEVICE_MOST_WIDTH];
    const hd_device_heads of = {.dtype = options->shape.dtype,
                                .rows = s.rows,
                                .heads = options->heads,
                                .d = s.c / options->heads,
                                .row_stride = 3 * s.c,
                                .second_at = s.c,
                                .weight = any,
                                .inner = 1,
                                .extent = 1};
    const hd_device_kernels *kernels = hd_comm_device(comm)->library->kernels;
    return options->qk_norm ? (int)kernels->norm_rotate_back_bytes(&of) : 0;
}

static heddle_status call(there *t, heddle_tape *tape, const heddle_tensor *x, const heddle_box *box, int how,
                          const heddle_conditioning_gradient *wanted)
{
    heddle_block *block = t->p.block;
    return how == FORWARD        ? heddle_block_forward(block, x, box, &t->conditioning, HEDDLE_NO_STREAM)
           : how == FORWARD_TAPE ? heddle_block_forward_tape(block, x, box, &t->conditioning, tape, HEDDLE_NO_STREAM)
                                 : heddle_block_backward(block, x, &t->conditioning, wanted, tape, HEDDLE_NO_STREAM);
}

static void check_calls(heddle_comm *comm, const counting *c, const launches_fn *launches,
                        const heddle_block_options *options)
{
    char what[80];
    launch wanted[MOST];
    there t;
    heddle_tape *tape = NULL;
    const heddle_box box = whole_box(&options->shape);
    there_open(&t, comm, options);
    void *host = stored(t.p.x, t.p.elems, options->shape.dtype);
    void *x = placed_on(comm, host, (size_t)t.p.elems * heddle_dtype_bytes(options->shape.dtype));
    const heddle_tensor tensor = there_tensor(&t, x, &box);
    const heddle_conditioning_gradient gradient = {placed_on(comm, t.p.x, (size_t)t.p.elems * sizeof(float)),
                                                   placed_on(comm, t.p.x, (size_t)t.p.elems * sizeof(float))};
    HD_OK(heddle_tape_create(&tape, t.p.block, NULL));
    HD_OK(heddle_tape_reserve(tape, &box)); /* clears gradients, too */
    for (int how = 0; how < CALLS; how++) {
        c->set(1);
        HD_OK(call(&t, tape, &tensor, &box, how, &gradient));
        HD_OK(device_settle(comm, HEDDLE_NO_STREAM));
        snprintf(what, sizeof what, "kind %d in %s, modulate %d, rope %d, qk_norm %d, call %d", (int)options->kind,
                 heddle_dtype_name(options->shape.dtype), options->modulate, options->rope, options->qk_norm, how);
        compare(c, wanted, launches[how == BACKWARD](wanted, options, how == BACKWARD ? parts_of(comm, options) : how),
                what);
        c->set(0);
    }
    heddle_tape_destroy(tape);
    heddle_buffer_free(comm, x);
    heddle_buffer_free(comm, gradient.vector);
    heddle_buffer_free(comm, gradient.text);
    free(host);
    there_close(&t);
}

/* Options: bf16, modulation, rope, qk_norm. */
static void check_kind(heddle_stage_kind kind, const launches_fn *launches, int most)
{
    heddle_comm *comm = alone();
    const counting c = counting_of();
    for (int bits = 0; bits < most; bits++) {
        heddle_block_options options = small_options(kind, bits & 1 ? HEDDLE_BF16 : HEDDLE_F32);
        options.modulate = kind != HEDDLE_STAGE_CROSS && (bits & 2);
        options.rope = (bits & 4) != 0;
        options.qk_norm = (bits & 8) != 0;
        check_calls(comm, &c, launches, &options);
    }
    heddle_comm_destroy(comm);
}

HD_CASE(attention_moves_what_the_table_has)
{
    check_kind(HEDDLE_STAGE_ATTENTION, (const launches_fn[]){attention_launches, attention_back_launches}, 16);
}

HD_CASE(cross_moves_what_the_table_has)
{
    check_kind(HEDDLE_STAGE_CROSS, (const launches_fn[]){cross_launches, cross_back_launches}, 2);
}

HD_CASE(mlp_moves_what_the_table_has)
{
    check_kind(HEDDLE_STAGE_MLP, (const launches_fn[]){mlp_launches, mlp_back_launches}, 4);
}
