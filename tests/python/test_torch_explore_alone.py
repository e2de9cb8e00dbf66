"""Attention that does something by itself with the rows that it has: its module has all of them. Plans that go wrong in
a module, which has the whole then. Objects of a call that cannot be copied."""
import copy
import math
import threading

import pytest
import torch
import torch.nn.functional as F
from explore_kit import seeded  # noqa: F401

import heddle
import heddle.torch as ht
from heddle.torch import Attend, Gather
from heddle.torch.exploring.trees import fresh

WIDTH = 16


class Plain(torch.nn.Module):
    """What is asked of rows n: of queries, of scores, of masks."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, bias):
        q, k, v = (y.unflatten(-1, (4, 4)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.out(self.attended(q, k, v, bias).transpose(1, 2).flatten(2))

    def attended(self, q, k, v, bias):
        return F.scaled_dot_product_attention(q, k, v)


class Given(Plain):
    """A mask of all rows with all, which the model made."""

    def attended(self, q, k, v, bias):
        return F.scaled_dot_product_attention(q, k, v, bias)


class Scaled(Plain):
    def attended(self, q, k, v, bias):
        return F.scaled_dot_product_attention(q, k, v, scale=math.log(k.shape[2]) / 4)


class Counted(Plain):
    """The same, by its queries."""

    def attended(self, q, k, v, bias):
        return F.scaled_dot_product_attention(q * math.log(k.shape[2]), k, v)


def slopes(n):
    rows = torch.arange(n)
    away = (rows[:, None] - rows).abs()
    return -away[None, None] * torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]


class Sloped(Plain):
    def attended(self, q, k, v, bias):
        return F.scaled_dot_product_attention(q, k, v, slopes(q.shape[2]))


class SlopedByHand(Plain):
    """Without torch's attention."""

    def attended(self, q, k, v, bias):
        return torch.softmax(q @ k.mT / 2 + slopes(q.shape[2]), -1) @ v


class Block(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.attend, self.up = kind(), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, bias):
        x = x + self.attend(x, bias)
        return x + self.up(x).relu()


class Layers(torch.nn.Module):
    def __init__(self, *kinds):
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.last = torch.nn.ModuleList(map(Block, kinds)), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        bias = slopes(x.shape[1])
        for block in self.blocks:
            x = block(x, bias)
        return self.last(x)


def steps_of(plan):
    return [step for _, steps in plan.steps for step in (steps if isinstance(steps, tuple) else (steps,))]


@pytest.mark.parametrize("kind,alone", (
    (Plain, ""), (Given, ""), (Scaled, "counts its rows"), (Counted, "counts its rows"),
    (Sloped, "makes its mask by itself"), (SlopedByHand, "")))
def test_attention_that_does_something_with_its_rows_has_all_of_them(kind, alone):
    model, x = Layers(Plain, kind), torch.randn(2, 13, WIDTH)
    found = ht.explore(model, x)
    assert [found[f"blocks.{at}.attend"].alone for at in (0, 1)] == ["", alone], str(found)
    assert not alone or f"its attention {alone}" in str(found), str(found)
    plan = found.plan(model, "[sp=3]")
    attends = sum(isinstance(step, Attend) for step in steps_of(plan))
    assert attends == (2 if kind in (Plain, Given) else 1), str(plan)
    for ranks, rows in ((2, 11), (3, 13), (4, 10)):
        proof = ht.prove(model, plan, torch.randn(2, rows, WIDTH), ranks=ranks)
        assert proof, f"{proof}\n{plan}"


@pytest.mark.parametrize("kind,alone", ((Scaled, "counts its rows"), (Sloped, "makes its mask by itself")))
def test_a_schedule_by_which_it_would_have_a_block_is_refused(kind, alone):
    x = torch.randn(2, 13, WIDTH)
    other = ht.explore(Layers(Plain, Plain), x)
    for force in ("blocks.0=s@sp/ulysses;blocks.1=s@sp/ulysses", "blocks.0=*;blocks.1=s@sp/ulysses"):
        schedule = heddle.plan(other.to_yaml(), "[sp=2]", sizes="b=1", methods="", slack_percent=300, force=force)
        assert other.plan(Layers(Plain, Plain), "[sp=2]", schedule=schedule).proof
        model = Layers(Plain, kind)
        with pytest.raises(heddle.UnsupportedError, match=f"'blocks.1.attend' {alone}"):
            ht.explore(model, x).plan(model, "[sp=2]", schedule=schedule)


