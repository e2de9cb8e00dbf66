/* What the rest of the runtime may ask of a communicator: links (flags between ranks of one host), addresses in peers'
 * memory, and exchanges (strided messages between ranks that cannot reach one another). */
#ifndef HD_COMM_INTERNAL_H
#define HD_COMM_INTERNAL_H

#include "runtime/base/fields.h"
#include "runtime/device/device.h"

#include <heddle/comm.h>
#include <heddle/sys/device_messages.h>
#include <heddle/sys/transport.h>
#include <sys/types.h>

int64_t hd_comm_deadline_ns(const heddle_comm *comm, int64_t deadline_ms); /* absolute; 0 = the communicator's */
/* HEDDLE_ERR_PEER when somebody gave up or died. Cheap; called in every wait loop. */
heddle_status hd_comm_check(heddle_comm *comm);
heddle_status hd_comm_look(void *comm); /* the same, for waits that ask something */

/* Collective: everybody tells how it went so far. Returns `mine` when that failed, HEDDLE_ERR_PEER naming the first
 * rank whose failed, HEDDLE_OK when all went well. Before the result of a collective creation is used. */
heddle_status hd_comm_agree(heddle_comm *comm, heddle_status mine);
/* The same; *bits are those of any rank then. */
heddle_status hd_comm_agree_bits(heddle_comm *comm, heddle_status mine, int32_t *bits);

/* Collective: everybody tells what it asks for. Returns `mine` when that failed, HEDDLE_ERR_PEER where another rank's
 * did, HEDDLE_ERR_MISMATCH on every rank, naming the first rank that differs from the first of its team, the first
 * field that does, and both texts. Before any data moves. */
heddle_status hd_comm_agree_on(heddle_comm *comm, const hd_fields *fields, heddle_status mine);

/* Element-wise sum over the ranks, in place. add: dst[i] = src[0][i] + src[1][i] + ... of elements of the dtype. */
typedef void (*hd_comm_add)(void *dst, const void *const *src, int nsrc, int64_t elems);
heddle_status hd_comm_sum(heddle_comm *comm, void *data, size_t elems, heddle_dtype dtype, hd_comm_add add);

/* heddle_comm_allgather that aborts when it fails: nobody waits for the rank it failed on. */
heddle_status hd_comm_allgather_or_abort(heddle_comm *comm, const void *send, void *recv, size_t bytes);

/* heddle_comm_abort with the sentence of the moment; returns `st` with that sentence. */
heddle_status hd_comm_abort_with(heddle_comm *comm, heddle_status st);

/* This rank cannot go on, and whoever waits for it shall not: tells all ranks, takes the callers' memory back from the
 * transport, and returns `st` with the sentence of the moment, which it leaves in `why`. */
heddle_status hd_comm_give_up(heddle_comm *comm, heddle_status st, char *why, size_t why_bytes);

/* How sentences call a rank of comm: its number in the communicator that the user opened. */
int hd_comm_rank_name(const heddle_comm *comm, int rank);

/* The device that is attached; NULL: none. */
hd_device *hd_comm_device(const heddle_comm *comm);
/* How bytes travel between the devices' memories; never AUTO. Without a device HOST. */
heddle_wire hd_comm_wire(const heddle_comm *comm);
const char *hd_comm_wire_name(const heddle_comm *comm);
/* Every wire, in the order in which AUTO takes them. */
#define HD_WIRES(X) X(PEER, peer) X(NCCL, nccl) X(HOST, host)
/* Of the wire nccl: messages between the memories of the ranks' devices, in the order of a stream. Peers are numbers in
 * the communicator that the user opened. */
typedef struct hd_nccl_batch {
    heddle_device_message *send, *recv;
    int nsends, nrecvs;
    int64_t deadline_ms; /* 0: the communicator's */
} hd_nccl_batch;
/* Returns when all of it is enqueued as one. After a failure what was enqueued ends soon, and the communicator is of no
 * more use. */
heddle_status hd_comm_nccl_exchange(heddle_comm *comm, const hd_nccl_batch *batch, heddle_stream stream,
                                    int is_captured);
/* Has anything gone wrong with what is enqueued, or in another rank? Never waits. */
heddle_status hd_comm_nccl_check(heddle_comm *comm);
/* What is enqueued ends soon, and all ranks are told `st` with the sentence of the moment; returns it, or what it is
 * due to. */
heddle_status hd_comm_nccl_give_up(heddle_comm *comm, heddle_status st);
/* 1: something went wrong, and the library's handle is lent: what is enqueued ends when its owner ends that. */
int hd_comm_nccl_is_left(heddle_comm *comm);
/* Ranks of the user's communicator: of all, how many have this rank's device, itself included; and does any process
 * have several, on whatever devices. */
typedef struct hd_sharers {
    int ranks, all, in_process, any_together;
} hd_sharers;
hd_sharers hd_comm_sharers(const heddle_comm *comm);
/* Wire peer: not 0 when somebody has given up or died; kernels look at it. */
const uint64_t *hd_comm_abort_word(const heddle_comm *comm);
/* Wire peer. Between processes device memory of one rank has another address for each other one, and none until it is
 * mapped. Collective: all that ranks have of hd_device_alloc and hd_device_hold_all by now is mapped by all of comm,
 * which it may have been before. Not while kernels wait for other ranks. */
