"""torch.compile of switches and of models on several ranks, against the same uncompiled."""
import os
import shutil

import pytest
from ranks import fork
from test_torch import COMMON, MODEL
from test_torch_modules import COMMON as MODULES

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no helpers of its own, which would be forked
import torch._inductor.compile_fx  # once for all ranks


def test_compiled_without_a_break(tmp_path):
    fork(tmp_path, COMMON + MODEL + """
with heddle.Comm.open() as comm:
    layers, plans = model(), plans_of(comm, 2, 7, 5)
    x = torch.randn(2, 7, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted = gradients(layers, x, plans)
    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    got = gradients(layers, x, plans, compiled)
    assert torch.equal(got[0], wanted[0]) and torch.equal(got[1], wanted[1])
    for a, b in zip(got[2], wanted[2]):
        close(a, b)
    for name in ("reshard", "attention", "attention_backward"):  # in the same order on all ranks
        assert torch._higher_order_ops.effects.has_effects(getattr(torch.ops.heddle, name).default)
    there = comm.reshard(f"f32[t=7 s=5] on [sp={comm.size}]: t@sp -> s@sp")
    into = torch.compile(lambda x, out: ht.switch(x + 1, there, out=out) * 2, fullgraph=True, backend="aot_eager")
    x, out = torch.randn(there.src_shape), torch.empty(there.dst_shape)
    assert torch.equal(into(x, out), ht.switch(x + 1, there) * 2) and torch.equal(out, ht.switch(x + 1, there))
    refused(Exception, f"wants {there.src_shape}", into, x[:1], out)  # before anything is moved
    refused(Exception, "wanted a dense", into, x, out[:1])
print("ok")
""", 2)


def test_a_plan_within_breaks_the_graph_and_one_without_is_of_its_extents(tmp_path):
    fork(tmp_path, COMMON + """
def planned(x, t, comm):  # a plan made within, which no graph can hold
    return ht.switch(x * 2, comm.reshard(f"f32[t={t} s=5 c=2] on {comm.mesh}: t@sp -> s@sp")) + 1

with heddle.Comm.open() as comm:
    broken = torch.compile(planned, backend="aot_eager")
    compiled = torch.compile(lambda x, plan: ht.switch(x * 2, plan), fullgraph=True, backend="aot_eager")
    for t in (7, 8):
        x = torch.randn(len(range(comm.rank, t, comm.size)), 5, 2)
        plan = comm.reshard(f"f32[t={t} s=5 c=2] on {comm.mesh}: t@sp -> s@sp")
        assert torch.equal(broken(x, t, comm), planned(x, t, comm))
        assert torch.equal(compiled(x, plan), ht.switch(x * 2, plan))
    refused(Exception, "wants", compiled, x.new_zeros(9, 5, 2), plan)
print("ok")
""", 2)


