/* The transport that the launcher's environment asks for. */
#include "runtime/comm/ground/launcher.h"
#include "runtime/comm/transport/transport.h"

#include <stdio.h>
#include <string.h>

static void say_why(heddle_comm *comm, const char *name, const hd_launch *l)
{
    const size_t used = strlen(comm->describe);
    snprintf(comm->describe + used, sizeof comm->describe - used, "; auto chose %s because the environment says %s",
             name, l->says);
}

/* MPI that its launcher did not start is one rank alone: the environment must say the same number. */
static heddle_status open_by_mpi(heddle_comm **out, const hd_launch *l, const heddle_comm_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm *comm = NULL;
    st = hd_open_mpi(&comm, options);
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "auto: the environment says %s, so mpi is needed", l->says);
    }
    if (l->size > 0 && comm->size != l->size) {
        st = hd_fail(HEDDLE_ERR_UNSUPPORTED,
                     "auto: the environment says %s, but MPI found %d rank%s: either the variables are left over from "
                     "another job, or another MPI started this one",
                     l->says, comm->size, comm->size == 1 ? "" : "s");
        goto out;
    }
    say_why(comm, "mpi", l);
    *out = comm;
    comm = NULL;
out:
    heddle_comm_destroy(comm);
    return st;
}

static heddle_status open_by_tcp(heddle_comm **out, const hd_launch *l, const heddle_comm_options *options)
{
    const heddle_status st = hd_open_tcp(out, options);
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "auto: the environment says %s, and %d of the ranks on this host, so tcp is needed",
                              l->says, l->here);
    }
    say_why(*out, "tcp", l);
    return HEDDLE_OK;
}

static heddle_status open_auto(heddle_comm **out, const heddle_comm_options *options)
{
    hd_launch l;
    char why[128];
    heddle_status st = hd_launch_read(&l);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (l.name == NULL) {
        return hd_open_self(out, options, "auto chose self because no launcher's variables are set");
    }
    if (l.by_mpi) {
        return open_by_mpi(out, &l, options);
    }
    if (l.here != l.size) {
        return open_by_tcp(out, &l, options);
    }
    snprintf(why, sizeof why, "auto chose shm because the environment says all %d ranks are on this host", l.size);
    return hd_open_shm(out, options, why);
}

const hd_transport hd_transport_auto = {.name = "auto", .open = open_auto};
