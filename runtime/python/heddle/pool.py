"""Memory that peers reach, handed out again when the array that lay in it is gone."""
from __future__ import annotations

import collections
import ctypes
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, Sequence

from ._library import check, lib, made

if TYPE_CHECKING:
    from .comm import Comm

_PAGE = 4096


class Pool:
    """Peer-reachable memory of one communicator: what lies in it is switched with one read and one write per byte, and
    a used block costs none of the page faults that fresh memory does.

    A block goes back when the last array on it is gone, on whatever thread that happens, and is handed out for the next
    array of as many bytes. Arrays may outlive the pool and its communicator.
    """

    def __init__(self, comm: "Comm"):
        self._owner = comm._state.root
        self._free: Dict[int, List[int]] = {}
        self._returned: collections.deque = collections.deque()  # appending needs no lock, and calls nothing
        self._held_bytes = 0
        self._owner.on_close(self.trim)

    def buffer(self, nbytes: int) -> Any:
        """`nbytes` bytes, not initialised, as an object with the buffer protocol. Not collective."""
        self._owner.open_handle()
        self._take_back()
        room = max(-(-nbytes // _PAGE), 1) * _PAGE
        blocks = self._free.get(room)
        address = blocks.pop() if blocks else self._allocate(room)
        lent = (ctypes.c_char * nbytes).from_address(address)
        weakref.finalize(lent, _give_back, self._returned, self._owner, room, address).atexit = False
        return lent

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """A NumPy array, dense, not initialised; `dtype` as NumPy has it."""
        import numpy

        dtype, count = numpy.dtype(dtype), 1
        for extent in shape:
            count *= extent
        if count == 0:
            return numpy.empty(shape, dtype)
        return numpy.frombuffer(self.buffer(count * dtype.itemsize), dtype).reshape(shape)

    def trim(self) -> None:
        """Frees what no array lies in."""
        self._take_back()
        for room, addresses in self._free.items():
            self._held_bytes -= room * len(addresses)
            for address in addresses:
                self._owner.free_buffer(address)
        self._free.clear()

    @property
    def held_bytes(self) -> int:
        """What the pool has taken from the communicator and not freed, arrays included."""
        return self._held_bytes

    def _allocate(self, room: int) -> int:
        out = ctypes.c_void_p()
        check(lib.heddle_buffer_alloc(ctypes.byref(out), self._owner.open_handle(), room, 0))
        self._held_bytes += room
        return made(out)

    def _take_back(self) -> None:
        while self._returned:
            room, address = self._returned.popleft()
            self._free.setdefault(room, []).append(address)


def _give_back(returned: collections.deque, owner: Any, room: int, address: int) -> None:
    """Of an array that is gone. A call may be going on in another thread, so the library is only called when the
    communicator is closed and nobody takes blocks any more."""
    if owner.is_closed:
        owner.free_buffer(address)
    else:
        returned.append((room, address))
