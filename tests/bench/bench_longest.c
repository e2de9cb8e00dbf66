/* The longest sequence whose forward and backward fit into fixed memory per rank, against the number of ranks.
 *
 *   bench_longest [--mib M] [--ranks 1,2,4,8] [--methods ring,lasp,...] [--heads H] [--width D] [--projected M]
 * [--json]
 *
 * Nothing is computed from formulas: for each length the ranks are started afresh as processes ("shm"), each makes its
 * eight arrays (q k v o and their gradients; dsp: those of its two stages), runs forward and backward, and reads what
 * it has become from /proc/self/smaps_rollup while everything is still held. Counted is the growth of Pss since before
 * the arrays: pages that peers have mapped too count by share, so that ranks add up to what the machine gives. The rank
 * that has most decides. Three short lengths give a parabola, its root is the first guess, and bisection ends when a
 * length that fits and one that does not are 1 % apart. VmHWM, with pages of peers counted in full, is shown besides.
 */
#include "longest_methods.h"

#include <math.h>
#include <sys/mman.h>

enum { MOST_COUNTS = 16 };

typedef struct settings {
    long mib, heads, width, projected;
    int json, counts, ranks[MOST_COUNTS];
} settings;

static heddle_status measure_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    probe *p = arg;
    float *memory[ARRAYS] = {NULL};
    double before[2] = {kilobytes_of("/proc/self/smaps_rollup", "Pss:"), kilobytes_of("/proc/self/status", "VmRSS:")};
    const method *m = methods;
    while (strcmp(m->name, p->method) != 0) {
        m++;
    }
    TRY(heddle_comm_barrier(comm));
    TRY(m->run(comm, p, memory));
    note(comm, p, before);
    TRY(heddle_comm_barrier(comm)); /* nobody gives anything back before all have looked */
out:
    return st; /* the process ends here: nothing is freed one by one */
}

/* --- the search --------------------------------------------------------------------------------------------------- */

/* Bytes of the rank that has most; < 0: the ranks failed. */
static double measure(probe *p, int64_t length, double *peak)
{
    heddle_comm_options options;
    double most = 0;
    heddle_comm_options_init(&options);
    options.deadline_ms = DEADLINE_MS;
    options.bind = HEDDLE_BIND_NONE;
    p->length = length;
    if (heddle_run_ranks_with(p->nranks, "shm", &options, measure_rank, p) != HEDDLE_OK) {
        fprintf(stderr, "bench_longest: %s, %d ranks, length %lld: %s\n", p->method, p->nranks, (long long)length,
                heddle_last_error());
        return -1;
    }
    *peak = 0;
    for (int i = 0; i < p->nranks; i++) {
        most = fmax(most, p->pss[i]);
        *peak = fmax(*peak, p->peak[i]);
    }
    return most;
}

typedef struct found {
    int64_t length;
    double bytes, peak;  /* there */
    double square_share; /* of the bytes that grow with the square of the length */
} found;

/* bytes = a + b x + c x^2 through three points; the x that has `budget`. */
static double root_of(const double *x, const double *y, double budget, double *c)
{
    double slope1 = (y[1] - y[0]) / (x[1] - x[0]), slope2 = (y[2] - y[1]) / (x[2] - x[1]);
    *c = fmax(0, (slope2 - slope1) / (x[2] - x[0]));
    double b = slope2 - *c * (x[1] + x[2]), a = y[2] - b * x[2] - *c * x[2] * x[2];
    double room = budget - a;
    return *c * room > 1e-9 * b * b ? (sqrt(b * b + 4 * *c * room) - b) / (2 * *c) : room / b;
}

static int64_t rounded(double length, int64_t step)
{
    int64_t steps = (int64_t)(length / (double)step);
    return step * (steps > 0 ? steps : 1);
}

static int search(found *out, probe *p, const method *m, double budget)
{
    int64_t least = (int64_t)m->step * p->nranks;
    double x[3], y[3], c, fits = 0, fails = INFINITY, peak, step = (double)least;
    *out = (found){.bytes = 1};
    for (int i = 0; i < 3; i++) {
        x[i] = (double)rounded(128.0 * (1 << i) * p->nranks, least);
        y[i] = measure(p, (int64_t)x[i], &peak);
        if (y[i] < 0) {
            return 1;
        }
        if (y[i] <= budget) {
            fits = x[i];
            *out = (found){(int64_t)x[i], y[i], peak, 0};
        }
        fails = y[i] > budget && x[i] < fails ? x[i] : fails;
    }
    double guess = root_of(x, y, budget, &c) * 0.995;
    while (fails > fits * 1.01 && fails - fits > step) {
        int64_t length = rounded(guess > fits && guess < fails ? guess : (fits + fmin(fails, 2 * fits)) / 2, least);
        length = (double)length <= fits ? (int64_t)(fits + step) : length;
        double bytes = measure(p, length, &peak);
        if (bytes < 0) {
            return 1;
        }
        if (bytes <= budget) {
            *out = (found){length, bytes, peak, 0};
            fits = (double)length;
            guess = fits * 1.009 + step / 2;
        } else {
            fails = (double)length;
            guess = fails * 0.992 - step / 2;
        }
    }
    out->square_share = c * (double)out->length * (double)out->length / out->bytes;
    return out->length == 0;
}

