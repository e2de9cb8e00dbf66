"""Ranks that are simulated in one process: threads of which one runs at a time, in the order of the ranks, each until
it exchanges something with the others."""
from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, ContextManager, Dict, List, Optional

import torch

from ...errors import MismatchError


class _Stopped(BaseException):
    """Another rank has failed."""


class Turns:
    """`run` calls a function for every rank; within, `exchange` is collective. Nothing waits in vain: where some ranks
    exchange and others do not, all are told."""

    def __init__(self, size: int):
        self.size = size
        self._turn = [threading.Semaphore(0) for _ in range(size)]
        self._given: Dict[int, Any] = {}
        self._taken: List[Any] = []
        self._ended: List[int] = []
        self._error: Optional[BaseException] = None

    def run(self, each: Callable[[int], Any]) -> List[Any]:
        """What every rank returns; what one raises is raised here."""
        results: List[Any] = [None] * self.size
        state, as_here = torch.get_rng_state(), _modes()

        def of_rank(rank: int) -> None:
            try:
                self._wait(rank, state)
                with as_here():
                    results[rank] = each(rank)
                self._ended.append(rank)
                self._next(rank)
            except _Stopped:
                pass
            except BaseException as error:  # whatever a model raises: the other ranks are let go
                self._fail(error)
        threads = [threading.Thread(target=of_rank, args=(rank,), daemon=True) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        self._turn[0].release()
        for thread in threads:
            thread.join()
        torch.set_rng_state(state)
        if self._error is not None:
            raise self._error
        return results

    def exchange(self, rank: int, what: str, value: Any) -> List[Any]:
        """The values of all ranks."""
        self._given[rank] = (what, value)
        state = torch.get_rng_state()
        self._next(rank)
        self._wait(rank, state)
        return self._taken

    def _wait(self, rank: int, state: torch.Tensor) -> None:
        self._turn[rank].acquire()
        if self._error is not None:
            raise _Stopped
        torch.set_rng_state(state)

    def _next(self, rank: int) -> None:
        """The turn goes to the next rank; behind the last one, what all have given is there for all."""
        following = next((at for at in range(rank + 1, self.size) if at not in self._ended), None)
        if following is not None:
            self._turn[following].release()
        elif self._given:
            self._complete()

    def _complete(self) -> None:
        said = {at: what for at, (what, _) in sorted(self._given.items())}
        first, words = next(iter(said.items()))
        other = next((f"rank {at} is in {what}" for at, what in said.items() if what != words),
                     f"rank {self._ended[0]} has ended" if self._ended else "")
        if other:
            self._fail(MismatchError(f"rank {first} is in {words}, while {other}: they would wait for one another"))
            return
        self._taken = [value for _, (_, value) in sorted(self._given.items())]
        self._given = {}
        self._turn[0].release()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        for turn in self._turn:
            turn.release()


def _modes() -> Callable[[], ContextManager[Any]]:
    """What torch does otherwise in this thread than in a new one, for another one: its device and autocast."""
    device = getattr(torch, "get_default_device", lambda: torch.device("cpu"))()
    casts = [(kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if hasattr(
        torch, "get_autocast_dtype") and torch.is_autocast_enabled(kind)]

    def enter() -> ContextManager[Any]:
        stack = contextlib.ExitStack()
        if device.type != "cpu":
            stack.enter_context(device)
        for kind, dtype in casts:
            stack.enter_context(torch.autocast(kind, dtype))
        return stack
    return enter
