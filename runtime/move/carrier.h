/* An array carried from rank to rank in phases, by the carrier of its memory: transfers of a channel for arrays of the
 * host, and for a device's what the communicator's wire has. A *route* is what is made once for all phases; a *carrier*
 * is how it is made and executed: a file of this folder, and its name in HD_WIRES (runtime/comm/comm_internal.h).
 */
#ifndef HD_MOVE_CARRIER_H
#define HD_MOVE_CARRIER_H

#include "runtime/device/enqueued.h"
#include "runtime/move/device_list.h"
#include "runtime/move/move.h"

/* --- for those who move something --------------------------------------------------------------------------------- */

/* Where a phase reads or writes: the caller's arrays, or memory of the route. */
typedef enum hd_spot_in { HD_IN_SRC, HD_IN_DST, HD_IN_WORK } hd_spot_in;
typedef struct hd_spot {
    hd_spot_in in;
    int64_t offset_bytes; /* in the route's memory */
} hd_spot;

typedef struct hd_route_phase {
    hd_transfer_spec transfer; /* its space is the route's */
    hd_spot src, dst;
} hd_route_phase;

/* Between the caller's array and a dense one in the route's memory, which phases see in its place. No bytes: none. */
typedef struct hd_dense {
    hd_copy copy;
    int64_t at;
} hd_dense;

typedef struct hd_route_spec {
    hd_channel_options options; /* with refusals */
    heddle_space space;         /* of src and dst */
    hd_route_phase phase[HD_MAX_LEGS];
    int nphases;
    hd_dense before, after;       /* src to the dense array; the dense array to dst */
    hd_copy whole_src, whole_dst; /* every element of src, of dst, to an array of the same form */
    int64_t work_bytes, src_bytes, dst_bytes;
    int any_memory; /* the caller's arrays may be memory that peers cannot reach */
    heddle_dtype dtype;
    int64_t elem_bytes;
} hd_route_spec;

typedef struct hd_route hd_route;

/* Collective; mine: the status of what this rank has done so far. All or none. */
heddle_status hd_route_create(hd_route **out, heddle_comm *comm, const hd_route_spec *spec, heddle_status mine);
/* Not collective; waits for what is enqueued, and says nothing of how that ends. NULL is legal. */
void hd_route_destroy(hd_route *route);

/* A stream that is being captured cannot wait for what is started: HEDDLE_ERR_ARG. */
heddle_status hd_route_need_eager(const hd_route *route, heddle_stream stream);

void hd_route_forget(hd_route *route); /* executions and bytes so far, of a bare one */

typedef struct hd_route_info {
    const char *wire; /* "": arrays of the host */
    int64_t bytes_near, bytes_messages, messages, workspace_bytes, executions, device_ns;
    int is_capturable, is_captured;
    const char *why; /* instead of what explain has said; NULL: that holds */
} hd_route_info;
void hd_route_get_info(hd_route_info *out, const hd_route *route);

/* What was made. A route with a bare one has no path and no kernel of its own, and `why` comes before what is to be
 * said of those of its transfers. */
typedef struct hd_route_words {
    char path[32], kernel[32], why[512];
} hd_route_words;
void hd_route_explain(hd_route_words *out, const hd_route *route);

/* Every element of this rank's src goes to one place, by a kernel that can change it on the way (hd_device_gate). Ranks
 * need not do alike: those that wait for this one cannot tell. */
int hd_route_takes_gate(const hd_route *route);
/* carrier->run of what src becomes with its change; src is left as it is. */
heddle_status hd_route_run_gated(hd_route *route, const void *src, const hd_device_gate *gate, void *dst,
                                 heddle_stream stream);

/* What a route is executed by: route->carrier->run(route, ...). As the functions of a channel; on a device in the order
 * of `stream`. Who takes part is known to be there: arrays that it does not take are refused in the place of an
 * execution, which ends it for all who would wait. */
