/* How many bytes of devices' memory a kernel reads and writes, each counted once: what a GPU with an endless cache
 * would move. */
#include "sim.h"

#include <stdio.h>
#include <sys/mman.h>

enum { MOST_KERNELS = 4096 };

/* A bit for every byte of devices' memory. */
typedef struct seen {
    uint64_t *word;
    int64_t bytes, times;
} seen;

static _Atomic int counted;
static seen reads, writes; /* of the kernel that runs: one at a time does while they are counted */
static hd_sim_traffic *kernels;
static int nkernels;

static void make(seen *of)
{
    if (of->word == NULL) {
        of->word =
            mmap(NULL, hd_sim_span() / 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if ((void *)of->word == MAP_FAILED) {
        hd_sim_die("no addresses to count the bytes that kernels touch");
    }
}

void hd_sim_set_counted(int is_counted)
{
    hd_sim_lock();
    if (is_counted && kernels == NULL) {
        kernels = calloc(MOST_KERNELS, sizeof *kernels);
    }
    if (is_counted) {
        make(&reads);
        make(&writes);
    }
    nkernels = 0;
    hd_sim_unlock();
    atomic_store(&counted, is_counted);
}

int hd_sim_is_counted(void)
{
    return atomic_load_explicit(&counted, memory_order_relaxed);
}

const hd_sim_traffic *hd_sim_counted(int kernel)
{
    return kernel >= 0 && kernel < nkernels ? &kernels[kernel] : NULL;
}

/* An access lies within a word: it is aligned. */
static void note(seen *of, int64_t offset, uint64_t bytes)
{
    const uint64_t mask = (((uint64_t)1 << bytes) - 1) << (offset % 64);
    of->bytes += __builtin_popcountll(mask & ~of->word[offset / 64]);
    of->word[offset / 64] |= mask;
    of->times++;
}

void hd_sim_note(int64_t offset, uint64_t bytes, int is_store)
{
    note(is_store ? &writes : &reads, offset, bytes);
}

static void forget(seen *of)
{
    of->bytes = of->times = 0;
    (void)madvise(of->word, hd_sim_span() / 8, MADV_DONTNEED);
}

void hd_sim_count_begin(void)
{
    forget(&reads);
    forget(&writes);
}

void hd_sim_count_end(const char *name)
{
    hd_sim_lock();
    if (nkernels == MOST_KERNELS) {
        hd_sim_die("more than %d kernels while their bytes are counted", (int)MOST_KERNELS);
    }
    hd_sim_traffic *of = &kernels[nkernels++];
    snprintf(of->name, sizeof of->name, "%s", name);
    of->read_bytes = reads.bytes;
    of->written_bytes = writes.bytes;
    of->loads = reads.times;
    of->stores = writes.times;
    hd_sim_unlock();
}
