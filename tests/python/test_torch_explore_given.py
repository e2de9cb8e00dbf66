"""What a model is explored with: objects that are copied however they are made, containers of tensors, and how the
program runs. What cannot be explored is a sentence, and nothing is changed."""
import collections
import contextlib
import dataclasses
import random
import threading
import types
from collections.abc import Mapping

import numpy
import pytest
import torch
from explore_kit import seeded  # noqa: F401

import heddle
import heddle.torch as ht

WIDTH = 8


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, given):
        if isinstance(given, (Cache, Slotted)):
            given.seen.append(x.shape[1])
            given.sums += 1
            return x + self.up(x)
        return x + self.up(x) + (given["y"] if isinstance(given, Mapping) else given[0] if isinstance(
            given, (list, tuple, collections.UserList)) else given.y)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.last = torch.nn.ModuleList((Block(), Block())), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, given):
        for block in self.blocks:
            x = block(x, given)
        return self.last(x)


class Cache:
    def __init__(self, more=None):
        self.seen, self.sums, self.more = [], torch.zeros(3), more


class Slotted:
    __slots__ = ("seen", "sums", "more")
    __init__ = Cache.__init__


class Wanting(Cache):
    def __new__(cls, more):
        return super().__new__(cls)


class Itself(Cache):
    def __deepcopy__(self, memo):
        self.seen.append("copied")
        return self


class Raising(Cache):
    def __deepcopy__(self, memo):
        raise RuntimeError("no")


class Nothing(Cache):
    def __deepcopy__(self, memo):
        return None


class Unreduced(Cache):
    def __reduce_ex__(self, protocol):
        raise TypeError("no")


class Error(Exception):
    def __init__(self, words, more):
        super().__init__(words)
        self.more = more


class Failed(Cache, Error):
    def __init__(self):
        Error.__init__(self, "words", 1)
        Cache.__init__(self)


class Listed(Cache, list):
    def __new__(cls, *_):
        return super().__new__(cls)


def raised():
    try:
        raise Error("words", 2)
    except Error as error:
        return error


CACHES = {
    "plain": Cache, "slots": Slotted, "of a module": lambda: Cache(torch), "of an error": lambda: Cache(Error("a", 1)),
    "of one that was raised": lambda: Cache(raised()), "a constructor that wants more": lambda: Wanting(1),
    "both": lambda: Cache([threading.Lock(), Wanting(2)]), "no copy": Raising, "a copy that is none": Nothing,
    "a copy that is itself": Itself, "not reduced": Unreduced, "an error": Failed, "a list": Listed,
    "a frame": lambda: Cache(raised().__traceback__), "locks": lambda: Cache([threading.Lock() for _ in range(40)]),
    "slots with a lock": lambda: Slotted(threading.Lock()), "numbers": lambda: Cache(torch.Generator()),
    "no copies within": lambda: Cache([Raising(Raising()), Unreduced(Wanting(Cache()))]),
    "a model": lambda: Cache(torch.nn.Linear(3, 3)),
}


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_of_the_caller_does_not_grow(name):
    model, cache = Model(), CACHES[name]()
    more = cache.more
    found = ht.explore(model, torch.randn(2, 5, WIDTH), cache)
    assert found["blocks.1"].free == ("b", "s") and not cache.seen and not cache.sums.any(), found
    assert cache.more is more


class Rows(list):
    def __init__(self, y, more):
        super().__init__([y])
        self.more = more


class Named(dict):
    pass


class Ordered(collections.OrderedDict):
    pass


class Kept(Mapping):
    def __init__(self, y):
        self._y = y

    def __getitem__(self, name):
        return {"y": self._y}[name]

    def __iter__(self):
        return iter(["y"])

    def __len__(self):
        return 1


class Own(Kept):
    def __deepcopy__(self, memo):
        return self


class Pair(collections.namedtuple("Pair", "y")):
    pass


@dataclasses.dataclass(frozen=True)
class Data:
    y: torch.Tensor


HOLDERS = {
    "0": (lambda y: Rows(y, 3), collections.UserList, list, tuple, lambda *y: Pair(*y)),
    "y": (lambda y: Named(y=y), lambda y: Ordered(y=y), lambda y: collections.UserDict(y=y), Kept, Data,
          lambda y: collections.defaultdict(list, y=y), lambda y: collections.ChainMap({"y": y})),
}


@pytest.mark.parametrize("at", HOLDERS)
def test_containers_of_tensors_are_not_tables(at):
    x, y = torch.randn(2, 5, WIDTH), torch.randn(2, 5, WIDTH)
    for made in HOLDERS[at]:
        given = made([y]) if made in (list, tuple, collections.UserList) else made(y)
        kept = y.clone()
        found = ht.explore(Model(), x, given)
        assert found.dims == {"b": 2, "s": 5} and found["blocks.0"].free == ("b", "s"), (type(given), found)
        assert found["blocks.0"].given == {"x": "b s _", f"given.{at}": "b s _"} and torch.equal(y, kept)


