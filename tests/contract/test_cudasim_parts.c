/* What kernels/cuda has beside the walks of attention and linear attention, run by the emulator, against loops in f64:
 * tokens brought to another order, softmax over two sets of keys and its logarithm, states from parts, norms of
 * heads. */
#include "on_sim.h"

#include "kernels/block_numbers.h"

enum { OUTER = 2, INNER = 3, HEADS = 2, TOKENS = 7, D = 40 /* more than a warp has lanes */, ELEMS = 84 * D };

/* [outer][tokens][inner][heads][d], or [outer][inner][heads][tokens][d]. */
static hd_device_tokens tokens_in_order(void *data, int is_turned)
{
    const int64_t all = (int64_t)INNER * HEADS * TOKENS * D;
    return is_turned ? (hd_device_tokens){data, all, HEADS * TOKENS * D, D, TOKENS * D}
                     : (hd_device_tokens){data, all, HEADS * D, INNER * HEADS * D, D};
}

static int64_t turned(int64_t i)
{
    const int64_t head = i / D % HEADS, inner = i / (D * HEADS) % INNER, token = i / (D * HEADS * INNER) % TOKENS;
    const int64_t outer = i / (D * HEADS * INNER * TOKENS);
    return (((outer * INNER + inner) * HEADS + head) * TOKENS + token) * D + i % D;
}

HD_CASE(tokens_come_to_another_order)
{
    begin();
    for (int adds = 0; adds < 2; adds++) {
        void *src = random_array(HEDDLE_BF16, ELEMS, 1), *src_there = sim_array(src, HEDDLE_BF16, ELEMS, 0);
        float *wanted = random_array(HEDDLE_F32, ELEMS, 1), *there = sim_array(wanted, HEDDLE_F32, ELEMS, 0), *got;
        const hd_device_arrange of = {
            OUTER,      INNER,       HEADS, TOKENS, D, tokens_in_order(there, 1), tokens_in_order(src_there, 0),
            HEDDLE_F32, HEDDLE_BF16, adds};
        for (int64_t i = 0; i < ELEMS; i++) {
            wanted[turned(i)] = (adds ? wanted[turned(i)] : 0) + value_at(src, HEDDLE_BF16, i);
        }
        OK(device->arrange(&of, NULL));
        got = from_sim(there, HEDDLE_F32, ELEMS);
        check_values("arrange", got, HEDDLE_F32, wanted, ELEMS, 0);
        OK(cudaFree(there));
        OK(cudaFree(src_there));
        free(got);
        free(wanted);
        free(src);
    }
}

enum { ROWS = OUTER * HEADS * TOKENS };

static void merge_wanted(float *o, float *stats, float *const *part, float *const *part_stats, double scale)
{
    for (int row = 0; row < ROWS; row++) {
        double weight[2], top = fmax((double)part_stats[0][2 * row], (double)part_stats[1][2 * row]);
        for (int i = 0; i < 2; i++) {
            weight[i] = exp(scale * ((double)part_stats[i][2 * row] - top)) * exp2((double)part_stats[i][2 * row + 1]);
        }
        for (int at = row * D; at < (row + 1) * D; at++) {
            o[at] =
                (float)((weight[0] * (double)part[0][at] + weight[1] * (double)part[1][at]) / (weight[0] + weight[1]));
        }
        stats[2 * row] = (float)top;
        stats[2 * row + 1] = (float)log2(weight[0] + weight[1]);
    }
}

HD_CASE(two_sets_of_keys_are_as_one)
{
    const float scale = 0.25f;
    float *o[2], *stats[2], *o_there[2], *stats_there[2], wanted[ROWS * D], wanted_stats[2 * ROWS], logs[ROWS];
    begin();
    for (int i = 0; i < 2; i++) {
        o[i] = random_array(HEDDLE_F32, ROWS * D, 1);
        stats[i] = random_array(HEDDLE_F32, 2 * ROWS, 2);
        o_there[i] = sim_array(o[i], HEDDLE_F32, ROWS * D, 0);
        stats_there[i] = sim_array(stats[i], HEDDLE_F32, 2 * ROWS, 0);
    }
    const hd_device_merge of = {ROWS, D, scale, o_there[0], stats_there[0], o_there[1], stats_there[1]};
    const hd_device_log_sum log_sum = {OUTER, HEADS,          TOKENS,
                                       scale, stats_there[0], {o_there[1], HEADS * TOKENS, 0, 1, TOKENS}};
    merge_wanted(wanted, wanted_stats, o, stats, (double)scale);
    OK(device->merge(&of, NULL));
    OK(device->log_sum(&log_sum, NULL));
    for (int row = 0; row < ROWS; row++) {
        logs[row] = (float)((double)scale * (double)wanted_stats[2 * row] + log(2) * (double)wanted_stats[2 * row + 1]);
    }
    const float *const all[] = {wanted, wanted_stats, logs};
    void *const there[] = {o_there[0], stats_there[0], o_there[1]};
    const int64_t elems[] = {ROWS * D, 2 * ROWS, ROWS};
    for (int i = 0; i < 3; i++) {
        float *got = from_sim(there[i], HEDDLE_F32, elems[i]);
        check_values(i == 0 ? "merge" : i == 1 ? "stats" : "log_sum", got, HEDDLE_F32, all[i], elems[i], 2e-6);
        free(got);
    }
    for (int i = 0; i < 2; i++) {
        OK(cudaFree(o_there[i]));
        OK(cudaFree(stats_there[i]));
        free(o[i]);
        free(stats[i]);
    }
}

