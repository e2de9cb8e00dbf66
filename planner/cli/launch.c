#include "launch.h"

#include "options.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_RANKS = 4096 };

/* Shared with forked ranks; the page outlives every rank. */
static int *verdict;

/* What the launcher's environment says, read once. */
static struct {
    heddle_status status;
    const char *launcher; /* NULL: none */
    int rank, size;
    char why[512]; /* status != HEDDLE_OK */
} job = {.size = 1};

void cli_read_job(int has_ranks)
{
    if (!has_ranks) {
        return;
    }
    job.status = heddle_comm_launcher(&job.launcher, &job.rank, &job.size);
    if (job.status != HEDDLE_OK) {
        snprintf(job.why, sizeof(job.why), "%s", heddle_last_error());
    }
}

const char *cli_launcher(int *rank, int *size)
{
    if (rank != NULL) {
        *rank = job.rank;
    }
    if (size != NULL) {
        *size = job.size;
    }
    return job.launcher;
}

int cli_job_ranks(int *rank)
{
    *rank = job.status == HEDDLE_OK ? job.rank : -1;
    return job.status == HEDDLE_OK ? job.size : 0;
}

int cli_speaks(void)
{
    return job.rank == 0;
}

static heddle_comm_options comm_options(const cli_arguments *a)
{
    heddle_comm_options out;
    heddle_comm_options_init(&out);
    out.force_messages = a->messages;
    out.pretend_hosts = (int)a->hosts;
    out.deadline_ms = a->deadline_s > 0 ? a->deadline_s * 1000 : out.deadline_ms;
    out.arena_bytes = a->arena_bytes;
    out.device = a->device;
    out.wire = (heddle_wire)cli_choice(a->wire);
    if (a->command->bit == CLI_RUN && a->threads > 1) {
        out.bind = HEDDLE_BIND_NONE; /* a rank bound to one core would keep its threads there */
    }
    return out;
}

/* Do the launcher's ranks find one another through MPI? */
static int by_mpi(const char *launcher)
{
    return strcmp(launcher, "torchrun") != 0 && strcmp(launcher, "heddle") != 0;
}

/* The transport without "fault(SPEC):" in front, NULL if that is malformed. */
static const char *plain_transport(const char *transport)
{
    if (strncmp(transport, "fault(", 6) != 0) {
        return transport;
    }
    const char *end = strstr(transport, "):");
    return end == NULL ? NULL : end + 2;
}

