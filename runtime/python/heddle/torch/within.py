"""Steps that change what torch's functions do while a module runs."""
from __future__ import annotations

import functools
from typing import Any, Protocol, cast

import torch
from torch.overrides import TorchFunctionMode

from ..errors import ArgumentError, UnsupportedError
from .ranks import Ranks


class Mode(TorchFunctionMode):
    """While it is entered, functions of torch see the rows of all ranks."""

    none: str  #: what is said where the module called none of them
    calls = 0


class Within(Protocol):
    """A step of this kind."""

    def _mode(self, ranks: Ranks, where: str) -> Mode:
        ...


class _Forward(functools.partial):
    """Known among the forwards that others put in a module's place."""


class Put:
    """A module's forward runs while the step's mode is entered: by `with`, since no hook of torch runs after Ctrl-C. A
    compiler leaves it as it is, and what it calls: modes are beyond torch's."""

    def __init__(self, module: torch.nn.Module, pattern: str, step: Within, ranks: Ranks):
        self._module, self._own = module, module.__dict__.get("forward")
        if isinstance(self._own, _Forward):
            there, mine = type(self._own.args[2]).__name__, type(step).__name__
            raise ArgumentError(f"parallelize: '{pattern}' ({type(module).__name__}) has a step {there} already, and "
                                f"{mine} beside it: one of these per module, handle.remove() takes an earlier one off")
        # A partial, which is copied together with its module.
        module.forward = functools.update_wrapper(  # type: ignore[method-assign]
            _Forward(torch.compiler.disable(_run), module.forward, pattern, step, ranks), module.forward)

    def remove(self) -> None:
        if self._own is None:
            del self._module.forward
        else:
            self._module.forward = self._own  # type: ignore[method-assign]


def is_within(step: Any) -> bool:
    return hasattr(step, "_mode")


def _run(forward: Any, pattern: str, step: Within, ranks: Ranks, *args: Any, **kwargs: Any) -> Any:
    with cast(Any, step._mode(ranks, f"parallelize: '{pattern}': ")) as mode:
        output = forward(*args, **kwargs)
    if mode.calls == 0:
        raise UnsupportedError(f"parallelize: '{pattern}' {mode.none}")
    return output
