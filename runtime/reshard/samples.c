/* What the samples of a measurement say. */
#include "runtime/reshard/bench.h"

#include "runtime/base/base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ENOUGH_FOR_MEDIAN = 10 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static double median_of(double *value, int64_t count)
{
    qsort(value, (size_t)count, sizeof(double), by_value);
    return count % 2 ? value[count / 2] : (value[count / 2 - 1] + value[count / 2]) / 2;
}

static void copy_text(char *out, size_t out_bytes, const char *text)
{
    strncpy(out, text != NULL ? text : "", out_bytes - 1);
    out[out_bytes - 1] = '\0';
}

heddle_status hd_bench_summarise(heddle_bench_result *out, hd_bench *b)
{
    heddle_status st = HEDDLE_OK;
    int64_t samples = b->rounds * HD_BENCH_PAIRS;
    double *part = NULL;
    HD_TRY(hd_alloc((void **)&part, (size_t)samples, sizeof(double), "a median"));
    double unit = 1e-6 / (double)b->repeats;
    double median = INFINITY;
    int64_t most = 0;
    for (int turn = 0; turn < 2; turn++) { /* without a way that was seen often: the one seen most */
        for (int way = 0; way < b->nways; way++) {
            int64_t count = 0;
            for (int64_t i = 0; i < samples; i++) {
                if (b->roofline_way[i] == way) {
                    part[count++] = b->roofline_ns[i];
                }
            }
            most = count > most ? count : most;
            if (turn == 1 && count > 0 && count >= (most < ENOUGH_FOR_MEDIAN ? most : ENOUGH_FOR_MEDIAN)) {
                median = fmin(median, median_of(part, count));
            }
        }
    }
    out->rounds = b->rounds;
    out->samples = samples;
    out->repeats = b->repeats;
    out->median_ms = median_of(b->switch_ns, samples) * unit;
    out->min_ms = b->switch_ns[0] * unit;
    int best = 0;
    for (int64_t i = 1; i < samples; i++) {
        best = b->roofline_ns[i] < b->roofline_ns[best] ? (int)i : best;
    }
    out->roofline_min_ms = b->roofline_ns[best] * unit;
    out->roofline_median_ms = median * unit;
    copy_text(out->roofline_kernel, sizeof(out->roofline_kernel),
              hd_roofline_kernel(b->roofline, b->roofline_way[best]));
    copy_text(out->roofline_way, sizeof(out->roofline_way), hd_roofline_way_name(b->roofline, b->roofline_way[best]));
    out->roofline_is_local = hd_roofline_is_local(b->roofline);
out:
    hd_free(part);
    return st;
}

/* What only the ranks together know. */
typedef struct shared_facts {
    int64_t dst_bytes, bytes_sent, is_local;
    char path[32], kernel[32], why[512];
} shared_facts;

heddle_status hd_bench_share_facts(heddle_bench_result *out, hd_bench *b)
{
    heddle_status st = HEDDLE_OK;
    shared_facts *all = NULL;
    shared_facts own = {(int64_t)b->info.dst_bytes, b->info.bytes_sent, out->roofline_is_local, "", "", ""};
    copy_text(own.path, sizeof(own.path), b->info.path);
    copy_text(own.kernel, sizeof(own.kernel), b->info.kernel);
    copy_text(own.why, sizeof(own.why), b->info.why);
    HD_TRY(hd_alloc((void **)&all, (size_t)b->info.nranks, sizeof(own), "what the ranks report"));
    HD_TRY(heddle_comm_allgather(b->comm, &own, all, sizeof(own)));
    for (int r = 0; r < b->info.nranks; r++) {
        out->bytes_total += all[r].dst_bytes;
        out->bytes_per_rank = all[r].dst_bytes > out->bytes_per_rank ? all[r].dst_bytes : out->bytes_per_rank;
        out->bytes_sent_per_rank =
            all[r].bytes_sent > out->bytes_sent_per_rank ? all[r].bytes_sent : out->bytes_sent_per_rank;
        out->roofline_is_local |= (int)all[r].is_local;
    }
    memcpy(out->path, all[0].path, sizeof(out->path));
    memcpy(out->kernel, all[0].kernel, sizeof(out->kernel));
    memcpy(out->why, all[0].why, sizeof(out->why));
out:
    hd_free(all);
    return st;
}
