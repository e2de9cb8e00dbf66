/* Figures of GPUs and networks, each with its source. What large products and attentions reach is a part of the data
 * sheet's dense rate; a size at which half of it is reached (preset_fill.c) gives the small ones. */
#include "planner/machine/preset.h"

#define T 1e12
#define G 1e9

const hd_gpu hd_gpus[] = {
    {"h100", "nvlink", 989.4 * T, 66.9 * T, 0.80, 0.58, 3352 * G, 81559, 370 * G, 50e-6,
     "H100 SXM data sheet: 989 TFLOP/s bf16, 67 f32, 3.35 TB/s; products of 798 TFLOP/s and 90 % of the memory rate "
     "as measured on the card; NVLink 370 GB/s as NCCL's maintainers give it, 50 us as AutoParallel fitted it."},
    {"h200", "nvlink", 989.4 * T, 66.9 * T, 0.80, 0.58, 4800 * G, 143771, 370 * G, 50e-6,
     "H200 SXM data sheet: 989 TFLOP/s bf16, 67 f32, 4.8 TB/s; products of 770 to 798 TFLOP/s and 4.3 TB/s as measured "
     "on the card; NVLink as H100."},
    {"h800", "nvlink", 989.4 * T, 66.9 * T, 0.80, 0.58, 3352 * G, 81559, 165 * G, 50e-6,
     "H800 data sheet: H100 with 8 of its 18 NVLinks, 20.6 GB/s each as NCCL counts them."},
    {"h20", "nvlink", 148 * T, 44 * T, 0.92, 0.85, 4000 * G, 97871, 370 * G, 50e-6,
     "H20 data sheet: 148 TFLOP/s bf16, 44 f32, 4.0 TB/s, NVLink as H100; little arithmetic for its memory rate, so "
     "more of it is reached."},
    {"a100", "nvlink", 312 * T, 19.5 * T, 0.80, 0.62, 2039 * G, 81920, 231 * G, 104e-6,
     "A100 SXM 80 GB data sheet: 312 TFLOP/s bf16, 19.5 f32, 2.04 TB/s; NVLink 231 GB/s of an all-reduce and 104 us of "
     "an all-to-all as in Galvatron's published profile of an NVLink node."},
    {"a800", "nvlink", 312 * T, 19.5 * T, 0.80, 0.62, 2039 * G, 81920, 154 * G, 104e-6,
     "A800 data sheet: A100 with 8 of its 12 NVLinks."},
    {"h100", "pcie", 756 * T, 51 * T, 0.72, 0.52, 2039 * G, 81559, 0, 0,
     "H100 PCIe data sheet: 756 TFLOP/s bf16, 51 f32, 2.0 TB/s; it throttles at 350 W."},
    {"h200", "pcie", 835 * T, 60 * T, 0.75, 0.55, 4800 * G, 143771, 0, 0,
     "H200 NVL data sheet: 835 TFLOP/s bf16, 60 f32, 4.8 TB/s."},
    {"h800", "pcie", 756 * T, 51 * T, 0.72, 0.52, 2039 * G, 81559, 0, 0, "H800 PCIe data sheet: as H100 PCIe."},
    {"h20", "pcie", 148 * T, 44 * T, 0.92, 0.85, 4000 * G, 97871, 0, 0,
     "H20 data sheet: 148 TFLOP/s bf16, 44 f32, 4.0 TB/s."},
    {"a100", "pcie", 312 * T, 19.5 * T, 0.72, 0.58, 1935 * G, 81920, 0, 0,
     "A100 PCIe 80 GB data sheet: 312 TFLOP/s bf16, 19.5 f32, 1.94 TB/s; it throttles at 300 W."},
    {"a800", "pcie", 312 * T, 19.5 * T, 0.72, 0.58, 1935 * G, 81920, 0, 0, "A800 PCIe data sheet: as A100 PCIe."},
    {"l20", "pcie", 119.5 * T, 59.8 * T, 0.85, 0.70, 864 * G, 46068, 0, 0,
     "L20 data sheet: 119.5 TFLOP/s bf16, 59.8 f32, 864 GB/s."},
    {"l40", "pcie", 181 * T, 90.5 * T, 0.80, 0.62, 864 * G, 46068, 0, 0,
     "L40 data sheet: 181 TFLOP/s bf16, 90.5 f32, 864 GB/s."},
    {NULL}};

const hd_network hd_networks[] = {
    {"ib400", 50 * G, 0,
     "InfiniBand NDR, 400 Gb/s: a card for each GPU; all-to-all 1 - 0.44 / hosts of the line and 37 to 290 us as "
     "AutoParallel fitted it."},
    {"ib200", 25 * G, 0, "InfiniBand HDR, 200 Gb/s: a card for each GPU; efficiencies and times as for 400 Gb/s."},
    {"eth100", 12.5 * G, 1,
     "Ethernet, 100 Gb/s: one card for the GPUs of a host, of which NCCL takes 12 GB/s; times as for InfiniBand."},
    {NULL}};
