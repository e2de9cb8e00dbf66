/* Local arrays of a rank in any memory, for the judges of attention and linear attention. */
#ifndef HD_VERIFY_JUDGE_ARRAY_H
#define HD_VERIFY_JUDGE_ARRAY_H

#include "runtime/verify/judge.h"

/* Which part of a whole array [batch, rows, heads, width] a rank holds. */
typedef struct judge_part {
    int64_t batch_lo, batch, head_lo, heads, width;
    heddle_attention_rows rows;
    int64_t whole_stride[3]; /* elements from one sample, row, head of the whole array to the next; width is dense */
} judge_part;

/* 0 dense, 1 head by head, 2 padded, 3 every second element, 4 heads innermost */
enum { JUDGE_DENSE, JUDGE_BY_HEAD, JUDGE_PADDED, JUDGE_SPREAD, JUDGE_HEADS_INNER, JUDGE_STORAGES };

typedef struct judge_array {
    const char *name;
    heddle_attention_array array; /* what the library is given */
    heddle_dtype dtype;
    judge_part part;
    int64_t stride[4];
    char *memory; /* with room before and behind the elements */
    size_t bytes;
} judge_array;

/* HEDDLE_ERR_NOMEM names the array and its bytes. */
heddle_status judge_array_make(judge_array *out, const char *name, heddle_dtype dtype, const judge_part *part,
                               int storage);
void judge_array_free(judge_array *x);

/* Fills the memory with bytes that are no result. */
void judge_array_poison(judge_array *x);
/* Elements from, or to, the whole array. */
void judge_array_put(judge_array *x, const double *whole);
void judge_array_get(const judge_array *x, double *whole);
void judge_array_compare(judge_error *error, const judge_array *x, const double *whole, const double *size);
/* 1: every byte that is no element is still what judge_array_poison made it. Poisons the elements. */
int judge_array_gaps_kept(judge_array *x);
/* *sum += <x, y>, *size += <|x|, size of y>, over the elements that both hold. size: of whole arrays. */
void judge_array_product(double *sum, double *size, const judge_array *x, const judge_array *y, const double *y_size);

/* One element of the dtype f64, f32, bf16 or f16. */
void judge_store(char *to, heddle_dtype dtype, double value);
double judge_load(const char *from, heddle_dtype dtype);

#endif
