/* Counts what MPI is asked to move, from outside: an interposer (libheddle_pmpi_count, preloaded or linked before MPI)
 * that knows nothing of heddle. Bytes are type size times count, kept per communicator name and destination rank.
 *
 * Programs find the functions with dlsym(RTLD_DEFAULT, ...), so that they run without the interposer too. At
 * MPI_Finalize, if PMPI_COUNT_FILE is set, rank R writes PMPI_COUNT_FILE.R: one line "DEST BYTES MESSAGES NAME" for
 * every destination that got something. */
#ifndef PMPI_COUNT_H
#define PMPI_COUNT_H

#include <stdint.h>

/* Forget everything counted so far. */
typedef void pmpi_count_reset_fn(void);
/* bytes[i], messages[i] <- what went to rank i over communicators of this name; -1: no such communicator was used. */
typedef int pmpi_count_read_fn(const char *comm_name, int64_t *bytes, int64_t *messages, int nranks);

#endif
