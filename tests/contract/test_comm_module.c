/* Where the library of a transport is looked for, and what is said when it cannot be loaded. */
#include "case.h"

#include <heddle/comm.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char garbage[] = "this is no library, only something of its name that is long enough to have a header";

static char folder[64];

static void write_file(const char *where, const char *name, const void *bytes, size_t count)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", where, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    assert_true(fd >= 0);
    for (size_t at = 0; at < count;) {
        ssize_t wrote = write(fd, (const char *)bytes + at, count - at);
        assert_true(wrote > 0);
        at += (size_t)wrote;
    }
    close(fd);
}

/* A folder with this program as bin/open-it and an empty folder cwd. */
static void make_folders(void)
{
    char path[128];
    char *bytes = malloc(256 << 20);
    int fd = open("/proc/self/exe", O_RDONLY);
    ssize_t count = 0;
    snprintf(folder, sizeof folder, "/tmp/heddle-module-XXXXXX");
    assert_non_null(mkdtemp(folder));
    for (ssize_t got = 1; got > 0; count += got) {
        got = read(fd, bytes + count, (256 << 20) - (size_t)count);
    }
    close(fd);
    snprintf(path, sizeof path, "%s/cwd", folder);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/bin", folder);
    assert_int_equal(mkdir(path, 0755), 0);
    write_file(path, "open-it", bytes, (size_t)count);
    free(bytes);
}

static void remove_folders(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

/* The sentence of a program that was found through PATH and asks in cwd for the transport `name`. */
static void ask(char *sentence, size_t bytes, const char *name)
{
    char command[512];
    snprintf(command, sizeof command, "cd %s/cwd && PATH=%s/bin:$PATH open-it as-program %s", folder, folder, name);
    FILE *answer = popen(command, "r");
    assert_non_null(answer);
    sentence[fread(sentence, 1, bytes - 1, answer)] = 0;
    assert_int_equal(pclose(answer), 0);
}

static int as_program(const char *name)
{
    heddle_comm *comm = NULL;
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.module_folder = getenv("TEST_MODULE_FOLDER");
    heddle_status st = heddle_comm_open(&comm, name, &options);
    printf("%s: %s\n", heddle_status_name(st), heddle_last_error());
    return 0;
}

static void says(const char *sentence, const char *wanted, int is_there)
{
    if ((strstr(sentence, wanted) != NULL) != is_there) {
        fail_msg("'%s' is %sin: %s", wanted, is_there ? "not " : "", sentence);
    }
}

/* What is no library, as the plug-in of transport `name` in a folder, whose path goes to `where`. */
static void put_garbage(char where[128], const char *subfolder, const char *name)
{
    char file[64];
    snprintf(where, 128, "%s/%s", folder, subfolder);
    snprintf(file, sizeof file, "libheddle_%s.so", name);
    write_file(where, file, garbage, sizeof garbage);
}

HD_CASE(never_from_the_current_folder)
{
    char where[128];
    char sentence[2048];
    make_folders();
    put_garbage(where, "cwd", "pigeon");
    setenv("LD_LIBRARY_PATH", where, 1); /* nor by the loader's search path */
    ask(sentence, sizeof sentence, "pigeon");
    remove_folders();
    says(sentence, "there is no libheddle_pigeon.so in ", 1);
}

HD_CASE(why_it_cannot_be_loaded)
{
    char where[128];
    char sentence[2048];
    make_folders();
    put_garbage(where, "bin", "pigeon");
    ask(sentence, sizeof sentence, "pigeon"); /* beside the program */
    says(sentence, "bin/libheddle_pigeon.so", 1);
    says(sentence, "invalid ELF header", 1);
    says(sentence, "build heddle with", 0);
    put_garbage(where, "cwd", "raven");
    setenv("HEDDLE_MODULE_PATH", where, 1);
    ask(sentence, sizeof sentence, "raven"); /* where the user says, current folder or not */
    says(sentence, "cwd/libheddle_raven.so", 1);
    says(sentence, "invalid ELF header", 1);
    remove_folders();
}

HD_CASE(an_unknown_name_lists_the_known_ones)
{
    static const char *const no_word[] = {"'a pigeon'", "../pigeon", "''"};
    char sentence[2048];
    make_folders();
    ask(sentence, sizeof sentence, "pigeon");
    says(sentence, "ERR_ARG: no transport 'pigeon': wanted self, shm, tcp, mpi, auto or fault(SPEC):...", 1);
    says(sentence, "/bin", 1); /* where it was looked for */
    for (size_t i = 0; i < sizeof no_word / sizeof no_word[0]; i++) {
        ask(sentence, sizeof sentence, no_word[i]);
        says(sentence, "wanted self, shm, tcp, mpi, auto, fault(SPEC):... or the name of a plug-in", 1);
    }
    remove_folders();
}

/* The caller's folder comes first, the first reason stays, and no folder is relative to the current one. */
HD_CASE(from_the_folder_of_the_options)
{
    char where[128];
    char sentence[2048];
    make_folders();
    put_garbage(where, "bin", "pigeon");
    put_garbage(where, "cwd", "pigeon");
    setenv("TEST_MODULE_FOLDER", where, 1);
    ask(sentence, sizeof sentence, "pigeon");
    says(sentence, "ERR_UNSUPPORTED", 1);
    says(sentence, "cwd/libheddle_pigeon.so", 1);
    says(sentence, "bin/libheddle_pigeon.so", 0);
    setenv("TEST_MODULE_FOLDER", "../cwd", 1);
    ask(sentence, sizeof sentence, "pigeon");
    says(sentence, "module_folder is '../cwd', wanted the absolute path", 1);
    unsetenv("TEST_MODULE_FOLDER");
    setenv("HEDDLE_MODULE_PATH", ".", 1);
    ask(sentence, sizeof sentence, "pigeon");
    says(sentence, "HEDDLE_MODULE_PATH is '.', wanted the absolute path", 1);
    remove_folders();
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "as-program") == 0) {
        return as_program(argv[2]);
    }
    return hd_run_cases(HD_CASE_SECONDS, argc, argv);
}