static void print(const settings *s, const method *m, const probe *p, const found *f, int64_t first)
{
    double growth = first > 0 ? (double)f->length / (double)first : 1;
    const double mib = 1 << 20;
    if (s->json) {
        printf(
            "{\"method\":\"%s\",\"ranks\":%d,\"budget_mib\":%ld,\"longest\":%lld,\"growth\":%.3f,\"resident_mib\":%.2f,"
            "\"hwm_mib\":%.2f,\"quadratic_share\":%.3f,\"heads\":%ld,\"width\":%ld}\n",
            m->name, p->nranks, s->mib, (long long)f->length, growth, f->bytes / mib, f->peak / mib, f->square_share,
            s->heads, s->width);
    } else {
        printf("%-10s %5d %10lld %8.2f %10.1f %10.1f %10.0f %8.2f   %s\n", m->name, p->nranks, (long long)f->length,
               growth, f->bytes / mib, f->peak / mib, f->bytes * p->nranks / (double)f->length, f->square_share,
               m->law);
    }
    fflush(stdout);
}

static int listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; at != NULL && *at != '\0'; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL) {
        if (strncmp(at, name, n) == 0 && (at[n] == ',' || at[n] == '\0')) {
            return 1;
        }
    }
    return list == NULL;
}

static int run_method(const settings *s, const method *m, probe *p)
{
    int64_t first = 0;
    int bad = 0;
    for (int i = 0; i < s->counts && (i == 0 || m != &methods[0]); i++) {
        found f;
        *p = (probe){.method = m->name,
                     .nranks = m != &methods[0] ? s->ranks[i] : 1,
                     .heads = s->heads,
                     .width = s->width,
                     .projected = s->projected};
        if (search(&f, p, m, (double)s->mib * (1 << 20)) != 0) {
            fprintf(stderr, "bench_longest: %s, %d ranks: nothing fits into %ld MiB\n", m->name, p->nranks, s->mib);
            bad = 1;
            continue;
        }
        first = first == 0 ? f.length : first;
        print(s, m, p, &f, first);
    }
    return bad;
}

static int read_ranks(settings *s, const char *list)
{
    const char *at = list;
    char *end = NULL;
    for (s->counts = 0; s->counts < MOST_COUNTS; at = end + 1) {
        long n = strtol(at, &end, 10);
        if (end == at || n < 1 || n > FRAMES || (*end != ',' && *end != '\0')) {
            break;
        }
        s->ranks[s->counts++] = (int)n;
        if (*end == '\0') {
            return 0;
        }
    }
    fprintf(stderr, "bench_longest: --ranks takes up to %d numbers of 1 to %d with commas between them\n", MOST_COUNTS,
            FRAMES);
    return 2;
}

/* Every name of the list is a method. */
static int known(const char *list)
{
    for (const char *at = list; at != NULL && *at != '\0'; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        int found_it = 0;
        for (int i = 0; i < METHODS; i++) {
            size_t n = strlen(methods[i].name);
            found_it |= strcspn(at, ",") == n && strncmp(at, methods[i].name, n) == 0;
        }
        if (!found_it) {
            fprintf(stderr, "bench_longest: no method '%.*s'\n", (int)strcspn(at, ","), at);
            return 0;
        }
    }
    return 1;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: bench_longest [--mib M] [--ranks 1,2,4,8] [--methods local,rsa,linformer,ring,ulysses,"
            "gather-kv,lasp,dsp,dsp-blocks]\n                     [--heads H] [--width D] [--projected M] [--json]\n");
    return 2;
}

int main(int argc, char **argv)
{
    settings s = {.mib = 64, .heads = 8, .width = 64, .projected = 64};
    const char *ranks = "1,2,4,8", *wanted = NULL;
    int bad = 0;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        long *number = strcmp(argv[i], "--mib") == 0         ? &s.mib
                       : strcmp(argv[i], "--heads") == 0     ? &s.heads
                       : strcmp(argv[i], "--width") == 0     ? &s.width
                       : strcmp(argv[i], "--projected") == 0 ? &s.projected
                                                             : NULL;
        if (strcmp(argv[i], "--json") == 0) {
            s.json = 1;
            continue;
        }
        if (value == NULL) {
            return usage();
        }
        if (number != NULL) {
            *number = strtol(value, NULL, 10);
        } else if (strcmp(argv[i], "--ranks") == 0) {
            ranks = value;
        } else if (strcmp(argv[i], "--methods") == 0) {
            wanted = value;
        } else {
            return usage();
        }
        i++;
    }
    if (s.mib < 8 || s.mib > 1 << 16 || s.heads < 1 || s.heads > 1024 || s.width < 1 || s.width > 1024 ||
        s.projected < 1 || s.projected > 1 << 16 || kilobytes_of("/proc/self/smaps_rollup", "Pss:") < 0) {
        fprintf(stderr, "bench_longest: a number is out of range, or there is no /proc/self/smaps_rollup\n");
        return 2;
    }
    if (read_ranks(&s, ranks) != 0 || !known(wanted)) {
        return 2;
    }
    probe *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        return 1;
    }
    if (!s.json) {
        printf("longest sequence of forward + backward in %ld MiB a rank, f32, 1 sample, %ld heads of %ld\n"
               "method     ranks    longest   growth   resident      VmHWM bytes/token   square   growth by the law\n",
               s.mib, s.heads, s.width);
    }
    for (int i = 0; i < METHODS; i++) {
        if (listed(wanted, methods[i].name)) {
            bad |= run_method(&s, &methods[i], p);
        }
    }
    munmap(p, sizeof *p);
    return bad;
}
