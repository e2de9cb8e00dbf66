"""Memory that peers reach, handed out again when the array that lay in it is gone."""
from __future__ import annotations

import ctypes
import functools
import weakref
from typing import TYPE_CHECKING, Any, Sequence

from . import _abi
from ._library import check, lib, made

if TYPE_CHECKING:
    from .comm import Comm


class Pool:
    """Peer-reachable memory of one communicator: what lies in it is switched with one read and one write per byte, and
    a used block costs none of the page faults that fresh memory does. See heddle/pool.h.

    A block goes back when the last array on it is gone, on whatever thread that happens, and is handed out for the next
    array of about as many bytes: rooms come in sizes an eighth apart. What is held is at most twice what arrays have
    ever taken at once; beyond that those blocks are freed whose size was not asked for longest. Arrays may outlive the
    pool and its communicator.
    """

    def __init__(self, comm: "Comm"):
        self._owner = comm._state.root
        self._handle = ctypes.c_void_p()

    def handle(self) -> ctypes.c_void_p:
        """The library's pool, made on first use. The same object always, which is empty when the communicator is
        closed."""
        open_handle = self._owner.open_handle()
        if not self._handle:
            check(lib.heddle_pool_create(ctypes.byref(self._handle), open_handle))
            self._owner.on_close(self._close)
        return self._handle

    def take(self, dtype: int, shape: Sequence[int]) -> int:
        """The address of the DLManagedTensor of an array, not initialised: the caller's, who sees to it that its
        deleter is called. `dtype` as the library has it. Not collective."""
        out = ctypes.c_void_p()
        check(lib.heddle_pool_take(ctypes.byref(out), self.handle(), dtype, len(shape), _extents(len(shape))(*shape)))
        return made(out)

    def buffer(self, nbytes: int) -> Any:
        """`nbytes` bytes, not initialised, as an object with the buffer protocol. Not collective."""
        array = self.take(_abi.HEDDLE_U8, (nbytes,))
        lent = _bytes(nbytes).from_address(made(ctypes.c_void_p.from_address(array)))  # its first field is the data
        weakref.finalize(lent, lib.heddle_pool_give_back, array).atexit = False
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
        lib.heddle_pool_trim(self.handle())

    @property
    def held_bytes(self) -> int:
        """What the pool has taken from the communicator and not freed, arrays included; 0 when that is closed."""
        return lib.heddle_pool_held_bytes(self._handle)

    def _close(self) -> None:
        lib.heddle_pool_destroy(self._handle)
        self._handle.value = None


@functools.lru_cache(maxsize=256)
def _bytes(count: int) -> Any:
    """The type of so many bytes: making one takes longer than moving them."""
    return ctypes.c_char * count


@functools.lru_cache(maxsize=None)
def _extents(ndim: int) -> Any:
    return ctypes.c_int64 * ndim
