"""Rows of neighbours, sums of all ranks and numbers of rows: random models on simulated ranks and on real ones, against
the whole model."""
import random

import pytest
import torch
import torch.nn.functional as F
from ranks import fork
from test_torch import COMMON

import heddle
import heddle.torch as ht
from heddle.torch import Gather, Halo, Numbered, Split, Sums

CONVOLUTIONS = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d, 3: torch.nn.Conv3d}


class One(torch.nn.Module):
    """A module alone, which nothing hides."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def drawn(draw):
    """A convolution of some kind, the reach that it is known to have, and an x."""
    ndim, taps, wide = draw.choice([1, 2, 3]), draw.choice([1, 3, 5]), draw.choice([1, 2])
    reach, mode = wide * (taps // 2), draw.choice(["zeros", "replicate", "reflect"])
    axis, extents = draw.randrange(ndim), [draw.randint(3, 5) for _ in range(ndim)]
    extents[axis] = draw.randint(max(2, reach + 1), 12)
    pad = tuple(reach if at == axis else 0 for at in range(ndim))
    if mode == "reflect":  # which wants the rows that it reflects, of a part, too
        extents[axis] = draw.randint(8, 14)
    conv = CONVOLUTIONS[ndim](2, 4, tuple(taps if at == axis else 1 for at in range(ndim)), padding=pad,
                              padding_mode=mode, dilation=tuple(wide if at == axis else 1 for at in range(ndim)))
    words = ["b", "_", *("s" if at == axis else "_" for at in range(ndim))]
    return conv, reach, mode, " ".join(words), torch.randn(draw.randint(1, 2), 2, *extents)


def test_random_convolutions():
    draw = random.Random(3)
    for turn in range(24):
        torch.manual_seed(turn)
        conv, reach, mode, dims, x = drawn(draw)
        ranks = draw.choice([2, 3]) if mode == "reflect" else draw.choice([1, 2, 3, 4, 7, 13])
        plan = {"inner": (Split("input", dims, "s"), Halo("input", dims, "s", reach), Gather("output", dims, "s"))}
        proof = ht.prove(One(conv), plan, x, ranks=ranks)
        assert proof, (turn, conv, x.shape, ranks, str(proof))
        if turn % 4 == 0 and reach and x.shape[dims.split().index("s")] > ranks > 1:  # else the ends alone would do
            fewer = {"inner": (Split("input", dims, "s"), Halo("input", dims, "s", reach - 1),
                               Gather("output", dims, "s"))}
            assert not ht.prove(One(conv), fewer, x, ranks=ranks, gradients=False), (turn, conv, x.shape, ranks)


class Net(torch.nn.Module):
    """Norms, a stride and an upsampling, numbers of rows, and a convolution that looks back alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.GroupNorm(2, 8)
        self.down, self.up = torch.nn.Conv2d(8, 8, 3, stride=2, padding=1), torch.nn.Upsample(scale_factor=2)
        self.back = Back()
        self.places, self.other = Places(), torch.nn.InstanceNorm2d(8, affine=True)
        self.last = torch.nn.Conv2d(8, 4, 5, padding=2)

    def forward(self, x):
        x = F.silu(self.norm(self.first(x)))
        x = self.other(self.places(self.back(x + self.up(self.down(x)))))
        return self.last(x)


