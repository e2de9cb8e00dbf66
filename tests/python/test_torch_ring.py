"""Ring attention by torch's operations, as tensors of a device have it, on tensors of the host."""
import test_torch_attention
from ranks import fork

COMMON = test_torch_attention.COMMON + """
import weakref
from heddle.torch import attention_op, blocks as kernels, ring_op

library_takes = attention_op._is_of_library
attention_op._is_of_library = lambda x: False  # what tensors of a device go by

def part(whole, plan):
    samples, lo, heads, _ = plan.line.src_slices(plan.comm.rank)
    each = plan.heads // whole.shape[1]
    return whole[samples, heads.start // each: heads.stop // each, lo]

def judged(q, k, v, causal, key_lengths, scale):
    s = k.shape[2]
    seen = torch.ones(s, s, dtype=torch.bool).tril() if causal else torch.ones(s, s, dtype=torch.bool)
    seen = seen & (torch.arange(s) < torch.tensor(key_lengths or [s] * k.shape[0])[:, None, None, None])
    o = F.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=True)
    return o.masked_fill(~seen.any(3, keepdim=True), 0)

def compare(comm, problem, dtype, within, kv, method="ring", causal=False, key_lengths=None, scale=None):
    plan = comm.attention(f"f32[{problem}", method, kv_heads=kv, causal=causal, key_lengths=key_lengths, scale=scale)
    b, s, h, d = plan.line.shape
    q, k, v, d_o = (draw(i, b, heads, s, d, dtype=dtype) for i, heads in enumerate((h, kv, kv, h)))
    o, back = stepped(lambda *x: judged(*x, causal, key_lengths, scale), *(x.double() for x in (q, k, v)))
    wanted = [x.to(dtype) for x in (o, *back(d_o.double()))]
    mine, back_mine = stepped(lambda *x: ht.attention(*x, plan), *(part(x, plan) for x in (q, k, v)))
    for a, b in zip([mine, *back_mine(part(d_o, plan))], wanted):
        close(a, part(b, plan), within)
"""


def kinds_of_problems(tmp_path, ranks):
    fork(tmp_path, COMMON + """
with heddle.Comm.open() as comm:
    n = comm.size
    uneven = {1: "(9)", 2: "(9 0)", 3: "(0 7 2)", 4: "(1 0 6 2)"}[n]
    for dtype, within in ((torch.float64, 1e-12), (torch.float32, 3e-6), (torch.bfloat16, 0.03), (torch.float16, 5e-3)):
        for kernel, scores in ((None, 0), (kernels.CHUNKS, 1 << 24), (kernels.CHUNKS, 40))[: 3 if within < 1e-5 else 2]:
            ring_op.kernel_for = (lambda *given: kernel) if kernel else kernels.kernel_for
            kernels._SCORES_MAX = scores  # 40: some rows at a time
            compare(comm, f"b=2 s=11 h=3 d=8] on [sp={n}]: s@sp", dtype, within, 3)
            compare(comm, f"b=2 s=2 h=3 d=8] on [sp={n}]: s@sp", dtype, within, 3, causal=True)
            compare(comm, f"b=2 s=13 h=6 d=8] on [sp={n}]: s@sp", dtype, within, 2, causal=True)
            compare(comm, f"b=4 s=9 h=4 d=8] on [sp={n}]: s@sp{uneven}", dtype, within, 2, key_lengths=(9, 4, 4, 0))
            compare(comm, f"b=3 s=9 h=4 d=8] on [sp={n}]: s@sp{uneven}", dtype, within, 4, causal=True,
                    key_lengths=(5, 0, 8), scale=0.7)
    compare(comm, f"b=1 s=300 h=2 d=16] on [sp={n}]: s@sp", torch.float32, 3e-6, 2, causal=True)
    compare(comm, f"b=1 s=300 h=2 d=16] on [sp={n}]: s@sp", torch.float32, 3e-6, 1)
    compare(comm, f"b=1 s=5 h=2 d=8] on [sp={n}]: s@sp", torch.float64, 1e-12, 1, scale=0.0)
print("ok")
""", ranks)


def test_one_rank(tmp_path):
    kinds_of_problems(tmp_path, 1)


