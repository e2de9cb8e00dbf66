#include "runtime/verify/judge.h"
#include "runtime/verify/reshard_check.h"

#include <heddle/sys/index.h>
#include <string.h>

enum { MAX_ROUNDS = 16 };

/* Whole numbers below 2^n are exact; what two of them add up to is, too, where it stays below. */
static int exact_bits(heddle_dtype dtype)
{
    static const int bits[HEDDLE_DTYPE_COUNT] = {
        [HEDDLE_F64] = 53,   [HEDDLE_F32] = 24,   [HEDDLE_F16] = 11, [HEDDLE_BF16] = 8,
        [HEDDLE_F8E4M3] = 4, [HEDDLE_F8E5M2] = 3, [HEDDLE_I64] = 62, [HEDDLE_I32] = 31,
        [HEDDLE_I8] = 7,     [HEDDLE_U8] = 8,     [HEDDLE_BOOL] = 1};
    return bits[dtype];
}

int verify_rounds(const heddle_reshard_line *line, const npy_array *input)
{
    const int64_t elems = judge_elems(&line->shape), base = (int64_t)1 << exact_bits(line->shape.dtype);
    int rounds = 1;
    for (int64_t left = elems; input == NULL && left > base && rounds < MAX_ROUNDS; left = (left - 1) / base + 1) {
        rounds++;
    }
    return rounds;
}

/* A whole number that fits, as a float of the given exponent and mantissa bits. */
static uint64_t small_float(int64_t number, int exponent_bits, int mantissa_bits)
{
    if (number == 0) {
        return 0;
    }
    int exponent = 63 - __builtin_clzll((uint64_t)number);
    uint64_t rest = (uint64_t)number - ((uint64_t)1 << exponent);
    uint64_t mantissa =
        exponent > mantissa_bits ? rest >> (exponent - mantissa_bits) : rest << (mantissa_bits - exponent);
    uint64_t bias = ((uint64_t)1 << (exponent_bits - 1)) - 1;
    return ((uint64_t)exponent + bias) << mantissa_bits | mantissa;
}

static uint64_t encode(int64_t number, heddle_dtype dtype)
{
    uint64_t bits = (uint64_t)number;
    double f64 = (double)number;
    float f32 = (float)number;
    uint32_t word = 0;
    switch (dtype) {
    case HEDDLE_F64:
        memcpy(&bits, &f64, sizeof bits);
        return bits;
    case HEDDLE_F32:
        memcpy(&word, &f32, sizeof word);
        return word;
    case HEDDLE_F16:
        return small_float(number, 5, 10);
    case HEDDLE_BF16:
        return small_float(number, 8, 7);
    case HEDDLE_F8E4M3:
        return small_float(number, 4, 3);
    case HEDDLE_F8E5M2:
        return small_float(number, 5, 2);
    default:
        return bits;
    }
}

static int is_float(heddle_dtype dtype)
{
    return dtype <= HEDDLE_F8E5M2;
}

/* --- which of the partial values reach a rank --------------------------------------------------------------------- */

/* Does an element lie in the source part of ranks that a rank may take from? The axes whose coordinate is its own cut
 * the dim as they do on the source; on the others the owner sends. */
static int source_holds(const heddle_reshard_line *line, const int64_t *at, const int *coords)
{
    int partial = 0;
    for (int a = 0; a < line->mesh.naxes; a++) {
        partial |= line->to.dim_of_axis[a] == HEDDLE_PARTIAL;
    }
    if (!partial) {
        return 1; /* somebody has it */
    }
    const int64_t *block = line->from.shard_len;
    int64_t lo[HEDDLE_MAX_DIMS] = {0}, len[HEDDLE_MAX_DIMS];
    for (int d = 0; d < line->shape.ndim; d++) {
        len[d] = line->shape.dim[d].extent;
    }
    for (int a = 0; a < line->mesh.naxes; a++) {
        int d = line->from.dim_of_axis[a], n = line->mesh.axis[a].size, to = line->to.dim_of_axis[a];
        const int64_t *split = line->from.nshards[a] > 0 ? block : NULL;
        block += line->from.nshards[a];
        if (to == HEDDLE_PARTIAL && d == HEDDLE_REPLICATED && coords[a] != 0) {
            return 0;
        }
        if (d < 0) {
            continue;
        }
        int owner = to == HEDDLE_PARTIAL ? coords[a] : heddle_range_owner(lo[d], len[d], split, n, at[d]);
        heddle_range_narrow(&lo[d], &len[d], split, n, owner);
        if (at[d] < lo[d] || at[d] >= lo[d] + len[d]) {
            return 0;
        }
    }
    return 1;
}

