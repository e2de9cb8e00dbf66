/* Blocks on a device. There a stage is a list of launches over whole arrays, in the order of a stream: no seats, no
 * chunks, no jobs. What a row comes to is said by the kernels (kernels/table_device.h), none of which asks how many
 * rows there are.
 *
 * A call goes through its stage twice. The first time nothing is launched: it finds out how much workspace the call
 * takes. So what is reserved is what is used. Where that would be too much, parts of the box go through one behind the
 * other.
 */
#ifndef HD_BLOCK_ON_DEVICE_H
#define HD_BLOCK_ON_DEVICE_H

#include "kernels/table_device.h"
#include "runtime/base/base.h"
#include "runtime/block/back_internal.h"
#include "runtime/device/enqueued.h"
#include "runtime/device/products.h"

/* Workspace from the beginning of a call to its end, of blocks that are used in turn. */
typedef struct hd_on_room {
    int owners;
    heddle_comm *comm;
    hd_device *device;
    hd_products *products;
    char *memory;
    size_t bytes;
    hd_enqueued used;         /* by the last call */
    int is_held;              /* hd_block_hold */
    int is_in_pass, captures; /* hd_block_pass_begin; its stream is being captured */
    heddle_stream pass;       /* its stream */
    heddle_stream stream; /* of copies that the host waits for: it has no order with the default one, which comes behind
                             everything else on the device, kernels that wait for this rank among it */
    hd_enqueued copies;
} hd_on_room;

struct hd_block_on {
    heddle_comm *comm;
    hd_device *device;
    const hd_device_kernels *kernels;
    const void *param[HD_BLOCK_PARAMS]; /* weights of the activation's type, a bias of its product's, norms f32 */
    void *own[HD_BLOCK_PARAMS];         /* the block's memory for them; NULL: a lent one is read where it lies */
    struct {
        const void *data; /* NULL: is not lent */
        heddle_dtype dtype;
    } lent[HD_BLOCK_PARAMS];
    float *gradient[HD_BLOCK_PARAMS];
    float *cos_sin;    /* as the block's */
    float *log2_decay; /* LINEAR: [heads] */
    size_t bytes;      /* of these */
    hd_on_room *room;
    int has_gradients;
    const void *lengths;  /* of texts, of the call before, in memory of the host */
    hd_device_gate *left; /* by forward (runtime/block/inner.h); NULL: it leaves nothing */
    hd_broken broken;     /* what could not be cleared, for the next call */
};

/* One call of a block. */
typedef struct hd_on_call {
    heddle_block *block;
    struct hd_block_on *on;
    const hd_block_view *view; /* of the part that goes through */
    heddle_stream stream;
    int keeps; /* kept is there */
    hd_kept kept;
    heddle_tape *tape;                          /* of kept */
    const heddle_conditioning_gradient *wanted; /* NULL: none */
    int64_t rows, c;
    heddle_dtype dtype;
    hd_device_gate *left; /* gets the change of x, which is left undone; NULL: it is done */
    int is_dry;           /* nothing is launched; arrays have addresses that nobody may use */
    char *base;           /* of the workspace */
    size_t used, most;    /* bytes of it, now and at any time */
} hd_on_call;

#define HD_ON_NOWHERE ((void *)(uintptr_t)256) /* an array of a dry call */

typedef heddle_status (*hd_on_stage)(hd_on_call *call);

/* --- memory.c */

heddle_status hd_on_room_make(hd_on_room **out, heddle_comm *comm);
void hd_on_room_leave(hd_on_room *room); /* NULL is legal */
/* The device is through with what its blocks were asked for; 0: it is not known to be. */
int hd_on_room_is_idle(hd_on_room *room);
/* The same of memory that is to be freed (hd_enqueued_lets_free). */
int hd_on_room_lets_free(hd_on_room *room);
/* Around what a call enqueues with the workspace: behind what other streams do with it. st: of enqueuing it. */
heddle_status hd_on_room_begin(int *captures, hd_on_room *room, heddle_stream stream);
heddle_status hd_on_room_end(hd_on_room *room, int captures, heddle_stream stream, heddle_status st);
heddle_status hd_on_room_settle(hd_on_room *room); /* what is in its own stream has ended */
/* At least so many bytes. HEDDLE_ERR_ARG: they are missing, and `stream` is being captured. */
heddle_status hd_on_room_reserve(hd_on_room *room, size_t bytes, heddle_stream stream);
/* HEDDLE_ERR_ARG: `stream` is being captured, which allows no allocation of `what`. */
heddle_status hd_on_need_no_capture(const hd_on_room *room, size_t bytes, heddle_stream stream, const char *what);
/* As hd_reserve, in the memory of the room's device. */
heddle_status hd_on_reserve(hd_on_room *room, void **memory, size_t *held_bytes, size_t bytes, heddle_stream stream,
                            const char *what);
