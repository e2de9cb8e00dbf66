"""Exchanges that run beside the program: in host memory one thread per group, with a communicator of its own; on a
device a stream beside the program's."""
from __future__ import annotations

import functools
import threading
import weakref
from typing import Any, Callable, Optional, Tuple

import torch

from ...comm import Comm
from ..moved import check_device
from ..reshard import resharded
from .groups import second_of
from .side import put

_sides: "weakref.WeakKeyDictionary[Comm, Any]" = weakref.WeakKeyDictionary()


class Handle:
    """A result that is under way. `wait()`, or a call of the handle, has it. Where there are gradients all ranks wait
    for their handles in the same order, which is that of the way back, reversed."""

    def __init__(self, result: Optional[torch.Tensor] = None):
        self._result = result
        self._error: Optional[BaseException] = None
        self._done = threading.Event()
        self._x: Optional[torch.Tensor] = None
        self._way: Any = None
        if result is not None:
            self._done.set()

    def is_completed(self) -> bool:
        return self._done.is_set()

    def wait(self) -> torch.Tensor:
        """The result, or the error of the exchange. Its gradient goes back by an exchange that is waited for."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        x, self._x = self._x, None
        if x is not None and x.requires_grad and torch.is_grad_enabled():
            self._result = _Arrived.apply(x, self._result, self._way)
        return self._result

    __call__ = wait

    def _run(self, call: Callable[[], torch.Tensor]) -> None:
        try:
            self._result = call()
        except BaseException as error:
            self._error = error
        self._done.set()


class _OnSide(Handle):
    """Of a device: enqueued on a stream of its own, behind what the program's stream has so far. What waits is the
    stream that is current at `wait()`, not the program; memory is used again when both streams are through with it."""

    def __init__(self, x: torch.Tensor, line: str, back: str, comm: Comm):
        super().__init__()
        side = _side_of(comm, x.device)
        side.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(side):
            self._result = resharded(x.detach(), line, back, comm)
            self._event = side.record_event()
        x.record_stream(side)
        self._x, self._way = x, (line, back, comm)
        self._done.set()

    def is_completed(self) -> bool:
        return self._event.query()

    def wait(self) -> torch.Tensor:
        assert self._result is not None
        now = torch.cuda.current_stream(self._result.device)
        now.wait_event(self._event)
        self._result.record_stream(now)
        return super().wait()

    __call__ = wait


class _Arrived(torch.autograd.Function):
    """What has come is what was sent, as far as gradients know."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, result: torch.Tensor, way: Any) -> torch.Tensor:
        ctx.way = way
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
        line, back, comm = ctx.way
        return resharded(gradient, back, line, comm), None, None


def started(x: torch.Tensor, line: str, back: str, comm: Comm, group: Any) -> Handle:
    check_device(x, comm)
    if x.is_cuda:
        return _OnSide(x, line, back, comm)
    second = second_of(group)
    handle = Handle()
    handle._x, handle._way = x, (line, back, comm)
    put(second, functools.partial(handle._run, functools.partial(resharded, x.detach(), line, back, second)))
    return handle


def _side_of(comm: Comm, device: torch.device) -> Any:
    """One stream for all exchanges of a communicator, which then come in the same order on all ranks; before products,
    which would leave it no room."""
    if comm not in _sides:
        _sides[comm] = torch.cuda.Stream(device, priority=-1)
    return _sides[comm]

