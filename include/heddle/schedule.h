/* A schedule: for every stage the layout the activation is in and the method it runs by, and the reshards between
 * stages with their exact bytes. A plain immutable object; any thread. */
#ifndef HEDDLE_SCHEDULE_H
#define HEDDLE_SCHEDULE_H

#include <heddle/block.h>
#include <heddle/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_schedule heddle_schedule;

typedef struct heddle_schedule_info {
    size_t struct_bytes; /* HEDDLE_EMPTY sets it */
    const char *model;   /* owned by the schedule, like all pointers below */
    heddle_shape shape;
    heddle_mesh mesh;
    int period, repeat;         /* stages of one repetition, repetitions */
    int nstages;                /* period * repeat, in the order they run */
    int nedges;                 /* nstages + 1: edge i leads into stage i, the last one is the epilogue */
    int switches;               /* edges that move bytes, both ends included */
    int64_t bytes_per_rank_max; /* of the forward pass: edges and methods added up */
    int64_t bytes_total;        /* sent by all ranks */
    int64_t backward_bytes_per_rank_max, backward_bytes_total; /* of the backward pass: adjoint edges and methods */
    const char *note;                                          /* one sentence: why this is optimal */
    /* Of a schedule that the planner made or that was saved by it; else NULL and 0. */
    const char *machine, *objective;
    double value; /* of the objective: seconds, bytes */
    /* That no schedule can be below. What is proven without a search, where that is half the value or more; else the
     * value, which is the least of all, as the search is exact. */
    double lower_bound;
    double runner_up;   /* value of the best schedule that differs in a layout or method of some stage */
    double predicted_s; /* of a pass, with a way back the sums of gradients, too; 0 without a machine */
} heddle_schedule_info;

typedef struct heddle_schedule_stage {
    size_t struct_bytes; /* HEDDLE_EMPTY sets it */
    const char *name;    /* "s.attn" ... */
    int repetition;      /* 0.. */
    const char *method;  /* how it runs: "local", or a method of heddle/attention.h or heddle/linear_attention.h */
    heddle_layout layout;
    heddle_stage_kind kind;
    int mixed_dim; /* whole in `layout` when the method is local, else sharded; -1 for token-wise stages */
    /* What the method sends in one forward and one backward call; 0 when local. */
    int64_t forward_bytes_per_rank_max, forward_bytes_total, forward_messages;
    int64_t backward_bytes_per_rank_max, backward_bytes_total, backward_messages;
    int heads;  /* of the attention; 0 where a schedule from a file does not say, then so are the next */
    int causal; /* a token sees itself and those before it */
    int decays; /* LINEAR, 1: some head's decay is not 1 */
    /* What the method's object keeps from forward to backward and holds besides, without the room of the kernels, and
     * the products of one call (heddle_attention_info); of the rank that has most; 0 when local. */
    int64_t saved_bytes, workspace_bytes, forward_flops, backward_flops;
    double predicted_s;  /* of the pass that was planned for; 0 without a machine */
    const char *refusal; /* why no block runs it: it is planned alone (heddle_stage_info); NULL: one does. Static */
} heddle_schedule_stage;

typedef struct heddle_schedule_edge {
    size_t struct_bytes; /* HEDDLE_EMPTY sets it */
    heddle_layout from, to;
    /* "keep"; "split" replicated to sharded, "switch" sharded to sharded, "gather" sharded to replicated (each on all
     * axes that change); "general" any other move; "free" an end that is a free choice: from == to, nothing moves */
    const char *kind;
    int64_t bytes_per_rank_max; /* sent by the busiest rank */
    int64_t bytes_total;        /* sent by all ranks */
    int64_t messages;           /* all ranks; pairs that exchange data */
    /* Received by the rank that receives most. More than bytes_per_rank_max where blocks are uneven one way (a switch
     * and its way back send and receive with these two exchanged), less behind a gather from few ranks. */
    int64_t bytes_received_max;
    double predicted_s; /* as above */
} heddle_schedule_edge;

/* Read a schedule file (docs/formats.md; at most 64 MiB), or the one in what heddle plan --json printed. Nothing in it
 * is taken on trust: bytes and messages are computed anew. The caller owns *out. HEDDLE_ERR_IO: cannot be read.
 * HEDDLE_ERR_PARSE: not of the format or of another version. HEDDLE_ERR_LAYOUT: a layout contradicts shape, mesh or its
 * stage, or the stage's method cannot run in it. HEDDLE_ERR_MISMATCH: numbers or stages that contradict one another.
 * All but the first begin with file:line:column. */
HEDDLE_CHECKED heddle_status heddle_schedule_load(heddle_schedule **out, const char *path);
/* The same from memory; `name` stands for the file in sentences. */
HEDDLE_CHECKED heddle_status heddle_schedule_parse(heddle_schedule **out, const char *text, size_t text_bytes,
                                                   const char *name);
/* JSON. The file is `path` when it is whole, and replaces what is there, whose rights it keeps; a device or a pipe is
 * written to. "-" writes to standard output. HEDDLE_ERR_IO: the file cannot be written; nothing is left behind. */
HEDDLE_CHECKED heddle_status heddle_schedule_save(const heddle_schedule *schedule, const char *path);
HEDDLE_API void heddle_schedule_destroy(heddle_schedule *schedule); /* NULL is legal */
/* HEDDLE_ERR_ARG: NULL argument, index out of range. Pointers live as long as the schedule. */
HEDDLE_CHECKED heddle_status heddle_schedule_get_info(heddle_schedule_info *out, const heddle_schedule *schedule);
HEDDLE_CHECKED heddle_status heddle_schedule_stage_at(heddle_schedule_stage *out, const heddle_schedule *schedule,
                                                      int stage);
HEDDLE_CHECKED heddle_status heddle_schedule_edge_at(heddle_schedule_edge *out, const heddle_schedule *schedule,
                                                     int edge);
/* Index of the stage called `name` in repetition `repetition`, or -1 (NULL too). */
HEDDLE_API int heddle_schedule_find(const heddle_schedule *schedule, const char *name, int repetition);

#ifdef __cplusplus
}
#endif

#endif
