"""Attention and linear attention of arrays between ranks, against sums written out in NumPy."""
from ranks import JUDGE, run

COMMON = JUDGE + """
import numpy as np
import heddle

def softmax_attention(q, k, v, causal, lengths):
    '''o and the gradients of sum(o * d_o), all in float64, one query head at a time.'''
    group = q.shape[2] // k.shape[2]
    def weights(b, h):
        score = q[b, :, h] @ k[b, :, h // group].T / np.sqrt(q.shape[3])
        seen = np.arange(k.shape[1])[None] < lengths[b]
        seen = seen & (np.arange(k.shape[1])[None] <= np.arange(q.shape[1])[:, None]) if causal else seen
        score = np.where(seen, score, -np.inf)
        raised = np.exp(score - score.max(1, keepdims=True))
        return raised / raised.sum(1, keepdims=True)
    o = np.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            o[b, :, h] = weights(b, h) @ v[b, :, h // group]
    def gradients(d_o):
        dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        for b in range(q.shape[0]):
            for h in range(q.shape[2]):
                p, dp = weights(b, h), d_o[b, :, h] @ v[b, :, h // group].T
                ds = p * (dp - (p * dp).sum(1, keepdims=True)) / np.sqrt(q.shape[3])
                dq[b, :, h] += ds @ k[b, :, h // group]
                dk[b, :, h // group] += ds.T @ q[b, :, h]
                dv[b, :, h // group] += p.T @ d_o[b, :, h]
        return dq, dk, dv
    return o, gradients

def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)

def rows(whole, n, rank):
    cut = blocks(whole.shape[1], n)
    return whole[:, cut[rank]: cut[rank + 1]]

def close(a, b, within):
    assert a.shape == b.shape and (a.size == 0 or abs(a - b).max() <= within * (1 + abs(b).max())), abs(a - b).max()
"""


def test_methods_and_their_gradients(tmp_path):
    run(tmp_path, COMMON + """
with heddle.Comm.open() as comm:
    n, rank = comm.size, comm.rank
    for s, h, kv in [(11, 6, 2), (2, 3, 3)]:  # 2 rows on 3 ranks: one has none
        q, k, v, d_o = draw(1, 2, s, h, 8), draw(2, 2, s, kv, 8), draw(3, 2, s, kv, 8), draw(4, 2, s, h, 8)
        problem = f"f64[b=2 s={s} h={h} d=8] on [sp={n}]: s@sp"
        for method in ["ulysses", "ring", "rsa", "gather-kv"]:
            for causal, lengths in [(False, None), (True, None), (False, [s, 2])]:
                o, gradients = softmax_attention(q, k, v, causal, lengths or [s, s])
                plan = comm.attention(problem, method, kv_heads=kv, causal=causal, key_lengths=lengths)
                assert comm.attention(problem, method, kv_heads=kv, causal=causal, key_lengths=lengths) is plan
                mine = [rows(x, n, rank) for x in (q, k, v)]  # views: strides as they are
                close(plan(*mine), rows(o, n, rank), 1e-12)
                for got, wanted in zip(plan.backward(rows(d_o, n, rank)), gradients(d_o)):
                    close(got, rows(wanted, n, rank), 1e-12)
    one = np.broadcast_to(0.5, mine[0].shape)  # strides of zero: every element is the same one
    assert np.array_equal(plan(one, one, one), plan(*[np.full(one.shape, 0.5)] * 3))
    wanted = plan.backward(np.full(one.shape, 0.5))
    assert all(np.array_equal(a, b) for a, b in zip(plan.backward(one), wanted))
    packed = np.zeros(one.shape, [("tag", "u1"), ("x", "f8")])["x"]  # strides that are no multiples of an element
    packed[...] = mine[0]
    assert np.array_equal(plan(packed, *mine[1:]), plan(*mine))
    single = comm.attention(problem, "ring", "f32")
    o, _ = softmax_attention(q, k, v, False, [2, 2])
    close(single(*(rows(x, n, rank).astype(np.float32) for x in (q, k, v))), rows(o, n, rank), 1e-5)
    refused(heddle.ArgumentError, "q is of float64, wanted float32", single, *mine)
    refused(heddle.ArgumentError, "the shape", comm.attention(problem), mine[0][:, :, :2], *mine[1:])
    refused(heddle.ArgumentError, "before any forward", comm.attention(problem, "rsa", scale=2.0).backward, mine[0])
    refused(heddle.ArgumentError, "which does not divide 3", comm.attention, problem, kv_heads=2)
    refused(heddle.ArgumentError, "four dims", comm.attention, "f32[s=4] on [sp=3]: s@sp")
    refused(heddle.ArgumentError, "1 key_lengths for 2", comm.attention, problem, key_lengths=[1])
    refused(heddle.ParseError, "gather-kv", comm.attention, problem, "gatherkv")
    refused(heddle.ArgumentError, "saved_forwards is 0", comm.attention, problem, saved_forwards=0)
print("ok")
""", 3)


