/* Files that the command line writes: whole or not at all. */
#ifndef HD_CLI_OUTPUT_H
#define HD_CLI_OUTPUT_H

#include "cli.h"

#include <limits.h>

/* A file is written under another name beside its own, and renamed when it is whole: whoever reads it never sees a
 * part, and what was there before stays if the disk is full. Devices and pipes are written to as they are. */
typedef struct cli_output {
    FILE *file;
    const char *path;         /* as asked for, in sentences; borrowed */
    char target[PATH_MAX];    /* behind symbolic links */
    char temporary[PATH_MAX]; /* "": the target is written itself */
} cli_output;

/* CLI_OK, or CLI_BAD_INPUT (complained) and nothing to close. */
int cli_output_open(cli_output *out, const char *path);
/* `code`: how the writing went. CLI_OK, or that code, or CLI_FAILED (complained) when the bytes did not arrive; there
 * is no file then. */
int cli_output_close(cli_output *out, int code);
/* Before hours of computing: can the file be written at all? CLI_OK or CLI_BAD_INPUT (complained). */
int cli_output_check(const char *path);

#endif
