/* Memory that peers of this host can reach.
 *
 * Processes: every rank has one memfd (or a file that is like it), sparse and as large as the machine's memory (or what
 * limits allow), mapped by all members when they meet; a buffer is a range of it. Pages are reserved (fallocate) before
 * they are handed out, so that a shortage is a status and not a SIGBUS, and touched, because a first touch is ten times
 * slower than a copy.
 * Threads: the heap.
 */
#include "runtime/comm/ground/arena_limits.h"
#include "runtime/comm/ground/ground.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { PUNCHED_FROM = 1 << 20, TURN_NS = 1000000 };
#define TURNS_NS ((int64_t)10000000000)

static void touch(void *memory, size_t bytes)
{
    if (madvise(memory, bytes, MADV_POPULATE_WRITE) != 0) {
        for (size_t i = 0; i < bytes; i += HD_PAGE) {
            ((volatile unsigned char *)memory)[i] = 0;
        }
    }
}

/* --- one arena per process ---------------------------------------------------------------------------------------- */

/* On a border of huge pages, so that offsets and addresses are aligned alike. */
static void *map_aligned(size_t bytes, int fd)
{
    unsigned char *room =
        mmap(NULL, bytes + HD_HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
        return MAP_FAILED;
    }
    size_t before = (HD_HUGE_PAGE - (uintptr_t)room % HD_HUGE_PAGE) % HD_HUGE_PAGE;
    void *base = mmap(room + before, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
    if (base == MAP_FAILED) {
        munmap(room, bytes + HD_HUGE_PAGE);
        return MAP_FAILED;
    }
    if (before > 0) {
        munmap(room, before);
    }
    munmap(room + before + bytes, HD_HUGE_PAGE - before);
    return base;
}

heddle_status hd_arena_map(hd_group *group, int index, int fd)
{
    off_t bytes = lseek(fd, 0, SEEK_END);
    if (bytes < (off_t)sizeof(hd_control)) {
        return hd_fail(HEDDLE_ERR_TRANSPORT, "the shared memory of rank %d has only %lld bytes", group->rank[index],
                       (long long)bytes);
    }
    void *base = map_aligned((size_t)bytes, fd);
    if (base == MAP_FAILED) {
        char limit[HD_ARENA_WHY_BYTES];
        int error = errno;
        hd_describe_address_limit(limit, sizeof limit);
        return hd_fail(HEDDLE_ERR_NOMEM, "the shared memory of rank %d cannot be mapped, %lld bytes: %s%s",
                       group->rank[index], (long long)bytes, strerror(error), limit);
    }
    madvise(base, (size_t)bytes, MADV_HUGEPAGE); /* a wish */
    group->window[index] = (hd_window){(uintptr_t)base, (size_t)bytes};
    group->control[index] = base;
    return HEDDLE_OK;
}

/* Memory that has no name. Some sandboxes do not let memfd_create through; then it is a file that never had one. */
static heddle_status open_memory(int *fd)
{
    *fd = hd_fd_aside(memfd_create("heddle", MFD_CLOEXEC));
    if (*fd >= 0) {
        return HEDDLE_OK;
    }
    const int error = errno;
    *fd = hd_fd_aside(open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    return *fd >= 0 ? HEDDLE_OK
                    : hd_fail(HEDDLE_ERR_NOMEM,
                              "shared memory cannot be made: memfd_create: %s; a file without a name in /dev/shm: %s",
                              strerror(error), strerror(errno));
}

heddle_status hd_arena_create(hd_group *group, int64_t arena_bytes)
{
    heddle_status st = HEDDLE_OK;
    size_t bytes = 0;
    size_t control_bytes = (sizeof(hd_control) + HD_PAGE - 1) / HD_PAGE * HD_PAGE;
    void *block = NULL;
    HD_TRY(hd_arena_bytes(&bytes, group->arena_why, arena_bytes, control_bytes, group->n));
    HD_TRY(hd_alloc(&block, 1, sizeof(hd_block), "an arena"));
    group->blocks = block;
    HD_TRY(open_memory(&group->arena_fd));
    if (ftruncate(group->arena_fd, (off_t)bytes) != 0 ||
        fallocate(group->arena_fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)control_bytes) != 0) {
        st = hd_fail(HEDDLE_ERR_NOMEM, "shared memory of %zu bytes cannot be made: %s", bytes, strerror(errno));
        goto out;
    }
    HD_TRY(hd_arena_map(group, group->me, group->arena_fd));
    touch((void *)group->window[group->me].base, control_bytes);
    group->blocks->memory = (unsigned char *)group->window[group->me].base + control_bytes;
    group->blocks->bytes = bytes - control_bytes;
    /* Peers that cannot watch this process otherwise see this lock go. */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    fcntl(group->arena_fd, F_SETLK, &lock);
out:
    return st;
}

static void unmap(hd_group *group, int index)
{
    if (group->window != NULL && group->window[index].bytes > 0) {
        munmap((void *)group->window[index].base, group->window[index].bytes);
        group->window[index] = (hd_window){0, 0};
        group->control[index] = NULL;
    }
}

void hd_arena_leave(hd_group *group)
{
    for (int i = 0; i < group->n; i++) {
        if (i != group->me) {
            unmap(group, i);
        }
    }
}

void hd_arena_destroy(hd_group *group)
{
    for (int i = 0; i < group->n; i++) {
        unmap(group, i);
    }
    if (group->arena_fd >= 0) {
        close(group->arena_fd);
    }
    while (group->blocks != NULL) {
        hd_block *next = group->blocks->next;
        hd_free(group->blocks);
        group->blocks = next;
    }
}

/* Cut [memory, memory+bytes) out of the free block `from`; the pieces before and after stay free. */
static heddle_status cut(hd_block *from, unsigned char *memory, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    size_t before = (size_t)(memory - from->memory);
    size_t after = from->bytes - before - bytes;
    void *first = NULL;
    void *last = NULL;
    if (before > 0) {
        HD_TRY(hd_alloc(&first, 1, sizeof(hd_block), "an arena"));
    }
    if (after > 0) {
        HD_TRY(hd_alloc(&last, 1, sizeof(hd_block), "an arena"));
        hd_block *rest = last;
        *rest = (hd_block){.next = from->next, .memory = memory + bytes, .bytes = after};
        from->next = rest;
        from->bytes = before + bytes;
    }
    if (before > 0) {
        hd_block *middle = first;
        *middle = (hd_block){.next = from->next, .memory = memory, .bytes = bytes, .used = HD_BLOCK_USED};
        from->next = middle;
        from->bytes = before;
        first = NULL;
    } else {
        from->used = HD_BLOCK_USED;
    }
out:
    if (st != HEDDLE_OK) {
        hd_free(first);
    }
    return st;
}

static void join_free(hd_block *blocks)
{
    for (hd_block *b = blocks; b != NULL; b = b->next) {
        while (!b->used && b->next != NULL && !b->next->used) {
            hd_block *gone = b->next;
            b->bytes += gone->bytes;
            b->next = gone->next;
            hd_free(gone);
        }
    }
}

static heddle_status arena_alloc(hd_group *group, void **out, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    size_t alignment = bytes >= HD_HUGE_PAGE ? HD_HUGE_PAGE : HD_PAGE;
    size_t rounded = bytes > 0 ? (bytes + HD_PAGE - 1) / HD_PAGE * HD_PAGE : HD_PAGE;
    unsigned char *base = (unsigned char *)group->window[group->me].base;
    hd_block *b = group->blocks;
    size_t skip = 0;
    for (; b != NULL; b = b->next) {
        skip = (alignment - (size_t)(b->memory - base) % alignment) % alignment;
        if (!b->used && b->bytes >= rounded && b->bytes - rounded >= skip) {
            break;
        }
    }
    if (b == NULL || rounded < bytes) {
        return hd_fail(HEDDLE_ERR_NOMEM,
                       "out of memory: a buffer of %zu bytes does not fit the rank's arena of %zu bytes%s", bytes,
                       group->window[group->me].bytes, group->arena_why);
    }
    unsigned char *memory = b->memory + skip;
    if (fallocate(group->arena_fd, FALLOC_FL_KEEP_SIZE, memory - base, (off_t)rounded) != 0) {
        st = hd_fail(HEDDLE_ERR_NOMEM, "out of memory: a buffer of %zu bytes: %s", bytes, strerror(errno));
        goto out;
    }
    HD_TRY(cut(b, memory, rounded));
    touch(memory, rounded);
    *out = memory;
out:
    return st;
}

/* By the address: the number of the descriptor may be another file's by now, in a program that closes them all. */
static void arena_release(hd_group *group, hd_block *b)
{
    if (b->bytes >= PUNCHED_FROM) {
        madvise(b->memory, b->bytes, MADV_REMOVE);
    }
    b->used = HD_BLOCK_FREE;
    join_free(group->blocks);
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

static heddle_status heap_alloc(hd_group *group, void **out, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    void *block = NULL;
    void *memory = NULL;
    size_t alignment = bytes >= HD_HUGE_PAGE ? HD_HUGE_PAGE : HD_PAGE;
    HD_TRY(hd_alloc(&block, 1, sizeof(hd_block), "a buffer"));
    HD_TRY(hd_alloc_aligned(&memory, alignment, bytes, "a buffer")); /* zeroes, hence touches */
    *(hd_block *)block = (hd_block){.next = group->blocks, .memory = memory, .bytes = bytes, .used = HD_BLOCK_USED};
    group->blocks = block;
    block = NULL;
    *out = memory;
out:
    hd_free(block);
    return st;
}

static void heap_release(hd_group *group, hd_block *gone)
{
    hd_block **b = &group->blocks;
    while (*b != gone) {
        b = &(*b)->next;
    }
    *b = gone->next;
    hd_free(gone->memory);
    hd_free(gone);
}

/* --- both --------------------------------------------------------------------------------------------------------- */

/* Members take memory at the same time, and each would find enough for itself alone: what is about to be touched is
 * counted. Where it does not do for all at once they take turns, and who is alone hears whether it does for it. */
static heddle_status hold(_Atomic int64_t *taken, hd_group *group, size_t bytes)
{
    const struct timespec turn = {.tv_nsec = TURN_NS + TURN_NS / 4 * group->me};
    const int64_t end = hd_now_ns() + TURNS_NS;
    for (;;) {
        int64_t others = atomic_fetch_add(taken, (int64_t)bytes);
        heddle_status st = hd_check_available(bytes, (size_t)others, "a buffer");
        if (st == HEDDLE_OK) {
            return st;
        }
        atomic_fetch_sub(taken, (int64_t)bytes);
        if (others <= 0 || hd_now_ns() > end) {
            return st;
        }
        nanosleep(&turn, NULL);
    }
}

heddle_status hd_group_alloc(hd_group *group, void **out, size_t bytes)
{
    const int is_large = bytes >= HD_CHECKED_FROM && bytes <= INT64_MAX / 4 && group->control[0] != NULL;
    _Atomic int64_t *taken = is_large ? &group->control[0]->taken : NULL;
    heddle_status st = taken != NULL ? hold(taken, group, bytes) : HEDDLE_OK;
    if (st != HEDDLE_OK) {
        return st;
    }
    pthread_mutex_lock(&group->lock);
    st = group->team != NULL ? heap_alloc(group, out, bytes) : arena_alloc(group, out, bytes);
    pthread_mutex_unlock(&group->lock);
    if (taken != NULL) {
        atomic_fetch_sub(taken, (int64_t)bytes);
    }
    return st;
}

static int release(hd_group *group, void *memory)
{
    hd_block *b = group->blocks;
    while (b != NULL && (b->used != HD_BLOCK_USED || b->memory != memory)) {
        b = b->next;
    }
    if (b == NULL) {
        return 0;
    }
    if (atomic_load(&group->control[group->me]->alarm) != 0) {
        b->used = HD_BLOCK_HELD; /* a peer may still be in the middle of a copy, so it stays until all have left */
    } else if (group->team != NULL) {
        heap_release(group, b);
    } else {
        arena_release(group, b);
    }
    return 1;
}

void hd_group_release_held(hd_group *group)
{
    pthread_mutex_lock(&group->lock);
    for (hd_block *b = group->blocks, *next = NULL; b != NULL; b = next) {
        next = b->next;
        if (b->used == HD_BLOCK_HELD && group->team != NULL) {
            heap_release(group, b);
        } else if (b->used == HD_BLOCK_HELD) {
            arena_release(group, b);
            next = group->blocks; /* it may have been joined with those beside it */
        }
    }
    pthread_mutex_unlock(&group->lock);
}

int hd_group_release(hd_group *group, void *memory)
{
    if (memory == NULL || hd_group_is_fork(group)) { /* in a fork the lock may be one that nobody opens */
        return 0;
    }
    pthread_mutex_lock(&group->lock);
    int found = release(group, memory);
    pthread_mutex_unlock(&group->lock);
    return found;
}

heddle_status hd_group_take(hd_group *group, hd_block **out, size_t bytes, int *fresh)
{
    for (hd_block **b = &group->kept; *b != NULL; b = &(*b)->next) {
        if ((*b)->bytes == bytes) {
            hd_block *found = *b;
            *b = found->next;
            found->generation++;
            *out = found;
            *fresh = 0;
            return HEDDLE_OK;
        }
    }
    heddle_status st = HEDDLE_OK;
    void *block = NULL;
    void *memory = NULL;
    HD_TRY(hd_alloc(&block, 1, sizeof(hd_block), "shared bookkeeping"));
    if (group->team != NULL) {
        HD_TRY(hd_alloc_aligned(&memory, HD_LINE_PAIR_BYTES, bytes, "shared bookkeeping"));
    } else {
        HD_TRY(hd_group_alloc(group, &memory, bytes));
    }
    *(hd_block *)block = (hd_block){.memory = memory, .bytes = bytes, .generation = 1};
    *out = block;
    *fresh = 1;
    block = NULL;
out:
    hd_free(block);
    return st;
}

void hd_group_keep(hd_group *group, hd_block *block)
{
    if (block != NULL) {
        block->next = group->kept;
        group->kept = block;
    }
}
