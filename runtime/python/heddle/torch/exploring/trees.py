"""Tensors in whatever a module takes and returns."""
from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import types
from typing import Any, Callable, Dict, Iterator, List, Mapping, Set

import torch

Tensors = Dict[str, torch.Tensor]
_PLAIN = (int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, types.FunctionType,
          types.BuiltinFunctionType, types.ModuleType)  #: what a call does not change
_SHARED = (*_PLAIN, torch.nn.Module, types.MethodType)  #: and what is the model's own


def tensors_of(value: Any, name: str = "") -> Tensors:
    """By their places: `0`, `hidden_states`, `image_rotary_emb.1`."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    found: Tensors = {}
    for key, part in _parts(value):
        found.update(tensors_of(part, f"{name}.{key}" if name else str(key)))
    return found


def _parts(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return list(enumerate(value))
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return []


def replaced(value: Any, change: Callable[[str, torch.Tensor], torch.Tensor], name: str = "",
             other: Callable[[Any], Any] = lambda value: value) -> Any:
    """The same with other tensors. What is no tuple, list or dict of tensors stays the same object, or is what `other`
    makes of it; of a kind of list or tuple that holds none, as torch.Size, likewise."""
    if isinstance(value, torch.Tensor):
        return change(name, value)
    if type(value) not in (tuple, list) and not hasattr(value, "_fields") and isinstance(value, (tuple, list)) and \
            not tensors_of(value):
        return other(value)

    def inner(key: Any, part: Any) -> Any:
        return replaced(part, change, f"{name}.{key}" if name else str(key), other)
    if isinstance(value, tuple):
        parts = [inner(at, part) for at, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [inner(at, part) for at, part in enumerate(value)]
    if type(value) is dict:
        return {key: inner(key, part) for key, part in value.items()}
    return other(value)


def fresh(model: torch.nn.Module, args: Any, kwargs: Any,
          change: Callable[[str, torch.Tensor], torch.Tensor] = lambda _, x: x) -> Any:
    """Both for one call of it, which may write to tensors and to objects: a cache of keys and values grows with it. An
    object that is in both is one."""
    memo: Dict[int, Any] = {}
    alive: List[Any] = []  # what a copy's numbers are of

    def cloned(name: str, x: torch.Tensor) -> torch.Tensor:
        y = change(name, x)
        return y.clone() if y is x else y

    def copied(value: Any) -> Any:
        if isinstance(value, _SHARED) or _is_sentinel(model, value):
            return value
        for without in (False, True):
            try:
                mine = {**memo, **_kept(model, value, without)}  # of a copy that fails nothing stays
                made = copy.deepcopy(value, mine)
            except Exception:  # whatever an object is
                continue
            alive.append(mine.pop(id(mine), None))
            memo.update(mine)
            return made
        return value
    return replaced(args, cloned, other=copied), replaced(kwargs, cloned, other=copied)


def _is_sentinel(model: torch.nn.Module, value: Any) -> bool:
    """Is it known by being itself alone? It has nothing else: nobody can write to it, or the model has it, too."""
    kind: Any = type(value)
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return False
    try:
        if getattr(value, "__dict__", None) or hasattr(kind, "__deepcopy__") or \
                tuple(value.__reduce_ex__(4)[1:]) != ((kind,), None, None, None):
            return False
    except Exception:  # whatever an object is
        return False
    can_be_written = hasattr(value, "__dict__") or any("__slots__" in vars(each) and each.__slots__
                                                       for each in kind.__mro__)
    return not can_be_written or any(value is each for module in model.modules() for each in _had_by(module))


def _had_by(module: torch.nn.Module) -> Iterator[Any]:
    """Its attributes, those of its class, and what its forward is given where nobody gives anything."""
    forward = inspect.unwrap(getattr(module.forward, "__func__", module.forward))
    yield from getattr(forward, "__defaults__", None) or ()
    yield from (getattr(forward, "__kwdefaults__", None) or {}).values()
    for has in (module, *type(module).__mro__):
        yield from vars(has).values()


def _kept(model: torch.nn.Module, value: Any, without: bool = False) -> Dict[int, Any]:
    """What an object holds that stays itself: modules, parameters, and sentinels that are known by being themselves;
    `without`: and what cannot be copied, a lock or a generator. Of a result of others a clone."""
    kept: Dict[int, Any] = {}
    seen: Set[int] = set()
    found = [value]
    while found:
        part = found.pop()
        if id(part) in seen or isinstance(part, _PLAIN):
            continue
        seen.add(id(part))
        if isinstance(part, (torch.nn.Module, torch.nn.Parameter)) or _is_sentinel(model, part) or (
                without and part is not value and not _is_copied(part)):
            kept[id(part)] = part
        elif isinstance(part, torch.Tensor) and not part.is_leaf:
            kept[id(part)] = part.clone()
        else:
            found += gc.get_referents(part)
    return kept


def _is_copied(value: Any) -> bool:
    """By itself, whatever is in it."""
    if isinstance(value, (list, tuple, dict, set, frozenset, *_SHARED)) or hasattr(type(value), "__deepcopy__"):
        return True
    try:
        return bool(value.__reduce_ex__(4))
    except Exception:  # whatever an object is
        return False
