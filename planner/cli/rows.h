/* Plans side by side: what compare and sweep put into a row, and how rows are printed. */
#ifndef HD_CLI_ROWS_H
#define HD_CLI_ROWS_H

#include "ask.h"
#include "crossover.h"

enum { ROW_NAME_BYTES = 64 };

typedef struct plan_row {
    char name[ROW_NAME_BYTES];
    char mesh[256];
    char refusal[1024]; /* "": there is a plan */
    char size[96];      /* of a sweep */
    char change[512];   /* likewise: what its plan does otherwise than that of the row before */
    cli_crossover crossover;
    int ranks, nlinks;
    int is_too_large;                                /* for the memory of the machine's ranks */
    heddle_forecast_link link[HEDDLE_MACHINE_LINKS]; /* names are those of the machine */
    int64_t sent_max, total, memory_bytes;
    double value, time_s, compute_s;
} plan_row;

/* Of the plan by these options, with its name; HEDDLE_OK also where the row says why there is none: infeasible, or too
 * much for the search. */
heddle_status cli_row_of(plan_row *out, const cli_question *q, const heddle_plan_options *options, const char *name);
/* With the plan, which the caller destroys; NULL: there is none. */
heddle_status cli_row_and_plan(plan_row *out, heddle_schedule **plan, const cli_question *q,
                               const heddle_plan_options *options, const char *name);
/* Megatron's tensor parallelism: weights and work of every attention and every MLP are split evenly over the ranks.
 * SP gathers the rows before each and reduce-scatters behind it; TP (is_tp) holds all rows everywhere, and all-reduces
 * behind each. `even`: a row whose work is split evenly. */
heddle_status cli_row_of_megatron(plan_row *out, const cli_question *q, const plan_row *even, int is_tp);
/* Says whether the machine's ranks have the memory. */
void cli_row_weigh(plan_row *row, const cli_question *q);
/* Its memory for a column of 9, with a star where a rank of the machine has less; and what the star says, once. */
const char *cli_row_memory(char *out, size_t out_bytes, const plan_row *row);
void cli_say_too_large(const cli_question *q, const plan_row *rows, int nrows);
/* The same as a value of JSON; null: it is not known what there is, or what is needed. */
const char *cli_row_fits(const cli_question *q, const plan_row *row);
/* `text` as a CSV cell. */
void cli_print_cell(const char *text);

#endif
