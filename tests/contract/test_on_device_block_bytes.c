/* What stages on a device launch, and the bytes that each launch reads and writes of its memory: the table of
 * docs/blocks.md, as whole numbers, with what the table calls small. */
#include "launches_on_device.h"
#include "runtime/attention/linear_walks.h"

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

/* --- LINEAR ------------------------------------------------------------------------------------------------------- */

/* Of walks, both ways: bytes of states in front of all segments, 0 where a fibre is one; of decays; of f32 results. */
typedef struct walks {
    const char *name;
    int64_t states, decays, raw;
    int sides;
} walks;

static walks walks_of(const heddle_block_options *options)
{
    const sizes s = sizes_of(options);
    const int64_t n = options->shape.dim[options->mixed_dim].extent, d = s.c / options->heads;
    const int64_t segments = hd_linear_segments(n), fibres = s.rows / n;
    return (walks){.name = s.each == 4 ? "linear_f32" : "linear_bf16",
                   .states = segments > 1 ? fibres * options->heads * segments * d * d * 4 : 0,
                   .decays = options->heads * 4,
                   .raw = s.rows * s.c * 4,
                   .sides = options->causal ? 1 : 2};
}

/* Parts of states from two arrays, and states from parts, of so many directions. */
static int make_states(launch *out, const sizes *s, const walks *w, int directions)
{
    int n = 0;
    for (int i = 0; i < directions && w->states > 0; i++) {
        out[n++] = (launch){w->name, 2 * s->x + w->decays, w->states};
        out[n++] = (launch){"linear_states", w->states + w->decays, w->states};
    }
    return n;
}

/* A result of three arrays and states, of either side; the first side's is f32 and is read again. */
static int walk(launch *out, const sizes *s, const walks *w, int64_t result)
{
    const int64_t reads = 3 * s->x + w->decays + w->states;
    int n = 0;
    if (w->sides == 2) {
        out[n++] = (launch){w->name, reads, w->raw};
    }
    out[n++] = (launch){w->name, reads + (w->sides - 1) * w->raw, result};
    return n;
}

static int linear_launches(launch *out, const heddle_block_options *options, int keeps)
{
    const sizes s = sizes_of(options);
    const walks w = walks_of(options);
    int n = 0;
    out[n++] = norm(&s, options->modulate);
    out[n++] = layer(&s, s.rows, 3 * s.c, s.c, 0);
    n += turn_heads(out + n, options);
    n += make_states(out + n, &s, &w, w.sides);
    n += walk(out + n, &s, &w, w.raw);
    out[n++] = (launch){"head_norm", w.raw, s.x + (keeps ? s.rows * options->heads * 4 : 0)};
    out[n++] = layer(&s, s.rows, s.c, s.c, 1);
    out[n++] = residual(&s, s.rows, options->modulate, keeps);
    return n;
}

/* --- backward, of what a tape has, with the gradients of the conditioning ----------------------------------------- */

/* q, o and their gradients are q bytes, k and v together kv; of f32 in the case of cross-attention. Of 16 bits fibres
 * are short enough for one launch. */
static int attention_back(launch *out, int64_t each, int64_t q, int64_t kv, int64_t stats, int64_t dq, int64_t dkv)
{
    if (each != 4) {
        out[0] = (launch){"attention_whole", 3 * q + kv + 2 * stats, dq + dkv};
        return 1;
    }
    out[0] = (launch){"attention_delta", 2 * q, stats};
    out[1] = (launch){"attention_dq", 2 * q + kv + 3 * stats, dq};
    out[2] = (launch){"attention_dkv", 2 * q + kv + 3 * stats, dkv};
    return 3;
}

