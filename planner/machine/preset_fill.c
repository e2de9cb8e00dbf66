/* The machine that a preset's name means: figures of its GPU and its links become tables. */
#include "planner/machine/preset.h"
#include "runtime/base/base.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* NCCL's own times (tuning.cc, protocol Simple): of any exchange, and of a step over each kind of link. */
static const double base_s = 8.4e-6, nvlink_step_s = 3.4e-6, pcie_step_s = 5.7e-6, network_step_s = 14e-6;
/* Of the data sheet's memory rate, what a copy reaches. */
static const double memory_part = 0.9;
/* All-to-all against ring on NVLink: 0.82 to 0.85 in the published tables of Galvatron and SimAI. */
static const double all_to_all_part = 0.84;
/* Smaller groups on NVLink: Galvatron's all-to-all of 2, 4 and 8 ranks, 163, 180 and 197 GB/s. */
static const struct {
    int ranks;
    double part;
} smaller_groups[] = {{2, 163.0 / 197}, {4, 180.0 / 197}, {8, 1}};

static void set_group(hd_exchange_rate *rate, int ranks, double start_s, double per_second)
{
    int n = rate->ngroups;
    if (n > 0 && rate->group[n - 1].ranks >= ranks) {
        return;
    }
    rate->group[n].ranks = ranks;
    rate->group[n].start_s = start_s;
    rate->group[n].rate.npoints = 1;
    rate->group[n].rate.size[0] = 1;
    rate->group[n].rate.per_second[0] = per_second;
    rate->ngroups++;
}

/* Half of what large ones reach is reached at `half`. */
static void set_work(hd_work_rate *work, double start_s, double most, double half, const double *size, int n)
{
    work->start_s = start_s;
    work->rate.npoints = n;
    for (int i = 0; i < n; i++) {
        work->rate.size[i] = size[i];
        work->rate.per_second[i] = most * size[i] / (size[i] + half);
    }
}

/* Launch costs as CUDA graphs and eager frameworks lie around them. Products of few rows wait for their weights: the
 * more so the more arithmetic the GPU has for a byte. Linear attention is products of head width. */
static void fill_work(heddle_machine *machine, const hd_gpu *g)
{
    static const double rows[] = {16, 64, 256, 1024, 4096, 16384, 65536},
                        bytes[] = {1 << 16, 1 << 20, 1 << 24, 1 << 28};
    const double half_rows = g->bf16_flops / g->memory_per_second;
    set_work(&machine->work[HD_WORK_PRODUCT][HEDDLE_BF16], 5e-6, g->product * g->bf16_flops, half_rows, rows, 7);
    set_work(&machine->work[HD_WORK_PRODUCT][HEDDLE_F32], 5e-6, g->product * g->f32_flops, half_rows / 8, rows, 7);
    set_work(&machine->work[HD_WORK_ATTENTION][HEDDLE_BF16], 8e-6, g->attention * g->bf16_flops, half_rows, rows, 7);
    set_work(&machine->work[HD_WORK_ATTENTION][HEDDLE_F32], 8e-6, g->attention * g->f32_flops, half_rows / 8, rows, 7);
    set_work(&machine->work[HD_WORK_LINEAR][HEDDLE_BF16], 8e-6, 0.25 * g->bf16_flops, 2 * half_rows, rows, 7);
    set_work(&machine->work[HD_WORK_LINEAR][HEDDLE_F32], 8e-6, 0.25 * g->f32_flops, half_rows / 4, rows, 7);
    set_work(&machine->work[HD_WORK_MEMORY][HEDDLE_F32], 4e-6, memory_part * g->memory_per_second, 1 << 18, bytes, 4);
}

static hd_link *add_level(heddle_machine *machine, const char *level, int size, const char *link)
{
    hd_level *l = &machine->level[machine->nlevels];
    hd_link *made = &machine->link[machine->nlinks];
    snprintf(l->name, sizeof l->name, "%s", level);
    snprintf(made->name, sizeof made->name, "%s", link);
    l->size = size;
    l->link = machine->nlinks++;
    machine->nlevels++;
    return made;
}

