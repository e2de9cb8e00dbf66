"""A model under experiment, which is afterwards what it was: parameters, buffers, attributes, modes, random numbers."""
from __future__ import annotations

import contextlib
import random
import sys
import traceback
import weakref
from types import MappingProxyType
from typing import AbstractSet, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Tuple

import torch
from torch.nn.modules import batchnorm, instancenorm
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import ArgumentError
from .held import Held, is_same, memory_of
from .trees import fresh, tensors_of

_TINY = 1e-3  #: parameters below are as zero: the scales of layers that begin as nothing
_LEARNING = batchnorm._BatchNorm, instancenorm._InstanceNorm
_writing: "weakref.WeakKeyDictionary[torch.nn.Module, AbstractSet[str]]" = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def kept(model: torch.nn.Module, *given: Any, written: Mapping[torch.Tensor, torch.Tensor] = MappingProxyType({})
         ) -> Iterator[Callable[[], None]]:
    """Within, the model is in eval mode, but for norms that learn, without gradients and not compiled, and parameters
    that are zero, or nearly so, are small noise while their module runs: such a gate hides what lies behind it.
    What it gives puts back the state of the model, and of what it is given, as it is done at the end: for a model
    that keeps what it was given. Parameters that it writes to are `written`, with their values."""
    held, weights = Held(model, *given), [_weight(p, written) for p in model.parameters()]
    hooks = [(each, dict(each)) for module in model.modules() for each in _hooks(module)]
    training = [(module, module.training) for module in model.modules()]
    handles = [handle for module in model.modules() for handle in _noise(module)]

    def put_back() -> None:
        held.put_back()
        with torch.no_grad():
            for weight in weights:
                weight()
    try:
        for module, _ in training:
            set_eval(module)
        with torch.no_grad(), same_random(), _uncompiled():
            yield put_back
    finally:
        for handle in handles:
            handle.remove()
        for each, were in hooks:
            if list(each) != list(were):
                each.clear()
                each.update(were)
        put_back()
        for module, mode in training:
            module.training = mode


def learns(module: torch.nn.Module) -> bool:
    """Is it a norm in training, whose means are of the rows that it gets, and which keeps them for eval mode?"""
    return isinstance(module, _LEARNING) and module.training and module.track_running_stats and \
        not isinstance(module, torch.nn.SyncBatchNorm)


def learning_in(model: torch.nn.Module) -> Tuple[str, ...]:
    """Their names."""
    return tuple(name for name, module in model.named_modules() if learns(module))


@contextlib.contextmanager
def telling_values(model: torch.nn.Module) -> Iterator[None]:
    """Of one value per channel such a norm takes no mean: which it is, and what helps."""
    try:
        yield
    except ValueError as error:
        running = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
        for name, module in model.named_modules() if "more than 1 value per channel" in str(error) else ():
            if learns(module) and any(module is each for each in running):
                raise ArgumentError(f"'{name}' ({type(module).__name__}) is in training and gets one value per "
                                    "channel, of which it takes no mean: wanted model.eval() before, or arguments "
                                    "with more samples or rows") from error
        raise


def set_eval(module: torch.nn.Module) -> None:
    """It alone, and not by `eval`, where some write to their parameters. A norm that learns stays in training: in eval
    mode it would hide that it mixes rows."""
    module.training = learns(module)


def _hooks(module: torch.nn.Module) -> List[Dict[Any, Any]]:
    return [hooks for name, hooks in vars(module).items() if "_hooks" in name and isinstance(hooks, dict)]


def _weight(p: torch.nn.Parameter, written: Mapping[torch.Tensor, torch.Tensor]) -> Callable[[], None]:
    """What puts a parameter's memory in its place again."""
    data, grad, wants = p.data, p.grad, p.requires_grad

    def put_back() -> None:
        if p.grad is not grad or p.requires_grad != wants:
            p.grad = grad
            p.requires_grad_(wants)
        if not _is_at(p, data):
            p.data = data
        if p in written and not is_same(p, written[p]):
            with torch.inference_mode(p.is_inference()), torch.no_grad():
                p.copy_(written[p])
    return put_back


def _is_at(p: torch.Tensor, data: torch.Tensor) -> bool:
    if type(p.data) is not torch.Tensor or p.layout is not torch.strided:
        return True
    return (p.shape, p.dtype, p.data_ptr()) == (data.shape, data.dtype, data.data_ptr())


@contextlib.contextmanager
def writing(model: torch.nn.Module, written: Dict[torch.Tensor, torch.Tensor]) -> Iterator[None]:
    """`written` gets the parameters that are written to within, and what they were: those of a module, whatever writes
    to them while it runs, and of any other what operators of torch write, and others that say so. Beside them there is
    memory for the parameters of the modules that are running."""
    running: List[List[Tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = []

    def enter(module: torch.nn.Module, _: Any) -> None:
        running.append([(p, p.data, p.detach().clone()) for p in module.parameters(False)
                        if is_wide(p) and not p.is_meta])

    def leave(*_: Any) -> None:
        written.update((p, value) for p, data, value in running.pop() if p not in written and not is_same(data, value))
    handles = [handle for module in model.modules() if any(True for _ in module.parameters(False)) for handle in (
        module.register_forward_pre_hook(enter, prepend=True), module.register_forward_hook(leave, always_call=True))]
    try:
        with _Writes(model, written):
            yield
    finally:
        for handle in handles:
            handle.remove()


def note_writing(model: torch.nn.Module, written: Iterable[torch.Tensor]) -> None:
    """What is found of it once."""
    _writing[model] = {name for name, p in model.named_parameters() for other in written if p is other}


def written_by(model: torch.nn.Module, args: Any, kwargs: Any) -> AbstractSet[str]:
    """Names of the parameters that its forward writes to; none, where it raises."""
    if model not in _writing:
        written: Dict[torch.Tensor, torch.Tensor] = {}
        try:
            with kept(model, args, kwargs, written=written), writing(model, written):
                given, named = fresh(model, args, kwargs)
                model(*given, **named)
        except Exception:  # whatever a model raises
            return frozenset()
        note_writing(model, written)
    return _writing[model]


class _Writes(TorchDispatchMode):
    """Before an operator writes to memory of parameters, whoever calls it: a module may write to those of another one,
    which does not run."""

    supports_higher_order_operators = True  #: conditions, flex_attention: what is written within them is not seen

    def __init__(self, model: torch.nn.Module, written: Dict[torch.Tensor, torch.Tensor]):
        super().__init__()
        self._written, self._at = written, {}  # type: ignore[var-annotated]
        for p in model.parameters():
            if is_wide(p) and memory_of(p):
                self._at.setdefault(memory_of(p), []).append((p, p.data))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        arguments = func._schema.arguments if isinstance(func, torch._ops.OpOverload) else ()
        writes = [args[at] if at < len(args) else kwargs.get(each.name) for at, each in enumerate(arguments)
                  if each.alias_info is not None and each.alias_info.is_write]
        for x in tensors_of(writes).values():
            for p, data in self._at.get(memory_of(x), ()):
                if p not in self._written:
                    self._written[p] = data.clone()
        return func(*args, **kwargs)


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
            p.data = (torch.randn(p.shape, generator=draw, device="cpu") * 0.1).to(p.device, p.dtype)

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
