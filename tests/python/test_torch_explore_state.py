"""What a forward writes to, in the model or in what the caller gives, is after exploring as it was before."""
import array
import collections
import copy
import dataclasses
import functools
import random
import sys
import types

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch._ops import DispatchKey, HigherOrderOperator
from explore_kit import seeded  # noqa: F401

import heddle
import heddle.torch as ht
from heddle.torch.exploring.kept import written_by

WIDTH = 8
OPERATORS = torch.library.Library("heddle_tests", "DEF")
OPERATORS.define("filled(Tensor(a!) x) -> ()")
OPERATORS.impl("filled", lambda x: (x.fill_(0.1), None)[1], "CPU")


class Attending(torch.nn.Module):
    """With a state, which `touch` changes."""

    def __init__(self, state):
        super().__init__()
        self.qkv, self.last, self.state = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH), state

    def forward(self, x):
        TOUCH[type(self.state)](self, x)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return x + self.last(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Model(torch.nn.Module):
    def __init__(self, block):
        super().__init__()
        self.blocks, self.last = torch.nn.ModuleList([block]), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Counting:
    def __init__(self):
        self.seen, self.count, self.sums = [], 0, torch.zeros(2)


class Slotted:
    __slots__ = ("seen", "count", "sums")
    __init__ = Counting.__init__


@dataclasses.dataclass(frozen=True)
class Frozen:
    seen: list = dataclasses.field(default_factory=list)


class Listing(list):
    pass


class Ordered(collections.OrderedDict):
    pass


def counting(module, _):
    module.state.seen.append(1)
    module.state.sums += 1
    module.state.count += 1


def counter():
    count, seen = 0, []

    def count_one(add=True):
        nonlocal count
        if add:
            count += 1
            seen.append(1)
        return count, len(seen)
    return count_one


#: what a forward does to a state of that type
TOUCH = {
    type(None): lambda *_: None,
    Counting: counting, Slotted: counting,
    types.SimpleNamespace: counting,
    Frozen: lambda module, x: module.state.seen.append(x),
    list: lambda module, x: module.state[0].add_(1),
    Listing: lambda module, x: module.state.append(x),
    tuple: lambda module, x: (module.state[0].append(x), module.state[1].add(x.shape[1])),
    dict: lambda module, x: module.state.setdefault(x.shape[1], [0]).append(x),
    Ordered: lambda module, x: (module.state.move_to_end("a"), module.state.update({"b": x})),
    collections.UserDict: lambda module, x: module.state.update({x.shape[1]: x}),
    collections.Counter: lambda module, x: module.state.update([x.shape[1]]),
    collections.deque: lambda module, x: module.state.append(x.shape[1]),
    bytearray: lambda module, x: module.state.extend(b"x"),
    array.array: lambda module, x: module.state.append(1),
    torch.Tensor: lambda module, x: setattr(module.state, "data", module.state.new_full((x.shape[1],), 3.0)),
    numpy.ndarray: lambda module, x: numpy.add(module.state, 1, out=module.state),
    torch.Generator: lambda module, x: torch.rand(1, generator=module.state),
    numpy.random.Generator: lambda module, x: module.state.random(),
    numpy.random.RandomState: lambda module, x: module.state.rand(),
    random.Random: lambda module, x: module.state.random(),
    types.FunctionType: lambda module, x: module.state(),
    functools.partial: lambda module, x: module.state(x),
    types.BuiltinMethodType: lambda module, x: module.state(x),
    str: lambda module, x: WRITES[module.state](module, x),
}


def grow(module, x):
    """A table of angles, for as many rows as there ever were."""
    if len(module.table) < x.shape[1]:
        module.table = torch.arange(x.shape[1]) * 1.0


#: what a forward writes to in the module itself
WRITES = {
    "a table": grow,
    "a buffer": lambda module, x: module.buffer.add_(1),
    "a buffer's memory": lambda module, x: setattr(module.buffer, "data", torch.ones(x.shape[1])),
    "a longer buffer": lambda module, x: module.buffer.resize_(x.shape[1] + 9),
    "a parameter": lambda module, x: module.weight.add_(1),
    "a parameter's data": lambda module, x: module.weight.data.add_(1),
    "a parameter's memory": lambda module, x: setattr(module.weight, "data", module.weight.data + 1),
    "both": lambda module, x: (module.weight.data.add_(1), setattr(module.weight, "data", module.weight.data + 1)),
    "a parameter of a module in it": torch.no_grad()(lambda module, x: module.last.weight.clamp_(-0.05, 0.05)),
    "its data": lambda module, x: module.last.weight.data.fill_(0.1),
    "a part of it": lambda module, x: module.last.weight.__setitem__(0, 1.0),
    "it in place": lambda module, x: module.last.weight.__itruediv__(module.last.weight.clone()),
    "it as a result": lambda module, x: torch.full((WIDTH, WIDTH), 0.1, out=module.last.weight.detach()),
    "by its name": lambda module, x: torch.nn.init.constant_(tensor=module.last.weight, val=0.1),
    "by an operator": lambda module, x: torch.ops.heddle_tests.filled(module.last.weight.detach()),
    "in place of a result": torch.no_grad()(lambda module, x: F.relu(module.last.weight, inplace=True)),
    "several of them": lambda module, x: torch._foreach_clamp_max_(list(module.last.parameters()), 0.05),
    "a gradient": lambda module, x: setattr(module.weight, "grad", torch.ones(2)),
    "whether there is one": lambda module, x: module.weight.requires_grad_(False),
    "a mode": lambda module, x: module.last.train(not module.last.training),
    "a new module": lambda module, x: setattr(module, "more", torch.nn.Linear(2, 2)),
    "a new buffer": lambda module, x: module.register_buffer("more", torch.ones(2)),
    "a hook": lambda module, x: module.last.register_forward_hook(lambda *_: None),
    "a hidden module": lambda module, x: module.hidden[0](x.flatten(0, 1)),
    "its class": lambda module, x: (Written.rows.append(x), setattr(Written, "calls", Written.calls + 1)),
}


class Written(Attending):
    rows, calls = [], 0

    def __init__(self, state):
        super().__init__(state)
        self.weight, self.table = torch.nn.Parameter(torch.ones(2)), torch.ones(1)
        self.register_buffer("buffer", torch.zeros(2))
        self.hidden = [torch.nn.BatchNorm1d(WIDTH)]


def shown(value):
    """All that can be told of a state."""
    if isinstance(value, torch.Tensor):
        return value.detach().tolist(), value.requires_grad, value.is_leaf and shown(value.grad)
    if isinstance(value, torch.nn.Module):
        return [(name, sorted(vars(each)), each.training, len(each._forward_hooks), getattr(each, "rows", 0), getattr(
            each, "calls", 0), [shown(x) for x in (*each.parameters(False), *each.buffers(False))], shown(
                [part for key, part in vars(each).items() if key in ("state", "table", "hidden")]))
                for name, each in value.named_modules()]
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, numpy.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, (random.Random, numpy.random.RandomState)):
        return str(value.getstate() if isinstance(value, random.Random) else value.get_state())
    if isinstance(value, types.FunctionType):
        return value(False)
    if isinstance(value, (Counting, Slotted, types.SimpleNamespace)):
        return shown([value.seen, value.count, value.sums])
    if isinstance(value, (functools.partial, types.BuiltinMethodType, Frozen)):
        return shown(value.args[0] if hasattr(value, "args") else getattr(value, "__self__", None) or [0] * len(
            getattr(value, "seen", ())))
    if isinstance(value, (tuple, list)):
        return [shown(part) for part in value]
    if isinstance(value, collections.UserDict) or isinstance(value, dict):
        return [(key, shown(part)) for key, part in value.items()]
    return copy.copy(value) if isinstance(value, collections.deque) else repr(value)


