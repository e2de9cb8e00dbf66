"""One tensor that a module is given as several arguments is moved once, wherever all ranks have it as one."""
import copy

import pytest
import torch
from ranks import fork
from test_torch import COMMON

import heddle
import heddle.torch as ht
from heddle.torch import Gather, Split, Switch

WIDTH = 16


class Attention(torch.nn.Module):
    """In plain products. The judge of bytes below counts on frames and places alone."""

    def __init__(self, change=None):
        super().__init__()
        self.q, self.k, self.v, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.change = change

    def forward(self, query, key, value):
        if self.change:
            self.change(query)
        return self.out(torch.softmax(self.q(query) @ self.k(key).mT / 4, -1) @ self.v(value))


class Block(torch.nn.Module):
    """x[b, f, s, c] over the places of each frame, then over the frames of each place."""

    def __init__(self, attention=Attention):
        super().__init__()
        self.space, self.time = attention(), attention()

    def forward(self, x):
        x = x + self.attended(self.space, x)
        return x + self.attended(self.time, x.transpose(1, 2)).transpose(1, 2)

    def attended(self, attention, x):
        return attention(x, x, x)


class Copied(Block):
    """Rows of a rank with one frame, or one place, are dense as they are."""

    def attended(self, attention, x):
        dense = x.contiguous()
        return attention(x, dense, dense)


class Twice(Block):
    """With other keys in the second call, which are the values, too."""

    def attended(self, attention, x):
        y = attention(x, x, x)
        words = y.tanh()
        return attention(y, words, words)


