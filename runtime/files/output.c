#include "runtime/files/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static heddle_status refuse(const file_output *out)
{
    return heddle_set_error(HEDDLE_ERR_ARG, "%s: cannot be written: %s", out->path, strerror(errno));
}

static void forget(const file_output *out)
{
    if (!out->is_nameless) {
        unlink(out->temporary);
    }
}

/* Is there something that a file of that name may not take the place of? Sets target. */
static int is_special(file_output *out, mode_t *mode)
{
    struct stat there;
    *mode = 0;
    if (realpath(out->path, out->target) == NULL || stat(out->target, &there) != 0) {
        snprintf(out->target, sizeof out->target, "%s", out->path);
        return 0;
    }
    *mode = there.st_mode & 0777;
    return !S_ISREG(there.st_mode);
}

/* A file gets its name by way of /proc. One that is there already cannot become another file's in one step. */
static int give_name(int fd, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, path, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

/* A file without a name in the target's folder, after another one has shown that such a file can be named here: later
 * it would be too late. -1: it cannot. */
static int open_nameless(const file_output *out)
{
    const int flags = O_WRONLY | O_TMPFILE | O_CLOEXEC;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", out->target);
    char *slash = strrchr(folder, '/');
    if (slash == NULL) {
        snprintf(folder, sizeof folder, ".");
    } else {
        slash[slash == folder] = '\0'; /* keeps the root's slash */
    }
    const int first = open(folder, flags, 0666);
    const int can_be_named = first >= 0 && give_name(first, out->temporary) == 0;
    if (can_be_named) {
        unlink(out->temporary);
    }
    if (first >= 0) {
        close(first);
    }
    return can_be_named ? open(folder, flags, 0666) : -1;
}

heddle_status file_output_open(file_output *out, const char *path)
{
    struct timespec now;
    mode_t mode = 0;
    *out = (file_output){.path = path};
    if (strlen(path) >= sizeof out->target - 64) {
        errno = ENAMETOOLONG;
        return refuse(out);
    }
    if (is_special(out, &mode)) {
        out->file = fopen(out->target, "wbe");
        return out->file != NULL ? HEDDLE_OK : refuse(out);
    }
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(out->temporary, sizeof out->temporary, "%s.tmp-%ld-%llx", out->target, (long)getpid(),
             (unsigned long long)now.tv_sec << 30 | (unsigned long long)now.tv_nsec);
    int fd = open_nameless(out);
    out->is_nameless = fd >= 0;
    if (!out->is_nameless) {
        fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    if (fd < 0) {
        return refuse(out);
    }
    if ((mode != 0 && fchmod(fd, mode) != 0) || (out->file = fdopen(fd, "wb")) == NULL) {
        heddle_status st = refuse(out);
        close(fd);
        forget(out);
        return st;
    }
    return HEDDLE_OK;
}

heddle_status file_output_close(file_output *out, heddle_status st)
{
    const int is_file = out->temporary[0] != '\0';
    const int before = errno; /* of a write that failed */
    errno = 0;
    int failed =
        st != HEDDLE_OK || fflush(out->file) != 0 || ferror(out->file) || (is_file && fsync(fileno(out->file)));
    if (!failed && out->is_nameless) {
        failed = give_name(fileno(out->file), out->temporary) != 0;
        out->is_nameless = failed;
    }
    int why = errno != 0 ? errno : before;
    if (fclose(out->file) != 0 && !failed) {
        failed = 1;
        why = errno;
    }
    if (is_file && !failed && rename(out->temporary, out->target) != 0) {
        failed = 1;
        why = errno;
    }
    if (failed && is_file) {
        forget(out);
    }
    if (failed && st == HEDDLE_OK) {
        st = heddle_set_error(HEDDLE_ERR_IO, "%s: cannot be written: %s", out->path, strerror(why));
    }
    return st;
}

heddle_status file_output_check(const char *path)
{
    file_output out = {.path = path};
    mode_t mode = 0;
    if (is_special(&out, &mode)) {
        /* A pipe's reader would take this for the end. */
        struct stat there;
        const int is_pipe = stat(out.target, &there) == 0 && S_ISFIFO(there.st_mode);
        const int fd = is_pipe ? -1 : open(out.target, O_WRONLY | O_CLOEXEC);
        if (fd < 0) {
            return is_pipe ? HEDDLE_OK : refuse(&out);
        }
        close(fd);
        return HEDDLE_OK;
    }
    heddle_status st = file_output_open(&out, path);
    if (st == HEDDLE_OK) {
        fclose(out.file);
        forget(&out);
    }
    return st;
}
