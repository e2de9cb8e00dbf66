/* Measuring: a reshard against what the machine can do, in one run, and the products of a block's layers.
 *
 * Of reshards: the roofline is the same bytes (those a rank keeps included) copied contiguously from the ranks that
 * own them: all ranks at once, between the same flags as the reshard's own, with the strongest of all copy kernels,
 * both directions (pull and push) and several orders of peers. Of a line that adds into a part that every term
 * covers, it is the sum of as many contiguous terms, whole and in pieces: n times as much is read as is written.
 * Reshards and contiguous copies take turns in one loop, and as often as each other, because a shared machine changes
 * its speed within seconds: only ratios inside one run mean anything.
 */
#ifndef HEDDLE_BENCH_H
#define HEDDLE_BENCH_H

#include <heddle/block.h>
#include <heddle/reshard.h>
#include <heddle/sys/device_products.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_bench_options {
    size_t struct_bytes;
    int64_t min_rounds;                    /* at least so many rounds of four reshards; default 30 */
    int64_t max_rounds;                    /* default 1000, at most 100000 */
    int64_t budget_ms;                     /* go on until so much time is spent; default 3000 */
    const heddle_reshard_options *reshard; /* memory, tuning, kernel; NULL: defaults. Orders come from the line */
} heddle_bench_options;

HEDDLE_API void heddle_bench_options_init(heddle_bench_options *options);

/* The same on every rank. A time is that of the slowest rank. min: the fastest of all samples; median: of all samples,
 * for the roofline that of its best way (kernel, direction, order). */
typedef struct heddle_bench_result {
    size_t struct_bytes;
    int64_t rounds, samples;  /* samples of the reshard, and as many of the roofline */
    int64_t repeats;          /* executions back to back in one sample (small tensors) */
    double min_ms, median_ms; /* per execution */
    double roofline_min_ms, roofline_median_ms;
    int64_t bytes_per_rank;      /* largest destination of a rank: what is read and written at least */
    int64_t bytes_sent_per_rank; /* largest number of bytes that a rank sends to others */
    int64_t bytes_total;         /* all destinations together */
    int roofline_is_local; /* 1: some ranks reach each other by messages only; their bytes were read from own memory */
    char path[32], kernel[32]; /* of rank 0, as in heddle_reshard_info */
    char roofline_kernel[32];  /* of the fastest contiguous copy, with its direction in roofline_way */
    char roofline_way[32];     /* "pull, own part first" ... */
    char why[512];
    /* Of arrays on a device (`heddle bench --device`), by the clock of the slowest rank's; 0: not measured. graph: the
     * same executions launched as a graph, where the plan may be captured. */
    double device_min_ms, device_median_ms;
    double roofline_device_min_ms, roofline_device_median_ms;
    double graph_min_ms, graph_median_ms;
    /* Of the device's: what one call of execute takes of the host's time, whenever its work is done. 0: not timed. */
    double enqueue_min_ms, enqueue_median_ms;
} heddle_bench_result;

/* Collective; allocates the buffers (heddle_buffer_alloc, or private memory with HEDDLE_MEMORY_ANY), touches them,
 * makes the plan, warms up, measures, frees everything. options may be NULL. HEDDLE_ERR_ARG: comm, out or line is NULL,
 * rounds or budget out of range, struct_bytes of options or result (heddle/status.h). HEDDLE_ERR_UNSUPPORTED:
 * options->reshard names another space than host memory. Besides: errors of heddle_reshard_create_line,
 * heddle_buffer_alloc and heddle_reshard_execute. The other ranks get HEDDLE_ERR_PEER, unless it is comm that is NULL;
 * the communicator stays usable after what fails before anything is measured, heddle_buffer_alloc included. */
HEDDLE_CHECKED heddle_status heddle_bench_reshard(heddle_bench_result *out, heddle_comm *comm,
                                                  const heddle_reshard_line *line, const heddle_bench_options *options);

/* Name of the index-th copy kernel of this CPU (for heddle_reshard_options.kernel), NULL behind the last,
 * and for any where HEDDLE_CPU is misspelt (heddle_last_error says how); *min_run_bytes (may be NULL) gets its shortest
 * run. */
HEDDLE_API const char *heddle_copy_kernel_name(int index, int64_t *min_run_bytes);

/* Times of a call, which is 2 * rows * of.n * of.k operations. */
typedef struct heddle_bench_product_result {
    size_t struct_bytes;
    heddle_product of;        /* with the types that the block multiplies and makes */
    int64_t samples, repeats; /* repeats: calls back to back in one sample */
    double min_ms, median_ms;
    char kernel[512]; /* how it is carried out, and by whom; of a device as it was chosen at commit, and why */
} heddle_bench_product_result;

/* Times one of the three products of a layer of a committed block (heddle/sys/device_products.h) as the block carries
 * it out, over `rows` rows of numbers that are made up. param: the layer's weight among the parameters, of two dims.
 * Goes on until budget_ms are spent or 10000 samples taken, behind two calls that do not count, with one sample at
 * least, which is not cut short. In host memory by the block's threads in their pieces, by the host's clock; a piece
 * lies in the thread's cache, as behind a norm. On a device by its clock, over whole arrays, weights too, which take
 * turns where they would fit its cache; a library that could not be loaded, or that kept no row's bits, is in `kernel`.
 * Not collective, and not while the block is in another call. Neither parameters nor gradients change.
 * HEDDLE_ERR_ARG: NULL, not committed, no layer's weight, no such kind, rows < 1, budget_ms < 0, struct_bytes.
 * HEDDLE_ERR_NOMEM names the bytes. HEDDLE_ERR_TIMEOUT: a call in host memory took longer than 600 s and than
 * budget_ms, one on a device longer than ranks wait for theirs. On a device also its errors. */
HEDDLE_CHECKED heddle_status heddle_bench_product(heddle_bench_product_result *out, heddle_block *block, int param,
                                                  heddle_product_kind kind, int64_t rows, int64_t budget_ms);

#ifdef __cplusplus
}
#endif

#endif