class Back(torch.nn.Module):
    """Causal along rows."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(8, 8, (3, 1))

    def forward(self, x):
        return self.conv(F.pad(x, (0, 0, 2, 0)))


class Places(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(40, 1))

    def forward(self, x):
        return x + self.table[: x.shape[2]]


NET = {
    "first": (Split("input", "b _ (h 2) w", "h"), Halo("input", "b _ (h 2) w", "h", 1)),
    "norm": Sums("h"),
    "down": Halo("input", "b _ (h 2) w", "h", 2, 0, out_dims="b _ h _"),
    "back": Halo("x", "b _ (h 2) w", "h", 2, 0),
    "places": Numbered("x", "b _ (h 2) w", "h"),
    "other": Sums("h"),
    "last": (Halo("input", "b _ (h 2) w", "h", 2), Gather("output", "b _ (h _) w", "h")),
}


def test_a_pyramid_on_simulated_ranks():
    for h, ranks in ((14, 3), (6, 4), (4, 7)):
        proof = ht.prove(Net(), NET, torch.randn(2, 3, h, 6), ranks=ranks)
        assert proof and proof.bytes_total > 0, (h, ranks, str(proof))
    for pattern in ("first", "down", "places", "norm"):
        kept = [step for step in (NET[pattern] if isinstance(NET[pattern], tuple) else [NET[pattern]])
                if isinstance(step, (Split, Gather))]
        proof = ht.prove(Net(), {**NET, pattern: kept}, torch.randn(2, 3, 12, 6), ranks=3, gradients=False)
        assert not proof and proof.worst.startswith(pattern), (pattern, str(proof))


def test_the_plan_is_found():
    model, x = Net(), torch.randn(2, 3, 12, 8)
    found = ht.explore(model, x)
    plan = found.plan(model, "[sp=3]")
    assert plan.proof.bytes_total <= ht.prove(model, NET, x, ranks=3, gradients=False).bytes_total, str(plan)
    assert all(word in str(plan) for word in ("h is cut", "Halo", "Sums", "Numbered")) and "whole" not in plan.why
    assert ht.prove(model, plan, torch.randn(1, 3, 10, 4), ranks=4)
    assert ht.lint(model, plan, x, found=found) == []


def test_bytes_are_those_of_the_rows_that_are_reached():
    conv = One(torch.nn.Conv1d(2, 4, 5, padding=2))
    plan = {"inner": (Split("input", "b c s", "s"), Halo("input", "b c s", "s", 2), Gather("output", "b o s", "s"))}
    moves = {move.what: move.bytes_total for move in ht.prove(conv, plan, torch.randn(1, 2, 13), ranks=3).moves}
    assert moves == {"f32[e=4 c=2] on [sp=3]: e@sp(2 2 0) -> e@sp(0 2 2)": 32,
                     "f32[e=4 c=2] on [sp=3]: e@sp(0 2 2) -> e@sp(2 2 0)": 32,
                     "f32[b=1 o=4 s=13] on [sp=3]: s@sp -> *": 13 * 4 * 4 * 2}, moves


def test_norms_of_rows_with_a_large_mean():
    for kind in (torch.nn.GroupNorm(2, 8), torch.nn.InstanceNorm1d(8)):
        model, x = One(kind), torch.randn(2, 8, 11) + torch.linspace(0, 3000, 11)
        whole = kind.double()(x.double()).float()
        plan = {"inner": (Split("input", "b c s", "s"), Sums("s"), Gather("output", "b c s", "s"))}
        for ranks in (2, 4, 12):
            assert ht.prove(model.float(), plan, x, ranks=ranks), (kind, ranks)
        assert (kind.float()(x) - whole).abs().max() < 1e-4  # which the ranks are beside
    x = torch.randn(1, 8, 9, dtype=torch.bfloat16)
    plan = {"inner": (Split("input", "b c s", "s"), Sums("s"), Gather("output", "b c s", "s"))}
    assert ht.prove(One(torch.nn.GroupNorm(4, 8).bfloat16()), plan, x, ranks=2)
    assert ht.prove(One(torch.nn.BatchNorm1d(8).eval()), plan, torch.randn(2, 8, 9), ranks=2)  # of what it has learned


class Chain(torch.nn.Module):
    """x[b, c, s] through blocks: convolutions of 5 taps and of 3, and a norm of 2 groups."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList([
            torch.nn.Sequential(torch.nn.Conv1d(8, 8, 5, padding=2), torch.nn.SiLU(),
                                torch.nn.Conv1d(8, 8, 3, padding=1)), torch.nn.GroupNorm(2, 8)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_the_planner_counts_what_the_steps_send():
    model, x = Chain(), torch.randn(1, 8, 11)
    found = ht.explore(model, x, dims={"x": "b c s"})
    plan = found.plan(model, "[sp=3]")
    assert "window: 3, methods: [halo]" in found.to_yaml() and "heads: 2, methods: [sums]" in found.to_yaml()
    assert "s is cut" in plan.why, str(plan)
    schedule = heddle.plan(found.to_yaml(), "[sp=3]", force="blocks.0=s@sp/halo;blocks.1=s@sp/sums", methods="")
    sent = [sum(move.bytes_total for move in plan.proof.moves if move.module.startswith(name)) for name in
            ("blocks.0", "blocks.1")]
    assert [stage.forward_bytes_total for stage in schedule.stages] == sent and all(sent), (schedule.stages, sent)