STATES = {
    "an object": Counting, "slots": Slotted, "a frozen one": Frozen, "a kind of list": Listing, "deque":
    lambda: collections.deque([1], 4), "a namespace": lambda: types.SimpleNamespace(**vars(Counting())),
    "a tensor in a list": lambda: [torch.zeros(3)], "a dict of states": dict, "in a tuple": lambda: ([], {1}),
    "an order": lambda: Ordered(a=1, b=2), "a dict": collections.UserDict, "counts": collections.Counter,
    "bytes": lambda: bytearray(b"ab"), "numbers": lambda: array.array("i", [1]), "a tensor": lambda: torch.zeros(3),
    "an array": lambda: numpy.zeros(3),
    "torch's numbers": torch.Generator, "numpy's numbers": lambda: numpy.random.default_rng(1),
    "numpy's older ones": lambda: numpy.random.RandomState(1), "python's numbers": lambda: random.Random(1),
    "a function": counter, "a part of one": lambda: functools.partial(list.append, []), "a method": lambda: [].append,
    **{words: functools.partial(str, words) for words in WRITES},
}


@pytest.mark.parametrize("name", STATES)
def test_what_a_module_keeps(name):
    state = STATES[name]()
    model = Model((Written if isinstance(state, str) else Attending)(state))
    model.blocks[0].qkv.eval()
    memory, before = [p.data_ptr() for p in model.parameters()], shown(model)
    found = ht.explore(model, torch.randn(2, 5, WIDTH))
    assert found["blocks.0"].mixed == ("s",) and found["blocks.0.qkv"].is_block is False, found
    assert [p.data_ptr() for p in model.parameters()] == memory
    assert shown(model) == before


