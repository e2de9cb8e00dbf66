/* What the face of communicators asks of the transports. */
#ifndef HD_COMM_TRANSPORT_H
#define HD_COMM_TRANSPORT_H

#include "runtime/comm/comm_private.h"

/* opening; `why` ends the description */
heddle_status hd_open_shm(heddle_comm **out, const heddle_comm_options *options, const char *why);
heddle_status hd_open_self(heddle_comm **out, const heddle_comm_options *options, const char *why);
heddle_status hd_open_module(heddle_comm **out, const char *name, const heddle_comm_options *options);

/* faults */
typedef struct hd_fault hd_fault;
heddle_status hd_fault_parse(hd_fault **out, const char *where, const char **inner); /* *out NULL: no fault(...) */
void hd_fault_destroy(hd_fault *fault);
void hd_fault_attach(heddle_comm *comm, hd_fault *fault); /* takes it over */

#endif
