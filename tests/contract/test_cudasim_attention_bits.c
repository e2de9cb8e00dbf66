/* Attention of kernels/cuda, run by the emulator: the bits of a fibre among others, whoever runs when, and of a query
 * beside others. */
#include "on_sim.h"

#include "kernels/cuda/kernels.h"

enum { FIBRES = 6, ARRAYS = 8, Q = 0, K, V, O, D_O, DQ, DK, DV };

typedef int backward(const hd_device_attention_back *back, void *stream);

/* dense [fibres][tokens][heads][d] of q, k, v and d_o in one array each, of the queries or keys that are more; results
 * o, dq, dk, dv */
static void run(char **out, const hd_device_attention *shape, int64_t fibres, char *const *in, backward *run_back)
{
    hd_device_attention_back back = {.of = *shape};
    hd_device_attention *of = &back.of;
    hd_device_tokens *const all[ARRAYS] = {&of->q, &of->k, &of->v, &of->o, &back.d_o, &back.dq, &back.dk, &back.dv};
    const int inputs[4] = {Q, K, V, D_O}, outputs[4] = {O, DQ, DK, DV};
    const int64_t tokens = of->nq > of->nk ? of->nq : of->nk, row = of->heads * of->d, n = fibres * tokens * row;
    of->outer = fibres;
    for (int i = 0; i < ARRAYS; i++) {
        *all[i] = (hd_device_tokens){sim_array(NULL, of->dtype, n, 0), tokens * row, 0, row, of->d};
        OK(cudaMemset(all[i]->data, 0xff, (size_t)n * type_bytes(of->dtype)));
    }
    for (int i = 0; i < 4; i++) {
        OK(cudaMemcpy(all[inputs[i]]->data, in[i], (size_t)n * type_bytes(of->dtype), cudaMemcpyHostToDevice));
    }
    of->stats = sim_array(NULL, HEDDLE_F32, 2 * n, 0);
    back.delta = sim_array(NULL, HEDDLE_F32, n, 0);
    OK(device->attention(of, NULL));
    OK(run_back(&back, NULL));
    for (int i = 0; i < 4; i++) {
        out[i] = from_sim(all[outputs[i]]->data, of->dtype, n);
    }
    for (int i = 0; i < ARRAYS; i++) {
        OK(cudaFree(all[i]->data));
    }
    OK(cudaFree(of->stats));
    OK(cudaFree(back.delta));
}

HD_CASE(bits_do_not_depend_on_what_is_beside)
{
    begin();
    for (int round = 0; round < hd_rounds(3); round++) {
        hd_device_attention of = {
            .dtype = float_types[(round + 1) % 3], .inner = 1, .heads = 2, .kv_heads = 2, .d = 24, .scale = 0.2f};
        of.nq = of.nk = of.diagonal = round == 0 ? 130 : 20;
        const size_t bytes = (size_t)(of.nq * 2 * of.d) * type_bytes(of.dtype); /* of a fibre */
        char *x[4], *alone[4], *got[4];
        for (int i = 0; i < 4; i++) {
            x[i] = random_array(of.dtype, FIBRES * of.nq * 2 * of.d, 1);
        }
        run(alone, &of, FIBRES, x, device->attention_back);
        for (int place = 0; place < (round == 0 ? 4 : 12); place++) {
            const int64_t fibres = between(1, 9), which = below(FIBRES), at = between(0, fibres - 1);
            char *mixed[4];
            for (int i = 0; i < 4; i++) {
                mixed[i] = random_array(of.dtype, fibres * of.nq * 2 * of.d, 1);
                memcpy(mixed[i] + (size_t)at * bytes, x[i] + (size_t)which * bytes, bytes);
            }
            hd_sim_set_reversed(place % 2);
            run(got, &of, fibres, mixed, device->attention_back);
            for (int i = 0; i < 4; i++) {
                assert_memory_equal(got[i] + (size_t)at * bytes, alone[i] + (size_t)which * bytes, bytes);
                free(got[i]);
                free(mixed[i]);
            }
        }
        for (int i = 0; i < 4; i++) {
            free(x[i]);
            free(alone[i]);
        }
    }
}

/* Gradients as a block's that has all of a head, and as those of walks over keys and over queries: the same bits, by
 * as many kernels less as `fewer` says. */
