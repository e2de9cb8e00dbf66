"""Blocks with attention over places and over frames: one of the two is switched, there and back, and nothing else."""
import os

import pytest
import torch
from ranks import fork
from test_torch import COMMON
from test_torch_explore_models import WIDTH, Attention, Mlp
from test_torch_explore_once import Block, moved

import heddle.torch as ht
from heddle.torch import Attend, Gather, Split, Sums, Switch
from heddle.torch.exploring.flow import Call, Flow
from heddle.torch.planning.draft import merged


class Both(torch.nn.Module):
    """x[b, f, s, c]"""

    def __init__(self):
        super().__init__()
        self.space, self.time, self.mlp = Attention(), Attention(), Mlp()

    def forward(self, x):
        x = x + self.space(x)
        x = x + self.time(x.transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(x)


class Folded(Both):
    """x[b, f s, c]"""

    def forward(self, x):
        return super().forward(x.unflatten(1, (7, -1))).flatten(1, 2)


class Wrapped(torch.nn.Module):
    """One tensor comes in, three copies of it go on."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, query, key, value):
        rows = (x.flatten(0, 1) for x in (query, key, value))
        return self.inner(*rows, need_weights=False)[0].view_as(query)


class Model(torch.nn.Module):
    def __init__(self, block):
        super().__init__()
        self.first, self.last = torch.nn.Linear(3, WIDTH), torch.nn.Linear(WIDTH, 5)
        self.blocks = torch.nn.ModuleList(block() for _ in range(2))

    def forward(self, x):
        y = self.first(x)
        y = y.flatten(1, 2) if isinstance(self.blocks[0], Folded) else y
        for block in self.blocks:
            y = block(y)
        return self.last(y).reshape(*x.shape[:3], -1)


def explored(block):
    torch.manual_seed(0)
    model, x = Model(block), torch.randn(2, 7, 11, 3)
    return model, x, ht.explore(model, x)


def fewest(ranks):
    """Bytes: of two blocks there and back, and of five channels that every rank has in the end."""
    return 4 * moved(7, 11, ranks) + (ranks - 1) * 2 * 7 * 11 * 5 * 4


@pytest.mark.parametrize("block", (Both, Folded, lambda: Block(Wrapped)))
def test_one_of_the_two_is_switched(block):
    model, x, found = explored(block)
    plan = found.plan(model, "[sp=3]")
    switches = [name for name, step in plan.apart() if isinstance(step, Switch)]
    assert len(switches) == 4 and "Attend" not in str(plan) and plan.proof.bytes_total == fewest(3), str(plan)
    assert [name for name, step in plan.apart() if isinstance(step, Gather)] == ["last"], str(plan)
    for ranks in (2, 4):
        proof = ht.prove(model, plan, x, ranks=ranks)
        assert proof and proof.bytes_total == fewest(ranks) and proof.gradients <= 1e-5, str(proof)
    for without in switches:
        assert not ht.prove(model, [pair for pair in plan.steps if pair[0] != without], x, ranks=2, gradients=False)


def test_a_method_that_is_asked_for_is_taken():
    model, _, found = explored(Both)
    plan = found.plan(model, "[sp=3]", method="ulysses")
    assert [step.method for _, step in plan.apart() if isinstance(step, Attend)] == ["ulysses"] * 2, str(plan)
    assert "Switch" not in str(plan) and plan.proof.bytes_total > fewest(3), str(plan)
    assert "as was asked for" not in plan.why, str(plan)


def test_a_method_that_nothing_has_is_told():
    """Its attention is in plain products, which are switched or whole."""
    model, _, found = explored(Block)
    assert "no attention is by ulysses, as was asked for" in found.plan(model, "[sp=3]", method="ulysses").why
    assert "asked for" not in found.plan(model, "[sp=3]").why


def test_switches_beside_a_machine():
    model, _, found = explored(Both)
    plan = found.plan(model, "[sp=3]", machine="8xh100-nvlink")
    assert plan.proof.bytes_total == fewest(3), str(plan)


def test_steps_of_one_tensor_are_one_and_keep_their_order():
    """Also beside steps of others and of none, and not where a step of one of them stands between."""
    calls = [Call("attend", [], one=[["query", "key", "value"]]), Call("attend", [], one=[["key", "value"]])]
    query, key, value = (Switch(name, "b t c", "t", "b") for name in ("query", "key", "value"))
    both, sums, cut = Switch(("key", "value"), "b t c", "t", "b"), Sums("t"), Split("value", "b t c", "t")
    assert merged([("attend", step) for step in (query, sums, key, value)], Flow(calls)) == [
        ("attend", (query, sums, both))]
    assert merged([("attend", query), ("attend", cut), ("last", cut), ("attend", key), ("attend", value),
                   ("last", cut)], Flow(calls)) == [("attend", (query, cut, both)), ("last", cut)]
    assert merged([("attend", step) for step in (key, cut, value)], Flow(calls)) == [("attend", (key, cut, value))]
    assert merged([("uncalled", step) for step in (key, value)], Flow(calls)) == [("uncalled", (key, value))]


@pytest.mark.parametrize("block", ("Both", "Folded"))
def test_ranks_without_rows_by_processes(tmp_path, block):
    """A plan of more rows, where two ranks of three have no frames, or no places, and then both."""
    fork(tmp_path, COMMON + f"""
import sys
sys.path.append({os.path.dirname(__file__)!r})
from test_torch_explore_both import {block}, explored

model, _, found = explored({block})
plan = found.plan(model, "[sp=3]")
with heddle.Comm.open(deadline_s=60) as comm:
    for frames, places in SHAPES[{block!r}]:
        x = torch.randn(2, frames, places, 3, requires_grad=True)
        def passed():
            model.zero_grad()
            y = model(x)
            (dx,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
            y.square().sum().backward()
            return y.detach(), dx, [p.grad.clone() for p in model.parameters()]
        whole = passed()
        handle = ht.parallelize(model, plan, comm)
        y, dx, _ = passed()
        ht.reduce_gradients(model.parameters(), sum_over=comm)
        # Products of fewer rows have other bits on some CPUs.
        assert torch.allclose(y, whole[0], 1e-5, 1e-6) and torch.allclose(dx, whole[1], 1e-4, 1e-5), (frames, places)
        assert all(torch.allclose(p.grad, q, 1e-4, 1e-4) for p, q in zip(model.parameters(), whole[2]))
        handle.remove()
print("ok", flush=True)
""".replace("SHAPES", "{'Both': ((1, 11), (7, 1), (1, 1), (2, 2)), 'Folded': ((7, 2), (7, 1))}"), 3)
