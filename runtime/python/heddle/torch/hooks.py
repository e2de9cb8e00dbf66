"""Steps on what goes into a module and what comes out of it."""
from __future__ import annotations

import fnmatch
import inspect
import re
from typing import Any, Callable, Dict, List, Tuple

import torch

from ..errors import ArgumentError, UnsupportedError
from .attending import Attend, Attended
from .ranks import Ranks

Apply = Callable[[Any], Any]


def matching(model: torch.nn.Module, pattern: Any) -> List[torch.nn.Module]:
    """The modules that a pattern names, each once, whichever of its names it is."""
    if not isinstance(pattern, str):
        raise ArgumentError(f"parallelize: {pattern!r} is no pattern of names of modules, like 'blocks.*.attn'")
    wanted = re.compile(fnmatch.translate(pattern).replace(".*", "[^.]*"))
    named = list(model.named_modules(remove_duplicate=False))
    found = {id(module): module for name, module in named if wanted.match(name)}
    if not found:
        near = sorted({re.sub(r"\b\d+\b", "*", name) for name, _ in named if name})
        raise ArgumentError(f"parallelize: no module of {type(model).__name__} is called '{pattern}'; there are "
                            f"{', '.join(near[:20])}")
    return list(found.values())


def hooked(module: torch.nn.Module, pattern: str, step: Any, ranks: Ranks) -> Any:
    """The handle of a step's hook on this module."""
    if type(module).forward is torch.nn.Module.forward:
        raise ArgumentError(f"parallelize: '{pattern}' is a {type(module).__name__}, which nobody calls: wanted the "
                            f"modules in it, '{pattern}.*'")
    if isinstance(step, Attend):
        return Attended(module, pattern, step, ranks)
    made = _Step(module, pattern, step, ranks)
    if made.name == "output":
        return module.register_forward_hook(made.on_output)
    return module.register_forward_pre_hook(made.on_arguments, with_kwargs=True)


class _Step:
    """One step on one module."""

    def __init__(self, module: torch.nn.Module, pattern: str, step: Any, ranks: Ranks):
        self._ranks = ranks
        self._where = f"parallelize: '{pattern}' ({type(module).__name__})"
        self._step = step
        self.name, self._path = _place(step.what)
        try:
            self._apply = step._made(ranks)
        except ArgumentError as error:
            raise ArgumentError(f"{self._where}: {step}: {error}") from error
        parameters = inspect.signature(module.forward).parameters.values()
        #: of arguments, in their order
        self._names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._by_name = [p.name for p in parameters if p.kind == p.KEYWORD_ONLY]
        if self.name not in ("output", *self._names, *self._by_name) and not any(
                p.kind == p.VAR_KEYWORD and p.name != self.name for p in parameters):
            raise ArgumentError(f"{self._where} has no argument '{self.name}': "
                                f"{', '.join(self._names + self._by_name) or 'it has none'}")

    def on_arguments(self, _: torch.nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        at = self._names.index(self.name) if self.name in self._names else len(args)
        if at < len(args):
            args = (*args[:at], self._changed(args[at], self._path), *args[at + 1:])
        elif self.name in kwargs:
            kwargs = {**kwargs, self.name: self._changed(kwargs[self.name], self._path)}
        elif self.name not in self._names + self._by_name and not getattr(self._step, "optional", False):
            raise ArgumentError(f"{self._where} was called without '{self.name}'")
        return args, kwargs

    def on_output(self, _: torch.nn.Module, args: Tuple[Any, ...], output: Any) -> Any:
        return self._changed(output, self._path)

    def _changed(self, value: Any, path: Tuple[int, ...]) -> Any:
        """The step's work on what is at this place of a tuple or list; an argument that is None stays it."""
        if value is None:
            return None
        if not path:
            return self._done(value)
        if not isinstance(value, (tuple, list)) or path[0] >= len(value):
            of = f"of {len(value)}" if isinstance(value, (tuple, list)) else "and no tuple"
            raise ArgumentError(f"{self._where}: {self._step}: '{self._step.what}' wants place {path[0]} of a tuple, "
                                f"there is a {type(value).__name__} {of}")
        parts = [*value[:path[0]], self._changed(value[path[0]], path[1:]), *value[path[0] + 1:]]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)

    def _done(self, value: Any) -> Any:
        wanted = getattr(self._step, "wants", torch.Tensor)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ArgumentError(f"{self._where}: {self._step}: '{self._step.what}' is a {type(value).__name__}, wanted "
                                f"{'a tensor' if wanted is torch.Tensor else 'a number'}")
        if wanted is torch.Tensor and (value.layout is not torch.strided or value.is_nested):
            raise ArgumentError(f"{self._where}: {self._step}: '{self._step.what}' is of {value.layout}, wanted a "
                                "dense tensor")
        try:
            return self._apply(value)
        except (ArgumentError, UnsupportedError) as error:
            raise type(error)(f"{self._where}: {self._step}: {error}") from error


def _place(what: Any) -> Tuple[str, Tuple[int, ...]]:
    """`output.0`: a name, and places in tuples."""
    name, *path = what.split(".") if isinstance(what, str) else ("",)
    if not name or not all(re.fullmatch("[0-9]+", place) for place in path):
        raise ArgumentError(f"parallelize: a step is of {what!r}, wanted an argument's name or 'output', and places in "
                            "tuples: 'output.0'")
    return name, tuple(int(place) for place in path)
