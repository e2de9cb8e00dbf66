/* Where the winner of a sweep changes. */
#ifndef HD_CLI_CROSSOVER_H
#define HD_CLI_CROSSOVER_H

#include <heddle/heddle.h>

typedef enum cli_crossover { CROSSOVER_NONE, CROSSOVER_AXES, CROSSOVER_STAGES } cli_crossover;

/* What one plan does otherwise than the one before it, both of one model, whatever its extents: its mesh has other
 * axes, their sizes aside, or else stages run by other methods or in other layouts. `change` names it, "t.attn by ring
 * instead of ulysses"; "" without one. */
cli_crossover cli_find_crossover(char *change, size_t change_bytes, const heddle_schedule *before,
                                 const heddle_schedule *after);

#endif
