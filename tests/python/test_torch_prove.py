"""Plans against the whole model, on ranks that are simulated in one process: right ones, and wrong ones by name."""
import contextlib
import copy
import pathlib

import pytest
import torch
import torch.nn.functional as F
from ranks import fork
from test_torch import COMMON

import heddle
import heddle.torch as ht
from heddle.torch.proving.copies import Copies

WIDTH = 16


class Block(torch.nn.Module):
    """Attention over the rows of [any, rows, c], with a word from outside."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp, self.beside = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, word):
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.mlp(F.gelu(x)) + self.beside(word)[:, None]


class Video(torch.nn.Module):
    """x[b, f, s, c] through blocks over s and over f in turn."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(3, WIDTH), torch.nn.Linear(WIDTH, 5)
        self.space, self.time = (torch.nn.ModuleList(Block() for _ in range(2)) for _ in range(2))

    def forward(self, x, word):
        x = self.first(x)
        b, f, s, c = x.shape
        of_frames, of_places = (word.repeat_interleave(n, 0) for n in (f, s))
        x = x.flatten(0, 1)
        for space, time in zip(self.space, self.time):
            x = space(x, of_frames)
            x = x.reshape(b, -1, *x.shape[1:]).transpose(1, 2).flatten(0, 1)
            x = time(x, of_places)
            x = x.reshape(b, -1, *x.shape[1:]).transpose(1, 2).flatten(0, 1)
        return self.last(x).reshape(b, f, s, -1)


def made():
    torch.manual_seed(0)
    return Video(), dict(x=torch.randn(2, 7, 5, 3), word=torch.randn(2, WIDTH))


def test_a_found_plan_holds_and_says_what_it_sends():
    model, given = made()
    before = copy.deepcopy(model.state_dict())
    found = ht.explore(model, **given)
    plan = found.plan(model, "[sp=3]")
    assert plan.proof and "h is cut in space; w is cut in time" in str(plan), plan
    for ranks in (1, 2, 3, 4, 9):
        proof = ht.prove(model, plan, ranks=ranks, x=torch.randn(1, 9, 8, 3), word=torch.randn(1, WIDTH))
        assert proof and proof.ranks == ranks and proof.forward <= 1e-6, str(proof)
        assert (proof.bytes_total == 0) == (ranks == 1) and proof.gradients <= 1e-5, str(proof)
    unasked = ht.prove(model, plan, gradients=False, x=torch.randn(1, 9, 8, 3), word=torch.randn(1, WIDTH))
    assert unasked and unasked.gradients is None and "gradients not compared" in str(unasked)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items()) and model.training
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Placed(torch.nn.Module):
    """A block that adds positions to its rows by itself, before all that mixes them."""

    def __init__(self):
        super().__init__()
        self.places, self.block = torch.nn.Parameter(torch.randn(20, WIDTH)), Block()

    def forward(self, x, word):
        return self.block(x + self.places[: x.shape[1]], word)


def test_a_plan_that_does_not_hold_is_not_returned():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(Placed() for _ in range(2))

        def forward(self, x, word):
            for layer in self.layers:
                x = layer(x, word)
            return x
    torch.manual_seed(0)
    model, given = Model(), dict(x=torch.randn(2, 7, WIDTH), word=torch.randn(2, WIDTH))
    with pytest.raises(heddle.UnsupportedError) as error:
        ht.explore(model, **given).plan(model, "[sp=2]")
    assert "does not hold on 2 ranks" in str(error.value) and "'layers.0.block" in str(error.value), error.value


