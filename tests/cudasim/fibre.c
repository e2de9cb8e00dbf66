/* A block of threads on one host thread: fibres that give way at barriers and naps. */
#include "sim.h"

#include <sys/mman.h>

#ifdef HD_SIM_ASAN
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#define LOOK_AT(at, bytes) __lsan_register_root_region(at, bytes)
#define LOOK_AWAY(at, bytes) __lsan_unregister_root_region(at, bytes)
#define LEAVE(keep, bottom, bytes) __sanitizer_start_switch_fiber(keep, bottom, bytes)
#define ARRIVE(kept, bottom, bytes) __sanitizer_finish_switch_fiber(kept, bottom, bytes)
#else
#define LOOK_AT(at, bytes) ((void)(at), (void)(bytes))
#define LOOK_AWAY(at, bytes) ((void)(at), (void)(bytes))
#define LEAVE(keep, bottom, bytes) ((void)(keep), (void)(bottom), (void)(bytes))
#define ARRIVE(kept, bottom, bytes) ((void)(kept), (void)(bottom), (void)(bytes))
#endif

#ifdef HD_SIM_TSAN
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_ignore_thread_begin(void);
void __tsan_ignore_thread_end(void);
enum { NO_SYNC = 1 };
#define UNSEEN(begins) ((begins) ? __tsan_ignore_thread_begin() : __tsan_ignore_thread_end())
#define SEEN_AS(e, detector) ((e)->is_one ? (void)0 : __tsan_switch_to_fiber(detector, NO_SYNC))
#define NEW_DETECTOR() __tsan_create_fiber(0)
#else
#define UNSEEN(begins) ((void)(begins))
#define SEEN_AS(e, detector) ((void)(e))
#define NEW_DETECTOR() NULL
#endif

enum {
    STACK_BYTES = 128 << 10,
    MAX_THREADS = 1024,
    SHARED_BYTES = 64 << 10,
    ALL_SHARED_BYTES = 64 << 20,
    MAX_SHARED = 16,
    EDGE_BYTES = 8
};

typedef struct fibre {
    void *top; /* of its stack, while it is not running */
    char *stack;
    hd_sim_thread self;
    hd_sim_lane lane;
    void *kept, *detector;
} fibre;

/* The barriers of a block order all that its fibres do later. So that this is not taken for an order of blocks, the
 * race detector gets two sets. */
#ifdef HD_SIM_TSAN
enum { SETS = 2 };
#else
enum { SETS = 1 };
#endif

/* Of a stream's thread. */
typedef struct engine {
    fibre fibre[SETS][MAX_THREADS];
    int nfibres[SETS];
    fibre *now;
    void *home, *home_kept, *home_detector;
    const void *home_bottom;
    size_t home_bytes;
    void *own_stack;
    size_t own_bytes;
    const hd_sim_op *op;
    char begin, end;              /* edges */
    int is_one;                   /* to the race detector */
    fibre *set;                   /* of the present block */
    unsigned block, shift, rests; /* turns in which all napped */
    char *barrier; /* edge of the block, then those of its warps: new ones, or the detector would order blocks */
    /* Memory of blocks. Each block of a kernel has its own, or the detector would take one's for another's. */
    char *shared;
    size_t shared_from, shared_used;
    int npieces;
    struct {
        const char *file;
        int line;
        void *at;
    } piece[MAX_SHARED];
} engine;

static _Thread_local engine *mine;
static _Atomic int64_t kernels;

int64_t hd_sim_kernels(void)
{
    return atomic_load(&kernels);
}

/* Not inlined: a fibre never changes its thread, but the compiler should not have to know. */
static __attribute__((noinline)) engine *my(void)
{
    return mine;
}

/* Keeps what a function must keep, and goes on where `load` left off. */
void hd_sim_switch(void **save, void *load);
__asm__(".text\n"
        ".globl hd_sim_switch\n"
        ".hidden hd_sim_switch\n"
        ".type hd_sim_switch,@function\n"
        "hd_sim_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\n"
        "ret\n"
        ".size hd_sim_switch,.-hd_sim_switch\n");

static void go_home(void)
{
    engine *e = my();
    fibre *f = e->now;
    SEEN_AS(e, e->home_detector);
    LEAVE(f->lane.state == HD_SIM_DONE ? NULL : &f->kept, e->home_bottom, e->home_bytes);
    hd_sim_switch(&f->top, e->home);
    ARRIVE(f->kept, &my()->home_bottom, &my()->home_bytes);
}

static void go_to(engine *e, fibre *f)
{
    e->now = f;
    SEEN_AS(e, f->detector);
    LEAVE(&e->home_kept, f->stack, STACK_BYTES);
    hd_sim_switch(&e->home, f->top);
    ARRIVE(e->home_kept, NULL, NULL);
}

