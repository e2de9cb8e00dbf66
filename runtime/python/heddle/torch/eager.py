"""Is a call one that nobody but autograd looks at?

An operator of torch is seen by compilers, tracers, modes, transforms and the profiler, and going past all of them takes
longer than a small switch. Where none is there, the same may be called without."""
from __future__ import annotations

from typing import Any, Callable, Tuple

import torch
from torch.autograd import forward_ad


def _observers() -> Tuple[Callable[[], Any], ...]:
    """Each says something true where somebody looks on. Not all are torch's to show: one that this torch does not have
    is there always."""
    try:
        inside, transforms = torch._C, torch._C._functorch  # type: ignore[attr-defined]
        modes, functions = inside._len_torch_dispatch_stack, inside._len_torch_function_stack
        stack, tracing, profiled = (transforms.peek_interpreter_stack, inside._get_tracing_state,
                                    torch.autograd._profiler_enabled)
        forward_ad._current_level
    except AttributeError:
        return (lambda: True,)
    return modes, functions, stack, tracing, profiled, lambda: forward_ad._current_level >= 0


_OBSERVERS = _observers()


def is_eager(x: torch.Tensor) -> bool:
    if torch.compiler.is_compiling() or type(x) not in (torch.Tensor, torch.nn.Parameter):
        return False
    for looks_on in _OBSERVERS:
        if looks_on():
            return False
    return True
