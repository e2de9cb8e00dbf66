/* Which algorithm carries out a product, at every height: the first one that cuBLAS recommends which splits nothing,
 * takes all heights, and keeps the bits of rows, as trials on the device show. Large tiles leave most of a device idle
 * where there are few rows: there the first one does that cuBLAS recommends for so many with the same bits. */
#include "runtime/device/cublas/cublas.h"

#include <stdio.h>
#include <string.h>

enum {
    MOST = 16,                  /* candidates */
    WORKSPACE_BYTES = 32 << 20, /* that an algorithm may want */
    LARGE_ROWS = 1 << 20        /* which an algorithm must take, too, but is not tried with */
};

/* For how many rows they are recommended, and used at most. */
static const struct {
    int64_t expected, most;
} heights[HD_CUBLAS_WAYS] = {{256, 384}, {1024, 1536}, {4096, LARGE_ROWS}};

typedef struct counts {
    int all, split, refused, lost;
} counts;

static heddle_status prefer(cublasLtMatmulPreference_t preference, const heddle_product *of)
{
    const uint64_t workspace = WORKSPACE_BYTES;
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
    const int64_t row_bytes[] = {of->k * hd_cublas_bytes(of->dtype),
                                 hd_cublas_src_elems(of) * hd_cublas_bytes(of->dtype),
                                 hd_cublas_dst_elems(of) * hd_cublas_bytes(of->dst_dtype),
                                 hd_cublas_dst_elems(of) * hd_cublas_bytes(of->dst_dtype)};
    const cublasLtMatmulPreferenceAttributes_t alignment[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    heddle_status st = CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                                   &workspace, sizeof workspace));
    if (st == HEDDLE_OK) {
        st = CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                         &scheme, sizeof scheme));
    }
    for (int i = 0; i < 4 && st == HEDDLE_OK; i++) {
        const uint32_t bytes = (uint32_t)hd_cublas_alignment(row_bytes[i]);
        st = CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, alignment[i], &bytes, sizeof bytes));
    }
    return st;
}

static heddle_status recommend(cublasLtMatmulHeuristicResult_t *found, int *nfound, hd_cublas_product *product,
                               int64_t rows)
{
    cublasLtMatmulPreference_t preference = NULL;
    heddle_status st = CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    st = st == HEDDLE_OK ? prefer(preference, &product->of) : st;
    st = st == HEDDLE_OK ? hd_cublas_set_rows(product, rows) : st;
    *nfound = 0;
    if (st == HEDDLE_OK) {
        const cublasStatus_t result =
            cublasLtMatmulAlgoGetHeuristic(product->cublas->lt, product->operation, product->a, product->b, product->d,
                                           product->d, preference, MOST, found, nfound);
        if (result == CUBLAS_STATUS_NOT_SUPPORTED) {
            *nfound = 0;
        } else {
            st = hd_cublas_status(result, "cublasLtMatmulAlgoGetHeuristic");
        }
    }
    if (preference != NULL) {
        (void)cublasLtMatmulPreferenceDestroy(preference);
    }
    return st;
}

static heddle_status config(int32_t *out, const hd_cublas_product *product, cublasLtMatmulAlgoConfigAttributes_t what)
{
    size_t written = 0;
    *out = 0;
    return CUBLAS(cublasLtMatmulAlgoConfigGetAttribute(&product->algorithm, what, out, sizeof *out, &written));
}

/* Up to `most` of them; also what workspace it wants at most. */
static heddle_status ask_heights(int *takes, hd_cublas_product *product, int64_t most)
{
    heddle_status st = HEDDLE_OK;
    const int64_t highest = most < LARGE_ROWS ? most : (int64_t)LARGE_ROWS;
    *takes = 1;
    for (int i = 0; i <= hd_cublas_nheights && st == HEDDLE_OK && *takes; i++) {
        cublasLtMatmulHeuristicResult_t check;
        memset(&check, 0, sizeof check);
        st = hd_cublas_set_rows(product, i < hd_cublas_nheights && hd_cublas_heights[i] < highest ? hd_cublas_heights[i]
                                                                                                  : highest);
        if (st != HEDDLE_OK) {
            return st;
        }
        const cublasStatus_t result =
            cublasLtMatmulAlgoCheck(product->cublas->lt, product->operation, product->a, product->b, product->d,
                                    product->d, &product->algorithm, &check);
        if (result == CUBLAS_STATUS_NOT_SUPPORTED || result == CUBLAS_STATUS_INVALID_VALUE) {
            *takes = 0;
        } else {
            st = hd_cublas_status(result, "cublasLtMatmulAlgoCheck");
            *takes = check.workspaceSize <= WORKSPACE_BYTES;
        }
        if (check.workspaceSize > product->workspace_bytes) {
            product->workspace_bytes = check.workspaceSize;
        }
    }
    return st;
}

