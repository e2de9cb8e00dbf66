#include "planner/machine/host.h"
#include "runtime/base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <hwloc.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PCI_DISPLAY = 3, PCI_ACCELERATOR = 0x12, XML_SECONDS = 20 };

/* Where a filter of system calls denies this one, hwloc asks for ever. EINVAL: more cores than fit the set. hwloc loads
 * plug-ins from where its own variables say, whoever has set them. */
static int may_ask(void)
{
    cpu_set_t some;
    return !hd_is_privileged() && (sched_getaffinity(0, sizeof some, &some) == 0 || errno == EINVAL);
}

static void copy_info(char *out, size_t bytes, hwloc_obj_t object, const char *key)
{
    const char *text = object != NULL ? hwloc_obj_get_info_by_name(object, key) : NULL;
    if (text != NULL && out[0] == '\0') {
        hd_copy_text(out, bytes, text);
    }
}

static int count(hwloc_topology_t topology, hwloc_obj_type_t type)
{
    const int n = hwloc_get_nbobjs_by_type(topology, type);
    return n > 0 ? n : 0;
}

static int64_t cache_bytes(hwloc_topology_t topology, hwloc_obj_type_t type)
{
    hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
    return cache != NULL && cache->attr != NULL ? (int64_t)cache->attr->cache.size : 0;
}

/* By NVML's or another plug-in's devices where there are some, else by class on the PCI bus. */
static void find_gpus(heddle_host_info *out, hwloc_topology_t topology)
{
    int by_class = 0;
    char class_name[sizeof out->gpu] = "";
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_osdev(topology, o)) != NULL;) {
        if (o->name != NULL && (strncmp(o->name, "nvml", 4) == 0 || strncmp(o->name, "rsmi", 4) == 0)) {
            out->gpus++;
            copy_info(out->gpu, sizeof out->gpu, o, "GPUModel");
        }
    }
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_pcidev(topology, o)) != NULL;) {
        const int class = o->attr != NULL ? o->attr->pcidev.class_id >> 8 : 0;
        const int is_nvidia = o->attr != NULL && o->attr->pcidev.vendor_id == 0x10de;
        if ((class == PCI_DISPLAY && is_nvidia) || class == PCI_ACCELERATOR) {
            by_class++;
            copy_info(class_name, sizeof class_name, o, "PCIDevice");
        }
    }
    if (out->gpus == 0 && by_class > 0) {
        out->gpus = by_class;
        memcpy(out->gpu, class_name, sizeof out->gpu);
    }
}

static void describe(heddle_host_info *out, hwloc_topology_t topology)
{
    hwloc_obj_t root = hwloc_get_root_obj(topology);
    out->packages = count(topology, HWLOC_OBJ_PACKAGE);
    out->numa_nodes = count(topology, HWLOC_OBJ_NUMANODE);
    out->threads = count(topology, HWLOC_OBJ_PU);
    out->cores = count(topology, HWLOC_OBJ_CORE);
    out->cores = out->cores > 0 ? out->cores : out->threads;
    out->memory_bytes = root->total_memory <= INT64_MAX ? (int64_t)root->total_memory : 0;
    out->l2_caches = count(topology, HWLOC_OBJ_L2CACHE);
    out->l3_caches = count(topology, HWLOC_OBJ_L3CACHE);
    out->l2_bytes = cache_bytes(topology, HWLOC_OBJ_L2CACHE);
    out->l3_bytes = cache_bytes(topology, HWLOC_OBJ_L3CACHE);
    copy_info(out->cpu, sizeof out->cpu, hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0), "CPUModel");
    copy_info(out->cpu, sizeof out->cpu, root, "CPUModel");
    find_gpus(out, topology);
}

static heddle_status refuse_xml(const char *xml)
{
    return hd_fail(HEDDLE_ERR_PARSE, "%s is no topology as `hwloc-ls FILE.xml` writes it", xml);
}

