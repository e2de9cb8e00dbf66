/* How much memory is left, by made-up trees of /proc and /sys. */
#include "case.h"

#include "runtime/base/base.h"
#include "runtime/base/memory.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static void write_file(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = 0;
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
        *at = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *at)
{
    (void)about, (void)kind, (void)at;
    return remove(path);
}

/* A tree: names and contents in turn. What the least is, and who has it. */
static void least_is(size_t bytes, const char *who, const char *const *tree)
{
    char where[256];
    snprintf(root, sizeof root, "/tmp/heddle-memory-XXXXXX");
    assert_non_null(mkdtemp(root));
    for (; *tree != NULL; tree += 2) {
        write_file(tree[0], tree[1]);
    }
    size_t found = hd_available_bytes(where, sizeof where, root);
    nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    assert_int_equal(found, bytes);
    assert_string_equal(where, who);
}
#define TREE(...) ((const char *const[]){__VA_ARGS__, NULL})
#define MACHINE "/proc/meminfo", "MemTotal: 99 kB\nMemFree: 1 kB\nMemAvailable:    5000 kB\n"
#define V1 "/sys/fs/cgroup/memory"
#define V2 "/sys/fs/cgroup"

HD_CASE(the_machine)
{
    least_is(5000 * 1024, "the machine", TREE(MACHINE));
    least_is(SIZE_MAX, "the machine", TREE("/proc/meminfo", "MemFree: 1 kB\n")); /* an old kernel */
    least_is(5000 * 1024, "the machine",
             TREE(MACHINE, "/proc/self/cgroup", "0::/user\n4:memory:/user\nnonsense\n::\n\n"));
}

HD_CASE(version_2)
{
    least_is(700, "the control group /job/step",
             TREE(MACHINE, "/proc/self/cgroup", "0::/job/step\n", V2 "/job/step/memory.max", "1000\n",
                  V2 "/job/step/memory.current", "300\n", V2 "/job/memory.max", "max\n", V2 "/job/memory.current",
                  "999999\n"));
    /* a group above has less */
    least_is(50, "the control group /job",
             TREE(MACHINE, "/proc/self/cgroup", "0::/job/step/task\n", V2 "/job/step/memory.max", "1000\n",
                  V2 "/job/step/memory.current", "300\n", V2 "/job/memory.max", "2050\n", V2 "/job/memory.current",
                  "2000\n"));
    /* files can be taken back, what is used beyond the limit is none */
    least_is(860, "the control group /job",
             TREE(MACHINE, "/proc/self/cgroup", "0::/job\n", V2 "/job/memory.max", "1000\n", V2 "/job/memory.current",
                  "900\n", V2 "/job/memory.stat", "anon 140\nfile 777\ninactive_file 700\nactive_file 60\n"));
    least_is(0, "the control group /job",
             TREE(MACHINE, "/proc/self/cgroup", "0::/job\n", V2 "/job/memory.max", "1000\n", V2 "/job/memory.current",
                  "1200\n"));
    /* a namespace of its own: the mount is the group. So it is where the path is of the host's tree */
    least_is(700, "the control group / (of the container)",
             TREE(MACHINE, "/proc/self/cgroup", "0::/\n", V2 "/memory.max", "1000\n", V2 "/memory.current", "300\n"));
    least_is(700, "the control group / (of the container)",
             TREE(MACHINE, "/proc/self/cgroup", "0::/kubepods.slice/pod_1.slice/cri-1.scope\n", V2 "/memory.max",
                  "1000\n", V2 "/memory.current", "300\n"));
    least_is(700, "the control group / (of the container)",
             TREE(V2 "/memory.max", "1000\n", V2 "/memory.current", "300\n"));
}

HD_CASE(version_1)
{
    static const char groups[] = "9:name=systemd:/a\n8:cpu,cpuacct:/b\n4:hugetlb,memory:/slurm/uid_0/job_1:2\n0::/\n";
    least_is(900, "the control group /slurm/uid_0",
             TREE(MACHINE, "/proc/self/cgroup", groups, V1 "/slurm/uid_0/job_1:2/memory.limit_in_bytes",
                  "9223372036854771712\n", V1 "/slurm/uid_0/job_1:2/memory.usage_in_bytes", "100\n",
                  V1 "/slurm/uid_0/memory.limit_in_bytes", "1000\n", V1 "/slurm/uid_0/memory.usage_in_bytes", "400\n",
                  V1 "/slurm/uid_0/memory.stat",
                  "inactive_file 1\nactive_file 1\ntotal_inactive_file 200\ntotal_active_file 100\n",
                  V1 "/memory.limit_in_bytes", "9223372036854771712\n", V1 "/memory.usage_in_bytes", "700\n"));
    /* the other controllers' paths are none of ours */
    least_is(5000 * 1024, "the machine",
             TREE(MACHINE, "/proc/self/cgroup", groups, V1 "/b/memory.limit_in_bytes", "1\n",
                  V1 "/b/memory.usage_in_bytes", "1\n"));
    least_is(5000 * 1024, "the machine",
             TREE(MACHINE, "/proc/self/cgroup", "4:memory:/a\n", V1 "/a/memory.limit_in_bytes", "9223372036854771712\n",
                  V1 "/a/memory.usage_in_bytes", "1\n"));
    /* both: the one beside it */
    least_is(10, "the control group /u",
             TREE(MACHINE, "/proc/self/cgroup", "4:memory:/\n0::/u\n", V1 "/memory.limit_in_bytes", "100\n",
                  V1 "/memory.usage_in_bytes", "50\n", V2 "/unified/u/memory.max", "30\n",
                  V2 "/unified/u/memory.current", "20\n"));
}

/* A path that is longer than any: the machine's own answer stays. */
HD_CASE(very_long_paths)
{
    char line[5000] = "0::/";
    memset(line + 4, 'x', sizeof line - 6);
    line[sizeof line - 2] = '\n';
    least_is(5000 * 1024, "the machine", TREE(MACHINE, "/proc/self/cgroup", line));
}

HD_CASE(more_than_there_is)
{
    void *memory = NULL;
    const size_t most = (size_t)1 << 46; /* an address space has it, and the kernel may promise it */
    HD_FAILS(HEDDLE_ERR_NOMEM, hd_check_available(most, 0, "a test"));
    assert_non_null(strstr(heddle_last_error(), "out of memory: a test, 70368744177664 bytes, "));
    assert_non_null(strstr(heddle_last_error(), " left"));
    HD_OK(hd_check_available(HD_CHECKED_FROM - 1, most, "a test"));
    HD_FAILS(HEDDLE_ERR_NOMEM, hd_check_available(HD_CHECKED_FROM, most, "a test"));
    assert_non_null(strstr(heddle_last_error(), "and other ranks just now take 70368744177664"));
    HD_FAILS(HEDDLE_ERR_NOMEM, hd_alloc(&memory, most / 8, 8, "a test"));
    HD_FAILS(HEDDLE_ERR_NOMEM, hd_alloc_aligned(&memory, 64, most, "a test"));
    assert_null(memory);
}