def test_two_ranks(tmp_path):
    kinds_of_problems(tmp_path, 2)


def test_three_ranks(tmp_path):
    kinds_of_problems(tmp_path, 3)


def test_four_ranks(tmp_path):
    kinds_of_problems(tmp_path, 4)


def test_two_axes(tmp_path):
    fork(tmp_path, COMMON + """
with heddle.Comm.open(mesh="[a=2 b=2]") as comm:
    mesh = f"on {comm.mesh}"
    for dtype, within in ((torch.float64, 1e-12), (torch.float32, 3e-6)):
        for causal in (False, True):
            compare(comm, f"b=2 s=11 h=6 d=8] {mesh}: s@a,s@b", dtype, within, 3, "usp", causal)
            compare(comm, f"b=2 s=11 h=6 d=8] {mesh}: s@a(2 9),s@b", dtype, within, 6, "usp", causal, (11, 3))
            compare(comm, f"b=2 s=11 h=2 d=8] {mesh}: s@a,s@b", dtype, within, 1, "usp", causal)  # ranks without heads
            compare(comm, f"b=2 s=3 h=2 d=8] {mesh}: s@a,s@b", dtype, within, 2, "usp", causal)
            compare(comm, f"b=2 s=11 h=6 d=8] {mesh}: s@a,s@b", dtype, within, 2, "ring", causal)
            compare(comm, f"b=3 s=11 h=6 d=8] {mesh}: b@a,s@b", dtype, within, 2, "ring", causal, (11, 3, 7))
            compare(comm, f"b=2 s=11 h=6 d=8] {mesh}: s@a(5 6),h@b(4 2)", dtype, within, 3, "ring", causal)
            compare(comm, f"b=2 s=11 h=6 d=8] {mesh}: h@a,s@b", dtype, within, 6, "ring", causal)
            compare(comm, f"b=2 s=11 h=6 d=8] {mesh}: b@b", dtype, within, 2, "ring", causal)  # whole sequences
    x = torch.zeros(2, 2, 11, 8)
    split = comm.attention(f"f32[b=2 s=22 h=4 d=8] {mesh}: s@a,h@b", "ring", kv_heads=1)
    refused(heddle.UnsupportedError, "every query head where its key head is", split.turns)
    refused(heddle.UnsupportedError, "wants the sequence on two axes", ht.attention, *[x] * 3,
            comm.attention(f"f32[b=2 s=22 h=2 d=8] {mesh}: s@a", "usp"))
    for method in ("ring", "usp"):
        apart = comm.attention("f32[b=2 s=44 h=4 d=8] on [a=2 x=1 b=2]: s@a,s@b", method)
        assert method == "usp" and apart.turns() or method == "ring"
        if method == "ring":
            refused(heddle.UnsupportedError, "neighbouring axes", apart.turns)
print("ok")
""", 4)


def test_what_a_rank_holds_and_sends(tmp_path):
    fork(tmp_path, COMMON + """
n, b, s, h, d = 4, 2, 64, 4, 8
alive, most, gathered = 0, 0, set()

def watched(move):
    def call(*given):  # memory that says when it is let go of
        global alive, most
        array = move(*given).numpy().copy()
        alive, most = alive + array.nbytes, max(most, alive + array.nbytes)
        gathered.add(array.shape)
        def gone(nbytes=array.nbytes):
            global alive
            alive -= nbytes
        weakref.finalize(array, gone)
        return torch.from_numpy(array)
    return call

def sent(comm):
    return sum(plan.info().measured_bytes_sent for plan in comm._plans.values())

with heddle.Comm.open() as comm:
    ring_op._reshard_packed = watched(ring_op._reshard_packed)
    block = 2 * b * (s // n) * h * d  # elements of k and v
    for causal in (False, True):
        plan = comm.attention(f"f32[b={b} s={s} h={h} d={d}] on [sp={n}]: s@sp", "ring", causal=causal)
        q = rows(draw(1, b, h, s, d, dtype=torch.float32), comm)
        before = sent(comm)
        o, back = stepped(lambda *x: ht.attention(*x, plan), q, q, q)
        assert most == block * 4 and gathered == {(2, b, h, s // n, d)}, (most, block, gathered)
        assert sent(comm) - before == (n - 1) * block * 4  # those of a ring of blocks
        back(o)
        assert most == block * 4 and alive == 0
        assert sent(comm) - before == 3 * (n - 1) * block * 4
    assert len(comm._plans) == 2  # all turns of even blocks are of one line, there and back
print("ok")
""", 4)