class Over(torch.nn.Module):
    """x[b, f, h, c] through norms over h and c, over f h and c, and over channels alone."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.first, self.last = kind, torch.nn.Linear(6, 4), torch.nn.Linear(4, 5)
        self.rows, self.all, self.channels = (self.made(*shape) for shape in ((7, 4), (3, 7, 4), (4,)))
        for p in self.parameters():
            torch.nn.init.normal_(p, 0.5)

    def made(self, *shape):
        return torch.nn.LayerNorm(shape) if self.kind == "layer" else torch.nn.RMSNorm(shape)

    def forward(self, x):
        return self.last(self.channels(self.all(self.rows(F.gelu(self.first(x))))))


@pytest.mark.parametrize("kind", ("layer", "rms"))
def test_norms_whose_weights_have_the_rows(kind):
    model, x = Over(kind), torch.randn(2, 3, 7, 6) + 3
    plan = {"first": Split("input", "b f h c", "h"), "rows": Sums("h"), "all": Sums("h"),
            "last": Gather("output", "b f h o", "h")}
    for ranks in (1, 2, 4, 9):
        proof = ht.prove(model, plan, x, ranks=ranks)
        assert proof and proof.forward < 1e-5, (ranks, str(proof))
    for lost in ("rows", "all"):
        proof = ht.prove(model, {name: step for name, step in plan.items() if name != lost}, x, ranks=2)
        assert not proof and lost in str(proof), str(proof)
    proof = ht.prove(model, {**plan, "channels": Sums("h")}, x, ranks=2)
    assert not proof and "called no group_norm" in proof.why, str(proof)  # it has what it is over
    found = ht.explore(model, x, dims={"x": "b f h c"})
    assert found["rows"].dims["h"].kind == found["all"].dims["h"].kind == "reduction", found.table()
    mine = found.plan(model, "[sp=3]")
    assert mine.proof and "Sums('" in str(mine) and "Gather('input'" not in str(mine), str(mine)
    proof = ht.prove(model.bfloat16(), plan, x.bfloat16(), ranks=3, gradients=False)
    assert proof, str(proof)


class Window(torch.nn.Module):
    """Attention of x[b, rows, c] within windows of `size` rows, which begin `shift` rows later."""

    def __init__(self, size, shift):
        super().__init__()
        self.size, self.shift, self.qkv = size, shift, torch.nn.Linear(8, 24)

    def forward(self, x):
        b, rows, _ = x.shape
        at = (torch.arange(rows) - self.shift) % rows // self.size  # windows of rolled rows, the last two of them one
        apart = torch.roll((torch.arange(rows) < self.shift).long(), 0) if self.shift else torch.zeros(rows).long()
        q, k, v = (y.unflatten(2, (2, 4)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        seen = (at[:, None] == at) & (apart[:, None] == apart)
        return x + F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2)


class Windows(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Window(4, shift) for shift in (0, 2, 0, 2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


WINDOWS = [("blocks.0", Split("x", "b (s 4) c", "s")),
           *((f"blocks.{at}", Halo("x", "b (s 4) c", "s", 4)) for at in (1, 3)),
           ("blocks.3", Gather("output", "b (s 4) c", "s"))]


def test_windows():
    plan = [*WINDOWS[:2], ("blocks.3", (WINDOWS[2][1], WINDOWS[3][1]))]
    for windows, ranks in ((7, 3), (3, 4)):
        proof = ht.prove(Windows(), plan, torch.randn(2, 4 * windows, 8), ranks=ranks)
        assert proof, (windows, ranks, str(proof))
    without = [plan[0], ("blocks.3", WINDOWS[3][1])]
    proof = ht.prove(Windows(), without, torch.randn(2, 24, 8), ranks=2)
    assert not proof and proof.worst == "blocks.1", str(proof)


REAL = COMMON + """
import sys
sys.path.insert(0, FOLDER)
from test_torch_halo import NET, Net, Windows, WINDOWS

