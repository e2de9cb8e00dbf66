/* MPI. Its adapter is a library of its own (mpi/), so that nothing else needs MPI; here it is only loaded. */
#include "runtime/comm/transport/transport.h"

heddle_status hd_open_mpi(heddle_comm **out, const heddle_comm_options *options)
{
    return hd_open_module(out, "mpi", options,
                          "build heddle with Open MPI: on Debian, apt-get install libopenmpi-dev openmpi-bin");
}

const hd_transport hd_transport_mpi = {.name = "mpi", .open = hd_open_mpi};
