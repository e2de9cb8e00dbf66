"""Tensors in whatever a module takes and returns."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Mapping

import torch

Tensors = Dict[str, torch.Tensor]


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


def replaced(value: Any, change: Callable[[str, torch.Tensor], torch.Tensor], name: str = "") -> Any:
    """The same with other tensors. What is no tuple, list or dict of tensors stays the same object."""
    if isinstance(value, torch.Tensor):
        return change(name, value)
    def inner(key: Any, part: Any) -> Any:
        return replaced(part, change, f"{name}.{key}" if name else str(key))
    if isinstance(value, tuple):
        parts = [inner(at, part) for at, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [inner(at, part) for at, part in enumerate(value)]
    if type(value) is dict:
        return {key: inner(key, part) for key, part in value.items()}
    return value