@pytest.mark.parametrize("kind,alone", ((Scaled, "counts its rows"), (Sloped, "makes its mask by itself")))
def test_lint_says_what_attention_does_with_its_rows(kind, alone):
    x = torch.randn(2, 13, WIDTH)
    plain, model = Layers(Plain, Plain), Layers(Plain, kind)
    plan = ht.explore(plain, x).plan(plain, "[sp=3]")
    faults = ht.lint(model, plan, x)
    assert [fault.module for fault in faults] == ["blocks.1.attend"], faults
    assert alone in str(faults[0]) and "Gather" in faults[0].mend, faults


class Cache:
    """Of what was seen, with a lock, which cannot be copied; or with the result of others."""

    def __init__(self, seen, lock):
        self.seen, self.lock = seen, lock


class Held:
    def __init__(self, cache, lock=None):
        self.cache, self.lock = cache, lock


@pytest.mark.parametrize("lock", (None, threading.Lock(), (at for at in ()), torch.ones(2, requires_grad=True) * 2))
def test_an_object_that_cannot_be_copied_is_copied_but_for_what_cannot(lock):
    cache = Cache([torch.ones(3)], lock)
    args, kwargs = fresh(torch.nn.Module(), (cache, Held(cache, open)), {"other": Held(cache)})
    mine = args[0]
    assert mine is not cache and args[1].cache is mine is kwargs["other"].cache
    mine.seen.append(torch.ones(1))
    mine.seen[0] += 1
    assert len(cache.seen) == 1 and torch.equal(cache.seen[0], torch.ones(3))
    assert mine.lock is lock or torch.equal(mine.lock, lock)


class State:
    """Empty, until a forward fills it."""


class Slotted:
    __slots__ = ("mean",)


class Filling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, state):
        if not hasattr(state, "mean"):
            state.mean = x.mean(1, keepdim=True).detach()
        return self.up(x) + state.mean


class Filled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.last = torch.nn.ModuleList((Filling(), Filling())), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, state):
        for block in self.blocks:
            x = block(x, state)
        return self.last(x)


@pytest.mark.parametrize("kind", (State, Slotted))
def test_an_empty_object_is_filled_by_nobody_and_hides_no_mean(kind):
    model, state = Filled(), kind()
    found = ht.explore(model, torch.randn(2, 7, WIDTH), state)
    assert not hasattr(state, "mean") and found["blocks.0"].dims["s"].kind == "reduction", found.table()


class Stubborn:
    """Raises when it is copied, once what is in it is half a copy."""

    def __init__(self, cache):
        self.cache = cache

    def __deepcopy__(self, memo):
        copy.deepcopy(self.cache, memo).seen.append("half")
        raise ValueError("no")


def test_of_a_copy_that_fails_nothing_stays():
    cache = Cache([torch.ones(3)], None)
    stubborn = Stubborn(cache)
    args, _ = fresh(torch.nn.Module(), (stubborn, cache), {})
    assert args[0] is not stubborn and args[0].cache is args[1] is not cache and len(args[1].seen) == 1
    assert len(cache.seen) == 1


class Rowed(torch.nn.Module):
    """Code that shapes by numbers of the whole."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, frames):
        y = self.first(x).unflatten(1, (frames, -1))
        return x + self.second(y + y.mean(2, keepdim=True)).flatten(1, 2)


class Framed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList((Block(Plain), Block(Plain)))
        self.frames, self.last = torch.nn.ModuleList((Rowed(), Rowed())), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, frames):
        for block, beside in zip(self.blocks, self.frames):
            x = beside(block(x, None), frames)
        return self.last(x)


def test_a_module_in_which_a_plan_goes_wrong_has_the_whole():
    model, x = Framed(), torch.randn(2, 12, WIDTH)
    plan = ht.explore(model, x, 4).plan(model, "[sp=3]")
    assert all(any(isinstance(step, Gather) for step in dict(plan.steps)[f"frames.{at}"]) for at in (0, 1)), str(plan)
    for ranks, rows in ((2, 20), (3, 16), (4, 12)):
        proof = ht.prove(model, plan, torch.randn(2, rows, WIDTH), 4, ranks=ranks)
        assert proof, f"{proof}\n{plan}"


class Adapter(torch.nn.Module):
    """Between blocks, of frames: rows of each are shaped by their number."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, frames):
        y = self.norm(x).unflatten(1, (frames.shape[1], -1)) * frames[:, :, None]
        return self.up(y.flatten(1, 2))


