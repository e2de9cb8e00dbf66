/* Boxes between device memories, any dtype, and how ranks meet over them (kernels/table_device.h). */
#include "kernels/cuda/gate.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/vectors.h"

#include <string.h>

enum { LOOK_EVERY = 64 /* polls between looks at the clock */ };

typedef struct move_args {
    const hd_list *list;
    int has_meet, is_met; /* is_met: meet_first has been in front */
    const char *src[HD_DEVICE_MAX_BASES];
    char *dst[HD_DEVICE_MAX_BASES];
    hd_device_meet meet;
    hd_gate_args gate; /* of what is GATED */
} move_args;

/* What threads of a block share. */
typedef struct block_memory {
    hd_list_box box;
    hd_list_block block;
    uint32_t may_move;
    char *dst; /* where the box's destination begins */
} block_memory;

HD_DEV void copy_box(const move_args *a, const block_memory *m, int has_few, mode how)
{
    const hd_list_box *box = &m->box;
    const char *src = how == ZEROS ? 0 : a->src[box->src_base] + box->src_offset_bytes;
    char *dst = m->dst + box->dst_offset_bytes;
    uint32_t first = m->block.part * HD_THREADS + HD_THREAD, step = box->parts * HD_THREADS;
    if ((((uintptr_t)src | (uintptr_t)dst) & (box->width_bytes - 1)) != 0) {
        copy_pieces(box, dst, src, first, step, how);
    } else if (box->width_bytes == 16) {
        copy_16(box, dst, src, first, step, has_few, how);
    } else if (box->width_bytes == 8) {
        copy_8(box, dst, src, first, step, has_few, how);
    } else if (box->width_bytes == 4) {
        copy_4(box, dst, src, first, step, has_few, how);
    } else if (box->width_bytes == 2) {
        copy_2(box, dst, src, first, step, has_few, how);
    } else {
        copy_1(box, dst, src, first, step, has_few, how);
    }
}

/* --- meeting: one thread of a block */

HD_DEV hd_device_outcome await(const hd_device_meet *meet, const uint64_t *flag, uint64_t epoch)
{
    uint64_t deadline = hd_timer_ns() + meet->deadline_ns;
    for (int i = 1;; i++) {
        if ((int64_t)(hd_load_relaxed_system(flag) - epoch) >= 0) {
            (void)hd_load_acquire_system(flag); /* once: it empties the processor's cache */
            return HD_DEVICE_CAME;
        }
        if (i % LOOK_EVERY == 0 && hd_load_relaxed_system(meet->abort_word) != 0) {
            return HD_DEVICE_ABORTED;
        }
        if (i % LOOK_EVERY == 0 && hd_timer_ns() > deadline) {
            return HD_DEVICE_LATE;
        }
        hd_nap();
    }
}

/* Remembered in the state, so that this launch and all later ones move nothing more. */
HD_DEV int came(const hd_device_meet *meet, int peer, const uint64_t *flag, uint64_t epoch)
{
    hd_device_outcome outcome = await(meet, flag, epoch);
    if (outcome != HD_DEVICE_CAME) {
        hd_store_release_system(&meet->state->failure, (uint64_t)outcome << 32 | (uint32_t)peer);
    }
    return outcome == HD_DEVICE_CAME;
}

HD_DEV int is_told(const hd_device_meet *meet, int p)
{
    return (meet->heard >> p & 1) != 0 && p != meet->rank;
}

HD_DEV void tell_ready(const hd_device_meet *meet, uint64_t epoch)
{
    for (int p = 0; p < meet->npeers; p++) {
        if (is_told(meet, p)) {
            hd_store_8(&meet->peer_state[p]->place[meet->rank], meet->place[p]);
        }
    }
    hd_fence_system(); /* once for all: it waits for what was stored at the peers */
    for (int p = 0; p < meet->npeers; p++) {
        if (is_told(meet, p)) {
            hd_store_relaxed_system(&meet->peer_state[p]->ready[meet->rank], epoch);
        }
    }
}

