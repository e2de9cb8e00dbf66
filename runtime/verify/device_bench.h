/* A reshard of arrays on a device against the device's own copy of the same bytes. */
#ifndef HD_VERIFY_DEVICE_BENCH_H
#define HD_VERIFY_DEVICE_BENCH_H

#include <heddle/sys/bench.h>

/* Collective; comm has a device. As heddle_bench_reshard, but the roofline is one dense copy within the device of as
 * many bytes as the rank's destination, all ranks at once, by turns with the reshards. Executions follow one another on
 * one stream of the rank's, each with another pair of arrays, so that none finds its bytes in the device's cache where
 * they are large enough (out->why says). A sample is timed by the host, from the first to the end of the last, and by
 * events of the device around them. Where the plan may be captured replays of a graph, which has one execution with
 * each pair of arrays, take turns with the others. */
heddle_status device_bench(heddle_bench_result *out, heddle_comm *comm, const heddle_reshard_line *line,
                           const heddle_bench_options *options);

#endif
