"""Steps on what goes into a module and what comes out of it."""
from __future__ import annotations

import copy
import dataclasses
import fnmatch
import functools
import inspect
import operator
import re
import struct
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import torch

from ..errors import ArgumentError, MismatchError, UnsupportedError
from .agreement import not_compiled
from .ranks import Ranks
from .within import Put, is_within

Apply = Callable[[Any], Any]
_Place = Tuple[str, Tuple[str, ...]]  #: a name, and places in tuples or mappings


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
        self._whats = _whats(step)
        self._places = [_place(what) for what in self._whats]
        self.name = self._places[0][0]
        try:
            self._around: Any = step._around(ranks) if hasattr(step, "_around") else None
            self._apply = self._around.given if self._around else step._made(ranks)
        except ArgumentError as error:
            raise ArgumentError(f"{self._where}: {step}: {error}") from error
        parameters = inspect.signature(module.forward).parameters.values()
        #: of arguments, in their order
        self._names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._by_name = [p.name for p in parameters if p.kind == p.KEYWORD_ONLY]
        for name, _ in self._places:
            if name not in ("output", *self._names, *self._by_name) and not any(
                    p.kind == p.VAR_KEYWORD and p.name != name for p in parameters):
                raise ArgumentError(f"{self._where} has no argument '{name}': "
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
        return self._changed(output, _place(self._step.out)[1], self._around.left, self._step.out)

    @not_compiled
    def on_arguments(self, _: torch.nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        if len(self._places) == 1:
            return self._argument(0, args, kwargs, self._apply)
        given: List[Any] = [None] * len(self._places)
        for at in range(len(given)):
            self._argument(at, args, kwargs, functools.partial(operator.setitem, given, at))
        for at, made in enumerate(self._once(given)):
            args, kwargs = self._argument(at, args, kwargs, functools.partial(_other, made))
        return args, kwargs

    def _argument(self, which: int, args: Tuple[Any, ...], kwargs: Dict[str, Any], apply: Apply) -> Any:
        name, path = self._places[which]
        at = self._names.index(name) if name in self._names else len(args)
        if at < len(args):
            args = (*args[:at], self._changed(args[at], path, apply, self._whats[which]), *args[at + 1:])
        elif name in kwargs:
            kwargs = {**kwargs, name: self._changed(kwargs[name], path, apply, self._whats[which])}
        elif name not in self._names + self._by_name and not getattr(self._step, "optional", False):
            raise ArgumentError(f"{self._where} was called without '{name}'")
        return args, kwargs

    def _once(self, given: Sequence[Any]) -> List[Any]:
        """The work on each. What is one tensor on all ranks is moved once. The ranks tell one another, since one of
        them may have a copy where others have the tensor itself: `contiguous()` looks at its strides. They do in every
        pass, since that may be otherwise in the next one, on one rank alone."""
        first = [-1 if x is None else next(at for at, y in enumerate(given) if y is x) for x in given]
        said = self._ranks.comm.allgather(struct.pack(f"={len(given)}b", *first))
        every = list(zip(*(struct.unpack(f"={len(given)}b", mine) for mine in said)))
        made: Dict[Tuple[int, ...], Any] = {}
        for what, x, on_ranks in zip(self._whats, given, every):
            if -1 in on_ranks and len(set(on_ranks)) > 1:
                raise MismatchError(f"{self._at(what)}: '{what}' is None on rank {on_ranks.index(-1)} and not on rank "
                                    f"{next(at for at, n in enumerate(on_ranks) if n >= 0)}")
            if on_ranks not in made:
                made[on_ranks] = x if x is None else self._done(x, self._apply, what)
        return [made[on_ranks] for on_ranks in every]

    @not_compiled
    def on_output(self, _: torch.nn.Module, args: Tuple[Any, ...], output: Any) -> Any:
        return self._changed(output, self._places[0][1], self._apply, self._step.what)

    def _at(self, what: str) -> str:
        """Where a refusal is, and of which argument."""
        return f"{self._where}: {self._step.of(what)}"

    def _changed(self, value: Any, path: Tuple[str, ...], apply: Apply, what: str) -> Any:
        """The step's work on what is at this place of a tuple or list; an argument that is None stays it."""
        if value is None:
            return None
        if not path:
            return self._done(value, apply, what)
        if isinstance(value, Mapping):
            return self._in_mapping(value, path, apply, what)
        if dataclasses.is_dataclass(value) and path[0] in {field.name for field in dataclasses.fields(value)}:
            other = copy.copy(value)
            object.__setattr__(other, path[0], self._changed(getattr(value, path[0]), path[1:], apply, what))
            return other
        at, is_all = int(path[0]) if path[0].isdecimal() else -1, path[0] == "*"
        if not isinstance(value, (tuple, list)) or not (is_all or 0 <= at < len(value)):
            of = f"of {len(value)}" if isinstance(value, (tuple, list)) else "and no tuple"
            raise ArgumentError(f"{self._at(what)}: '{what}' wants place {path[0]} of a tuple, there is a "
                                f"{type(value).__name__} {of}")
        parts = [self._changed(part, path[1:], apply, what) if is_all or i == at else part
                 for i, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)

    def _in_mapping(self, value: Any, path: Tuple[str, ...], apply: Apply, what: str) -> Any:
        """By key, or by its number, as of a tuple: what a model returns may be either."""
        keys = list(value)
        key = path[0] if path[0] in keys else keys[int(path[0])] if path[0].isdecimal() and int(path[0]) < len(
            keys) else None
        if key is None:
            raise ArgumentError(f"{self._at(what)}: '{what}' wants '{path[0]}' of a {type(value).__name__}, which has "
                                f"{', '.join(map(repr, keys)) or 'nothing'}")
        other = copy.copy(value)
        other[key] = self._changed(value[key], path[1:], apply, what)
        return other

    def _done(self, value: Any, apply: Apply, what: str) -> Any:
        wanted = getattr(self._step, "wants", torch.Tensor)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ArgumentError(f"{self._at(what)}: '{what}' is a {type(value).__name__}, wanted "
                                f"{'a tensor' if wanted is torch.Tensor else 'a number'}")
        if wanted is torch.Tensor and (value.layout is not torch.strided or value.is_nested):
            raise ArgumentError(f"{self._at(what)}: '{what}' is of {value.layout}, wanted a dense tensor")
        try:
            return apply(value)
        except (ArgumentError, UnsupportedError) as error:
            raise type(error)(f"{self._at(what)}: {error}") from error


def is_of_output(step: Any) -> bool:
    """Does it happen behind the module?"""
    return _place(_whats(step)[0])[0] == "output"


def _whats(step: Any) -> Tuple[Any, ...]:
    """What it is of: one argument or result, or several arguments of a step that moves what they are."""
    if not (isinstance(step.what, tuple) and getattr(step, "moves", False)):
        return (step.what,)
    if len(set(step.what)) < max(len(step.what), 2) or any(_place(what)[0] == "output" for what in step.what):
        raise ArgumentError(f"parallelize: a step is of {step.what!r}, wanted several arguments, each once")
    return step.what


def _other(made: Any, _: Any) -> Any:
    return made


class _Both:
    """Two handles as one."""

    def __init__(self, *handles: Any):
        self._handles = handles

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def _place(what: Any) -> _Place:
    """`output.0`, `output.sample`."""
    name, *path = what.split(".") if isinstance(what, str) else ("",)
    if not name or not all(re.fullmatch(r"[0-9]+|\*|[a-zA-Z_][a-zA-Z0-9_]*", place) for place in path):
        raise ArgumentError(f"parallelize: a step is of {what!r}, wanted an argument's name or 'output', and places in "
                            "tuples: 'output.0', 'residuals.*' of all of them")
    return name, tuple(path)