/* From memory of the host; waits. */
heddle_status hd_on_upload(hd_on_room *room, void *dst, const void *src, size_t bytes);

/* --- life.c, of parameters */

int64_t hd_on_param_elems(const heddle_param *param);
heddle_dtype hd_on_param_dtype(const heddle_block *block, int param); /* as kernels read it */
/* The product of layer i that a stage, or its backward, asks for. */
heddle_product hd_on_form(const heddle_block *block, int layer, heddle_product_kind kind);
/* How many of its rows are one of the layer's: their results are added up. */
int hd_on_terms(const heddle_block *block, int layer, heddle_product_kind kind);

/* --- call.c: checks and runs */

heddle_status hd_on_check(const heddle_block *block, const heddle_tensor *x, const heddle_conditioning *conditioning,
                          hd_call_names names);
/* Lengths of texts, before the host reads them. */
heddle_status hd_on_check_lengths(const heddle_block *block, const int64_t *lengths, const char *function);
heddle_status hd_on_check_wanted(const heddle_block *block, const heddle_conditioning_gradient *wanted);
/* What a call of a block goes with: its tape, too. */
hd_on_call hd_on_call_of(heddle_block *block, const hd_block_view *view, heddle_tape *tape, heddle_stream stream);
/* Runs the stage, or backward of it, in the order of `stream`: parts of the box, with `bytes` of workspace. */
heddle_status hd_on_run(hd_on_call *call, hd_on_stage stage, const hd_on_parts *parts, size_t bytes);
/* The next bytes of the workspace. What is not read by later launches may be taken again: call->used as it was. */
void *hd_on_take(hd_on_call *call, int64_t elems, size_t elem_bytes);
/* The parts of a tape, large enough for the call; those that it does not keep are NULL. */
heddle_status hd_on_keep(hd_kept *out, const hd_on_call *call, heddle_tape *tape, heddle_stream stream);

/* --- parts.c: boxes whose workspace would be too large */

/* The fewest parts that keep to options.most_workspace_bytes, forward or (back is given, and the call has a tape) both
 * ways, whatever the texts' lengths; and the workspace for that. */
heddle_status hd_on_divide(hd_on_parts *out, size_t *bytes, const hd_on_call *call, hd_on_stage forward,
                           hd_on_stage back);
/* Of parts in which a forward went. */
heddle_status hd_on_part_bytes(size_t *bytes, const hd_on_call *call, hd_on_stage stage, const hd_on_parts *parts);
heddle_status hd_on_each_part(hd_on_call *call, hd_on_stage stage, const hd_on_parts *parts);

/* --- launch.c: steps of stages; each is one launch, or what its kernel makes of it */

