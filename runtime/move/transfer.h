/* Inside of a transfer and of a channel, for the files of this folder. Nothing here is allocated after creation. */
#ifndef HD_MOVE_TRANSFER_H
#define HD_MOVE_TRANSFER_H

#include "runtime/move/move.h"

#include <stdatomic.h>

/* --- sums (sum.c): terms are read where they lie and added in rank order ------------------------------------------ */

typedef struct hd_sum_term {
    int peer;
    int64_t offset_bytes;                  /* in the peer's array, or in own memory for a message */
    int64_t stride_bytes[HEDDLE_MAX_DIMS]; /* in the peer's array */
    int is_message;                        /* lies dense at offset_bytes of the packed messages */
} hd_sum_term;

/* Items for the same place. */
typedef struct hd_sum {
    int first, nterms; /* in hd_sums.term */
    int nloops;
    int64_t count[HEDDLE_MAX_DIMS], dst_stride_bytes[HEDDLE_MAX_DIMS], dense_stride_bytes[HEDDLE_MAX_DIMS];
    int64_t dst_offset_bytes, run_elems, run_bytes, bytes;
} hd_sum;

typedef struct hd_sums {
    hd_sum *sum;
    hd_sum_term *term;
    const void **row; /* scratch, one per term of the largest sum */
    int nsums, nterms;
} hd_sums;

/* --- mail: messages by the transport (messages.c) ----------------------------------------------------------------- */

typedef struct hd_mail {
    int is_packed;
    int nmessages, nsends;
    heddle_message *message; /* sends first */
    int64_t *message_bytes;
    int64_t *recv_offset; /* [recv.count] in recv_packed */
    hd_exchange *exchange;
    char *send_packed, *recv_packed; /* NULL: in place */
    int64_t packed_bytes;
    hd_lanes pack, unpack;
} hd_mail;

/* --- sources that peers do not read where they lie (private.c) ---------------------------------------------------- */

typedef struct hd_private {
    int used;
    int is_private;       /* sources may be out of their peers' reach */
    hd_lanes pack;        /* own src -> staging, for peers that would read it where it lies */
    hd_lanes pack_mail;   /* likewise, for those that are sent messages */
    int64_t *item_offset; /* [nranks] of the item for a peer, -1: there is none; NULL: nobody reads here */
    int *from, nfrom;     /* peers this rank reads */
    hd_lanes *direct;     /* [nfrom] one copy each */
    hd_lanes *staged;     /* [nfrom] likewise, from the peer's staging */
    hd_copy *copy;        /* [nfrom] for process_vm_readv */
} hd_private;

/* --- who tells whom (peers.c) ------------------------------------------------------------------------------------- */

/* Whoever is read from or written to tells so (READY, with its addresses); whoever has moved says that (DONE, with the
 * bytes). */
typedef struct hd_peers {
    int *tell, ntell;
    int *hear, nhear;
    unsigned char *uses;  /* [nhear] 1: this rank copies from or to it */
    int is_touched;       /* peers copy from or to this rank's own array, not from staging */
    int *served, nserved; /* ranks that wait for my DONE */
    int *movers, nmovers; /* ranks whose DONE I wait for */
} hd_peers;

/* --- messages between two ranks, of sizes that are not agreed on before (pair.c) ---------------------------------- */

typedef struct hd_oneway hd_oneway;

struct hd_transfer {
    hd_channel *channel;
    hd_items send, recv;
    size_t src_bytes, dst_bytes;
    heddle_space space;
    const hd_kernels *kernels;
    hd_sum_fn add, add_streamed;
    int streams;
    int adds, lends, any_adds, any_near, any_src, any_dst;
    int any_mail, any_staged; /* messages by the transport; by way of staging, over links */
    int clears;
    hd_copy clear;
    hd_copy_hint hint;
    const hd_copy_kernel *kernel; /* forced, or NULL */
    int push;                     /* the owner of the source moves */
    int walk_src;                 /* lanes follow the source's order */
    int is_open;
    int is_guard; /* waits for all connected ranks */
    hd_peers peers;
    hd_lanes lanes;
    int own_groups; /* of lanes, the first ones: they copy inside this rank */
    hd_sums sum;
    hd_mail mail, spare; /* spare: while two ways are compared */
    hd_private own;
    hd_reach reach;    /* of a private source */
    hd_oneway *oneway; /* NULL: sizes are agreed on */
    uint64_t offer;    /* of a one-way: what READY says of it */
    int refuses;       /* of a one-way: the message that has come is of another size */
    char *staging;     /* peers can reach it */
    int64_t staging_bytes;
    int64_t bytes_near, bytes_messages, messages;
    /* names of the arrays of the last execution, for the next */
    const void *named_src;
    void *named_dst;
    uint64_t src_name, dst_name;
};