/* Is value `index` of the source's partial sums among those that make up this rank's element? Before the reshard a rank
 * holds its own only; after it, those that differ from it on axes that are still partial have not been added. */
static int share_arrives(const heddle_reshard_line *line, int index, const int *coords, int is_to)
{
    for (int a = line->mesh.naxes - 1; a >= 0; a--) {
        if (line->from.dim_of_axis[a] != HEDDLE_PARTIAL) {
            continue;
        }
        int coord = index % line->mesh.axis[a].size;
        index /= line->mesh.axis[a].size;
        if ((!is_to || line->to.dim_of_axis[a] == HEDDLE_PARTIAL) && coord != coords[a]) {
            return 0;
        }
    }
    return 1;
}

static int count_shares(const heddle_reshard_line *line)
{
    int count = 1;
    for (int a = 0; a < line->mesh.naxes; a++) {
        count *= line->from.dim_of_axis[a] == HEDDLE_PARTIAL ? line->mesh.axis[a].size : 1;
    }
    return count;
}

static int64_t global_index(const heddle_shape *shape, const int64_t *at)
{
    int64_t index = 0;
    for (int d = 0; d < shape->ndim; d++) {
        index = index * shape->dim[d].extent + at[d];
    }
    return index;
}

/* All values but share 0 are the neutral element: what -0.0 is added to does not change. */
static void input_element(void *out, const verify_values *values, int64_t index, int holder)
{
    heddle_dtype dtype = values->line->shape.dtype;
    size_t bytes = heddle_dtype_bytes(dtype);
    if (holder) {
        memcpy(out, (const char *)values->input->data + (size_t)index * bytes, bytes);
    } else {
        memset(out, 0, bytes);
        ((unsigned char *)out)[bytes - 1] = is_float(dtype) ? 0x80 : 0;
    }
}

void verify_element(void *out, const verify_values *values, const int64_t *at, const int *coords, int is_to)
{
    const heddle_reshard_line *line = values->line;
    heddle_dtype dtype = line->shape.dtype;
    size_t bytes = heddle_dtype_bytes(dtype);
    if (is_to && !source_holds(line, at, coords)) {
        memset(out, 0, bytes);
        return;
    }
    int64_t index = global_index(&line->shape, at);
    if (values->input != NULL) {
        input_element(out, values, index, share_arrives(line, 0, coords, is_to));
        return;
    }
    int base_bits = exact_bits(dtype), n = count_shares(line);
    int64_t digit = index >> (base_bits * values->round) & (((int64_t)1 << base_bits) - 1), number = digit;
    if (n > 1) { /* two of the n partial values share the digit, which two depends on the element */
        number = share_arrives(line, (int)(index % n), coords, is_to) ? digit - digit / 2 : 0;
        number += share_arrives(line, (int)((index + 1) % n), coords, is_to) ? digit / 2 : 0;
    }
    uint64_t bits = encode(number, dtype);
    memcpy(out, &bits, bytes);
}

static int is_nan(const void *value, heddle_dtype dtype)
{
    static const struct {
        uint64_t magnitude, infinity; /* above infinity: NaN */
    } limits[] = {
        [HEDDLE_F64] = {UINT64_MAX >> 1, 0x7ff0000000000000u},
        [HEDDLE_F32] = {0x7fffffff, 0x7f800000},
        [HEDDLE_F16] = {0x7fff, 0x7c00},
        [HEDDLE_BF16] = {0x7fff, 0x7f80},
        [HEDDLE_F8E4M3] = {0x7f, 0x7e},
        [HEDDLE_F8E5M2] = {0x7f, 0x7c},
    };
    uint64_t bits = 0;
    memcpy(&bits, value, heddle_dtype_bytes(dtype));
    return is_float(dtype) && (bits & limits[dtype].magnitude) > limits[dtype].infinity;
}

int verify_same(const void *a, const void *b, const heddle_reshard_line *line)
{
    heddle_dtype dtype = line->shape.dtype;
    return memcmp(a, b, heddle_dtype_bytes(dtype)) == 0 ||
           (count_shares(line) > 1 && is_nan(a, dtype) && is_nan(b, dtype));
}
