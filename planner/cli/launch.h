/* Starting ranks for a sub-command, and joining those that a launcher has started. */
#ifndef HD_CLI_LAUNCH_H
#define HD_CLI_LAUNCH_H

#include "cli.h"

/* Before anything else, by main: what the launcher's environment says. has_ranks 0: it is not asked, this process is
 * alone. */
void cli_read_job(int has_ranks);

/* Name of the launcher that started this process ("mpirun", "srun", "torchrun", "heddle"), or NULL. *rank and *size
 * (either may be NULL) get what its environment says, 0 and 1 without one, or where it contradicts itself
 * (cli_rank_count complains of that); size 0: only MPI knows. */
const char *cli_launcher(int *rank, int *size);

/* How many ranks may write to the same standard error: 1 for a process that is alone, else the job's ranks, 0 when
 * their number is not known. *rank is -1 where the environment contradicts itself. */
int cli_job_ranks(int *rank);

/* The front of what this process has to say, "rank 2: " or empty, to `own`, and what follows it; NULL: another rank of
 * the job has just said it. */
const char *cli_own_say(char *own, size_t own_bytes, const char *sentence);

/* At the end of main: a rank that complained stays a moment, so that the others of its job see that it has been said.
 */
void cli_linger(void);

/* 0 on the ranks of a launched job but rank 0, 1 everywhere else: what is no error is told by one. */
int cli_speaks(void);

#define CLI_TRANSPORT_LIST(X) X("threads") X("shm") X("tcp") X("mpi") X("self") X("auto")
#define CLI_TRANSPORT_WORD(name) " " name
#define CLI_TRANSPORTS CLI_TRANSPORT_LIST(CLI_TRANSPORT_WORD) /* " threads shm ..." */

/* Is `transport` one of the list, or, when a launcher started this process, the name of
 * a plug-in; perhaps behind "fault(SPEC):"? CLI_OK or CLI_BAD_INPUT (complained). */
int cli_check_transport(const char *transport);

/* Run fn(comm, arg) on the ranks that --transport means, with --messages, --hosts, --deadline, --arena, --threads,
 * --device and --wire for each, and return the command's exit code; errors are printed.
 *
 *   "threads", "shm", "tcp"
 *                      starts nranks ranks; inside torchrun (or with HEDDLE_RANK, ...) "shm" and "tcp" join the ranks
 *                      that are there
 *   "mpi"              inside mpirun or srun: joins the ranks that are there; otherwise becomes `mpirun -n nranks` of
 *                      this program with argv (argv[0] is the sub-command's name), standard input closed; then it does
 *                      not return
 *   "self"             this process is the only rank
 *   "auto"             joins the launcher's ranks if there is one, else "threads"
 *
 * nranks 0 means: as many as the launcher started, or 1. A launched job of another size than nranks is bad input, and
 * so is starting ranks in each of a launcher's processes.
 * With threads `arg` is shared, with shm every rank has a copy as of the call, with mpi every rank made its own: only
 * what cli_verdict says, and what ranks print, comes back. */
int cli_with_ranks(const cli_arguments *a, int nranks, heddle_rank_main fn, void *arg);

/* How many ranks cli_with_ranks would run; CLI_OK or CLI_BAD_INPUT (complained: contradicts the launcher). */
int cli_rank_count(int *out, const char *transport, int nranks);

/* 1 when cli_with_ranks would become mpirun: standard input is lost then. */
int cli_will_exec(const char *transport);

/* Called by a rank inside fn: although every rank returns HEDDLE_OK the command exits with `exit_code` (CLI_MISMATCH,
 * say). The largest of all ranks counts. */
void cli_verdict(int exit_code);

#endif
