/* What a session holds. session.c is the life cycle; switch.c is enter and backward; names.c finds stages; edges.c
 * keeps one reshard per pair of layouts; buffers.c owns the memory that switches write to; same.c compares the ranks.
 */
#ifndef HD_SESSION_INTERNAL_H
#define HD_SESSION_INTERNAL_H

#include "runtime/move/copy.h"
#include <heddle/reshard.h>
#include <heddle/session.h>

enum {
    HD_SESSION_RECORDS = 4096,
    HD_SESSION_BUFFERS = 3 /* two live results and one to write, see buffers.c */
};

typedef struct hd_session_name {
    const char *name; /* the schedule's */
    int repetitions;  /* in the schedule */
    int entered;      /* in this pass */
    int left;         /* in this pass's backward */
} hd_session_name;

/* This rank's part of the activation in one layout. */
typedef struct hd_session_side {
    heddle_layout layout;
    heddle_box box;
    int64_t stride_elems[HEDDLE_MAX_DIMS]; /* dense, in the shape's order */
    int64_t elems;
    size_t bytes;
} hd_session_side;

/* Between an array of the caller's with these strides and a dense one of the same part. */
typedef struct hd_session_copy {
    int is_made;
    int64_t stride_elems[HEDDLE_MAX_DIMS];
    hd_copy copy;
    hd_copy_by by;
} hd_session_copy;

/* Two layouts, and what moves between them. */
typedef struct hd_session_edge {
    hd_session_side from, to;
    hd_session_copy in, out; /* of the last arrays that had to be copied */
    int keeps;               /* equal layouts: nothing moves, and all below is empty */
    heddle_reshard *reshard; /* NULL in a dry run */
    const char *path;        /* of the reshard */
    int64_t bytes_messages;
    int64_t bytes_planned; /* this rank sends, from the index algebra alone */
    char *line;            /* the reshard line */
} hd_session_edge;

enum { HD_FORWARD, HD_BACKWARD, HD_DIRECTIONS };

/* A stage of the schedule; the last one is "end". */
typedef struct hd_session_stage {
    const char *name;
    int repetition;
    hd_session_name *counter;             /* NULL: "end", which is not counted */
    hd_session_edge *edge[HD_DIRECTIONS]; /* taken last; at first from where the schedule comes. NULL: not made yet */
    heddle_layout target[HD_DIRECTIONS];  /* where the activation, or its gradient, shall be */
} hd_session_stage;

typedef struct hd_session_buffer {
    void *memory;
    size_t bytes;
    int64_t written_at; /* number of the switch, 0 = never */
} hd_session_buffer;

struct heddle_session {
    heddle_comm *comm;
    const heddle_schedule *schedule;
    heddle_schedule_info info;
    size_t elem_bytes; /* of its dtype */
    int rank;
    int dry_run;
    heddle_space space; /* of its buffers */
    int device;         /* of that space */
    int backward;       /* plans of both directions are made on creation */
    int last_left;      /* index of the stage that backward left last, nstages when none */
    hd_session_name *names;
    int nnames;
    hd_session_stage *stages; /* [nstages + 1] */
    int next[HD_DIRECTIONS];  /* index that follows the stage entered last; what comes before the one left last */
    hd_session_edge **edges;
    int nedges, edges_capacity;
    int any_memory; /* peers reach all memory of this rank, or read none */
    hd_session_buffer buffer[HD_SESSION_BUFFERS];
    hd_session_buffer source;  /* dense, peer-reachable copy of a caller's tensor */
    hd_session_buffer landing; /* where a result lies before it is copied to a tensor that peers cannot write */
    void **outgrown;           /* of a device: buffers that were too small */
    int noutgrown, outgrown_capacity;
    size_t largest_bytes; /* of this rank's part over all layouts of the schedule */
    int64_t switches;     /* over the session's life; numbers the buffers */
    heddle_session_counters counters;
    heddle_session_record *records; /* ring */
    int64_t nrecords;               /* ever made */
};

/* names.c */
heddle_status hd_session_stages_make(heddle_session *session);
/* The next repetition of `stage`, counted from the first, or backward from the last; not yet counted as made. */
heddle_status hd_session_find(hd_session_stage **out, heddle_session *session, const char *stage, int direction);

/* edges.c */
/* Makes the edge when there is none yet (collective then, unless the layouts are equal). It stays where it is. */
heddle_status hd_session_edge_get(hd_session_edge **out, heddle_session *session, const heddle_layout *from,
                                  const heddle_layout *to);
void hd_session_edges_free(heddle_session *session);
/* This rank's part of `layout`. */
heddle_status hd_session_side_make(hd_session_side *out, const heddle_session *session, const heddle_layout *layout);

/* same.c */
/* Every rank's schedule and options are the same, else HEDDLE_ERR_MISMATCH everywhere; mine: the status of what this
 * rank has done so far. Collective. */
heddle_status hd_session_compare(const heddle_session *session, heddle_comm *comm, heddle_status mine);

/* buffers.c */
/* Memory to write a switch's result to: dst's own where dst is dense and peers can reach it; without dst a buffer that
 * is neither `source` nor a result still promised. */
heddle_status hd_session_result(void **out, heddle_session *session, const hd_session_side *to,
                                const heddle_tensor *dst, const void *source);
/* Peers reach x's memory, where this rank's part of `side` lies dense: a switch reads it, or writes it, there. */
int hd_session_is_direct(const heddle_session *session, const heddle_tensor *x, const hd_session_side *side);
/* Copies a result that could not be written to dst directly; nothing otherwise. */
heddle_status hd_session_deliver(const heddle_session *session, hd_session_edge *edge, const heddle_tensor *dst,
                                 const void *result, heddle_stream stream);
/* *out = memory that every peer can read with x's local part dense in the shape's order: x->data itself where that
 * will do, else a copy. */
heddle_status hd_session_source(const void **out, heddle_session *session, const heddle_tensor *x,
                                hd_session_edge *edge, heddle_stream stream);
heddle_status hd_session_buffer_grow(heddle_session *session, hd_session_buffer *buffer, size_t bytes);

#endif