@pytest.mark.parametrize("ranks,empty", ((2, "one"), (3, "nothing")))
def test_plans_of_other_extents_have_one_graph(tmp_path, ranks, empty):
    """Symbols for extents: compiled once, the same bits as without a compiler, no break."""
    fork(tmp_path, COMMON + f"empty = {empty!r}" + """
class Model(torch.nn.Module):  # text that every rank has, frames, and places of frames
    def __init__(self):
        super().__init__()
        self.space, self.time = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x, plans, empty="nothing"):
        cut, there, back, whole = plans
        x = ht.split(x, cut, empty=empty)
        x = x + self.space(x).softmax(2)
        y = ht.switch(x, there, empty=empty)
        x = ht.switch(y * self.time(y).softmax(1), back, empty=empty)
        return ht.gather(x, whole, empty=empty)

def turned(x, plans, empty):  # complex numbers behind a layer, and dims in another order
    z = torch.view_as_real(ht.switch(torch.complex(model.space(x), x.sin()), *plans, empty=empty)).sum(-1)
    return z.permute(1, 0, 3, 2).contiguous()

def stepped(function, x, *given):
    x = x.clone().requires_grad_()
    if empty == "one":
        torch._dynamo.mark_static(x, (0, 3))  # frames and places alone are symbols
    y = function(x, *given)
    y.backward(torch.arange(y.numel(), dtype=y.dtype).view(y.shape).cos())
    found = [y.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]
    model.zero_grad()
    return found

def compiled_of(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)

def alike(compiled, function, ways, every):
    for b, t, s in every:
        plans = [comm.reshard(f"f32[b={b} t={t} s={s} c=4] on {comm.mesh}: {way}") for way in ways]
        x = torch.randn(plans[0].src_shape, generator=torch.Generator().manual_seed(t))
        for got, wanted in zip(stepped(compiled, x, plans, empty), stepped(function, x, plans, empty)):
            assert torch.equal(got, wanted), (b, t, s)

def graphs():
    made = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return made

with heddle.Comm.open() as comm:
    torch.manual_seed(0)
    model, ways = Model(), ("* -> t@sp", "t@sp -> s@sp", "s@sp -> t@sp", "t@sp -> *")
    every = [(2 if empty == "one" else b, t, s) for b, t, s in ((2, 7, 11), (3, 9, 8), (2, 12, 10), (5, 8, 13))]
    compiled = compiled_of(model)
    alike(compiled, model, ways, every)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    if empty == "one":
        alike(compiled, model, ways, ((2, comm.size - 1, 9),))  # of one length another graph: a rank has nothing
        graphs()
        alike(compiled_of(turned), turned, ["t@sp -> s@sp as t,b,c,s"], every)
        assert graphs() == 1
    graphs()
    there = [comm.reshard(f"f32[t={t} s={s}] on {comm.mesh}: t@sp -> s@sp") for t, s in ((7, 11), (8, 13), (13, 9))]
    into = compiled_of(lambda x, plan, out: ht.switch(x + 1, plan, out=out) * 2)
    for plan in there:
        x, out = torch.randn(plan.src_shape), torch.empty(plan.dst_shape)
        assert torch.equal(into(x, plan, out), ht.switch(x + 1, plan) * 2) and torch.equal(out, ht.switch(x + 1, plan))
    assert graphs() == 1
print("ok")
""", ranks)


MOVED = """
def moved(x, plan):
    return ht.switch(x.sin(), plan).cos()

def made():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]

def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(moved, fullgraph=True, backend="aot_eager", dynamic=True)

def graphs(lines):
    compiled = fresh()
    for line in lines:
        plan = comm.reshard(line)
        x = torch.randn(plan.src_shape)
        assert torch.equal(compiled(x, plan), moved(x, plan)), line
    return made()

def one_each(plans):
    compiled = fresh()
    for again in range(2):  # which compiles nothing more
        for graph, plan in enumerate(plans, 1):
            x = torch.full(plan.src_shape, comm.rank + 0.25, dtype=torch.bfloat16 if "bf16" in plan.line.text
                           else torch.float32)
            y = compiled(x, plan)
            assert y.dtype == x.dtype and torch.equal(y, moved(x, plan)), plan.line.text
            assert made() == (len(plans) if again else graph), (made(), plan.line.text)
"""


def test_blocks_and_communicators_of_several_axes(tmp_path):
    """One graph for nested blocks, and one for each of two communicators of the same extents."""
    fork(tmp_path, COMMON + MOVED + """
with heddle.Comm.open(mesh="[dp=2 sp=2]") as comm:
    nested = [f"f32[t={t} s={s}] on [dp=2 sp=2]: t@dp,t@sp -> s@dp,t@sp as s,t" for t, s in ((11, 7), (13, 9), (17, 8))]
    assert graphs(nested) == 1
    one_each([comm.axis(name).reshard("f32[t=7 s=5] on [n=2]: t@n -> s@n") for name in ("dp", "sp")])
print("ok")
""", 4)


def test_a_graph_is_not_taken_for_a_plan_that_it_does_not_fit(tmp_path):
    """Blocks of lengths of their own, another dtype, another layout."""
    fork(tmp_path, COMMON + MOVED + """
with heddle.Comm.open() as comm:
    own = [f"f32[t={t} s=9] on [n=2]: t@n({t - 3} 3) -> s@n" for t in (11, 13)]
    assert graphs(own) == 2  # lengths are words of the line
    assert graphs([f"f32[t=11 s={s}] on [n=2]: t@n(8 3) -> s@n" for s in (9, 12, 13)]) == 1
    one_each([comm.reshard(f"{dtype}[t=7 s=5] on [n=2]: {way}") for dtype, way in (
        ("f32", "t@n -> s@n"), ("bf16", "t@n -> s@n"), ("f32", "t@n -> s@n as s,t"), ("f32", "t@n -> *"))])
print("ok")
""", 2)


