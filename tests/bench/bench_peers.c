/* Times one dim switch by every method at hand, in one run, round-robin: ours over peer memory and over messages, the
 * textbook ways with MPI, FFTW's distributed transposes, and contiguous copies as the roofline.
 *
 *     mpirun -n 2 bench_peers [--iterations N] [--fftw patient|measure|none] [--json] [--verbose] [TxSxH:BYTES ...]
 *
 * Every method's result is checked before anything is timed. A sample is `repeat` switches between barriers, by the
 * slowest rank; small tensors need more than one to be seen at all. */
#include "peers.h"

#include "runtime/verify/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_METHODS = 16, WARM_UPS = 2, REPEAT_BYTES = 4 << 20, MAX_REPEAT = 50 };

typedef struct run_options {
    int iterations;
    int json;
    int verbose; /* why our rows chose what they chose */
    const char *fftw;
} run_options;

static int balanced(int64_t **lo, int64_t extent, int size)
{
    *lo = malloc((size_t)(size + 1) * sizeof(**lo));
    if (*lo == NULL) {
        return -1;
    }
    for (int r = 0; r <= size; r++) {
        (*lo)[r] = extent / size * r + (r < extent % size ? r : extent % size);
    }
    return 0;
}

static int problem_init(peers_problem *p, const char *shape, int backward)
{
    long long t, s, h;
    int elem_bytes;
    char end;
    *p = (peers_problem){.backward = backward};
    if (sscanf(shape, "%lldx%lldx%lld:%d%c", &t, &s, &h, &elem_bytes, &end) != 4 || t < 1 || s < 1 || h < 1 ||
        (elem_bytes != 2 && elem_bytes != 4) || h * elem_bytes % 4 != 0 || t > 1 << 20 || s > 1 << 20 || h > 1 << 20) {
        return -1;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &p->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p->size);
    p->T = t;
    p->S = s;
    p->H = h;
    p->elem_bytes = elem_bytes;
    p->token_bytes = h * elem_bytes;
    if (balanced(&p->t_lo, t, p->size) != 0 || balanced(&p->s_lo, s, p->size) != 0) {
        return -1;
    }
    p->t_local = p->t_lo[p->rank + 1] - p->t_lo[p->rank];
    p->s_local = p->s_lo[p->rank + 1] - p->s_lo[p->rank];
    p->interleaved_bytes = (size_t)(p->t_local * p->S * p->token_bytes);
    p->stacked_bytes = (size_t)(p->T * p->s_local * p->token_bytes);
    p->src_bytes = backward ? p->stacked_bytes : p->interleaved_bytes;
    p->dst_bytes = backward ? p->interleaved_bytes : p->stacked_bytes;
    return 0;
}

/* --- content ------------------------------------------------------------------------------------------------------ */

static uint32_t stamp(const peers_problem *p, int64_t t, int64_t s, int64_t word)
{
    uint64_t i = (uint64_t)((t * p->S + s) * (p->token_bytes / 4) + word);
    return (uint32_t)((i * 0x9E3779B97F4A7C15u) >> 32);
}

/* Writes all words (fill) or counts wrong first, middle and last words of each token. */
static int64_t visit(const peers_problem *p, uint32_t *data, int stacked, int fill)
{
    int64_t rows = stacked ? p->T : p->t_local;
    int64_t columns = stacked ? p->s_local : p->S;
    int64_t t0 = stacked ? 0 : p->t_lo[p->rank];
    int64_t s0 = stacked ? p->s_lo[p->rank] : 0;
    int64_t words = p->token_bytes / 4;
    int64_t step = fill || words < 3 ? 1 : (words - 1) / 2;
    int64_t wrong = 0;
    for (int64_t t = 0; t < rows; t++) {
        for (int64_t s = 0; s < columns; s++) {
            uint32_t *token = data + (t * columns + s) * words;
            for (int64_t w = 0; w < words; w += step) {
                uint32_t value = stamp(p, t0 + t, s0 + s, w);
                if (fill) {
                    token[w] = value;
                } else {
                    wrong += token[w] != value;
                }
            }
            wrong += !fill && token[words - 1] != stamp(p, t0 + t, s0 + s, words - 1);
        }
    }
    return wrong;
}

