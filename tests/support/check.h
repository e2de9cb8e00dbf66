/* What must hold in the functions of a rank. Only a case's own process may use cmocka's asserts; a rank returns an
 * error, which names the place, what does not hold, and the library's last sentence. */
#ifndef HD_TEST_CHECK_H
#define HD_TEST_CHECK_H

#include <heddle/status.h>
#include <stdio.h>

static inline heddle_status hd_check_failed(const char *file, int line, const char *condition)
{
    char last[400];
    snprintf(last, sizeof last, "%s", heddle_last_error());
    return heddle_set_error(HEDDLE_ERR_INTERNAL, "%s:%d: %s (last: %s)", file, line, condition, last);
}

/* Wants `heddle_status st` and a label `out`, as HD_TRY does. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            st = hd_check_failed(__FILE__, __LINE__, #condition);                                                      \
            goto out;                                                                                                  \
        }                                                                                                              \
    } while (0)

/* Where there is nothing to release. */
#define CHECK_OR_RETURN(condition)                                                                                     \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            return hd_check_failed(__FILE__, __LINE__, #condition);                                                    \
        }                                                                                                              \
    } while (0)

/* In ranks under mpirun, which it ends. */
#define CHECK_OR_ABORT(condition)                                                                                      \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            heddle_ignore(hd_check_failed(__FILE__, __LINE__, #condition));                                            \
            fprintf(stderr, "%s\n", heddle_last_error());                                                              \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                              \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

#endif