def test_layers_compiled_checkpointed_refused(tmp_path):
    fork(tmp_path, COMMON + """
from torch.utils.checkpoint import checkpoint

with heddle.Comm.open() as comm:
    plan = comm.attention("f64[b=1 s=7 h=4 d=8] on [sp=2]: s@sp", "ring", causal=True)
    x, d_o = draw(1, 1, 4, 7, 8), draw(2, 1, 4, 7, 8)

    def layers(x, attend):
        for turn in range(3):
            x = x + attend(x, x.cos(), x.sin() * 0.5)
        return x
    def sharded(x):
        return layers(x, lambda q, k, v: ht.attention(q, k, v, plan))
    y, back = stepped(lambda x: layers(x, lambda *x: F.scaled_dot_product_attention(*x, is_causal=True)), x)
    (dx,) = back(d_o)
    for call in (sharded, torch.compile(sharded, fullgraph=True, backend="aot_eager"),
                 lambda x: checkpoint(sharded, x, use_reentrant=False)):
        mine, back_mine = stepped(call, rows(x, comm))
        close(mine, rows(y, comm), 1e-12)
        close(back_mine(rows(d_o, comm))[0], rows(dx, comm), 1e-12)
    q = rows(x, comm).clone().requires_grad_()
    (dx,) = torch.autograd.grad((ht.attention(q, q, q, plan) ** 2).sum(), q, create_graph=True)
    refused(heddle.UnsupportedError, "once only", torch.autograd.grad, dx.sum(), q)
    refused(heddle.UnsupportedError, "forward-mode", torch.func.jvp, lambda x: ht.attention(x, x, x, plan),
            (rows(x, comm),), (rows(x, comm),))
    refused(heddle.UnsupportedError, "torch.func", torch.func.vmap(lambda x: ht.attention(x, x, x, plan)),
            rows(x, comm)[None])
    one = torch.tensor(0.5, dtype=torch.float64).expand(q.shape)  # all strides are zero, and those of its gradient
    o = ht.attention(q, one, one, plan)
    close(o, one, 1e-12)
    o.sum().backward()
    close(q.grad, torch.zeros_like(q), 1e-12)
    turned = q.detach().mT.contiguous().mT  # whose last dim is not the nearest in memory
    assert torch.equal(ht.attention(turned, turned, turned, plan), ht.attention(q, q, q, plan))
    refused(heddle.ArgumentError, "sdpa is for ulysses", ht.attention, q, q, q, plan, sdpa=F.relu)
    refused(heddle.ArgumentError, "rank", ht.attention, q, q[:, :2], q, plan)
    refused(heddle.ArgumentError, "x is of torch.complex64", ht.attention, *[q.to(torch.complex64)] * 3, plan)
    with torch.no_grad():
        kept = ht.attention(*[q.transpose(1, 2)] * 3, plan, heads_first=False).transpose(1, 2)
    assert not kept.requires_grad and torch.equal(kept, ht.attention(q, q, q, plan))
print("ok")
""", 2)


def test_a_model(tmp_path):
    fork(tmp_path, COMMON + """
import copy
from heddle.torch import Attend, Gather, Split, parallelize, reduce_gradients

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(12, 36, dtype=torch.float64)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, 2, 6)).permute(2, 0, 3, 1, 4)
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

with heddle.Comm.open() as comm:
    for s in (7, 2):  # a rank without rows
        torch.manual_seed(0)
        alone = torch.nn.Sequential(Layer(), Layer(), torch.nn.Linear(12, 3, dtype=torch.float64))
        together = copy.deepcopy(alone)
        parallelize(together, {"0": Split("x", "b s c", "s"), "[01]": Attend("s", "ring"),
                               "2": Gather("output", "b s o", "s")}, comm)
        x = draw(1, 2, s, 12)
        wanted, got = alone(x), together(x)
        close(got, wanted, 1e-12)
        (wanted ** 2).sum().backward()
        (got ** 2).sum().backward()
        reduce_gradients(together.parameters(), sum_over=comm)
        for a, b in zip(together.parameters(), alone.parameters()):
            close(a.grad, b.grad, 1e-12)
print("ok")
""", 3)


