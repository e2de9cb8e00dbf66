/* Linear attention between its walks: from the parts of segments the states in front of them. A thread has an element
 * of a state, and goes through the segments in their order. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/rows.h"

typedef struct states_args {
    hd_device_linear_states of;
    uint32_t all, elems, heads, segments;
} states_args;

HD_DEV void element(const states_args *a, uint32_t i)
{
    const uint32_t n = i / a->elems, at = i - n * a->elems;
    const hd_device_linear_states *of = &a->of;
    const float log2_decay = hd_float_load(of->log2_decay + n % a->heads);
    const int32_t last = (int32_t)(of->n - (a->segments - 1) * of->segment_rows);
    float state = of->in != 0 ? hd_float_load(of->in + i) : 0;
    HD_NOT_UNROLLED
    for (uint32_t turn = 0; turn < a->segments; turn++) {
        const uint32_t segment = of->descends ? a->segments - 1 - turn : turn;
        const int32_t rows = segment == a->segments - 1 ? last : (int32_t)of->segment_rows;
        float *part = of->states != 0 ? of->states + ((int64_t)n * a->segments + segment) * a->elems + at : 0;
        const float own = part != 0 ? hd_float_load(part) : 0;
        if (of->spreads) {
            hd_float_store(part, state);
        }
        state = hd_fma(state, hd_exp2(hd_mul((float)rows, log2_decay)), own);
    }
    if (of->out != 0) {
        hd_float_store(of->out + i, state);
    }
}

HD_KERNEL(linear_states, states_args, a)
{
    for (uint32_t i = HD_BLOCK * HD_THREADS + HD_THREAD; i < a.all; i += HD_BLOCKS * HD_THREADS) {
        element(&a, i);
    }
}

int hd_linear_states(const hd_device_linear_states *of, void *stream)
{
    const double all = (double)of->count * (double)of->elems;
    const int64_t segments = of->segment_rows > 0 ? (of->n + of->segment_rows - 1) / of->segment_rows : 0;
    if (of->count < 0 || of->elems < 1 || (of->heads < 1 && of->count > 0) || of->n < 0 || of->segment_rows < 1 ||
        (of->spreads && of->states == NULL) || of->segment_rows > INT32_MAX || segments > INT32_MAX ||
        all > (double)(1u << 31)) {
        return (int)cudaErrorInvalidValue;
    }
    if (all == 0) {
        return 0;
    }
    const states_args a = {*of, (uint32_t)all, (uint32_t)of->elems, (uint32_t)of->heads, (uint32_t)segments};
    const int64_t blocks = ((int64_t)all + HD_ROWS_THREADS - 1) / HD_ROWS_THREADS;
    HD_LAUNCH(linear_states, blocks < HD_ROWS_MOST_BLOCKS ? blocks : (int64_t)HD_ROWS_MOST_BLOCKS, HD_ROWS_THREADS,
              stream, &a);
    return (int)cudaGetLastError();
}

int hd_linear_states_load(void)
{
    const void *const kernel[] = {HD_KERNEL_ADDRESS(linear_states)};
    return hd_load_kernels(kernel, 1);
}
