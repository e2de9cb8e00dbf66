/* What stages on a device launch, and the bytes that each launch reads and writes of its memory: the table of
 * docs/blocks.md, as whole numbers, with what the table calls small. */
#include "block_on_device.h"
#include "tests/cudasim/cudasim.h"

#include <heddle/train/tape.h>

enum { MOST = 16 };

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

static int attention_launches(launch *out, const heddle_block_options *options, int keeps)
{
    const sizes s = sizes_of(options);
    const int turns = options->qk_norm ? 2 : options->rope, normed = options->qk_norm ? s.c / options->heads * 4 : 0;
    const int64_t stats = keeps ? s.rows * options->heads * 2 * 4 : 0;
    int n = 0;
    out[n++] = norm(&s, options->modulate);
    out[n++] = layer(&s, s.rows, 3 * s.c, s.c, 0);
    for (int i = 0; i < turns; i++) {
        const int64_t x = turns == 1 ? 2 * s.x : s.x;
        out[n++] = (launch){"norm_rotate", x + normed + s.turns, x};
    }
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

typedef int (*launches_fn)(launch *out, const heddle_block_options *options, int keeps);

static void check_call(heddle_comm *comm, const counting *c, launches_fn launches, const heddle_block_options *options,
                       int keeps)
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
    HD_OK(heddle_tape_create(&tape, t.p.block, NULL));
    HD_OK(heddle_tape_reserve(tape, &box)); /* clears gradients, too */
    c->set(1);
    HD_OK(keeps ? heddle_block_forward_tape(t.p.block, &tensor, &box, &t.conditioning, tape, HEDDLE_NO_STREAM)
                : heddle_block_forward(t.p.block, &tensor, &box, &t.conditioning, HEDDLE_NO_STREAM));
    HD_OK(device_settle(comm, HEDDLE_NO_STREAM));
    snprintf(what, sizeof what, "kind %d in %s, modulate %d, rope %d, qk_norm %d, tape %d", (int)options->kind,
             heddle_dtype_name(options->shape.dtype), options->modulate, options->rope, options->qk_norm, keeps);
    compare(c, wanted, launches(wanted, options, keeps), what);
    c->set(0);
    heddle_tape_destroy(tape);
    heddle_buffer_free(comm, x);
    free(host);
    there_close(&t);
}

static void check_kind(heddle_stage_kind kind, launches_fn launches, int most)
{
    heddle_comm *comm = alone();
    const counting c = counting_of();
    for (int bits = 0; bits < most; bits++) {
        heddle_block_options options = small_options(kind, bits & 1 ? HEDDLE_BF16 : HEDDLE_F32);
        options.modulate = kind != HEDDLE_STAGE_CROSS && (bits & 4);
        options.rope = (bits & 8) != 0;
        options.qk_norm = (bits & 16) != 0;
        check_call(comm, &c, launches, &options, (bits & 2) != 0);
    }
    heddle_comm_destroy(comm);
}

HD_CASE(attention_moves_what_the_table_has)
{
    check_kind(HEDDLE_STAGE_ATTENTION, attention_launches, 32);
}

HD_CASE(cross_moves_what_the_table_has)
{
    check_kind(HEDDLE_STAGE_CROSS, cross_launches, 4);
}

HD_CASE(mlp_moves_what_the_table_has)
{
    check_kind(HEDDLE_STAGE_MLP, mlp_launches, 8);
}
