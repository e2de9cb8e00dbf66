/* Ranks whose libraries of products would choose otherwise: all take heddle's own kernels, or all the same
 * algorithm. */
#include "device_sim.h"
#include "executor_fixture.h"

typedef struct cublas_sim {
    void (*recommend)(const char *kinds);
    int64_t (*products)(void);
} cublas_sim;

/* cuBLAS where this program loads devices from; it is loaded for good. */
static heddle_status get_sim(cublas_sim *out)
{
    static const char *const names[] = {"cublassim_recommend", "cublassim_products"};
    setenv("HEDDLE_MODULE_PATH", HEDDLE_CUBLAS_SIM, 1);
    return sim_functions(out, dlopen(HEDDLE_CUBLAS_SIM "/libheddle_cublas.so", RTLD_NOW | RTLD_LOCAL), names, 2);
}

/* A pass of an executor; *products: that cuBLAS ran in it, on this rank. */
static heddle_status run_pass(int64_t *products, heddle_comm *comm, const cublas_sim *sim)
{
    heddle_status st = HEDDLE_OK;
    bench b;
    void *memory[3] = {NULL};
    heddle_executor_options options = options_on(comm);
    options.blocks = HEDDLE_SPACE_DEVICE;
    HD_TRY(make_bench(&b, comm));
    HD_TRY(heddle_executor_create(&b.executor, comm, b.schedule, b.stage, &options));
    HD_TRY(fill(&b));
    const void *host[] = {b.data, b.vector, b.text};
    const size_t bytes[] = {ELEMS * sizeof(float), sizeof b.vector, sizeof b.text};
    for (int i = 0; i < 3; i++) {
        HD_TRY(heddle_buffer_alloc(&memory[i], comm, bytes[i], HEDDLE_SPACE_DEVICE));
        HD_TRY(device_copy_now(comm, memory[i], host[i], bytes[i]));
    }
    b.x.data = memory[0];
    b.x.space = options.space;
    b.x.device = options.device;
    b.conditioning = (heddle_conditioning){memory[1], memory[2], NULL};
    HD_TRY(heddle_comm_barrier(comm));
    *products = sim->products();
    HD_TRY(heddle_executor_forward(b.executor, &b.x, &b.conditioning, HEDDLE_NO_STREAM));
    HD_TRY(device_settle(comm, HEDDLE_NO_STREAM));
    *products = sim->products() - *products;
    HD_TRY(heddle_comm_poll(comm));
    st = heddle_comm_barrier(comm);
out:
    free_bench(&b);
    for (int i = 0; i < 3; i++) {
        heddle_buffer_free(comm, memory[i]);
    }
    return st;
}

/* Processes: each has a cuBLAS of its own. */
static heddle_status agree_rank(heddle_comm *comm, void *arg)
{
    const int differs = *(const int *)arg, rank = heddle_comm_rank(comm);
    heddle_status st = HEDDLE_OK;
    cublas_sim sim;
    int64_t products = 0;
    HD_TRY(get_sim(&sim));
    sim.recommend(differs && rank == 1 ? "hg" : "g");
    HD_TRY(heddle_comm_attach_device(comm, "cuda", HEDDLE_WIRE_PEER));
    HD_TRY(run_pass(&products, comm, &sim));
    CHECK(differs ? products == 0 : products > 0);
out:
    return st;
}

HD_CASE(ranks_that_choose_alike_have_the_library)
{
    int differs = 0;
    HD_OK(heddle_run_ranks(2, "shm", agree_rank, &differs));
}

HD_CASE(ranks_that_choose_otherwise_have_own_kernels)
{
    int differs = 1;
    HD_OK(heddle_run_ranks(2, "shm", agree_rank, &differs));
}
