/* What the check of a case found, from every rank that found something. */
#ifndef HD_TEST_FOUND_H
#define HD_TEST_FOUND_H

#include <heddle/comm.h>
#include <stdio.h>

/* `st` and `problem` ("": none) of the check, `text` of the case. */
static inline heddle_status found(const heddle_comm *comm, heddle_status st, const char *problem, const char *text)
{
    if (st == HEDDLE_OK && problem[0] == 0) {
        return HEDDLE_OK;
    }
    fprintf(stderr, "rank %d: %s\n    %s\n", heddle_comm_rank(comm), text,
            problem[0] != 0 ? problem : heddle_last_error());
    return st != HEDDLE_OK ? st : HEDDLE_ERR_MISMATCH;
}

#endif
