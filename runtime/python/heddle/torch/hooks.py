"""Steps on what goes into a module and what comes out of it."""
from __future__ import annotations

import copy
import fnmatch
import inspect
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch

from ..errors import ArgumentError, UnsupportedError
from .agreement import not_compiled
from .ranks import Ranks
from .within import Put, is_within

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
    if is_within(step):
        return Put(module, pattern, step, ranks)
    made = _Step(module, pattern, step, ranks)
    if hasattr(step, "_around"):
        return made.around(module)
    if made.name == "output":
        return module.register_forward_hook(made.on_output)
    return module.register_forward_pre_hook(made.on_arguments, with_kwargs=True)


def around_in(model: torch.nn.Module) -> List[str]:
    """Modules that run on more rows than this rank's, by a step that cuts their results again."""
    return [name for name, module in model.named_modules()
            if any(hasattr(getattr(getattr(hook, "__self__", None), "_step", None), "_around")
                   for hook in module._forward_pre_hooks.values())]


class _Step:
    """One step on one module."""

    def __init__(self, module: torch.nn.Module, pattern: str, step: Any, ranks: Ranks):
        self._ranks = ranks
        self._where = f"parallelize: '{pattern}' ({type(module).__name__})"
        self._step = step
        self.name, self._path = _place(step.what)
        try:
            self._around: Any = step._around(ranks) if hasattr(step, "_around") else None
            self._apply = self._around.given if self._around else step._made(ranks)
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

    def around(self, module: torch.nn.Module) -> "_Both":
        """What is done to an argument is undone behind the module."""
        if self.name == "output" or _place(self._step.out)[0] != "output":
            raise ArgumentError(f"{self._where}: {self._step}: wanted an argument and an output")
        return _Both(module.register_forward_pre_hook(self.on_arguments, with_kwargs=True),
                     module.register_forward_hook(self.on_result))

    # Where the graph breaks at a step, a compiler need not look at all that it does.

    @not_compiled
    def on_result(self, _: torch.nn.Module, args: Tuple[Any, ...], output: Any) -> Any:
        return self._changed(output, _place(self._step.out)[1], self._around.left)

    @not_compiled
    def on_arguments(self, _: torch.nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        at = self._names.index(self.name) if self.name in self._names else len(args)
        if at < len(args):
            args = (*args[:at], self._changed(args[at], self._path), *args[at + 1:])
        elif self.name in kwargs:
            kwargs = {**kwargs, self.name: self._changed(kwargs[self.name], self._path)}
        elif self.name not in self._names + self._by_name and not getattr(self._step, "optional", False):
            raise ArgumentError(f"{self._where} was called without '{self.name}'")
        return args, kwargs

    @not_compiled
    def on_output(self, _: torch.nn.Module, args: Tuple[Any, ...], output: Any) -> Any:
        return self._changed(output, self._path)

    def _changed(self, value: Any, path: Tuple[str, ...], apply: Optional[Apply] = None) -> Any:
        """The step's work on what is at this place of a tuple or list; an argument that is None stays it."""
        if value is None:
            return None
        if not path:
            return self._done(value, apply or self._apply)
        if isinstance(value, Mapping):
            return self._in_mapping(value, path, apply)
        at = int(path[0]) if path[0].isdecimal() else -1
        if not isinstance(value, (tuple, list)) or not 0 <= at < len(value):
            of = f"of {len(value)}" if isinstance(value, (tuple, list)) else "and no tuple"
            raise ArgumentError(f"{self._where}: {self._step}: '{self._step.what}' wants place {path[0]} of a tuple, "
                                f"there is a {type(value).__name__} {of}")
        parts = [*value[:at], self._changed(value[at], path[1:], apply), *value[at + 1:]]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)

    def _in_mapping(self, value: Any, path: Tuple[str, ...], apply: Optional[Apply]) -> Any:
        """By key, or by its number, as of a tuple: what a model returns may be either."""
        keys = list(value)
        key = path[0] if path[0] in keys else keys[int(path[0])] if path[0].isdecimal() and int(path[0]) < len(
            keys) else None
        if key is None:
            raise ArgumentError(f"{self._where}: {self._step}: '{self._step.what}' wants '{path[0]}' of a "
                                f"{type(value).__name__}, which has {', '.join(map(repr, keys)) or 'nothing'}")
        other = copy.copy(value)
        other[key] = self._changed(value[key], path[1:], apply)
        return other

    def _done(self, value: Any, apply: Apply) -> Any:
        wanted = getattr(self._step, "wants", torch.Tensor)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ArgumentError(f"{self._where}: {self._step}: '{self._step.what}' is a {type(value).__name__}, wanted "
                                f"{'a tensor' if wanted is torch.Tensor else 'a number'}")
        if wanted is torch.Tensor and (value.layout is not torch.strided or value.is_nested):
            raise ArgumentError(f"{self._where}: {self._step}: '{self._step.what}' is of {value.layout}, wanted a "
                                "dense tensor")
        try:
            return apply(value)
        except (ArgumentError, UnsupportedError) as error:
            raise type(error)(f"{self._where}: {self._step}: {error}") from error


class _Both:
    """Two handles as one."""

    def __init__(self, *handles: Any):
        self._handles = handles

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def _place(what: Any) -> Tuple[str, Tuple[str, ...]]:
    """`output.0`, `output.sample`: a name, and places in tuples or mappings."""
    name, *path = what.split(".") if isinstance(what, str) else ("",)
    if not name or not all(re.fullmatch("[0-9]+|[a-zA-Z_][a-zA-Z0-9_]*", place) for place in path):
        raise ArgumentError(f"parallelize: a step is of {what!r}, wanted an argument's name or 'output', and places in "
                            "tuples: 'output.0'")
    return name, tuple(path)
