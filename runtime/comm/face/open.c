/* heddle_comm_open: a transport by its name; heddle_comm_join: processes by a key. */
#include "runtime/comm/transport/transport.h"

static heddle_status open_inner(heddle_comm **out, const char *where, const heddle_comm_options *options)
{
    const hd_transport *transport = hd_transport_find(where);
    if (transport == NULL) {
        return hd_open_module(out, where, options, NULL);
    }
    if (transport->open == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "%s", transport->instead);
    }
    return transport->open(out, options);
}

heddle_status heddle_comm_open(heddle_comm **out, const char *where, const heddle_comm_options *options)
{
    heddle_status st = HEDDLE_OK;
    hd_fault *fault = NULL;
    const char *inner = NULL;
    heddle_comm *comm = NULL;
    HD_TRY(HD_NEED(out, where));
    HD_TRY(hd_fault_parse(&fault, where, &inner));
    HD_TRY(open_inner(&comm, inner, options));
    if (fault != NULL) {
        hd_fault_attach(comm, fault);
        fault = NULL;
    }
    *out = comm;
out:
    hd_fault_destroy(fault);
    return st;
}

heddle_status heddle_comm_join(heddle_comm **out, const char *key, int rank, int size,
                               const heddle_comm_options *options)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, key));
    if (key[0] == 0 || size < 1 || size > HEDDLE_COMM_MAX_RANKS || rank < 0 || rank >= size) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "heddle_comm_join: rank %d of %d, %s key: wanted a rank below the size, at most %d ranks, and a "
                       "key",
                       rank, size, key[0] == 0 ? "an empty" : "a", HEDDLE_COMM_MAX_RANKS);
    }
    HD_TRY(hd_join_shm(out, key, rank, size, options));
out:
    return st;
}
