/* Trains a small video diffusion transformer on several ranks; train.h says where to read on.
 *
 *     ./example_train_video --picture clip.png              2 ranks, processes of this host, half a minute
 *     ./example_train_video --mesh '[dp=2 sp=2]' --shard-optimizer
 *     ./example_train_video --compare                       the same losses on 1, 2 and 4 ranks?
 *     mpirun -n 4 ./example_train_video --ranks 4           joins the ranks that mpirun started
 */
#include "train.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* "auto": the launcher's ranks if there are several, else processes of our own. */
heddle_status run_job(job *work)
{
    const options *opt = work->opt;
    const char *transport = opt->transport;
    if (strcmp(transport, "auto") == 0) {
        heddle_comm *comm = NULL;
        heddle_status st = heddle_comm_open(&comm, "auto", NULL);
        const int size = st == HEDDLE_OK ? heddle_comm_size(comm) : 0;
        if (st == HEDDLE_OK && size > 1) {
            st = size != opt->ranks || opt->compare
                     ? heddle_set_error(HEDDLE_ERR_ARG, "%d ranks were started, but %lld are wanted%s", size,
                                        (long long)opt->ranks, opt->compare ? ": --compare starts its own" : "")
                     : train_rank(comm, work);
        }
        heddle_comm_destroy(comm);
        if (st != HEDDLE_OK || size > 1) {
            return st;
        }
        transport = "shm";
    }
    return heddle_run_ranks((int)opt->ranks, transport, train_rank, work);
}

static int train_once(const options *opt, const clip *video)
{
    job work = {.opt = opt, .video = video};
    work.result = calloc(1, sizeof(outcome) + (size_t)opt->steps * sizeof(double));
    const heddle_status st =
        work.result == NULL
            ? heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for the losses of %lld steps", (long long)opt->steps)
            : run_job(&work);
    if (st != HEDDLE_OK) {
        fprintf(stderr, "example_train_video: %s: %s\n", heddle_status_name(st), heddle_last_error());
    }
    free(work.result);
    return st != HEDDLE_OK;
}

/* Better known before the training than after it. */
static int can_write(const char *path)
{
    char folder[4096];
    if (path == NULL) {
        return 1;
    }
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL) {
        strcpy(folder, ".");
    } else {
        slash[slash == folder] = '\0'; /* keeps the root's slash */
    }
    struct stat known;
    const int exists = stat(path, &known) == 0;
    if (exists && S_ISDIR(known.st_mode)) {
        fprintf(stderr, "example_train_video: %s cannot be written: it is a folder\n", path);
        return 0;
    }
    if (access(exists ? path : folder, W_OK) != 0) {
        fprintf(stderr, "example_train_video: %s cannot be written: %s\n", path, strerror(errno));
        return 0;
    }
    return 1;
}

static int open_clip(clip *video, const options *opt)
{
    char error[256] = "there is no memory for it";
    const char *name = opt->clip != NULL ? opt->clip : "the generated clip";
    const int failed = opt->clip != NULL ? clip_read_y4m(video, opt->clip, opt->side, error, sizeof(error))
                                         : clip_generate(video, opt->frames + opt->frames / 2, opt->side);
    if (failed) {
        fprintf(stderr, "example_train_video: %s: %s\n", name, error);
        return 0;
    }
    if (video->frames < opt->frames) {
        fprintf(stderr, "example_train_video: %s has %lld frames, --frames wants %lld\n", name,
                (long long)video->frames, (long long)opt->frames);
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
        return code == 1 ? 0 : code;
    }
    if (!can_write(opt.picture) || !can_write(opt.loss_csv) || !open_clip(&video, &opt)) {
        code = 1;
    } else {
        code = opt.compare ? compare_layouts(&opt, &video) : train_once(&opt, &video);
    }
    free(video.values);
    return code;
}
