"""Arrays in a device's memory, as other frameworks say where they are: __cuda_array_interface__ (CuPy, Numba, torch) or
DLPack (JAX, torch and others). Only looked at; the array stays the owner of its memory."""
from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any, Optional, Tuple

from .errors import ArgumentError

_CUDA, _CUDA_MANAGED = 2, 13  #: device types of DLPack

#: of (code, bits) of a DLPack type: NumPy's name or, where it has none, that of packages beside it
_DLPACK = {(0, 64): "int64", (0, 32): "int32", (0, 8): "int8", (1, 8): "uint8", (1, 16): "uint16", (2, 64): "float64",
           (2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16", (6, 8): "bool", (10, 8): "float8_e4m3fn",
           (12, 8): "float8_e5m2"}
_KINDS = {"f": "float", "i": "int", "u": "uint"}


class _Tensor(ctypes.Structure):
    """DLTensor, the same up to DLPack 1.x; a capsule's DLManagedTensor begins with it."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


@dataclass(frozen=True)
class DeviceArray:
    """What is looked at of an array, named as NumPy names it; strides in bytes."""

    address: int
    dtype: str
    itemsize: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    is_writeable: bool

    @property
    def size(self) -> int:
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def is_dense(self) -> bool:
        return self.size == 0 or all(extent == 1 or stride == dense for extent, stride, dense in
                                     zip(self.shape, self.strides, _dense(self.shape, self.itemsize)))


def _dense(shape: Tuple[int, ...], itemsize: int) -> Tuple[int, ...]:
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * max(shape[axis], 1)
    return tuple(strides)


def device_array(name: str, array: Any, device: int, stream: int) -> DeviceArray:
    """An array in the memory of this rank's device. Its data is awaited in the order of `stream`: a producer that
    speaks DLPack sees to it, one that names another stream is refused."""
    if hasattr(array, "__cuda_array_interface__"):
        return _by_interface(name, array.__cuda_array_interface__, stream)
    if hasattr(array, "__dlpack__"):
        return _by_dlpack(name, array, device, stream)
    raise ArgumentError(f"{name} is a {type(array).__name__}: an array of a device has __cuda_array_interface__ or "
                        "__dlpack__")


def _by_interface(name: str, given: Any, stream: int) -> DeviceArray:
    kind, size = re.fullmatch(r"[<|=](\w)(\d+)", given["typestr"]), 0
    dtype = given["typestr"]
    if kind is not None:
        size = int(kind[2])
        dtype = "bool" if kind[1] == "b" else f"{_KINDS.get(kind[1], kind[1])}{8 * size}"
    made_on = given.get("stream")
    if made_on is not None and _handle(made_on) != _handle(stream):
        raise ArgumentError(f"{name} is ready in the order of the stream {made_on:#x}, the call is for {stream:#x}")
    (address, is_read_only), shape = given["data"], tuple(given["shape"])
    return DeviceArray(address or 0, dtype, size, shape, given.get("strides") or _dense(shape, size), not is_read_only)


def _handle(stream: int) -> int:
    """1 is the default stream, too, where 0 would be ambiguous."""
    return 0 if stream == 1 else stream


def _by_dlpack(name: str, array: Any, device: int, stream: int) -> DeviceArray:
    kind, number = (int(part) for part in array.__dlpack_device__())
    if kind not in (_CUDA, _CUDA_MANAGED) or number != device:
        raise ArgumentError(f"{name} lies on the device ({kind}, {number}) of DLPack, this rank's is "
                            f"({_CUDA}, {device})")
    capsule = array.__dlpack__(stream=stream or 1)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found = _Tensor.from_address(get(capsule, b"dltensor"))
    shape, size = tuple(found.shape[: found.ndim]), found.bits * found.lanes // 8
    strides = tuple(stride * size for stride in found.strides[: found.ndim]) if found.strides else _dense(shape, size)
    dtype = _DLPACK.get((found.code, found.bits)) if found.lanes == 1 else None
    dtype = dtype or f"({found.code}, {found.bits}, {found.lanes}) of DLPack"
    return DeviceArray((found.data or 0) + found.byte_offset, dtype, size, shape, strides, True)
