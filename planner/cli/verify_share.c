#include "verify_share.h"

#include "launch.h"
#include "runtime/files/npy.h"

#include <errno.h>
#include <heddle/heddle.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

heddle_status cli_save_array(const char *dir, const char *name, heddle_dtype dtype, const double *data, int ndim,
                             const int64_t *extent)
{
    char path[4096];
    int64_t elems = 1;
    for (int i = 0; i < ndim; i++) {
        elems *= extent[i];
    }
    float *narrow = calloc((size_t)elems + 1, sizeof *narrow);
    if (narrow == NULL) {
        return judge_no_memory(name, (double)elems * sizeof *narrow);
    }
    for (int64_t i = 0; i < elems; i++) {
        narrow[i] = (float)data[i];
    }
    snprintf(path, sizeof path, "%s/%s.npy", dir, name);
    int wide = dtype == HEDDLE_F64;
    int code =
        cli_report_written(npy_write(path, wide ? "<f8" : "<f4", ndim, extent, wide ? (const void *)data : narrow));
    free(narrow);
    if (code != CLI_OK) {
        cli_verdict(code);
    }
    return HEDDLE_OK;
}

/* Every rank that joins later needs the directory; the one that starts them makes it. */
int cli_make_directory(const char *path)
{
    struct stat info;
    if (path == NULL) {
        return CLI_OK;
    }
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        return cli_usage_error("--save: directory '%s' cannot be made: %s", path, strerror(errno));
    }
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        return cli_usage_error("--save: '%s' is not a directory", path);
    }
    return CLI_OK;
}

void cli_print_worst(const judge_error *worst, int count)
{
    for (int dtype = 0; dtype < HEDDLE_DTYPE_COUNT; dtype++, worst += count) {
        char text[1024];
        if (worst->name != NULL) {
            judge_list(text, sizeof text, worst, count);
            printf("%s, errors in roundings: %s\n", heddle_dtype_name((heddle_dtype)dtype), text);
        }
    }
    fflush(stdout);
}

heddle_status cli_first_problem(int *failed, heddle_comm *comm, const char *which, const char *problem)
{
    int speaks = 0;
    heddle_status st = judge_first_problem(failed, &speaks, comm, problem[0] != '\0');
    if (speaks) {
        cli_say("mismatch%s", which);
        cli_say("%s", problem);
    }
    return st;
}