class Merging(Attending):
    """In eval mode a second product is in the weights of the first one."""

    merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            self.last.weight.data += -1 if mode else 1
            self.merged = not mode
        return self


def test_weights_that_a_mode_merges():
    model = Model(Merging(None))
    before = shown(model)
    ht.explore(model, torch.randn(2, 5, WIDTH))
    assert shown(model) == before and model.blocks[0].training


@pytest.mark.parametrize("block", [lambda: Merging(None), lambda: Written("a parameter of a module in it")],
                         ids=["a mode", "a forward"])
def test_copies_of_a_proof_leave_the_model_its_weights(block):
    model, x = Model(block()), torch.randn(2, 5, WIDTH)
    plan = {"": (ht.Split("x", "b s _", "s"), ht.Gather("output", "b s _", "s")), "blocks.0": ht.Attend("s", "ulysses")}
    before = shown(model)
    proof = ht.prove(model, plan, x, ranks=2)
    assert proof and shown(model) == before, proof
    assert not ht.lint(model, plan, x, ranks=2) and shown(model) == before


#: what a forward writes with parameters of modules that do not run, which are only read
READS = {
    "python's own": lambda y, last: y.__imul__(last.bias),
    "a part": lambda y, last: y.__setitem__((slice(None), 0), last.bias),
    "a method": lambda y, last: y.add_(other=last.bias),
    "two of them": lambda y, last: y.addcmul_(last.bias, last.weight[0]),
    "a result": lambda y, last: torch.add(y.clone(), last.bias, out=y),
    "several": lambda y, last: torch._foreach_mul_([y], [last.bias]),
}


class Reading(torch.nn.Module):
    def __init__(self, read):
        super().__init__()
        self.last, self.read = torch.nn.Linear(WIDTH, WIDTH), read

    def forward(self, x):
        y = x.clone()
        with torch.no_grad():
            READS[self.read](y, self.last)
        return y


@pytest.mark.parametrize("read", READS)
def test_a_parameter_that_is_only_read_is_not_written(read):
    model, x = Model(Reading(read)), torch.randn(2, 5, WIDTH)
    assert torch.isfinite(model(x)).all() and written_by(model, (x,), {}) == set()


@pytest.mark.parametrize("name,own", [("its data", "weight"), ("a part of it", "weight"), ("it in place", "weight"),
                                      ("it as a result", "weight"), ("by its name", "weight"),
                                      ("by an operator", "weight"), ("in place of a result", "weight"),
                                      ("several of them", "weight bias")])
