/* MPI adapter (library libheddle_mpi, CMake target heddle::heddle_mpi). */
#ifndef HEDDLE_MPI_H
#define HEDDLE_MPI_H

#include <heddle/comm.h>
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A communicator over the ranks of `mpi`, which is borrowed and must outlive it (heddle communicates on a duplicate).
 * Collective. Needs MPI initialised with at least MPI_THREAD_FUNNELED. */
HEDDLE_API heddle_status heddle_comm_from_mpi(heddle_comm **out, MPI_Comm mpi, const heddle_comm_options *options);

#ifdef __cplusplus
}
#endif

#endif
