"""Is a call one that nobody but autograd looks at?

An operator of torch is seen by compilers, tracers, modes, transforms and the profiler, and going past all of them takes
longer than a small switch. Where none is there, the same may be called without."""
from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

import torch
from torch.autograd import forward_ad


def _observers() -> Tuple[Callable[[], Any], ...]:
    """Each says something true where somebody looks on. Not all are torch's to show: where this torch does not have one
    of them, somebody always does."""
    try:
        inside, transforms = torch._C, torch._C._functorch  # type: ignore[attr-defined]
        forward_ad._current_level
        return (inside._len_torch_dispatch_stack, inside._len_torch_function_stack, transforms.peek_interpreter_stack,
                inside._get_tracing_state, torch.autograd._profiler_enabled)
    except AttributeError:
        return (lambda: True, lambda: True, lambda: None, lambda: True, lambda: True)


_modes, _functions, _transform, _tracing, _profiled = _observers()
_PLAIN = torch.Tensor, torch.nn.Parameter


def is_eager(x: torch.Tensor) -> bool:
    return not (torch.compiler.is_compiling() or type(x) not in _PLAIN or _modes() or _functions() or _transform()
                or _tracing() or _profiled() or forward_ad._current_level >= 0
                or x.is_meta or x.is_neg() or x._is_zerotensor())  # it is not what its memory holds


def is_transformed() -> bool:
    """Is this within a transform of torch.func (grad, vmap, ...)? Those do not see through a library's operators."""
    return not torch.compiler.is_compiling() and _transform() is not None


def tangent_of(x: torch.Tensor) -> Optional[torch.Tensor]:
    """That of forward-mode differentiation, which an operator of a library does not see; None: there is none."""
    if torch.compiler.is_compiling() or getattr(forward_ad, "_current_level", -1) < 0:
        return None
    return forward_ad.unpack_dual(x).tangent


def static(number: Any) -> Any:
    """A number that a compiler may have as a symbol, as a constant of its graph."""
    if number is None or not torch.compiler.is_compiling():
        return number
    if not isinstance(number, float):
        return len(range(number)) - len(range(-number))  # one of them has none
    from torch.fx.experimental.symbolic_shapes import guard_scalar  # slow, and here already
    return guard_scalar(number)
