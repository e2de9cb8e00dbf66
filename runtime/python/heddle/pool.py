"""Memory that peers reach, handed out again when the array that lay in it is gone."""
from __future__ import annotations

import collections
import ctypes
import functools
import weakref
from typing import TYPE_CHECKING, Any, List, Sequence

from . import _abi
from ._library import check, lib, made

if TYPE_CHECKING:
    from .comm import Comm

_PAGE = 4096


class Pool:
    """Peer-reachable memory of one communicator: what lies in it is switched with one read and one write per byte, and
    a used block costs none of the page faults that fresh memory does.

    A block goes back when the last array on it is gone, on whatever thread that happens, and is handed out for the next
    array of about as many bytes: rooms come in sizes an eighth apart. What is held is at most twice what arrays have
    ever taken at once; beyond that those blocks are freed whose size was not asked for longest. Arrays may outlive the
    pool and its communicator.
    """

    def __init__(self, comm: "Comm"):
        self._owner = comm._state.root
        self._free: "collections.OrderedDict[int, List[int]]" = collections.OrderedDict()  # last asked for last
        self._free_bytes = 0
        self._most_lent_bytes = 0
        self._returned: collections.deque = collections.deque()  # appending needs no lock, and calls nothing
        self._held_bytes = 0
        self._owner.on_close(self.trim)

    def buffer(self, nbytes: int) -> Any:
        """`nbytes` bytes, not initialised, as an object with the buffer protocol. Not collective."""
        self._owner.open_handle()
        self._take_back()
        room = _room(nbytes)
        self._most_lent_bytes = max(self._most_lent_bytes, self._held_bytes - self._free_bytes + room)
        address = self._taken(room) if self._free.get(room) else self._allocate(room)
        lent = _array(nbytes).from_address(address)
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
        self._shrink(0)

    @property
    def held_bytes(self) -> int:
        """What the pool has taken from the communicator and not freed, arrays included."""
        return self._held_bytes

    def _allocate(self, room: int) -> int:
        self._shrink(2 * self._most_lent_bytes - room)
        out, handle = ctypes.c_void_p(), self._owner.open_handle()
        status = lib.heddle_buffer_alloc(ctypes.byref(out), handle, room, 0)
        if status == _abi.HEDDLE_ERR_NOMEM and self._free_bytes > 0:
            self._shrink(0)
            status = lib.heddle_buffer_alloc(ctypes.byref(out), handle, room, 0)
        check(status)
        self._held_bytes += room
        return made(out)

    def _shrink(self, most_bytes: int) -> None:
        """Frees what no array lies in until no more is held, or none is left."""
        while self._held_bytes > most_bytes and self._free_bytes > 0:
            room = next(room for room, addresses in self._free.items() if addresses)
            self._owner.free_buffer(self._taken(room))
            self._held_bytes -= room

    def _taken(self, room: int) -> int:
        self._free_bytes -= room
        self._free.move_to_end(room)
        return self._free[room].pop()

    def _take_back(self) -> None:
        while self._returned:
            room, address = self._returned.popleft()
            self._free.setdefault(room, []).append(address)
            self._free_bytes += room


@functools.lru_cache(maxsize=256)
def _array(nbytes: int) -> Any:
    """The type of so many bytes: making one takes longer than moving them."""
    return ctypes.c_char * nbytes


def _room(nbytes: int) -> int:
    """So many bytes and up to an eighth more, in pages, so that arrays whose lengths vary share few sizes."""
    pages = max(-(-nbytes // _PAGE), 1)
    step = 1 << max((pages - 1).bit_length() - 4, 0)
    return -(-pages // step) * step * _PAGE


def _give_back(returned: collections.deque, owner: Any, room: int, address: int) -> None:
    """Of an array that is gone. A call may be going on in another thread, so the library is only called when the
    communicator is closed and nobody takes blocks any more."""
    if owner.is_closed:
        owner.free_buffer(address)
    else:
        returned.append((room, address))
