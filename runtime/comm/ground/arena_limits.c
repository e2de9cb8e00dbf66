/* How much memory a rank may reserve: the limits that its user or a batch system put on the process. A limit that is
 * passed kills (RLIMIT_FSIZE) or leaves nothing to start with (RLIMIT_AS), so they are asked before. What is handed out
 * of it is held against what the machine has left (runtime/base/memory.c).
 */
#include "runtime/comm/ground/arena_limits.h"

#include "runtime/base/base.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#ifdef __GLIBC__
typedef __rlimit_resource_t resource_kind; /* an enum there; POSIX has an int */
#else
typedef int resource_kind;
#endif

static size_t limit_of(resource_kind resource)
{
    struct rlimit limit;
    return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? (size_t)limit.rlim_cur : SIZE_MAX;
}

/* Address space that this process uses. */
static size_t mapped_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file != NULL) {
        if (fscanf(file, "%llu", &pages) != 1) {
            pages = 0;
        }
        fclose(file);
    }
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

void hd_describe_address_limit(char *text, size_t bytes)
{
    size_t limit = limit_of(RLIMIT_AS);
    text[0] = 0;
    if (limit != SIZE_MAX) {
        snprintf(text, bytes, "; RLIMIT_AS (ulimit -v) is %zu bytes, of which this process uses %zu", limit,
                 mapped_bytes());
    }
}

/* The smaller of *bytes and what a limit leaves; notes the limit in why. */
static void keep_within(size_t *bytes, size_t allowed, char *why, const char *text)
{
    if (allowed < *bytes) {
        *bytes = allowed;
        snprintf(why, HD_ARENA_WHY_BYTES, "%s", text);
    }
}

heddle_status hd_arena_bytes(size_t *out, char *why, int64_t wanted, size_t control_bytes, int n)
{
    char text[HD_ARENA_WHY_BYTES];
    size_t bytes = wanted > 0 ? (size_t)wanted : (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    size_t most = ((size_t)1 << 45) / (size_t)n; /* all arenas together: a quarter of the address space */
    bytes = (bytes < most ? bytes : most) + control_bytes;
    bytes = (bytes + HD_HUGE_PAGE - 1) / HD_HUGE_PAGE * HD_HUGE_PAGE;
    size_t asked = bytes;
    snprintf(why, HD_ARENA_WHY_BYTES, "%s", wanted > 0 ? ", which arena_bytes (--arena) asked for" : "");
    size_t file_limit = limit_of(RLIMIT_FSIZE);
    snprintf(text, sizeof text, ", kept small by RLIMIT_FSIZE (ulimit -f), %zu bytes", file_limit);
    keep_within(&bytes, file_limit, why, text);
    size_t address_limit = limit_of(RLIMIT_AS);
    if (address_limit != SIZE_MAX) {
        size_t used = mapped_bytes();
        size_t left = address_limit > used ? address_limit - used : 0;
        left = left > HD_HUGE_PAGE ? left - HD_HUGE_PAGE : 0; /* mapping to a border takes that more for a moment */
        /* half stays for the heap, stacks and libraries, if nobody has said how much is to be reserved */
        snprintf(text, sizeof text,
                 ", kept small by RLIMIT_AS (ulimit -v), %zu bytes of which %zu are used, for %d ranks", address_limit,
                 used, n);
        keep_within(&bytes, left / (size_t)n / (wanted > 0 ? 1 : 2), why, text);
    }
    size_t unit = bytes >= 4 * (size_t)HD_HUGE_PAGE ? HD_HUGE_PAGE : HD_PAGE;
    bytes = bytes / unit * unit;
    size_t least = wanted > 0 ? asked : control_bytes + HD_PAGE;
    if (bytes < least) {
        return hd_fail(HEDDLE_ERR_NOMEM, "shared memory of %zu bytes for a rank cannot be made: %zu bytes%s", least,
                       bytes, why);
    }
    *out = bytes;
    return HEDDLE_OK;
}
