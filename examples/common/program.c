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

heddle_status program_run(int64_t ranks, const char *transport, const heddle_comm_options *options, heddle_rank_main fn,
                          void *arg)
{
    if (strcmp(transport, "auto") == 0) {
        heddle_comm *comm = NULL;
        heddle_comm_options want;
        heddle_comm_options_init(&want);
        want = options != NULL ? *options : want;
        want.device = NULL; /* devices survive no fork: only who stays opens its own */
        heddle_status st = heddle_comm_open(&comm, "auto", &want);
        const int size = st == HEDDLE_OK ? heddle_comm_size(comm) : 0;
        if (size > 1 && size != ranks) {
            st = heddle_set_error(HEDDLE_ERR_ARG, "%d ranks were started, but %lld are wanted", size, (long long)ranks);
        } else if (size > 1) {
            st = options != NULL && options->device != NULL
                     ? heddle_comm_attach_device(comm, options->device, options->wire)
                     : HEDDLE_OK;
            st = st == HEDDLE_OK ? fn(comm, arg) : st;
        }
        heddle_comm_destroy(comm);
        if (st != HEDDLE_OK || size > 1) {
            return st;
        }
        transport = "shm";
    }
    return heddle_run_ranks_with((int)ranks, transport, options, fn, arg);
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