def planted(plan):
    """A plan with one fault each, and what must be said of it."""
    steps = dict(plan.steps)

    def without(name, kind, what=None):
        left = [step for step in _tuple(steps[name]) if not (isinstance(step, kind) and what in (None, step.what))]
        return [(each, tuple(left) if each == name else value) for each, value in steps.items() if each != name or left]

    def exchanged(name, old, new):
        return [(each, tuple(new if step == old else step for step in _tuple(value)) if each == name else value)
                for each, value in steps.items()]
    switch = next(step for step in _tuple(steps["space.0"]) if isinstance(step, ht.Switch))
    yield without("last", ht.Gather), "end of a model"
    yield without("space.0", ht.Split, "word"), "space.0"
    yield without("time.0", ht.Split, "word"), "time.0"
    yield without("space.0", ht.Switch), "time.0"
    yield without("time.0", ht.Switch), "space.1"
    yield without("space.0", ht.Split, "x"), "space.0"
    yield exchanged("space.0", switch, ht.Gather(switch.what, switch.dims, switch.from_)), "time.0"
    yield [(name, steps[name]) for name in steps if name != "space.1"], "space.1"


def _tuple(steps):
    return steps if isinstance(steps, tuple) else (steps,)


def test_faults_are_named():
    model, given = made()
    plan = ht.explore(model, **given).plan(model, "[sp=2]")
    count = 0
    for steps, said in planted(plan):
        proof = ht.prove(model, steps, **given)
        assert not proof and said in f"{proof.worst} {proof.why}", (said, str(proof), steps)
        count += 1
    assert count == 8


class Reduced(torch.nn.Module):
    """Wrong by its numbers alone: a mean of the rows that a rank has."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.mean = Mean()

    def forward(self, x):
        return self.last(self.mean(self.norm(x)))


class Mean(torch.nn.Module):
    def forward(self, x):
        return x - x.mean(1, keepdim=True)


def test_the_first_module_whose_result_is_another_is_named():
    model, x = Reduced(), torch.randn(2, 7, WIDTH)
    proof = ht.prove(model, {"norm": ht.Split("input", "b s c", "s"), "last": ht.Gather("output", "b s c", "s")}, x)
    assert not proof and proof.worst == "mean" and "'mean' (Mean) is the first module" in str(proof), str(proof)
    proof = ht.prove(model, {"last": (ht.Split("input", "b s c", "s"), ht.Gather("output", "b s c", "s"))}, x)
    assert proof and proof.bytes_total == (3 - 1) * 2 * 7 * WIDTH * 4, str(proof)


def test_what_is_refused():
    model, given = made()
    found = ht.explore(model, **given)
    x = torch.randn(2, 7, WIDTH)
    for kind, words, call in (
            (heddle.ArgumentError, "the model is a int", lambda: ht.prove(3, {})),
            (heddle.ArgumentError, "ranks is 0", lambda: ht.prove(model, {}, ranks=0, **given)),
            (heddle.ArgumentError, "the mesh is [a=2 b=2]", lambda: found.plan(model, "[a=2 b=2]")),
            (heddle.ArgumentError, "found is of Video, and the model is a Linear",
             lambda: found.plan(torch.nn.Linear(1, 1), "[sp=2]")),
            (heddle.UnsupportedError, "no module of a list", lambda: ht.explore(Reduced(), x).plan(
                Reduced(), "[sp=2]"))):
        with pytest.raises(kind) as error:
            call()
        assert words in str(error.value), error.value
    wrong = ht.prove(model, {"nowhere": ht.Split("x", "b s c", "s")}, **given)
    assert not wrong and "no module of Video is called 'nowhere'" in str(wrong)


def test_a_schedule_is_a_plan_and_a_plan_a_schedule():
    model, given = made()
    found = ht.explore(model, **given)
    plan = found.plan(model, "[sp=3]")
    schedule = found.schedule(model, plan, "[sp=3]")
    assert [stage.layout for stage in schedule.stages] == ["h@sp", "w@sp"] * 2
    assert schedule.bytes_total == plan.schedule.bytes_total and schedule.predicted_s == 0
    assert found.plan(model, "[sp=3]", schedule=schedule).steps == plan.steps
    assert found.schedule(model, plan, "[sp=3]", machine="8xh100-nvlink").predicted_s > 0
    by_hand = [("space.0", (ht.Split("x", "(b f) s c", "f"), ht.Split("word", "(b f) _", "f"),
                            ht.Gather("output", "(b f) s c", "f")))]
    by_hand.insert(0, ("", ht.Sizes("x", "b f s _")))
    mine = found.schedule(model, by_hand, "[sp=3]")
    assert [stage.layout for stage in mine.stages] == ["h@sp", "*", "*", "*"], mine.stages
    for words, call in (("the ranks are [sp=2]", lambda: found.plan(model, "[sp=2]", schedule=schedule)),
                        ("the plan does not run on [sp=3]: ", lambda: found.schedule(model, by_hand[1:], "[sp=3]")),
                        ("wanted one axis", lambda: found.schedule(model, plan, "[a=2 b=2]"))):
        with pytest.raises(heddle.ArgumentError) as error:
            call()
        assert words in str(error.value), error.value


def test_attention_of_all_ranks_in_a_schedule():
    torch.manual_seed(0)
    model, given = Spatial(), dict(x=torch.randn(2, 11, WIDTH), word=torch.randn(2, WIDTH))
    found = ht.explore(model, **given)
    plan = found.plan(model, "[sp=2]", method="ulysses")
    schedule = found.schedule(model, plan, "[sp=2]")
    assert [(stage.layout, stage.method) for stage in schedule.stages] == [("s@sp", "ulysses")], schedule.stages


class Keyed(torch.nn.Module):
    """Attention with a mask: of keys, or another one for every row."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x, mask):
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        mask = mask[:, None, None].expand(-1, -1, x.shape[1], -1) if mask.dim() == 2 else mask
        return x + F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)


