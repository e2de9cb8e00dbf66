"""Attention that numbers its rows by itself, from 0, whichever they are: of a block of them it would make others."""
from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

import torch
from torch.overrides import TorchFunctionMode

from .exploration import Module
from .flow import Attention, argument_names, as_argument
from .probe import called
from .rows import words_of
from .trees import fresh, tensors_of

_WITHIN = 1e-4  #: of the largest element: products of rows elsewhere round otherwise


class _Asked(TorchFunctionMode):
    """What attention is given: queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: List[Tuple[torch.Tensor, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self._keep(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _keep(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> None:
        self.calls.append(tuple(x.detach().clone() for x in (query, key, value)))


def note_numbering(model: torch.nn.Module, args: Any, kwargs: Mapping[str, Any], modules: Mapping[str, Module],
                   attentions: Sequence[Attention]) -> None:
    """One forward, in which each module that attends is run by itself, too."""
    rows: Dict[str, Set[int]] = {}
    for each in attentions:
        if each.rows == each.keys and each.rows > 2 and _is_plain(modules, each.module):
            rows.setdefault(each.module, set()).add(each.rows)
    handles: List[Any] = []

    def watch(name: str, module: torch.nn.Module) -> None:
        def enter(_: Any, given: Any, named: Any) -> None:
            handle.remove()  # once, and not when it runs by itself
            modules[name].is_numbering = any(_is_numbering(module, given, named, modules[name], n) for n in rows[name])
        handle = module.register_forward_pre_hook(enter, with_kwargs=True)
        handles.append(handle)
    try:
        for name, module in model.named_modules():
            if name in rows:
                watch(name, module)
        given, named = fresh(args, kwargs)
        model(*given, **named)
    finally:
        for handle in handles:
            handle.remove()


def _is_numbering(module: torch.nn.Module, args: Any, kwargs: Any, found: Module, n: int) -> bool:
    """With its rows turned round, are queries, keys and values others than those of before, turned likewise?"""
    by = next(by for by in range(n // 2, 0, -1) if math.gcd(by, n) == 1)  # no period of the numbers goes by
    run, axes = called(module, args, kwargs), _axes_of_rows(module, args, kwargs, found, n)
    if not axes:
        return False
    try:
        with _Asked() as whole:
            run(lambda _, x: x)
        with _Asked() as other:
            run(lambda at, x: x.roll([by] * len(axes[at]), axes[at]) if axes.get(at) else x)
    except Exception:  # whatever a model raises
        return False
    return len(whole.calls) == len(other.calls) and any(
        _is_other(a.roll(by, 2), b) for one, two in zip(whole.calls, other.calls)
        if all(x.dim() == 4 and x.shape[2] == n for x in (*one, *two)) for a, b in zip(one, two))


def _axes_of_rows(module: torch.nn.Module, args: Any, kwargs: Any, found: Module, n: int) -> Dict[str, List[int]]:
    """Of its arguments, those of so many rows; none where an argument has others: of a text that goes beside them."""
    names, axes = argument_names(module), {}
    for at, x in (*tensors_of(args).items(), *tensors_of(kwargs).items()):
        words = words_of(found.given.get(as_argument(at, names), ""))
        rows = [axis for axis, word in enumerate(words) if any(
            dim != "b" and not dim.isdecimal() for part in word for dim in part)] if len(words) == x.dim() else []
        axes[at] = [axis for axis in rows if x.shape[axis] == n]
        if rows and not axes[at]:
            return {}
    return axes if any(axes.values()) else {}


def _is_plain(modules: Mapping[str, Module], name: str) -> bool:
    """Is attention all in it that mixes rows? Else queries come of neighbours, whose rows are others when they turn."""
    inside = f"{name}." if name else ""
    within = [module for other, module in modules.items() if other != name and other.startswith(inside)]
    return name in modules and not any(seen.kind in ("halo", "causal", "reduction", "mixes") for module in within
                                       for seen in module.dims.values())


def _is_other(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape != b.shape or bool(((a - b).abs() > _WITHIN * a.abs().max()).any())