static void fibre_main(void)
{
    engine *e = my();
    ARRIVE(NULL, &e->home_bottom, &e->home_bytes);
    hd_sim_acquire(&e->begin);
    const int is_unseen = hd_sim_is_unseen();
    if (is_unseen) {
        UNSEEN(1);
    }
    e->op->u.kernel.body(e->op->u.kernel.args);
    if (is_unseen) {
        UNSEEN(0);
    }
    e = my();
    hd_sim_release(&e->end);
    e->now->lane.state = HD_SIM_DONE;
    go_home();
    hd_sim_die("a thread of %s goes on behind its end", e->op->u.kernel.name);
}

const hd_sim_thread *hd_sim_self(void)
{
    return &my()->now->self;
}

void hd_sim_sync(void)
{
    engine *e = my();
    hd_sim_release(e->barrier);
    e->now->lane.state = HD_SIM_AT_BARRIER;
    go_home();
    hd_sim_acquire(my()->barrier);
}

static fibre *fibre_of(engine *e, unsigned thread)
{
    const unsigned at = thread + e->shift;
    return &e->set[at < e->op->u.kernel.threads ? at : at - e->op->u.kernel.threads];
}

hd_sim_lane *hd_sim_lane_of(unsigned thread)
{
    return &fibre_of(my(), thread)->lane;
}

hd_sim_lane *hd_sim_own_lane(void)
{
    return &my()->now->lane;
}

const char *hd_sim_kernel_name(void)
{
    return my()->op->u.kernel.name;
}

void hd_sim_wait_for_warp(int is_order)
{
    engine *e = my();
    char *edge = e->barrier + EDGE_BYTES * (size_t)(1 + e->now->self.thread / 32);
    if (is_order) {
        hd_sim_release(edge);
    }
    e->now->lane.state = HD_SIM_AT_WARP;
    go_home();
    if (is_order) {
        hd_sim_acquire(edge);
    }
}

void hd_sim_nap(void)
{
    go_home();
}

