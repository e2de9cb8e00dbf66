/* What a stage on a device asks CUDA and cuBLAS for while it is enqueued, call by call: that is what it costs the host
 * (docs/gpu.md). Arrays and boxes are those of the call before, as in a model. */
#include "block_on_device.h"
#include "counted_calls.h"

#include <heddle/train/tape.h>

enum { FORWARD, FORWARD_TAPE, BACKWARD, CALLS };

/* Launches, products, and those that have another bias than the product before. Besides, all of a call's: the thread,
 * which has no context, gets the device's; is the stream captured; the event behind the call before, which it waits
 * for, and that behind all of it. */
typedef struct calls {
    int launches, products, biases;
} calls;

static const struct {
    heddle_stage_kind kind;
    calls of[CALLS];
} stages[] = {
    {HEDDLE_STAGE_ATTENTION, {{4, 2, 2}, {4, 2, 2}, {15, 5, 1}}},
    {HEDDLE_STAGE_CROSS, {{3, 3, 3}, {3, 3, 3}, {14, 6, 0}}},
    {HEDDLE_STAGE_MLP, {{3, 2, 2}, {3, 2, 2}, {12, 5, 1}}},
    {HEDDLE_STAGE_LINEAR, {{5, 2, 2}, {5, 2, 2}, {19, 5, 1}}},
};

static const char *wanted_calls(char text[COUNTED_BYTES], const calls *of)
{
    char biases[64] = "";
    if (of->biases > 0) {
        snprintf(biases, sizeof biases, "cublasLtMatmulDescSetAttribute %d, ", of->biases);
    }
    snprintf(text, COUNTED_BYTES,
             "cuCtxGetCurrent 1, cuCtxPopCurrent 1, cuCtxPushCurrent 1, cublasLtMatmul %d, %scudaEventRecord 1, "
             "cudaGetLastError %d, cudaLaunchKernel %d, cudaStreamIsCapturing 1, "
             "cudaStreamWaitEvent 1",
             of->products, biases, of->launches, of->launches);
    return text;
}

/* A block in bf16 with all that its kind may have, its arrays and a tape. */
typedef struct problem_of {
    heddle_comm *comm;
    there t;
    heddle_box box;
    heddle_tape *tape;
    heddle_tensor x, dx;
    heddle_conditioning_gradient gradient;
} problem_of;

static void open_stage(problem_of *p, heddle_stage_kind kind)
{
    heddle_block_options options = small_options(kind, HEDDLE_BF16);
    options.mixed_dim = 1;
    options.modulate = kind != HEDDLE_STAGE_CROSS;
    options.rope = options.qk_norm = kind == HEDDLE_STAGE_ATTENTION;
    p->comm = alone();
    p->box = whole_box(&options.shape);
    there_open(&p->t, p->comm, &options);
    const size_t bytes = (size_t)p->t.p.elems * sizeof(float);
    p->x = there_tensor(&p->t, placed_on(p->comm, p->t.p.x, bytes), &p->box);
    p->dx = there_tensor(&p->t, placed_on(p->comm, p->t.p.x, bytes), &p->box);
    p->gradient =
        (heddle_conditioning_gradient){placed_on(p->comm, p->t.p.x, bytes), placed_on(p->comm, p->t.p.x, bytes)};
    HD_OK(heddle_tape_create(&p->tape, p->t.p.block, NULL));
    HD_OK(heddle_tape_reserve(p->tape, &p->box));
}

static void close_stage(problem_of *p)
{
    heddle_tape_destroy(p->tape);
    heddle_buffer_free(p->comm, p->x.data);
    heddle_buffer_free(p->comm, p->dx.data);
    heddle_buffer_free(p->comm, p->gradient.vector);
    heddle_buffer_free(p->comm, p->gradient.text);
    there_close(&p->t);
    heddle_comm_destroy(p->comm);
}

static heddle_status call(const problem_of *p, int how)
{
    heddle_block *block = p->t.p.block;
    const heddle_conditioning *given = &p->t.conditioning;
    return how == FORWARD        ? heddle_block_forward(block, &p->x, &p->box, given, HEDDLE_NO_STREAM)
           : how == FORWARD_TAPE ? heddle_block_forward_tape(block, &p->x, &p->box, given, p->tape, HEDDLE_NO_STREAM)
                                 : heddle_block_backward(block, &p->dx, given, &p->gradient, p->tape, HEDDLE_NO_STREAM);
}

/* Products are cuBLAS's, and the first algorithm will do. */
static void take_cublas(void)
{
    static const char *const names[] = {"cublassim_recommend"};
    void (*recommend)(const char *kinds) = NULL;
    HD_OK(sim_functions(&recommend, dlopen(HEDDLE_CUBLAS_SIM "/libheddle_cublas.so", RTLD_NOW | RTLD_LOCAL), names, 1));
    recommend("g");
    setenv("HEDDLE_MODULE_PATH", HEDDLE_CUBLAS_SIM, 1);
}

HD_CASE(a_stage_asks_cuda_for_no_more)
{
    static const char *const how[] = {"forward", "with a tape", "backward"};
    char text[COUNTED_BYTES], wanted[COUNTED_BYTES];
    int wrong = 0;
    take_cublas();
    for (size_t i = 0; i < sizeof stages / sizeof stages[0]; i++) {
        problem_of p;
        counted_calls c;
        open_stage(&p, stages[i].kind);
        HD_OK(device_sim_get(&c.sim));
        for (int j = 0; j < 2 * CALLS; j++) {
            counted_begin(&c);
            HD_OK(call(&p, j % CALLS));
            if (j >= CALLS && strcmp(counted_since(&c, text), wanted_calls(wanted, &stages[i].of[j % CALLS])) != 0) {
                fprintf(stderr, "kind %d %s:\n  %s\nwanted\n  %s\n", (int)stages[i].kind, how[j % CALLS], text, wanted);
                wrong++;
            }
        }
        HD_OK(device_settle(p.comm, HEDDLE_NO_STREAM));
        close_stage(&p);
    }
    assert_int_equal(wrong, 0);
}