def judged(made, plan, x, comm):
    whole, mine = made().double(), made().double()
    results = []
    for model in (whole, mine):
        handle = ht.parallelize(model, plan, comm) if model is mine else None
        given = x.double().requires_grad_()
        y = model(given)
        (y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
        if handle:
            ht.reduce_gradients(model.parameters(), sum_over=comm)
            with torch.no_grad():
                again = model(given)
            assert torch.equal(again, y)
            handle.remove()
        results.append([y.detach(), given.grad, *(p.grad for p in model.parameters())])
    for a, b in zip(*results):
        assert (a - b).abs().max() <= 1e-10 * max(float(b.abs().max()), 1.0), (a - b).abs().max()

with heddle.Comm.open() as comm:
    torch.manual_seed(1)
    for h in (10, 4):
        judged(Net, NET, torch.randn(2, 3, h, 6), comm)
    judged(Windows, [*WINDOWS[:2], ("blocks.3", (WINDOWS[2][1], WINDOWS[3][1]))], torch.randn(1, 20, 8), comm)
print("ok")
"""


@pytest.mark.parametrize("ranks", (2, 3, 4))
def test_on_ranks(tmp_path, ranks):
    import pathlib
    fork(tmp_path, REAL.replace("FOLDER", repr(str(pathlib.Path(__file__).parent))), ranks)


def test_what_is_refused():
    x = torch.randn(2, 3, 12, 6)
    for plan, words in (
            ({"first": Halo("input", "b c h w", "h", -1)}, "before is -1, wanted a number of rows"),
            ({"first": Halo("input", "b c h w", "s", 1)}, "has no dim 's'"),
            ({"first": Halo("output", "b c h w", "h", 1)}, "wanted an argument and an output"),
            ({"first": (Split("input", "b _ h w", "h"), Halo("input", "b _ h w", "h", 1, out="input"))},
             "wanted an argument and an output"),
            ({"first": (Split("input", "b _ h w", "h"), Halo("input", "b _ h w", "h", 1, out_dims="b h w"))},
             "the result has the shape"),
            ({"first": (Split("input", "b _ h w", "h"), Halo("input", "b _ h w", "h", 1)),
              "down": Halo("input", "b _ h w", "h", 1, 0, out_dims="b _ h _")}, "wanted as many of each"),
            ({"first": Split("input", "b _ (h 5) w", "h")}, "which does not say what h is beside"),
            ({"first": (Split("input", "b _ h w", "h"), Sums("h"))}, "called no group_norm"),
            ({"first": Split("input", "b _ h w", "h"), "norm": (Sums("h"), Sums("h"))}, "has a step Sums already")):
        proof = None
        try:
            proof = ht.prove(Net(), plan, x, ranks=3)
        except heddle.Error as error:
            assert words in str(error), (plan, error)
        assert proof is None or not proof and words in proof.why, (plan, str(proof))
