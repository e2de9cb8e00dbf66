/* heddle calibrate: times of operations, and the machine that they make. */
#include "launch.h"
#include "options.h"
#include "planner/report/calibrate.h"
#include "runtime/files/output.h"
#include "runtime/verify/samples.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { NOISY_PERCENT = 10, CORELESS_PERCENT = 3 };

typedef struct request {
    const cli_arguments *options;
    char file[PATH_MAX];
    heddle_host_info host;
    int cores; /* that this process may use; 0: not known */
} request;

/* --- where it goes ------------------------------------------------------------------------------------------------ */

/* --output, else the file that the planner looks for. */
static int choose_file(request *r)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    int length = 0;
    if (r->options->output != NULL) {
        length = snprintf(r->file, sizeof r->file, "%s", r->options->output);
    } else if (config != NULL && config[0] != '\0') {
        length = snprintf(r->file, sizeof r->file, "%s/heddle/machine.yaml", config);
    } else if (home != NULL && home[0] != '\0') {
        length = snprintf(r->file, sizeof r->file, "%s/.config/heddle/machine.yaml", home);
    } else {
        return cli_usage_error("neither XDG_CONFIG_HOME nor HOME says where the machine goes: --output FILE is needed");
    }
    return length < (int)sizeof r->file ? CLI_OK : cli_usage_error("the file's name has %d bytes", length);
}

/* The folders of the default file. */
static int make_folders(char *file)
{
    for (char *slash = strchr(file + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        const int failed = mkdir(file, 0777) != 0 && errno != EEXIST, why = errno;
        if (failed) {
            const int code =
                cli_usage_error("cannot make the folder %s: %s (--output FILE writes elsewhere)", file, strerror(why));
            *slash = '/';
            return code;
        }
        *slash = '/';
    }
    return CLI_OK;
}

/* Before a minute of measuring. */
static int check_file(request *r)
{
    int code = choose_file(r);
    if (code == CLI_OK && cli_speaks() && strcmp(r->file, "-") != 0) {
        code = r->options->output == NULL ? make_folders(r->file) : CLI_OK;
        code = code == CLI_OK ? cli_report(file_output_check(r->file)) : code;
    }
    return code;
}

/* --- on the ranks ------------------------------------------------------------------------------------------------- */

/* On a terminal over the one before, elsewhere a line now and then. */
static void show_sample(const calibrate_sample *sample, int done, int of)
{
    enum { QUIET_S = 10 };
    static time_t next; /* by rank 0 alone */
    const int is_terminal = isatty(STDERR_FILENO);
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    next = next == 0 ? now.tv_sec + QUIET_S : next;
    fprintf(stderr, "%s", is_terminal ? "\r\033[K" : "");
    if (sample == NULL || (!is_terminal && now.tv_sec < next)) {
        return;
    }
    next = now.tv_sec + QUIET_S;
    fprintf(stderr, "calibrate: %d/%d  %s, %s%s", done + 1, of, sample->kind, sample->what, is_terminal ? "" : "\n");
    fflush(stderr);
}

static int oversubscribes(const request *r, int ranks)
{
    return r->cores > 0 && ranks > r->cores;
}

static int shares_devices(const calibrate_result *result, int ranks)
{
    return result->devices > 0 && result->devices < ranks;
}

/* What launches cost has none. */
static int has_rate(const heddle_measured *m)
{
    return m->ranks > 0 || m->nterms > 0;
}

static heddle_status fit(heddle_machine **out, calibrate_result *result, const request *r, heddle_comm *comm)
{
    char source[512], day[32], name[64] = "host";
    const int ranks = heddle_comm_size(comm);
    int n = 0;
    const char *joined = heddle_comm_describe(comm);
    const time_t now = time(NULL);
    struct tm when;
    heddle_measured *measured = calloc((size_t)result->samples, sizeof *measured);
    heddle_calibration about = HEDDLE_EMPTY(heddle_calibration);
    if (measured == NULL) {
        return HEDDLE_ERR_NOMEM;
    }
    for (int i = 0; i < result->samples; i++) {
        measured[n] = result->sample[i].about;
        n += has_rate(&measured[n]);
    }
    (void)gethostname(name, sizeof name - 1);
    strftime(day, sizeof day, "%Y-%m-%d %H:%M", gmtime_r(&now, &when));
    snprintf(source, sizeof source, "heddle calibrate, %s UTC, %s, %s%s%s", day, r->host.cpu, joined,
             oversubscribes(r, ranks) ? "; ranks shared cores" : "",
             shares_devices(result, ranks) ? "; ranks shared devices" : "");
    about.name = name;
    about.source = source;
    about.link = result->wire[0] != '\0' ? result->wire : r->options->transport;
    about.ranks = ranks;
    about.memory_bytes = result->devices > 0 ? result->memory_bytes : r->host.memory_bytes / ranks;
    about.launch_s = result->launch_s;
    about.on_device = result->devices > 0;
    about.overlap_slowdown = result->overlap_slowdown;
    about.crowding_slowdown = result->crowding_slowdown;
    heddle_status st = heddle_machine_fit(out, measured, n, &about);
    for (int i = 0, k = 0; i < result->samples && st == HEDDLE_OK; i++) {
        heddle_measured *m = &result->sample[i].about;
        m->fitted = has_rate(m) ? measured[k++].fitted : m->seconds;
    }
    free(measured);
    return st;
}

/* Rates of a machine that other programs use, too, are theirs as well. */
static void warn_of_noise(const calibrate_result *result, const request *r, int ranks)
{
    int noisy = 0, worst = 0;
    if (shares_devices(result, ranks)) {
        cli_say("%d ranks share %d device%s: the machine is as slow as this", ranks, result->devices,
                result->devices == 1 ? "" : "s");
    }
    if (result->devices > 0 && result->is_rough) {
        cli_say("operations were so small that a device does little but launch them: plans want --seconds 3 or more");
    }
    for (int i = 0; i < result->samples; i++) {
        noisy += result->sample[i].about.spread > NOISY_PERCENT / 100.0;
        worst = result->sample[i].about.spread > result->sample[worst].about.spread ? i : worst;
    }
    if (result->coreless > CORELESS_PERCENT / 100.0) {
        cli_say("the machine is not quiet: ranks had no core for %.0f %% of the time of their work; %s",
                result->coreless * 100,
                oversubscribes(r, ranks) ? "such times count, as the ranks share cores"
                                         : "such times count only where an operation has no others, so models that run "
                                           "so take longer than predicted");
    }
    if (4 * noisy > result->samples) {
        cli_say("the machine is not quiet: times of %d of %d operations, taken seconds apart, differ by more than "
                "%d %% (%s, %s: %.0f %%); predictions will be as far off",
                noisy, result->samples, (int)NOISY_PERCENT, result->sample[worst].kind, result->sample[worst].what,
                result->sample[worst].about.spread * 100);
    }
}

static heddle_status conclude(const request *r, calibrate_result *result, heddle_comm *comm, double seconds)
{
    heddle_machine *machine = NULL;
    heddle_machine_info info = HEDDLE_EMPTY(heddle_machine_info);
    heddle_status st = fit(&machine, result, r, comm);
    st = st == HEDDLE_OK ? heddle_machine_get_info(&info, machine) : st;
    if (st == HEDDLE_OK) {
        const int code = cli_report_written(heddle_machine_save(machine, r->file));
        cli_verdict(code);
        warn_of_noise(result, r, info.ranks);
        if (code == CLI_OK && strcmp(r->file, "-") != 0) {
            const calibrate_told about = {info.name, heddle_comm_describe(comm), r->file, info.ranks, r->cores,
                                          seconds,   info.memory_bytes};
            report_calibrate(&about, result, r->options->json);
        }
    }
    heddle_machine_destroy(machine);
    fflush(stdout);
    return st;
}

static heddle_status calibrate_main(heddle_comm *comm, void *arg)
{
    const request *r = arg;
    const int ranks = heddle_comm_size(comm);
    const double start = samples_now_ms();
    const calibrate_options options = {.seconds = (double)r->options->seconds,
                                       .shares_cores = oversubscribes(r, ranks),
                                       .cache_bytes = r->host.l2_bytes + r->host.l3_bytes,
                                       .watch = show_sample};
    calibrate_result result;
    if (heddle_comm_rank(comm) == 0 && oversubscribes(r, ranks)) {
        cli_say("%d ranks share %d core%s: the machine will be as slow as this", ranks, r->cores,
                r->cores == 1 ? "" : "s");
    }
    heddle_status st = calibrate_measure(&result, comm, &options);
    if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
        st = conclude(r, &result, comm, (samples_now_ms() - start) * 1e-3);
    }
    calibrate_free(&result);
    return st;
}

