/* A block of threads on one host thread: fibres that give way at barriers and
 * naps. */
#include "sim.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>

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
enum { NO_SYNC = 1 };
#endif

enum {
    STACK_BYTES = 128 << 10,
    MAX_THREADS = 1024,
    SHARED_BYTES = 64 << 10,
    ALL_SHARED_BYTES = 64 << 20,
    MAX_SHARED = 16
};

typedef enum state { READY, AT_BARRIER, DONE } state;

typedef struct fibre {
    void *top; /* of its stack, while it is not running */
    char *stack;
    hd_sim_thread self;
    state state;
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
    int nfibres;
    fibre *now;
    void *home, *home_kept, *home_detector;
    const void *home_bottom;
    size_t home_bytes;
    void *own_stack;
    size_t own_bytes;
    const hd_sim_op *op;
    char begin, end; /* edges */
    void *barrier;   /* edge of the present block: a new one for each, or the
                      detector would order blocks */
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

/* Not inlined: a fibre never changes its thread, but the compiler should not
 * have to know. */
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
#ifdef HD_SIM_TSAN
    __tsan_switch_to_fiber(e->home_detector, NO_SYNC);
#endif
    LEAVE(f->state == DONE ? NULL : &f->kept, e->home_bottom, e->home_bytes);
    hd_sim_switch(&f->top, e->home);
    ARRIVE(f->kept, &my()->home_bottom, &my()->home_bytes);
}

static void go_to(engine *e, fibre *f)
{
    e->now = f;
#ifdef HD_SIM_TSAN
    __tsan_switch_to_fiber(f->detector, NO_SYNC);
#endif
    LEAVE(&e->home_kept, f->stack, STACK_BYTES);
    hd_sim_switch(&e->home, f->top);
    ARRIVE(e->home_kept, NULL, NULL);
}

static void fibre_main(void)
{
    engine *e = my();
    ARRIVE(NULL, &e->home_bottom, &e->home_bytes);
    hd_sim_acquire(&e->begin);
    e->op->u.kernel.body(e->op->u.kernel.args);
    e = my();
    hd_sim_release(&e->end);
    e->now->state = DONE;
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
    e->now->state = AT_BARRIER;
    go_home();
    hd_sim_acquire(my()->barrier);
}

void hd_sim_nap(void)
{
    static _Thread_local unsigned naps;
    const struct timespec some = {.tv_nsec = 30000};
    go_home();
    if (++naps % 32 == 0) { /* streams of ranks are more than cores */
        nanosleep(&some, NULL);
    } else {
        sched_yield();
    }
}

uint64_t hd_sim_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void *hd_sim_shared(const char *file, int line, uint64_t bytes)
{
    engine *e = my();
    for (int i = 0; i < e->npieces; i++) {
        if (e->piece[i].line == line && strcmp(e->piece[i].file, file) == 0) {
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
    e->shared_used += (bytes + 15) / 16 * 16;
    return at;
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

static engine *need_engine(unsigned threads)
{
    if (mine == NULL) {
        mine = pages(sizeof *mine);
        mine->shared = pages(ALL_SHARED_BYTES);
        look_at_own_stack(mine);
    }
    for (; mine->nfibres < (int)threads; mine->nfibres++) {
        for (int set = 0; set < SETS; set++) {
            fibre *f = &mine->fibre[set][mine->nfibres];
            f->stack = pages(STACK_BYTES);
#ifdef HD_SIM_TSAN
            f->detector = __tsan_create_fiber(0);
#endif
        }
    }
    return mine;
}

/* The stack as hd_sim_switch leaves it. */
static void make_ready(fibre *f, unsigned thread, unsigned block, const hd_sim_op *op)
{
    f->self = (hd_sim_thread){thread, block, op->u.kernel.threads, op->u.kernel.blocks};
    f->state = READY;
    f->kept = NULL;
    void **top = (void **)(f->stack + STACK_BYTES - 64);
    *--top = NULL;
    *--top = (void *)(uintptr_t)fibre_main;
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    f->top = top;
}

/* One turn of all fibres; how many have not ended. */
static unsigned turn(engine *e, fibre *set, unsigned threads)
{
    unsigned live = 0, waiting = 0;
    for (unsigned i = 0; i < threads; i++) {
        fibre *f = &set[i];
        if (f->state == READY) {
            go_to(e, f);
        }
        live += f->state != DONE;
        waiting += f->state == AT_BARRIER;
    }
    for (unsigned i = 0; i < threads && waiting == live; i++) {
        fibre *f = &set[i];
        f->state = f->state == AT_BARRIER ? READY : f->state;
    }
    return live;
}

static _Atomic int serial, is_running;

void hd_sim_set_serial(int is_serial)
{
    atomic_store(&serial, is_serial);
}

/* 1: nobody else runs until it is given back. Atomics here are no order for the race detector. */
static int take_turn(void)
{
    int is_taken = atomic_load(&serial);
    for (int idle = 0; is_taken && !atomic_compare_exchange_weak(&is_running, &idle, 1); idle = 0) {
        sched_yield();
    }
    return is_taken;
}

void hd_sim_run_kernel(hd_sim_op *op)
{
    unsigned threads = op->u.kernel.threads;
    engine *e = need_engine(threads);
    int has_turn = take_turn();
    e->op = op;
    e->shared_used = 0;
#ifdef HD_SIM_TSAN
    e->home_detector = __tsan_get_current_fiber();
#endif
    hd_sim_release(&e->begin);
    for (unsigned block = 0; block < op->u.kernel.blocks; block++) {
        fibre *set =
            e->fibre[(unsigned)__builtin_popcount(block) % SETS]; /* no pattern that lists of blocks have, too */
        e->npieces = 0;
        e->shared_used = e->shared_used + SHARED_BYTES <= ALL_SHARED_BYTES ? e->shared_used : 0;
        e->shared_from = e->shared_used;
        for (unsigned i = 0; i < threads; i++) { /* another fibre in every block: nothing is ordered by chance */
            make_ready(&set[(i + block * 7 + 1) % threads], i, block, op);
        }
        void *volatile barrier = malloc(1); /* known on this stack, too */
        e->barrier = barrier;
        while (turn(e, set, threads) > 0) {
        }
        free(barrier);
    }
    hd_sim_acquire(&e->end);
    if (has_turn) {
        atomic_store(&is_running, 0);
    }
    atomic_fetch_add(&kernels, 1);
}

void hd_sim_end_fibres(void)
{
    for (int i = 0; mine != NULL && i < mine->nfibres * SETS; i++) {
        fibre *f = &mine->fibre[i % SETS][i / SETS];
        munmap(f->stack, STACK_BYTES);
#ifdef HD_SIM_TSAN
        __tsan_destroy_fiber(f->detector);
#endif
    }
    if (mine != NULL) {
        LOOK_AWAY(mine->own_stack, mine->own_bytes);
        munmap(mine->shared, ALL_SHARED_BYTES);
        munmap(mine, sizeof *mine);
        mine = NULL;
    }
}
