/* Memory that ranks of one host reach of one another: names of places in it, and their addresses. */
#ifndef HD_COMM_WINDOW_H
#define HD_COMM_WINDOW_H

#include <stddef.h>
#include <stdint.h>

/* What the others reach of a rank's memory, as mapped in this process: its arena, or, between threads, all; 0 bytes:
 * none. The name of a place is its offset plus one, the same in every process; 0 names nothing. */
typedef struct hd_window {
    uintptr_t base;
    size_t bytes;
} hd_window;

/* 0: not all of it lies in the window. Zero bytes lie anywhere. */
static inline uint64_t hd_window_name(hd_window window, const void *memory, size_t bytes)
{
    uintptr_t offset = (uintptr_t)memory - window.base;
    return bytes == 0 ? 1 : bytes <= window.bytes && offset <= window.bytes - bytes ? (uint64_t)offset + 1 : 0;
}
static inline void *hd_window_at(hd_window window, uint64_t name)
{
    return name - 1 < window.bytes ? (void *)(window.base + (uintptr_t)(name - 1)) : NULL;
}

#endif
