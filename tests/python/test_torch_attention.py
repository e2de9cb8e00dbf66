"""Attention of torch tensors over a sharded sequence: bits, gradients, torch.compile."""
from ranks import JUDGE, fork

import torch._dynamo  # once for all ranks

COMMON = JUDGE + """
import torch
import torch.nn.functional as F
import heddle
import heddle.torch as ht

def rows(whole, comm):
    cut = blocks(whole.shape[2], comm.size)
    return whole[:, :, cut[comm.rank]: cut[comm.rank + 1]]

def draw(seed, *shape, dtype=torch.float64):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)

def stepped(function, *inputs):
    inputs = [x.clone().requires_grad_() for x in inputs]
    o = function(*inputs)
    return o, lambda d_o: torch.autograd.grad(o, inputs, d_o)

def close(a, b, within):
    assert a.shape == b.shape and a.dtype == b.dtype
    assert a.numel() == 0 or (a - b).abs().max() <= within * (1 + b.abs().max()), (a - b).abs().max()
"""


def test_methods_dtypes_and_gradients(tmp_path):
    fork(tmp_path, COMMON + """
def compare(comm, method, dtype, within, s, h, kv, causal, sdpa=lambda plan: None):
    q, d_o = draw(1, 2, h, s, 8, dtype=dtype), draw(4, 2, h, s, 8, dtype=dtype)
    k, v = draw(2, 2, kv, s, 8, dtype=dtype), draw(3, 2, kv, s, 8, dtype=dtype)
    plan = comm.attention(f"f32[b=2 s={s} h={h} d=8] on [sp={comm.size}]: s@sp", method, kv_heads=kv, causal=causal)
    o, back = stepped(lambda *x: F.scaled_dot_product_attention(*x, is_causal=causal, enable_gqa=h != kv), q, k, v)
    mine, back_mine = stepped(lambda *x: ht.attention(*x, plan, sdpa=sdpa(plan)), *(rows(x, comm) for x in (q, k, v)))
    wanted, got = [o, *back(d_o)], [mine, *back_mine(rows(d_o, comm))]
    for a, b in zip(got, wanted):
        if within == 0:
            assert torch.equal(a, rows(b, comm)), (method, dtype, s, h, kv, (a - rows(b, comm)).abs().max())
        else:
            close(a, rows(b, comm), within)

def recurrence(q, k, v, decay, both=False):
    distance = (torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])[None]).double()
    decay = torch.tensor(decay, dtype=torch.float64)[:, None, None]
    weights = decay ** distance.abs() if both else torch.where(distance >= 0, decay ** distance.clamp(min=0), 0.0)
    return torch.einsum("bhid,bhjd,hij,bhje->bhie", q, k, weights, v)

with heddle.Comm.open() as comm:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):  # bytes that are moved stay as they are
        compare(comm, "ulysses", dtype, 0, 11, 6, 6, False)
    compare(comm, "ulysses", torch.float32, 0, 2, 2, 2, True)  # fewer rows, fewer heads than ranks
    compare(comm, "ulysses", torch.float64, 1e-12, 11, 8, 4, True)  # uneven heads, 2 to each key head
    for method in ("ring", "gather-kv", "rsa"):
        compare(comm, method, torch.float64, 1e-12, 11, 6, 2, True)
        compare(comm, method, torch.float32, 1e-5, 2, 3, 3, False)
        compare(comm, method, torch.bfloat16, 0.03, 11, 3, 3, False)
    for method in ("ring", "gather-kv"):  # by torch's operations
        compare(comm, method, torch.float16, 5e-3, 11, 6, 2, True)
        compare(comm, method, torch.float16, 5e-3, 2, 3, 3, False)
    own = ht.attention_op._own  # as for tensors of a device
    compare(comm, "gather-kv", torch.float64, 1e-12, 11, 6, 2, True, own)
    compare(comm, "gather-kv", torch.float16, 0.01, 11, 1, 1, False, own)
    compare(comm, "gather-kv", torch.float32, 1e-5, 2, 3, 3, True, own)  # a rank without rows
    for method in ("ring", "gather-kv"):  # gradients, and arguments, that are one number expanded: strides of zero
        plan = comm.attention(f"f64[b=2 s=11 h=3 d=8] on [sp={comm.size}]: s@sp", method)
        q, one = draw(1, 2, 3, 11, 8), torch.tensor(0.5, dtype=torch.float64)
        wanted, _ = stepped(lambda q, one: F.scaled_dot_product_attention(q, q * q, one.expand(q.shape)), q, one)
        q_all, q_mine = q.clone().requires_grad_(), rows(q, comm).clone().requires_grad_()
        F.scaled_dot_product_attention(q_all, q_all.sin(), q_all.cos()).sum().backward()
        ht.attention(q_mine, q_mine.sin(), q_mine.cos(), plan).sum().backward()
        close(q_mine.grad, rows(q_all.grad, comm), 1e-12)
        mine = ht.attention(rows(q, comm), rows(q * q, comm), one.expand(rows(q, comm).shape), plan)
        close(mine, rows(wanted.detach(), comm), 1e-12)
        (dx,) = torch.autograd.grad((ht.attention(q_mine, q_mine, q_mine, plan) ** 2).sum(), q_mine, create_graph=True)
        refused(heddle.UnsupportedError, "once only", torch.autograd.grad, dx.sum(), q_mine)
    refused(heddle.UnsupportedError, "scale is 0", ht.attention, *[rows(q, comm)] * 3,
            comm.attention(f"f64[b=2 s=11 h=3 d=8] on [sp={comm.size}]: s@sp", "ring", scale=0.0))

    def forward_by_a_plan_that_nobody_keeps(q):
        return ht.attention(q, q, q, heddle.Attention(comm, f"f64[b=2 s=11 h=3 d=8] on [sp={comm.size}]: s@sp", "ring"))
    forward_by_a_plan_that_nobody_keeps(q_mine).sum().backward()
    def moves():
        return sum(plan.info().executions for plan in comm._plans.values())
    for kv, each in ((6, 2), (3, 3)):  # q, k, v as one and o; q alone, k and v as one, and o
        plan = comm.attention(f"f32[b=1 s=11 h=6 d=8] on [sp={comm.size}]: s@sp", kv_heads=kv)
        x, few = (rows(draw(1, 1, h, 11, 8, dtype=torch.float32), comm) for h in (6, kv))
        before = moves()
        o, back = stepped(lambda *x: ht.attention(*x, plan), x, few, few)
        assert moves() - before == each
        back(o)
        assert moves() - before == 2 * each
    comm.plans_max = 1
    for method in ("ring", "ulysses"):  # plans that are let go between a forward and its backward
        q, d_o = draw(1, 1, 3, 9, 8), draw(2, 1, 3, 9, 8)
        o, back = stepped(F.scaled_dot_product_attention, q, q, q)
        wanted = back(d_o)
        for dtype in ("f64", "f32"):  # by a plan of this dtype, and of another
            plan = comm.attention(f"{dtype}[b=1 s=9 h=3 d=8] on [sp={comm.size}]: s@sp", method)
            mine, back_mine = stepped(lambda *x: ht.attention(*x, plan), *(rows(q, comm),) * 3)
            del plan
            for s in (7, 8):
                comm.attention(f"f64[b=1 s={s} h=3 d=8] on [sp={comm.size}]: s@sp", method)
            for a, b in zip(back_mine(rows(d_o, comm)), wanted):
                close(a, rows(b, comm), 1e-12)
    comm.plans_max = 512
    x = torch.zeros(2, 2, 3, 8, dtype=torch.float16)
    refused(heddle.UnsupportedError, "of torch.float16 on cpu", ht.attention, x, x, x,
            comm.attention(f"f32[b=2 s=9 h=2 d=8] on [sp={comm.size}]: s@sp", "rsa"))
    plan = comm.attention(f"f32[b=2 s=9 h=2 d=8] on [sp={comm.size}]: s@sp", "ring")
    refused(heddle.ArgumentError, "wants f32(2, 3, 2, 8)", ht.attention, *[x.float()[:1]] * 3, plan)
    refused(heddle.ArgumentError, "sdpa is for ulysses", ht.attention, *[x.float()] * 3, plan, sdpa=F.relu)
    heads = comm.attention(f"f32[b=2 s=9 h=2 d=8] on [sp={comm.size}]: s@sp", key_lengths=[9, 5])
    refused(heddle.UnsupportedError, "key_lengths", ht.attention, *[x.float()] * 3, heads)
    seen = []
    ht.attention(*[x.float()] * 3, heads, sdpa=lambda q, k, v: seen.append(q.shape[2]) or q)
    assert seen == ([9] if comm.rank < 2 else [])
    q, k, v, d_o = draw(1, 2, 2, 11, 4), draw(2, 2, 2, 11, 4), draw(3, 2, 2, 11, 6), draw(4, 2, 2, 11, 6)
    o, back = stepped(lambda *x: recurrence(*x, [0.9, 1.0]), q, k, v)
    wanted = [o, *back(d_o)]
    for method in ("lasp", "lasp2", "scan"):
        plan = comm.linear_attention(f"f64[b=2 s=11 h=2 d=4] on [sp={comm.size}]: s@sp", method, decay=[0.9, 1.0],
                                     dv=6)
        mine, back_mine = stepped(lambda *x: ht.linear_attention(*x, plan), *(rows(x, comm) for x in (q, k, v)))
        ht.linear_attention(*(rows(x, comm) for x in (v[..., :4], k, v)), plan)  # another one in between
        close(ht.linear_attention(*(rows(x, comm).half() for x in (q, k, v)), plan), rows(o, comm).half(), 5e-3)
        for a, b in zip([mine, *back_mine(rows(d_o, comm))], wanted):
            close(a, rows(b, comm), 1e-12)
    by_states = ht.attention_op.by_states  # as for tensors of a device
    for s, dtype, within, both in ((11, torch.float64, 1e-12, False), (2, torch.float64, 1e-12, True),
                                   (450, torch.float64, 1e-12, True), (450, torch.float32, 1e-4, False),
                                   (11, torch.bfloat16, 0.03, False), (11, torch.float16, 0.01, True)):
        q, k, v, d_o = (draw(i, 2, 3, s, width, dtype=dtype) for i, width in ((1, 4), (2, 4), (3, 6), (4, 6)))
        decay = [0.9, 1.0, 0.1]
        o, back = stepped(lambda *x: recurrence(*x, decay, both), *(x.double() for x in (q, k, v)))
        wanted = [x.to(dtype) for x in (o, *back(d_o.double()))]
        plan = comm.linear_attention(f"f32[b=2 s={s} h=3 d=4] on [sp={comm.size}]: s@sp", decay=decay, dv=6,
                                     bidirectional=both)
        mine, back_mine = stepped(lambda *x: by_states(*(y.transpose(1, 2) for y in x), plan).transpose(1, 2),
                                  *(rows(x, comm) for x in (q, k, v)))
        for a, b in zip([mine, *back_mine(rows(d_o, comm))], wanted):
            close(a, rows(b, comm), within)
    ht.attention_op._is_of_library = lambda x: False  # what tensors of a device go by
    q, k, v = (draw(i, 2, 4, 11, 8) for i in range(3))
    problem = f"f64[b=2 s=11 h=4 d=8] on {comm.mesh}: s@sp"
    gathered = ht.attention(*(rows(x, comm) for x in (q, k, v)), comm.attention(problem, "gather-kv", causal=True))
    close(gathered, rows(F.scaled_dot_product_attention(q, k, v, is_causal=True), comm), 1e-12)
    for method in ("lasp2", "lasp", "scan"):
        plan, mine = comm.linear_attention(problem, method), [rows(x, comm) for x in (q, k, v)]
        close(ht.linear_attention(*mine, plan), rows(recurrence(q, k, v, [1.0] * 4), comm), 1e-12)
    refused(heddle.UnsupportedError, "ulysses, gather-kv, ring and usp are of devices", ht.attention, *mine,
            comm.attention(problem, "rsa"))
    heads = comm.attention(f"f64[b=2 s=11 h=4 d=8] on {comm.mesh}: h@sp(1 2 1)", "gather-kv", kv_heads=2)
    refused(heddle.UnsupportedError, "wants them cut evenly", ht.attention, *mine, heads)
    refused(heddle.ArgumentError, "in [b, s, h, d], rank", ht.linear_attention, *(x[:1] for x in mine),
            comm.linear_attention(problem))
print("ok")
""", 3)