#define HD_ON_LAUNCH(call, slot, ...)                                                                                  \
    hd_on_launched(call, (call)->is_dry ? 0 : (call)->on->kernels->slot(__VA_ARGS__, (call)->stream), #slot)
heddle_status hd_on_launched(const hd_on_call *call, int code, const char *what);
hd_device_rows hd_on_rows(const hd_on_call *call);
/* Row `which` of the first sample's vector; NULL: the block is not modulated. */
const float *hd_on_condition(const hd_on_call *call, int which);
heddle_status hd_on_norm(hd_on_call *call, void *dst, const void *src, int base);
/* dst = src W^T + bias of rows of layer i, in the type that the layer gives. */
heddle_status hd_on_layer(hd_on_call *call, int layer, void *dst, const void *src, int64_t rows);
/* A product; also one of a gradient. */
heddle_status hd_on_product(hd_on_call *call, const heddle_product *of, const heddle_product_call *product);

/* --- gate.c: the end of a forward; x gets its change, and a tape x as it was */

heddle_status hd_on_gate(hd_on_call *call, void *x, const float *y, int gate);
heddle_status hd_on_change(hd_on_call *call, void *x, const hd_device_gate *gate); /* of some of the rows */

/* --- launch_back.c: the same of backward */

/* dst = dy W of rows of layer i. */
heddle_status hd_on_through(hd_on_call *call, int layer, void *dst, const void *dy, int64_t rows);
/* Layer i's gradients: of its weight += dy^T x, of its bias += the sums of dy. */
heddle_status hd_on_weight(hd_on_call *call, int layer, const void *dy, const void *x, int64_t rows);
heddle_status hd_on_columns(hd_on_call *call, const hd_device_columns *of, float *dst, float *dst_times,
                            int64_t stride);
/* Through the last layer: dx, and *dy, what came through the gate. */
heddle_status hd_on_out_through(hd_on_call *call, const void **dy, int layer, void *dx, int gate);
/* The gradients of that layer, which was given x, and of the gate. */
heddle_status hd_on_out_weight(hd_on_call *call, int layer, const void *dy, const void *x, int gate);
/* Both. */
heddle_status hd_on_out_back(hd_on_call *call, int layer, void *dx, const void *x, int gate);
/* Through the first layer and the norm in front of it: their gradients, and that of the activation x. */
heddle_status hd_on_in_back(hd_on_call *call, int layer, const void *dy, const void *x, int base);

/* --- stages */

heddle_status hd_on_mlp(hd_on_call *call);
heddle_status hd_on_mlp_back(hd_on_call *call);

/* ATTENTION and LINEAR between their layers: rows in the box's order. */
typedef struct hd_on_mixed {
    void *normed, *qkv, *turned, *o; /* turned: q and k behind the norm and rotation of heads; or qkv, where they are */
    float *stats; /* what backward of attention needs; of LINEAR its norm's factors; NULL: not wanted */
    void *change; /* the projection's result, f32 */
} hd_on_mixed;
heddle_status hd_on_attention(hd_on_call *call);
heddle_status hd_on_attention_back(hd_on_call *call);
heddle_status hd_on_mix(hd_on_call *call, hd_on_mixed *a, const void *x); /* up to o */
/* q and k as they are in `turned`, rows of 2 c; or in qkv, where turned is that. */
hd_device_attention hd_on_attention_of(const hd_on_call *call, void *qkv, void *turned, void *o, float *stats);
/* Attention of whole fibres, or the group's over a sharded dim. */
heddle_status hd_on_attend(hd_on_call *call, const hd_device_attention *of);
heddle_status hd_on_attend_back(hd_on_call *call, const hd_device_attention_back *back);
int hd_on_turns(const heddle_block *block); /* heads are normed or rotated */
heddle_status hd_on_turn(hd_on_call *call, void *turned, void *qkv);
hd_device_heads hd_on_heads_of(const hd_on_call *call); /* of q and k */

heddle_status hd_on_heads_back(hd_on_call *call, char *d_qkv, char *qkv);

/* LINEAR: the same with linear attention, whose results are f32, and its norm. */
heddle_status hd_on_linear(hd_on_call *call, const hd_device_attention *of);
heddle_status hd_on_linear_back(hd_on_call *call, const hd_device_attention_back *back);

/* CROSS likewise. */
typedef struct hd_on_crossed {
    char *text, *words; /* of the box's samples, f32 and of the block's type */
    void *kv, *q, *o;
    float *stats;
} hd_on_crossed;
heddle_status hd_on_cross(hd_on_call *call);
heddle_status hd_on_cross_back(hd_on_call *call);
heddle_status hd_on_cross_mix(hd_on_call *call, hd_on_crossed *a, void *x); /* up to o */
hd_device_attention hd_on_cross_of(const hd_on_call *call, const hd_on_crossed *a, int64_t first, int64_t samples);
int64_t hd_on_run_of(const hd_on_call *call, int64_t first, int any);

#endif