def test_one_rank_has_another_shape(tmp_path):
    fork(tmp_path, COMMON + """
with heddle.Comm.open() as comm:
    def attend(length, less):
        x = rows(draw(1, 2, 2, length, 8), comm)[:, :, less:]
        ht.attention(x, x, x, comm.attention(f"f64[b=2 s={length} h=2 d=8] on [sp=3]: s@sp", "ring"))
    refused(heddle.MismatchError, "rank 1", attend, 12 if comm.rank == 1 else 9, 0)
    attend(9, 0)  # whose communicator stays usable
    if comm.rank == 1:
        refused(heddle.ArgumentError, "rank 1 wants", attend, 9, 1)
    else:
        refused(heddle.PeerError, "rank 1", attend, 9, 0)  # it has left
print("ok")
""", 3)


def test_under_autocast(tmp_path):
    fork(tmp_path, COMMON + """
import copy
from heddle.torch import Attend, Gather, Split, parallelize

def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)

def outside(call, x, d_o):
    o, back = stepped(call, *x)
    return [o, *back(d_o.to(o.dtype))]

def inside(call, x, d_o):
    with autocast():
        return outside(call, x, d_o)

def same(mine, wanted):
    assert len(mine) == len(wanted)
    for a, b in zip(mine, wanted):
        assert a.dtype == b.dtype and torch.equal(a, b), (a - b).abs().max()

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(12, 36)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, 2, 6)).permute(2, 0, 3, 1, 4)
        return x + F.scaled_dot_product_attention(q.float(), k.float(), v).transpose(1, 2).flatten(2)

with heddle.Comm.open() as comm:
    q, k, v, d_o = (rows(draw(i, 2, 2, 13, 8, dtype=torch.float32), comm) for i in range(4))
    low = [x.bfloat16() for x in (q, k, v)]
    for method in ("ulysses", "ring", "gather-kv"):
        plan = comm.attention(f"f32[b=2 s=13 h=2 d=8] on {comm.mesh}: s@sp", method)
        call = lambda *x: ht.attention(*x, plan)
        for kernel in (kernels.FLASH_OF_CPU, kernels.CHUNKS)[: 2 if method == "ring" else 1]:
            ring_op.kernel_for = lambda *given: kernel
            wanted = outside(call, low, d_o)
            assert wanted[0].dtype == torch.bfloat16
            same(inside(call, (q, k, v), d_o), [wanted[0], *(x.float() for x in wanted[1:])])  # of the inputs' dtype
            same(inside(call, (q, k, low[2]), d_o), [wanted[0], *(x.float() for x in wanted[1:3]), wanted[3]])
            if method == "ring":
                same(inside(torch.compile(call, fullgraph=True, backend="aot_eager"), (q, k, v), d_o)[:1], wanted[:1])
        with autocast():
            double = ht.attention(*(x.double() for x in (q, k, v)), plan)
        assert double.dtype == torch.float64
    for method in ("lasp2", "lasp", "scan"):  # torch has none, and so it is of the inputs' dtype
        plan = comm.linear_attention(f"f32[b=2 s=13 h=2 d=8] on {comm.mesh}: s@sp", method, decay=[0.9, 1.0])
        call = lambda *x: ht.linear_attention(*x, plan)
        for x in ((q, k, v), low):
            wanted = outside(call, x, d_o)
            with autocast():
                o, back = stepped(call, *x)
            same([o, *back(d_o.to(o.dtype))], wanted)
    attention_op._is_of_library = library_takes  # the library's own
    plan = comm.attention(f"f32[b=2 s=13 h=2 d=8] on {comm.mesh}: s@sp", "rsa")
    wanted = outside(lambda *x: ht.attention(*x, plan), low, d_o)
    same(inside(lambda *x: ht.attention(*x, plan), (q, k, v), d_o), [wanted[0], *(x.float() for x in wanted[1:])])
    attention_op._is_of_library = lambda x: False
    for method in ("ulysses", "ring"):
        torch.manual_seed(0)
        alone = torch.nn.Sequential(Layer(), Layer())
        together = copy.deepcopy(alone)
        parallelize(together, {"0": Split("x", "b s c", "s"), "[01]": Attend("s", method),
                               "1": Gather("output", "b s c", "s")}, comm)
        x = draw(1, 2, 13, 12, dtype=torch.float32)
        with autocast():
            wanted, got = alone(x), together(x)
        close(got, wanted, 0.02)
print("ok")
""", 3)