heddle_status hd_comm_map_devices(heddle_comm *comm);
/* Address for kernels here of what `rank` calls `memory`; NULL: it is not mapped. */
void *hd_comm_of_peer(const heddle_comm *comm, int rank, uint64_t memory);
/* Address for kernels of `rank` of `memory` of this rank's device; 0: not all of the bytes from there on are mapped. */
uint64_t hd_comm_at_peer(const heddle_comm *comm, int rank, const void *memory, int64_t bytes);
/* Wire peer, between add and remove: what heddle_comm_poll asks besides, and what the thread beside the rank's own asks
 * again and again when somebody has given up or died. Memory is the caller's. */
typedef struct hd_outlook {
    heddle_status (*ask)(void *arg);
    void (*ask_beside)(void *arg);
    void *arg;
    struct hd_outlook *next;
} hd_outlook;
void hd_comm_outlook_add(heddle_comm *comm, hd_outlook *outlook);
void hd_comm_outlook_remove(heddle_comm *comm, hd_outlook *outlook);
/* May `what` (a tensor, a plan) be asked for memory of that space and device? hd_device_need says the errors. */
heddle_status hd_comm_need_space(const heddle_comm *comm, heddle_space space, int device, const char *what);
/* For heddle_buffer_free where something may use it at any time: it ends with the communicator. NULL is legal. */
void hd_comm_leave_buffer(heddle_comm *comm, const void *buffer);

/* Ranks of this host that reach one another (this one included), ascending. */
int hd_comm_local_ranks(const heddle_comm *comm, const int **ranks);
/* 1 where all ranks have links, also those that are told not to reach one another: they sit on this host, can read each
 * other's heddle_buffer_alloc, and messages have no transport to go by. */
int hd_comm_links_all(const heddle_comm *comm);
/* 1 when ranks are threads of this process: every pointer is reachable as it is. */
int hd_comm_shares_address_space(const heddle_comm *comm);
pid_t hd_comm_peer_pid(const heddle_comm *comm, int rank);

/* What executions read and write in place; it stays while the communicator does. */
typedef struct hd_comm_view {
    void **in_flight;         /* the transfers in flight; NULL at first */
    _Atomic int *moving;      /* this rank copies to or from its peers' memory */
    _Atomic int *on_device;   /* how much of this rank's is enqueued that stores to its peers' device memory */
    _Atomic int *alarm;       /* not 0: somebody has given up (hd_comm_check says who) */
    hd_device *const *device; /* hd_comm_device */
} hd_comm_view;
void hd_comm_get_view(hd_comm_view *out, heddle_comm *comm);

/* A name for [memory, memory+bytes) that peers of this host can turn into an address; 0: they cannot reach it. Never
 * allocates. Zero bytes give a valid name. */
uint64_t hd_comm_export(const heddle_comm *comm, const void *memory, size_t bytes);
/* Address in this process of what `rank` exported. */
void *hd_comm_import(const heddle_comm *comm, int rank, uint64_t name);

/* A link: for every ordered pair of local ranks (of all, where messages are staged) and each of HD_LINK_SLOTS slots a
 * flag with a small payload, alone on its cache lines. Sequence numbers only grow; posting publishes everything written
 * before (non-temporal stores included, if their kernel fenced). Peers, slots and words are the caller's to get right:
 * nothing is looked up here that an execution would pay for. */
enum { HD_LINK_SLOTS = 4, HD_LINK_WORDS = 6 };
typedef struct hd_link hd_link;

heddle_status hd_link_create(hd_link **out, heddle_comm *comm); /* collective over all ranks of comm */
void hd_link_destroy(hd_link *link);                            /* not collective; NULL is legal */
/* What waits of this link are part of, for sentences of ranks that are elsewhere; the texts are borrowed. */
void hd_link_serves(hd_link *link, const char *call, const char *line);
heddle_status hd_link_post(hd_link *link, int peer, int slot, uint64_t sequence, const uint64_t *words, int nwords);
/* *arrived = 1 when peer has posted `sequence` or later; words may be NULL. HEDDLE_ERR_PEER when it never will, because
 * it closed its communicator. */
heddle_status hd_link_poll(hd_link *link, int peer, int slot, uint64_t sequence, uint64_t *words, int nwords,
                           int *arrived);
/* hd_comm_export and hd_comm_import between this rank and those that it is linked with. */
uint64_t hd_link_name(const hd_link *link, const void *memory, size_t bytes);
void *hd_link_at(const hd_link *link, int peer, uint64_t name);
/* Spin while ranks fit the cores, then yield, then futex. HEDDLE_ERR_TIMEOUT names rank, peer and `what`. */
heddle_status hd_link_wait(hd_link *link, int peer, int slot, uint64_t sequence, uint64_t *words, int nwords,
                           int64_t deadline_ns, const char *what);