def test_what_gives_no_copy_is_refused():
    x, y = torch.randn(2, 5, WIDTH), torch.randn(2, 5, WIDTH)
    for given, words in ((Own(y), "'given.y' is a tensor in what gives no copy with another one in its place"),
                         (types.MappingProxyType({"y": y}), "'given.y' is a tensor in what gives no copy"),
                         ((y for _ in range(2)), "'given' is a generator, which gives what it has to one call alone")):
        with pytest.raises(heddle.ArgumentError) as error:
            ht.explore(Model(), x, given)
        assert words in str(error.value), error.value


class Ending(torch.nn.Module):
    def __init__(self, end=lambda x: x):
        super().__init__()
        self.blocks, self.last = torch.nn.ModuleList((Mixing(), torch.nn.Linear(WIDTH, WIDTH))), end

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Mixing(torch.nn.Module):
    def forward(self, x):
        return x + torch.softmax(x @ x.mT, -1) @ x


def numbers():
    return torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()


@pytest.mark.parametrize("end", (lambda x: None, lambda x: "words", Data, lambda x: {"a": [x, (x, Data(x))]},
                                 lambda x: float(x.sum()), lambda x: x[:, :0], lambda x: (y for y in x)))
def test_results_of_any_kind(end):
    model, x = Ending(end), torch.randn(2, 5, WIDTH)
    before = numbers()
    found = ht.explore(model, x)
    assert found["blocks.0"].mixed == ("s",) and found["blocks.1"].free == ("b", "s"), found
    assert before == numbers()


def deterministic():
    stack = contextlib.ExitStack()
    stack.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
    torch.use_deterministic_algorithms(True)
    return stack


def wide():
    stack = contextlib.ExitStack()
    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float64)
    return stack


@pytest.mark.parametrize("around", (
    torch.no_grad, torch.enable_grad, torch.inference_mode, deterministic, wide, lambda: torch.device("meta"),
    lambda: torch.autocast("cpu", torch.bfloat16), lambda: torch.autocast("cpu", torch.float16)))
def test_whatever_the_program_has_set(around):
    model, x = Ending(), torch.randn(2, 5, WIDTH)
    model.blocks[1].eval()
    hooked = []
    model.blocks[0].register_forward_hook(lambda module, args, y: hooked.append(1) or 2 * y)
    modes, before = [each.training for each in model.modules()], numbers()

    def settings():
        return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
                torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype(), torch.get_default_device())
    with around():
        there = settings()
        found = ht.explore(model, x)
        assert settings() == there
    assert found["blocks.0"].mixed == ("s",) and found["blocks.1"].free == ("b", "s"), found.table()
    assert hooked and [len(each._forward_hooks) for each in model.modules()] == [0, 0, 1, 0]
    assert modes == [each.training for each in model.modules()] and before == numbers()


def test_parameters_made_in_inference_mode():
    with torch.inference_mode():
        model, x = Ending(), torch.randn(2, 5, WIDTH)
    assert ht.explore(model, x)["blocks.1"].free == ("b", "s")


def test_numbers_that_are_none_tell_nothing():
    for number in (torch.nan, torch.inf):
        found = ht.explore(Ending(), torch.full((2, 5, WIDTH), number))
        seen = found["blocks.1"].dims["s"]
        assert seen.kind == "unknown" and "NaNs or infinite" in seen.why, found.table()


@pytest.mark.parametrize("model, words", (
    (torch.nn.Module(), "Module has no forward"), (torch.nn.ModuleList([torch.nn.Linear(8, 8)]), "ModuleList has no"),
    (torch.nn.Sequential(torch.nn.LazyLinear(8)), "'0' is a LazyLinear whose 'weight' is not there yet")))
def test_models_that_do_not_run(model, words):
    with pytest.raises((heddle.ArgumentError, heddle.UnsupportedError)) as error:
        ht.explore(model, torch.randn(2, 5, WIDTH))
    assert words in str(error.value), error.value


def test_modules_of_a_script_are_refused():
    scripted = torch.jit.script(torch.nn.Linear(WIDTH, WIDTH))
    for model, words in ((scripted, "it is a RecursiveScriptModule"),
                         (torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), scripted), "'1' is a Recursive")):
        with pytest.raises(heddle.UnsupportedError) as error:
            ht.explore(model, torch.randn(2, 5, WIDTH))
        assert words in str(error.value), error.value
        assert not any(each._forward_hooks for each in model.modules() if not isinstance(each, torch.jit.ScriptModule))


def test_dims_that_are_no_texts():
    for text in (3, None, ("b", "s", "c"), {"a": "b"}, b"b s c"):
        with pytest.raises(heddle.ArgumentError) as error:
            ht.explore(Ending(), torch.randn(2, 5, WIDTH), dims={"x": text})
        assert "explore: for 'x', " in str(error.value), error.value
    with pytest.raises(heddle.UnsupportedError) as error:
        ht.explore(Ending(), torch.nested.nested_tensor([torch.ones(3, WIDTH), torch.ones(2, WIDTH)]))
    assert "is a nested tensor" in str(error.value), error.value
