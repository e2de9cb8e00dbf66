/* What the parts of bench_block share: sizes, arrays, the best time of many calls. */
#ifndef HD_BENCH_BLOCK_KIT_H
#define HD_BENCH_BLOCK_KIT_H

#include <heddle/layout.h>
#include <stddef.h>
#include <stdint.h>

/* CHUNK: rows that a block works on at a time. */
enum { HEADS = 16, WIDTH = 72, C = HEADS * WIDTH, LONG = 1024, SHORT = 16, FIBRES = 16, CHUNK = 1024 };

extern double budget_s; /* of a measurement */

/* `elems` random numbers, aligned; free() them. */
void *filled(size_t elems, heddle_dtype dtype);
/* Ends the program with the sentence of a failure. */
void must(heddle_status status);
/* Best time of one call, in seconds. */
double best_of(void (*fn)(void *), void *arg);
/* Prints a line; returns the rate in GFLOP/s. */
double report(const char *what, double flops, double seconds);

/* Attention alone, on every instruction set; sgemm: the rate to compare with. */
void bench_attention(double sgemm);

#endif
