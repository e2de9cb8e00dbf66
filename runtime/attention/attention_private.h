/* The attention object. */
#ifndef HD_ATTENTION_PRIVATE_H
#define HD_ATTENTION_PRIVATE_H

#include "runtime/attention/attention_internal.h"
#include "runtime/attention/object.h"

struct heddle_attention {
    heddle_comm *comm;    /* borrowed */
    heddle_comm *spread;  /* ranks that exchange heads; NULL: one */
    heddle_comm *ring;    /* ranks of the core; NULL: one */
    heddle_comm *part[2]; /* what of these is owned besides */
    hd_attn_problem problem;
    hd_heads heads;
    hd_core core;
    const hd_core_method *method;
    int core_made;
    hd_room_user user;     /* of all arrays below that are not saved */
    struct hd_attn_on *on; /* what it has on its device, instead of all arrays below (on.h); NULL: it is the host's */

    /* Dense [heads][batch][rows][width]. "rows": all heads of this rank's rows; "part": this part's heads of all rows
     * of the ring member. Without a heads exchange they are the same. Storage type unless said otherwise. */
    void *rows;     /* packed q, k, v; o; their gradients, one after the other. NULL: not exchanged */
    void *qkv;      /* part */
    void *wide_q;   /* part, real; q in qkv unless bf16 */
    void *o;        /* part, real */
    void *narrow_o; /* part; o unless bf16 */
    void *top;      /* part, real, and the next: what backward makes weights from; NULL where weights are kept */
    void *log_sum;
    void *lse;      /* part, real; NULL: never asked for */
    void *lse_rows; /* rows, real */
    void *d_o;      /* part */
    void *wide_d_o; /* part, real; d_o unless bf16 */
    void *delta;    /* part, real */
    void *grad;     /* part, real: gradients of qkv */
    void *narrow_grad;
    const void **sources;                 /* [spread] scratch: where the gradients of a key head lie */
    int64_t q_elems, kv_elems, row_elems; /* part: of q, of k and v; of lse */

    int64_t forwards, backwards, saved_bytes, workspace_bytes;
    int has_forward, has_projection;
    hd_broken broken;
    char why[256];
};

const hd_core_method *hd_core_method_of(const hd_attn_problem *problem);

/* An attention on a device (on.h). take: what this rank does alone; what it has made is attention->on, also where it
 * failed. make: collective. */
heddle_status hd_attn_on_check(const hd_attn_problem *problem, const heddle_comm *comm);
heddle_status hd_attn_on_take(heddle_attention *a);
heddle_status hd_attn_on_make(heddle_attention *a, heddle_status mine);
void hd_attn_on_free(heddle_attention *a);
hd_moved hd_attn_on_moved(const struct hd_attn_on *on, int is_back);
const char *hd_attn_on_kernel(const struct hd_attn_on *on);
/* A caller's arrays, which have been looked at, and whose memory is still to be. */
heddle_status hd_attn_on_check_arrays(const heddle_attention *a, const heddle_attention_array *const *x,
                                      const char *const *names, const char *function);
heddle_status hd_attn_on_forward(heddle_attention *a, const heddle_attention_array *const *x, void *lse,
                                 heddle_stream stream);
heddle_status hd_attn_on_backward(heddle_attention *a, const heddle_attention_array *const *x, heddle_stream stream);

#endif