/* What sends between any two ranks of one host stand on (runtime/move/pair.c). */
typedef struct hd_pairs {
    void (*destroy)(struct hd_pairs *pairs);
} hd_pairs;
typedef struct hd_pair_ground {
    hd_link *link;          /* between all ranks; NULL: some are elsewhere, so the transport carries what is sent */
    unsigned char *staging; /* two halves, for memory that peers cannot reach; NULL: they reach all */
    size_t half_bytes;
    hd_pairs *pairs; /* of whoever sends, NULL at first; ends with the communicator */
} hd_pair_ground;
hd_pair_ground *hd_comm_pair_ground(heddle_comm *comm);
heddle_status hd_comm_send_by_transport(heddle_comm *comm, const void *send, size_t send_bytes, int to, void *recv,
                                        size_t recv_bytes, int from);

/* Where an operation begins: HEDDLE_ERR_ARG in a fork, HEDDLE_ERR_PEER when somebody has given up. `call`: its name,
 * for those who break it on purpose. */
heddle_status hd_comm_begin(heddle_comm *comm, const char *call);

/* Ranks that wait for one another for ever, because they are in different calls, are told at once. For that a rank says
 * what it waits for, in loops that look again and again, as soon as hd_comm_rests (`round` as below). */
enum { HD_WAIT_PEERS = 8 };
typedef struct hd_wait {
    uint64_t key;            /* another one when anything has come since */
    int peer[HD_WAIT_PEERS]; /* one of them must do something before this rank does anything again */
    int npeers;              /* 0: not known */
    int is_slow;             /* what they have sent may be on its way for some time */
    const char *call;        /* "an execution of a reshard" */
    const char *line;        /* NULL: none */
} hd_wait;
int hd_comm_rests(const heddle_comm *comm, int round);
/* HEDDLE_ERR_MISMATCH, on every rank. Over with hd_comm_go_on. */
heddle_status hd_comm_stand(heddle_comm *comm, const hd_wait *wait);
void hd_comm_go_on(heddle_comm *comm);
/* "; rank 2 is in ...", for what is late; nothing where that is not known. */
void hd_comm_say_standing(char *out, size_t bytes, const heddle_comm *comm, int rank);
/* What this rank makes from now on, for sentences of ranks that are elsewhere: "the creation of a reshard". */
void hd_comm_makes(heddle_comm *comm, const char *what, const char *line);

/* What heddle_comm_reset sets back, on every rank, while nobody is in a call: between add and remove. Memory is the
 * caller's. */
typedef struct hd_renewal {
    void (*renew)(void *arg);
    void *arg;
    struct hd_renewal *next, **from; /* `from` points at what points here; NULL: not added */
} hd_renewal;
void hd_comm_renewal_add(heddle_comm *comm, hd_renewal *renewal);
void hd_comm_renewal_remove(hd_renewal *renewal); /* legal when it was not added */
int64_t hd_comm_resets(const heddle_comm *comm);  /* how many there were */

/* Let others run for a moment inside a polling loop; `round` counts the loop's turns without progress. Sleeps, in the
 * end, until a post to this rank or for a few milliseconds. */
void hd_comm_relax(heddle_comm *comm, int round);

/* A rank that gives up must not return while a peer copies from or to its memory. So whoever copies says so before
 * (hd_comm_view.moving, followed by a full fence, which every hd_link_post has), then asks whether anybody has given
 * up (hd_comm_heed: HEDDLE_ERR_PEER when this rank has been told so; who is dead hd_comm_check finds out), and only
 * then copies. hd_comm_quiesce waits, after heddle_comm_abort, until no peer of this host copies any more. */
heddle_status hd_comm_heed(heddle_comm *comm);
void hd_comm_quiesce(heddle_comm *comm);
/* The same of hd_comm_view.on_device: until nothing that is enqueued stores to this rank's device memory, for a second
 * at most, whatever the peers' own threads do (hd_outlook.ask_beside). 0: something still may, so none of that memory
 * is freed any more (hd_device_leave). */
int hd_comm_quiesce_devices(heddle_comm *comm);

/* Messages between ranks that cannot reach one another (or all ranks with force_messages), by the transport: not where
 * messages are staged (hd_comm_links_all). Collective creation. */
typedef struct hd_exchange hd_exchange;
heddle_status hd_exchange_create(hd_exchange **out, heddle_comm *comm, const heddle_message *messages, int nmessages);
heddle_status hd_exchange_start(hd_exchange *exchange, const void *src, void *dst);
heddle_status hd_exchange_test(hd_exchange *exchange, int *done);
void hd_exchange_destroy(hd_exchange *exchange);
/* One of the peers that messages in flight still wait for; -1: not known. */
int hd_exchange_peer(hd_exchange *exchange);
/* All of them, as text ("ranks 1, 3"), named as the user's communicator does. */
void hd_exchange_missing(hd_exchange *exchange, char *text, size_t text_bytes);

/* After a failure, once heddle_comm_abort has been called: takes the memory of every exchange in flight back from the
 * transport. None of them can be used afterwards. Where a message is half through and cannot be withdrawn, ` ; ` and a
 * sentence that says so are added to `why`. */
void hd_comm_withdraw(heddle_comm *comm, char *why, size_t why_bytes);

#endif