class Adapted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList((Block(Plain), Block(Plain)))
        self.adapters, self.last = torch.nn.ModuleList((Adapter(), Adapter())), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, frames):
        for block, adapter in zip(self.blocks, self.adapters):
            x = block(x, None)
            x = x + adapter(x, frames)
        return self.last(x)


def test_attention_stays_that_of_all_ranks_around_a_module_that_has_the_whole():
    model, given = Adapted(), (torch.randn(2, 12, WIDTH), torch.randn(2, 3, WIDTH))
    plan = ht.explore(model, *given).plan(model, "[sp=3]")
    assert sum(isinstance(step, Attend) for _, step in plan.apart()) == 2, str(plan)
    assert "'adapters.0', 'adapters.1' have the whole" in plan.why, plan.why
    assert ht.prove(model, plan, torch.randn(2, 21, WIDTH), torch.randn(2, 3, WIDTH), ranks=4)


class Joint(torch.nn.Module):
    """Rows of a picture attend to words and to one another, by a mask of both."""

    def __init__(self):
        super().__init__()
        self.q, self.kv, self.out = (torch.nn.Linear(WIDTH, n * WIDTH) for n in (1, 2, 1))

    def forward(self, x, words, mask):
        q, k, v = (y.unflatten(-1, (4, 4)).transpose(1, 2)
                   for y in (self.q(x), *self.kv(torch.cat([words, x], 1)).chunk(2, -1)))
        y = F.scaled_dot_product_attention(q, k, v, mask[:, None, None])
        return x + self.out(y.transpose(1, 2).flatten(2))


class Pictured(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.last = torch.nn.ModuleList((Joint(), Joint())), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, words, hidden):
        mask = torch.cat([hidden, hidden.new_ones(x.shape[:2])], 1)
        for block in self.blocks:
            x = block(x, words, mask)
        return self.last(x)


def test_a_mask_of_words_and_rows_is_whole_on_every_rank():
    model = Pictured()
    given = torch.randn(2, 13, WIDTH), torch.randn(2, 7, WIDTH), torch.arange(14).reshape(2, 7) % 3 > 0
    plan = ht.explore(model, *given).plan(model, "[sp=3]")
    assert plan.proof and "mask" not in str(plan.steps), str(plan)
    assert ht.prove(model, plan, torch.randn(2, 17, WIDTH), *given[1:], ranks=4)


class Heard(torch.nn.Module):
    """Sound by convolutions that make fewer rows, then blocks of these."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.taps = torch.nn.ModuleList((torch.nn.Conv1d(1, WIDTH, 10, 5), torch.nn.Conv1d(WIDTH, WIDTH, 3, 2)))
        self.blocks, self.last = torch.nn.ModuleList((Block(Plain), Block(Plain))), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, sound):
        x = sound[:, None]
        for tap in self.taps:
            x = tap(x).relu()
        x = seen = x.mT
        for block in self.blocks:
            x = block(x, None)
        return self.last(x), seen


def test_stages_with_other_rows_than_the_blocks_stay_whole():
    model, sound = Heard(), torch.randn(1, 400)
    plan = ht.explore(model, sound).plan(model, "[sp=3]")
    assert sum(isinstance(step, Attend) for _, step in plan.apart()) == 2, str(plan)
    assert not any(name.startswith("taps") for name, _ in plan.steps), str(plan)
    assert ht.prove(model, plan, torch.randn(1, 333), ranks=4)


class Twice(torch.nn.Module):
    """One module for rows and for windows of them."""

    def __init__(self):
        super().__init__()
        self.drop, self.up = torch.nn.Dropout(0.1), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.drop(x.unflatten(1, (-1, 4)).flatten(0, 1))
        y = self.up(y + y.mean(1, keepdim=True)).unflatten(0, (x.shape[0], -1)).flatten(1, 2)
        return x + self.drop(y.tanh())


class Windows(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.last = torch.nn.ModuleList((Twice(), Twice())), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def test_a_module_with_two_texts_has_the_whole_with_what_is_around_it():
    model, x = Windows(), torch.randn(2, 12, WIDTH)
    plan = ht.explore(model, x).plan(model, "[sp=3]")
    assert plan.proof and not any("drop" in name for name, _ in plan.steps), str(plan)
    assert ht.prove(model, plan, torch.randn(2, 20, WIDTH), ranks=2)
