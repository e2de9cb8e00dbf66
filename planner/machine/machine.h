/* A machine's figures. Rates are looked up by the size of what is done: between two points of a table the logarithms
 * are interpolated, outside the nearest point holds. */
#ifndef HD_MACHINE_H
#define HD_MACHINE_H

#include "runtime/document/node.h"

#include <heddle/machine.h>

/* What a rank does by itself, and what `size` is for its rate. */
typedef enum hd_work {
    HD_WORK_PRODUCT,   /* dense products: rows of the activation that the rank holds; flops */
    HD_WORK_ATTENTION, /* softmax attention: keys that a query sees; flops of scores and values */
    HD_WORK_LINEAR,    /* linear attention: rows of a fibre; flops */
    HD_WORK_MEMORY,    /* norms, residuals, gates: bytes read and written; bytes */
    HD_WORK_SHARDED,   /* as ATTENTION, where a method attends over a sharded dim; that of ATTENTION where not known */
    HD_WORKS
} hd_work;

/* What ranks exchange; `size` is the bytes that one rank sends in the call. */
typedef enum hd_exchange {
    HD_EXCHANGE_ALL_TO_ALL, /* a switch, heads to their owners */
    HD_EXCHANGE_RING,       /* a hop to the neighbour, everybody at the same time */
    HD_EXCHANGE_ALL_GATHER,
    HD_EXCHANGE_REDUCE_SCATTER,
    HD_EXCHANGES
} hd_exchange;

enum { HD_RATE_POINTS = 12, HD_RATE_GROUPS = 8, HD_MACHINE_LIMIT_BYTES = 1 << 20 };
enum { HD_MACHINE_NAME_BYTES = 64 /* of a file's name */, HD_MACHINE_CALLED_BYTES = 1024 };
enum { HD_MACHINE_MAX_RANKS = 1 << 20 };
#define HD_MACHINE_MEMORY_MAX (INT64_C(1) << 50)
#define HD_MACHINE_RATE_MAX 1e21 /* wider than anything real, as narrow as quotients need it; at least 1 */

typedef struct hd_rate {
    int npoints;                                             /* 0: not known */
    double size[HD_RATE_POINTS], per_second[HD_RATE_POINTS]; /* ascending sizes */
} hd_rate;

typedef struct hd_work_rate {
    double start_s; /* of one operation: launch cost */
    hd_rate rate;
} hd_work_rate;

/* One table per size of the group that was measured or published; others lie between. */
typedef struct hd_exchange_rate {
    int ngroups;
    struct {
        int ranks;
        double start_s;
        hd_rate rate; /* bytes per second that one rank sends */
    } group[HD_RATE_GROUPS];
} hd_exchange_rate;

typedef struct hd_link {
    char name[HEDDLE_NAME_BYTES];
    hd_exchange_rate exchange[HD_EXCHANGES];
} hd_link;

typedef struct hd_level {
    char name[HEDDLE_NAME_BYTES]; /* "gpu", "host" */
    int size;                     /* of the level below */
    int link;                     /* index in link[] */
} hd_level;

struct heddle_machine {
    char name[HD_MACHINE_CALLED_BYTES]; /* behind a file's name, and a space, what scaled.c made of the links */
    char *source;
    int ranks; /* the last ones of the outermost level may be missing */
    int nlevels, nlinks;
    hd_level level[HEDDLE_MACHINE_LINKS]; /* the innermost first */
    hd_link link[HEDDLE_MACHINE_LINKS];
    hd_work_rate work[HD_WORKS]
                     [HEDDLE_DTYPE_COUNT]; /* a dtype without points has those of f32, by the rule in rates.c */
    int64_t memory_bytes;
    double overlap_slowdown;  /* >= 1: what work and transfer cost each other where both run at once */
    double crowding_slowdown; /* >= 1: what a rank's work takes where all ranks of the innermost level work, as times of
                               * what it takes where it works alone; work[] is of all at work */
    int is_calibrated;
    int on_device; /* calibrated by blocks on devices, which take products of linear attention as those of any other */
};

/* Per second at this size. */
double hd_rate_at(const hd_rate *rate, double size);
/* Seconds of one operation. amount: flops (bytes for MEMORY); size: see hd_work. 0 where amount is 0. */
double hd_machine_work_s(const heddle_machine *machine, hd_work work, heddle_dtype dtype, double amount, double size);
/* What the seconds of work are to be multiplied by where `ranks` work: 1 where all do, less where cores that share
 * something have it for themselves. */
double hd_machine_crowding(const heddle_machine *machine, int64_t ranks);
/* Seconds of one exchange among `group` ranks (all that take part, near or far) of which the busiest rank sends or
 * receives `bytes` by links of this class. 0 where bytes is 0. */
double hd_machine_exchange_s(const heddle_machine *machine, int link, hd_exchange exchange, int group, double bytes);
/* 0: none, as of a machine that was calibrated with one rank. */
int hd_link_has_figures(const hd_link *link);
/* Whether no exchange of more bytes takes less, which figures that were measured need not obey. */
int hd_machine_is_monotone(const heddle_machine *machine);
/* The level that two different ranks meet on: the innermost that holds both; the outermost, where none does. */
int hd_machine_level(const heddle_machine *machine, int rank, int other);
/* An hd_document_reader; out: heddle_machine **. */
heddle_status hd_machine_read(void *out, const hd_node *root);

#endif
