"""What the author of a backend writes by hand: what goes round the split, ranks without rows, shapes without memory."""
import os
import re
from pathlib import Path

from ranks import fork
from test_torch import COMMON

import torch._dynamo  # once for all ranks
import torch._functorch.aot_autograd

DOCS = Path(os.environ["HEDDLE_SOURCE"]) / "docs" / "python.md"

# A model whose timestep and text go round the split, and the forward that the documents show.
MODEL = COMMON + """
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shift, self.mlp = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x, temb, text):
        there = (x @ text.mT).softmax(-1) @ text
        return x + self.mlp((x + there) * (1 + self.shift(temb)[:, None])).tanh()

class Last(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(8, 3)

    def forward(self, x, temb):
        return self.out(x * (1 + temb[:, None]))

class DiT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.time, self.text, self.patch = torch.nn.Linear(4, 8), torch.nn.Linear(5, 8), torch.nn.Linear(6, 8)
        self.blocks, self.last = torch.nn.ModuleList(Block() for _ in range(2)), Last()

    def forward(self, x, t, words):
        x, temb, text = self.patch(x), self.time(t), self.text(words)
        for block in self.blocks:
            x = block(x, temb, text)
        return self.last(x, temb)

def inputs(s, dtype=torch.float64):
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(2, *shape, dtype=torch.float64, generator=draw).to(dtype).requires_grad_()
            for shape in ((s, 6), (4,), (3, 5))]

def far(got, wanted):
    return max(float((a - b).abs().max() / (1 + b.abs().max())) for a, b in zip(got, wanted))
"""


def shown():
    """The forward and what comes behind it, as docs/python.md has them."""
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S) if "share(" in code]
    return block


def test_what_goes_round_the_split_as_the_documents_show_it(tmp_path):
    fork(tmp_path, MODEL + f"""
code = {shown()!r}
""" + """
def once(code, model, given, comm, **more):
    '''One step as the code says, of these: what it leaves, and gradients of whatever was given.'''
    model.zero_grad()
    given = [x.detach().requires_grad_() for x in given]
    loss = lambda y: (y * torch.arange(y.numel(), dtype=y.dtype).view_as(y).cos()).sum()
    there = dict(zip(("x", "t", "words"), given), model=model, comm=comm, loss=loss, torch=torch, heddle=heddle, **more)
    exec(code, there)
    return [x.grad for x in given] + [p.grad.clone() for p in model.parameters()]

alone = "loss(model(x, t, words)).backward()"
with heddle.Comm.open() as comm:
    for dtype, within in ((torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        for s in (7, 2):  # of 2 rows a rank has none
            model, given = DiT().to(dtype), inputs(s, dtype)
            wanted = once(alone, model, given, comm)
            got = once(code, model, given, comm)
            assert far(got, wanted) <= within, (dtype, s, far(got, wanted))
            assert all(torch.equal(x, one) for x, one in zip(got, once(code, model, given, comm)))
    model, given = DiT().double(), inputs(7)
    wanted = once(alone, model, given, comm)
    without = code.replace("heddle.torch.share(temb, comm)", "temb")
    assert without != code and far(once(without, model, given, comm), wanted) > 0.01  # what it is for
print("ok")
""", 3)


def test_share_is_differentiated_and_compiled_like_the_others(tmp_path):
    fork(tmp_path, MODEL + """
from torch.func import grad, jvp, vmap

with heddle.Comm.open(mesh="[dp=2 sp=2]") as comm:
    sp = comm.axis("sp")
    draw = torch.Generator().manual_seed(comm.rank // 2)  # samples of their own along dp
    temb, rows = (torch.randn(*shape, dtype=torch.float64, generator=draw) for shape in ((2, 3), (2, 5, 3)))
    cut, whole = (sp.reshard(f"f64[b=2 s=5 c=3] on [sp=2]: {way}") for way in ("* -> s@sp", "s@sp -> *"))

    def alone(temb, rows=rows):
        return ((rows * temb.sin()[:, None]).sin() * temb[:, None]).pow(2).sum()

    def by_hand(temb, rows=rows, over=(comm, "sp")):
        e = temb.sin()
        x = ht.split(rows, cut) * ht.share(e, *over)[:, None]
        return (ht.gather(x.sin(), whole) * temb[:, None]).pow(2).sum()

    def close(a, b):
        assert a.shape == b.shape and (a - b).abs().max() <= 1e-12 * (1 + b.abs().max()), (a - b).abs().max()

    def first(function, *given):
        given = [x.clone().requires_grad_() for x in given]
        return torch.autograd.grad(function(*given), given)

    def second(function, *given):
        given = [x.clone().requires_grad_() for x in given]
        slopes = torch.autograd.grad(function(*given), given, create_graph=True)
        return torch.autograd.grad(sum((x ** 3).sum() for x in slopes), given)

    for way in (first, second):
        for got, wanted in zip(way(by_hand, temb, rows), way(alone, temb, rows)):
            close(got, wanted)
    close(first(lambda temb: by_hand(temb, over=(sp,)), temb)[0], first(alone, temb)[0])  # the same by the group
    assert torch.equal(grad(by_hand)(temb), first(by_hand, temb)[0])
    several = torch.stack([temb, 2 * temb])
    close(vmap(grad(by_hand))(several), vmap(grad(alone))(several))
    close(grad(lambda several: vmap(by_hand)(several).sum())(several), vmap(grad(alone))(several))
    value, slope = jvp(by_hand, (temb,), (rows[:, 0],))
    wanted = jvp(alone, (temb,), (rows[:, 0],))
    close(value, wanted[0])
    close(slope, wanted[1])
    compiled = torch.compile(by_hand, fullgraph=True, backend="aot_eager")
    assert torch.equal(first(compiled, temb)[0], first(by_hand, temb)[0])

    assert ht.share(temb, comm) is temb and ht.share(torch.arange(3), comm).tolist() == [0, 1, 2]
    x = torch.full((3,), 1 + 0.5j, dtype=torch.complex128, requires_grad=True)
    (ht.share(x, comm) * (comm.rank + 1)).abs().sum().backward()
    close(x.grad, 10 * torch.sgn(x.detach()))
    x = torch.ones(0, 3, requires_grad=True)
    ht.share(x, comm).sum().backward()
    assert x.grad.shape == (0, 3)
    x = torch.tensor(2.0, dtype=torch.bfloat16, requires_grad=True)
    y = ht.share(x, comm)
    y += 1  # in place, as on any operator's result
    y.backward()
    assert y == 3 and x.grad == 4
    refused(heddle.ArgumentError, "share: the communicator is a str", ht.share, temb, "sp")
    refused(heddle.ArgumentError, "no axis 'tp'", ht.share, temb.requires_grad_(), comm, "tp")
    refused(heddle.ArgumentError, "a str, wanted a tensor", ht.share, "temb", comm)
print("ok")
""", 4)


