/* A transport: one file of this folder and one line in registry.c. docs/extending.md adds one. */
#ifndef HD_COMM_TRANSPORT_H
#define HD_COMM_TRANSPORT_H

#include "runtime/comm/comm_private.h"

typedef struct hd_run hd_run;

typedef struct hd_transport {
    const char *name;
    /* The communicator this process belongs to. NULL: its ranks cannot be joined, `instead` says what to do. */
    heddle_status (*open)(heddle_comm **out, const heddle_comm_options *options);
    const char *instead;
    /* heddle_run_ranks: start the ranks and wait for them. NULL: somebody else starts them. */
    heddle_status (*run)(hd_run *run);
} hd_transport;

/* NULL: no such transport in this library. */
const hd_transport *hd_transport_find(const char *name);
/* Names for a sentence: "self, threads, shm, ..."; only those that can be opened, or that can start ranks. */
typedef enum hd_transport_list { HD_TRANSPORTS_TO_OPEN, HD_TRANSPORTS_TO_RUN } hd_transport_list;
void hd_transport_names(char *text, size_t bytes, hd_transport_list list);

/* One in a library of its own, libheddle_NAME.so. HEDDLE_ERR_UNSUPPORTED: it cannot be loaded, or it is not there and
 * `build` says how to get it. HEDDLE_ERR_ARG: it is not there and nobody knows it (build is NULL). */
heddle_status hd_open_module(heddle_comm **out, const char *name, const heddle_comm_options *options,
                             const char *build);

/* Those that "auto" chooses among; `why` ends the description. */
heddle_status hd_open_shm(heddle_comm **out, const heddle_comm_options *options, const char *why);
heddle_status hd_join_shm(heddle_comm **out, const char *text, int rank, int size, const heddle_comm_options *options);
heddle_status hd_open_self(heddle_comm **out, const heddle_comm_options *options, const char *why);
heddle_status hd_open_tcp(heddle_comm **out, const heddle_comm_options *options);
heddle_status hd_open_mpi(heddle_comm **out, const heddle_comm_options *options);

/* faults, around any of them */
typedef struct hd_fault hd_fault;
heddle_status hd_fault_parse(hd_fault **out, const char *where, const char **inner); /* *out NULL: no fault(...) */
void hd_fault_destroy(hd_fault *fault);
void hd_fault_attach(heddle_comm *comm, hd_fault *fault); /* takes it over */

#endif