static int is_known(const char *plain)
{
#define ENTRY(name) name,
    static const char *const known[] = {CLI_TRANSPORT_LIST(ENTRY)};
#undef ENTRY
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(plain, known[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

/* The ranks of a plug-in are started by others: without a launcher a name is a wrong one. */
int cli_check_transport(const char *transport)
{
    const char *plain = plain_transport(transport);
    if (plain != NULL && (is_known(plain) || cli_launcher(NULL, NULL) != NULL)) {
        return CLI_OK;
    }
    return cli_usage_error("unknown transport '%s' (known:" CLI_TRANSPORTS
                           "; for ranks that a launcher started a plug-in, too)",
                           transport);
}

static int transport_is(const char *transport, const char *name)
{
    const char *plain = plain_transport(transport);
    return plain != NULL && strcmp(plain, name) == 0;
}

/* Do the ranks come from the launcher's job? */
static int joins(const char *transport)
{
    const char *name = cli_launcher(NULL, NULL);
    if (name == NULL) {
        return 0;
    }
    return transport_is(transport, "auto") || transport_is(transport, by_mpi(name) ? "mpi" : "shm") ||
           (transport_is(transport, "tcp") && !by_mpi(name)) || !is_known(plain_transport(transport));
}

int cli_will_exec(const char *transport)
{
    return transport_is(transport, "mpi") && !joins(transport);
}

int cli_rank_count(int *out, const char *transport, int nranks)
{
    int launched = 1;
    const char *name = cli_launcher(NULL, &launched);
    if (transport_is(transport, "self")) {
        launched = 1;
        name = "--transport self";
    } else if (job.status != HEDDLE_OK) {
        return cli_usage_error("%s", job.why);
    } else if (!joins(transport)) {
        if (launched != 1 && !transport_is(transport, "mpi")) {
            return cli_usage_error("--transport %s starts ranks of its own, but this is one of %d processes of %s; "
                                   "--transport auto joins them",
                                   transport, launched, name);
        }
        *out = nranks == 0 ? 1 : nranks;
        return CLI_OK;
    }
    if (launched == 0) { /* only MPI knows */
        *out = nranks;
        return nranks != 0 ? CLI_OK
                           : cli_usage_error("%s does not say how many ranks it runs: --ranks is needed", name);
    }
    if (nranks != 0 && nranks != launched) {
        return cli_usage_error("%d ranks were asked for, but %s runs %d", nranks, name, launched);
    }
    *out = launched;
    return CLI_OK;
}

void cli_verdict(int exit_code)
{
    int seen = verdict == NULL ? exit_code : __atomic_load_n(verdict, __ATOMIC_RELAXED);
    while (seen < exit_code &&
           !__atomic_compare_exchange_n(verdict, &seen, exit_code, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

/* Replace this process by mpirun of itself. Returns only when that fails. */
static int become_mpirun(int nranks, const cli_arguments *a)
{
    char self[PATH_MAX], count[16];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length < 0) {
        return cli_usage_error("cannot find this program again in order to start mpirun: %s", strerror(errno));
    }
    self[length] = '\0';
    snprintf(count, sizeof(count), "%d", nranks);
    const char *const front[] = {
        "mpirun", "--quiet", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-n", count, self};
    const int nfront = (int)(sizeof(front) / sizeof(front[0]));
    char **all = calloc((size_t)(nfront + a->argc + 1), sizeof(*all));
    if (all == NULL) {
        cli_say("no memory to start mpirun");
        return CLI_FAILED;
    }
    for (int i = 0; i < nfront; i++) {
        all[i] = (char *)front[i];
    }
    memcpy(all + nfront, a->argv, (size_t)a->argc * sizeof(*all));
    /* the ranks are mpirun's alone */
    static const char *const others[] = {"HEDDLE_RANK", "HEDDLE_SIZE",      "HEDDLE_KEY",         "RANK",
                                         "WORLD_SIZE",  "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        unsetenv(others[i]);
    }
    /* A rank says at its end that it ended well, and waits 2 s for an answer: an mpirun that comes to hear that later
     * than the end itself would take a right run for a failed one. What a rank returns counts as before. */
    setenv("OMPI_MCA_orte_allowed_exit_without_sync", "1", 0);
    int closed = open("/dev/null", O_RDONLY);
    if (closed >= 0) {
        dup2(closed, STDIN_FILENO);
        close(closed);
    }
    fflush(NULL);
    execvp("mpirun", all);
    int code = cli_usage_error("cannot start mpirun: %s (Debian: apt-get install openmpi-bin libopenmpi-dev; "
                               "or use --transport shm)",
                               strerror(errno));
    free(all);
    return code;
}

typedef struct rank_call {
    heddle_rank_main fn;
    void *arg;
} rank_call;

/* A rank that is a process has a standard output of its own, so whether it arrived is asked here. */
static heddle_status call_rank(heddle_comm *comm, void *arg)
{
    const rank_call *call = arg;
    heddle_status st = call->fn(comm, call->arg);
    if (heddle_comm_rank(comm) == 0) {
        cli_verdict(cli_printed(CLI_OK));
    }
    return st;
}

/* --messages and --hosts mean something only where ranks can send messages. */
static int check_messages(const cli_arguments *a)
{
    const char *found = joins(a->transport) ? cli_launcher(NULL, NULL) : NULL;
    if ((!a->messages && a->hosts == 0) || cli_will_exec(a->transport) || (found != NULL && by_mpi(found)) ||
        !is_known(plain_transport(a->transport)) || transport_is(a->transport, "tcp")) {
        return CLI_OK;
    }
    return cli_usage_error("%s needs --transport tcp or mpi, ranks of %s do not send messages",
                           a->messages ? "--messages" : "--hosts", a->transport);
}

/* The exit code of ranks that could not start or failed: a machine without the device is no fault of the caller's. */
static int report_ranks(heddle_status st, const heddle_comm_options *options)
{
    const int code = cli_report(st);
    return st == HEDDLE_ERR_UNSUPPORTED && options->device != NULL ? CLI_NO_DEVICE : code;
}

/* A rank of a launcher's job, or the only one. */
static int join_ranks(const char *transport, int nranks, const heddle_comm_options *options, heddle_rank_main fn,
                      void *arg)
{
    heddle_comm *comm = NULL;
    heddle_status st = heddle_comm_open(&comm, transport, options);
    if (st != HEDDLE_OK) {
        return report_ranks(st, options);
    }
    int code = CLI_OK;
    if (heddle_comm_size(comm) != nranks) {
        code = cli_usage_error("%d ranks were asked for, or started by %s, but %d came together: are variables of "
                               "another job left in the environment?",
                               nranks, job.launcher != NULL ? job.launcher : "this process", heddle_comm_size(comm));
        heddle_ignore(heddle_comm_abort(comm, "the number of ranks is not the one asked for"));
    } else if ((st = fn(comm, arg)) != HEDDLE_OK) {
        code = cli_report(st);
        heddle_ignore(heddle_comm_abort(comm, heddle_last_error()));
    }
    heddle_comm_destroy(comm);
    return code;
}

int cli_with_ranks(const cli_arguments *a, int nranks, heddle_rank_main fn, void *arg)
{
    const char *transport = a->transport;
    int code = cli_rank_count(&nranks, transport, nranks);
    if (code == CLI_OK && (nranks < 1 || nranks > MAX_RANKS)) {
        code = cli_usage_error("the number of ranks must be 1 to %d, not %d", (int)MAX_RANKS, nranks);
    }
    if (code == CLI_OK) {
        code = check_messages(a);
    }
    if (code == CLI_OK && a->device == NULL && a->wire > CLI_FIRST) {
        code = cli_usage_error("--wire is how bytes go between devices: --device is needed");
    }
    if (code == CLI_OK && a->device == NULL && a->blocks > CLI_FIRST) {
        code = cli_usage_error("--blocks is where the blocks of --device compute: --device is needed");
    }
    if (code == CLI_OK && a->device == NULL && a->fused > CLI_FIRST) {
        code = cli_usage_error("--fused is of stages and switches on a --device, which is needed");
    }
    if (code != CLI_OK) {
        return code;
    }
    if (cli_will_exec(transport)) {
        return become_mpirun(nranks, a);
    }
    if (verdict == NULL) {
        void *page = mmap(NULL, sizeof(*verdict), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) {
            cli_say("no memory for %zu bytes shared by the ranks: %s", sizeof(*verdict), strerror(errno));
            return CLI_FAILED;
        }
        verdict = page;
    }
    *verdict = CLI_OK;
    const heddle_comm_options chosen = comm_options(a);
    rank_call call = {.fn = fn, .arg = arg};
    if (joins(transport) || transport_is(transport, "self")) {
        code = join_ranks(transport, nranks, &chosen, call_rank, &call);
    } else {
        char start[512];
        const int is_auto = transport_is(transport, "auto");
        const int prefix = is_auto ? (int)(plain_transport(transport) - transport) : (int)strlen(transport);
        snprintf(start, sizeof(start), "%.*s%s", prefix, transport, is_auto ? "threads" : "");
        code = report_ranks(heddle_run_ranks_with(nranks, start, &chosen, call_rank, &call), &chosen);
    }
    return code != CLI_OK ? code : *verdict;
}