def test_a_rank_without_rows_goes_on_with_one(tmp_path):
    fork(tmp_path, MODEL + """
class Row(torch.nn.Module):
    '''Fails without rows, as models do: a shape is made of their number.'''
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(4, 4).double(), torch.nn.Linear(4, 4).double()

    def forward(self, layer, x):
        return layer(x).reshape(*x.shape[:3], -1).sin()  # of nothing it is not known

def whole_of(b, t, s):
    return torch.randn(b, t, s, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

def forward(model, x, comm, empty):
    b, t, s, _ = x.shape
    if comm is None:
        x = model(model.first, x)
        return model(model.last, x.transpose(1, 2)).transpose(1, 2)
    to = lambda sides: comm.reshard(f"f64[b={b} t={t} s={s} c=4] on {comm.mesh}: {sides}")
    x = model(model.first, ht.split(x, to("* -> t@sp"), empty=empty))
    x = ht.switch(x, to("t@sp -> s@sp as b,s,t,c"), empty=empty)
    return ht.gather(model(model.last, x), to("s@sp as b,s,t,c -> *"), empty=empty)

def stepped(model, x, *more):
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = forward(model, x, *more)
    (y * torch.arange(y.numel(), dtype=y.dtype).view_as(y).cos()).sum().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]

with heddle.Comm.open() as comm:
    model = Row()
    for shape in ((2, 2, 5), (1, 5, 2), (2, 1, 1), (1, 3, 4), (1, 2, 2)):
        x = whole_of(*shape)
        wanted, got = stepped(model, x, None, None), stepped(model, x, comm, "one")
        ht.reduce_gradients(model.parameters(), sum_over=comm)
        assert far([got[0]], [wanted[0]]) <= 1e-15 and far([got[1]], [wanted[1]]) <= 1e-13, shape
        assert far([p.grad for p in model.parameters()], wanted[2:]) <= 1e-13, shape

    refused(RuntimeError, "", model, model.first, x[:, :0])  # what it is for
    hollow = comm.reshard(f"f64[b=0 t=2 s=5 c=4] on {comm.mesh}: * -> t@sp")
    assert ht.split(whole_of(0, 2, 5), hollow, empty="one").shape == (0, 1, 5, 4)  # of no sample no row

    # All bits there and back, of any dtype; the row that stands for nothing is of ones.
    plan = comm.reshard(f"f32[t=2 s=5] on {comm.mesh}: * -> t@sp")
    back = comm.reshard(f"f32[t=2 s=5] on {comm.mesh}: t@sp -> *")
    for dtype in ht.pooled.DTYPES:
        x = torch.randint(0, 2, (2, 5), generator=torch.Generator().manual_seed(1)).to(dtype)
        y = ht.split(x, plan, empty="one")
        assert y.shape == (1, 5) and y.dtype == dtype and (comm.rank < 2 or torch.equal(y, torch.ones_like(y))), dtype
        assert torch.equal(ht.gather(y, back, empty="one").view(torch.uint8), x.view(torch.uint8)), dtype
    assert ht.split(x, plan).shape[0] == (comm.rank < 2)
    switched = lambda x: ht.switch(ht.split(x * 2, plan, empty="one"), back, empty="one")
    x = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(torch.compile(switched, fullgraph=True, backend="aot_eager")(x), x * 2)
    nothing = comm.reshard(f"f32[t=0 s=5] on {comm.mesh}: t@sp -> *")
    assert ht.gather(x[:0], nothing, empty="one").shape == (0, 5)
    if comm.rank == 2:
        refused(heddle.ArgumentError, "x has the shape (2, 5), rank 2 wants (0, 5)", ht.gather, x, back, empty="one")
    refused(heddle.ArgumentError, "empty is 'two', wanted 'nothing' or 'one'", ht.split, x, plan, empty="two")
    refused(heddle.ArgumentError, "with `out` wanted 'nothing'", ht.switch, x, plan, torch.empty(1, 5), empty="one")

    draw = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(1, 4, 2, 8, generator=draw).requires_grad_() for _ in range(3))
    rows = comm.reshard(f"f32[b=1 h=4 s=2 d=8] on {comm.mesh}: * -> s@sp")
    of = lambda x: ht.split(x, rows, empty="one")
    for method in ("ulysses", "gather-kv", "ring"):
        attended = comm.attention(f"f32[b=1 s=2 h=4 d=8] on {comm.mesh}: s@sp", method)
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        got = ht.attention(of(q), of(k), of(v), attended, empty="one")
        assert (got - of(wanted)).abs().max() <= 1e-6, method
        weights = of(q).detach() * (comm.rank < 2)
        for a, b in zip(torch.autograd.grad((got * weights).sum(), (q, k, v)),
                        torch.autograd.grad((wanted * q.detach()).sum(), (q, k, v))):
            assert (a - b).abs().max() <= 1e-5, method
    linear = comm.linear_attention(f"f32[b=1 s=2 h=4 d=8] on {comm.mesh}: s@sp")
    assert ht.linear_attention(of(q), of(k), of(v), linear, empty="one").shape == (1, 4, 1, 8)
print("ok")
""", 3)


