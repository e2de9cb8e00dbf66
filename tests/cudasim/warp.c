/* What the 32 threads of a warp do together, and copies that are done later than they are asked for. */
#include "sim.h"
#include "warp_cpu.h"

#include "kernels/small_float.h"

enum { LANES = 32 };

static const char *where(const hd_sim_lane *lane)
{
    return lane->state == HD_SIM_DONE         ? "has ended"
           : lane->state == HD_SIM_AT_BARRIER ? "waits at hd_sync"
           : lane->state == HD_SIM_AT_WARP    ? lane->word
                                              : "runs";
}

static int is_with(const hd_sim_lane *lane, const hd_sim_lane *other)
{
    return lane->state == HD_SIM_AT_WARP && hd_sim_is_same(lane->word, other->word);
}

/* 1: nothing that is still to come brings this lane to where the others are. A barrier opens only when all threads of
 * the block have come, who cannot. */
static int never_comes(const hd_sim_lane *lane, const hd_sim_lane *other)
{
    return lane->state != HD_SIM_READY && !is_with(lane, other);
}

/* A warp of which some lane waits. */
static void warp_goes_on(unsigned first, unsigned threads, unsigned block)
{
    hd_sim_lane *lane[LANES];
    unsigned n = 0, together = 0, who = LANES;
    for (; n < LANES && first + n < threads; n++) {
        lane[n] = hd_sim_lane_of(first + n);
        who = who == LANES && lane[n]->state == HD_SIM_AT_WARP ? n : who;
    }
    for (unsigned i = 0; who < LANES && i < LANES; i++) {
        if (i >= n || never_comes(lane[i], lane[who])) {
            hd_sim_die("%s, block %u, warp %u: lane %u does not come to %s, where lane %u waits: it %s",
                       hd_sim_kernel_name(), block, first / LANES, i, lane[who]->word, who,
                       i < n ? where(lane[i]) : "is not there");
        }
        together += (unsigned)is_with(lane[i], lane[who]);
    }
    for (unsigned i = 0; together == LANES && i < LANES; i++) {
        lane[i]->state = HD_SIM_READY;
    }
}

void hd_sim_warps_go_on(unsigned threads, unsigned block)
{
    for (unsigned first = 0; first < threads; first += LANES) {
        warp_goes_on(first, threads, block);
    }
}

/* The memory that a launch gives each block holds this at first, and so does what lies behind it. Not with the race
 * detector, which would see it as a thread's. */
enum { AT_FIRST = 0xcb };

void hd_sim_fill_shared(char *memory, unsigned bytes)
{
#ifndef HD_SIM_TSAN
    memset(memory, AT_FIRST, bytes + HD_SIM_BEHIND_BYTES);
#else
    (void)memory, (void)bytes;
#endif
}

void hd_sim_check_shared(const char *memory, unsigned bytes, unsigned block)
{
#ifndef HD_SIM_TSAN
    for (unsigned i = 0; i < HD_SIM_BEHIND_BYTES; i++) {
        if ((unsigned char)memory[bytes + i] != AT_FIRST) {
            hd_sim_die("%s, block %u: wrote %u bytes behind the %u that its launch gave a block", hd_sim_kernel_name(),
                       block, i, bytes);
        }
    }
#else
    (void)memory, (void)bytes, (void)block;
#endif
}

typedef uint32_t __attribute__((may_alias)) any_word;

static void meet(const char *word, const void *mine, unsigned bytes, int is_order)
{
    hd_sim_lane *lane = hd_sim_own_lane();
    if (bytes > HD_SIM_LEFT_BYTES || bytes % sizeof(any_word) != 0) {
        hd_sim_die("%s leaves %u bytes", word, bytes);
    }
    lane->meetings++;
    volatile any_word *left = (volatile any_word *)lane->left[lane->meetings % 2];
    for (unsigned i = 0; i < bytes / sizeof *left; i++) { /* no memcpy, which the race detector sees */
        left[i] = ((const any_word *)mine)[i];
    }
    lane->word = word;
    hd_sim_wait_for_warp(is_order);
}

void hd_sim_meet(const char *word, const void *mine, unsigned bytes)
{
    meet(word, mine, bytes, 0);
}

void hd_sim_sync_warp(void)
{
    meet("hd_sync_warp", NULL, 0, 1);
}

void hd_sim_meet_rows(const char *word, const void *row)
{
    if ((uintptr_t)row % 16 != 0) {
        hd_sim_die("%s: %s of a row at %p: not aligned", hd_sim_kernel_name(), word, row);
    }
    meet(word, &row, sizeof row, 0);
}

/* A lane that is ahead has come to the next meeting at most, and leaves what it brings there in the other place. */
static const void *left_at(unsigned meeting, unsigned first, unsigned lane)
{
    return hd_sim_lane_of(first + lane % LANES)->left[meeting % 2];
}

const void *hd_sim_left_by(unsigned lane)
{
    return left_at(hd_sim_own_lane()->meetings, hd_sim_self()->thread / LANES * LANES, lane);
}

typedef struct fragments {
    float a[8], b[4];
} fragments;

