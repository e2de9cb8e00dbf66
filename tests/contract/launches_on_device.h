/* What a stage on a device launches, and the bytes that each launch reads and writes of its memory, as whole numbers:
 * what stages have in common. Both ways; backward of what a tape has, with the gradients of the conditioning. */
#ifndef HD_TEST_LAUNCHES_ON_DEVICE_H
#define HD_TEST_LAUNCHES_ON_DEVICE_H

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

static inline sizes sizes_of(const heddle_block_options *options)
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
static inline launch layer(const sizes *s, int64_t rows, int64_t n, int64_t k, int to_f32)
{
    const int64_t each = to_f32 ? 4 : s->each;
    return (launch){"product", (rows * k + n * k) * s->each + n * each, rows * n * each};
}

static inline launch norm(const sizes *s, int modulate)
{
    return (launch){"norm_modulate", s->x + (modulate ? s->samples * 2 * s->c * 4 : 0), s->x};
}

/* Rows of some samples; a tape gets them as they were. */
static inline launch residual(const sizes *s, int64_t rows, int modulate, int keeps)
{
    const int64_t x = rows * s->c * s->each;
    return (launch){"gate_residual", x + rows * s->c * 4 + (modulate ? s->samples * s->c * 4 : 0), keeps ? 2 * x : x};
}

/* Norms and rotation of heads. */
static inline int turn_heads(launch *out, const heddle_block_options *options)
{
    const sizes s = sizes_of(options);
    out[0] =
        (launch){"norm_rotate", 2 * s.x + (options->qk_norm ? 2 * s.c / options->heads * 4 : 0) + s.turns, 2 * s.x};
    return options->qk_norm || options->rope;
}

/* dst [rows][k] of dy [rows][n] and a weight [n][k]; each: bytes of an element of dy and the weight. */
static inline launch through(int64_t rows, int64_t n, int64_t k, int64_t each, int64_t dst_each)
{
    return (launch){"product", (rows * n + n * k) * each, rows * k * dst_each};
}

/* Sums over rows of n columns of `each` bytes, in pieces of 256 rows of a sample; `other`: bytes that they are taken
 * with, and kinds of sums; wanted: arrays that get them. */
static inline int columns(launch *out, int64_t samples, int64_t rows, int64_t n, int64_t each, int64_t other, int kinds,
                          int wanted)
{
    const int64_t parts = samples * ((rows / samples + 255) / 256) * n * 4;
    out[0] = (launch){"add_columns", rows * n * each + other, kinds * parts};
    out[1] = (launch){"add_parts", wanted * (parts + samples * n * 4), wanted * samples * n * 4};
    return 2;
}

/* Of a weight [n][k] and its bias, from dy [rows][n] and x [rows][k]. */
static inline int weight(launch *out, int64_t rows, int64_t n, int64_t k, int64_t each)
{
    out[0] = (launch){"product", rows * (n + k) * each + n * k * 4, n * k * 4};
    return 1 + columns(out + 1, 1, rows, n, each, 0, 1, 1);
}

/* dy through the gate and the last layer, k to c. */
static inline int out_through(launch *out, const sizes *s, int64_t k, int64_t dst_each, int modulate)
{
    int n = 0;
    if (modulate) {
        out[n++] = (launch){"scale_rows", s->x + s->samples * s->c * 4, s->x};
    }
    out[n++] = through(s->rows, s->c, k, s->each, dst_each);
    return n;
}

/* Gradients of that layer and of the gate, for which its result is made again. */
static inline int out_weight(launch *out, const sizes *s, int64_t k, int modulate)
{
    int n = weight(out, s->rows, s->c, k, s->each);
    if (modulate) {
        out[n++] = layer(s, s->rows, s->c, k, 1);
        n += columns(out + n, s->samples, s->rows, s->c, 4, s->x, 2, 1);
    }
    return n;
}

/* Through the first layer, c to n, and the norm. */
static inline int in_back(launch *out, const sizes *s, int64_t width, int modulate)
{
    const int64_t dm = s->rows * s->c * 4, stats = modulate ? s->rows * 8 : 0;
    int n = 0;
    out[n++] = norm(s, modulate);
    n += weight(out + n, s->rows, width, s->c, s->each);
    out[n++] = through(s->rows, width, s->c, s->each, 4);
    out[n++] = (launch){"norm_back", 2 * s->x + dm + (modulate ? s->samples * s->c * 4 : 0), s->x + stats};
    return modulate ? n + columns(out + n, s->samples, s->rows, s->c, 4, s->x + stats, 2, 2) : n;
}

static inline int heads_back(launch *out, const sizes *s, const heddle_block_options *options, int64_t parts)
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

typedef struct counting {
    void (*set)(int is_counted);
    const hd_sim_traffic *(*at)(int kernel);
} counting;

static inline counting counting_of(void)
{
    static const char *const names[] = {"hd_sim_set_counted", "hd_sim_counted"};
    counting c;
    device_sim sim;
    HD_OK(device_sim_get(&sim));
    HD_OK(sim_functions(&c, sim.handle, names, 2));
    return c;
}

static inline void compare(const counting *c, const launch *wanted, int n, const char *what)
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
static inline int parts_of(heddle_comm *comm, const heddle_block_options *options)
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

static inline heddle_status call(there *t, heddle_tape *tape, const heddle_tensor *x, const heddle_box *box, int how,
                                 const heddle_conditioning_gradient *wanted)
{
    heddle_block *block = t->p.block;
    return how == FORWARD        ? heddle_block_forward(block, x, box, &t->conditioning, HEDDLE_NO_STREAM)
           : how == FORWARD_TAPE ? heddle_block_forward_tape(block, x, box, &t->conditioning, tape, HEDDLE_NO_STREAM)
                                 : heddle_block_backward(block, x, &t->conditioning, wanted, tape, HEDDLE_NO_STREAM);
}

static inline void check_calls(heddle_comm *comm, const counting *c, const launches_fn *launches,
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

#endif
