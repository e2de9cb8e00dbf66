/* Measurements, to standard output, as text or as JSON: what `heddle bench` prints. */
#ifndef HD_REPORT_BENCH_H
#define HD_REPORT_BENCH_H

#include "runtime/verify/attention_bench.h"

#include <heddle/sys/bench.h>

void report_bench_reshard(const heddle_reshard_line *line, const heddle_comm *comm, const heddle_bench_result *r,
                          int json);
void report_bench_attention(const heddle_comm *comm, const attention_bench *b, int json);
void report_bench_linear(const heddle_comm *comm, const linear_case *c, const linear_bench_options *o,
                         const linear_bench *b, int json);

#endif
