"""Memory that peers reach, handed out again when the array that lay in it is gone."""
from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, Callable, Sequence

from . import _abi
from ._library import lib, made
from .gone import is_watched, when_gone

if TYPE_CHECKING:
    from .comm import Comm

DLTENSOR = b"dltensor"
# Without argument types, whose conversions take longer than the calls: what is handed over is as ctypes has it.
capsule_of = ctypes.pythonapi["PyCapsule_New"]
capsule_of.restype = ctypes.py_object
_has_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))


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
        if not self._handle:
            self._owner.call(lib.heddle_pool_create, ctypes.byref(self._handle), self._owner.handle)
            self._owner.on_close(self._close)
        return self._handle

    def lend(self, dtype: int, shape: Sequence[int], take: Callable[[Any], Any]) -> Any:
        """take(capsule) of a new array, not initialised, as DLPack hands it over: "dltensor", to be called
        "used_dltensor" by `take` when the array is its own. `dtype` as the library has it. Not collective."""
        array, capsule = ctypes.c_void_p(), None
        try:
            self._take(array, dtype, shape)
            capsule = capsule_of(array, DLTENSOR, None)
            return take(capsule)
        except BaseException:
            take_back(array, capsule)
            raise

    def _take(self, array: ctypes.c_void_p, dtype: int, shape: Sequence[int]) -> None:
        self._owner.call(lib.heddle_pool_take, ctypes.byref(array), self.handle(), dtype, len(shape),
                         _extents(len(shape))(*shape))

    def buffer(self, nbytes: int) -> Any:
        """`nbytes` bytes, not initialised, as an object with the buffer protocol. Not collective."""
        array, lent = ctypes.c_void_p(), None
        try:
            self._take(array, _abi.HEDDLE_U8, (nbytes,))
            lent = _bytes(nbytes).from_address(made(ctypes.c_void_p.from_address(made(array))))  # its first field
            when_gone(lent, functools.partial(lib.heddle_pool_give_back, array))
            return lent
        except BaseException:
            if array.value and (lent is None or not is_watched(lent)):
                lib.heddle_pool_give_back(array)
            raise

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
        self._owner.ask(lib.heddle_pool_trim, self.handle())

    @property
    def held_bytes(self) -> int:
        """What the pool has taken from the communicator and not freed, arrays included; 0 when that is closed."""
        return self._owner.ask(lib.heddle_pool_held_bytes, self._handle) if self._handle else 0

    def _close(self) -> None:
        lib.heddle_pool_destroy(self._handle)
        self._handle.value = None


def take_back(array: ctypes.c_void_p, capsule: Any) -> None:
    """After an exception, a signal's for one: an array that is there, if nobody has taken it out of its capsule."""
    if array.value and (capsule is None or _has_name(capsule, DLTENSOR)):
        lib.heddle_pool_give_back(array)


@functools.lru_cache(maxsize=256)
def _bytes(count: int) -> Any:
    """The type of so many bytes: making one takes longer than moving them."""
    return ctypes.c_char * count


@functools.lru_cache(maxsize=None)
def _extents(ndim: int) -> Any:
    return ctypes.c_int64 * ndim