static heddle_status ask_splits(int *does, const hd_cublas_product *product)
{
    int32_t splits = 0, scheme = 0;
    heddle_status st = config(&splits, product, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
    st = st == HEDDLE_OK ? config(&scheme, product, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) : st;
    *does = splits > 1 || splits < 0 || scheme != CUBLASLT_REDUCTION_SCHEME_NONE;
    return st;
}

static heddle_status try_one(int *is_chosen, counts *n, hd_cublas_product *product, hd_cublas_trial *trial)
{
    int does_split = 0, takes = 0, keeps = 0;
    heddle_status st = ask_splits(&does_split, product);
    if (st != HEDDLE_OK || does_split) {
        n->split++;
        return st;
    }
    product->workspace_bytes = 0;
    st = ask_heights(&takes, product, LARGE_ROWS);
    if (st == HEDDLE_OK && takes) {
        st = hd_cublas_trial_run(&keeps, trial, product);
    }
    n->refused += !takes;
    n->lost += takes && !keeps;
    *is_chosen = st == HEDDLE_OK && keeps;
    return st;
}

/* "algorithm 66 with tile 209 and stages 35", behind what is there. */
static heddle_status say(const hd_cublas_product *product, char *kernel, size_t kernel_bytes)
{
    int32_t id = 0, tile = 0, stages = 0;
    const size_t there = strlen(kernel);
    heddle_status st = config(&id, product, CUBLASLT_ALGO_CONFIG_ID);
    st = st == HEDDLE_OK ? config(&tile, product, CUBLASLT_ALGO_CONFIG_TILE_ID) : st;
    st = st == HEDDLE_OK ? config(&stages, product, CUBLASLT_ALGO_CONFIG_STAGES_ID) : st;
    snprintf(kernel + there, kernel_bytes - there, "algorithm %d with tile %d and stages %d", (int)id, (int)tile,
             (int)stages);
    return st;
}

/* The one for all heights. */
static heddle_status choose_tall(hd_cublas_product *product, hd_cublas_trial *trial, char *kernel, size_t kernel_bytes)
{
    cublasLtMatmulHeuristicResult_t found[MOST];
    counts n = {0, 0, 0, 0};
    int is_chosen = 0, i = 0;
    heddle_status st = recommend(found, &n.all, product, heights[HD_CUBLAS_WAYS - 1].expected);
    for (; i < n.all && st == HEDDLE_OK && !is_chosen; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS) {
            product->algorithm = found[i].algo;
            st = try_one(&is_chosen, &n, product, trial);
        } else {
            n.refused++;
        }
    }
    if (st == HEDDLE_OK && !is_chosen) {
        return hd_cuda_fail(HEDDLE_ERR_UNSUPPORTED,
                            "cuBLAS recommends %d algorithms, of which %d split sums, %d refuse some heights, and %d "
                            "give a row other bits",
                            n.all, n.split, n.refused, n.lost);
    }
    snprintf(kernel, kernel_bytes, "cuBLAS, ");
    st = st == HEDDLE_OK ? say(product, kernel, kernel_bytes) : st;
    const size_t there = strlen(kernel);
    snprintf(kernel + there, kernel_bytes - there, ", %d of %d that it recommends", i, n.all);
    return st;
}

/* Another one for up to `most` rows, where cuBLAS recommends one with the same bits before the chosen one. */
static heddle_status choose_few(int *is_chosen, hd_cublas_product *product, hd_cublas_trial *trial, int64_t expected,
                                int64_t most)
{
    cublasLtMatmulHeuristicResult_t found[MOST];
    const cublasLtMatmulAlgo_t tall = product->algorithm;
    int n = 0, is_tall = 0;
    heddle_status st = recommend(found, &n, product, expected);
    for (int i = 0; i < n && st == HEDDLE_OK && !*is_chosen && !is_tall; i++) {
        int does_split = 0, takes = 0, same = 0;
        if (found[i].state != CUBLAS_STATUS_SUCCESS) {
            continue;
        }
        product->algorithm = found[i].algo;
        is_tall = memcmp(&tall, &found[i].algo, sizeof tall) == 0;
        st = is_tall ? HEDDLE_OK : ask_splits(&does_split, product);
        st = st == HEDDLE_OK && !is_tall && !does_split ? ask_heights(&takes, product, most) : st;
        st = st == HEDDLE_OK && takes ? hd_cublas_trial_same(&same, trial, product, most) : st;
        *is_chosen = st == HEDDLE_OK && same;
    }
    return st;
}

static heddle_status choose_ways(hd_cublas_product *product, hd_cublas_trial *trial, char *kernel, size_t kernel_bytes)
{
    heddle_status st = choose_tall(product, trial, kernel, kernel_bytes);
    const cublasLtMatmulAlgo_t tall = product->algorithm;
    int ways = 0;
    for (int i = 0; i < HD_CUBLAS_WAYS - 1 && st == HEDDLE_OK && product->of.kind != HEDDLE_PRODUCT_OUTER; i++) {
        int is_chosen = 0;
        product->algorithm = tall;
        st = choose_few(&is_chosen, product, trial, heights[i].expected, heights[i].most);
        if (is_chosen) {
            const size_t there = strlen(kernel);
            snprintf(kernel + there, kernel_bytes - there, "; up to %d rows ", (int)heights[i].most);
            st = say(product, kernel, kernel_bytes);
            product->way[ways].most_rows = heights[i].most;
            product->way[ways++].algorithm = product->algorithm;
        }
    }
    product->algorithm = tall;
    product->ways = ways;
    return st;
}

heddle_status hd_cublas_choose(hd_cublas_product *product, char *kernel, size_t kernel_bytes)
{
    hd_cublas_trial *trial = NULL;
    heddle_status st = hd_cublas_trial_begin(&trial, product);
    st = st == HEDDLE_OK ? choose_ways(product, trial, kernel, kernel_bytes) : st;
    hd_cublas_trial_end(trial);
    return st;
}