static void check(const peers_problem *p, peers_method *m)
{
    memset(m->dst, 0xEE, p->dst_bytes);
    visit(p, m->src, p->backward, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    m->run(m);
    int64_t wrong = visit(p, m->dst, !p->backward, 0);
    if (wrong != 0) {
        fprintf(stderr, "bench_peers: %s: %lld wrong words on rank %d\n", m->name, (long long)wrong, p->rank);
        MPI_Abort(MPI_COMM_WORLD, 5);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* --- timing ------------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One switch before the clock starts: whoever ran before has left its own buffers in the cache. */
static double sample(peers_method *m, int repeat)
{
    m->run(m);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    for (int i = 0; i < repeat; i++) {
        m->run(m);
    }
    double mine = (MPI_Wtime() - begin) / repeat;
    double slowest = 0;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

typedef struct row {
    double min_ms, median_ms;
} row;

/* A new order for every iteration, the same on all ranks: nobody always runs in what another one left in the cache. */
static void shuffle(int *order, int count, int iteration)
{
    random_source source = {(uint64_t)iteration};
    for (int k = 0; k < count; k++) {
        order[k] = k;
    }
    for (int k = count - 1; k > 0; k--) {
        int other = (int)random_between(&source, 0, k);
        int moved = order[k];
        order[k] = order[other];
        order[other] = moved;
    }
}

static void time_all(row *rows, peers_method **methods, int count, int iterations, int repeat)
{
    int order[MAX_METHODS];
    double *samples = malloc((size_t)count * (size_t)iterations * sizeof(*samples));
    if (samples == NULL) {
        MPI_Abort(MPI_COMM_WORLD, 1);
        return;
    }
    for (int i = -WARM_UPS; i < iterations; i++) {
        shuffle(order, count, i + WARM_UPS);
        for (int k = 0; k < count; k++) {
            double seconds = sample(methods[order[k]], repeat);
            if (i >= 0) {
                samples[order[k] * iterations + i] = seconds;
            }
        }
    }
    for (int m = 0; m < count; m++) {
        qsort(samples + m * iterations, (size_t)iterations, sizeof(*samples), by_value);
        rows[m].min_ms = samples[m * iterations] * 1e3;
        rows[m].median_ms = samples[m * iterations + iterations / 2] * 1e3;
    }
    free(samples);
}

static void print_rows(const peers_problem *p, const row *rows, peers_method **methods, int count, const char *shape,
                       int json)
{
    const char *direction = p->backward ? "backward" : "forward";
    double shard_bytes = (double)(p->src_bytes < p->dst_bytes ? p->src_bytes : p->dst_bytes);
    if (!json) {
        printf("\n%s %s, %d ranks, %.2f MB per rank\n%-26s %10s %10s %8s %8s %9s  %s\n", shape, direction, p->size,
               shard_bytes / 1e6, "", "min ms", "median ms", "GB/s", "x ours", "plan ms", "");
    }
    for (int m = 0; m < count; m++) {
        double ratio = rows[m].min_ms / rows[0].min_ms;
        double rate = shard_bytes / rows[m].min_ms / 1e6;
        if (json) {
            printf("{\"shape\": \"%s\", \"direction\": \"%s\", \"ranks\": %d, \"method\": \"%s\", \"min_ms\": %.5f, "
                   "\"median_ms\": %.5f, \"ratio_to_ours\": %.3f, \"plan_ms\": %.1f, \"note\": \"%s\"}\n",
                   shape, direction, p->size, methods[m]->name, rows[m].min_ms, rows[m].median_ms, ratio,
                   methods[m]->plan_s * 1e3, methods[m]->note);
        } else {
            printf("%-26s %10.4f %10.4f %8.2f %8.2f %9.1f  %s\n", methods[m]->name, rows[m].min_ms, rows[m].median_ms,
                   rate, ratio, methods[m]->plan_s * 1e3, methods[m]->note);
        }
    }
    fflush(stdout);
}

static int run_problem(const char *shape, int backward, peers_method *methods, int count, heddle_comm *comm,
                       const run_options *options)
{
    peers_problem p;
    peers_method *ready[MAX_METHODS];
    row rows[MAX_METHODS];
    void *src = NULL;
    void *dst = NULL;
    int nready = 0;
    if (problem_init(&p, shape, backward) != 0 ||
        heddle_buffer_alloc(&src, comm, p.src_bytes, HEDDLE_SPACE_HOST) != HEDDLE_OK ||
        heddle_buffer_alloc(&dst, comm, p.dst_bytes, HEDDLE_SPACE_HOST) != HEDDLE_OK) {
        fprintf(stderr, "bench_peers: shape '%s': wants TxSxH:2 or TxSxH:4, whole words per token; %s\n", shape,
                heddle_last_error());
        return -1;
    }
    for (int m = 0; m < count; m++) {
        if (methods[m].make(&methods[m], &p, src, dst) == 0) {
            if (options->verbose && p.rank == 0) {
                fprintf(stderr, "%s: %s\n", methods[m].name, methods[m].why);
            }
            ready[nready++] = &methods[m];
            if (!methods[m].is_roof) {
                check(&p, &methods[m]);
            }
        } else if (p.rank == 0) {
            fprintf(stderr, "%s: left out: %s\n", methods[m].name, methods[m].why);
        }
    }
    size_t largest = p.src_bytes > p.dst_bytes ? p.src_bytes : p.dst_bytes;
    long long repeat = largest > 0 ? (long long)(REPEAT_BYTES / largest) + 1 : 1;
    MPI_Allreduce(MPI_IN_PLACE, &repeat, 1, MPI_LONG_LONG, MPI_MIN, MPI_COMM_WORLD);
    time_all(rows, ready, nready, options->iterations, repeat < MAX_REPEAT ? (int)repeat : MAX_REPEAT);
    if (p.rank == 0) {
        print_rows(&p, rows, ready, nready, shape, options->json);
    }
    for (int m = 0; m < nready; m++) {
        ready[m]->destroy(ready[m]);
    }
    heddle_buffer_free(comm, src);
    heddle_buffer_free(comm, dst);
    free(p.t_lo);
    free(p.s_lo);
    return 0;
}

/* --- main --------------------------------------------------------------------------------------------------------- */

static int list_methods(peers_method *methods, heddle_comm *peer, heddle_comm *messages, const run_options *options)
{
    int n = 0;
    methods[n] = peers_ours;
    methods[n].name = "heddle, peer path";
    methods[n++].comm = peer;
    methods[n] = peers_ours;
    methods[n].name = "heddle, MPI messages";
    methods[n++].comm = messages;
    methods[n++] = peers_typed;
    methods[n++] = peers_alltoallw;
    methods[n++] = peers_alltoallv;
    if (strcmp(options->fftw, "none") != 0) {
        methods[n] = peers_fftw;
        methods[n++].mode = strcmp(options->fftw, "measure") == 0;
    }
    methods[n] = peers_ours;
    methods[n].name = "heddle, private memory";
    methods[n].mode = 1;
    methods[n++].comm = peer;
    methods[n++] = peers_kernel;
    methods[n++] = peers_memcpy;
    return n;
}

static int parse(run_options *options, int argc, char **argv, const char **shapes, int capacity)
{
    int nshapes = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            options->json = 1;
        } else if (strcmp(argv[i], "--verbose") == 0) {
            options->verbose = 1;
        } else if (strcmp(argv[i], "--iterations") == 0 && i + 1 < argc) {
            options->iterations = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--fftw") == 0 && i + 1 < argc) {
            options->fftw = argv[++i];
        } else if (argv[i][0] != '-' && nshapes < capacity) {
            shapes[nshapes++] = argv[i];
        } else {
            return -1;
        }
    }
    return options->iterations >= 1 && options->iterations <= 100000 ? nshapes : -1;
}

static int open_both(heddle_comm **peer, heddle_comm **messages)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    if (heddle_comm_from_mpi(peer, MPI_COMM_WORLD, &options) != HEDDLE_OK) {
        return -1;
    }
    options.force_messages = 1;
    return heddle_comm_from_mpi(messages, MPI_COMM_WORLD, &options) == HEDDLE_OK ? 0 : -1;
}

int main(int argc, char **argv)
{
    const char *shapes[64] = {"8x64x1152:2",    "16x256x1152:2",  "17x1001x1152:2", "32x1024x1152:2",
                              "32x1024x1152:4", "64x4096x1152:2", "16x4096x72:2"};
    const char *given[64];
    run_options options = {.iterations = 31, .fftw = "patient"};
    peers_method methods[MAX_METHODS];
    heddle_comm *peer = NULL;
    heddle_comm *messages = NULL;
    int failed = 0;
    int nshapes = parse(&options, argc, argv, given, 64);
    if (nshapes < 0) {
        fprintf(stderr,
                "usage: mpirun -n N bench_peers [--iterations N] [--fftw patient|measure|none] [--json] [--verbose] "
                "[TxSxH:BYTES ...]\n");
        return 2;
    }
    if (nshapes > 0) {
        memcpy(shapes, given, sizeof(given));
    } else {
        nshapes = 7;
    }
    MPI_Init(&argc, &argv);
    if (open_both(&peer, &messages) != 0) {
        fprintf(stderr, "bench_peers: %s\n", heddle_last_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
        return 1;
    }
    for (int i = 0; i < nshapes && failed == 0; i++) {
        for (int backward = 0; backward < 2 && failed == 0; backward++) {
            int count = list_methods(methods, peer, messages, &options);
            failed = run_problem(shapes[i], backward, methods, count, peer, &options);
        }
    }
    heddle_comm_destroy(messages);
    heddle_comm_destroy(peer);
    MPI_Finalize();
    return failed != 0 ? 2 : 0;
}