HD_DEV void begin(const hd_device_meet *meet, uint64_t epoch)
{
    hd_store_8(&meet->state->begin_ns, hd_timer_ns());
    if (meet->needs_ready) {
        tell_ready(meet, epoch);
    }
}

/* 1: this block may move. The first block that comes, whichever it is, speaks for the rank. */
HD_DEV uint32_t enter(const move_args *a, int peer, uint64_t epoch)
{
    const hd_device_meet *meet = &a->meet;
    if (hd_load_acquire_system(&meet->state->failure) != 0) {
        return 0;
    }
    if (hd_count_device(&meet->state->begun, 1) == 0 && !a->is_met) {
        begin(meet, epoch);
    }
    return a->is_met || peer < 0 || peer == meet->rank || !meet->needs_ready ||
           came(meet, peer, &meet->state->ready[peer], epoch);
}

HD_DEV void report_on(const hd_device_meet *meet, const hd_list *list, uint64_t epoch)
{
    hd_device_report *report = meet->report;
    hd_store_relaxed_system(&report->begin_ns, hd_load_8(&meet->state->begin_ns));
    hd_store_relaxed_system(&report->end_ns, hd_timer_ns());
    for (int p = 0; p < meet->npeers; p++) {
        uint64_t bytes = hd_load_constant_8(&list->bytes_of[p]);
        if (bytes != 0) {
            bytes += hd_load_8(&meet->state->bytes_to[p]); /* not of the host's memory, which is far */
            hd_store_8(&meet->state->bytes_to[p], bytes);
            hd_store_relaxed_system(&report->bytes_to[p], bytes);
        }
    }
    hd_store_release_system(&report->epoch, epoch);
}

/* The last block of the launch: everybody who moves something of this rank's has done so. */
HD_DEV void finish(const hd_device_meet *meet, const hd_list *list, uint64_t epoch)
{
    hd_device_state *state = meet->state;
    hd_store_4(&state->begun, 0);
    hd_store_4(&state->ended, 0);
    uint64_t failure = hd_load_acquire_system(&state->failure);
    for (int p = 0; p < meet->npeers && failure == 0; p++) {
        if (is_told(meet, p) && !came(meet, p, &state->done[p], epoch)) {
            failure = hd_load_acquire_system(&state->failure);
        }
    }
    if (failure != 0) {
        hd_store_relaxed_system(&meet->report->peer, failure & 0xffffffffu);
        hd_store_release_system(&meet->report->status, failure >> 32);
        return;
    }
    report_on(meet, list, epoch);
    hd_store_8(&state->epoch, epoch);
}

/* The last block for a peer tells it, behind what all its blocks have stored: each of them makes that seen by the whole
 * system before it counts. */
HD_DEV void leave(const hd_device_meet *meet, const hd_list *list, int peer, int has_moved, uint64_t epoch)
{
    hd_device_state *state = meet->state;
    if (has_moved && peer >= 0 && peer != meet->rank &&
        hd_add_system(&state->moved[peer], 1) + 1 == hd_load_constant_4(&list->blocks_of[peer])) {
        hd_store_4(&state->moved[peer], 0);
        hd_store_release_system(&meet->peer_state[peer]->done[meet->rank], epoch);
    }
    if (hd_add_device(&state->ended, 1) + 1 == HD_BLOCKS) {
        finish(meet, list, epoch);
    }
}

/* --- kernels */

HD_DEV void load_words(void *to, const void *from, uint32_t bytes)
{
    for (uint32_t i = HD_THREAD; i < bytes / 8; i += HD_THREADS) {
        ((uint64_t *)to)[i] = hd_load_constant_8((const uint64_t *)from + i);
    }
}