enum { COUNT = 4, STATE = 37, SEGMENTS = 3, SEGMENT = 4, LAST = 2, PARTS = COUNT * SEGMENTS * STATE };

HD_CASE(states_come_from_parts)
{
    const float log2_decay[HEADS] = {-0.25f, -0.5f};
    begin();
    for (int descends = 0; descends < 2; descends++) {
        float *part = random_array(HEDDLE_F32, PARTS, 1), *in = random_array(HEDDLE_F32, COUNT * STATE, 1);
        float *part_there = sim_array(part, HEDDLE_F32, PARTS, 0), *got;
        float *in_there = sim_array(in, HEDDLE_F32, COUNT * STATE, 0);
        float *decay_there = sim_array(log2_decay, HEDDLE_F32, HEADS, 0);
        const hd_device_linear_states of = {
            COUNT,    HEADS,      STATE, (SEGMENTS - 1) * SEGMENT + LAST, SEGMENT, descends, decay_there, in_there,
            in_there, part_there, 1};
        OK(device->linear_states(&of, NULL));
        for (int i = 0; i < COUNT * STATE; i++) {
            double state = (double)in[i];
            for (int turn = 0; turn < SEGMENTS; turn++) {
                const int segment = descends ? SEGMENTS - 1 - turn : turn;
                float *own = &part[(i / STATE * SEGMENTS + segment) * STATE + i % STATE];
                const double rows = segment == SEGMENTS - 1 ? LAST : SEGMENT, next = (double)*own;
                *own = (float)state;
                state = state * exp2(rows * (double)log2_decay[i / STATE % HEADS]) + next;
            }
            in[i] = (float)state;
        }
        got = from_sim(part_there, HEDDLE_F32, PARTS);
        check_values("states", got, HEDDLE_F32, part, PARTS, 2e-6);
        free(got);
        got = from_sim(in_there, HEDDLE_F32, COUNT * STATE);
        check_values("the state behind", got, HEDDLE_F32, in, COUNT * STATE, 2e-6);
        free(got);
        OK(cudaFree(part_there));
        OK(cudaFree(in_there));
        OK(cudaFree(decay_there));
        free(part);
        free(in);
    }
}

static void norm_wanted(float *y, float *dx, const float *x, const float *dy)
{
    for (int row = 0; row < ROWS; row++) {
        double squares = 0, mean = 0;
        for (int at = row * D; at < (row + 1) * D; at++) {
            squares += (double)x[at] * (double)x[at] / D;
        }
        const double factor = 1 / sqrt(squares + D * (double)HD_NORM_EPSILON);
        for (int at = row * D; at < (row + 1) * D; at++) {
            y[at] = (float)((double)x[at] * factor);
            mean += (double)dy[at] * (double)y[at] / D;
        }
        for (int at = row * D; at < (row + 1) * D; at++) {
            dx[at] = (float)(((double)dy[at] - (double)y[at] * mean) * factor);
        }
    }
}

HD_CASE(norms_of_heads_are_those_of_loops)
{
    float y[ROWS * D], dx[ROWS * D];
    begin();
    for (int i = 0; i < 3; i++) {
        const heddle_dtype dtype = float_types[i];
        float *x = random_array(HEDDLE_F32, ROWS * D, 1), *dy = random_array(HEDDLE_F32, ROWS * D, 1);
        float *x_there = sim_array(x, HEDDLE_F32, ROWS * D, 0), *dy_there = sim_array(dy, HEDDLE_F32, ROWS * D, 0);
        void *y_there = sim_array(NULL, dtype, ROWS * D, 0), *got;
        hd_device_head_norm of = {dtype, ROWS / HEADS, HEADS, D, y_there, x_there, sim_array(NULL, HEDDLE_F32, ROWS, 0),
                                  NULL,  HEDDLE_F32};
        norm_wanted(y, dx, x, dy);
        OK(device->head_norm(&of, NULL));
        got = from_sim(y_there, dtype, ROWS * D);
        check_values("head_norm", got, dtype, y, ROWS * D, 2e-6);
        free(got);
        of.dy = dy_there;
        OK(device->head_norm_back(&of, NULL));
        got = from_sim(x_there, HEDDLE_F32, ROWS * D);
        check_values("head_norm_back", got, HEDDLE_F32, dx, ROWS * D, /* y was rounded */ i == 0 ? 4e-6 : 0.03);
        free(got);
        OK(cudaFree(of.factors));
        OK(cudaFree(x_there));
        OK(cudaFree(dy_there));
        OK(cudaFree(y_there));
        free(x);
        free(dy);
    }
}
