/* Files that are written whole or not at all: what a program that is killed leaves, and what replaces what. */
#include "case.h"
#include "runtime/files/output.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 20 };

static char folder[64], path[80];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/heddle-output-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
}

static void write_file(const char *text)
{
    file_output out;
    HD_OK(file_output_open(&out, path));
    assert_true(fputs(text, out.file) >= 0);
    HD_OK(file_output_close(&out, HEDDLE_OK));
}

static void expect_file(const char *text)
{
    char got[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(got, sizeof got, file));
    fclose(file);
    assert_string_equal(got, text);
}

static int files(void)
{
    int count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        count += e->d_name[0] != '.';
    }
    closedir(dir);
    return count;
}

static void remove_folder(void)
{
    unlink(path);
    assert_int_equal(rmdir(folder), 0);
}

HD_CASE(killed_in_the_middle)
{
    make_folder();
    for (int before = 0; before < 2; before++) {
        if (before) {
            write_file("before");
        }
        const pid_t child = fork();
        if (child == 0) {
            file_output out;
            static const char bytes[BYTES];
            if (file_output_open(&out, path) == HEDDLE_OK && fwrite(bytes, 1, BYTES, out.file) == BYTES) {
                fflush(out.file);
                raise(SIGKILL);
            }
            _exit(1);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_int_equal(files(), before); /* where /tmp can have files without a name, as every usual one can */
    }
    expect_file("before");
    remove_folder();
}

HD_CASE(whole_or_not_at_all)
{
    file_output out;
    make_folder();
    HD_OK(file_output_check(path));
    assert_int_equal(files(), 0);
    write_file("one");
    expect_file("one");
    assert_int_equal(chmod(path, 0640), 0);
    HD_OK(file_output_open(&out, path));
    fputs("two", out.file);
    expect_file("one");
    HD_OK(file_output_close(&out, HEDDLE_OK));
    expect_file("two");
    HD_OK(file_output_open(&out, path));
    fputs("three", out.file);
    HD_FAILS(HEDDLE_ERR_NOMEM, file_output_close(&out, heddle_set_error(HEDDLE_ERR_NOMEM, "no more")));
    expect_file("two");
    assert_int_equal(files(), 1);
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0640);
    remove_folder();
}

/* A name that has no room for another beside it is refused before anything is computed. */
HD_CASE(no_room_for_a_name)
{
    char name[300];
    make_folder();
    snprintf(name, sizeof name, "%s/%0250d", folder, 0);
    HD_FAILS(HEDDLE_ERR_ARG, file_output_check(name));
    snprintf(name, sizeof name, "%s/none/file", folder);
    HD_FAILS(HEDDLE_ERR_ARG, file_output_check(name));
    remove_folder();
}
