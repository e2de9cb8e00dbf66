/* Times of the products that blocks make, to standard output: what `heddle bench products` prints. */
#ifndef HD_REPORT_PRODUCTS_H
#define HD_REPORT_PRODUCTS_H

#include <heddle/heddle.h>
#include <heddle/sys/bench.h>

/* Stages that make the same products. */
typedef struct products_stage {
    heddle_block_options options; /* of their blocks */
    char names[1024];             /* "s.attn, t.attn"; "": a layer that was given */
    int64_t rows, text_rows;      /* of a rank; text_rows: of CROSS, those that keys and values are made of */
    int64_t calls;                /* how often a pass of the model makes each product */
} products_stage;

typedef struct products_row {
    const products_stage *stage;
    char layer[32]; /* "qkv" */
    int64_t rows;
    heddle_bench_product_result is;
} products_row;

typedef struct products_table {
    const char *model, *comm; /* model NULL: there is none */
    int ranks;                /* on which a rank has so many rows */
    int threads;              /* 0: products are a device's */
    char left_out[2048];      /* stages that no block does, and why; "": none */
    int nrows;
    products_row *row;
} products_table;

void report_products(const products_table *table, int json);

#endif