def test_linear_attention_and_its_gradients(tmp_path):
    run(tmp_path, COMMON + """
def weights(s, decay, bidirectional):
    distance = np.arange(s)[:, None] - np.arange(s)[None]
    return np.where((distance >= 0) | bidirectional, float(decay) ** abs(distance), 0.0)

with heddle.Comm.open() as comm:
    n, rank, s, h, decay = comm.size, comm.rank, 11, 2, [0.9, 1.0]
    q, k, v, d_o = draw(1, 2, s, h, 4), draw(2, 2, s, h, 4), draw(3, 2, s, h, 5), draw(4, 2, s, h, 5)
    for bidirectional in (False, True):
        w = np.stack([weights(s, g, bidirectional) for g in decay])
        score = np.einsum("bihd,bjhd,hij->bhij", q, k, w)
        passed = np.einsum("bihe,bjhe,hij->bhij", d_o, v, w)
        o = np.einsum("bhij,bjhe->bihe", score, v)
        wanted = (np.einsum("bhij,bjhd->bihd", passed, k), np.einsum("bhij,bihd->bjhd", passed, q),
                  np.einsum("bhij,bihe->bjhe", score, d_o))
        for method in ["lasp", "lasp2", "scan"]:
            plan = comm.linear_attention(f"f64[b=2 s={s} h={h} d=4] on [sp={n}]: s@sp", method, decay=decay,
                                         bidirectional=bidirectional, dv=5)
            mine = [rows(x, n, rank) for x in (q, k, v)]
            close(plan(*mine), rows(o, n, rank), 1e-12)
            for got, whole in zip(plan.backward(*mine, rows(d_o, n, rank)), wanted):
                close(got, rows(whole, n, rank), 1e-12)
    refused(heddle.ArgumentError, "1 decays for 2 heads",
            comm.linear_attention, f"f64[b=2 s={s} h={h} d=4] on [sp={n}]: s@sp", decay=[0.5])
print("ok")
""", 3)


def test_forwards_before_their_backwards(tmp_path):
    run(tmp_path, COMMON + """
def place(x):
    return x.ctypes.data, [stride // x.itemsize for stride in x.strides]

with heddle.Comm.open() as comm:
    n, rank = comm.size, comm.rank
    plan = comm.attention(f"f64[b=1 s=7 h=2 d=4] on [sp={n}]: s@sp", "ring", saved_forwards=2)
    d_o, tickets, wanted = rows(draw(9, 1, 7, 2, 4), n, rank), [], []
    for seed in (1, 2):
        q, k, v = (rows(draw(seed + i, 1, 7, 2, 4), n, rank) for i in range(3))
        o = np.empty_like(q)
        tickets.append(plan.execute(place(q), place(k), place(v), place(o)))
        wanted.append(plan.backward(d_o))
    for ticket, gradients in zip(tickets, wanted):
        got = [np.empty_like(d_o) for _ in range(3)]
        plan.execute_backward(ticket, place(d_o), *map(place, got))
        assert all(np.array_equal(a, b) for a, b in zip(got, gradients))
print("ok")
""", 2)
