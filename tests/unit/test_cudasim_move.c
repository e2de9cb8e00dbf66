/* The kernels of kernels/cuda that move and add, run by the emulator, against the CPU's reference. One rank. */
#include "case.h"
#include "cudasim.h"
#include "draw.h"
#include "kernels/cuda/list.h"
#include "kernels/table.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) assert_int_equal(call, cudaSuccess)

enum { MOST_BOXES = 5, ROOM = 1 << 15 };

static const hd_device_kernels *device;
static cudaStream_t stream;

static void begin(void)
{
    device = &hd_kernels_cuda;
    OK(device->load());
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
}

static void *on_device(const void *host, size_t bytes)
{
    void *memory = NULL;
    OK(cudaMalloc(&memory, bytes));
    OK(cudaMemcpyAsync(memory, host, bytes, cudaMemcpyHostToDevice, stream));
    return memory;
}

static void random_bytes(unsigned char *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        to[i] = (unsigned char)drawn_bits();
    }
}

/* Loops over one side in a random order, with gaps; returns the bytes it spans. */
static int64_t random_strides(int64_t *stride, const hd_device_box *box, int64_t grain)
{
    int order[HD_MAX_LOOPS] = {0};
    int64_t span = box->run_bytes + grain * below(3);
    for (int i = 0; i < box->nloops; i++) {
        int at = below(i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (int i = 0; i < box->nloops; i++) {
        stride[order[i]] = span;
        span = span * (box->count[order[i]] > 0 ? box->count[order[i]] : 1) + grain * below(2);
    }
    return span;
}

/* A box whose numbers are multiples of `grain`, at most ROOM bytes on each side, at the beginning of its arrays. */
static hd_device_box random_box(int64_t *src_span, int64_t *dst_span)
{
    static const int64_t grains[] = {1, 2, 4, 8, 16};
    for (;;) {
        int64_t grain = grains[below(5)];
        hd_device_box box = {.peer = below(4), .run_bytes = grain * between(1, 40), .nloops = below(HD_MAX_LOOPS + 1)};
        for (int i = 0; i < box.nloops; i++) {
            box.count[i] = below(40) == 0 ? 0 : between(1, 5);
        }
        *src_span = random_strides(box.src_stride_bytes, &box, grain);
        *dst_span = random_strides(box.dst_stride_bytes, &box, grain);
        if (*src_span <= ROOM && *dst_span <= ROOM) {
            box.src_offset_bytes = grain * below(2);
            box.dst_offset_bytes = grain * below(2);
            return box;
        }
    }
}

/* What the CPU's reference makes of a box. */
static void reference(const hd_device_box *box, void *dst, const void *src)
{
    hd_lane lane = {.src_offset_bytes = box->src_offset_bytes,
                    .dst_offset_bytes = box->dst_offset_bytes,
                    .run_bytes = box->run_bytes};
    memcpy(lane.src_stride_bytes, box->src_stride_bytes, sizeof lane.src_stride_bytes);
    memcpy(lane.dst_stride_bytes, box->dst_stride_bytes, sizeof lane.dst_stride_bytes);
    int count = 0;
    hd_copy_kernels(&count)[0].copy(&lane, 1, box->nloops, box->count, &src, &dst);
}

typedef struct problem {
    hd_device_box box[MOST_BOXES];
    int nboxes, src_shift, dst_shift; /* of the addresses, so that they are less aligned than the boxes */
    size_t src_bytes, dst_bytes;
    unsigned char *src, *wanted;
} problem;

static void problem_make(problem *p)
{
    enum { BYTES = MOST_BOXES * (ROOM + 64) };
    memset(p, 0, sizeof *p);
    p->nboxes = below(MOST_BOXES + 1);
    p->src_shift = below(3) == 0 ? below(16) : 0;
    p->dst_shift = below(3) == 0 ? below(16) : 0;
    for (int i = 0; i < p->nboxes; i++) {
        int64_t src_span = 0, dst_span = 0;
        p->box[i] = random_box(&src_span, &dst_span);
        p->box[i].src_base = below(2);
        p->box[i].dst_base = below(2);
        p->box[i].src_offset_bytes += (int64_t)p->src_bytes;
        p->box[i].dst_offset_bytes += (int64_t)p->dst_bytes;
        p->src_bytes += (size_t)(src_span + 31) / 16 * 16;
        p->dst_bytes += (size_t)(dst_span + 31) / 16 * 16;
    }
    p->src_bytes += 16;
    p->dst_bytes += 16;
    assert_true(p->src_bytes <= BYTES && p->dst_bytes <= BYTES);
    p->src = malloc(p->src_bytes);
    p->wanted = malloc(p->dst_bytes);
    random_bytes(p->src, p->src_bytes);
    random_bytes(p->wanted, p->dst_bytes);
}

/* Lists read their addresses from tables; here the second of each is 16 bytes further and counted back. */
static void move_on_device(const problem *p, unsigned char *dst, int is_pull, int is_clear)
{
    hd_device_box box[MOST_BOXES];
    memcpy(box, p->box, sizeof box);
    for (int i = 0; i < p->nboxes; i++) {
        box[i].src_offset_bytes -= box[i].src_base * 16;
        box[i].dst_offset_bytes -= box[i].dst_base * 16;
    }
    int blocks = below(20);
    size_t bytes = device->list_bytes(box, p->nboxes, blocks);
    void *list = malloc(bytes);
    device->list_make(list, box, p->nboxes, blocks);
    const int used = device->list_blocks(list), boxes = ((const hd_list *)list)->nboxes;
    assert_true(used >= 1 && used <= (blocks > boxes ? blocks : boxes > 0 ? boxes : 1));
    char *on_src = NULL, *on_dst = NULL;
    OK(cudaMalloc((void **)&on_src, p->src_bytes + 16));
    OK(cudaMemcpyAsync(on_src + p->src_shift, p->src, p->src_bytes, cudaMemcpyHostToDevice, stream));
    OK(cudaMalloc((void **)&on_dst, p->dst_bytes + 16));
    OK(cudaMemcpyAsync(on_dst + p->dst_shift, dst, p->dst_bytes, cudaMemcpyHostToDevice, stream));
    const void *src_at[] = {on_src + p->src_shift, on_src + p->src_shift + 16};
    void *dst_at[] = {on_dst + p->dst_shift, on_dst + p->dst_shift + 16};
    hd_device_move move = {list, on_device(list, bytes), 2, 2, src_at, dst_at, NULL};
    OK((is_clear ? device->clear : is_pull ? device->pull : device->push)(&move, stream));
    OK(cudaMemcpyAsync(dst, on_dst + p->dst_shift, p->dst_bytes, cudaMemcpyDeviceToHost, stream));
    OK(cudaFree(on_src));
    OK(cudaFree(on_dst));
    OK(cudaFree((void *)(uintptr_t)move.list_on_device));
    free(list);
}

static void random_moves(int is_pull, int is_clear)
{
    begin();
    static const char zeros[ROOM];
    for (int round = 0; round < hd_rounds(400); round++) {
        problem p;
        problem_make(&p);
        unsigned char *got = malloc(p.dst_bytes);
        memcpy(got, p.wanted, p.dst_bytes);
        move_on_device(&p, got, is_pull, is_clear);
        for (int i = 0; i < p.nboxes; i++) {
            hd_device_box box = p.box[i];
            if (is_clear) { /* as a copy of zeros that lie together */
                memset(box.src_stride_bytes, 0, sizeof box.src_stride_bytes);
                box.src_offset_bytes = 0;
            }
            reference(&box, (char *)p.wanted, is_clear ? zeros : (const char *)p.src);
        }
        assert_memory_equal(got, p.wanted, p.dst_bytes);
        free(got);
        free(p.src);
        free(p.wanted);
    }
    assert_int_equal(hd_sim_device_bytes(), 0);
}

HD_CASE(random_boxes_are_pushed)
{
    random_moves(0, 0);
}

HD_CASE(random_boxes_are_pulled)
{
    random_moves(1, 0);
}

HD_CASE(random_boxes_are_cleared)
{
    random_moves(0, 1);
}

/* Boxes of whole vectors of 16 bytes, at addresses that are less aligned: in the largest pieces that both allow. */
HD_CASE(addresses_that_are_less_aligned)
{
    enum { BYTES = 4096 };
    static const struct {
        int src_shift, dst_shift, piece_bytes;
    } rows[] = {{0, 0, 16}, {8, 0, 8}, {0, 8, 8}, {8, 4, 4}, {12, 0, 4}, {2, 0, 1}, {0, 1, 1}};
    static unsigned char src[BYTES], got[BYTES];
    begin();
    random_bytes(src, BYTES);
    const hd_device_box box = {.run_bytes = BYTES};
    const size_t bytes = device->list_bytes(&box, 1, 1);
    void *list = malloc(bytes);
    device->list_make(list, &box, 1, 1);
    void *there = on_device(list, bytes);
    char *on_src = NULL, *on_dst = NULL;
    OK(cudaMalloc((void **)&on_src, BYTES + 16));
    OK(cudaMalloc((void **)&on_dst, BYTES + 16));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const void *src_at[] = {on_src + rows[i].src_shift};
        void *dst_at[] = {on_dst + rows[i].dst_shift};
        OK(cudaMemcpyAsync(on_src + rows[i].src_shift, src, BYTES, cudaMemcpyHostToDevice, stream));
        OK(cudaStreamSynchronize(stream));
        hd_sim_set_counted(1);
        OK(device->push(&(hd_device_move){list, there, 1, 1, src_at, dst_at, NULL}, stream));
        OK(cudaMemcpyAsync(got, dst_at[0], BYTES, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        assert_memory_equal(got, src, BYTES);
        assert_int_equal(hd_sim_counted(0)->written_bytes, BYTES);
        assert_int_equal(hd_sim_counted(0)->stores, BYTES / rows[i].piece_bytes);
        hd_sim_set_counted(0);
    }
    OK(cudaFree(on_src));
    OK(cudaFree(on_dst));
    OK(cudaFree(there));
    free(list);
}

/* The largest magnitude that is no NaN, as bits; 0: the dtype has none. */
static uint64_t most_bits(heddle_dtype dtype)
{
    switch (dtype) {
    case HEDDLE_F64:
        return 0x7ff0000000000000u;
    case HEDDLE_F32:
        return 0x7f800000u;
    case HEDDLE_BF16:
        return 0x7f80u;
    case HEDDLE_F16:
        return 0x7c00u;
    case HEDDLE_F8E4M3:
        return 0x7eu;
    case HEDDLE_F8E5M2:
        return 0x7cu;
    default:
        return 0;
    }
}

/* Of a NaN only that it is one. */
static int same(heddle_dtype dtype, const unsigned char *a, const unsigned char *b, int64_t i)
{
    size_t bytes = heddle_dtype_bytes(dtype);
    uint64_t x = 0, y = 0, magnitude = ((uint64_t)1 << (8 * bytes - 1)) - 1, most = most_bits(dtype);
    memcpy(&x, a + (size_t)i * bytes, bytes);
    memcpy(&y, b + (size_t)i * bytes, bytes);
    return x == y || (most > 0 && (x & magnitude) > most && (y & magnitude) > most);
}

HD_CASE(sums_have_the_bits_of_the_cpu)
{
    begin();
    for (int round = 0; round < hd_rounds(300); round++) {
        heddle_dtype dtype = (heddle_dtype)(round % HEDDLE_DTYPE_COUNT);
        int nterms = below(8) == 0 ? HD_DEVICE_MAX_PEERS : 1 + below(5);
        int64_t elems = below(10) == 0 ? 0 : between(1, 700);
        size_t elem = heddle_dtype_bytes(dtype), bytes = (size_t)elems * elem;
        size_t shift = below(2) == 0 ? elem * (size_t)below(4) : 0;
        unsigned char *term[HD_DEVICE_MAX_PEERS], *wanted = malloc(bytes + 1), *got = malloc(bytes + 1);
        const void *at[HD_DEVICE_MAX_PEERS];
        for (int k = 0; k < nterms; k++) {
            term[k] = calloc(1, shift + bytes + 1);
            random_bytes(term[k] + shift, bytes);
            for (size_t i = 0; dtype == HEDDLE_BOOL && i < bytes; i++) {
                term[k][shift + i] &= 1;
            }
            at[k] = term[k] + shift;
        }
        hd_kernels_named("generic")->sum[dtype](wanted, at, nterms, elems);
        for (int k = 0; k < nterms; k++) {
            at[k] = (char *)on_device(term[k], shift + bytes + 1) + shift;
        }
        OK(device->sum((void *)(uintptr_t)at[0], at, nterms, elems, dtype, stream)); /* in place of the first */
        OK(cudaMemcpyAsync(got, at[0], bytes, cudaMemcpyDeviceToHost, stream));
        for (int64_t i = 0; i < elems; i++) {
            if (!same(dtype, got, wanted, i)) {
                fail_msg("dtype %d, %d terms, element %lld of %lld", (int)dtype, nterms, (long long)i,
                         (long long)elems);
            }
        }
        for (int k = 0; k < nterms; k++) {
            OK(cudaFree((char *)(uintptr_t)at[k] - shift));
            free(term[k]);
        }
        free(wanted);
        free(got);
    }
    assert_int_equal(device->sum(NULL, NULL, 0, 1, HEDDLE_F32, stream), cudaErrorInvalidValue);
}

/* Pieces of a box follow one another without a gap, and none is longer than divisors reach. */
HD_CASE(long_boxes_are_cut)
{
    device = &hd_kernels_cuda;
    const int64_t many = (int64_t)3 << 30;
    const hd_device_box box[] = {
        {.run_bytes = many + 3},
        {.run_bytes = 1, .nloops = 1, .count = {many}, .src_stride_bytes = {2}, .dst_stride_bytes = {1}},
        {.run_bytes = many + 1,
         .nloops = 1,
         .count = {3},
         .src_stride_bytes = {many + 1},
         .dst_stride_bytes = {many + 1}},
    };
    for (int i = 0; i < 3; i++) {
        void *list = calloc(1, device->list_bytes(&box[i], 1, 10));
        device->list_make(list, &box[i], 1, 10);
        const hd_list *l = list;
        int64_t bytes = 0;
        assert_true(l->nboxes > 1);
        assert_in_range(device->list_blocks(list), l->nboxes, 10);
        for (int k = 0; k < l->nboxes; k++) {
            const hd_list_box *piece = &hd_list_boxes(l)[k];
            assert_true(piece->vectors <= INT32_MAX);
            assert_int_equal(piece->dst_offset_bytes, bytes);
            assert_int_equal(piece->src_offset_bytes, i == 1 ? 2 * bytes : bytes);
            bytes += (int64_t)piece->vectors * piece->width_bytes;
        }
        assert_int_equal(bytes, i == 0 ? many + 3 : i == 1 ? many : 3 * (many + 1));
        assert_int_equal(l->bytes_of[0], bytes);
        free(list);
    }
    hd_device_box wrong = {.peer = HD_DEVICE_MAX_PEERS};
    assert_int_equal(device->list_bytes(&wrong, 1, 1), 0);
}