STATES = """
def recurrence(q, k, v, decay, both):
    distance = (torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])).double()
    decay = torch.tensor(decay, dtype=torch.float64)[:, None, None]
    weights = decay ** distance.abs() if both else torch.where(distance >= 0, decay ** distance.clamp(min=0), 0.0)
    return torch.einsum("bhid,bhjd,hij,bhje->bhie", q, k, weights, v)

def compare(comm, problem, method, both, decay, compiled=False):
    plan = comm.linear_attention(f"f64[{problem}", method, decay=decay, dv=6, bidirectional=both)
    b, s, h, d = plan.line.shape
    q, k, v, d_o = (draw(i, b, h, s, width) for i, width in enumerate((d, d, 6, 6)))
    o, back = stepped(lambda *x: recurrence(*x, decay, both), q, k, v)
    samples, lo, heads, _ = plan.line.src_slices(comm.rank)
    call = lambda *x: ht.linear_attention(*x, plan)
    mine, back_mine = stepped(torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call,
                              *(x[samples, heads, lo] for x in (q, k, v)))
    for a, whole in zip([mine, *back_mine(d_o[samples, heads, lo])], [o, *back(d_o)]):
        close(a, whole[samples, heads, lo], 1e-12)
    return plan
"""


def test_states_of_linear_attention(tmp_path):
    fork(tmp_path, COMMON + STATES + """
with heddle.Comm.open(mesh="[a=3 b=2]") as comm:
    for method in ("lasp", "scan"):
        for both in (False, True):
            compare(comm, "b=2 s=23 h=2 d=4] on [sp=6]: s@sp", method, both, [0.9, 1.0])
            compare(comm, "b=1 s=23 h=2 d=4] on [sp=6]: s@sp(0 4 0 0 18 1)", method, both, [0.9, 0.3])
            compare(comm, f"b=2 s=23 h=2 d=4] on {comm.mesh}: s@a,s@b", method, both, [0.9, 1.0])
            compare(comm, f"b=2 s=23 h=2 d=4] on {comm.mesh}: s@a,b@b", method, both, [0.9, 1.0])
            compare(comm, f"b=2 s=2 h=2 d=4] on {comm.mesh}: h@b,s@a", method, both, [0.9, 0.7])
            plan = compare(comm, f"b=2 s=5 h=2 d=4] on {comm.mesh}: b@b", method, both, [0.9, 0.7])  # whole sequences
        plan = comm.linear_attention("f64[b=1 s=12 h=2 d=4] on [sp=6]: s@sp", method)
        x = draw(1, 1, 2, 2, 4)
        refused(heddle.UnsupportedError, "forward-mode", torch.func.jvp, lambda x: ht.linear_attention(x, x, x, plan),
                (x,), (x,))
        apart = comm.linear_attention("f64[b=1 s=12 h=2 d=4] on [a=3 x=1 b=2]: s@a,s@b", method)
        refused(heddle.UnsupportedError, "neighbouring axes", ht.linear_attention, x, x, x, apart)
print("ok")
""", 6)


def test_states_of_linear_attention_compiled(tmp_path):
    fork(tmp_path, COMMON + STATES + """
with heddle.Comm.open() as comm:
    compare(comm, "b=2 s=23 h=2 d=4] on [sp=3]: s@sp", "lasp", False, [0.9, 1.0], True)
print("ok")
""", 3)
