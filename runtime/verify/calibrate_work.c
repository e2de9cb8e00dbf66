/* Work: blocks on a rank's own part, attention as methods for sharded dims compute it, and copies. */
#include "runtime/verify/calibrate.h"

#include <heddle/sys/device.h>
#include <heddle/train/tape.h>
#include <stdio.h>
#include <string.h>

enum { HEAD = 64, RATIO = 4, ROWS = 1024, WIDTH = 512, ROUGH_ROWS = 256, COPY_BYTES = 4 << 20, LAUNCH_BYTES = 256 };

static const heddle_dtype dtypes[] = {HEDDLE_F32, HEDDLE_BF16, HEDDLE_F16}; /* the last on devices alone */

/* Of a device: times rows and bytes, rows of texts and keys, channels; of a rough run parts of them. */
enum { MORE_ROWS = 16, MORE_KEYS = 4, MORE_CHANNELS = 2, FEWER = 32 };

/* What blocks are timed on in host memory; rows / length fibres. */
static const struct work {
    heddle_stage_kind kind;
    int64_t rows, length, channels, text;
} works[] = {
    {HEDDLE_STAGE_MLP, 16, 1, WIDTH, 0},
    {HEDDLE_STAGE_MLP, 64, 1, WIDTH, 0},
    {HEDDLE_STAGE_MLP, 256, 1, WIDTH, 0},
    {HEDDLE_STAGE_MLP, ROWS, 1, WIDTH, 0},
    {HEDDLE_STAGE_MLP, ROWS, 1, 256, 0},
    {HEDDLE_STAGE_MLP, 256, 1, 1024, 0},
    {HEDDLE_STAGE_ATTENTION, ROWS, 4, WIDTH, 0},
    {HEDDLE_STAGE_ATTENTION, ROWS, 16, WIDTH, 0},
    {HEDDLE_STAGE_ATTENTION, ROWS, 64, WIDTH, 0},
    {HEDDLE_STAGE_ATTENTION, ROWS, 256, WIDTH, 0},
    {HEDDLE_STAGE_ATTENTION, ROWS, ROWS, WIDTH, 0},
    {HEDDLE_STAGE_ATTENTION, 256, 16, WIDTH, 0},
    {HEDDLE_STAGE_ATTENTION, ROWS, 64, 256, 0},
    {HEDDLE_STAGE_ATTENTION, ROWS, 256, 256, 0},
    {HEDDLE_STAGE_ATTENTION, ROWS, ROWS, 256, 0},
    {HEDDLE_STAGE_CROSS, ROWS, 1, WIDTH, 64},
    {HEDDLE_STAGE_CROSS, ROWS, 1, WIDTH, 256},
    {HEDDLE_STAGE_CROSS, 256, 1, WIDTH, 64},
    {HEDDLE_STAGE_LINEAR, ROWS, 64, WIDTH, 0},
    {HEDDLE_STAGE_LINEAR, ROWS, 256, WIDTH, 0},
    {HEDDLE_STAGE_LINEAR, ROWS, ROWS, WIDTH, 0},
    {HEDDLE_STAGE_LINEAR, ROWS, 256, 256, 0},
};

/* Keys of the attention that methods compute on arrays of their own, which blocks with whole fibres do not need. */
static const int64_t sharded_keys[] = {4, 16, 64, 256, ROWS};

enum { WORKS = sizeof works / sizeof works[0], DTYPES = 2 };
enum { SHARDED = sizeof sharded_keys / sizeof sharded_keys[0], PER_DTYPE = WORKS + SHARDED };

/* --- blocks ------------------------------------------------------------------------------------------------------- */

static const char *kind_name(heddle_stage_kind kind)
{
    return kind == HEDDLE_STAGE_MLP         ? "mlp"
           : kind == HEDDLE_STAGE_ATTENTION ? "attention"
           : kind == HEDDLE_STAGE_CROSS     ? "cross"
                                            : "linear";
}

static heddle_stream stream_of(const calibrate_run *run)
{
    return run->there != NULL ? run->there->stream : HEDDLE_NO_STREAM;
}

