/* The judge: one plain loop per operation. */
#include "kernels/cpu/block/internal.h"

#include <math.h>

static void norm_modulate(void *dst, const void *src, heddle_dtype dtype, int64_t rows, int64_t c, const float *shift,
                          const float *scale)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t row = r * c;
        double sum = 0;
        for (int64_t i = 0; i < c; i++) {
            sum += (double)hd_block_load(src, dtype, row + i);
        }
        double mean = sum / (double)c;
        double squares = 0;
        for (int64_t i = 0; i < c; i++) {
            double delta = (double)hd_block_load(src, dtype, row + i) - mean;
            squares += delta * delta;
        }
        float inverse = (float)(1.0 / sqrt(squares / (double)c + HD_NORM_EPSILON));
        for (int64_t i = 0; i < c; i++) {
            float y = (float)((double)hd_block_load(src, dtype, row + i) - mean) * inverse;
            hd_block_store(dst, dtype, row + i, scale != NULL ? y * (1.0f + scale[i]) + shift[i] : y);
        }
    }
}

static void gate_residual(void *x, heddle_dtype dtype, const float *y, int64_t rows, int64_t c, const float *gate)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < c; i++) {
            float change = gate != NULL ? gate[i] * y[r * c + i] : y[r * c + i];
            hd_block_store(x, dtype, r * c + i, hd_block_load(x, dtype, r * c + i) + change);
        }
    }
}

static void gelu(void *dst, heddle_dtype dtype, const float *src, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        float x = src[i];
        float inner = HD_GELU_SLOPE * (x + HD_GELU_CUBIC * x * x * x);
        hd_block_store(dst, dtype, i, 0.5f * x * (1.0f + tanhf(inner)));
    }
}

static void norm_rotate(void *x, heddle_dtype dtype, int64_t heads, int64_t d, const float *weight,
                        const float *cos_sin)
{
    for (int64_t h = 0; h < heads; h++) {
        float inverse = 1;
        if (weight != NULL) {
            double squares = 0;
            for (int64_t i = 0; i < d; i++) {
                double value = (double)hd_block_load(x, dtype, h * d + i);
                squares += value * value;
            }
            inverse = (float)(1.0 / sqrt(squares / (double)d + HD_NORM_EPSILON));
        }
        for (int64_t i = 0; i < d; i += 2) {
            float a = hd_block_load(x, dtype, h * d + i);
            float b = i + 1 < d ? hd_block_load(x, dtype, h * d + i + 1) : 0;
            if (weight != NULL) {
                a = a * inverse * weight[i];
                b = i + 1 < d ? b * inverse * weight[i + 1] : 0;
            }
            if (cos_sin != NULL) {
                float turned = a * cos_sin[i] - b * cos_sin[i + 1];
                b = a * cos_sin[i + 1] + b * cos_sin[i];
                a = turned;
            }
            hd_block_store(x, dtype, h * d + i, a);
            if (i + 1 < d) {
                hd_block_store(x, dtype, h * d + i + 1, b);
            }
        }
    }
}

static void convert(void *dst, heddle_dtype dst_dtype, const void *src, heddle_dtype src_dtype, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        hd_block_store(dst, dst_dtype, i, hd_block_load(src, src_dtype, i));
    }
}

static size_t attention_scratch_bytes(int64_t nk, int64_t d)
{
    (void)nk;
    return (size_t)d * sizeof(double);
}

/* In f32, with the sums of attention/scalar.h's dot: its backward computes scores again. */
static float score_of(const hd_attention_head *head, int64_t q, int64_t k)
{
    float part[16] = {0}, sum = 0;
    int64_t i = 0, whole = head->d / 16 * 16;
    for (; i < head->d; i++) {
        float product = hd_block_load(head->q, head->dtype, q * head->q_stride + i) *
                        hd_block_load(head->k, head->dtype, k * head->kv_stride + i);
        *(i < whole ? &part[i % 16] : &sum) += product;
    }
    for (int l = 0; l < 16; l++) {
        sum += part[l];
    }
    return head->scale * sum;
}

/* Online softmax, key after key. */
static void attention(const hd_attention_head *head, void *scratch)
{
    double *sum = scratch;
    for (int64_t q = 0; q < head->nq; q++) {
        double top = -INFINITY;
        double weights = 0;
        for (int64_t i = 0; i < head->d; i++) {
            sum[i] = 0;
        }
        for (int64_t k = 0; k < head->nk; k++) {
            double score = (double)score_of(head, q, k);
            double higher = score > top ? score : top;
            double rescale = k > 0 ? exp(top - higher) : 0;
            double weight = exp(score - higher);
            weights = weights * rescale + weight;
            for (int64_t i = 0; i < head->d; i++) {
                sum[i] =
                    sum[i] * rescale + weight * (double)hd_block_load(head->v, head->dtype, k * head->kv_stride + i);
            }
            top = higher;
        }
        for (int64_t i = 0; i < head->d; i++) {
            hd_block_store(head->out, head->dtype, q * head->out_stride + i, (float)(sum[i] / weights));
        }
        if (head->top != NULL) {
            head->top[q] = (float)top;
            head->log_sum[q] = (float)log(weights);
        }
    }
}

const hd_kernels hd_block_slots = {
    HD_BLOCK_SLOTS(HD_BLOCK_PUT).attention = attention,
    .attention_scratch_bytes = attention_scratch_bytes,
};
