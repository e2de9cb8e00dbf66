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
    char key[HD_KEY_BYTES]; /* what the ranks meet under; not by_mpi */
    int secret_chars;       /* of HEDDLE_KEY, which is part of it; 0: it is not set */
} hd_launch;

/* Where rank 0 is, for ranks of several hosts. */
typedef struct hd_launch_place {
    const char *host; /* MASTER_ADDR */
    int port;         /* HEDDLE_PORT, else the one after MASTER_PORT, which torchrun's own rank 0 listens at */
} hd_launch_place;

/* The launcher that started this process: HEDDLE_* before torchrun's variables before those of srun and mpirun.
 * HEDDLE_ERR_ARG: they contradict one another, or a value is missing or no number. */
heddle_status hd_launch_read(hd_launch *out);
/* HEDDLE_* and torchrun's alone: those that shared memory goes by. */
heddle_status hd_launch_read_local(hd_launch *out);
/* HEDDLE_ERR_ARG: a variable is not set, or a port is none. */
heddle_status hd_launch_read_place(hd_launch_place *out);
/* What ranks that share these texts meet under: a hash of them all, so that long ones that begin alike stay apart. */
void hd_launch_key(char key[HD_KEY_BYTES], const char *const *parts, int nparts);

#endif
