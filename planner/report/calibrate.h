/* A machine that was measured: what `heddle calibrate` prints. */
#ifndef HD_REPORT_CALIBRATE_H
#define HD_REPORT_CALIBRATE_H

#include "runtime/verify/calibrate.h"

/* Around the times. */
typedef struct calibrate_told {
    const char *machine, *comm, *file; /* its name, how ranks are joined, where it was saved */
    int ranks, cores;                  /* that this process may use; 0: not known */
    double seconds;                    /* that it took */
    int64_t memory_bytes;              /* of a rank; 0: not known */
} calibrate_told;

void report_calibrate(const calibrate_told *about, const calibrate_result *result, int json);

#endif
