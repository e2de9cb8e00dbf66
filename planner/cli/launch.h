/* Starting ranks for a sub-command, and joining those that a launcher has started. */
#ifndef HD_CLI_LAUNCH_H
#define HD_CLI_LAUNCH_H

#include "cli.h"

/* Name of the launcher whose environment this process runs in ("mpirun", "srun", "torchrun"), or NULL. *rank and *size
 * (either may be NULL) get what its environment says, 0 and 1 without one. */
const char *cli_launcher(int *rank, int *size);

/* 0 on the ranks of a launched job that leave talking to rank 0; 1 everywhere else. cli_usage_error and cli_report ask
 * it, so that an error all ranks find alike is printed once. */
int cli_speaks(void);

/* Is `transport` one of "auto", "threads", "shm", "mpi", "self", perhaps behind "fault(SPEC):"? CLI_OK or CLI_BAD_INPUT
 * (complained). */
int cli_check_transport(const char *transport);

/* Run fn(comm, arg) on the ranks that `transport` means, and return the command's exit code; errors are printed.
 *
 *   "threads", "shm"   starts nranks ranks; inside torchrun "shm" joins the ranks that are there
 *   "mpi"              inside mpirun or srun: joins the ranks that are there; otherwise becomes `mpirun -n nranks` of
 *                      this program with argv (argv[0] is the sub-command's name), standard input closed; then it does
 *                      not return
 *   "self"             this process is the only rank
 *   "auto"             joins the launcher's ranks if there is one, else "threads"
 *
 * nranks 0 means: as many as the launcher started, or 1. A launched job of another size than nranks is bad input, and
 * so is starting ranks in each of a launcher's processes.
 * With threads `arg` is shared, with shm every rank has a copy as of the call, with mpi every rank made its own: only
 * what cli_verdict says, and what ranks print, comes back. options may be NULL. */
int cli_with_ranks(const char *transport, int nranks, int argc, char **argv, const heddle_comm_options *options,
                   heddle_rank_main fn, void *arg);

/* How many ranks cli_with_ranks would run; CLI_OK or CLI_BAD_INPUT (complained: contradicts the launcher). */
int cli_rank_count(int *out, const char *transport, int nranks);

/* 1 when cli_with_ranks would become mpirun: standard input is lost then. */
int cli_will_exec(const char *transport);

/* Called by a rank inside fn: although every rank returns HEDDLE_OK the command exits with `exit_code` (CLI_MISMATCH,
 * say). The largest of all ranks counts. */
void cli_verdict(int exit_code);

#endif