HD_DEV void move_boxes(const move_args *a, block_memory *m, int has_few, mode how, heddle_dtype dtype)
{
    const hd_list_block *block = hd_list_blocks(a->list) + HD_BLOCK;
    const uint32_t nblocks = HD_BLOCKS;
    const int32_t number = (int32_t)hd_load_constant_4(&block->box);
    if (number >= 0) {
        load_words(&m->box, (const hd_list_box *)(hd_list_blocks(a->list) + nblocks) + number, sizeof m->box);
    }
    uint64_t epoch = 0;
    int peer = -1;
    if (HD_THREAD == 0) {
        m->block.part = hd_load_constant_4(&block->part);
        m->may_move = 1;
        if (number >= 0) {
            const hd_list_box *box = (const hd_list_box *)(hd_list_blocks(a->list) + nblocks) + number;
            peer = (int)hd_load_constant_4(&box->peer);
            m->dst = a->dst[hd_load_constant_4(&box->dst_base)];
        }
        if (a->has_meet) {
            epoch = hd_load_8(&a->meet.state->epoch) + 1;
            m->may_move = enter(a, peer, epoch);
            if (a->meet.announces && m->may_move && peer >= 0 && peer != a->meet.rank) {
                m->dst = (char *)(uintptr_t)hd_load_8(&a->meet.state->place[peer]);
            }
        }
    }
    hd_sync(); /* the box is here, and its peer ready */
    if (number >= 0 && m->may_move) {
        if (how == GATED) {
            hd_gated_box(&a->gate, &m->box, m->dst, a->src[0], m->block.part * HD_THREADS + HD_THREAD,
                         m->box.parts * HD_THREADS, dtype);
        } else {
            copy_box(a, m, has_few, how);
        }
    }
    if (a->has_meet) {
        hd_sync(); /* all threads have stored */
        if (HD_THREAD == 0) {
            leave(&a->meet, a->list, peer, (int)m->may_move, epoch);
        }
    }
}

/* In front of a launch of which many blocks would wait: one thread does, and the processors are other kernels'. What
 * did not come is in the state, and the launch falls through. */
HD_KERNEL(meet_first, move_args, a)
{
    const hd_device_meet *meet = &a.meet;
    if (hd_load_acquire_system(&meet->state->failure) == 0) {
        const uint64_t epoch = hd_load_8(&meet->state->epoch) + 1;
        int has_come = 1;
        begin(meet, epoch);
        for (int p = 0; p < meet->npeers && has_come; p++) {
            has_come = p == meet->rank || hd_load_constant_4(&a.list->blocks_of[p]) == 0 ||
                       came(meet, p, &meet->state->ready[p], epoch);
        }
    }
}

/* Most boxes have at most three loops. */
#define MOVE_KERNEL(name, has_few, how, dtype)                                                                         \
    HD_KERNEL(name, move_args, a)                                                                                      \
    {                                                                                                                  \
        HD_SHARED(block_memory, m);                                                                                    \
        move_boxes(&a, m, has_few, how, dtype);                                                                        \
    }

MOVE_KERNEL(push_few, 1, FROM_OWN, HEDDLE_U8)
MOVE_KERNEL(push_any, 0, FROM_OWN, HEDDLE_U8)
MOVE_KERNEL(pull_few, 1, FROM_PEER, HEDDLE_U8)
MOVE_KERNEL(pull_any, 0, FROM_PEER, HEDDLE_U8)
MOVE_KERNEL(clear_any, 0, ZEROS, HEDDLE_U8)
MOVE_KERNEL(push_gated_f32, 1, GATED, HEDDLE_F32)
MOVE_KERNEL(push_gated_bf16, 1, GATED, HEDDLE_BF16)
MOVE_KERNEL(push_gated_f16, 1, GATED, HEDDLE_F16)

/* --- launchers */

static move_args args_of(const hd_device_move *move, int has_src)
{
    move_args a;
    memset(&a, 0, sizeof a);
    const hd_list *list = (const hd_list *)move->list;
    a.list = (const hd_list *)move->list_on_device;
    for (int i = 0; has_src && i < list->nsrc; i++) {
        a.src[i] = (const char *)move->src[i];
    }
    for (int i = 0; i < list->ndst; i++) {
        a.dst[i] = (char *)move->dst[i];
    }
    if (move->meet != 0) {
        a.has_meet = 1;
        a.meet = *move->meet;
    }
    return a;
}