/* keeps: bytes of the parts of sums that gradients of the norms of heads are made of. */
static int attention_back_launches(launch *out, const heddle_block_options *options, int parts)
{
    const sizes s = sizes_of(options);
    int n = turn_heads(out, options);
    n += out_through(out + n, &s, s.c, s.each, options->modulate);
    n += out_weight(out + n, &s, s.c, options->modulate);
    n += attention_back(out + n, s.each, s.x, 2 * s.x, s.rows * options->heads * 4, s.x, 2 * s.x);
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
    const int64_t c = s->c, terms = s->each == 4 ? 1 : 2;
    int n = 0;
    if (terms == 2) {
        out[n++] = (launch){"split", 2 * seen * c * 4, terms * 2 * seen * c * s->each};
        out[n] = out[n + 1] = (launch){"convert", seen * c * 4, seen * c * s->each};
        n += 2;
    }
    n += weight(out + n, terms * seen, 2 * c, c, s->each);
    out[n++] = through(terms * seen, 2 * c, c, s->each, 4);
    for (int i = 0; i < terms; i++) {
        out[n++] = (launch){"gate_residual", 2 * seen * c * 4, seen * c * 4};
    }
    return n;
}

static int cross_back_launches(launch *out, const heddle_block_options *options, int parts)
{
    const sizes s = sizes_of(options);
    const int64_t seen = options->text_tokens, half = s.rows / 2, c = s.c;
    int n = 0;
    (void)parts;
    out[n++] = through(half, c, c, s.each, s.each);
    n += weight(out + n, half, c, c, s.each);
    n += attention_back(out + n, s.each, s.x / 2, seen * 2 * c * s.each, half * options->heads * 4, half * c * 4,
                        seen * 2 * c * 4);
    if (s.each != 4) {
        out[n++] = (launch){"convert", half * c * 4, half * c * s.each};
    }
    n += weight(out + n, half, c, c, s.each);
    out[n++] = through(half, c, c, s.each, 4);
    out[n++] = residual(&s, half, 0, 0);
    return n + text_back(out + n, &s, seen);
}

static int linear_back_launches(launch *out, const heddle_block_options *options, int parts)
{
    const sizes s = sizes_of(options);
    const walks w = walks_of(options);
    int n = turn_heads(out, options);
    n += out_through(out + n, &s, s.c, s.each, options->modulate);
    n += out_weight(out + n, &s, s.c, options->modulate);
    out[n++] = (launch){"head_norm_back", 2 * s.x + s.rows * options->heads * 4, w.raw};
    if (s.each != 4) {
        out[n++] = (launch){"convert", w.raw, s.x};
    }
    n += make_states(out + n, &s, &w, 2 * w.sides);
    for (int i = 0; i < 3; i++) { /* dq, dk, dv */
        n += walk(out + n, &s, &w, s.x);
    }
    n += heads_back(out + n, &s, options, parts);
    return n + in_back(out + n, &s, 3 * s.c, options->modulate);
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

static void check_linear(heddle_dtype dtype, const int64_t *extent, int causal, int turns)
{
    const launches_fn launches[] = {linear_launches, linear_back_launches};
    heddle_comm *comm = alone();
    const counting c = counting_of();
    heddle_block_options options = options_for(HEDDLE_STAGE_LINEAR, dtype, 4, extent);
    options.mixed_dim = 1;
    options.modulate = options.rope = turns;
    options.causal = causal;
    check_calls(comm, &c, launches, &options);
    heddle_comm_destroy(comm);
}

HD_CASE(linear_moves_what_the_table_has)
{
    static const int64_t extent[] = {2, 6, 5, 32};
    for (int bits = 0; bits < 8; bits++) {
        check_linear(dtypes[bits & 1], extent, bits >> 1 & 1, bits >> 2);
    }
}

/* Fibres of two segments have states between them. */
HD_CASE(linear_moves_its_states)
{
    static const int64_t extent[] = {1, 260, 1, 16};
    for (int bits = 0; bits < 4; bits++) {
        check_linear(dtypes[bits & 1], extent, bits >> 1, 0);
    }
}
