/* A machine as the planner sees it: how fast a rank computes, how fast ranks exchange bytes, how much memory one has.
 *
 *   8xh100-nvlink            one host of 8 GPUs
 *   2x8xh100-nvlink+ib400    two of them, behind 400 Gb/s InfiniBand
 *   cpu                      this host: one rank per core, shared memory
 *   machine.yaml             a file (docs/formats.md); `heddle calibrate` writes one
 *
 * Levels lie in each other, from the innermost: ranks 0..7 share a host, hosts share a network. What crosses a level
 * has the price of that level's link class. Rank numbers are dealt out host by host, as launchers do.
 *
 * A machine is a plain immutable object; any thread. Presets repeat published figures, whose sources `heddle presets`
 * prints; they rank plans, and a calibrated machine predicts seconds.
 */
#ifndef HEDDLE_MACHINE_H
#define HEDDLE_MACHINE_H

#include <heddle/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_machine heddle_machine;

enum { HEDDLE_MACHINE_LINKS = 4 /* link classes of one machine */ };

typedef struct heddle_machine_info {
    size_t struct_bytes;                    /* HEDDLE_EMPTY sets it */
    const char *name;                       /* owned by the machine, like all pointers here */
    const char *source;                     /* where the figures come from, a sentence */
    int ranks;                              /* of the whole machine */
    int nlinks;                             /* levels of links, the innermost first */
    const char *link[HEDDLE_MACHINE_LINKS]; /* class of the level: "nvlink", "ib400" */
    int ranks_within[HEDDLE_MACHINE_LINKS]; /* ranks that reach one another by links up to this level */
    int64_t memory_bytes;                   /* of a rank; 0: not known */
    int is_calibrated;                      /* 1: measured by heddle calibrate, 0: from published figures */
} heddle_machine_info;

/* What a host consists of. */
typedef struct heddle_host_info {
    size_t struct_bytes;                      /* HEDDLE_EMPTY sets it */
    int packages, numa_nodes, cores, threads; /* that this process may use */
    int64_t memory_bytes;                     /* 0: not known */
    int64_t l2_bytes, l3_bytes;               /* of one cache; 0: none */
    int l2_caches, l3_caches;
    int gpus;     /* 0: hwloc sees none */
    char cpu[64]; /* model; "": not known */
    char gpu[64]; /* model of the first GPU */
} heddle_host_info;

/* Of this host (xml NULL), or of the host on which `hwloc-ls FILE.xml` wrote this file. Any thread. hwloc
 * reads a file in a child process of at most 20 seconds, for it does not survive every file. HEDDLE_ERR_IO: no such
 * file. HEDDLE_ERR_PARSE: it is no topology. HEDDLE_ERR_NOMEM: no child. HEDDLE_ERR_UNSUPPORTED: this process may not
 * ask. */
HEDDLE_CHECKED heddle_status heddle_host_get_info(heddle_host_info *out, const char *xml);

/* A preset's name, or else a file (YAML or JSON; at most 1 MiB). The caller owns *out. HEDDLE_ERR_ARG: neither; the
 * sentence names the form and the nearest preset. HEDDLE_ERR_IO: the file cannot be read. HEDDLE_ERR_PARSE: it does not
 * follow the format. HEDDLE_ERR_LAYOUT: it contradicts itself (levels that hold no whole number of the level below, a
 * class that no level has, rates that are not positive). These two begin with file:line:column. */
HEDDLE_CHECKED heddle_status heddle_machine_load(heddle_machine **out, const char *name);
/* Names of usual presets, for lists and completion; NULL behind the last. The form of all is above. */
HEDDLE_API const char *heddle_machine_preset_name(int nth);
/* The same from memory; `name` stands for the file in sentences. */
HEDDLE_CHECKED heddle_status heddle_machine_parse(heddle_machine **out, const char *text, size_t text_bytes,
                                                  const char *name);
