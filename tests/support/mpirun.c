#include "mpirun.h"
#include "time_limit.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char RANK_WORD[] = "as-rank";

int mpirun_main(int argc, char **argv, int (*rank_main)(const char *what))
{
    const int is_rank = argc > 2 && strcmp(argv[1], RANK_WORD) == 0;
    return is_rank ? rank_main(argv[2]) : hd_run_cases(HD_CASE_SECONDS, argc, argv);
}

const char *mpirun_build_folder(void)
{
    static char folder[4096];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    return folder;
}

static int mpirun_there(void)
{
    const char *path = getenv("PATH");
    char *copy = strdup(path != NULL ? path : "/usr/bin:/bin");
    int found = 0;
    char *rest = NULL;
    for (char *folder = strtok_r(copy, ":", &rest); folder != NULL && !found; folder = strtok_r(NULL, ":", &rest)) {
        char file[4096];
        snprintf(file, sizeof(file), "%s/mpirun", folder);
        found = access(file, X_OK) == 0;
    }
    free(copy);
    return found;
}

static void become_mpirun(int nranks, const char *what, const mpirun_options *options)
{
    char count[16];
    char self[4200];
    char preload[4200];
    char more[1024] = "";
    char *argv[48];
    int n = 0;
    setenv("OMPI_MCA_orte_allowed_exit_without_sync", "1", 0); /* as heddle does: planner/cli/launch.c */
    int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, 0);
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[length > 0 ? length : 0] = '\0';
    snprintf(count, sizeof(count), "%d", nranks);
    char *fixed[] = {"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", count};
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++) {
        argv[n++] = fixed[i];
    }
    if (options->preload != NULL) {
        snprintf(preload, sizeof(preload), "LD_PRELOAD=%s/%s", mpirun_build_folder(), options->preload);
        argv[n++] = "-x";
        argv[n++] = preload;
    }
    if (options->words != NULL) {
        snprintf(more, sizeof(more), "%s", options->words);
    }
    char *rest = NULL;
    for (char *word = strtok_r(more, " ", &rest); word != NULL && n < 40; word = strtok_r(NULL, " ", &rest)) {
        argv[n++] = word;
    }
    char rank_word[sizeof(RANK_WORD)];
    char what_copy[256];
    memcpy(rank_word, RANK_WORD, sizeof(RANK_WORD));
    snprintf(what_copy, sizeof(what_copy), "%s", what);
    argv[n++] = self;
    argv[n++] = rank_word;
    argv[n++] = what_copy;
    argv[n] = NULL;
    /* MPI unloads its plug-ins before the leak check, which then cannot tell whose memory it looks at; a preloaded
     * interposer comes before the sanitizer. */
    setenv("ASAN_OPTIONS", "detect_leaks=0:verify_asan_link_order=0", 1);
    execvp("mpirun", argv);
    _exit(127);
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int mpirun_self(int nranks, const char *what, const mpirun_options *given)
{
    static const mpirun_options defaults;
    const mpirun_options *options = given != NULL ? given : &defaults;
    if (!mpirun_there()) {
        return MPIRUN_ABSENT;
    }
    double end = seconds_now() + (double)hd_test_limit_ns(options->seconds > 0 ? options->seconds : 60) * 1e-9;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        become_mpirun(nranks, what, options);
    }
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (seconds_now() > end) {
            kill(pid, SIGTERM); /* mpirun ends its ranks and cleans up */
            for (int i = 0; i < 300 && waitpid(pid, &status, WNOHANG) == 0; i++) {
                usleep(10000);
            }
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return MPIRUN_TIME_OUT;
        }
        usleep(2000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void mpirun_case(int nranks, const char *what, int wanted, const char *preload)
{
    const mpirun_options options = {.preload = preload, .seconds = 50};
    int code = mpirun_self(nranks, what, &options);
    if (code == MPIRUN_ABSENT) {
        hd_skip("mpi", "no mpirun in PATH");
    }
    if (code != wanted) {
        print_error("mpirun -n %d ... %s: exit code %d, wanted %d\n", nranks, what, code, wanted);
    }
    assert_int_equal(code, wanted);
}

void mpirun_each(int wanted, const char *preload, const char *const *words)
{
    for (; *words != NULL; words++) {
        char *what = NULL;
        const int nranks = (int)strtol(*words, &what, 10);
        mpirun_case(nranks, what + 1, wanted, preload);
    }
}

heddle_comm_options mpirun_comm_options(const char *what, int hosts)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.bind = HEDDLE_BIND_NONE;
    options.deadline_ms = hd_test_limit_ns(30) / 1000000;
    options.force_messages = strstr(what, "forced") != NULL;
    options.pretend_hosts = strstr(what, "hosts") != NULL ? hosts : 0;
    return options;
}

int mpirun_left_over(const char *mark)
{
    int found = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *e = proc != NULL ? readdir(proc) : NULL; e != NULL; e = readdir(proc)) {
        char path[300];
        char line[8192];
        snprintf(path, sizeof(path), "/proc/%.250s/cmdline", e->d_name);
        int fd = atoi(e->d_name) > 0 && atoi(e->d_name) != getpid() ? open(path, O_RDONLY) : -1;
        if (fd >= 0) {
            ssize_t got = read(fd, line, sizeof(line) - 1);
            close(fd);
            found += got > 0 && memmem(line, (size_t)got, mark, strlen(mark)) != NULL;
        }
    }
    if (proc != NULL) {
        closedir(proc);
    }
    return found;
}