def test_shapes_of_tensors_without_memory(tmp_path):
    fork(tmp_path, MODEL + """
with heddle.Comm.open() as comm:
    to = lambda sides: comm.reshard(f"f32[b=2 t=7 s=5 c=4] on {comm.mesh}: {sides}")
    cut, there, whole = to("* -> t@sp"), to("t@sp -> s@sp"), to("s@sp -> *")
    for x in (torch.randn(2, 7, 5, 4), torch.randn(2, 7, 5, 4).bfloat16(), torch.randn(2, 7, 5, 4, dtype=torch.cfloat)):
        for moved, plan in ((ht.split, cut), (ht.switch, there), (ht.gather, whole)):
            given, x = x.to("meta").requires_grad_(), moved(x, plan)
            y = moved(given, plan)
            assert y.is_meta and (y.shape, y.dtype, y.stride()) == (x.shape, x.dtype, x.stride())
            y.sum().abs().backward()
            assert given.grad.is_meta and given.grad.shape == given.shape
    out = torch.empty(there.dst_shape, device="meta")
    assert ht.switch(torch.empty(there.src_shape, device="meta"), there, out) is out
    refused(heddle.ArgumentError, "on cpu, wanted a dense", ht.switch, torch.empty(there.src_shape, device="meta"),
            there, torch.empty(there.dst_shape))
    refused(heddle.ArgumentError, f"wants {there.src_shape}", ht.switch, torch.empty(2, 2, device="meta"), there)
    x = torch.empty(2, 3, device="meta", requires_grad=True)
    ht.share(x, comm).sum().backward()
    assert x.grad.is_meta

    for dtype in (torch.float32, torch.float16):
        for method in ("ulysses", "gather-kv", "ring"):
            plan = comm.attention(f"f32[b=2 s=9 h=4 d=8] on {comm.mesh}: s@sp", method, kv_heads=2)
            rows = plan.q_shape[1]
            q, k, v = (torch.empty(2, h, rows, 8, dtype=dtype, device="meta", requires_grad=True) for h in (4, 2, 2))
            o = ht.attention(q, k, v, plan)
            assert o.is_meta and o.shape == q.shape and o.dtype == dtype, (method, dtype)
            o.sum().backward()
            assert q.grad.shape == q.shape and v.grad.shape == v.shape
    plan = comm.linear_attention(f"f32[b=2 s=9 h=4 d=8] on {comm.mesh}: s@sp")
    assert ht.linear_attention(*[torch.empty(2, 4, rows, 8, device="meta")] * 3, plan).shape == (2, 4, rows, 8)

    hollow = DiT().to("meta")  # and a model that hooks cut
    ht.parallelize(hollow, {"blocks.0": ht.Split("x", "b s c", "s"), "last": ht.Gather("x", "b s c", "s")}, comm)
    x, t, words = (x.detach().float().to("meta") for x in inputs(7))
    seen = []
    hollow.blocks[1].register_forward_hook(lambda _, args, y: seen.append(y.shape))
    y = hollow(x, t, words)
    y.sum().backward()
    assert y.shape == (2, 7, 3) and seen == [(2, blocks(7, comm.size)[comm.rank + 1] - blocks(7, comm.size)[comm.rank],
                                              8)]
    assert hollow.time.weight.grad.is_meta
print("ok")
""", 3)
