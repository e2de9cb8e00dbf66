#include "planner/report/calibrate.h"

#include "planner/report/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Errors of the fit, of one kind of operation. */
typedef struct kind_errors {
    const char *kind;
    int operations;
    double median, worst;
} kind_errors;

static double error_of(const calibrate_sample *s)
{
    return s->about.fitted / s->about.seconds - 1;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of all operations where `kind` is NULL. */
static kind_errors errors_of(const calibrate_result *r, const char *kind)
{
    double error[CALIBRATE_SAMPLES];
    kind_errors out = {.kind = kind};
    for (int i = 0; i < r->samples; i++) {
        if (kind == NULL || strcmp(r->sample[i].kind, kind) == 0) {
            error[out.operations++] = fabs(error_of(&r->sample[i]));
        }
    }
    qsort(error, (size_t)out.operations, sizeof error[0], ascending);
    if (out.operations > 0) {
        out.median = error[out.operations / 2];
        out.worst = error[out.operations - 1];
    }
    return out;
}

/* Is sample `i` the first of its kind? */
static int begins_kind(const calibrate_result *r, int i)
{
    for (int before = 0; before < i; before++) {
        if (strcmp(r->sample[before].kind, r->sample[i].kind) == 0) {
            return 0;
        }
    }
    return 1;
}

/* Bytes, or flops of all terms but those of memory. */
static double amount_of(const heddle_measured *m, int *is_bytes)
{
    double flops = 0, bytes = m->ranks > 0 ? m->bytes : 0;
    for (int i = 0; m->ranks == 0 && i < m->nterms; i++) {
        *(m->term[i].work == HEDDLE_WORK_MEMORY ? &bytes : &flops) += m->term[i].amount;
    }
    *is_bytes = flops == 0;
    return flops == 0 ? bytes : flops;
}

static void print_device(const calibrate_told *about, const calibrate_result *r)
{
    printf("\nproducts of bf16: %s\n", r->products);
    printf("launch: %.2f us each; memory of a rank: %.1f GiB%s%s\n", r->launch_s * 1e6,
           (double)about->memory_bytes / (1 << 30), r->wire[0] != '\0' ? "; exchanges by wire " : "", r->wire);
}

static void print_turns(const calibrate_result *r)
{
    int least = r->samples > 0 ? r->sample[0].turns : 0, most = 0;
    for (int i = 0; i < r->samples; i++) {
        least = r->sample[i].turns < least ? r->sample[i].turns : least;
        most = r->sample[i].turns > most ? r->sample[i].turns : most;
    }
    printf("times are of the rank that is slowest then, all at work: the middle half of %d turn%s", least,
           report_s(least));
    if (most > least) {
        printf(", of up to %d where they disagree", most);
    }
    printf("\n+-: how far these are apart; bytes are those that a rank sends\n");
}

static void print_table(const calibrate_told *about, const calibrate_result *r)
{
    printf("%s: %d rank%s, %s\n\n", about->machine, about->ranks, report_s(about->ranks), about->comm);
    printf("%-10s %-28s %12s %10s %7s %12s %8s\n", "operation", "size", "time us", "rate", "+- %", "fitted us",
           "error %");
    for (int i = 0; i < r->samples; i++) {
        const calibrate_sample *s = &r->sample[i];
        int is_bytes = 0;
        char rate[32];
        const double amount = amount_of(&s->about, &is_bytes);
        snprintf(rate, sizeof rate, "%.2f %s", amount / s->about.seconds * 1e-9, is_bytes ? "GB/s" : "GF/s");
        if (amount == 0) {
            snprintf(rate, sizeof rate, "-");
        }
        printf("%-10s %-28s %12.1f %10s %7.1f %12.1f %8.1f\n", s->kind, s->what, s->about.seconds * 1e6, rate,
               s->about.spread * 100, s->about.fitted * 1e6, error_of(s) * 100);
    }
    printf("\n%-10s %10s %14s %14s   of the fit\n", "operation", "sizes", "median error", "worst error");
    for (int i = 0; i <= r->samples; i++) {
        if (i == r->samples || begins_kind(r, i)) {
            const kind_errors e = errors_of(r, i == r->samples ? NULL : r->sample[i].kind);
            printf("%-10s %10d %13.1f%% %13.1f%%\n", e.kind != NULL ? e.kind : "all", e.operations, e.median * 100,
                   e.worst * 100);
        }
    }
    if (r->devices > 0) {
        print_device(about, r);
    }
    printf("\nwork and a transfer at the same time: the longer and %.0f %% of the shorter\n",
           (r->overlap_slowdown - 1) * 100);
    printf("work of all ranks at once: %.2f times as long as of one alone\n", r->crowding_slowdown);
    print_turns(r);
    printf("saved to %s after %.1f s\n", about->file, about->seconds);
}

static void print_json(const calibrate_told *about, const calibrate_result *r)
{
    printf("{\"schema\": \"heddle-calibrate-1\", ");
    report_json_string("machine", about->machine, ", ");
    report_json_string("comm", about->comm, ",\n ");
    report_json_string("file", about->file, ", ");
    if (r->devices > 0) {
        report_json_string("wire", r->wire, ", ");
        report_json_string("products", r->products, ",\n ");
        printf("\"devices\": %d, \"launch_s\": %.9g, \"memory_bytes\": %lld, ", r->devices, r->launch_s,
               (long long)about->memory_bytes);
    }
    printf("\"ranks\": %d, \"cores\": %d, \"seconds\": %.3f, \"overlap_slowdown\": %.4f, \"crowding_slowdown\": %.4f, "
           "\"coreless\": %.4f,\n \"operations\": [",
           about->ranks, about->cores, about->seconds, r->overlap_slowdown, r->crowding_slowdown, r->coreless);
    for (int i = 0; i < r->samples; i++) {
        const calibrate_sample *s = &r->sample[i];
        int is_bytes = 0;
        const double amount = amount_of(&s->about, &is_bytes);
        printf("%s\n  {", i > 0 ? "," : "");
        report_json_string("operation", s->kind, ", ");
        report_json_string("size", s->what, ", ");
        printf("\"ranks\": %d, \"%s\": %.0f, \"time_s\": %.9g, \"times\": %d, \"spread\": %.4f, \"fitted_s\": %.9g, "
               "\"error\": %.4f}",
               s->about.ranks, is_bytes ? "bytes" : "flops", amount, s->about.seconds, s->times, s->about.spread,
               s->about.fitted, error_of(s));
    }
    printf("],\n \"errors\": [");
    for (int i = 0; i <= r->samples; i++) {
        if (i == r->samples || begins_kind(r, i)) {
            const kind_errors e = errors_of(r, i == r->samples ? NULL : r->sample[i].kind);
            printf("%s\n  {", i > 0 ? "," : "");
            report_json_string("operation", e.kind != NULL ? e.kind : "all", ", ");
            printf("\"sizes\": %d, \"median\": %.4f, \"worst\": %.4f}", e.operations, e.median, e.worst);
        }
    }
    printf("]}\n");
}

void report_calibrate(const calibrate_told *about, const calibrate_result *result, int json)
{
    if (json) {
        print_json(about, result);
    } else {
        print_table(about, result);
    }
}
