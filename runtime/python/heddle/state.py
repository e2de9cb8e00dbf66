"""What is left to do in C when a communicator is closed, by whatever way that comes about, and who is in a call."""
from __future__ import annotations

import ctypes
import functools
import itertools
import os
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import _abi
from ._library import check, encoded, last_error, lib, made
from .errors import ArgumentError, error_of
from .gone import when_gone

_INTERRUPT: Any = dict(_abi.heddle_comm_options._fields_)["interrupt"]  # type: ignore[arg-type]


def _asked(raised: List[BaseException]):
    """Runs the signal handlers of Python whenever it is resumed; yields 1 when one of them raised.

    A generator, because a handler may also run at the first instruction of whatever Python is called: here that is
    inside the try. A function would lose what was raised there, and with it the user's Ctrl-C.
    """
    answer = 0
    while True:
        try:
            while True:
                yield answer
                answer = 0
                ctypes.pythonapi.PyErr_CheckSignals()
                answer = 1 if raised else 0
        except GeneratorExit:
            return
        except BaseException as error:
            raised.append(error)
            answer = 1


def _destroy_made(destroy: Callable[[int], None], out: ctypes.c_void_p) -> None:
    if out.value:
        destroy(out.value)


class State:
    """Of a communicator. Its root's are `inside`, `raised` and `late`.

    Whatever calls the library puts its state into `inside` for as long: one call at a time. Nothing is called between
    looking at it and setting it, nor between that and the `try`, so that under the GIL no other thread and no signal
    comes there. Who closes the communicator in the meantime, on another thread or in a signal's handler, leaves the
    rest to the call that it ends.
    """

    def __init__(self, parent: "Optional[State]" = None):
        self.handle: Optional[int] = None  #: 0 when it is freed
        self.pid = os.getpid()
        self.parent = parent
        self.root: State = parent.root if parent else self
        self.raised: List[BaseException] = parent.raised if parent else []
        self.is_closed = False
        self._groups: "weakref.WeakSet[State]" = weakref.WeakSet()
        self.inside: Optional[State] = None  #: whose call it is
        self.late: List[Callable[[], None]] = []  #: what is freed when nobody is inside
        self._aborting = 0  #: threads that are
        self._numbers = itertools.count()
        self._live: Dict[int, Callable[[], None]] = {}
        self._dropped: Dict[int, Any] = {}  #: numbers
        self._closing: List[Callable[[], None]] = []
        if parent is not None:
            parent._groups.add(self)
        else:
            generator = _asked(self.raised)
            next(generator)
            self.interrupt = _INTERRUPT(generator.send)

    def open_handle(self) -> int:
        if self.is_closed or self.handle is None:
            raise ArgumentError("the communicator is closed")
        if os.getpid() != self.pid:
            raise ArgumentError(f"process {os.getpid()} is a fork of {self.pid}, whose communicator it cannot use")
        if self.root.inside is not None:
            raise ArgumentError("the communicator is in a call, of another thread or of this one, which a signal has "
                                "interrupted: one at a time uses it")
        return self.handle

    def ask(self, function: Callable[..., Any], *given: Any) -> Any:
        """What function(*given) of the library returns; nobody else is in a call meanwhile."""
        root, pid = self.root, os.getpid()
        while self.is_closed or root.inside is not None or pid != self.pid:
            self.open_handle()
        root.inside = self
        try:
            return function(*given)
        finally:
            root.inside = None
            if root.late:
                root.finish()

    def call(self, function: Callable[..., int], *given: Any) -> None:
        """The same of a function that returns a status."""
        self.check(self.ask(function, *given))

    def create(self, destroy: Callable[[int], None], function: Callable[..., int], *given: Any) -> Tuple[int, int]:
        """What function(&out, *given) makes, and its number, for `adopt`. `destroy` gets it when the communicator is
        closed at the latest, be that in the middle of this call."""
        out, number = ctypes.c_void_p(), next(self._numbers)
        try:
            self._live[number] = functools.partial(_destroy_made, destroy, out)
            self.call(function, ctypes.byref(out), *given)
            return made(out), number
        except BaseException:
            self._dropped.setdefault(number)  # not at once: ranks may be in its creation
            raise

    def check(self, status: int) -> None:
        """As `check`; what was raised in the meantime, by a signal's handler say, comes first."""
        error = error_of(status, last_error()) if status != 0 else None
        if self.raised:
            first = self.raised[0]
            self.raised.clear()
            raise first from error
        if self.is_closed:
            raise ArgumentError("the communicator was closed while this call was in it") from error
        if error is not None:
            raise error

    def adopt(self, owner: Any, number: int) -> None:
        """What `create` has made under this number is destroyed some time after `owner` is gone: not at once, since
        that may happen on another thread in the middle of a call."""
        when_gone(owner, functools.partial(self._dropped.setdefault, number))

    def sweep(self) -> None:
        """Destroys what nobody holds any more. Behind a collective call, which says of all ranks that they have begun
        it: none is still in an execution of what this rank has let go."""
        if self._dropped:
            self.ask(self._destroy_dropped)

    def _destroy_dropped(self) -> None:
        while self._dropped:
            destroy = self._live.pop(self._dropped.popitem()[0], None)  # in one step: threads put more in
            if destroy:
                destroy()

    def on_close(self, call: Callable[[], None]) -> None:
        self._closing.append(call)

    def abort(self, why: str) -> None:
        """Any thread, also while another one is in a call."""
        root, told = self.root, encoded("why", why)
        if self.is_closed or os.getpid() != self.pid:
            self.open_handle()
        root._aborting += 1
        try:
            check(lib.heddle_comm_abort(self.handle, told))
        finally:
            root._aborting -= 1
            root.finish()

    def close(self) -> None:
        """Who is in a call gets an error, and what is in use is freed when he has left."""
        if self.is_closed or self.handle is None:
            return
        root, handle = self.root, self.handle
        self._mark_closed()
        if os.getpid() != self.pid:  # a fork has copies of the handles, whose ranks are the parent's
            lib.heddle_comm_destroy(handle)
            return
        inside = root.inside
        while inside is not None and inside is not self:
            inside = inside.parent
        if inside is self:
            lib.heddle_comm_abort(handle, b"its communicator was closed in the middle of a call")
        root.late.append(self.free)
        root.finish()

    def _mark_closed(self) -> None:
        self.is_closed = True
        for group in list(self._groups):
            group._mark_closed()

    def finish(self) -> None:
        """Of a root: what is late, unless somebody is inside, who does it when he leaves."""
        while self.late and self.inside is None and not self._aborting:
            self.inside = self
            try:
                while self.late:
                    self.late.pop()()
            finally:
                self.inside = None

    def end(self, handle: int) -> None:
        """Frees what the parent has made for this one, also when a signal came before it was put in here."""
        if self.handle is None:
            self.handle = handle
        self.free()

    def free(self) -> None:
        """Within `finish`, or that of the parent."""
        self._mark_closed()
        handle, self.handle = self.handle, 0
        if not handle:
            return
        for destroy in reversed(list(self._live.values())):
            destroy()
        for call in self._closing:
            call()
        self._live.clear()
        lib.heddle_comm_destroy(handle)
