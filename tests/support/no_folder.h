/* A path that nobody has: in a folder made for it and empty. */
#ifndef HD_TEST_NO_FOLDER_H
#define HD_TEST_NO_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* "FOLDER/none/NAME"; FOLDER is made, and goes by hd_no_folder_end. */
static inline void hd_no_folder(char path[128], const char *name)
{
    char folder[] = "/tmp/heddle-test-XXXXXX";
    snprintf(path, 128, "%s/none/%s", mkdtemp(folder) != NULL ? folder : "/dev/null", name);
}

static inline void hd_no_folder_end(char path[128])
{
    path[sizeof "/tmp/heddle-test-XXXXXX" - 1] = '\0';
    rmdir(path);
}

#endif
