/* This host as a machine: a rank per core, bytes through its memory. The figures are guesses that any present server
 * core is within a small factor of; `heddle calibrate` measures. */
#include "planner/machine/host.h"
#include "planner/machine/preset.h"
#include "runtime/base/base.h"

#include <stdio.h>
#include <unistd.h>

static const double flops_per_core = 40e9, attention_part = 0.5, linear_part = 0.3;
static const double memory_per_core = 6e9, copied_per_core = 4e9, start_s = 5e-6, exchange_start_s = 20e-6;

static void set_rate(hd_work_rate *work, double most, double half)
{
    static const double size[] = {4, 16, 64, 256, 1024};
    work->start_s = start_s;
    work->rate.npoints = (int)(sizeof size / sizeof size[0]);
    for (int i = 0; i < work->rate.npoints; i++) {
        work->rate.size[i] = size[i];
        work->rate.per_second[i] = most * size[i] / (size[i] + half);
    }
}

/* Without hwloc's answer, what the system says of processors. */
static heddle_status ask(heddle_host_info *host, const char *xml)
{
    *host = (heddle_host_info){.struct_bytes = 0};
    const heddle_status st = hd_host_read(host, xml);
    if (st != HEDDLE_OK && xml == NULL) {
        const long n = sysconf(_SC_NPROCESSORS_ONLN);
        *host = (heddle_host_info){.cores = n > 0 ? (int)n : 1};
        return HEDDLE_OK;
    }
    return st;
}

heddle_status hd_preset_fill_cpu(heddle_machine *machine, const char *xml)
{
    heddle_host_info host;
    const heddle_status st = ask(&host, xml);
    if (st != HEDDLE_OK) {
        return st;
    }
    hd_exchange_rate *all = machine->link[0].exchange;
    set_rate(&machine->work[HD_WORK_PRODUCT][HEDDLE_F32], flops_per_core, 16);
    set_rate(&machine->work[HD_WORK_ATTENTION][HEDDLE_F32], attention_part * flops_per_core, 16);
    set_rate(&machine->work[HD_WORK_LINEAR][HEDDLE_F32], linear_part * flops_per_core, 16);
    machine->work[HD_WORK_MEMORY][HEDDLE_F32] = (hd_work_rate){start_s, {1, {1}, {memory_per_core}}};
    for (hd_exchange e = 0; e < HD_EXCHANGES; e++) {
        all[e].ngroups = 1;
        all[e].group[0].ranks = 2;
        all[e].group[0].start_s = exchange_start_s;
        all[e].group[0].rate = (hd_rate){.npoints = 1, .size = {1}, .per_second = {copied_per_core}};
    }
    machine->nlevels = machine->nlinks = 1;
    machine->level[0] = (hd_level){.name = "core", .size = host.cores};
    snprintf(machine->link[0].name, sizeof machine->link[0].name, "shm");
    machine->ranks = host.cores;
    const int64_t own = host.memory_bytes / host.cores; /* what an export says may be nonsense */
    machine->memory_bytes = own <= HD_MACHINE_MEMORY_MAX ? own : 0;
    machine->crowding_slowdown = 1;
    machine->overlap_slowdown = 2; /* the cores that work are those that copy */
    return hd_strdup(&machine->source,
                     "Rough figures of any core, not of this one: 40 GFLOP/s, 4 GB/s copied; they rank "
                     "plans. heddle calibrate measures.");
}