static heddle_status open_block(calibrate_run *run)
{
    heddle_block_options options;
    heddle_mesh mesh;
    char line[128];
    const heddle_layout whole = heddle_layout_replicated();
    heddle_block_options_init(&options);
    options.space = run->there != NULL ? HEDDLE_SPACE_DEVICE : HEDDLE_SPACE_HOST;
    options.comm = run->comm;
    snprintf(line, sizeof line, "%s[b=1 t=%lld s=%lld c=%lld]", heddle_dtype_name(run->dtype),
             (long long)(run->rows / run->length), (long long)run->length, (long long)run->channels);
    heddle_status st = heddle_shape_parse(&options.shape, line);
    options.kind = run->kind;
    options.mixed_dim = 2;
    options.heads = (int)(run->channels / HEAD);
    options.mlp_channels = RATIO * run->channels;
    options.text_tokens = run->text > 0 ? run->text : 1;
    options.modulate = run->kind != HEDDLE_STAGE_CROSS;
    options.qk_norm = run->kind == HEDDLE_STAGE_ATTENTION;
    options.causal = 1;
    options.decay = 0;
    st = st == HEDDLE_OK ? heddle_mesh_parse(&mesh, "[sp=1]") : st;
    st = st == HEDDLE_OK ? heddle_block_create(&run->block, &options) : st;
    if (st == HEDDLE_OK && run->there != NULL) { /* which knows how products are best carried out */
        st = heddle_block_share_workspace(run->block, run->there->keeper);
    }
    st = st == HEDDLE_OK ? heddle_block_seed(run->block, 1) : st;
    st = st == HEDDLE_OK ? calibrate_hold(run, 0, run->dtype, (size_t)(run->rows * run->channels)) : st;
    st = st == HEDDLE_OK ? calibrate_hold(run, 1, HEDDLE_F32, (size_t)(6 * run->channels)) : st;
    st = st == HEDDLE_OK ? calibrate_hold(run, 2, HEDDLE_F32, (size_t)((run->text + 1) * run->channels)) : st;
    run->conditioning = (heddle_conditioning){run->held[1], run->held[2], NULL};
    st = st == HEDDLE_OK ? heddle_tensor_init(&run->x, run->held[0], &options.shape, &mesh, &whole, NULL, 0) : st;
    if (st == HEDDLE_OK && run->there != NULL) {
        run->x.space = HEDDLE_SPACE_DEVICE;
        run->x.device = heddle_comm_device(run->comm);
    }
    return st == HEDDLE_OK ? heddle_layout_box(&run->box, &options.shape, &mesh, &whole, 0) : st;
}

static heddle_status run_block(calibrate_run *run)
{
    return heddle_block_forward(run->block, &run->x, &run->box, &run->conditioning, stream_of(run));
}

/* One byte of every line. */
static void read_through(const char *data, int64_t bytes)
{
    enum { LINE = 64 };
    for (int64_t i = 0; i < bytes; i += LINE) {
        (void)*(const volatile char *)(data + i);
    }
}

/* Since a stage's weights were last read all other stages have had theirs; the activation was written just now. */
static heddle_status meet_block(calibrate_run *run)
{
    if (run->there != NULL) {
        return calibrate_there_meet(run);
    }
    read_through(run->others, run->others_bytes);
    read_through(run->held[0], run->rows * run->channels * (int64_t)heddle_dtype_bytes(run->dtype));
    return HEDDLE_OK;
}

static void close_block(calibrate_run *run)
{
    heddle_block_destroy(run->block);
    calibrate_let_go(run);
}

/* --- attention of methods ----------------------------------------------------------------------------------------- */

/* Some whole heads of every sample for each rank, so that nothing moves; q, k and v beside each other, row by row. */
static heddle_status open_sharded(calibrate_run *run)
{
    heddle_attention_options options;
    heddle_shape shape;
    heddle_mesh mesh;
    char line[128];
    heddle_layout heads = heddle_layout_replicated();
    const int ranks = heddle_comm_size(run->comm);
    heads.dim_of_axis[0] = 2;
    heddle_attention_options_init(&options);
    options.forward_only = 1;
    options.space = run->there != NULL ? HEDDLE_SPACE_DEVICE : HEDDLE_SPACE_HOST;
    options.device = run->there != NULL ? heddle_comm_device(run->comm) : 0;
    snprintf(line, sizeof line, "%s[b=%lld s=%lld h=%lld d=%d]", heddle_dtype_name(run->dtype),
             (long long)(run->rows / run->length), (long long)run->length, (long long)(run->channels / HEAD * ranks),
             (int)HEAD);
    heddle_status st = heddle_shape_parse(&shape, line);
    snprintf(line, sizeof line, "[sp=%d]", ranks);
    st = st == HEDDLE_OK ? heddle_mesh_parse(&mesh, line) : st;
    st = st == HEDDLE_OK ? heddle_attention_create(&run->attention, run->comm, &shape, &mesh, &heads, &options) : st;
    st = st == HEDDLE_OK ? calibrate_hold(run, 0, run->dtype, (size_t)(3 * run->rows * run->channels)) : st;
    return st == HEDDLE_OK ? calibrate_hold(run, 1, run->dtype, (size_t)(run->rows * run->channels)) : st;
}