static size_t aligned(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

void *hd_sim_shared(const char *file, int line, uint64_t bytes)
{
    engine *e = my();
    for (int i = 0; i < e->npieces; i++) {
        if (e->piece[i].line == line && hd_sim_is_same(e->piece[i].file, file)) {
            return e->piece[i].at;
        }
    }
    if (e->npieces == MAX_SHARED || e->shared_used - e->shared_from + bytes > SHARED_BYTES) {
        hd_sim_die("%s wants more than %d bytes or %d pieces for a block", e->op->u.kernel.name, SHARED_BYTES,
                   MAX_SHARED);
    }
    void *at = e->shared + e->shared_used;
    e->piece[e->npieces].file = file;
    e->piece[e->npieces].line = line;
    e->piece[e->npieces++].at = at;
    e->shared_used += aligned(bytes);
    return at;
}

void *hd_sim_dynamic_shared(void)
{
    engine *e = my();
    return e->shared + e->shared_from + SHARED_BYTES;
}

static void *pages(size_t bytes)
{
    void *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (out == MAP_FAILED) {
        hd_sim_die("no memory for %zu bytes of a block", bytes);
    }
    return out;
}

/* LeakSanitizer looks at the stack that a thread is on. While a fibre runs that is not the thread's own one, where what
 * the stream holds is known. */
static void look_at_own_stack(engine *e)
{
    pthread_attr_t of;
    if (pthread_getattr_np(pthread_self(), &of) != 0) {
        hd_sim_die("no memory for %zu bytes of a block", sizeof *e);
    }
    pthread_attr_getstack(&of, &e->own_stack, &e->own_bytes);
    pthread_attr_destroy(&of);
    LOOK_AT(e->own_stack, e->own_bytes);
}

static engine *need_engine(void)
{
    if (mine == NULL) {
        mine = pages(sizeof *mine);
        mine->shared = pages(ALL_SHARED_BYTES);
        look_at_own_stack(mine);
    }
    return mine;
}

/* Made when a block first needs them. So are their detectors: one takes a third of a millisecond, and longer for all
 * that follows the more there are. */
static fibre *need_fibres(engine *e, unsigned set, unsigned threads)
{
    for (; e->nfibres[set] < (int)threads; e->nfibres[set]++) {
        e->fibre[set][e->nfibres[set]].stack = pages(STACK_BYTES);
    }
    return e->fibre[set];
}

/* The stack as hd_sim_switch leaves it. */
static void make_ready(fibre *f, int is_one, unsigned thread, unsigned block, const hd_sim_op *op)
{
    f->self = (hd_sim_thread){thread, block, op->u.kernel.threads, op->u.kernel.blocks};
    hd_sim_lane_begins(&f->lane);
    f->lane.is_one = is_one;
    f->detector = is_one || f->detector != NULL ? f->detector : NEW_DETECTOR();
    f->kept = NULL;
    void **top = (void **)(f->stack + STACK_BYTES - 64);
    *--top = NULL;
    *--top = (void *)(uintptr_t)fibre_main;
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    f->top = top;
}

/* One turn of all fibres; how many have not ended. Where all that ran only napped, they wait for another thread. */
static unsigned turn(engine *e, unsigned threads, int is_reversed)
{
    unsigned live = 0, waiting = 0, lanes = 0, ran = 0, napped = 0;
    for (unsigned i = 0; i < threads; i++) {
        fibre *f = &e->set[is_reversed ? threads - 1 - i : i];
        if (f->lane.state == HD_SIM_READY) {
            go_to(e, f);
            ran++;
            napped += f->lane.state == HD_SIM_READY;
        }
        live += f->lane.state != HD_SIM_DONE;
        waiting += f->lane.state == HD_SIM_AT_BARRIER;
        lanes += f->lane.state == HD_SIM_AT_WARP;
    }
    for (unsigned i = 0; i < threads && waiting == live; i++) {
        fibre *f = &e->set[i];
        f->lane.state = f->lane.state == HD_SIM_AT_BARRIER ? HD_SIM_READY : f->lane.state;
    }
    if (lanes > 0) {
        hd_sim_warps_go_on(threads, e->block);
    }
    e->rests = ran == napped ? e->rests + 1 : 0;
    if (e->rests > 0 && live > 0) {
        hd_sim_rest(e->rests);
    }
    return live;
}

static void give_shared(engine *e, unsigned dynamic_bytes)
{
    const size_t most = SHARED_BYTES + dynamic_bytes + HD_SIM_BEHIND_BYTES;
    e->npieces = 0;
    e->shared_used = e->shared_used + most <= ALL_SHARED_BYTES ? e->shared_used : 0;
    e->shared_from = e->shared_used;
    hd_sim_fill_shared(e->shared + e->shared_from + SHARED_BYTES, dynamic_bytes);
}

static void run_block(engine *e, const hd_sim_op *op, unsigned block, int is_reversed)
{
    const unsigned threads = op->u.kernel.threads;
    e->set = need_fibres(e, (unsigned)__builtin_popcount(block) % SETS, threads); /* no pattern that lists have, too */
    e->block = block;
    e->shift = (block * 7 + 1) % threads; /* another fibre in every block: nothing is ordered by chance */
    give_shared(e, op->u.kernel.shared_bytes);
    for (unsigned i = 0; i < threads; i++) {
        make_ready(fibre_of(e, i), e->is_one, i, block, op);
    }
    char *volatile barrier = malloc(EDGE_BYTES * (2 + threads / 32)); /* known on this stack, too */
    e->barrier = barrier;
    while (turn(e, threads, is_reversed) > 0) {
    }
    free(barrier);
    hd_sim_check_shared(e->shared + e->shared_from + SHARED_BYTES, op->u.kernel.shared_bytes, block);
    e->shared_used += op->u.kernel.shared_bytes > 0 ? SHARED_BYTES + aligned(op->u.kernel.shared_bytes) : 0;
}

void hd_sim_run_kernel(hd_sim_op *op)
{
    engine *e = need_engine();
    int has_turn = hd_sim_take_turn();
    e->op = op;
    e->shared_used = 0;
    e->is_one = op->u.kernel.threads > hd_sim_told_apart();
#ifdef HD_SIM_TSAN
    e->home_detector = __tsan_get_current_fiber();
#endif
    hd_sim_release(&e->begin);
    int is_reversed = hd_sim_is_reversed();
    for (unsigned i = 0; i < op->u.kernel.blocks; i++) {
        run_block(e, op, is_reversed ? op->u.kernel.blocks - 1 - i : i, is_reversed);
    }
    hd_sim_acquire(&e->end);
    hd_sim_give_turn(has_turn, op->u.kernel.name);
    atomic_fetch_add(&kernels, 1);
}

void hd_sim_end_fibres(void)
{
    if (mine == NULL) {
        return;
    }
    for (int i = 0; i < SETS * MAX_THREADS; i++) {
        fibre *f = &mine->fibre[i % SETS][i / SETS];
        if (i / SETS >= mine->nfibres[i % SETS]) {
            continue;
        }
        munmap(f->stack, STACK_BYTES);
#ifdef HD_SIM_TSAN
        if (f->detector != NULL) {
            __tsan_destroy_fiber(f->detector);
        }
        hd_sim_lane_ends(&f->lane);
#endif
    }
    LOOK_AWAY(mine->own_stack, mine->own_bytes);
    munmap(mine->shared, ALL_SHARED_BYTES);
    munmap(mine, sizeof *mine);
    mine = NULL;
}