class Stacked(torch.nn.Module):
    """Matrices of keys, queries and values in one parameter, as training begins; a convolution; experts."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Parameter(torch.randn(3, WIDTH, WIDTH) * 0.02)
        self.experts = torch.nn.Parameter(torch.randn(2, 7, WIDTH, 4 * WIDTH) * 0.02)
        self.conv, self.wide = torch.nn.Conv2d(WIDTH, WIDTH, 3), torch.nn.Linear(WIDTH, 4 * WIDTH)


def test_every_matrix_of_a_stack_is_shown_by_its_gain():
    torch.manual_seed(0)
    model = Stacked()
    torch.nn.init.normal_(model.wide.weight, std=0.02)
    torch.nn.init.normal_(model.conv.weight, std=0.02)
    mine = Copies(model, (), {}).one()
    for stack in (mine.qkv, mine.experts, mine.wide.weight, mine.conv.weight.flatten(1)):
        gains = [float(matrix.norm()) / len(matrix) ** 0.5 for matrix in stack.detach().reshape(-1, *stack.shape[-2:])]
        assert all(0.9 < gain < 1.1 for gain in gains), gains
    plain = Copies(model, (), {}, is_sharp=False).one()
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters()))


class Hidden(torch.nn.Module):
    def __init__(self, is_by_row=False):
        super().__init__()
        self.blocks, self.last = torch.nn.ModuleList([Keyed(), Keyed()]), torch.nn.Linear(WIDTH, 5)
        self.is_by_row = is_by_row

    def forward(self, x, mask):
        mask = mask[:, None, None] | torch.eye(x.shape[1], dtype=torch.bool) if self.is_by_row else mask
        for block in self.blocks:
            x = block(x, mask)
        return self.last(x)


def hidden(is_by_row=False):
    torch.manual_seed(0)
    return Hidden(is_by_row).double(), dict(x=torch.randn(2, 11, WIDTH, dtype=torch.float64),
                                            mask=torch.arange(22).reshape(2, 11) % 3 > 0)


def test_masks_of_keys_by_ring(tmp_path):
    model, given = hidden()
    found = ht.explore(model, **given)
    assert "methods: [ulysses, gather-kv, ring]" in found.to_yaml()
    model, given = hidden(is_by_row=True)
    found = ht.explore(model, **given)
    assert "methods: [ulysses, gather-kv]," in found.to_yaml()
    with pytest.raises(heddle.ArgumentError) as error:
        found.plan(model, "[sp=3]", method="ring")
    assert "a mask that is not of keys alone" in str(error.value), error.value
    fork(tmp_path, COMMON + f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from test_torch_prove import hidden

with heddle.Comm.open() as comm:
    model, given = hidden()
    plan = ht.explore(model, **given).plan(model, comm.mesh, method="ring")
    whole = model(**given)
    ht.parallelize(model, plan, comm)
    assert (model(**given) - whole).abs().max() <= 1e-9, (model(**given) - whole).abs().max()
print("ok", flush=True)
""", 3)


