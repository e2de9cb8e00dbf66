"""What running a model changes beside its parameters, and puts back: attributes, objects, containers, tensors and
generators of random numbers, at any depth, whoever holds them."""
from __future__ import annotations

import array
import collections
import functools
import operator
import random
import sys
import types
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch

from .named import globals_of

_MOST = 1 << 16  #: objects beside those that modules have themselves; what is further is left alone
_CROWD = 1 << 10  #: what is in an object of more parts comes last, once for the whole model
_Taken = Tuple[Callable[[], None], Sequence[Any]]  #: what puts an object back, and what is in it
_LEAVES = (int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, torch.nn.Parameter,
           types.ModuleType)
_STILL = frozenset((int, float, complex, bool, str, bytes, type(None), type, torch.dtype, torch.device))
_DATA = (types.SimpleNamespace, types.FunctionType, functools.partial, collections.UserDict, collections.UserList,
         torch.nn.Module)  #: have attributes, though their classes are Python's or torch's
#: kinds of containers, whatever classes are made of them
BASES: Tuple[Any, ...] = (collections.OrderedDict, dict, list, bytearray, set, collections.deque)
#: packages whose objects are no data: locks, files, communicators
_OTHERS = {"heddle", "torch", "logging", "threading", "multiprocessing", "concurrent", "asyncio", "importlib",
           "weakref", "socket", "io", "_io", "ctypes", "tqdm"}


class Held:
    """The state of `roots`, and of all that they reach. A module's own hooks and mode are not in it. `is_one_call`: nor
    is what crowds hold, which blocks share, and which is put back where the whole model is."""

    def __init__(self, *roots: Any, is_one_call: bool = False):
        modules = [module for root in roots if isinstance(root, torch.nn.Module) for module in root.modules()]
        self._weights = {memory_of(p) for module in modules for p in module.parameters(False)} - {0}
        classes = {kind: None for module in modules for kind in type(module).__mro__ if not _is_other(kind)}
        own = [part for module in modules for part in _named(vars(module), True)[1]]
        buffers = [x for module in modules for x in module._buffers.values()]
        files = [_OfFile(*named) for kind in classes for named in globals_of(kind, _is_place)]
        found = collections.deque([*modules, *roots, *map(_OfClass, classes), *files, *own, *buffers])
        most, crowd = len(found) + _MOST, collections.deque()  # type: Tuple[int, collections.deque[Any]]
        self.is_cut = False  #: is there more than was taken?
        self._seen: Dict[int, Any] = {}  # kept, so that numbers are of these
        self._taken: List[Callable[[], None]] = []
        while found or crowd:
            value = (found or crowd).popleft()
            if _is_still(value) or id(value) in self._seen:
                continue
            self.is_cut = len(self._seen) >= most
            if self.is_cut:
                break
            self._seen[id(value)] = value
            try:
                taken = list(self._of(value))
            except Exception:  # whatever an object is
                continue
            for put_back, parts in taken:
                self._taken.append(put_back)
                if not is_one_call or len(parts) <= _CROWD:
                    (crowd if len(parts) > _CROWD else found).extend(part for part in parts if not _is_still(part))

    def put_back(self) -> None:
        with torch.no_grad():
            for put_back in self._taken:
                put_back()

    def _of(self, value: Any) -> Iterator[_Taken]:
        if isinstance(value, torch.Tensor):
            if not value.is_meta and memory_of(value) not in self._weights:
                yield _tensor(value), ()
        elif isinstance(value, (_OfClass, _OfFile)):
            yield value.put_back, value.parts
        else:
            yield _nothing, _inside(value)
            for taken in (_container(value), _array(value), _numbers(value), _results(value)):
                if taken is not None:
                    yield taken
            if isinstance(value, _DATA) or not any(map(_is_other, type(value).__mro__[:-1])):
                yield from _attributes(value)


def _is_still(value: Any) -> bool:
    """Can neither it change nor what is in it?"""
    return _STILL.issuperset(map(type, value)) if type(value) in (tuple, frozenset) else isinstance(value, _LEAVES)


def _nothing() -> None:
    """Such an object does not change; what is in it may."""


def _is_other(kind: type) -> bool:
    """Is it a class of no data, of Python or of torch?"""
    return kind is object or kind.__module__.partition(".")[0] in _OTHERS


def memory_of(x: torch.Tensor) -> int:
    try:
        return x.untyped_storage().data_ptr()
    except Exception:  # of a kind without memory of its own
        return 0


def _inside(value: Any) -> Sequence[Any]:
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
        return value.__self__, getattr(value, "__func__", None)
    if isinstance(value, types.FunctionType):
        return value.__closure__ or ()
    return tuple(value) if isinstance(value, (tuple, frozenset)) else ()