/* The same machine with another number of ranks: fewer or more of its outermost level. HEDDLE_ERR_ARG: ranks < 1,
 * or more than one of a machine that was calibrated with one. */
HEDDLE_CHECKED heddle_status heddle_machine_resize(heddle_machine *machine, int ranks);
/* Another machine, whose links of class `link` (NULL: of every class) carry `factor` times the bytes per second; what
 * an exchange takes to begin, and all else, is as it was. A plan can be asked for on it, or a schedule forecast, as if
 * links were slower. Name and source say it. The caller owns *out, which needs `machine` no more.
 * HEDDLE_ERR_ARG: NULL, no such class, a factor that is no number above 0, rates that leave 1 to 1e21 bytes per
 * second. */
HEDDLE_CHECKED heddle_status heddle_machine_scaled(heddle_machine **out, const heddle_machine *machine,
                                                   const char *link, double factor);
/* What a host shows of itself. matrix: a file with the text of `nvidia-smi topo -m`, whose GPUs become the ranks; gpu:
 * which they are ("h100"; NULL: what the number of NVLinks suggests). Without a matrix a rank per core of this host, or
 * of the one whose hwloc export `xml` is; figures are those of presets. A machine that is as a preset has its name.
 * HEDDLE_ERR_ARG: no such gpu. HEDDLE_ERR_IO. HEDDLE_ERR_PARSE: no such text; begins with file:line. HEDDLE_ERR_LAYOUT:
 * GPUs that are near one another are not neighbours by number, or groups are not alike. */
HEDDLE_CHECKED heddle_status heddle_machine_discover(heddle_machine **out, const char *xml, const char *matrix,
                                                     const char *gpu);

/* Start and rate that times gave. */
typedef struct heddle_import_row {
    char link[HEDDLE_NAME_BYTES]; /* class whose figures they are */
    const char *exchange;         /* "all_to_all", "ring", "all_gather", "reduce_scatter" */
    int ranks, times;
    double start_s, bytes_per_s;
    double worst_error; /* of what the machine now says against the times; 0 without times */
} heddle_import_row;

enum { HEDDLE_IMPORT_ROWS = 32 };
typedef struct heddle_import_info {
    size_t struct_bytes; /* HEDDLE_EMPTY sets it */
    int nrows;
    heddle_import_row row[HEDDLE_IMPORT_ROWS];
} heddle_import_info;

/* Measured times replace figures of links. format: "nccl-tests", the text that alltoall_perf, all_gather_perf,
 * reduce_scatter_perf, all_reduce_perf and sendrecv_perf print, several behind one another too; or "galvatron", its
 * JSON of all2all_size_8_64MB_time and allreduce_size_8_64MB_time (ms), or of allreduce_size_8_consec_1 and pp_size_8
 * (GB/s; times of the row is then 0, the start stays), or of overlap_coe. A group's times belong to the level that
 * holds its ranks, and of their bytes those that cross it. info may be NULL. On an error the machine stays as it was.
 * HEDDLE_ERR_ARG, HEDDLE_ERR_IO, HEDDLE_ERR_PARSE, HEDDLE_ERR_LAYOUT: more ranks than the machine has.
 * HEDDLE_ERR_INFEASIBLE: times that no start and rate explain. */
HEDDLE_CHECKED heddle_status heddle_machine_import(heddle_machine *machine, const char *format, const char *path,
                                                   heddle_import_info *info);
/* YAML that heddle_machine_load reads back. The file replaces what is there only when it is whole; "-" is standard
 * output. HEDDLE_ERR_IO. */
HEDDLE_CHECKED heddle_status heddle_machine_save(const heddle_machine *machine, const char *path);
HEDDLE_API void heddle_machine_destroy(heddle_machine *machine); /* NULL is legal */
/* HEDDLE_ERR_ARG: NULL. Pointers live as long as the machine. */
HEDDLE_CHECKED heddle_status heddle_machine_get_info(heddle_machine_info *out, const heddle_machine *machine);

#ifdef __cplusplus
}
#endif

#endif
