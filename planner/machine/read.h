/* Shared by the two files that read a machine: the frame (levels) and the figures. */
#ifndef HD_MACHINE_READ_H
#define HD_MACHINE_READ_H

#include "planner/machine/machine.h"

extern const char *const hd_work_names[HD_WORKS], *const hd_exchange_names[HD_EXCHANGES];

/* Letters and digits, and behind the first . _ + - too. */
int hd_machine_is_name(const char *text);
/* A decimal number within low and high. HEDDLE_ERR_PARSE: no number; HEDDLE_ERR_LAYOUT: out of range. */
heddle_status hd_machine_number(double *out, const hd_node *node, double low, double high, const char *what);
/* The values of 'work' and 'links'. */
heddle_status hd_machine_read_work(heddle_machine *machine, const hd_node *node);
heddle_status hd_machine_read_links(heddle_machine *machine, const hd_node *node);

#endif