static int run(const cli_arguments *a)
{
    request r = {.options = a, .host = HEDDLE_EMPTY(heddle_host_info)};
    cpu_set_t allowed;
    int ranks = (int)a->ranks;
    r.cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
    if (heddle_host_get_info(&r.host, NULL) != HEDDLE_OK) {
        r.host = (heddle_host_info){.struct_bytes = sizeof r.host}; /* not known here */
    }
    if (ranks == 0 && cli_launcher(NULL, NULL) == NULL && strcmp(a->transport, "self") != 0) {
        const int places = a->device != NULL ? r.host.gpus : r.cores;
        ranks = places > 0 ? places : 1;
    }
    const int code = check_file(&r);
    return code == CLI_OK ? cli_with_ranks(a, ranks, calibrate_main, &r) : code;
}

const cli_action cli_calibrate = {
    .synopsis =
        "usage: heddle calibrate [--ranks N] [--transport threads|shm|tcp|mpi|auto] [--device cuda] [options]\n\n"
        "Measures what this machine's ranks compute and exchange, and saves the machine that plans and\n"
        "forecasts go by. Operations are measured, never a model; best on an otherwise idle machine.\n",
    .notes = "Without --ranks as many as there are cores, with --device as there are GPUs. Without --output the\n"
             "file is $XDG_CONFIG_HOME/heddle/machine.yaml, else ~/.config/heddle/machine.yaml, where heddle plan\n"
             "looks for it. The fit's own error is told by operation: how far its rates are from the times they\n"
             "were made of.\n",
    .run = run,
};