def test_a_parameter_that_is_written(name, own):
    wanted = {f"blocks.0.last.{each}" for each in own.split()}
    assert written_by(Model(Written(name)), (torch.randn(2, 5, WIDTH),), {}) == wanted


class Twice(HigherOrderOperator):
    """As torch.cond and flex_attention are, which no mode of torch knows by itself."""

    def __init__(self):
        super().__init__("heddle_tests_twice")
        self.py_impl(DispatchKey.CPU)(lambda x: x * 2)
        self.fallthrough(DispatchKey.AutogradCPU)

    def __call__(self, x):
        return super().__call__(x)


def test_operators_of_a_higher_order():
    operator, model = Twice(), Model(torch.nn.Linear(WIDTH, WIDTH))
    model.blocks[0].forward = lambda input: operator(input)
    assert ht.explore(model, torch.randn(2, 5, WIDTH))["blocks.0"].free == ("b", "s")


class Crowd(torch.nn.Module):
    """Beside many objects, which all blocks reach, each writes to attributes of its own."""

    def __init__(self, crowd):
        super().__init__()
        self.last, self.crowd, self.seen, self.table = torch.nn.Linear(WIDTH, WIDTH), crowd, [], {"x": torch.zeros(2)}
        self.register_buffer("count", torch.zeros(()))
        self.angles = None

    def forward(self, x):
        self.count += 1
        self.table["x"] += 1
        self.seen.append(x.shape[1])
        if self.angles is None:
            self.angles = torch.zeros(x.shape[1])
        return x + self.last(x)


@pytest.mark.parametrize("crowd,is_said", [([(n, str(n)) for n in range(100000)], False),
                                           ([[n] for n in range(70000)], True)], ids=["tuples", "lists"])
def test_many_objects_hide_no_attribute(crowd, is_said):
    model = Model(Crowd(crowd))
    model.crowd = list(crowd)
    found, block = ht.explore(model, torch.randn(2, 5, WIDTH)), model.blocks[0]
    assert (float(block.count), block.table["x"].tolist(), block.seen, block.angles) == (0, [0, 0], [], None)
    assert len([note for note in found.notes if "more objects than are kept" in note]) == is_said, found.notes


@pytest.mark.parametrize("of", [lambda n: (n, str(n)), lambda n: [n]], ids=["tuples", "lists"])
def test_what_all_blocks_share_is_not_walked_for_every_one(of):
    """Counted in calls of Python's functions."""
    def calls(count, blocks):
        counted, crowd = [0], [of(n) for n in range(count)]
        model = Model(Crowd(crowd))
        model.blocks.extend(Crowd(crowd) for _ in range(blocks - 1))
        sys.setprofile(lambda frame, event, _: counted.__setitem__(0, counted[0] + (
            event == "call" and frame.f_code.co_filename.endswith("held.py"))))
        try:
            ht.explore(model, torch.randn(2, 5, WIDTH))
        finally:
            sys.setprofile(None)
        return counted[0]
    calls(1, 5)
    more, fewer = (calls(3000, blocks) - calls(1, blocks) for blocks in (5, 2))
    assert more - fewer < 3000, (more, fewer)


COUNT, TABLE, SEEN = 0, {}, []


@functools.lru_cache(None)
def table_of(rows):
    return torch.zeros(rows)


def seen(rows):
    SEEN.append(rows)


class Filing(torch.nn.Module):
    """It writes to globals of its file, and so does what it calls."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(WIDTH, WIDTH)

    @functools.lru_cache(4)
    def rows(self, rows):
        return torch.zeros(rows)

    def forward(self, x):
        global COUNT
        COUNT += 1
        TABLE[x.shape[1]] = x
        seen(x.shape[1])
        return x + self.last(x) + table_of(x.shape[1])[:, None] + self.rows(x.shape[1])[:, None]


def test_what_a_file_keeps():
    model = Model(Filing())
    found = ht.explore(model, torch.randn(2, 5, WIDTH))
    assert found["blocks.0"].free == ("b", "s")
    assert (COUNT, TABLE, SEEN) == (0, {}, [])
    assert table_of.cache_info().currsize == Filing.rows.cache_info().currsize == 0
