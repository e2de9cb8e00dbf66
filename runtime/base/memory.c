/* How much memory there still is. The kernel hands out more and ends somebody later, so whoever wants much asks first.
 *
 * A batch system or a container limits a control group. /proc/self/cgroup says in which one this process is, of the one
 * hierarchy of version 2 and of version 1's for memory; each group up to the root may have a limit, and the one with
 * the least left counts. Inside a container the path may be of a tree that is not seen here: then only its upper end,
 * where the container's own group is mounted, is found. What a group holds of files can be taken back and is not
 * counted, as in MemAvailable.
 */
#include "runtime/base/memory.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 1024 };

/* Where a version of control groups keeps what. */
typedef struct cgroup_version {
    const char *mount, *limit, *usage, *inactive, *active;
} cgroup_version;

static const cgroup_version version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                         "total_inactive_file %llu", "total_active_file %llu"};
static const cgroup_version version_2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file %llu",
                                         "active_file %llu"};
static const cgroup_version beside_1 = {"/sys/fs/cgroup/unified", "memory.max", "memory.current", "inactive_file %llu",
                                        "active_file %llu"};

/* The least that was found so far. */
typedef struct found {
    size_t bytes;
    char *where;
    size_t where_bytes;
} found;

static void keep_least(found *out, unsigned long long bytes, const char *kind, const char *name)
{
    if (bytes < out->bytes) {
        out->bytes = (size_t)bytes;
        snprintf(out->where, out->where_bytes, "%s%s", kind, name);
    }
}

static int read_number(unsigned long long *out, const char *folder, const char *name)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    int read = file != NULL && fscanf(file, "%llu", out) == 1; /* "max" is no number: no limit */
    if (file != NULL) {
        fclose(file);
    }
    return read;
}

static unsigned long long of_files(const char *folder, const cgroup_version *version)
{
    char path[PATH_BYTES + 64], line[256];
    unsigned long long bytes = 0, sum = 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, version->inactive, &bytes) == 1 || sscanf(line, version->active, &bytes) == 1) {
            sum += bytes;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return sum;
}

/* The group of this path and all above it. */
static void look_at_groups(found *out, const char *root, const cgroup_version *version, const char *path)
{
    char folder[PATH_BYTES];
    int top = snprintf(folder, sizeof folder, "%s%s", root, version->mount);
    int length = snprintf(folder, sizeof folder, "%s%s%s", root, version->mount, path);
    if (top < 0 || length >= (int)sizeof folder) {
        return;
    }
    while (length > top && folder[length - 1] == '/') {
        folder[--length] = 0;
    }
    for (;;) {
        unsigned long long limit = 0, usage = 0;
        if (read_number(&limit, folder, version->limit) && read_number(&usage, folder, version->usage)) {
            unsigned long long files = of_files(folder, version), used = usage > files ? usage - files : 0;
            keep_least(out, limit > used ? limit - used : 0, "the control group ",
                       length > top ? folder + top : "/ (of the container)");
        }
        if (length <= top) {
            return;
        }
        while (folder[--length] != '/') {
        }
        folder[length] = 0;
    }
}

/* A line is "NUMBER:CONTROLLERS:PATH"; without controllers it is version 2's. */
static void look_at_line(found *out, const char *root, char *line)
{
    char *controllers = strchr(line, ':'), *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (path == NULL) {
        return;
    }
    line[strcspn(line, "\n")] = 0;
    *path++ = 0;
    if (*++controllers == 0) {
        look_at_groups(out, root, &version_2, path);
        look_at_groups(out, root, &beside_1, path);
        return;
    }
    for (char *rest = NULL, *name = strtok_r(controllers, ",", &rest); name != NULL;
         name = strtok_r(NULL, ",", &rest)) {
        if (strcmp(name, "memory") == 0) {
            look_at_groups(out, root, &version_1, path);
        }
    }
}

size_t hd_available_bytes(char *where, size_t where_bytes, const char *root)
{
    char line[PATH_BYTES];
    unsigned long long kib = 0;
    found least = {SIZE_MAX, where, where_bytes};
    snprintf(where, where_bytes, "the machine");
    snprintf(line, sizeof line, "%s/proc/meminfo", root);
    FILE *file = fopen(line, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) {
            keep_least(&least, kib * 1024, "the machine", "");
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    file = fopen(line, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        look_at_line(&least, root, line);
    }
    if (file != NULL) {
        fclose(file);
    } else { /* /proc is not there: of a container's own group at least the mount is known */
        look_at_groups(&least, root, &version_2, "/");
    }
    return least.bytes;
}
