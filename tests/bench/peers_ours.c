/* Our rows, and the roofline: the same number of bytes copied contiguously, all ranks at once. */
#include "peers.h"

#include "kernels/copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- ours --------------------------------------------------------------------------------------------------------- */

typedef struct ours_state {
    heddle_reshard *reshard;
    void *own_src, *own_dst; /* mode 1: private memory of the process */
    heddle_status status;
} ours_state;

static int ours_make(peers_method *m, const peers_problem *p, void *src, void *dst)
{
    char line[256];
    heddle_reshard_line parsed;
    heddle_reshard_options options;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    ours_state *s = calloc(1, sizeof(*s));
    heddle_reshard_options_init(&options);
    m->state = s;
    m->src = src;
    m->dst = dst;
    if (m->mode != 0) {
        options.memory = HEDDLE_MEMORY_ANY;
        s->own_src = m->src = malloc(p->src_bytes + 1);
        s->own_dst = m->dst = malloc(p->dst_bytes + 1);
        memcpy(m->src, src, p->src_bytes);
        memset(m->dst, 1, p->dst_bytes);
    }
    snprintf(line, sizeof(line), "%s[t=%lld s=%lld h=%lld] on [sp=%d]: %s", p->elem_bytes == 2 ? "bf16" : "f32",
             (long long)p->T, (long long)p->S, (long long)p->H, p->size, p->backward ? "s@sp -> t@sp" : "t@sp -> s@sp");
    double begin = MPI_Wtime();
    if (heddle_reshard_parse(&parsed, line) != HEDDLE_OK ||
        heddle_reshard_create_line(&s->reshard, m->comm, &parsed, &options) != HEDDLE_OK ||
        heddle_reshard_get_info(&info, s->reshard) != HEDDLE_OK) {
        snprintf(m->why, sizeof(m->why), "%.500s", heddle_last_error());
        return -1;
    }
    m->plan_s = MPI_Wtime() - begin;
    snprintf(m->note, sizeof(m->note), "%s; %s", info.path, info.kernel);
    snprintf(m->why, sizeof(m->why), "%.500s", info.why);
    return 0;
}

static void ours_run(peers_method *m)
{
    ours_state *s = m->state;
    if (s->status == HEDDLE_OK) {
        s->status = heddle_reshard_execute(s->reshard, m->src, m->dst, HEDDLE_NO_STREAM);
        if (s->status != HEDDLE_OK) {
            fprintf(stderr, "bench_peers: %s\n", heddle_last_error());
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
}

static void ours_destroy(peers_method *m)
{
    ours_state *s = m->state;
    heddle_reshard_destroy(s->reshard);
    free(s->own_src);
    free(s->own_dst);
    free(s);
}

/* --- roofline ----------------------------------------------------------------------------------------------------- */

typedef struct roof_state {
    size_t bytes;
    const hd_copy_kernel *kernel;
} roof_state;

static void roof_run(peers_method *m)
{
    roof_state *s = m->state;
    if (s->kernel == NULL) {
        memcpy(m->dst, m->src, s->bytes);
    } else {
        hd_lane lane = {.run_bytes = (int64_t)s->bytes};
        s->kernel->copy(&lane, 1, 0, NULL, (const void *const *)&m->src, (void *const *)&m->dst);
    }
}

/* Seconds of the slowest rank; the least of a few. */
static double roof_time(peers_method *m)
{
    double least = 1e30;
    for (int i = 0; i < 5; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        roof_run(m);
        double mine = MPI_Wtime() - begin;
        double slowest = 0;
        MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        least = slowest < least ? slowest : least;
    }
    return least;
}

static int roof_make(peers_method *m, const peers_problem *p, void *src, void *dst)
{
    roof_state *s = calloc(1, sizeof(*s));
    s->bytes = p->src_bytes < p->dst_bytes ? p->src_bytes : p->dst_bytes;
    m->state = s;
    m->src = src;
    m->dst = dst;
    if (m->mode == 0) {
        return 0;
    }
    int count = 0;
    const hd_copy_kernel *kernels = hd_copy_kernels(&count);
    double least = 1e30;
    const hd_copy_kernel *best = NULL;
    for (int i = 0; i < count; i++) {
        s->kernel = &kernels[i];
        /* how long runs must be is a rule per rank, but all ranks must time the same kernel */
        int fits = (int64_t)s->bytes >= kernels[i].min_run_bytes;
        MPI_Allreduce(MPI_IN_PLACE, &fits, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        double seconds = fits ? roof_time(m) : 1e30;
        if (seconds < least) {
            least = seconds;
            best = &kernels[i];
        }
    }
    s->kernel = best;
    snprintf(m->note, sizeof(m->note), "%s", best != NULL ? best->name : "memcpy");
    return 0;
}

static void roof_destroy(peers_method *m)
{
    free(m->state);
}

const peers_method peers_ours = {.name = "heddle", .make = ours_make, .run = ours_run, .destroy = ours_destroy};
const peers_method peers_memcpy = {
    .name = "roof: memcpy", .make = roof_make, .run = roof_run, .destroy = roof_destroy, .is_roof = 1};
const peers_method peers_kernel = {
    .name = "roof: best kernel", .make = roof_make, .run = roof_run, .destroy = roof_destroy, .is_roof = 1, .mode = 1};
