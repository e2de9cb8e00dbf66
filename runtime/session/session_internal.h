/* What a session holds. session.c is the life cycle; switch.c is enter and backward; names.c finds stages; buffers.c
 * owns the memory that switches write to; plans.c keeps one reshard per pair of layouts. */
#ifndef HD_SESSION_INTERNAL_H
#define HD_SESSION_INTERNAL_H

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

/* A stage that is about to be entered, or left backward. */
typedef struct hd_session_step {
    hd_session_name *name; /* NULL: "end" */
    int repetition;
    int index;            /* of the stage in the schedule, nstages for "end" */
    heddle_layout target; /* where the activation, or its gradient, shall be */
} hd_session_step;

typedef struct hd_session_plan {
    heddle_layout from, to;
    heddle_reshard *reshard;  /* NULL in a dry run */
    heddle_reshard_info info; /* pointers are the plan's */
    int64_t bytes_planned;    /* this rank sends, from the index algebra alone */
    char *line;               /* the reshard line */
} hd_session_plan;

typedef struct hd_session_buffer {
    void *memory;
    size_t bytes;
    int64_t written_at; /* number of the switch, 0 = never */
} hd_session_buffer;

struct heddle_session {
    heddle_comm *comm;
    const heddle_schedule *schedule;
    heddle_schedule_info info;
    int rank;
    int dry_run;
    heddle_space space; /* of its buffers */
    int backward;       /* plans of both directions are made on creation */
    int last_left;      /* index of the stage that backward left last, nstages when none */
    hd_session_name *names;
    int nnames;
    hd_session_plan *plans;
    int nplans, plans_capacity;
    hd_session_buffer buffer[HD_SESSION_BUFFERS];
    hd_session_buffer staging; /* dense, peer-reachable copy of a caller's tensor */
    size_t largest_bytes;      /* of this rank's part over all layouts of the schedule */
    int64_t switches;          /* over the session's life; numbers the buffers */
    heddle_session_counters counters;
    heddle_session_record *records; /* ring */
    int64_t nrecords;               /* ever made */
};

/* names.c */
heddle_status hd_session_names_make(heddle_session *session);
/* The next repetition of `stage`, counted from the first, or backward from the last; not yet counted as made. */
heddle_status hd_session_find(hd_session_step *out, heddle_session *session, const char *stage, int backward);

/* plans.c */
/* Makes the plan when there is none yet (collective then). The pointer is valid until the next call. */
heddle_status hd_session_plan_get(hd_session_plan **out, heddle_session *session, const heddle_layout *from,
                                  const heddle_layout *to);
/* Every rank's schedule is the same, else HEDDLE_ERR_MISMATCH everywhere. Collective. */
heddle_status hd_session_compare(heddle_session *session);

/* buffers.c */
size_t hd_session_local_bytes(const heddle_session *session, const heddle_layout *layout);
/* Memory to write `bytes` of a switch's result to, which is neither `source` nor a result still promised. */
heddle_status hd_session_result(void **out, heddle_session *session, size_t bytes, const void *source);
/* *out = memory that every peer can read with x's local part dense in the shape's order: x->data itself where that
 * will do, else a copy. */
heddle_status hd_session_source(const void **out, heddle_session *session, const heddle_tensor *x,
                                const heddle_box *box);
heddle_status hd_session_buffer_grow(heddle_session *session, hd_session_buffer *buffer, size_t bytes);
int hd_tensor_is_dense(const heddle_tensor *x, const heddle_box *box);

#endif