class Model(torch.nn.Module):
    def __init__(self, block=Block):
        super().__init__()
        self.blocks = torch.nn.ModuleList(block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def made(block=Block):
    torch.manual_seed(0)
    return Model(block), torch.randn(2, 7, 11, WIDTH)


def switched(plan):
    """The arguments that are."""
    return [step.what for name, step in plan.apart() if name.startswith("blocks.0.") and step.what != "output"]


def apart(plan):
    """The same plan, each argument by itself."""
    return [(name, tuple(copy.copy(step).__class__(**{**vars(step), "what": what}) for step in (
        steps if isinstance(steps, tuple) else (steps,)) for what in (
            step.what if isinstance(step.what, tuple) else (step.what,)))) for name, steps in plan.steps]


def moved(frames, places, ranks):
    """Bytes of a switch between blocks of frames and blocks of places: all that does not stay where it is."""
    def lengths(n):
        return [n // ranks + (rank < n % ranks) for rank in range(ranks)]
    return 2 * WIDTH * 4 * (frames * places - sum(a * b for a, b in zip(lengths(frames), lengths(places))))


def test_one_tensor_is_moved_once():
    model, x = made()
    plan = ht.explore(model, x).plan(model, "[sp=3]")
    assert switched(plan) == [("query", "key", "value")] and "4 by Switch" in plan.why, str(plan)
    for frames, rows, ranks in ((7, 11, 3), (6, 4, 2), (3, 9, 4)):
        given = torch.randn(2, frames, rows, WIDTH)
        once, each = (ht.prove(model, steps, given, ranks=ranks) for steps in (plan, apart(plan)))
        assert once and each and once.is_same_bits and once.gradients <= 1e-5, (str(once), str(each))
        gather = next(move.bytes_total for move in once.moves if move.what.endswith("-> *"))
        assert once.bytes_total - gather == 4 * moved(frames, rows, ranks), str(once)
        assert each.bytes_total - gather == 8 * moved(frames, rows, ranks), str(each)
    words = str(plan)
    steps = eval(words[words.index("{"): words.rindex("}") + 1], vars(ht))
    assert list(steps.items()) == plan.steps, "it is not read back as it was written"


def test_arguments_that_are_one_tensor_in_some_calls_alone():
    model, x = made(Twice)
    plan = ht.explore(model, x).plan(model, "[sp=3]")
    assert switched(plan) == ["query", ("key", "value")] and plan.proof.gradients <= 1e-5, str(plan)


def test_copies_are_no_one_tensor():
    model, x = made(Copied)
    found = ht.explore(model, x)
    seen = {call.module: call.one for call in found.flow.calls}
    assert seen["blocks.1.space"] == [["query", "key", "value"]], seen
    assert seen["blocks.1.time"] == [["query"], ["key", "value"]], seen
    assert found.plan(model, "[sp=2]").proof.is_same_bits


@pytest.mark.parametrize("change,is_planned", ((lambda x: x.mul_(2), False), (lambda x: x, True)))
def test_a_module_that_writes_to_what_it_is_given(change, is_planned):
    """It writes to what its model goes on with: a rank would write to what was moved."""
    model, x = made(lambda: Block(lambda: Attention(change)))
    model.requires_grad_(False)
    steps = {"blocks.*.time": (Switch(("query", "key", "value"), "b s f _", "f", "s"),
                               Switch("output", "b s f _", "s", "f")),
             "": (Split("x", "b f s _", "f"), Gather("output", "b f s _", "f"))}
    proof = ht.prove(model, steps, x)
    assert bool(proof) == is_planned and (is_planned or proof.worst.endswith("time") or "blocks" in proof.worst), proof
    if not is_planned:
        found = ht.explore(model, x)
        with pytest.raises(heddle.UnsupportedError):
            found.plan(model, "[sp=3]")


def test_tensors_that_are_others_are_moved_each(tmp_path):
    """Also where they are one on some ranks alone; nobody waits, and gradients are the sums of all uses."""
    fork(tmp_path, COMMON + """
import copy
import sys
sys.path.insert(0, os.path.join(os.environ["HEDDLE_SOURCE"], "tests", "python"))
from test_torch_explore_once import Block, Copied, Model, Twice, moved
from heddle.torch import Gather, Split, Switch

torch.manual_seed(0)
with heddle.Comm.open() as comm:
    for block, frames, tensors in ((Block, 5, 1), (Copied, 4, 2), (Copied, 7, 2), (Twice, 5, 3)):
        torch.manual_seed(0)
        one = Model(block)
        many = copy.deepcopy(one)
        steps = {"": (Split("x", "b f s _", "f"), Gather("output", "b f s _", "f")),
                 "blocks.*.time": (Switch(("query", "key", "value"), "b s f _", "f", "s"),
                                   Switch("output", "b s f _", "s", "f"))}
        handle = ht.parallelize(many, steps, comm)
        x = torch.randn(2, frames, 11, 16)
        given = [x.clone().requires_grad_() for _ in range(2)]
        results, sent = [], 0
        for model, mine in zip((one, many), given):
            before = sum(plan.info().measured_bytes_sent for plan in comm._plans.values())
            y = model(mine)
            sent = sum(plan.info().measured_bytes_sent for plan in comm._plans.values()) - before
            (y * torch.linspace(0, 1, y.numel()).view_as(y)).sum().backward()
            results.append(y.detach())
        ht.reduce_gradients(many.parameters(), sum_over=comm)
        handle.remove()
        assert torch.equal(*results) or (results[0] - results[1]).abs().max() < 1e-5
        for a, b in zip((given[0], *one.parameters()), (given[1], *many.parameters())):
            away, largest = (a.grad - b.grad).abs().max(), max(float(a.grad.abs().max()), 1e-2)
            assert away <= 1e-4 * largest, (away, largest)
        outs = 2 if block is Twice else 1
        every = sum(int(word) for word in comm.allgather(f"{sent:20d}".encode()))
        gathered = (comm.size - 1) * x.numel() * 4
        assert every - gathered == 2 * (tensors + outs) * moved(frames, 11, comm.size), (block, every, gathered)
print("ok", flush=True)
""", 3)


def test_an_argument_that_is_none_on_one_rank_is_told_to_all(tmp_path):
    fork(tmp_path, COMMON + """
from heddle.torch import Gather, Split, Switch

class Optional(torch.nn.Module):
    def forward(self, query, key=None):
        return query

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Optional()

    def forward(self, x):
        return self.inner(x, None if at == where else x)

with heddle.Comm.open(deadline_s=20) as comm:
    at, model, x = comm.rank, Model(), torch.randn(2, 6, 4, 3)
    ht.parallelize(model, {"inner": (Split("query", "b f s _", "f"), Split("key", "b f s _", "f"),
                                     Switch(("query", "key"), "b f s _", "f", "s"),
                                     Gather("output", "b f s _", "s"))}, comm)
    where = None
    assert torch.equal(model(x), x)
    for where in (0, 1):
        refused(heddle.MismatchError, f"'inner' (Optional): Switch('key', 'b f s _', 'f', 's'): 'key' is None on rank "
                f"{where} and not on rank {1 - where}", model, x)
print("ok", flush=True)
""", 2)


def test_what_is_refused():
    model, x = made()
    for step, words in ((Switch(("query", "query"), "b s f _", "f", "s"), "wanted several arguments, each once"),
                        (Switch(("query",), "b s f _", "f", "s"), "wanted several arguments, each once"),
                        (Gather(("query", "output"), "b s f _", "f"), "wanted several arguments, each once"),
                        (Gather(("query", "word"), "b s f _", "f"), "has no argument 'word': query, key, value"),
                        (Split(("query", "key"), "b s f _", "f"), "wanted an argument's name or 'output'")):
        proof = ht.prove(model, {"blocks.0.time": step}, x)
        assert not proof and words in proof.why, str(proof)
