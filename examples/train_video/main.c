/* Trains a small video diffusion transformer on several ranks; train.h says where to read on.
 *
 *     ./example_train_video --picture clip.png              2 ranks, processes of this host, half a minute
 *     ./example_train_video --mesh '[dp=2 sp=2]' --shard-optimizer
 *     ./example_train_video --compare                       the same losses on 1, 2 and 4 ranks?
 *     mpirun -n 4 ./example_train_video --ranks 4           joins the ranks that mpirun started
 */
#include "examples/common/program.h"
#include "runtime/files/output.h"
#include "train.h"

#include <stdlib.h>

static const char program_name[] = "example_train_video";

static int train_once(const options *opt, const clip *video)
{
    job work = {.opt = opt, .video = video};
    work.result = calloc(1, sizeof(outcome) + (size_t)opt->steps * sizeof(double));
    const heddle_status st =
        work.result == NULL
            ? heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for the losses of %lld steps", (long long)opt->steps)
            : program_run(opt->ranks, opt->transport, NULL, train_rank, &work);
    if (st != HEDDLE_OK) {
        fprintf(stderr, "%s: %s: %s\n", program_name, heddle_status_name(st), heddle_last_error());
    }
    free(work.result);
    return st != HEDDLE_OK;
}

/* Better known before the training than after it. */
static int can_write(const char *path)
{
    if (path == NULL || file_output_check(path) == HEDDLE_OK) {
        return 1;
    }
    fprintf(stderr, "%s: %s\n", program_name, heddle_last_error());
    return 0;
}

static int open_clip(clip *video, const options *opt)
{
    char error[256] = "there is no memory for it";
    const char *name = opt->clip != NULL ? opt->clip : "the generated clip";
    const int failed = opt->clip != NULL ? clip_read_y4m(video, opt->clip, opt->side, error, sizeof(error))
                                         : clip_generate(video, opt->frames + opt->frames / 2, opt->side);
    if (failed) {
        fprintf(stderr, "%s: %s: %s\n", program_name, name, error);
        return 0;
    }
    if (video->frames < opt->frames) {
        fprintf(stderr, "%s: %s has %lld frames, --frames wants %lld\n", program_name, name, (long long)video->frames,
                (long long)opt->frames);
        return 0;
    }
    return 1;
}

int main(int argc, char **argv)
{
    options opt;
    clip video = {0};
    int code = options_read(&opt, argc, argv);
    if (code != 0) {
        return program_exit(program_name, code == 1 ? 0 : code);
    }
    if (!can_write(opt.picture) || !can_write(opt.loss_csv) || !open_clip(&video, &opt)) {
        code = 2; /* what the user gave */
    } else {
        code = opt.compare ? compare_layouts(&opt, &video) : train_once(&opt, &video);
    }
    free(video.values);
    return program_exit(program_name, code);
}