static void fill_nvlink(hd_link *link, double most, double start_s, int gpus)
{
    hd_exchange_rate *of = link->exchange;
    for (size_t i = 0; i < sizeof smaller_groups / sizeof smaller_groups[0]; i++) {
        const int n = smaller_groups[i].ranks;
        const double ring = most * smaller_groups[i].part;
        set_group(&of[HD_EXCHANGE_ALL_TO_ALL], n, start_s, all_to_all_part * ring);
        set_group(&of[HD_EXCHANGE_ALL_GATHER], n, base_s + (n - 1) * nvlink_step_s, ring);
        set_group(&of[HD_EXCHANGE_REDUCE_SCATTER], n, base_s + (n - 1) * nvlink_step_s, ring);
    }
    set_group(&of[HD_EXCHANGE_RING], 2, base_s + nvlink_step_s, most);
    if (gpus > 8) {
        set_group(&of[HD_EXCHANGE_ALL_GATHER], gpus, base_s + (gpus - 1) * nvlink_step_s, most);
        set_group(&of[HD_EXCHANGE_REDUCE_SCATTER], gpus, base_s + (gpus - 1) * nvlink_step_s, most);
    }
}

/* By PCIe: a ring has the links to itself, an all-to-all shares what lies between. */
static void fill_pcie(hd_link *link, int gpus, double ring, double all_to_all)
{
    hd_exchange_rate *of = link->exchange;
    const int n = gpus > 1 ? gpus : 2;
    set_group(&of[HD_EXCHANGE_ALL_TO_ALL], n, base_s + n * pcie_step_s, all_to_all);
    set_group(&of[HD_EXCHANGE_RING], 2, base_s + pcie_step_s, ring);
    set_group(&of[HD_EXCHANGE_ALL_GATHER], n, base_s + (n - 1) * pcie_step_s, ring);
    set_group(&of[HD_EXCHANGE_REDUCE_SCATTER], n, base_s + (n - 1) * pcie_step_s, ring);
}

/* Between two sockets. In a ring of all GPUs one of each socket sends to the other, in pairs all of them do: they share
 * what one has. 10 GB/s of the ring and 1.2 GB/s of an all-to-all (of which four of seven parts cross) are computed
 * back from published times of 8 L20, and rough. */
static void fill_sockets(hd_link *link, int gpus)
{
    const double ring = 10e9, crossing = 1.2e9 * 4 / 7;
    const int half = gpus / 2;
    hd_exchange_rate *of = link->exchange;
    set_group(&of[HD_EXCHANGE_ALL_TO_ALL], gpus, base_s + gpus * pcie_step_s, crossing);
    for (int shares = half; shares >= 1; shares = shares > 1 ? 1 : 0) { /* groups of a pair, of all */
        const int n = shares == 1 ? gpus : 2;
        const double start = base_s + (n - 1) * pcie_step_s;
        set_group(&of[HD_EXCHANGE_RING], n, base_s + pcie_step_s, ring / shares);
        set_group(&of[HD_EXCHANGE_ALL_GATHER], n, start, ring / shares);
        set_group(&of[HD_EXCHANGE_REDUCE_SCATTER], n, start, ring / shares);
    }
}

/* Each GPU has a share of its host's cards. A gather crosses the network once for all GPUs of a host, which hand it on
 * to one another; a hop crosses once for each group that lies on the host.
 * Groups are taken as spread over all hosts, since a table knows their size alone: on fewer hosts the figures are a
 * little slow. */
