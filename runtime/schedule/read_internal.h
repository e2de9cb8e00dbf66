/* Shared by the two files that read a schedule: the frame and the edges, and the stages. */
#ifndef HD_SCHEDULE_READ_H
#define HD_SCHEDULE_READ_H

#include "runtime/document/node.h"
#include "runtime/schedule/schedule_internal.h"

enum { STAGES_MAX = 1 << 16 };

/* A text form inside the file: its own sentence gets the place in front. */
heddle_status hd_read_at(heddle_status st, const hd_node *node);
/* The index of the layout that `node` says in the schedule's table. */
heddle_status hd_read_layout(int *out, heddle_schedule *s, const hd_node *node, const char *what);
/* A number of the file against the computed one; NULL: the file does not say it. */
heddle_status hd_read_check(const hd_node *node, int64_t computed, const char *what);
/* What the planner predicted: a number of at least 0, kept as it is; NULL: *out stays. */
heddle_status hd_read_number(double *out, const hd_node *node, const char *what);
heddle_status hd_read_stage(heddle_schedule *s, const hd_node *node, int index);
/* Every stage of a repetition has a name of its own. */
heddle_status hd_read_check_names(const heddle_schedule *s, const hd_node *stages);

#endif
