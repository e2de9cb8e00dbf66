"""Models in a wider dtype while they are compared: in half precision what a row changes is as small as rounding."""
from __future__ import annotations

import contextlib
import threading
from typing import Any, Dict, Iterator, List, Mapping, Tuple

import torch

from .kept import kept
from .trees import fresh, tensors_of

HALF = torch.float16, torch.bfloat16
Halves = Mapping[str, torch.dtype]  #: of modules: what their first results are in


@contextlib.contextmanager
def widened(model: torch.nn.Module, args: Any, kwargs: Any) -> Iterator[Tuple[Any, Any, Halves]]:
    """Within, what is in half precision is in float32, in memory of its own: parameters, buffers, and the arguments,
    which it gives; and the modules whose results are in half precision otherwise. Autocast that methods of its modules
    enter is off. Where the model does not run so (kernels of half precision alone, no memory) all is as it is."""
    with contextlib.ExitStack() as stack:
        given, halves = (args, kwargs), {}  # type: Tuple[Any, Any], Halves
        if _has_halves(model, args, kwargs):
            own = _halves(model, args, kwargs)
            trial = contextlib.ExitStack()
            try:
                trial.enter_context(_without_autocast())
                trial.enter_context(converted(model, torch.float32))
                wide = fresh(model, args, kwargs, lambda _, x: in_dtype(x, torch.float32))
                with kept(model, *wide):
                    once = fresh(model, *wide)
                    model(*once[0], **once[1])
                given, halves = wide, own
                stack.enter_context(trial.pop_all())
            except Exception:  # whatever a model raises
                trial.close()
        yield (*given, halves)


def _has_halves(model: torch.nn.Module, args: Any, kwargs: Any) -> bool:
    return any(map(_enters_autocast, {type(module) for module in model.modules()})) or any(
        x.dtype in HALF for x in (*model.parameters(), *model.buffers(), *tensors_of(args).values(),
                                  *tensors_of(kwargs).values()))


def _enters_autocast(kind: type) -> bool:
    """Does a method name it, or is one decorated with it?"""
    codes = (getattr(getattr(value, "__func__", value), "__code__", None)
             for base in kind.__mro__ if base is not torch.nn.Module for value in vars(base).values())
    return any("autocast" in name for code in codes if code is not None for name in (code.co_name, *code.co_names))


_offs: List[None] = []  #: as many as are entered, which threads leave in any order
_offs_change = threading.Lock()
_enter = torch.autocast.__enter__


def _enter_off(self: Any) -> Any:
    was, self._enabled = self._enabled, False  # a decorator's is entered again and again
    try:
        return _enter(self)
    finally:
        self._enabled = was


@contextlib.contextmanager
def _without_autocast() -> Iterator[None]:
    """Within it is off, whoever enters it: ranks of a proof are threads."""
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        with _offs_change:
            _offs.append(None)
            setattr(torch.autocast, "__enter__", _enter_off)
        try:
            yield
        finally:
            with _offs_change:
                _offs.pop()
                if not _offs:
                    setattr(torch.autocast, "__enter__", _enter)


def _halves(model: torch.nn.Module, args: Any, kwargs: Any) -> Halves:
    """Of the model as it is; all modules, where it does not run."""
    found: Dict[str, torch.dtype] = {}
    handles = []
    for name, module in model.named_modules():
        def look(_: Any, given: Any, out: Any, name: str = name) -> None:
            found.update({name: x.dtype for x in list(tensors_of(out).values())[:1] if x.dtype in HALF})
        handles.append(module.register_forward_hook(look))
    try:
        with kept(model, args, kwargs):
            once = fresh(model, args, kwargs)
            model(*once[0], **once[1])
    except Exception:  # whatever a model raises
        found.update({name: torch.bfloat16 for name, _ in model.named_modules()})
    finally:
        for handle in handles:
            handle.remove()
    return found


@contextlib.contextmanager
def converted(module: torch.nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Within, parameters and buffers of fewer bytes are others, of this dtype: also where several modules have one."""
    were, made = [], {}  # type: ignore[var-annotated]
    try:
        for each in module.modules():
            for name, x in (*each._parameters.items(), *each._buffers.items()):
                if x is not None and _is_narrow(x, dtype):
                    if id(x) not in made:
                        wide = x.detach().to(dtype)
                        made[id(x)] = torch.nn.Parameter(wide, x.requires_grad) if name in each._parameters else wide
                    were.append((each, name, x))
                    setattr(each, name, made[id(x)])  # as a module does it that keeps them in lists, too
        yield
    finally:
        for each, name, x in were:
            setattr(each, name, x)


def in_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.detach().to(dtype).requires_grad_(x.requires_grad) if _is_narrow(x, dtype) else x


def _is_narrow(x: torch.Tensor, dtype: torch.dtype) -> bool:
    narrow = (*HALF, torch.float32) if dtype == torch.float64 else HALF
    return x.dtype in narrow and type(x) in (torch.Tensor, torch.nn.Parameter)
