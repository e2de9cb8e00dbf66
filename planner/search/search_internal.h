/* The search's state, shared by the walk over the stages and the rules of what a stage admits. */
#ifndef HD_SEARCH_INTERNAL_H
#define HD_SEARCH_INTERNAL_H

#include "planner/model/model.h"
#include "runtime/schedule/schedule_internal.h"

/* Compared in this order. */
typedef struct hd_search_cost {
    int64_t bytes_per_rank_max, bytes_total, methods, switches, elems; /* methods: stages that are not local */
} hd_search_cost;

/* A stage in a layout: the cheapest method it may run by there, and what that sends. */
typedef struct hd_search_node {
    const hd_method *method; /* NULL: the stage does not admit the layout */
    int64_t bytes_per_rank_max, bytes_total;
} hd_search_node;

typedef struct hd_search {
    const heddle_model *m;
    heddle_mesh mesh;
    int slack_percent, max_waste_percent;
    int backward;                /* bytes of the backward pass count too */
    int nstates;                 /* layouts that stages may be in */
    int nlayouts;                /* those, then the prologue's and the epilogue's */
    heddle_layout *layout;       /* [HD_SEARCH_STATES + 2] */
    int prologue, epilogue;      /* indices in layout, -1: free */
    int64_t *elems;              /* [nstates] in the largest box */
    hd_method_stage *mixes;      /* [period] */
    const hd_method **wanted;    /* [period] NULL: whatever is cheapest */
    hd_search_node *node;        /* [period][nstates] */
    hd_edge_cost *edge;          /* [nlayouts][nlayouts], messages -1: not known yet */
    hd_search_cost *here, *next; /* [nstates] cost to go */
    int16_t *choice;             /* [stages][nstates] the state of the following stage */
} hd_search;

enum { HD_SEARCH_STATES = 1296 };

/* admit.c */
/* Fills mixes and wanted from "STAGE=METHOD,...". */
heddle_status hd_search_methods(hd_search *search, const char *methods);
/* Fills node: which layouts a stage admits, and by which method. */
heddle_status hd_search_admit(hd_search *search);

/* write_down.c: the schedule that begins in state `first` and follows `choice`. */
heddle_status hd_search_write_down(heddle_schedule **out, hd_search *search, int first);

#endif
