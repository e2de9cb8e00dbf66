/* The floor that every byte between ranks goes through.
 *
 * A *transfer* is a fixed list of items: what goes from a rank to a peer (or stays), as loops over the sender's array
 * and over the receiver's. It is made collectively once and executed again and again on base addresses. Which item goes
 * by loads and stores and which as a message, who moves, and with which kernel, is decided here and nowhere else.
 *
 * Transfers that run one after another share a *channel*: flags, the list of executions in flight, counters. One
 * execution is in flight per channel; executions of several channels help one another on.
 */
#ifndef HD_MOVE_H
#define HD_MOVE_H

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/move/lanes.h"

/* --- channels ----------------------------------------------------------------------------------------------------- */

typedef struct hd_channel hd_channel;

/* Texts are borrowed. */
typedef struct hd_channel_options {
    int64_t deadline_ms; /* 0: the communicator's */
    int device_blocks;   /* of a launch on a device that meets others; 0: chosen */
    const char *what;    /* how sentences call an execution: "reshard" */
    const char *line;    /* what overdue waits say behind it; NULL: nothing */
    /* Why an execution may be refused, by reason (from 1 on); NULL: executions are never refused. With them the first
     * transfer waits for every rank that it is connected with, so that all are told before anything moves. */
    const char *const *refusal;
    int nrefusals;
} hd_channel_options;

/* Reasons that every carrier of arrays may have (carrier.h): the stream is being captured. */
enum { HD_REFUSED_CAPTURE = 254, HD_REFUSED_NOT_EXECUTE };
const char *hd_refusal_text(const hd_channel_options *options, int reason);

heddle_status hd_channel_create(hd_channel **out, heddle_comm *comm, const hd_channel_options *options);
/* Not collective; transfers first. NULL is legal. */
void hd_channel_destroy(hd_channel *channel);

/* --- transfers ---------------------------------------------------------------------------------------------------- */

/* src_* of the copy lie in the sender's array, dst_* in the receiver's. */
typedef struct hd_item {
    int peer;
    hd_copy copy;
} hd_item;

typedef struct hd_items {
    hd_item *item; /* ascending peer, this rank's own among them; none is empty. Lent: one run, as it is waited for */
    int count;
} hd_items;

/* The first item from k on that goes to the same place as item `like` does; count: none. Where items are added these
 * are the terms of one sum, in rank order, as is promised (heddle/reshard.h). (sum.c) */
int hd_items_alike(const hd_items *items, int like, int k);

typedef struct hd_transfer_spec {
    hd_items send, recv;         /* copied. Sender and receiver describe an item alike */
    size_t src_bytes, dst_bytes; /* of this rank's arrays */
    /* Items that arrive for the same place are added, in ascending order of peers; any two are for the same place or
     * for disjoint ones. Their copies have one loop per dim, in the order of the destination's strides (largest first),
     * over runs of one element. */
    int adds;
    int lends;          /* nothing is copied: see "lending" below; where hd_can_lend, and with no own item */
    heddle_space space; /* of both arrays, and of staging between them */
    const hd_kernels *kernels;
    hd_sum_fn add, add_streamed;  /* add runs of elements; long ones past the caches */
    const hd_copy *clear;         /* its destination is zeroed first; NULL: the items cover it */
    int any_src, any_dst;         /* the same on every rank: src (dst) may be memory that peers cannot reach */
    int64_t footprint_bytes;      /* this rank's share of what competes for the cache */
    const hd_copy_kernel *kernel; /* NULL: chosen */
} hd_transfer_spec;

typedef struct hd_transfer hd_transfer;

/* Collective; mine: the status of what this rank has done so far. All or none. HEDDLE_ERR_UNSUPPORTED: no way leads
 * from and to memory of that space. */
heddle_status hd_transfers_create(hd_transfer **out, hd_channel *channel, const hd_transfer_spec *spec, int ntransfers,
                                  heddle_status mine);
/* Not collective. NULL is legal. */
void hd_transfer_destroy(hd_transfer *transfer);

/* --- executing ---------------------------------------------------------------------------------------------------- */

/* One transfer of an execution; the next begins when this rank has finished the one before. */
typedef struct hd_leg {
    hd_transfer *transfer;
    const void *src;
    void *dst;
} hd_leg;

enum { HD_MAX_LEGS = 3 };

/* Every rank that takes part runs the same transfers of a channel in the same order. run: in one go. start returns at
 * once; test goes as far as it can without waiting; wait ends at the deadline. After HEDDLE_ERR_PEER, _TIMEOUT and
 * _TRANSPORT the communicator is of no more use, but no peer copies from or to this rank's memory any more. */
