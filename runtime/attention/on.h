/* Attention on a device: the same problem, parts of heads and rings as on the host, as launches over whole arrays in
 * the order of a stream. Own queries meet the keys of one block after another, a launch for each two runs of rows; what
 * comes of each is merged in that order. Blocks come by routes of their carrier, which may be captured where its
 * reshards may.
 */
#ifndef HD_ATTENTION_ON_H
#define HD_ATTENTION_ON_H

#include "runtime/attention/attention_private.h"
#include "runtime/attention/on_device.h"
#include "runtime/move/carrier.h"

/* Blocks of keys and values, or sums of their gradients, to the next rank of the ring. */
typedef struct hd_on_hops {
    hd_route **route; /* by step; one where all members hold as many rows */
    int nroutes;
} hd_on_hops;

enum { HD_ON_KEYS, HD_ON_KEYS_BACK, HD_ON_SUMS, HD_ON_HOPS }; /* the same in forward and backward, counted apart */

struct hd_attn_on {
    const hd_attn_problem *problem;
    heddle_comm *comm, *ring; /* ring: NULL where it has one member */
    hd_device *device;
    const hd_device_kernels *kernels;
    heddle_stream own_stream, stream; /* stream: of the call */
    hd_enqueued used;                 /* by the last call */
    int64_t heads, kv_heads;          /* of this rank's part */
    int64_t skipped_heads;            /* of its first key head: queries of other ranks */
    int me, members;                  /* of the ring */
    const hd_row_set *own;
    hd_row_set joined; /* gather-kv: the rows of all members */
    int is_single;     /* queries meet one run of keys alone: nothing is merged */
    int splits_keys;   /* a key head is of several parts */
    heddle_dtype grad; /* of gradients here */

    /* Dense [heads][batch][rows][width] on the device, of the type unless said otherwise. */
    char *rows;    /* as on the host */
    char *qkv, *o; /* of this part's heads */
    float *sums;   /* o in f32: for each run of own rows [batch][heads][its rows][width]; not where is_single */
    float *stats;  /* likewise [2] */
    float *part;   /* of one launch, as sums, and the next as stats */
    float *part_stats;
    float *lse, *lse_rows;
    char *d_o, *grads, *narrow; /* grads: of qkv, of the type `grad`; narrow: of the type */
    float *delta, *grad_part;   /* grad_part: a launch's dq, dk and dv */
    float *kv_wide;             /* [kv_heads][batch][rows][width]: where key heads are split */
    char *travel[2], *sum[2];   /* ring: blocks, and f32 sums */
    char *all, *all_grads;      /* gather-kv: keys and values of all members, and f32 gradients */
    int32_t *lengths;           /* of each run of keys [batch]; NULL: all are seen */
    int *begun;                 /* [runs of own rows] in this call; host memory */

    hd_on_hops hop[HD_ON_HOPS];
    heddle_reshard *gather, *home;
    int64_t *row_counts; /* [members] */
};

/* Keys that a call goes through: rows of a member of the ring, or of all, and the number of their first run. */
typedef struct hd_on_keys {
    const hd_row_set *rows;
    int first_run;
    const char *kv; /* keys, then values */
} hd_on_keys;

/* What an arrangement of the caller's batch is: `inner` fibres beside one another. */
typedef struct hd_on_arrays {
    int64_t inner;
    hd_device_tokens at[4];
} hd_on_arrays;

/* --- on_make.c */

hd_on_keys hd_attn_on_keys_of(const struct hd_attn_on *on, int member, const char *kv);
int64_t hd_attn_on_rows(const struct hd_attn_on *on); /* of the part */
int64_t hd_attn_on_elems(const struct hd_attn_on *on, int64_t heads, int64_t rows);

/* --- on_hops.c */

heddle_status hd_attn_on_hops_make(struct hd_attn_on *on);
void hd_attn_on_hops_free(struct hd_attn_on *on);
heddle_status hd_attn_on_hop(struct hd_attn_on *on, int kind, int step, const void *src, void *dst);

/* --- on_pack.c: between a caller's arrays and those of parts */

hd_device_tokens hd_attn_on_packed(const struct hd_attn_on *on, const void *data, int64_t rows, int64_t inner);
heddle_status hd_attn_on_pack(struct hd_attn_on *on, const hd_on_arrays *x); /* q, k and v */
heddle_status hd_attn_on_unpack(struct hd_attn_on *on, const hd_on_arrays *x, const char *from, heddle_dtype dtype);
/* All heads of own rows, dense, to or from a caller's array. */
heddle_status hd_attn_on_take_in(struct hd_attn_on *on, char *dense, const hd_device_tokens *x, int64_t inner);
heddle_status hd_attn_on_give_out(struct hd_attn_on *on, const hd_device_tokens *x, int64_t inner, const char *dense);
heddle_status hd_attn_on_arrange(struct hd_attn_on *on, const hd_device_arrange *of);

/* --- on_keys.c: own queries and one block of keys */

void hd_attn_on_begin(struct hd_attn_on *on);
heddle_status hd_attn_on_meet(struct hd_attn_on *on, const hd_on_keys *keys);
heddle_status hd_attn_on_finish(struct hd_attn_on *on); /* o of the type */
/* dq is added to; grads: dk and dv of these keys, f32 or on->grad, added to where is_begun, written elsewhere. */
heddle_status hd_attn_on_meet_back(struct hd_attn_on *on, const hd_on_keys *keys, char *grads, int is_begun);
heddle_status hd_attn_on_finish_back(struct hd_attn_on *on);
/* dst += src, f32. */
heddle_status hd_attn_on_add(struct hd_attn_on *on, char *dst, const char *src, int64_t elems);

/* --- on.c: the calls, for blocks, too, whose fibres are of two dims */

heddle_status hd_attn_on_forward_on(heddle_attention *a, const hd_on_arrays *x, void *lse, heddle_stream stream);
heddle_status hd_attn_on_backward_on(heddle_attention *a, const hd_on_arrays *x, heddle_stream stream);

#endif