def test_a_graph_that_is_run_within_a_transform_or_while_others_compile(tmp_path):
    """Lines of a compiled graph have their extents beside them, and whoever runs it puts them in."""
    fork(tmp_path, COMMON + """
import itertools

with heddle.Comm.open() as comm:
    plan = comm.reshard(f"f32[t=7 s=5] on {comm.mesh}: t@sp -> s@sp")
    compiled = torch.compile(lambda x: ht.switch(x.sin(), plan).cos(), fullgraph=True, backend="eager", dynamic=True)
    def slope(function):  # whose backward runs within another gradient
        x = torch.randn(plan.src_shape, generator=torch.Generator().manual_seed(comm.rank)).requires_grad_()
        y = function(x).sum()
        return torch.func.grad(lambda z: (z * torch.autograd.grad(y, x)[0].sum()).sum())(torch.ones(3))
    assert torch.equal(slope(compiled), slope(lambda x: ht.switch(x.sin(), plan).cos()))
    x, out = torch.randn(plan.src_shape).double(), torch.empty(plan.dst_shape).double()  # not the plan's own dtype
    wanted, asked = ht.switch(x, plan), torch.compiler.is_compiling
    answers = itertools.chain([True], itertools.repeat(False))  # as another thread's compiler ends
    torch.compiler.is_compiling = lambda: next(answers)
    try:
        ht.switch(x, plan, out=out)
    finally:
        torch.compiler.is_compiling = asked
    assert torch.equal(out, wanted)
print("ok")
""", 2)


def test_a_model_on_several_ranks_compiled(tmp_path):
    fork(tmp_path, MODULES + """
import warnings
plan = {
    "": Sizes("x", "b t _ _"),
    "space.0": [Split("x", "(b t) s c", "s"), Attend("s")],
    "last": [Switch("input", "(b t) s c", "s", "t"), Gather("input", "(b t) s c", "t")],
}

def agree(a, b):
    assert a.shape == b.shape and (a - b).abs().max() <= 1e-12 * (1 + b.abs().max()), (a - b).abs().max()

with heddle.Comm.open() as comm:
    model = Model(heads=4).double()
    model.space, model.time = model.space[:1], model.time[:1]
    given = inputs(2, 7, 5)
    wanted = stepped(model, *given)
    ht.parallelize(model, plan, comm)
    compiled = torch.compile(model, backend="eager")  # where its graph is broken
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Dynamo detected a call to a `functools.lru_cache`")
        got = stepped(compiled, *given)
    exported = torch.export.export(model, tuple(given)).module()
    agree(exported(*given)["y"], wanted[0])
    ht.reduce_gradients(model.parameters(), sum_over=comm)
    for a, b in zip([*got[:3], *(p.grad for p in model.parameters())], wanted):
        agree(a, b)
print("ok")
""", 2)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor wants g++")
def test_compiled_by_inductor(tmp_path):
    fork(tmp_path, f"""
import os
os.environ["TORCHINDUCTOR_CACHE_DIR"] = {str(tmp_path)!r}  # what one rank has compiled the other takes
""" + COMMON + """
import torch._inductor.config
torch._inductor.config.cpp.vec_isa_ok = False  # scalar code: to ask the compiler for more takes longer than the test
torch._inductor.config.cpp_cache_precompile_headers = False

def mixed(x, w, plan):  # of products, for which nothing is compiled by g++: that takes longer than all the rest
    y = ht.switch(x, plan)
    z = ht.switch(x @ w, plan)  # neither knows of the other: only their order tells them apart
    return y @ z.mT

with heddle.Comm.open() as comm:
    plan = comm.reshard(f"f32[t=8 s=6] on {comm.mesh}: t@sp -> s@sp")
    draw = torch.Generator().manual_seed(comm.rank)
    x, w = (torch.randn(shape, generator=draw) for shape in (plan.src_shape, (6, 6)))
    def stepped(function):
        mine = x.clone().requires_grad_()
        y = function(mine, w, plan)
        (y * y).sum().backward()
        return y.detach(), mine.grad
    for got, wanted in zip(stepped(torch.compile(mixed, fullgraph=True)), stepped(mixed)):
        assert (got - wanted).abs().max() <= 1e-5 * (1 + wanted.abs().max())
print("ok")
""", 2)
