"""Where a model on several ranks begins and ends: outside every rank has the whole, inside gradients are addends."""
from __future__ import annotations

import copy
import dataclasses
import sys
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

import torch

from ..errors import Error, UnsupportedError
from .agreement import alike, begun, watched_in
from .ranks import Ranks

Apply = Callable[[torch.Tensor], torch.Tensor]


class Entering:
    """Before the model: a pass of its own, which all ranks are in with the same, and gradients of arguments that are
    whole again."""

    def __init__(self, ranks: Ranks, model: torch.nn.Module):
        self.ranks, self._watched = ranks, watched_in(model)

    def __call__(self, model: torch.nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        comm = self.ranks.comm
        begun(comm, model, self._watched, args, kwargs)
        self.ranks.sizes = {}
        return _each((args, kwargs), self.ranks.shared)


class Leaving:
    """Behind it: what every rank has whole."""

    def __init__(self, ranks: Ranks):
        self.ranks = ranks

    def __call__(self, model: torch.nn.Module, args: Tuple[Any, ...], output: Any) -> Any:
        alike(self.ranks.comm, "end of a model", "result", output)
        return _each(output, lambda x: _Counted.apply(x, self.ranks), is_all=True)


class Telling:
    """An error out of the model says what of its dims this rank had, which the module that raised it knows nothing of.
    A hook that torch always calls."""

    def __init__(self, ranks: Ranks, cut: Sequence[str]):
        self.ranks, self._cut = ranks, cut

    def __call__(self, model: torch.nn.Module, args: Tuple[Any, ...], output: Any) -> None:
        error = sys.exc_info()[1]
        if output is not None or isinstance(error, (Error, type(None))) or not hasattr(error, "add_note"):
            return
        sizes = self.ranks.sizes
        there = ", ".join(f"{self.ranks.part(name)[1]} of {name}={sizes[name]}" for name in self._cut if name in sizes)
        error.add_note(f"heddle: this model is sharded by parallelize over {self.ranks.comm.mesh}, and rank "
                       f"{self.ranks.comm.rank} has {there or 'the whole of it so far'}. What a module is given as a "
                       "number or makes of the whole wants a step, too: Extent, Count, Split")


class _Counted(torch.autograd.Function):
    """What all ranks compute a loss from, alike: it counts once, on the first rank, so that gradients within the model
    are addends everywhere. A backward that begins here is that of this pass, which checkpoints recompute."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        ctx.ranks, ctx.sizes = ranks, ranks.sizes
        return x.clone()  # no view, which could not be written in place

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        alike(ctx.ranks.comm, "backward of a model", "gradient of the result", gradient)
        ctx.ranks.sizes = ctx.sizes
        return gradient if ctx.ranks.comm.rank == 0 else torch.zeros_like(gradient), None


def _each(value: Any, apply: Apply, is_all: bool = False) -> Any:
    """`apply` on every tensor that wants a gradient, in tuples, lists, mappings and dataclasses; the value itself where
    there is none. is_all: of another object, whose tensors nobody can exchange, none may want a gradient."""
    if not torch.is_grad_enabled():
        return value
    if isinstance(value, torch.Tensor):
        return apply(value) if value.requires_grad else value
    if isinstance(value, (tuple, list)):
        parts = [_each(part, apply, is_all) for part in value]
        if all(a is b for a, b in zip(parts, value)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, Mapping):
        return _exchanged(value, dict(value), lambda other, key, part: other.__setitem__(key, part), apply, is_all)
    if dataclasses.is_dataclass(value):
        return _exchanged(value, vars(value), object.__setattr__, apply, is_all)
    if is_all and any(isinstance(part, torch.Tensor) and part.requires_grad
                      for part in getattr(value, "__dict__", {}).values()):
        raise UnsupportedError(f"parallelize: the model returns a {type(value).__name__} with tensors that want "
                               "gradients: wanted tensors, or tuples, lists, mappings and dataclasses of them")
    return value


def _exchanged(value: Any, parts: Mapping[str, Any], put: Callable[[Any, str, Any], None], apply: Apply,
               is_all: bool) -> Any:
    made = {name: _each(part, apply, is_all) for name, part in parts.items()}
    if all(made[name] is part for name, part in parts.items()):
        return value
    other = copy.copy(value)
    for name, part in made.items():
        put(other, name, part)
    return other