static void widen(float *out, const uint32_t *pair, unsigned pairs, int is_bf16)
{
    for (unsigned i = 0; i < 2 * pairs; i++) {
        const uint16_t bits = (uint16_t)(pair[i / 2] >> i % 2 * 16);
        out[i] = is_bf16 ? hd_f32_from_bf16(bits) : hd_f32_from_f16(bits);
    }
}

/* Row r and r + 8 of a, column c of b: elements 2 j, 2 j + 1 and 2 j + 8, 2 j + 9 are with lane 4 r + j. Sums begin
 * with what was there and go on in the order of k, rounded each time; the order of a GPU is not documented. */
void hd_sim_mma(const char *word, float sum[4], const uint32_t a[4], const uint32_t b[2], int is_bf16)
{
    fragments mine;
    const fragments *of_row[4], *of_column[2][4];
    widen(mine.a, a, 4, is_bf16);
    widen(mine.b, b, 2, is_bf16);
    meet(word, &mine, sizeof mine, 0);
    const unsigned meeting = hd_sim_own_lane()->meetings, thread = hd_sim_self()->thread, lane = thread % LANES;
    const unsigned row = lane / 4, column = lane % 4 * 2;
    for (unsigned part = 0; part < 4; part++) {
        of_row[part] = left_at(meeting, thread - lane, 4 * row + part);
        of_column[0][part] = left_at(meeting, thread - lane, 4 * column + part);
        of_column[1][part] = left_at(meeting, thread - lane, 4 * (column + 1) + part);
    }
    for (unsigned k = 0; k < 16; k++) {
        const unsigned part = k % 8 / 2, high = k / 8;
        const float *of_rows = of_row[part]->a + 4 * high + k % 2;
        for (unsigned i = 0; i < 2; i++) {
            const float x = of_column[i][part]->b[2 * high + k % 2];
            sum[i] += of_rows[0] * x;
            sum[2 + i] += of_rows[2] * x;
        }
    }
}

/* --- copies: done when they are waited for. The race detector is told that somebody else does them, who may begin when
 * he is asked and is known to have ended when he is waited for. */

#ifdef HD_SIM_TSAN
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_read16(void *at);
void __tsan_write16(void *at);
enum { NO_SYNC = 1 };

static void note_touched(void *to, void *view)
{
    if (view != NULL) {
        __tsan_read16(view);
    }
    __tsan_write16(to);
}

static void note_copy(hd_sim_lane *lane, void *to, void *view)
{
    if (hd_sim_is_unseen()) {
        return;
    }
    if (lane->is_one) {
        note_touched(to, view);
        return;
    }
    void *own = __tsan_get_current_fiber();
    lane->copier = lane->copier != NULL ? lane->copier : __tsan_create_fiber(0);
    hd_sim_release(lane->asked);
    __tsan_switch_to_fiber(lane->copier, NO_SYNC);
    hd_sim_acquire(lane->asked);
    note_touched(to, view);
    hd_sim_release(lane->ended[lane->groups % HD_SIM_MAX_GROUPS]);
    __tsan_switch_to_fiber(own, NO_SYNC);
}

void hd_sim_lane_ends(hd_sim_lane *lane)
{
    if (lane->copier != NULL) {
        __tsan_destroy_fiber(lane->copier);
    }
}
#else
static void note_copy(hd_sim_lane *lane, void *to, void *view)
{
    (void)lane;
    (void)to;
    (void)view;
}

void hd_sim_lane_ends(hd_sim_lane *lane)
{
    (void)lane;
}
#endif

void hd_sim_lane_begins(hd_sim_lane *lane)
{
    lane->state = HD_SIM_READY;
    lane->meetings = lane->copies = lane->done = lane->groups = 0;
}

void hd_sim_copy_later(void *to, const void *from, int is_there)
{
    hd_sim_lane *lane = hd_sim_own_lane();
    if (lane->copies - lane->done == HD_SIM_MAX_COPIES) {
        hd_sim_die("%s: more than %d copies of a thread are not done", hd_sim_kernel_name(), HD_SIM_MAX_COPIES);
    }
    if ((uintptr_t)to % 16 != 0) {
        hd_sim_die("%s copies to %p: not aligned", hd_sim_kernel_name(), to);
    }
    note_copy(lane, to, is_there ? hd_sim_at(from, 16) : NULL);
    lane->copy[lane->copies++ % HD_SIM_MAX_COPIES] = (hd_sim_copy){to, is_there ? from : NULL, lane->groups};
}

void hd_sim_commit(void)
{
    hd_sim_own_lane()->groups++;
}

void hd_sim_wait_for_copies(unsigned newest)
{
    hd_sim_lane *lane = hd_sim_own_lane();
    for (; lane->done < lane->copies; lane->done++) {
        const hd_sim_copy *copy = &lane->copy[lane->done % HD_SIM_MAX_COPIES];
        if (copy->group + newest >= lane->groups) {
            break;
        }
        *(hd_v16 *)copy->to = copy->from != NULL ? *(const hd_v16 *)hd_sim_at(copy->from, 16) : hd_zero_16();
        hd_sim_acquire(lane->ended[copy->group % HD_SIM_MAX_GROUPS]);
    }
}