typedef enum hd_state { HD_IDLE, HD_COLLECT, HD_MOVE, HD_MAIL, HD_FINISH } hd_state;

struct hd_channel {
    heddle_comm *comm;
    hd_comm_view view;
    int rank, nranks;
    hd_channel_options options;
    char call[64]; /* "an execution of a reshard" */
    hd_link *link;
    int reaches_all;          /* its link does, whatever the options say about reaching */
    int alternates;           /* executions use the two slots in turn; 0: always the same one */
    hd_transfer *guard;       /* refusals go where its READY goes; NULL: none */
    int links_all;            /* hd_comm_links_all: there is no mail */
    int any_mail;             /* on any rank, in any transfer */
    int has_near;             /* this rank copies from or to the arrays of others, or they from or to its own */
    unsigned char *component; /* [nranks] 1: connected with this rank by copies, over any number of ranks */

    /* one execution */
    hd_state state;
    const hd_leg *leg; /* [nlegs] the caller's, or kept */
    hd_leg kept[HD_MAX_LEGS];
    int nlegs, at;
    int waited; /* next rank of the present wait */
    int mail_done;
    int is_whole;            /* in one go, with nothing else in flight */
    int is_marked;           /* as moving */
    int is_lent;             /* this rank's array, in the place of an execution */
    int borrowed;            /* arrays of peers */
    int regained;            /* of those that read the lent array */
    int half;                /* which of the two slots */
    uint64_t sequence;       /* of legs */
    int64_t deadline_ns;     /* 0: not looked at the clock yet */
    int pending;             /* READYs of an execution refused here are still to be collected */
    int refusal;             /* its reason */
    int refused_by;          /* 1 + rank whose refusal was seen in this execution */
    const void **src_at;     /* [nranks] */
    void **dst_at;           /* [nranks] */
    int64_t *moved;          /* [nranks] by this rank in the present leg */
    int64_t *sent;           /* [nranks] in all */
    unsigned char *reach_of; /* [nranks] hd_reach of the peer's source in this execution */
    int is_listed;           /* among those in flight */
    hd_channel *next;        /* in flight on the same communicator */
    heddle_status outcome;   /* of an execution that ended while another channel was waited for */
    hd_renewal renewal;
    hd_broken broken;
};

/* Reached by loads and stores, itself included. */
static inline int hd_channel_near(const hd_channel *channel, int peer)
{
    return peer == channel->rank || channel->reaches_all || heddle_comm_reaches(channel->comm, peer);
}

/* Flags and staging lead there: also to ranks that are told to send messages, where no transport carries them. */
static inline int hd_channel_linked(const hd_channel *channel, int peer)
{
    return channel->links_all || hd_channel_near(channel, peer);
}

/* What view.moving says of a rank: that it copies, and how many arrays it has borrowed. */
enum { HD_COPIES = 1, HD_BORROWS = 2 };

/* Two slots of each kind, used in turn by executions (not legs): a rank starts execution e+2 only when all its peers
 * have come to e+1. A channel that lends uses one: nobody lends again before all readers have returned what he lent. */
enum { HD_SLOT_READY = 0, HD_SLOT_DONE = 2 };

/* What sentences say of waits for them. */
#define HD_UNTIL_READY "waiting until it is ready"
#define HD_UNTIL_DONE "waiting until it has moved its part"

