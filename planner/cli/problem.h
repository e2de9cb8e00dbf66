/* Problems of attention and linear attention, as `heddle verify` and `heddle bench` read them. CLI_OK or CLI_BAD_INPUT
 * (complained). */
#ifndef HD_CLI_PROBLEM_H
#define HD_CLI_PROBLEM_H

#include "options.h"
#include "runtime/verify/attention_check.h"
#include "runtime/verify/linear_check.h"

/* The operand "f32[b=2 s=37 h=6 d=16] on [sp=4]", perhaps ": b@dp,s@sp" behind it (without it the second dim is on
 * every axis), and the options; *ranks: those of its mesh. With --random there is no operand, *ranks are those asked
 * for, or 4, and options that cannot be of every problem are refused. */
int cli_attention_problem(attention_case *out, int *ranks, const cli_arguments *a);
int cli_linear_problem(linear_case *out, int *ranks, const cli_arguments *a);

/* A random problem such as the options ask for, the same on every rank. HEDDLE_ERR_ARG: many were drawn and none is. */
heddle_status cli_attention_draw(attention_case *out, random_source *source, int ranks, const cli_arguments *a);
heddle_status cli_linear_draw(linear_case *out, random_source *source, int ranks, const cli_arguments *a);

#endif
