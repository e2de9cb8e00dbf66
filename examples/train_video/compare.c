/* The same training on one rank and on several: data, noise and first weights are the same numbers everywhere, the
 * first loss has the same bits, later ones differ by the order in which gradients are summed. */
#include "examples/common/program.h"
#include "train.h"

#include <math.h>
#include <sys/mman.h>

typedef struct variant {
    const char *name;
    int dp, sp, shard_optimizer, recompute; /* dp: at most COMPARE_DP, which divides the batch */
    int same_as;                            /* bitwise: index of an earlier variant, or -1 */
} variant;

static const variant variants[] = {
    {"1 rank", 1, 1, 0, 0, -1},
    {"1 rank, recompute", 1, 1, 0, 1, 0},
    {"[dp=1 sp=2]", 1, 2, 0, 0, -1},
    {"[dp=1 sp=4]", 1, 4, 0, 0, -1},
    {"[dp=2 sp=1]", 2, 1, 0, 0, -1},
    {"[dp=2 sp=2]", 2, 2, 0, 0, -1},
    {"[dp=2 sp=2], optimiser sharded", 2, 2, 1, 0, 5},
};
enum { VARIANTS = sizeof(variants) / sizeof(variants[0]) };

/* Largest relative difference of the first losses. */
static double difference(const outcome *a, const outcome *b, int64_t steps)
{
    double largest = 0;
    for (int64_t i = 0; i < steps; i++) {
        const double now = fabs(a->loss[i] - b->loss[i]) / fabs(b->loss[i]);
        largest = now > largest || now != now ? now : largest;
    }
    return largest;
}

/* Linear attention divides each head's result by its size, which may be close to nothing: rounding then grows from step
 * to step, on any number of ranks, so that only the beginning can be compared. */
static int64_t compared_steps(const options *opt)
{
    const int64_t most = opt->linear ? 3 : opt->steps;
    return most < opt->steps ? most : opt->steps;
}

static int judge(const variant *v, outcome *const *results, const options *opt, double tolerance)
{
    const int index = (int)(v - variants);
    const outcome *mine = results[index], *one = results[0];
    const double first = difference(mine, one, 1), relative = difference(mine, one, compared_steps(opt));
    int right = (opt->methods == NULL ? first == 0 : first <= 1e-5) && relative <= tolerance;
    printf("%-32s first loss %s, largest relative difference %.2g", v->name,
           first == 0 ? "bitwise equal"
           : right    ? "equal but for rounding"
                      : "DIFFERENT",
           relative);
    if (v->same_as >= 0) {
        const outcome *other = results[v->same_as];
        const int same = difference(mine, other, opt->steps) == 0 && mine->weights == other->weights;
        printf("; losses and weights %s %s", same ? "bitwise those of" : "DIFFER FROM", variants[v->same_as].name);
        right = right && same;
    }
    printf("; %.1f s\n", mine->seconds);
    return right;
}

int compare_layouts(const options *opt, const clip *video)
{
    const double tolerance = opt->linear ? 1e-3 : opt->steps > 100 ? 1e-6 * (double)opt->steps : 1e-4;
    const size_t each = (sizeof(outcome) + (size_t)opt->steps * sizeof(double) + 63) / 64 * 64;
    /* forked ranks write into it, too */
    char *shared = mmap(NULL, VARIANTS * each, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    outcome *results[VARIANTS];
    int right = shared != MAP_FAILED;
    if (!right) {
        perror("example_train_video: memory for the losses");
        return 1;
    }
    for (int i = 0; i < VARIANTS; i++) {
        options mine = *opt;
        results[i] = (outcome *)(void *)(shared + (size_t)i * each);
        mine.dp = variants[i].dp;
        mine.sp = variants[i].sp;
        mine.ranks = mine.dp * mine.sp;
        mine.shard_optimizer = variants[i].shard_optimizer;
        mine.recompute = variants[i].recompute || opt->recompute;
        mine.quiet = 1;
        if (mine.sp == 1) {
            mine.methods = NULL;
        }
        job work = {.opt = &mine, .video = video, .result = results[i]};
        const heddle_status st = program_run(mine.ranks, mine.transport, NULL, train_rank, &work);
        if (st != HEDDLE_OK) {
            fprintf(stderr, "example_train_video: %s: %s: %s\n", variants[i].name, heddle_status_name(st),
                    heddle_last_error());
            right = 0;
            break;
        }
        right &= judge(&variants[i], results, opt, tolerance);
    }
    if (right) {
        printf("compare: %lld steps, loss %.6f to %.6f, all agree (tolerance %.1g over %lld steps)\n",
               (long long)opt->steps, results[0]->loss[0], results[0]->loss[opt->steps - 1], tolerance,
               (long long)compared_steps(opt));
    } else {
        printf("compare: NOT all agree (tolerance %.1g)\n", tolerance);
    }
    munmap(shared, VARIANTS * each);
    return right ? 0 : 1;
}
