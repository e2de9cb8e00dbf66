/* The two sides of the meeting of a host's ranks: member 0 (join_first.c) and the others (join.c). */
#ifndef HD_COMM_JOIN_H
#define HD_COMM_JOIN_H

#include "runtime/comm/ground/ground.h"
#include "runtime/comm/ground/join_socket.h"

enum { HD_JOIN_MAGIC = 0x6864646c, HD_JOIN_BATCH = HD_MEETING_FDS / 2, HD_JOIN_STEP_MS = 20 };

/* What a member says when member 0 has shown that it knows the key. Two descriptors go with it: arena, process (if the
 * kernel gives one). */
typedef struct hd_hello {
    unsigned char proof[HD_PROOF_BYTES];
    uint32_t control_bytes; /* two versions of the library do not meet */
    int32_t n;
    int32_t index;
    int32_t pid;
    int32_t has_life;
} hd_hello;

/* Member 0's answer, in batches; status != 0: the text says why not. */
typedef struct hd_batch {
    uint32_t magic;
    int32_t status;
    int32_t first;
    int32_t count;
    int32_t pid[HD_JOIN_BATCH];
    int32_t has_life[HD_JOIN_BATCH];
    char text[256];
} hd_batch;

typedef struct hd_meeting {
    const hd_join *join;
    hd_interrupt interrupt; /* join->interrupt, and when it was last asked */
    hd_secret secret;       /* of join->key */
    hd_group *group;
    int came;                /* member 0: members that are there, itself one */
    int *arena_fd;           /* of every member, -1 */
    int *socket;             /* member 0: of every member, -1 */
    int listener;            /* member 0: where all meet; the others: shows who else says that it is this member */
    pid_t twin;              /* another process that says so; 0 */
    int64_t conflict_end_ns; /* member 0: until when it tells newcomers of the conflict; 0: there is none */
    char conflict[256];
    char holder[128];       /* who has the name that the ranks meet under, if not member 0; once known it stays */
    int holder_is_stranger; /* and does not know the key */
} hd_meeting;

/* The rank that member `index` is to the caller, for sentences. */
int hd_meeting_name(const hd_join *join, int index);
/* HEDDLE_ERR_TIMEOUT past the deadline, HEDDLE_ERR_PEER when a rank is known to be dead, HEDDLE_ERR_INTERRUPTED. */
heddle_status hd_meeting_waits(hd_meeting *m, const char *what);
heddle_status hd_meeting_readable(hd_meeting *m, int fd, const char *what);
/* Fails: the file descriptors ran out when `came` ranks had come. */
heddle_status hd_meeting_crowded(const hd_meeting *m, int came);
/* Come to member 0 over the connected socket, be told of everybody. *again: it hung up without a word (it was still
 * busy with an earlier meeting of the same key), or does not know the key. */
heddle_status hd_meeting_visit(hd_meeting *m, int fd, int *again);
/* Somebody has the name that the ranks meet under, at `address`: note who. `fd` is connected to it; -1: it lets nobody
 * in. Returns 1 when it is this user's. */
int hd_meeting_held(hd_meeting *m, int fd, const struct sockaddr_un *address, socklen_t bytes);
heddle_status hd_meet_as_first(hd_meeting *m);

#endif
