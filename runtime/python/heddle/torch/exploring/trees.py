"""Tensors in whatever a module takes and returns."""
from __future__ import annotations

import collections
import dataclasses
from typing import Any, Callable, Dict, Iterator, List, Mapping

import torch

from ...errors import ArgumentError
from .copying import copied

Tensors = Dict[str, torch.Tensor]
Change = Callable[[str, torch.Tensor], torch.Tensor]


def tensors_of(value: Any, name: str = "") -> Tensors:
    """By their places: `0`, `hidden_states`, `image_rotary_emb.1`."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    found: Tensors = {}
    for key, part in _parts(value):
        found.update(tensors_of(part, f"{name}.{key}" if name else str(key)))
    return found


def numbers_of(value: Any, name: str = "") -> Dict[str, int]:
    """Likewise, of tuples, lists and dicts, where steps can change them."""
    if type(value) is int:
        return {name: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (tuple, list)) else ()
    return {at: n for key, part in parts for at, n in numbers_of(part, f"{name}.{key}" if name else str(key)).items()}


def _parts(value: Any) -> Any:
    if isinstance(value, (tuple, list, collections.UserList)):
        return list(enumerate(value))
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return []


def _as_it_is(value: Any, others: Dict[int, Any]) -> Any:
    return value


def replaced(value: Any, change: Change, name: str = "",
             other: Callable[[Any, Dict[int, Any]], Any] = _as_it_is) -> Any:
    """The same with other tensors. What is no tuple, list or dict of torch's or Python's own stays the same object, or
    is what `other` makes of it with the tensors that come for those in it, by their ids."""
    if isinstance(value, torch.Tensor):
        return change(name, value)

    def inner(key: Any, part: Any) -> Any:
        return replaced(part, change, f"{name}.{key}" if name else str(key), other)
    if type(value) is tuple:
        return tuple(inner(at, part) for at, part in enumerate(value))
    if type(value) is list:
        return [inner(at, part) for at, part in enumerate(value)]
    if type(value) is dict:
        return {key: inner(key, part) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(inner(at, part) for at, part in enumerate(value)))
    return other(value, {id(x): change(at, x) for at, x in tensors_of(value, name).items()})


def fresh(model: torch.nn.Module, args: Any, kwargs: Any, change: Change = lambda _, x: x) -> Any:
    """Both for one call of it, which may write to tensors and to objects: a cache of keys and values grows with it. An
    object that is in both is one."""
    memo: Dict[int, Any] = {}
    alive: List[Any] = []  # what a copy's numbers are of

    def cloned(name: str, x: torch.Tensor) -> torch.Tensor:
        y = change(name, x)
        return y.clone() if y is x else y

    def other(value: Any, others: Dict[int, Any]) -> Any:
        return copied(model, value, others, memo, alive)
    return replaced(args, cloned, other=other), replaced(kwargs, cloned, other=other)


def need_copies(what: str, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    """Of all that is given, for one call and then for another; `what` begins the sentence."""
    made = fresh(model, args, kwargs)
    for old, new in zip((args, kwargs), made):
        there = tensors_of(new)
        for name, x in tensors_of(old).items():
            if there.get(name) is x:
                raise ArgumentError(f"{what}: '{name}' is a tensor in what gives no copy with another one in its place")
        for place, value in old.items() if isinstance(old, dict) else enumerate(old):
            if isinstance(value, Iterator) and new[place] is value:
                raise ArgumentError(f"{what}: '{place}' is a {type(value).__name__}, which gives what it has to one "
                                    "call alone: wanted a list")