def test_two_axes_layers_of_one_plan_and_compiled(tmp_path):
    fork(tmp_path, COMMON + """
def layers(x, attend):
    for turn in range(3):
        x = x + attend(x, x.cos(), x.sin() * 0.5)
    return x

with heddle.Comm.open(mesh="[ring=2 uly=2]") as comm:
    q, k, v, d_o = (draw(i, 1, 3, 11, 8) for i in range(4))
    plan = comm.attention("f64[b=1 s=11 h=3 d=8] on [ring=2 uly=2]: s@ring,s@uly", "usp")
    lo = plan.line.src_slices(comm.rank)[1]
    o, back = stepped(F.scaled_dot_product_attention, q, k, v)
    mine, back_mine = stepped(lambda *x: ht.attention(*x, plan), *(x[:, :, lo] for x in (q, k, v)))
    for a, b in zip([mine, *back_mine(d_o[:, :, lo])], [o, *back(d_o)]):
        close(a, b[:, :, lo], 1e-12)
    both = comm.attention("f64[b=2 s=11 h=3 d=8] on [ring=2 uly=2]: b@ring,s@uly")  # samples on the other axis
    q, k, v = (draw(i, 2, 3, 11, 8) for i in range(3))
    here, lo = plan.comm.rank // 2, both.line.src_slices(comm.rank)[1]
    mine = ht.attention(*(x[here: here + 1, :, lo] for x in (q, k, v)), both)
    assert torch.equal(mine, F.scaled_dot_product_attention(q, k, v)[here: here + 1, :, lo])
    refused(heddle.UnsupportedError, "one axis", ht.attention, *(x[:, :, lo] for x in (q, k, v)),
            comm.attention("f64[b=1 s=11 h=3 d=8] on [ring=2 uly=2]: s@ring,s@uly"))
    for cut in ("b@ring,s@uly", "s@ring,s@uly", "h@uly,s@ring(2 9)"):
        problem = f"f64[b=2 s=11 h=4 d=8] on {comm.mesh}: {cut}"
        q, k, v = (draw(i, 2, 4, 11, 8) for i in range(3))
        linear, whole = (comm.linear_attention(text, decay=[0.5, 0.9, 1.0, 0.7])
                         for text in (problem, f"f64[b=2 s=11 h=4 d=8] on {comm.mesh}: *"))
        mine = linear.line.src_slices(comm.rank)
        y = ht.attention_op.by_states(*(x.transpose(1, 2)[mine] for x in (q, k, v)), linear)
        close(y, ht.attention_op.by_states(*(x.transpose(1, 2) for x in (q, k, v)), whole)[mine], 1e-12)
        close(y.transpose(1, 2), ht.linear_attention(*(x.transpose(1, 2)[mine].transpose(1, 2) for x in (q, k, v)),
                                                     linear), 1e-12)
    comm = comm.axis("uly")
    x, d_o = draw(1, 1, 4, 7, 8), draw(2, 1, 4, 7, 8)
    y, back = stepped(lambda x: layers(x, F.scaled_dot_product_attention), x)
    (dx,) = back(d_o)
    for method in ("ulysses", "ring"):
        for saved in (1, 3):  # the library keeps one forward, the others run again; or all three
            plan = comm.attention(f"f64[b=1 s=7 h=4 d=8] on {comm.mesh}: s@uly", method, saved_forwards=saved)
            sharded = lambda x: layers(x, lambda q, k, v: ht.attention(q, k, v, plan))
            mine, back_mine = stepped(sharded, rows(x, comm))
            close(mine, rows(y, comm), 1e-12)
            close(back_mine(rows(d_o, comm))[0], rows(dx, comm), 1e-12)
            forwards = plan._forwards
            assert forwards == (0 if method == "ulysses" else 5 if saved == 1 else 3), forwards
            if comm._parent.rank >= 2 or saved > 1:  # torch takes its time
                continue
            compiled, back_mine = stepped(torch.compile(sharded, fullgraph=True, backend="aot_eager"), rows(x, comm))
            close(compiled, mine, 1e-12)
            close(back_mine(rows(d_o, comm))[0], rows(dx, comm), 1e-12)
    if comm._parent.rank < 2:  # as for tensors of a device
        problem = f"f64[b=1 s=7 h=4 d=8] on {comm.mesh}: s@uly"
        plan, linear = comm.attention(problem, "gather-kv", causal=True), comm.linear_attention(problem)
        own = ht.attention_op._own(plan)

        def attend(q, k, v):
            o = ht.attention(q, k, v, plan, sdpa=own)
            return o + ht.attention_op.by_states(*(x.transpose(1, 2) for x in (q, k, o)), linear).transpose(1, 2)
        mine, back_mine = stepped(lambda x: layers(x, attend), rows(x, comm))
        compiled = torch.compile(lambda x: layers(x, attend), fullgraph=True, backend="aot_eager")
        compiled, back_compiled = stepped(compiled, rows(x, comm))
        close(compiled, mine, 1e-12)
        close(back_compiled(rows(d_o, comm))[0], back_mine(rows(d_o, comm))[0], 1e-12)
print("ok")
""", 4)


