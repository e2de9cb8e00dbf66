"""A model under experiment, which is afterwards what it was: parameters, buffers, attributes, modes, random numbers."""
from __future__ import annotations

import contextlib
import random
import sys
from typing import Any, Dict, Iterator, List, Tuple

import torch

_CONTAINERS = list, dict, set
_TINY = 1e-3  #: parameters below are as zero: the scales of layers that begin as nothing


@contextlib.contextmanager
def kept(model: torch.nn.Module) -> Iterator[None]:
    """Within, the model is in eval mode and without gradients, and parameters that are zero, or nearly so, are small
    noise while their module runs: such a gate hides what lies behind it."""
    attributes = [(module, _attributes(module)) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    training = [(module, module.training) for module in model.modules()]
    handles = [handle for module in model.modules() for handle in _noise(module)]
    states = _random_states()
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()
        _put_back(attributes)
        with torch.no_grad():
            for buffer, value in buffers:
                if not _same(buffer, value):
                    buffer.copy_(value)
        for each, mode in training:
            each.training = mode
        _restore_random(states)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit by bit, but for NaNs, which differ from themselves and are then written once more."""
    return a.shape == b.shape and torch.equal(a, b)


def _attributes(module: torch.nn.Module) -> Dict[str, Any]:
    """What is there, and of containers what is in them: caches are kept in both."""
    return {name: (value, type(value)(value) if type(value) in _CONTAINERS else None)
            for name, value in vars(module).items() if name != "training" and not name.endswith("_hooks")
            and not name.endswith(("_hooks_with_kwargs", "_hooks_always_called"))}


def _put_back(attributes: List[Tuple[torch.nn.Module, Dict[str, Any]]]) -> None:
    for module, were in attributes:
        there = vars(module)
        for name in [name for name in there if name not in were and name != "training" and "_hooks" not in name]:
            del there[name]
        for name, (value, inside) in were.items():
            there[name] = value
            if type(value) is list:
                value[:] = inside
            elif type(value) is dict:
                value.clear()
                value.update(inside)
            elif type(value) is set:
                value.clear()
                value.update(inside)


def _noise(module: torch.nn.Module) -> List[Any]:
    """While the module runs its own parameters that are as zero hold noise, the same in every call."""
    zero = [(at, p) for at, p in enumerate(module.parameters(recurse=False))
            if p.is_floating_point() and p.numel() > 0 and not p.is_meta and not (p.detach().abs() > _TINY).any()]
    if not zero:
        return []
    were: List[List[torch.Tensor]] = []

    def enter(*_: Any) -> None:
        were.append([p.data for _, p in zero])
        for at, p in zero:
            draw = torch.Generator().manual_seed(at)
            p.data = (torch.randn(p.shape, generator=draw) * 0.1).to(p.device, p.dtype)

    def leave(*_: Any) -> None:
        for (at, gate), value in zip(zero, were.pop()):
            gate.data = value
    return [module.register_forward_pre_hook(enter, prepend=True),
            module.register_forward_hook(leave, always_call=True)]


def _random_states() -> Tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return (torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
            random.getstate(), numpy.random.get_state() if numpy else None)


def _restore_random(states: Tuple[Any, ...]) -> None:
    host, devices, python, of_numpy = states
    torch.set_rng_state(host)
    if devices is not None:
        torch.cuda.set_rng_state_all(devices)
    random.setstate(python)
    if of_numpy is not None:
        sys.modules["numpy"].random.set_state(of_numpy)