static void check_few(const hd_device_attention *of, int64_t fewer)
{
    const int64_t fibres = 2, n = fibres * (of->nq > of->nk ? of->nq : of->nk) * of->heads * of->d;
    char *x[4], *few[4], *many[4];
    for (int i = 0; i < 4; i++) {
        x[i] = random_array(of->dtype, n, 1);
    }
    int64_t began = hd_sim_kernels(), of_few, of_many;
    run(few, of, fibres, x, device->attention_back);
    of_few = hd_sim_kernels() - began;
    run(many, of, fibres, x, hd_attention_walk_back);
    of_many = hd_sim_kernels() - began - of_few;
    assert_int_equal(of_many - of_few, fewer);
    for (int i = 0; i < 4; i++) {
        assert_memory_equal(few[i], many[i], (size_t)n * type_bytes(of->dtype));
        free(few[i]);
        free(many[i]);
        free(x[i]);
    }
}

HD_CASE(few_tokens_have_the_bits_of_many)
{
    const int64_t lengths[][2] = {{128, 128}, {127, 1}, {1, 128}, {0, 17}, {17, 0}, {113, 127}};
    const int edges = (int)(sizeof lengths / sizeof lengths[0]);
    begin();
    for (int round = 0; round < hd_rounds(edges + 6); round++) {
        hd_device_attention of = {.dtype = float_types[1 + round % 2], .inner = 1, .heads = 2, .kv_heads = 2};
        of.d = round % 4 < 2 ? 72 : 8 * between(1, 9);
        of.scale = 1.0f / sqrtf((float)of.d);
        of.nq = round < edges ? lengths[round][0] : between(1, 70);
        of.nk = round < edges ? lengths[round][1] : between(1, 70);
        of.diagonal = round % 3 == 0 ? of.nk : between(-3, of.nk - 1);
        check_few(&of, of.nq == 0 ? 0 : of.nk == 0 ? 1 : 2);
    }
}

/* Of compute capability 8.6, 8.9 or 12: all kernels are loaded, and what wants more memory takes it in turns. */
HD_CASE(few_tokens_on_a_device_of_99_kib)
{
    hd_sim_set_shared(99 << 10);
    begin();
    hd_device_attention of = {.dtype = HEDDLE_BF16, .inner = 1, .heads = 1, .kv_heads = 1, .d = 72, .scale = 0.1f};
    of.nq = of.nk = of.diagonal = 128;
    check_few(&of, 0);
    of.nq = of.nk = of.diagonal = 112;
    check_few(&of, 2);
    hd_sim_set_shared(227 << 10);
}

/* o of the last `nq` queries of `q`, of one fibre and head, and of all keys. */
static char *of_last(const hd_device_attention *shape, int64_t all, int64_t nq, char *const *there)
{
    hd_device_attention of = *shape;
    const int64_t bytes = type_bytes(of.dtype);
    void *o = sim_array(NULL, of.dtype, nq * of.d, 0);
    of.nq = nq;
    of.q = (hd_device_tokens){there[Q] + (all - nq) * of.d * bytes, 0, 0, of.d, 0};
    of.k = (hd_device_tokens){there[K], 0, 0, of.d, 0};
    of.v = (hd_device_tokens){there[V], 0, 0, of.d, 0};
    of.o = (hd_device_tokens){o, 0, 0, of.d, 0};
    OK(device->attention(&of, NULL));
    char *out = from_sim(o, of.dtype, nq * of.d);
    OK(cudaFree(o));
    return out;
}

/* Maxima that grow at other keys than its neighbours': of few keys and of many, of narrow heads and of wide ones. */
HD_CASE(a_query_has_its_bits_beside_any_other)
{
    begin();
    for (int round = 0; round < 12; round++) {
        const int64_t d = round % 3 == 0   ? 128
                          : round % 3 == 1 ? 88
                                           : 72,
                      all = 40,
                      nk = round < 8    ? 200
                           : round < 10 ? 60
                                        : 120;
        const hd_device_attention of = {.dtype = float_types[1 + round % 2],
                                        .outer = 1,
                                        .inner = 1,
                                        .heads = 1,
                                        .kv_heads = 1,
                                        .nk = nk,
                                        .d = d,
                                        .scale = 1.3f,
                                        .diagonal = nk};
        const size_t row = (size_t)(d * type_bytes(of.dtype));
        char *there[3];
        for (int i = Q; i <= V; i++) {
            char *x = random_array(of.dtype, (i == Q ? all : nk) * d, 1);
            there[i] = sim_array(NULL, of.dtype, (i == Q ? all : nk) * d, 0);
            OK(cudaMemcpy(there[i], x, (size_t)(i == Q ? all : nk) * row, cudaMemcpyHostToDevice));
            free(x);
        }
        char *whole = of_last(&of, all, all, there);
        for (int64_t nq = 1; nq < all; nq += between(1, 7)) {
            char *some = of_last(&of, all, nq, there);
            assert_memory_equal(some, whole + (size_t)(all - nq) * row, (size_t)nq * row);
            free(some);
        }
        free(whole);
        for (int i = Q; i <= V; i++) {
            OK(cudaFree(there[i]));
        }
    }
}
