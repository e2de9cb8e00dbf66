#include "program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the command line --------------------------------------------------------------------------------------------- */

int program_complain(const char *name, const char *option, const char *what, const char *value)
{
    fprintf(stderr, "%s: %s %s%s%s\n", name, option, what, value == NULL ? "" : ", not ", value == NULL ? "" : value);
    return 2;
}

int program_check_transport(const char *name, const char *transport)
{
    return strcmp(transport, "threads") == 0 || strcmp(transport, "shm") == 0 || strcmp(transport, "auto") == 0
               ? 0
               : program_complain(name, "--transport", "is threads, shm or auto", transport);
}

static int take(const char *name, const program_option *o, const char *value)
{
    char wanted[80], *end = NULL;
    if (value == NULL || value[0] == '\0') {
        return program_complain(name, o->name, "wants a value", NULL);
    }
    if (o->text != NULL) {
        *o->text = value;
        return 0;
    }
    errno = 0;
    const double real = o->real != NULL ? strtod(value, &end) : (double)strtoll(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0' || !(real >= o->lo && real <= o->hi)) {
        snprintf(wanted, sizeof(wanted), "wants a %snumber from %.9g to %.9g", o->real != NULL ? "" : "whole ", o->lo,
                 o->hi);
        return program_complain(name, o->name, wanted, value);
    }
    if (o->real != NULL) {
        *o->real = real;
    } else {
        *o->number = (int64_t)real;
    }
    return 0;
}

int program_options(const program *p, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int k = 0;
        if (strcmp(argv[i], "--help") == 0) {
            fputs(p->help, stdout);
            return 1;
        }
        if (argv[i][0] != '-' && p->operand != NULL && *p->operand == NULL) {
            *p->operand = argv[i];
            continue;
        }
        while (k < p->noptions && strcmp(argv[i], p->options[k].name) != 0) {
            k++;
        }
        if (k == p->noptions) {
            return program_complain(p->name, argv[i], "is no option; --help lists them", NULL);
        }
        if (p->options[k].flag != NULL) {
            *p->options[k].flag = 1;
        } else if (take(p->name, &p->options[k], i + 1 < argc ? argv[i + 1] : NULL) != 0) {
            return 2;
        } else {
            i++;
        }
    }
    return 0;
}

/* --- ranks -------------------------------------------------------------------------------------------------------- */

/* As the rank of a launcher that this process is. *is_left 1: where it turns out to be the only one, more are left to
 * the program; 0 on return: they are not. */
static heddle_status run_one(int *is_left, int64_t ranks, const heddle_comm_options *options, heddle_rank_main fn,
                             void *arg)
{
    heddle_comm *comm = NULL;
    heddle_status st = heddle_comm_open(&comm, "auto", options);
    const int size = st == HEDDLE_OK ? heddle_comm_size(comm) : 0;
    *is_left = *is_left && size == 1 && ranks != 1;
    if (st == HEDDLE_OK && size != ranks && !*is_left) {
        st = heddle_set_error(HEDDLE_ERR_ARG, "%d rank%s started, but %lld are wanted", size,
                              size == 1 ? " was" : "s were", (long long)ranks);
    }
    st = st == HEDDLE_OK && !*is_left ? fn(comm, arg) : st;
    heddle_comm_destroy(comm);
    return st;
}

heddle_status program_run(int64_t ranks, const char *transport, const heddle_comm_options *options, heddle_rank_main fn,
                          void *arg)
{
    int rank = 0, size = 1;
    const int is_auto = strcmp(transport, "auto") == 0;
    const char *own = is_auto ? "shm" : transport;
    heddle_status st = is_auto ? heddle_comm_launcher(NULL, &rank, &size) : HEDDLE_OK;
    int is_left = size == 1 || (size == 0 && rank == 0); /* 0: MPI knows */
    if (st == HEDDLE_OK && size != 1) {
        st = run_one(&is_left, ranks, options, fn, arg);
        own = "threads"; /* no processes of one that has called MPI, or a device */
    }
    return st == HEDDLE_OK && is_left ? heddle_run_ranks_with((int)ranks, own, options, fn, arg) : st;
}

/* --- standard output ---------------------------------------------------------------------------------------------- */

heddle_status program_printed(void)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return HEDDLE_OK;
    }
    return heddle_set_error(HEDDLE_ERR_IO, "standard output could not be written%s%s", errno != 0 ? ": " : "",
                            errno != 0 ? strerror(errno) : "");
}

int program_exit(const char *name, int code)
{
    if (code != 0 || program_printed() == HEDDLE_OK) {
        return code;
    }
    fprintf(stderr, "%s: %s\n", name, heddle_last_error());
    return 1;
}
