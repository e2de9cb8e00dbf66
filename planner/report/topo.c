#include "planner/report/topo.h"
#include "planner/report/text.h"
#include "runtime/base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN_BYTES = 512, SI_BYTES = 32, SOURCE_COLUMNS = 86 };

static void print_cache(const char *before, int count, int64_t bytes, const char *level)
{
    char text[SI_BYTES];
    if (count > 0) {
        printf("%s%d x %s %s", before, count, report_si(text, sizeof text, (double)bytes), level);
    }
}

static void print_host(const heddle_host_info *h)
{
    char shown[SHOWN_BYTES], text[SI_BYTES];
    (void)utf8_show(shown, sizeof shown, h->cpu[0] != '\0' ? h->cpu : "host");
    printf("host      %s: %d package%s, %d NUMA node%s, %d core%s, %d thread%s", shown, h->packages,
           report_s(h->packages), h->numa_nodes, report_s(h->numa_nodes), h->cores, report_s(h->cores), h->threads,
           report_s(h->threads));
    if (h->memory_bytes > 0) {
        printf(", %s", report_si(text, sizeof text, (double)h->memory_bytes));
    }
    printf("\n");
    if (h->l2_caches + h->l3_caches > 0) {
        printf("caches    ");
        print_cache("", h->l2_caches, h->l2_bytes, "L2");
        print_cache(h->l2_caches > 0 ? ", " : "", h->l3_caches, h->l3_bytes, "L3");
        printf("\n");
    }
    (void)utf8_show(shown, sizeof shown, h->gpu);
    if (h->gpus > 0) {
        printf("GPUs      %d%s%s; how they are linked: nvidia-smi topo -m > links.txt, then --matrix links.txt\n",
               h->gpus, shown[0] != '\0' ? " x " : "", shown);
    } else {
        printf("GPUs      none that hwloc sees\n");
    }
}

/* In lines of a table's width, under one another. */
static void print_source(const char *text)
{
    char shown[4 * 4096];
    (void)utf8_show(shown, sizeof shown, text);
    int at = printf("figures   ");
    for (const char *word = shown; *word != '\0';) {
        const int length = (int)strcspn(word, " ");
        const int is_first = word == shown;
        if (at + 1 + length > SOURCE_COLUMNS + 10 && !is_first) {
            at = printf("\n          ") - 1;
            at += printf("%.*s", length, word);
        } else {
            at += printf("%s%.*s", is_first ? "" : " ", length, word);
        }
        word += length + (word[length] == ' ');
    }
    printf("\n");
}

static void print_times(const heddle_import_info *times)
{
    printf("\n%-10s %-15s %6s %6s %10s %10s %10s\n", "class", "exchange", "ranks", "times", "start us", "GB/s",
           "worst");
    for (int i = 0; i < times->nrows; i++) {
        const heddle_import_row *r = &times->row[i];
        printf("%-10s %-15s %6d %6d %10.1f %10.4g ", r->link, r->exchange, r->ranks, r->times, 1e6 * r->start_s,
               1e-9 * r->bytes_per_s);
        if (r->times > 0) {
            printf("%8.1f %%\n", 100 * r->worst_error);
        } else { /* a rate alone, which was compared with nothing */
            printf("%10s\n", "-");
        }
    }
}

void report_topo(const topo_view *v)
{
    const heddle_machine_info *m = &v->machine;
    char text[SI_BYTES];
    if (v->has_host) {
        print_host(&v->host);
    }
    printf("machine   %s: %d rank%s", m->name, m->ranks, report_s(m->ranks));
    if (m->memory_bytes > 0) {
        printf(", %s each", report_si(text, sizeof text, (double)m->memory_bytes));
    }
    printf("\n");
    for (int l = 0; l < m->nlinks; l++) {
        printf("level %d   %d rank%s by %s\n", l + 1, m->ranks_within[l], report_s(m->ranks_within[l]), m->link[l]);
    }
    if (m->source[0] != '\0') {
        print_source(m->source);
    }
    if (v->is_guessed) {
        printf("GPU       taken for the one in the name; --gpu NAME says another\n");
    }
    if (v->times.nrows > 0) {
        print_times(&v->times);
    }
}

static void print_host_json(const heddle_host_info *h)
{
    printf("\"host\": {");
    report_json_string("cpu", h->cpu, ", ");
    printf("\"packages\": %d, \"numa_nodes\": %d, \"cores\": %d, \"threads\": %d, \"memory_bytes\": %" PRId64
           ", \"l2_caches\": %d, \"l2_bytes\": %" PRId64 ", \"l3_caches\": %d, \"l3_bytes\": %" PRId64
           ", \"gpus\": %d, ",
           h->packages, h->numa_nodes, h->cores, h->threads, h->memory_bytes, h->l2_caches, h->l2_bytes, h->l3_caches,
           h->l3_bytes, h->gpus);
    report_json_string("gpu", h->gpu, "}, ");
}

void report_topo_json(const topo_view *v)
{
    const heddle_machine_info *m = &v->machine;
    printf("{\"schema\": \"heddle-topo-1\", ");
    if (v->has_host) {
        print_host_json(&v->host);
    } else {
        printf("\"host\": null, ");
    }
    report_json_string("machine", m->name, ", ");
    report_json_string("source", m->source, ", ");
    printf("\"ranks\": %d, \"memory_bytes\": %" PRId64 ", \"calibrated\": %s, \"levels\": [", m->ranks, m->memory_bytes,
           m->is_calibrated ? "true" : "false");
    for (int l = 0; l < m->nlinks; l++) {
        printf("%s{", l > 0 ? ", " : "");
        report_json_string("link", m->link[l], ", ");
        printf("\"ranks_within\": %d}", m->ranks_within[l]);
    }
    printf("], \"times\": [");
    for (int i = 0; i < v->times.nrows; i++) {
        const heddle_import_row *r = &v->times.row[i];
        printf("%s{", i > 0 ? ", " : "");
        report_json_string("link", r->link, ", ");
        report_json_string("exchange", r->exchange, ", ");
        printf("\"ranks\": %d, \"times\": %d, \"start_s\": %.6g, \"bytes_per_s\": %.6g, \"worst_error\": ", r->ranks,
               r->times, r->start_s, r->bytes_per_s);
        if (r->times > 0) {
            printf("%.4g}", r->worst_error);
        } else {
            printf("null}");
        }
    }
    printf("]}\n");
}