/* Launches meet_first where that is to wait. */
static int let_meet(move_args *a, const hd_list *list, void *stream)
{
    const hd_device_meet *meet = &a->meet;
    if (!a->has_meet || meet->needs_ready == 0 || meet->most_waiting == 0 ||
        list->nblocks - (int)list->blocks_of[meet->rank] <= meet->most_waiting) {
        return 0;
    }
    HD_LAUNCH(meet_first, 1, 1, stream, a);
    a->is_met = 1;
    return (int)cudaGetLastError();
}

#define MOVE(few, any, move, has_src, stream)                                                                          \
    do {                                                                                                               \
        const hd_list *list = (const hd_list *)(move)->list;                                                           \
        move_args a = args_of(move, has_src);                                                                          \
        const int error = let_meet(&a, list, stream);                                                                  \
        if (error != 0) {                                                                                              \
            return error;                                                                                              \
        }                                                                                                              \
        if (list->nloops <= HD_LIST_FEW_LOOPS) {                                                                       \
            HD_LAUNCH(few, list->nblocks, HD_CUDA_THREADS, stream, &a);                                                \
        } else {                                                                                                       \
            HD_LAUNCH(any, list->nblocks, HD_CUDA_THREADS, stream, &a);                                                \
        }                                                                                                              \
        return (int)cudaGetLastError();                                                                                \
    } while (0)

int hd_move_push(const hd_device_move *move, void *stream)
{
    MOVE(push_few, push_any, move, 1, stream);
}

int hd_move_push_gated(const hd_device_move *move, const hd_device_gate *gate, void *stream)
{
    if (!hd_rows_are_right(&gate->rows) || !hd_device_gate_is_whole(gate) || !hd_list_takes_gate(move->list) ||
        !hd_is_aligned(move->src[0])) {
        return (int)cudaErrorInvalidValue;
    }
    move_args a = args_of(move, 1);
    a.gate = hd_gate_args_of(gate);
    const int error = let_meet(&a, (const hd_list *)move->list, stream);
    if (error != 0) {
        return error;
    }
    const int nblocks = ((const hd_list *)move->list)->nblocks;
    if (gate->rows.dtype == HEDDLE_F32) {
        HD_LAUNCH(push_gated_f32, nblocks, HD_CUDA_THREADS, stream, &a);
    } else if (gate->rows.dtype == HEDDLE_BF16) {
        HD_LAUNCH(push_gated_bf16, nblocks, HD_CUDA_THREADS, stream, &a);
    } else {
        HD_LAUNCH(push_gated_f16, nblocks, HD_CUDA_THREADS, stream, &a);
    }
    return (int)cudaGetLastError();
}

int hd_move_pull(const hd_device_move *move, void *stream)
{
    MOVE(pull_few, pull_any, move, 1, stream);
}

int hd_move_clear(const hd_device_move *move, void *stream)
{
    MOVE(clear_any, clear_any, move, 0, stream);
}

/* Those that meet come first. */
enum { KERNELS = 9, MEETING = 7 };

static const void *kernel_of(int i)
{
    const void *const kernel[KERNELS] = {
        HD_KERNEL_ADDRESS(push_few),       HD_KERNEL_ADDRESS(push_any),       HD_KERNEL_ADDRESS(pull_few),
        HD_KERNEL_ADDRESS(pull_any),       HD_KERNEL_ADDRESS(push_gated_f32), HD_KERNEL_ADDRESS(push_gated_bf16),
        HD_KERNEL_ADDRESS(push_gated_f16), HD_KERNEL_ADDRESS(clear_any),      HD_KERNEL_ADDRESS(meet_first)};
    return kernel[i];
}

int hd_move_load(void)
{
    int error = 0;
    for (int i = 0; i < KERNELS && error == 0; i++) {
        error = hd_load_kernel(kernel_of(i), 0);
    }
    return error;
}

int hd_move_resident(int *blocks)
{
    int device = 0, processors = 0, least = 0;
    int error = (int)cudaGetDevice(&device);
    error = error == 0 ? (int)cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) : error;
    for (int i = 0; i < MEETING && error == 0; i++) {
        int of_one = 0;
        error = (int)cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_one, kernel_of(i), HD_CUDA_THREADS, 0);
        least = i == 0 || of_one < least ? of_one : least;
    }
    *blocks = processors * least;
    return error;
}