static void fill_network(hd_link *link, const hd_preset *p)
{
    static const struct {
        int hosts;
        double start_s; /* AutoParallel's fit of H100 hosts: 2, 4 and 8 measured, 16 and 32 extrapolated */
    } known[] = {{2, 37e-6}, {4, 42e-6}, {8, 60e-6}, {16, 98e-6}, {32, 290e-6}};
    const int cards = p->network->cards_per_host > 0 ? p->network->cards_per_host : p->gpus, all = p->hosts * p->gpus;
    const double line = 0.96 * p->network->card_per_second, share = line * cards / p->gpus;
    const double step_s = p->gpu->nvlink_ring > 0 ? nvlink_step_s : pcie_step_s;
    hd_exchange_rate *of = link->exchange;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        set_group(&of[HD_EXCHANGE_ALL_TO_ALL], known[i].hosts * p->gpus, known[i].start_s,
                  share * (1 - 0.44 / known[i].hosts));
    }
    const double hosts_s = base_s + (p->hosts - 1) * network_step_s;
    const double inner_s = (p->gpus - 1) * step_s;
    set_group(&of[HD_EXCHANGE_RING], p->hosts, base_s + network_step_s, share);
    set_group(&of[HD_EXCHANGE_RING], all, base_s + network_step_s, fmin(line, share * p->gpus));
    for (hd_exchange e = HD_EXCHANGE_ALL_GATHER; e <= HD_EXCHANGE_REDUCE_SCATTER; e++) {
        set_group(&of[e], p->hosts, hosts_s, share);
        set_group(&of[e], all, hosts_s + inner_s, share * p->gpus);
    }
}

static heddle_status write_source(heddle_machine *machine, const hd_preset *p)
{
    char text[2048];
    snprintf(text, sizeof text,
             "%s%s%s%s Start times as NCCL's tuner has them; work and transfer at once cost each other %.3g %% "
             "(Galvatron). Published figures rank plans, heddle calibrate predicts seconds.",
             p->gpu->source,
             p->gpu->nvlink_ring > 0 ? " All-to-all 0.84 of a ring (Galvatron, SimAI)."
                                     : " PCIe: rough, computed back from published times of 8 L20 on two sockets.",
             p->network != NULL ? " " : "", p->network != NULL ? p->network->source : "",
             100 * (machine->overlap_slowdown - 1));
    return hd_strdup(&machine->source, text);
}

void hd_preset_add_near(heddle_machine *machine, hd_near near, int size, int within, double nvlink_ring,
                        double nvlink_start_s)
{
    static const char *const level[HD_NEARS] = {"gpu", "switch", "bridge", "socket"};
    const char *name = machine->nlevels == 0 ? "gpu" : level[near];
    switch (near) {
    case HD_NEAR_NVLINK:
        fill_nvlink(add_level(machine, name, size, "nvlink"), nvlink_ring, nvlink_start_s, within);
        break;
    case HD_NEAR_SWITCH:
        fill_pcie(add_level(machine, name, size, "switch"), within, 20e9, 16e9); /* everybody has a link to itself */
        break;
    case HD_NEAR_BRIDGE:
        fill_pcie(add_level(machine, name, size, "pcie"), within, 16e9, 8e9); /* one socket, over the host bridge */
        break;
    default:
        fill_sockets(add_level(machine, name, size, "upi"), within);
        break;
    }
}

heddle_status hd_preset_fill(heddle_machine *machine, const hd_preset *p)
{
    const hd_gpu *g = p->gpu;
    const int sockets = g->nvlink_ring == 0 && p->gpus > 4 ? 2 : 1;
    const int near = (p->gpus + sockets - 1) / sockets;
    fill_work(machine, g);
    hd_preset_add_near(machine, g->nvlink_ring > 0 ? HD_NEAR_NVLINK : HD_NEAR_BRIDGE, near, near, g->nvlink_ring,
                       g->start_s);
    if (sockets == 2) {
        hd_preset_add_near(machine, HD_NEAR_SOCKETS, sockets, p->gpus, 0, 0);
    }
    if (p->network != NULL) {
        fill_network(add_level(machine, "host", p->hosts, p->network->name), p);
    }
    machine->ranks = p->hosts * p->gpus;
    machine->memory_bytes = g->memory_mib << 20;
    machine->crowding_slowdown = 1;
    machine->overlap_slowdown = 1.126; /* Galvatron's published coefficient */
    return write_source(machine, p);
}
