/* --method STAGE=METHOD[,...], given any number of times. */
#ifndef HD_CLI_METHODS_H
#define HD_CLI_METHODS_H

#include "cli.h"

enum { CLI_METHODS_BYTES = 4096 };

/* Appends `value` to the list in `methods` (CLI_METHODS_BYTES, "" at first); later entries win. CLI_OK or CLI_BAD_INPUT
 * (complained). */
int cli_add_methods(char *methods, const char *value);

#endif
