/* What `heddle verify attention` and `heddle bench attention` read alike. */
#ifndef HD_CLI_ATTENTION_CLI_H
#define HD_CLI_ATTENTION_CLI_H

#include "cli.h"
#include "runtime/verify/attention_check.h"

/* "f32[b=2 s=37 h=6 d=16] on [sp=4]", perhaps ": b@dp,s@sp" behind it; without it the second dim is on every axis. */
heddle_status attention_parse_line(attention_case *out, const char *text);

/* Options that both commands take: --method --kv-heads --causal --zigzag --key-lengths --scale --all-reduce --project.
 * *taken is 1 when `option` is one of them; value may be NULL for those without. */
int attention_take_option(attention_case *out, int *taken, const char *option, const char *value);
/* 1 when `option` stands alone, 0 when it wants a value, -1: unknown. */
int attention_option_kind(const char *option);
/* After everything is read: key lengths against the batch, the problem as a whole. */
int attention_check_options(attention_case *c);
/* What the reference takes on all ranks against what this machine has. */
int attention_check_memory(const attention_case *c);

#endif
