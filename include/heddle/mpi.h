/* MPI adapter (library libheddle_mpi, CMake target heddle::heddle_mpi). The core library knows nothing of MPI; this one
 * is a transport like any other, written against heddle/sys/transport.h. */
#ifndef HEDDLE_MPI_H
#define HEDDLE_MPI_H

#include <heddle/comm.h>
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A communicator over the ranks of `mpi`, an intra-communicator.
 *
 * `mpi` is borrowed: heddle communicates on two duplicates of it (made here, errors returned instead of fatal), never
 * on `mpi` itself, and never frees it. Collective over the ranks of `mpi`; heddle_comm_destroy is collective too, as
 * MPI_Comm_free is, and must come before MPI_Finalize. Ranks of one host use shared memory among themselves unless
 * options->force_messages; options may be NULL.
 *
 * Threads: every call on the communicator must come from a thread that may call MPI (with MPI_THREAD_FUNNELED, the one
 * that initialised it), one at a time. heddle_comm_abort from any other thread is passed on at the next call of that
 * thread. Any level of thread support will do.
 *
 * HEDDLE_ERR_ARG: MPI is not initialised or already finalised, `mpi` is MPI_COMM_NULL or an inter-communicator.
 * HEDDLE_ERR_TIMEOUT: not all ranks came before options->deadline_ms. HEDDLE_ERR_TRANSPORT: MPI failed, with its words.
 * HEDDLE_ERR_INTERRUPTED, HEDDLE_ERR_PEER, HEDDLE_ERR_NOMEM as for heddle_comm_open.
 * After a time-out or an abort MPI can neither be freed nor finalised without waiting for ranks that are gone:
 * heddle_comm_destroy then leaves both out, and mpirun ends the job when the process exits.
 *
 * heddle_comm_get_peer of a rank that is reached over MPI: link unknown, latency_ns and bytes_per_s 0. MPI does not
 * tell what lies below it, and nothing is measured while opening; heddle/sys/bench.h times whole reshards.
 *
 * heddle_comm_open("mpi", ...) loads this library and takes MPI_COMM_WORLD; if it has to initialise MPI itself, it
 * finalises it on destruction. MPI's own start has no deadline: mpirun ends the job when a rank dies before. */
HEDDLE_CHECKED heddle_status heddle_comm_from_mpi(heddle_comm **out, MPI_Comm mpi, const heddle_comm_options *options);

#ifdef __cplusplus
}
#endif

#endif
