/* Files that are written whole or not at all. */
#ifndef HD_FILES_OUTPUT_H
#define HD_FILES_OUTPUT_H

#include <heddle/status.h>
#include <limits.h>
#include <stdio.h>

/* A file is written without a name, or, on a file system that cannot, under another one beside its own, and gets its
 * name when it is whole: whoever reads it never sees a part, and what was there before stays if the disk is full. A
 * file without a name goes with a program that is killed. Devices and pipes are written to as they are. */
typedef struct file_output {
    FILE *file;
    const char *path;         /* as asked for, in sentences; borrowed */
    char target[PATH_MAX];    /* behind symbolic links */
    char temporary[PATH_MAX]; /* its name until it is whole; "": the target is written itself */
    int is_nameless;          /* `temporary` is no file yet */
} file_output;

/* HEDDLE_ERR_ARG: no file can be written there; nothing to close. */
heddle_status file_output_open(file_output *out, const char *path);
/* `st`: how the writing went. That, or HEDDLE_ERR_IO when the bytes did not arrive; there is no file then. */
heddle_status file_output_close(file_output *out, heddle_status st);
/* Before hours of computing: can the file be written at all? Else HEDDLE_ERR_ARG. */
heddle_status file_output_check(const char *path);

#endif
