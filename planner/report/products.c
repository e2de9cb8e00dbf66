#include "planner/report/products.h"

#include "planner/report/text.h"

#include <stdio.h>

static double flop(const products_row *row)
{
    return 2.0 * (double)row->rows * (double)row->is.of.n * (double)row->is.of.k;
}

/* Of the fastest call. */
static double gflop_per_s(const products_row *row)
{
    return row->is.min_ms > 0 ? flop(row) / row->is.min_ms * 1e-6 : 0;
}

static double best(const products_table *t)
{
    double most = 0;
    for (int i = 0; i < t->nrows; i++) {
        most = gflop_per_s(&t->row[i]) > most ? gflop_per_s(&t->row[i]) : most;
    }
    return most;
}

static double of_best(const products_table *t, const products_row *row)
{
    return best(t) > 0 ? gflop_per_s(row) / best(t) : 0;
}

static const char *name_of(const products_row *row)
{
    static const char *const names[] = {[HEDDLE_PRODUCT_FORWARD] = "forward",
                                        [HEDDLE_PRODUCT_BACK] = "input-grad",
                                        [HEDDLE_PRODUCT_OUTER] = "weight-grad"};
    return names[row->is.of.kind];
}

static void print_stage(const products_stage *s)
{
    if (s->names[0] != '\0') {
        printf("%s: a pass makes each %lld time%s\n", s->names, (long long)s->calls, report_s(s->calls));
    }
}

static void print_row(const products_table *t, const products_row *row)
{
    enum { INDENT = 4 };
    const heddle_product *of = &row->is.of;
    char types[32];
    snprintf(types, sizeof types, "%s>%s", heddle_dtype_name(of->dtype), heddle_dtype_name(of->dst_dtype));
    printf("%-9s %-11s %8lld %6lld %6lld %-9s %8.4g %9.4f %9.4f %8.4g %7.3f\n%*s", row->layer, name_of(row),
           (long long)row->rows, (long long)of->k, (long long)of->n, types, flop(row) * 1e-9, row->is.min_ms,
           row->is.median_ms, gflop_per_s(row), of_best(t, row), INDENT, "");
    report_wrap(stdout, row->is.kernel, INDENT, INDENT, REPORT_COLUMNS);
    printf("\n");
}

static void print_table(const products_table *t)
{
    printf("%s\n", t->comm);
    if (t->model != NULL) {
        printf("%s, the fullest of %d rank%s\n", t->model, t->ranks, report_s(t->ranks));
    }
    printf("%-9s %-11s %8s %6s %6s %-9s %8s %9s %9s %8s %7s\n", "layer", "product", "rows", "in", "out", "types",
           "GFLOP", "min ms", "median ms", "GFLOP/s", "of best");
    for (int i = 0; i < t->nrows; i++) {
        if (i == 0 || t->row[i].stage != t->row[i - 1].stage) {
            print_stage(t->row[i].stage);
        }
        print_row(t, &t->row[i]);
    }
    printf("of best: GFLOP/s / the best of this table, %.4g\n", best(t));
    if (t->left_out[0] != '\0') {
        report_wrap(stdout, t->left_out, report_wrap(stdout, "left out: ", 0, 0, REPORT_COLUMNS), 4, REPORT_COLUMNS);
        printf("\n");
    }
}

static void print_json_row(const products_table *t, const products_row *row)
{
    const heddle_bench_product_result *r = &row->is;
    printf("  {");
    report_json_string("stages", row->stage->names, ", ");
    report_json_string("layer", row->layer, ", ");
    report_json_string("product", name_of(row), ",\n   ");
    printf(
        "\"rows\": %lld, \"in\": %lld, \"out\": %lld, \"dtype\": \"%s\", \"result_dtype\": \"%s\", \"calls\": %lld,\n",
        (long long)row->rows, (long long)r->of.k, (long long)r->of.n, heddle_dtype_name(r->of.dtype),
        heddle_dtype_name(r->of.dst_dtype), (long long)row->stage->calls);
    printf(
        "   \"flop\": %.0f, \"min_ms\": %.6f, \"median_ms\": %.6f, \"gflop_per_s\": %.4f, \"ratio_to_best\": %.4f,\n",
        flop(row), r->min_ms, r->median_ms, gflop_per_s(row), of_best(t, row));
    printf("   \"samples\": %lld, \"repeats\": %lld, ", (long long)r->samples, (long long)r->repeats);
    report_json_string("kernel", r->kernel, "}");
}

static void print_json(const products_table *t)
{
    printf("{\"schema\": \"heddle-products-1\", ");
    report_json_string("model", t->model != NULL ? t->model : "", ", ");
    printf("\"ranks\": %d, \"threads\": %d, ", t->ranks, t->threads);
    report_json_string("comm", t->comm, ",\n ");
    printf("\"best_gflop_per_s\": %.4f, ", best(t));
    report_json_string("left_out", t->left_out, ",\n \"products\": [\n");
    for (int i = 0; i < t->nrows; i++) {
        print_json_row(t, &t->row[i]);
        printf(i + 1 < t->nrows ? ",\n" : "\n");
    }
    printf("]}\n");
}

void report_products(const products_table *table, int json)
{
    if (json) {
        print_json(table);
    } else {
        print_table(table);
    }
}
