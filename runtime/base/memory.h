/* How much memory there still is: for the library, and for judges, which share nothing else with it. */
#ifndef HD_MEMORY_H
#define HD_MEMORY_H

#include <stddef.h>

enum { HD_WHERE_BYTES = 256 };

/* What this process may still have: of the machine's memory, and of each control group that it is in, of version 1 or
 * 2; where: who has the least. `root`: "", or a folder with a /proc and a /sys (tests). SIZE_MAX: nothing is known. */
size_t hd_available_bytes(char *where, size_t where_bytes, const char *root);

#endif
