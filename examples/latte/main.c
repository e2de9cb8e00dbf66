/* Runs Latte on several ranks; latte.h says where to read on.
 *
 *     ./example_latte Latte-1/transformer --steps 50 --text prompt.npy --output latent.npy      2 ranks of this host
 *     ./example_latte Latte-1/transformer --mesh '[sp=4]' --timestep 500 --output result.npy    one pass
 *     mpirun -n 4 ./example_latte Latte-1/transformer --ranks 4                                 joins mpirun's ranks
 *
 * The result has the same bits on any number of ranks, unless --method has attention over a sharded dim.
 */
#include "examples/common/program.h"
#include "latte.h"
#include "runtime/files/npy.h"
#include "runtime/files/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of all ranks, planned and counted: a difference is an error. */
static heddle_status report(network *net)
{
    heddle_session_counters counters = HEDDLE_EMPTY(heddle_session_counters);
    heddle_status st = heddle_session_get_counters(&counters, net->session);
    int64_t sums[3] = {counters.bytes_planned, counters.bytes_sent, net->there.copied_bytes};
    st = st ? st : heddle_comm_allreduce_sum(net->comm, sums, 3, HEDDLE_I64);
    if (st == HEDDLE_OK && net->rank == 0 && net->is_there) {
        printf("latte: %s; copied to and from devices: %lld bytes\n", heddle_comm_describe(net->comm),
               (long long)sums[2]);
    }
    if (st == HEDDLE_OK && net->rank == 0) {
        printf(
            "latte: %d stages on %d ranks, %d switches a pass; sent for switches: planned %lld, counted %lld bytes\n",
            net->about.nstages, heddle_comm_size(net->comm), net->about.switches, (long long)sums[0],
            (long long)sums[1]);
    }
    return st == HEDDLE_OK && sums[0] != sums[1]
               ? heddle_set_error(HEDDLE_ERR_INTERNAL, "%lld bytes were planned, %lld sent", (long long)sums[0],
                                  (long long)sums[1])
               : st;
}

static heddle_status write_result(const network *net, const float *result, int64_t channels)
{
    const floats *latent = &net->work->in.latent;
    int64_t extent[HEDDLE_MAX_DIMS];
    memcpy(extent, latent->extent, sizeof(extent));
    extent[1] = channels;
    return net->rank != 0 || net->work->opt->output == NULL
               ? HEDDLE_OK
               : npy_write(net->work->opt->output, "<f4", 5, extent, result);
}

static heddle_status run_rank(heddle_comm *comm, void *arg)
{
    const job *work = arg;
    const int64_t *e = work->in.latent.extent, plane = e[0] * e[2] * e[3] * e[4];
    const int64_t channels = work->opt->steps > 0 ? work->cfg.in_channels : work->cfg.out_channels;
    network net;
    float *result = malloc((size_t)(plane * channels) * sizeof(float));
    heddle_status st = network_create(&net, comm, work);
    st = st == HEDDLE_OK && result == NULL ? no_memory("the result", plane * channels) : st;
    if (st == HEDDLE_OK && work->opt->steps > 0) {
        memcpy(result, work->in.latent.at, (size_t)(plane * channels) * sizeof(float));
        st = sample(&net, result);
    } else if (st == HEDDLE_OK) {
        st = network_forward(&net, result, work->in.latent.at, work->opt->timestep);
    }
    st = st ? st : report(&net);
    st = st ? st : write_result(&net, result, channels);
    st = st || net.rank != 0 ? st : program_printed();
    network_destroy(&net);
    free(result);
    /* the device is there: what it cannot do is no missing one (NO_DEVICE) */
    return st == HEDDLE_ERR_UNSUPPORTED ? heddle_set_error(HEDDLE_ERR_ARG, "%s", heddle_last_error()) : st;
}

/* All that can be wrong with what the user gave is found before ranks are started. */
static heddle_status prepare(job *work)
{
    const options *opt = work->opt;
    heddle_status st = opt->output != NULL ? file_output_check(opt->output) : HEDDLE_OK;
    st = st ? st : config_read(&work->cfg, opt->folder);
    st = st ? st : weights_open(work->files, opt->folder);
    st = st ? st : weights_check(work->files, &work->cfg);
    if (st == HEDDLE_OK && opt->steps > 0 && work->cfg.out_channels != work->cfg.in_channels &&
        work->cfg.out_channels != 2 * work->cfg.in_channels) {
        st = heddle_set_error(HEDDLE_ERR_ARG,
                              "--steps wants a model that predicts noise, and perhaps its variance: %lld "
                              "channels from %lld",
                              (long long)work->cfg.out_channels, (long long)work->cfg.in_channels);
    }
    st = st ? st : input_read(&work->in, opt, &work->cfg);
    return st ? st : plan_make(work);
}

static heddle_status run_ranks(job *work)
{
    const options *opt = work->opt;
    heddle_comm_options want;
    heddle_comm_options_init(&want);
    want.device = opt->device;
    want.wire = opt->wire;
    return program_run(opt->ranks, opt->transport, &want, run_rank, work);
}

int main(int argc, char **argv)
{
    static weights files;
    options opt;
    job work = {.opt = &opt, .files = &files};
    int code = options_read(&opt, argc, argv);
    if (code != 0) {
        return program_exit("example_latte", code == 1 ? 0 : code);
    }
    heddle_status st = prepare(&work);
    code = st != HEDDLE_OK ? 2 : 0;
    st = st ? st : run_ranks(&work);
    if (st != HEDDLE_OK) {
        fprintf(stderr, "example_latte: %s: %s\n", heddle_status_name(st), heddle_last_error());
        code = code != 0 ? code : st == HEDDLE_ERR_UNSUPPORTED && opt.device != NULL ? NO_DEVICE : 1;
    }
    heddle_schedule_destroy(work.schedule);
    heddle_model_destroy(work.model);
    input_free(&work.in);
    weights_close(&files);
    return code;
}