typedef struct hd_carrier {
    /* 1: what is sent is counted when the device gets to it, which may be after run has returned. */
    int counts_late;
    /* Collective, and the first that it does with the others is to agree on `mine`. */
    heddle_status (*make)(hd_route *route, heddle_status mine);
    heddle_status (*run)(hd_route *route, const void *src, void *dst, heddle_stream stream);
    heddle_status (*start)(hd_route *route, const void *src, void *dst, heddle_stream stream);
    heddle_status (*test)(hd_route *route, int *done);
    heddle_status (*wait)(hd_route *route);
    heddle_status (*wait_on)(hd_route *route, heddle_stream stream);
    /* st: what kept the arrays from being looked at, or HEDDLE_OK. */
    heddle_status (*refuse)(hd_route *route, int reason, heddle_status st);
    const int64_t *(*sent)(const hd_route *route);             /* by this rank by now, bytes, [nranks] */
    void (*inform)(hd_route_info *out, const hd_route *route); /* adds to what is known of the route */
    void (*explain)(hd_route_words *out, const hd_route *route);
    void (*destroy)(hd_route *route); /* also of one that was not finished */
} hd_carrier;

/* How a carrier that only enqueues executions begins one whose end is left open, and hears that they go wrong. */
typedef struct hd_late {
    heddle_status (*look)(hd_route *route, int waits); /* waits: for this rank's own end, so that others may be gone */
    heddle_status (*start)(hd_route *route, const void *src, void *dst, heddle_stream stream); /* not captured */
    heddle_status (*fail)(hd_route *route, heddle_status st); /* gives up; returns with its sentence */
    int64_t grace_ns;                                         /* behind deadlines that the device keeps itself */
} hd_late;

struct hd_route {
    heddle_comm *comm;
    hd_device *device; /* of the arrays; NULL: they are the host's */
    const hd_carrier *carrier;
    int rank, nranks;
    hd_route_spec spec; /* lists of items are borrowed, and only read while it is made */
    hd_local before, after;
    char *work;    /* spec.work_bytes */
    int owns_work; /* from heddle_buffer_alloc */
    /* Transfers that carry it out, in host memory, and may be tuned and run on other arrays: the route itself, or one
     * inside of it. NULL: there are none. */
    hd_route *bare;
    hd_channel *channel; /* of a bare one, with its transfers */
    hd_transfer *transfer[HD_MAX_LEGS];
    int takes_gate;
    const hd_device_gate *gate; /* of the execution that is being enqueued; NULL: src as it is */
    int64_t executions;
    int64_t *sent;        /* [nranks] */
    hd_enqueued enqueued; /* of a device: executions, or copies beside them */
    hd_late late;
    void *own; /* the carrier's */
};

/* --- for carriers ------------------------------------------------------------------------------------------------- */

extern const hd_carrier hd_carrier_flags; /* arrays of the host */
#define HD_CARRIER_OF(name, wire) extern const hd_carrier hd_carrier_##wire;
HD_WIRES(HD_CARRIER_OF)
#undef HD_CARRIER_OF

heddle_status hd_route_create_by(hd_route **out, heddle_comm *comm, const hd_carrier *carrier,
                                 const hd_route_spec *spec, heddle_status mine);
/* Not collective: the dense copies, and memory of the route's space, which peers reach. */
heddle_status hd_route_take_memory(hd_route *route);
heddle_status hd_route_make_locals(hd_route *route);
/* The three places in which a spot may be, in an execution on these arrays; it says which one it is. */
#define HD_SPOTS(route, spot, src, dst)                                                                                \
    {                                                                                                                  \
        [HD_IN_SRC] = (src), [HD_IN_DST] = (dst),                                                                      \
        [HD_IN_WORK] = (void *)((uintptr_t)(route)->work + (uintptr_t)(spot)->offset_bytes)                            \
    }
/* Enqueued, or done, before the first phase and behind the last. */
heddle_status hd_route_before(const hd_route *route, const void *src, heddle_stream stream);
heddle_status hd_route_after(const hd_route *route, void *dst, heddle_stream stream);
/* The sentence of a refusal that nobody else is told. */
heddle_status hd_route_say_refusal(const hd_route *route, int reason);
/* *captures: the stream is being captured. */
heddle_status hd_route_look_at(int *captures, const hd_route *route, heddle_stream stream);
int hd_route_adds(const hd_route *route); /* this rank, while it is made */
/* Opens what is enqueued of it; end: for hd_enqueued_names. hd_route_destroy closes it. */
heddle_status hd_route_open_enqueued(hd_route *route, const char *end);
int64_t hd_route_deadline_ns(const hd_route *route); /* of what begins now */
/* Of a carrier that has `late`. */
heddle_status hd_route_start_late(hd_route *route, const void *src, void *dst, heddle_stream stream);
heddle_status hd_route_test_late(hd_route *route, int *done);
heddle_status hd_route_wait_late(hd_route *route);
heddle_status hd_route_wait_on_late(hd_route *route, heddle_stream stream);

#endif