heddle_status hd_channel_run(hd_channel *channel, const hd_leg *legs, int nlegs);
heddle_status hd_channel_start(hd_channel *channel, const hd_leg *legs, int nlegs);
heddle_status hd_channel_test(hd_channel *channel, int *done);
/* Like test, between pieces of work: the deadline does not run. */
heddle_status hd_channel_progress(hd_channel *channel, int *done);
heddle_status hd_channel_wait(hd_channel *channel);
/* A later turn of a wait for a flag of `peer` (-1: for what is in flight on channel's communicator, alone): says whom
 * all of it waits for. HEDDLE_ERR_MISMATCH: ranks wait for one another for ever. */
heddle_status hd_channel_stand(hd_channel *channel, int peer);
/* In the place of an execution: all ranks that would wait for this one are told, and so is the caller. */
heddle_status hd_channel_refuse(hd_channel *channel, int reason);
/* Do peers that copy from or to this rank's arrays reach that memory? 1 where there are none. */
int hd_channel_can_travel(const hd_channel *channel, const void *memory, size_t bytes);
/* Bytes that this rank has sent, [nranks]; counted while moving. */
int64_t *hd_channel_sent(hd_channel *channel);

/* --- lending ------------------------------------------------------------------------------------------------------ */

/* Every rank of comm reaches the memory of every other; the same on all. */
int hd_can_lend(const heddle_comm *comm);
/* An execution of a transfer that lends: receivers read the sender's array where it lies. lend tells them that they
 * may, and returns at once; borrow waits until the peer's array may be read, and says where it begins; return says that
 * this rank does not read it any more; regain waits until nobody reads this rank's own. fetch borrows, copies and
 * returns as soon as it can (*bytes 0: not yet); neither it nor try_regain waits. All ranks do all of it. Other
 * executions may run in between, other loans too, and the deadline is that of each wait. Executions of a channel that
 * lends are not refused. Readers ask hd_comm_heed between pieces of work. A failure of any channel's does not wait for
 * peers as long as something is borrowed, because other threads of this rank may be reading it: when they have stopped,
 * what is borrowed is forgone, channel by channel, and the last forgo waits. It returns `st` with the sentence of the
 * moment. */
heddle_status hd_channel_lend(hd_channel *channel, const hd_leg *leg);
heddle_status hd_channel_borrow(hd_channel *channel, int peer, const void **at);
heddle_status hd_channel_return(hd_channel *channel, int peer);
heddle_status hd_channel_fetch(hd_channel *channel, int peer, void *dst, int64_t *bytes);
heddle_status hd_channel_regain(hd_channel *channel);
heddle_status hd_channel_try_regain(hd_channel *channel, int *done);
heddle_status hd_channel_forgo(hd_channel *channel, heddle_status st);

/* --- what was chosen, and trials of other ways -------------------------------------------------------------------- */

typedef enum hd_reach { HD_REACH_DIRECT, HD_REACH_STAGED, HD_REACH_READV } hd_reach;

typedef struct hd_transfer_info {
    int64_t bytes_near, bytes_messages, messages; /* that this rank sends */
    int64_t workspace_bytes;
    int any_near, any_messages, any_adds; /* on any rank */
    int any_mail;                         /* messages by a transport, which may be typed or packed */
    int adds;                             /* on this one */
    int push, walk_src;                   /* who moves, and whose rows it follows */
    int is_open;                          /* another direction may be faster */
    int streams;                          /* long sums go past the caches */
    int is_private;                       /* sources may have to be staged */
    hd_reach reach;                       /* how those are read */
    const hd_lanes *lanes, *pack;         /* by loads and stores; into staging */
    hd_copy_hint hint;
} hd_transfer_info;

void hd_transfer_get_info(hd_transfer_info *out, const hd_transfer *transfer);
void hd_transfer_use_kernel(hd_transfer *transfer, const hd_copy_kernel *kernel, const hd_copy_hint *hint);
/* The same on every rank. */
heddle_status hd_transfer_use_direction(hd_transfer *transfer, int push, int walk_src);
void hd_transfer_use_sum(hd_transfer *transfer, int streams);
void hd_transfer_use_reach(hd_transfer *transfer, hd_reach reach);
heddle_status hd_channel_probe_readv(hd_channel *channel, int *works); /* collective: may peers be read so? */
/* Collective: the other kind of messages, typed or packed, is made and kept. use takes either; drop ends that. */
heddle_status hd_transfer_open_spare(hd_transfer *transfer);
void hd_transfer_use_packed(hd_transfer *transfer, int packed);
void hd_transfer_drop_spare(hd_transfer *transfer);

#endif
