"""A model under experiment, which is afterwards what it was: parameters, buffers, attributes, modes, random numbers."""
from __future__ import annotations

import collections
import contextlib
import copy
import random
import sys
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

import torch

_CONTAINERS = list, dict, set, collections.deque, collections.OrderedDict, collections.defaultdict
_TINY = 1e-3  #: parameters below are as zero: the scales of layers that begin as nothing
_Held = List[Tuple[Any, Any]]  #: containers, and what is in them


@contextlib.contextmanager
def kept(model: torch.nn.Module) -> Iterator[Callable[[], None]]:
    """Within, the model is in eval mode, without gradients and not compiled, and parameters that are zero, or nearly
    so, are small noise while their module runs: such a gate hides what lies behind it. What it gives puts back
    attributes and buffers, as it is done at the end: for a model that keeps what it was given."""
    attributes = [(module, _attributes(module)) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    training = [(module, module.training) for module in model.modules()]
    handles = [handle for module in model.modules() for handle in _noise(module)]

    def put_back() -> None:
        _put_back(attributes)
        with torch.no_grad():
            for buffer, value in buffers:
                if not _same(buffer, value):
                    buffer.copy_(value)
    try:
        model.eval()
        with torch.no_grad(), same_random(), _uncompiled():
            yield put_back
    finally:
        for handle in handles:
            handle.remove()
        put_back()
        for each, mode in training:
            each.training = mode


@contextlib.contextmanager
def same_random() -> Iterator[None]:
    """Random numbers of torch, Python and NumPy are afterwards as they were."""
    states = _random_states()
    try:
        yield
    finally:
        _restore_random(states)


def _uncompiled() -> Any:
    """A compiler would begin anew for every other shape."""
    stance = getattr(torch.compiler, "set_stance", None)
    return stance("force_eager") if stance else contextlib.nullcontext()


def is_nothing(p: torch.Tensor) -> bool:
    """Is it a gate that hides what it is multiplied with?"""
    if not p.is_floating_point() or p.numel() == 0 or p.is_meta or not is_wide(p):
        return False
    return not bool((p.detach().abs() > _TINY).any())


def is_wide(x: torch.Tensor) -> bool:
    """Dense, of 2 bytes at least: torch knows no arithmetic of others."""
    return x.layout is torch.strided and x.dtype.itemsize > 1


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit by bit, but for NaNs, which differ from themselves and are then written once more."""
    return a.shape == b.shape and a.layout is torch.strided and torch.equal(a, b)


def _attributes(module: torch.nn.Module) -> Tuple[Dict[str, Any], _Held]:
    """What is there, and of containers what is in them, at any depth: caches are kept in both."""
    values = {name: value for name, value in vars(module).items() if name != "training" and "_hooks" not in name}
    held: _Held = []
    _hold(list(values.values()), held, set())
    return values, held


def _hold(values: List[Any], held: _Held, seen: Set[int]) -> None:
    for value in values:
        if type(value) in _CONTAINERS and id(value) not in seen:
            seen.add(id(value))
            held.append((value, copy.copy(value)))
            _hold(list(value.values() if isinstance(value, dict) else value), held, seen)


def _put_back(attributes: List[Tuple[torch.nn.Module, Tuple[Dict[str, Any], _Held]]]) -> None:
    for module, (were, held) in attributes:
        there = vars(module)
        for name in [name for name in there if name not in were and name != "training" and "_hooks" not in name]:
            del there[name]
        there.update(were)
        for value, inside in held:
            if isinstance(value, list):
                value[:] = inside
            else:
                value.clear()
                (value.extend if isinstance(value, collections.deque) else value.update)(inside)


def _noise(module: torch.nn.Module) -> List[Any]:
    """While the module runs its own parameters that are as zero hold noise, the same in every call."""
    zero = [(at, name) for at, (name, p) in enumerate(module.named_parameters(recurse=False)) if is_nothing(p)]
    if not zero:
        return []
    were: List[List[Tuple[torch.Tensor, torch.Tensor]]] = []

    def enter(*_: Any) -> None:
        gates = [module._parameters[name] for _, name in zero]
        were.append([(p, p.data) for p in gates])
        for (at, _), p in zip(zero, gates):
            draw = torch.Generator().manual_seed(at)
            p.data = (torch.randn(p.shape, generator=draw) * 0.1).to(p.device, p.dtype)

    def leave(*_: Any) -> None:
        for gate, value in were.pop():
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