static heddle_attention_array heads_of(const calibrate_run *run, int held, int64_t columns, int64_t first)
{
    char *data = run->held[held];
    return (heddle_attention_array){.data = data + (size_t)first * heddle_dtype_bytes(run->dtype),
                                    .stride_elems = {run->length * columns, columns, HEAD, 1}};
}

static heddle_status run_sharded(calibrate_run *run)
{
    const int64_t c = run->channels;
    const heddle_attention_array q = heads_of(run, 0, 3 * c, 0), k = heads_of(run, 0, 3 * c, c);
    const heddle_attention_array v = heads_of(run, 0, 3 * c, 2 * c), o = heads_of(run, 1, c, 0);
    return heddle_attention_forward(run->attention, &q, &k, &v, &o, NULL, stream_of(run));
}

static void close_sharded(calibrate_run *run)
{
    heddle_attention_destroy(run->attention);
    close_block(run);
}

/* --- what they are ------------------------------------------------------------------------------------------------ */

static void add(heddle_measured *m, heddle_work work, heddle_dtype dtype, double amount, double size)
{
    if (amount > 0) {
        m->term[m->nterms++] = (heddle_measured_term){work, dtype, amount, size};
    }
}

/* Pairs inside chunks, states made and used: heddle_linear_attention's chunked form, in chunks of 128 rows. */
static double linear_flops(double rows, double length, double channels)
{
    const double chunk = length < 128 ? length : 128;
    return rows * channels * (2 * (chunk + 1) + 4.0 * HEAD);
}

static int64_t copy_bytes(const calibrate_run *run)
{
    return run->there == NULL ? COPY_BYTES : run->is_rough ? COPY_BYTES / MORE_ROWS : COPY_BYTES * (int64_t)MORE_ROWS;
}

/* As the planner counts them (planner/price/share.c). On a CPU weights of linear attention's first product are taken
 * whole, which costs bf16 what f32 costs. All passes over memory have one rate: a block's chunks stay in the cache. */
static void describe_block(calibrate_run *run)
{
    heddle_measured *m = &run->sample->about;
    const double rows = (double)run->rows, c = (double)run->channels, text = (double)run->text;
    double products = 0, passes = 5; /* norm: two, gated residual: three */
    switch (run->kind) {
    case HEDDLE_STAGE_MLP:
        products = 4 * rows * c * c * RATIO;
        passes += 2 * RATIO;
        break;
    case HEDDLE_STAGE_CROSS:
        products = 4 * rows * c * c;
        add(m, HEDDLE_WORK_PRODUCT, run->dtype, 4 * text * c * c, text);
        add(m, HEDDLE_WORK_ATTENTION, run->dtype, 4 * rows * text * c, text);
        break;
    case HEDDLE_STAGE_ATTENTION:
        products = 8 * rows * c * c;
        passes += 4;
        add(m, HEDDLE_WORK_ATTENTION, run->dtype, 4 * rows * (double)run->length * c, (double)run->length);
        break;
    default:
        products = 2 * rows * c * c;
        passes += 2;
        add(m, HEDDLE_WORK_PRODUCT, run->there != NULL ? run->dtype : HEDDLE_F32, 6 * rows * c * c, rows);
        add(m, HEDDLE_WORK_LINEAR, run->dtype, linear_flops(rows, (double)run->length, c), (double)run->length);
    }
    add(m, HEDDLE_WORK_PRODUCT, run->dtype, products, rows);
    add(m, HEDDLE_WORK_MEMORY, HEDDLE_F32, passes * rows * c * (double)heddle_dtype_bytes(run->dtype),
        (double)copy_bytes(run));
    run->sample->kind = kind_name(run->kind);
}

static void describe_sharded(calibrate_run *run)
{
    add(&run->sample->about, HEDDLE_WORK_SHARDED_ATTENTION, run->dtype,
        4 * (double)run->rows * (double)run->length * (double)run->channels, (double)run->length);
    run->sample->kind = "sharded";
}