/* What a rank tells the others of a transfer: of its largest item, and what it needs. */
typedef struct hd_geometry {
    int64_t largest_bytes, run_bytes, src_stretch_bytes, dst_stretch_bytes, footprint_bytes;
    int32_t adds, clears, near, mail, staged;
} hd_geometry;

/* all: one per rank, `step` bytes apart. Decides the direction, the same on every rank. */
void hd_peer_choose(hd_transfer *transfer, const hd_geometry *all, size_t step);
heddle_status hd_peer_build(hd_transfer *transfer);
void hd_peer_free(hd_transfer *transfer);

enum { HD_REFUSED = -1 }; /* bytes of a DONE: nothing was copied, because the sizes differ */
void hd_oneway_take(hd_transfer *transfer, uint64_t offer);

heddle_status hd_sums_build(hd_transfer *transfer);
void hd_sums_run(hd_transfer *transfer, void *dst);
void hd_sums_free(hd_sums *sums);

heddle_status hd_mail_build(hd_transfer *transfer, int packed);
heddle_status hd_mail_begin(hd_transfer *transfer, const hd_leg *leg);
/* Sets channel->mail_done. */
heddle_status hd_mail_poll(hd_transfer *transfer, const hd_leg *leg);
void hd_mail_free(hd_mail *mail);

heddle_status hd_private_build(hd_transfer *transfer);
int hd_private_all_direct(const hd_transfer *transfer);
/* What peers will read from staging; reach: how those that could read src read it. */
void hd_private_pack(hd_transfer *transfer, const void *src, hd_reach reach);
/* Name of the item for a peer; 0: it has none. */
uint64_t hd_private_item(const hd_transfer *transfer, int peer);
heddle_status hd_private_move(hd_transfer *transfer, void *dst);
void hd_private_free(hd_private *p);
/* The order in which the bytes of an item travel, the same at both ends. */
void hd_item_stream(hd_copy *copy, const hd_transfer *transfer);
/* Reserves bytes of transfer->staging, before it is allocated, and returns their offset. */
int64_t hd_transfer_reserve(hd_transfer *transfer, int64_t bytes);

int64_t hd_channel_deadline(hd_channel *channel);
/* Says whether this rank copies: before it does, then asks whether anybody has given up; a full fence lies between. */
void hd_channel_mark(hd_channel *channel, int moving);
/* As far as it goes without waiting (block: for anything but flags). */
heddle_status hd_channel_advance(hd_channel *channel, int block, int *stuck);
/* A turn of a wait in which nothing came: did anybody give up, can others go on, is it late? */
heddle_status hd_channel_linger(hd_channel *channel);
int hd_channel_awaits(const hd_channel *channel); /* the rank that it waits for just now; -1: none, or not known */
/* Begins an execution of channel->leg. */
heddle_status hd_channel_launch(hd_channel *channel);
/* A flag of this rank in the present leg, and one of a peer. block: waits for it, where nothing else needs progress. */
heddle_status hd_channel_post(hd_channel *channel, int kind, int peer, const uint64_t *words, int nwords);
heddle_status hd_channel_await(hd_channel *channel, int kind, int peer, uint64_t *words, int nwords, int block,
                               int *here);
void hd_channel_leave(hd_channel *channel); /* it is idle, and not in flight */
void hd_channel_unlist(hd_channel *channel);
/* Says so to everybody who waits, and returns `st` with its sentence, which tells at a deadline who is missing. Peers
 * are waited for by the last break of a rank that has borrowed nothing any more. */
heddle_status hd_channel_give_up(hd_channel *channel, heddle_status st);
heddle_status hd_channel_break(hd_channel *channel, heddle_status st); /* the sentence is complete */
heddle_status hd_channel_tell_refusal(const hd_channel *channel);
heddle_status hd_channel_take_outcome(hd_channel *channel);
/* Else an execution cannot begin: an earlier one failed, or is in flight. make_free: where something is left of earlier
 * ones, which it collects. */
heddle_status hd_channel_check_free(hd_channel *channel);
heddle_status hd_channel_make_free(hd_channel *channel);

#endif
