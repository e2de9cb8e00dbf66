/* What a reshard must give, by one process, element by element; of the library only heddle_layout_box. */
#ifndef HD_VERIFY_ORACLE_H
#define HD_VERIFY_ORACLE_H

#include <heddle/reshard.h>

/* src[r] and dst[r] are the dense local arrays of every rank. HEDDLE_ERR_LAYOUT; HEDDLE_ERR_NOMEM. */
heddle_status oracle_reshard(const heddle_reshard_line *line, const void *const *src, void *const *dst);

#endif