static void say_what(calibrate_run *run)
{
    snprintf(run->sample->what, sizeof run->sample->what, "%s %lld x %lld", heddle_dtype_name(run->dtype),
             (long long)run->rows, (long long)run->channels);
    if (run->length > 1 || run->text > 0) {
        const size_t used = strlen(run->sample->what);
        snprintf(run->sample->what + used, sizeof run->sample->what - used, ", %lld keys",
                 (long long)(run->text > 0 ? run->text : run->length));
    }
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

static heddle_status open_copy(calibrate_run *run)
{
    heddle_status st = calibrate_hold(run, 0, HEDDLE_U8, (size_t)run->bytes);
    return st == HEDDLE_OK ? calibrate_hold(run, 1, HEDDLE_U8, (size_t)run->bytes) : st;
}

static heddle_status run_copy(calibrate_run *run)
{
    if (run->there != NULL) {
        return heddle_comm_device_table(run->comm)->copy(run->held[1], 0, run->held[0], 0, run->bytes, 1,
                                                         heddle_comm_device(run->comm), run->there->stream);
    }
    memcpy(run->held[1], run->held[0], (size_t)run->bytes);
    __asm__ volatile("" : : "r"(run->held[1]) : "memory"); /* somebody may read it */
    return HEDDLE_OK;
}

static const calibrate_operation block = {open_block, run_block, close_block, meet_block};
static const calibrate_operation sharded = {open_sharded, run_sharded, close_sharded, NULL};
static const calibrate_operation copy = {open_copy, run_copy, close_block, NULL};

static int64_t at_least(int64_t value, int64_t least)
{
    return value > least ? value : least;
}

/* What takes a CPU milliseconds is too little for a device. */
static void take_size(calibrate_run *run, const struct work *w)
{
    run->rows = w->rows;
    run->length = w->length;
    run->channels = w->channels;
    run->text = w->text;
    if (run->there == NULL) {
        run->rows = run->is_rough && w->rows > ROUGH_ROWS ? ROUGH_ROWS : w->rows;
    } else if (run->is_rough) {
        run->rows = at_least(w->rows / FEWER, 1);
        run->channels = HEAD;
        run->text = w->text > 0 ? at_least(w->text / FEWER, 1) : 0;
    } else {
        run->rows *= MORE_ROWS;
        run->length *= w->length > 1 ? MORE_KEYS : 1;
        run->channels *= MORE_CHANNELS;
        run->text *= MORE_KEYS;
    }
    run->length = run->length < run->rows ? run->length : run->rows;
}

static void describe_copy(calibrate_run *run, int64_t bytes)
{
    run->operation = &copy;
    run->bytes = bytes;
    if (bytes == LAUNCH_BYTES) { /* no rate */
        run->sample->kind = "launch";
        snprintf(run->sample->what, sizeof run->sample->what, "copies of %lld bytes", (long long)bytes);
        return;
    }
    run->sample->kind = "copy";
    snprintf(run->sample->what, sizeof run->sample->what, "%lld KiB", (long long)(bytes >> 10));
    add(&run->sample->about, HEDDLE_WORK_MEMORY, HEDDLE_F32, 2 * (double)bytes, (double)bytes);
}

int calibrate_work_at(calibrate_run *run, int index)
{
    const int is_there = run->there != NULL, is_short = is_there && run->is_rough; /* one dtype alone */
    const int blocks = PER_DTYPE * (is_short ? 1 : DTYPES + is_there);
    if (index > blocks + is_there) {
        return 0;
    }
    if (index >= blocks) {
        describe_copy(run, index == blocks ? copy_bytes(run) : LAUNCH_BYTES);
        return 1;
    }
    const int at = index % PER_DTYPE;
    const struct work method = {HEDDLE_STAGE_ATTENTION, ROWS, sharded_keys[at < WORKS ? 0 : at - WORKS], WIDTH, 0};
    const struct work *w = at < WORKS ? &works[at] : &method;
    run->operation = at < WORKS ? &block : &sharded;
    run->dtype = is_short ? HEDDLE_BF16 : dtypes[index / PER_DTYPE];
    run->kind = w->kind;
    take_size(run, w);
    (at < WORKS ? describe_block : describe_sharded)(run);
    say_what(run);
    return 1;
}
