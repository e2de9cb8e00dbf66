"""One device for all that a model is tried with: what is computed nowhere, or in several places, cannot be compared."""
from __future__ import annotations

from typing import Any, Dict, Iterator, Tuple

import torch
from torch.nn.parameter import is_lazy

from ...errors import ArgumentError, UnsupportedError
from .trees import tensors_of


def need_one_device(what: str, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    """`what` begins the sentence."""
    devices: Dict[str, str] = {}
    for name, x in _tensors(model, args, kwargs):
        devices.setdefault(str(x.device), name)
    if "meta" in devices:
        raise UnsupportedError(f"{what}: {devices['meta']} is on the device meta, where nothing is computed: wanted "
                               "tensors with elements")
    if len(devices) > 1:
        raise UnsupportedError(f"{what}: " + ", ".join(f"{name} is on {device}" for device, name in devices.items())
                               + ": wanted parameters, buffers and arguments on one device")


def need_runnable(what: str, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    """As a module of Python's, whose parameters are there."""
    if getattr(model.forward, "__func__", None) is getattr(torch.nn.Module, "forward", None):
        raise ArgumentError(f"{what}: {type(model).__name__} has no forward, wanted a module that runs")
    for name, module in model.named_modules():
        which = f"'{name}' is" if name else "it is"
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedError(f"{what}: {which} a {type(module).__name__}, wanted modules before torch.jit, whose "
                                   "calls can be seen")
        lazy = [at for at, x in (*module._parameters.items(), *module._buffers.items()) if is_lazy(x)]
        if lazy:
            raise UnsupportedError(f"{what}: {which} a {type(module).__name__} whose '{lazy[0]}' is not there yet: run "
                                   "the model once before")
    for name, x in {**tensors_of(args), **tensors_of(kwargs)}.items():
        if x.is_nested:
            raise UnsupportedError(f"{what}: '{name}' is a nested tensor, wanted one with an extent in every dim")


def _tensors(model: torch.nn.Module, args: Any, kwargs: Any) -> Iterator[Tuple[str, torch.Tensor]]:
    yield from ((f"'{name}'", p) for name, p in model.named_parameters())
    yield from ((f"the buffer '{name}'", x) for name, x in model.named_buffers())
    for name, x in {**tensors_of(args), **tensors_of(kwargs)}.items():
        if x.dim() > 0 or x.is_meta:  # a number may be on the host
            yield f"the argument '{name}'", x


def note_dtypes(error: Exception, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    """To what a model raises: arguments may be of another dtype than all of its parameters."""
    of = {p.dtype for p in model.parameters() if p.is_floating_point()}
    other = [f"'{name}' is {x.dtype}" for name, x in {**tensors_of(args), **tensors_of(kwargs)}.items()
             if x.is_floating_point() and of and x.dtype not in of]
    if other and hasattr(error, "add_note"):
        error.add_note(f"heddle: {', '.join(other)}, and the parameters are {', '.join(sorted(map(str, of)))}")