def _tensor(x: torch.Tensor) -> Callable[[], None]:
    data, value, wants, is_leaf = x.data, x.detach().clone(), x.requires_grad, x.is_leaf
    grad = x.grad if is_leaf else None

    def put_back() -> None:
        if is_leaf and (x.grad is not grad or x.requires_grad != wants):
            x.grad = grad
            x.requires_grad_(wants)
        if x.layout is torch.strided and (x.shape, x.data_ptr()) != (data.shape, data.data_ptr()):
            x.data = data
        if not is_same(x, value):
            with torch.inference_mode(x.is_inference()), torch.no_grad():
                x.copy_(value)
    return put_back


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit by bit, but for NaNs, which differ from themselves and are then written once more."""
    return a.shape == b.shape and a.layout is torch.strided and torch.equal(a, b)


def _container(value: Any) -> Optional[_Taken]:
    """By what all of its kind have, whatever it makes of it itself."""
    base = next((base for base in BASES if isinstance(value, base)), None)
    if base is None:
        return _cell(value) if isinstance(value, types.CellType) else None
    if issubclass(base, dict):
        return _pairs(value, base)
    parts = list(base.__iter__(value))

    def put_back() -> None:
        if not _is_each(list(base.__iter__(value)), parts):
            if base in (list, bytearray):
                base.__setitem__(value, slice(None), parts)
            else:
                base.clear(value)
                (base.update if base is set else base.extend)(value, parts)
    return put_back, parts


def _pairs(value: Any, base: Any) -> _Taken:
    keys, parts = list(base.keys(value)), list(base.values(value))

    def put_back() -> None:
        if not _is_each([*base.keys(value), *base.values(value)], [*keys, *parts]):
            base.clear(value)
            base.update(value, zip(keys, parts))
    return put_back, [*keys, *parts]


def _is_each(now: Sequence[Any], were: Sequence[Any]) -> bool:
    return len(now) == len(were) and all(map(operator.is_, now, were))


def _cell(cell: Any) -> Optional[_Taken]:
    """What a function within a function shares with it."""
    try:
        inside = cell.cell_contents
    except ValueError:  # it is empty
        return None

    def put_back() -> None:
        cell.cell_contents = inside
    return put_back, (inside,)


def _array(value: Any) -> Optional[_Taken]:
    if isinstance(value, array.array):
        return functools.partial(array.array.__setitem__, value, slice(None), value[:]), ()
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray) or not value.flags.writeable:
        return None
    was = value.copy()
    return functools.partial(numpy.copyto, value, was), list(was.flat) if was.dtype == object else ()


def _numbers(value: Any) -> Optional[_Taken]:
    """Of a generator of random numbers."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.Generator):
        return functools.partial(value.set_state, value.get_state()), ()
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return functools.partial(value.setstate, value.getstate()), ()
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return functools.partial(value.set_state, value.get_state()), ()
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return functools.partial(setattr, value.bit_generator, "state", value.bit_generator.state), ()
    return None


def _results(value: Any) -> Optional[_Taken]:
    """Of functools.lru_cache, which shows none: all are forgotten where some are new, of another dtype or extent."""
    if not isinstance(value, functools._lru_cache_wrapper) or value.__module__.partition(".")[0] in _OTHERS:
        return None
    misses = value.cache_info().misses

    def put_back() -> None:
        if value.cache_info().misses != misses:
            value.cache_clear()
    return put_back, ()


def _attributes(value: Any) -> Iterator[_Taken]:
    there = getattr(value, "__dict__", None)
    if type(there) is dict:
        yield _named(there, isinstance(value, torch.nn.Module))
    for slot in slots_of(type(value)):
        yield _slot(slot, value)


def slots_of(kind: type) -> List[Any]:
    return [slot for each in kind.__mro__ if "__slots__" in vars(each) for slot in vars(each).values()
            if isinstance(slot, types.MemberDescriptorType)]


def inside_of(slot: Any, value: Any) -> List[Any]:
    try:
        return [slot.__get__(value)]
    except AttributeError:  # nothing is there
        return []


def _named(there: Dict[str, Any], is_module: bool) -> _Taken:
    def now() -> Dict[str, Any]:
        return {name: part for name, part in there.items()
                if not is_module or name != "training" and "_hooks" not in name}
    were = now()

    def put_back() -> None:
        for name in [name for name in now() if name not in were]:
            del there[name]
        there.update((name, part) for name, part in were.items() if there.get(name, there) is not part)
    return put_back, list(were.values())


def _slot(slot: Any, value: Any) -> _Taken:
    were = inside_of(slot, value)

    def put_back() -> None:
        now = inside_of(slot, value)
        if were and not _is_each(now, were):
            slot.__set__(value, were[0])
        elif now and not were:
            slot.__delete__(value)
    return put_back, were


class _OfClass:
    """Attributes of a class that are no functions."""

    def __init__(self, kind: type):
        self.kind, self.were = kind, _of_class(kind)
        self.parts = list(self.were.values())

    def put_back(self) -> None:
        now = _of_class(self.kind)
        for name in [name for name in now if name not in self.were]:
            delattr(self.kind, name)
        for name, part in self.were.items():
            if now.get(name, self) is not part:
                setattr(self.kind, name, part)


def _of_class(kind: type) -> Dict[str, Any]:
    return {name: part for name, part in vars(kind).items() if not name.startswith("__") and not isinstance(
        part, (types.FunctionType, property, staticmethod, classmethod, types.MemberDescriptorType))}


class _OfFile:
    """Globals that methods name: what they set, and what is in those that one can write to."""

    def __init__(self, there: Dict[str, Any], stored: Iterable[str], read: Iterable[str]):
        self.there, self.were = there, {name: there.get(name, self) for name in stored}
        self.parts = [there[name] for name in (*stored, *read) if _is_place(there.get(name))]

    def put_back(self) -> None:
        for name, part in self.were.items():
            if part is self:
                self.there.pop(name, None)
            elif self.there.get(name, self) is not part:
                self.there[name] = part


def _is_place(value: Any) -> bool:
    """Is it a container, a tensor, an array or a cache of results? An object of another class may be anybody's."""
    return isinstance(value, (*BASES, array.array, torch.Tensor, functools._lru_cache_wrapper))
