/* heddle bench: one reshard against the machine's contiguous copy, in the same run. */
#include "launch.h"
#include "options.h"
#include "planner/report/bench.h"
#include "runtime/verify/device_bench.h"

#include <heddle/sys/bench.h>
#include <stdio.h>
#include <string.h>

typedef struct bench_request {
    heddle_reshard_line line;
    heddle_reshard_options reshard;
    heddle_bench_options options;
    int json;
} bench_request;

static heddle_status bench_main(heddle_comm *comm, void *arg)
{
    bench_request request = *(const bench_request *)arg;
    request.options.reshard = &request.reshard;
    heddle_bench_result result = HEDDLE_EMPTY(heddle_bench_result);
    heddle_status st = (heddle_comm_device(comm) >= 0 ? device_bench : heddle_bench_reshard)(
        &result, comm, &request.line, &request.options);
    if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
        report_bench_reshard(&request.line, comm, &result, request.json);
        fflush(stdout);
    }
    return st;
}

static int list_kernels(void)
{
    int64_t min_run_bytes = 0;
    const char *name;
    if (heddle_copy_kernel_name(0, NULL) == NULL) {
        return cli_report(HEDDLE_ERR_ARG);
    }
    for (int i = 0; (name = heddle_copy_kernel_name(i, &min_run_bytes)) != NULL; i++) {
        printf("%-18s runs of at least %lld bytes\n", name, (long long)min_run_bytes);
    }
    return CLI_OK;
}

static int check_kernel(const char *name)
{
    const char *known;
    if (heddle_copy_kernel_name(0, NULL) == NULL) {
        return cli_report(HEDDLE_ERR_ARG);
    }
    for (int i = 0; (known = heddle_copy_kernel_name(i, NULL)) != NULL; i++) {
        if (strcmp(known, name) == 0) {
            return CLI_OK;
        }
    }
    return cli_usage_error("unknown copy kernel '%s' on this CPU (heddle bench --list-kernels)", name);
}

static int run(const cli_arguments *a)
{
    bench_request request = {.json = a->json};
    int ranks = 0;
    if (a->list_kernels) {
        return list_kernels();
    }
    int code = a->kernel != NULL ? check_kernel(a->kernel) : CLI_OK;
    code = code == CLI_OK ? cli_report(heddle_reshard_parse(&request.line, a->operand)) : code;
    code = code == CLI_OK ? cli_mesh_ranks(&ranks, a, &request.line.mesh) : code;
    if (code != CLI_OK) {
        return code;
    }
    heddle_reshard_options_init(&request.reshard);
    request.reshard.memory = (heddle_memory)cli_choice(a->memory);
    request.reshard.tuning = (heddle_tuning)cli_choice(a->tuning);
    request.reshard.kernel = a->kernel;
    heddle_bench_options_init(&request.options);
    request.options.budget_ms = a->seconds * 1000;
    if (a->iterations > 0) { /* four to a round */
        request.options.min_rounds = (a->iterations + 3) / 4;
        request.options.max_rounds = request.options.min_rounds;
    }
    return cli_with_ranks(a, ranks, bench_main, &request);
}

const cli_action cli_bench = {
    .synopsis = "usage: heddle bench 'RESHARD LINE' [options]\n"
                "       heddle bench --list-kernels\n"
                "       heddle bench attention|linear-attention|products --help\n"
                "\n"
                "  heddle bench 'bf16[t=32 s=1024 c=1152] on [sp=2]: t@sp -> s@sp' --ranks 2 --transport shm\n",
    .notes = "The roofline is the same bytes, copied contiguously from the ranks that own them by the strongest\n"
             "kernel, all ranks at once, between the same flags, by turns with the reshards. roofline_ratio =\n"
             "roofline_min / min. Of partial sums it is the sum of as many contiguous terms.\n"
             "With --device it is the device's own copy of as many bytes, and arrays alternate so that caches do\n"
             "not help.\n",
    .run = run,
};
