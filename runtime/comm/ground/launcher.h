/* What the environment says about the job this process belongs to. */
#ifndef HD_COMM_LAUNCHER_H
#define HD_COMM_LAUNCHER_H

#include <heddle/status.h>

enum { HD_KEY_BYTES = 65 };

typedef struct hd_launch {
    const char *name; /* "heddle", "torchrun", "srun", "mpirun"; NULL: no launcher */
    int by_mpi;       /* the ranks find one another through MPI */
    int rank;
    int size;               /* 0: only MPI knows */
    int here;               /* ranks on this host; by_mpi: not known */
    char says[128];         /* the variables and their values, for sentences */
    char key[HD_KEY_BYTES]; /* what the ranks of this host meet under; not by_mpi */
} hd_launch;

/* The launcher that started this process: HEDDLE_* before torchrun's variables before those of srun and mpirun.
 * HEDDLE_ERR_ARG: they contradict one another, or a value is missing or no number. */
heddle_status hd_launch_read(hd_launch *out);
/* HEDDLE_* and torchrun's alone: those that shared memory goes by. */
heddle_status hd_launch_read_local(hd_launch *out);
/* What ranks that share these texts meet under: a hash of them all, so that long ones that begin alike stay apart. */
void hd_launch_key(char key[HD_KEY_BYTES], const char *const *parts, int nparts);

#endif
