/* How much memory a rank may reserve. */
#ifndef HD_COMM_ARENA_LIMITS_H
#define HD_COMM_ARENA_LIMITS_H

#include <heddle/status.h>
#include <stddef.h>
#include <stdint.h>

enum { HD_PAGE = 4096, HD_HUGE_PAGE = 2 << 20, HD_ARENA_WHY_BYTES = 144 };

/* Bytes to reserve for this rank's arena, one of n that it will map; wanted 0: as much as makes sense. why
 * (HD_ARENA_WHY_BYTES) continues "an arena of N bytes". HEDDLE_ERR_NOMEM: a limit of the process leaves too little. */
heddle_status hd_arena_bytes(size_t *out, char *why, int64_t wanted, size_t control_bytes, int n);
/* The end of a sentence about address space that ran out; empty without such a limit. */
void hd_describe_address_limit(char *text, size_t bytes);

#endif
