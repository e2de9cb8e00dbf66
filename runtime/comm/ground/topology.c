/* What the machine looks like: caches, and which cores this rank may have. hwloc is asked once per process. */
#include "runtime/comm/ground/ground.h"

#include <errno.h>
#include <hwloc.h>
#include <pthread.h>
#include <unistd.h>

enum { MAX_CORES = 4096, USUAL_SHARED = 32 << 20 };

#ifdef _SC_LEVEL3_CACHE_SIZE
#define LEVEL3_CACHE _SC_LEVEL3_CACHE_SIZE
#else /* musl */
#define LEVEL3_CACHE (-1)
#endif

/* Filled once. Cores in the order of the machine, each with its hardware threads. */
static struct {
    size_t shared_cache_bytes;
    int ncores;
    cpu_set_t *core;
} machine;

static pthread_once_t loaded = PTHREAD_ONCE_INIT;

static void cpus_of(cpu_set_t *out, hwloc_const_bitmap_t set)
{
    CPU_ZERO(out);
    for (int i = hwloc_bitmap_first(set); i >= 0 && i < CPU_SETSIZE; i = hwloc_bitmap_next(set, i)) {
        CPU_SET(i, out);
    }
}

static void read_caches(hwloc_topology_t topology)
{
    hwloc_obj_t core = hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, 0);
    for (hwloc_obj_t o = core; o != NULL; o = o->parent) {
        if (!hwloc_obj_type_is_dcache(o->type) || o->attr == NULL) {
            continue;
        }
        size_t bytes = (size_t)o->attr->cache.size;
        if (!hwloc_bitmap_isequal(o->cpuset, core->cpuset)) { /* a core's own is no shared one */
            machine.shared_cache_bytes = bytes > machine.shared_cache_bytes ? bytes : machine.shared_cache_bytes;
        }
    }
}

static void read_cores(hwloc_topology_t topology)
{
    int n = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    n = n < MAX_CORES ? n : MAX_CORES;
    if (n <= 0 || hd_alloc((void **)&machine.core, (size_t)n, sizeof(cpu_set_t), "the cores") != HEDDLE_OK) {
        return;
    }
    for (int i = 0; i < n; i++) {
        cpus_of(&machine.core[i], hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, (unsigned)i)->cpuset);
    }
    machine.ncores = n;
}

/* Where a filter of system calls (seccomp) denies this one, hwloc asks for ever. EINVAL: more cores than fit the set,
 * which hwloc makes larger. Without an answer nobody is bound, and caches are of the usual sizes. */
static int may_ask_for_cores(void)
{
    cpu_set_t some;
    return sched_getaffinity(0, sizeof some, &some) == 0 || errno == EINVAL;
}

static void load(void)
{
    hwloc_topology_t topology;
    /* hwloc loads plug-ins from where its own variables say, whoever has set them */
    if (!hd_is_privileged() && may_ask_for_cores() && hwloc_topology_init(&topology) == 0) {
        hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
        hwloc_topology_set_cache_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL);
        hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
        if (hwloc_topology_load(topology) == 0) {
            read_caches(topology);
            read_cores(topology);
        }
        hwloc_topology_destroy(topology);
    }
    if (machine.shared_cache_bytes == 0) {
        const long bytes = sysconf(LEVEL3_CACHE);
        machine.shared_cache_bytes = bytes > 0 ? (size_t)bytes : USUAL_SHARED;
    }
}

void hd_topology_load(void)
{
    pthread_once(&loaded, load);
}

size_t hd_topology_shared_cache_bytes(void)
{
    hd_topology_load();
    return machine.shared_cache_bytes;
}

/* AUTO gives every rank an equal share of the cores, so that libraries with threads of their own keep several; where
 * there are fewer cores than ranks, or somebody bound this process already to less, it stays out of it. */
int hd_topology_bind(heddle_bind bind, int index, int n, cpu_set_t *before)
{
    cpu_set_t wanted;
    int mine = 0;
    if (bind == HEDDLE_BIND_NONE || sched_getaffinity(0, sizeof *before, before) != 0) {
        return 0;
    }
    hd_topology_load();
    int usable = 0;
    cpu_set_t common;
    for (int i = 0; i < machine.ncores; i++) {
        CPU_AND(&common, &machine.core[i], before);
        usable += CPU_COUNT(&common) > 0;
    }
    if (usable < n) {
        return 0;
    }
    int share = bind == HEDDLE_BIND_CORE ? 1 : usable / n;
    CPU_ZERO(&wanted);
    for (int i = 0, seen = 0; i < machine.ncores; i++) {
        CPU_AND(&common, &machine.core[i], before);
        if (CPU_COUNT(&common) > 0 && seen++ / share == index && mine < share) {
            CPU_OR(&wanted, &wanted, &common);
            mine++;
        }
    }
    return mine > 0 && sched_setaffinity(0, sizeof wanted, &wanted) == 0 ? mine : 0;
}