def test_options_are_kept_as_the_numbers_that_they_had(tmp_path):
    """Whatever a list, an array or a tensor has later, a plan is made in C by its first forward."""
    fork(tmp_path, COMMON + """
import numpy as np

with heddle.Comm.open() as comm:
    for s, of in enumerate((list, np.array, torch.tensor), 8):
        problem, lengths, decay = f"f64[b=2 s={s} h=2 d=4] on {comm.mesh}: s@sp", of([5, 3]), of([0.5, 0.75])
        plans = (comm.attention(problem, "ring", key_lengths=lengths),
                 heddle.Attention(comm, problem, "ring", key_lengths=lengths))
        linear = (comm.linear_attention(problem, decay=decay), heddle.LinearAttention(comm, problem, decay=decay))
        family = comm.family(heddle.LinearAttention, problem.replace(f"s={s}", "s=%d"), "lasp2", {"decay": decay})
        for at in range(2):
            lengths[at], decay[at] = s, 0.1
        q, k, v = (draw(seed, 2, 2, s, 4) for seed in (1, 2, 3))
        seen = torch.arange(s) < torch.tensor([5, 3])[:, None, None, None]
        wanted = F.scaled_dot_product_attention(q, k, v, seen)
        score = (q @ k.transpose(2, 3)) * torch.tensor([0.5, 0.75], dtype=torch.float64)[:, None, None] ** (
            torch.arange(s)[:, None] - torch.arange(s)).clamp(min=0)
        faded = score.tril() @ v
        mine = [rows(x, comm) for x in (q, k, v)]
        for plan in plans:
            close(ht.attention(*mine, plan), rows(wanted, comm), 1e-12)
            assert plan.numbers == (2, s, 2, 4, 5, 3)
        for plan in (*linear, family.plan([s])):
            close(ht.linear_attention(*mine, plan), rows(faded, comm), 1e-12)
            close(ht.linear_attention(*(x.half() for x in mine), plan), rows(faded, comm).half(), 2e-2)
        assert comm.attention(problem, "ring", key_lengths=(5, 3)) is plans[0]
        assert comm.linear_attention(problem, decay=[0.5, 0.75]) is linear[0]
        hidden = comm.attention(problem.replace("b=2", "b=1"), "ring", key_lengths=of([0]))
        assert hidden.numbers == (1, s, 2, 4, 0)
print("ok")
""", 2)