static heddle_status read_here(heddle_host_info *out, const char *xml)
{
    heddle_status st = HEDDLE_OK;
    hwloc_topology_t topology = NULL;
    if (hwloc_topology_init(&topology) != 0) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "hwloc finds no memory");
    }
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    /* Its reader of PCI devices by a library never gives its memory back; Linux tells the same by files. */
    (void)hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "pci");
    if ((xml != NULL && hwloc_topology_set_xml(topology, xml) != 0) || hwloc_topology_load(topology) != 0) {
        st = xml != NULL ? refuse_xml(xml) : hd_fail(HEDDLE_ERR_UNSUPPORTED, "hwloc finds nothing out about this host");
        goto out;
    }
    describe(out, topology);
out:
    hwloc_topology_destroy(topology);
    return st;
}

typedef struct answer {
    heddle_status status;
    heddle_host_info host;
} answer;

_Noreturn static void answer_to(int pipe, const char *xml)
{
    static const int deadly[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM};
    const struct rlimit no_core = {0, 0};
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    answer a = {.host = {.struct_bytes = 0}};
    sigset_t none;
    sigemptyset(&none);
    for (size_t i = 0; i < sizeof deadly / sizeof deadly[0]; i++) {
        signal(deadly[i], SIG_DFL);
    }
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    setrlimit(RLIMIT_CORE, &no_core);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    alarm(XML_SECONDS);
    a.status = read_here(&a.host, xml);
    _exit(write(pipe, &a, sizeof a) == (ssize_t)sizeof a ? 0 : 1);
}

/* hwloc believes what an XML file says: some files it writes to standard error about, and some it does not survive. So
 * it reads them in a process of its own. The answer fits a pipe, and is there when that process has ended. */
static heddle_status read_apart(heddle_host_info *out, const char *xml)
{
    heddle_status st = HEDDLE_OK;
    answer a = {.status = HEDDLE_ERR_PARSE};
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        return hd_fail(HEDDLE_ERR_NOMEM, "%s: no pipe to a process that reads it: %s", xml, strerror(errno));
    }
    const pid_t pid = fork();
    if (pid == 0) {
        answer_to(ends[1], xml);
    }
    if (pid < 0) {
        st = hd_fail(HEDDLE_ERR_NOMEM, "%s: no process that reads it: %s", xml, strerror(errno));
        goto out;
    }
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    if (read(ends[0], &a, sizeof a) != (ssize_t)sizeof a || a.status != HEDDLE_OK) {
        st = refuse_xml(xml);
        goto out;
    }
    *out = a.host;
out:
    close(ends[0]);
    close(ends[1]);
    return st;
}

heddle_status hd_host_read(heddle_host_info *out, const char *xml)
{
    heddle_status st = HEDDLE_OK;
    FILE *file = xml != NULL ? fopen(xml, "re") : NULL;
    if (xml != NULL && file == NULL) {
        return hd_fail(HEDDLE_ERR_IO, "%s cannot be read: %s", xml, strerror(errno));
    }
    if (file != NULL) {
        fclose(file);
    }
    if (!may_ask()) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "hwloc may not be asked what this host consists of");
    }
    HD_TRY(xml != NULL ? read_apart(out, xml) : read_here(out, NULL));
    if (out->cores < 1) {
        st = hd_fail(HEDDLE_ERR_PARSE, "%s has no cores", xml != NULL ? xml : "this host");
    }
out:
    return st;
}

heddle_status heddle_host_get_info(heddle_host_info *out, const char *xml)
{
    heddle_status st = HEDDLE_OK;
    heddle_host_info made = {.struct_bytes = 0};
    HD_TRY(HD_NEED(out));
    HD_TRY(hd_struct_room(out, HD_STRUCT(heddle_host_info, packages)));
    HD_TRY(hd_host_read(&made, xml));
    st = hd_struct_give(out, &made, HD_STRUCT(heddle_host_info, packages));
out:
    return st;
}