class Spatial(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.space, self.last = torch.nn.ModuleList([Block()]), torch.nn.Linear(WIDTH, 5)

    def forward(self, x, word):
        return self.last(self.space[0](x, word))


def test_parallelize_takes_a_schedule(tmp_path):
    fork(tmp_path, COMMON + """
from test_torch_prove import made

with heddle.Comm.open() as comm:
    model, given = made()
    one = model(**given)
    refused(heddle.ArgumentError, "wanted heddle.torch.explore(model, ...) before", ht.parallelize, model, heddle.plan(
        "stdit3-xl2", comm.mesh), comm)
    found = ht.explore(model, **given)
    schedule = heddle.plan(found.to_yaml(), comm.mesh, sizes="b=1")
    handle = ht.parallelize(model, schedule, comm)
    assert (model(**given) - one).abs().max() <= 1e-6 and "switch to w@sp" in handle.why, handle.why
    handle.remove()
    refused(heddle.ArgumentError, "has no stage 'space.0'", ht.parallelize, model, heddle.plan(
        "stdit3-xl2", comm.mesh), comm)
    assert torch.equal(model(**given), one) and not model._forward_pre_hooks
print("ok", flush=True)
""", 2)


def test_a_class_that_has_no_plan_by_hand_is_explored(tmp_path):
    fork(tmp_path, COMMON + f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import heddle.diffusers
from test_torch_prove import made

with heddle.Comm.open() as comm:
    model, given = made()
    whole = model(**given)
    refused(heddle.UnsupportedError, "With example=dict", heddle.diffusers.parallelize, model, comm)
    handle = heddle.diffusers.parallelize(model, comm, example=given)
    assert "Video on [sp=2] was explored" in handle.why and "h is cut in space" in handle.why, handle.why
    assert (model(**given) - whole).abs().max() <= 1e-6
    handle.remove()
    refused(Exception, "", heddle.diffusers.parallelize, model, comm, example=dict(given, word=given["x"][:1]))
    assert torch.equal(model(**given), whole) and not model._forward_pre_hooks
print("ok", flush=True)
""", 2)


MODES = {
    "inference": (torch.inference_mode, contextlib.nullcontext), "made there": (torch.inference_mode,) * 2,
    "a device": (lambda: torch.device("meta"), contextlib.nullcontext),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), contextlib.nullcontext),
}


@pytest.mark.parametrize("name", MODES)
def test_modes_of_the_caller_are_those_of_ranks(name):
    within, made_within = MODES[name]
    with made_within():
        torch.manual_seed(0)
        model, given = Hidden(), dict(x=torch.randn(2, 11, WIDTH), mask=torch.arange(22).reshape(2, 11) % 3 > 0)
    with within():
        found = ht.explore(model, **given)
        plan = found.plan(model, "[sp=2]")
        assert plan.proof and ht.prove(model, plan, ranks=2, **given), plan
        assert ht.lint(model, plan, ranks=2, found=found, **given) == []


def test_a_weight_that_is_computed_before_every_call():
    torch.manual_seed(0)
    taps = torch.nn.utils.weight_norm(torch.nn.Conv1d(8, 8, 3, padding=1))
    steps = {"": (ht.Split("input", "b _ s", "s"), ht.Gather("output", "b _ s", "s")),
             "0": ht.Halo("input", "b _ s", "s", 1)}
    proof = ht.prove(torch.nn.Sequential(taps), steps, torch.randn(2, 8, 13), ranks=3)
    assert proof and proof.gradients is not None, proof
