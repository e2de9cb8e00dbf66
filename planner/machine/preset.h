/* Machines by name: [NODESx]NxGPU-INTERCONNECT[+NETWORK], and cpu. */
#ifndef HD_PRESET_H
#define HD_PRESET_H

#include "planner/machine/machine.h"

#define HD_PRESET_FORM "[HOSTSx]NxGPU-INTERCONNECT[+NETWORK], as 8xh100-nvlink or 2x8xh100-nvlink+ib400"

/* What one GPU does. NVLink 0: it has none. */
typedef struct hd_gpu {
    const char *name, *interconnect;
    double bf16_flops, f32_flops; /* dense, of the data sheet */
    double product, attention;    /* what part of it large ones reach */
    double memory_per_second;     /* bytes, of the data sheet */
    int64_t memory_mib;           /* as the driver reports it */
    double nvlink_ring;           /* bytes per second of a rank in a ring over all of a host; 0: no NVLink */
    double start_s;               /* of an all-to-all of 8 over NVLink */
    const char *source;
} hd_gpu;

typedef struct hd_network {
    const char *name;
    double card_per_second; /* bytes that one card sends */
    int cards_per_host;     /* 0: one for each GPU */
    const char *source;
} hd_network;

/* Up to a row without a name. */
extern const hd_gpu hd_gpus[];
extern const hd_network hd_networks[];

/* A name in its parts. */
typedef struct hd_preset {
    int hosts, gpus; /* of a host */
    const hd_gpu *gpu;
    const hd_network *network; /* NULL: one host */
} hd_preset;

/* A name as presets have it, in small letters; cut where `out` ends. `out` may be `name`. */
void hd_preset_lower(char *out, size_t bytes, const char *name);
/* In any case. HEDDLE_ERR_ARG: why the text is no preset's name, with the form and what is near. */
heddle_status hd_preset_parse(hd_preset *out, const char *text);
/* Fills an empty machine. */
heddle_status hd_preset_fill(heddle_machine *machine, const hd_preset *preset);
/* A host, this one or that of hwloc's export: a rank per core. */
heddle_status hd_preset_fill_cpu(heddle_machine *machine, const char *xml);

/* How near GPUs of one host are to one another. */
typedef enum hd_near { HD_NEAR_NVLINK, HD_NEAR_SWITCH, HD_NEAR_BRIDGE, HD_NEAR_SOCKETS, HD_NEARS } hd_near;
/* One more level, `size` times what there is, which holds `within` GPUs then. */
void hd_preset_add_near(heddle_machine *machine, hd_near near, int size, int within, double nvlink_ring,
                        double nvlink_start_s);

#endif
