"""The shared library: found, loaded, and compared with what the package was made for."""
from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from . import _abi
from .errors import ArgumentError, UnsupportedError, error_of


def _find() -> str:
    """Beside this file, where a wheel and the build folder have it. $HEDDLE_LIBRARY names another one."""
    named = os.environ.get("HEDDLE_LIBRARY")
    if named:
        return named
    folder = Path(__file__).absolute().parent
    found = sorted(folder.glob("libheddle.so*"))
    if not found:
        raise ImportError(f"there is no libheddle.so in {folder}: the package is used from the build folder "
                          "(PYTHONPATH=build/python) or installed; or set HEDDLE_LIBRARY to the library's path")
    return str(found[0])


def _need_lock() -> None:
    """Communicators, plans and pools are used by one thread at a time, and what the package keeps of them relies on
    Python's own lock."""
    is_enabled = getattr(sys, "_is_gil_enabled", None)
    if is_enabled is not None and not is_enabled():
        raise ImportError("this Python is free-threaded and runs without its global lock, which heddle relies on: "
                          "start it with PYTHON_GIL=1 or -X gil=1, or take another build of Python")


def _load() -> ctypes.CDLL:
    _need_lock()
    path = _find()
    library = ctypes.CDLL(path)
    try:
        for name, (result, arguments) in _abi.FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise ImportError(f"{path} is of another version than this package: {error}") from None
    for struct in _abi.STRUCTS:
        theirs, ours = library.heddle_struct_bytes(struct.__name__.encode()), ctypes.sizeof(struct)
        if theirs != ours:
            raise ImportError(f"{path} is of another version than this package: {struct.__name__} has {theirs} bytes "
                              f"there and {ours} here")
    return library


lib = _load()


def module(name: str, what: str) -> str:
    """The path of libheddle_NAME.so, where libheddle looks for what it loads: in HEDDLE_MODULE_PATH, then beside
    itself. UnsupportedError, which begins with `what`: it is not there or cannot be loaded. ArgumentError: that is no
    absolute path."""
    file = f"libheddle_{name}.so"
    wanted = os.environ.get("HEDDLE_MODULE_PATH")
    if wanted and not os.path.isabs(wanted):
        raise ArgumentError(f"{what}: HEDDLE_MODULE_PATH is '{wanted}', wanted the absolute path of the folder of "
                            f"{file}")
    folders = [folder for folder in (wanted, os.path.dirname(os.path.abspath(lib._name))) if folder]
    for folder in folders:
        path = os.path.join(folder, file)
        if not os.path.exists(path):
            continue
        try:
            ctypes.CDLL(path)
        except OSError as error:
            raise UnsupportedError(f"{what}: {file} cannot be loaded: {error}") from None
        return path
    raise UnsupportedError(f"{what}: there is no {file} in {', '.join(folders)}: build heddle where there is a CUDA "
                           "toolkit of 12.4 or later, or set HEDDLE_MODULE_PATH to its folder")


def last_error() -> str:
    """The sentence of the last failed call of this thread."""
    return lib.heddle_last_error().decode(errors="replace")


def check(status: int) -> None:
    """Raises the error of a call that failed."""
    if status != 0:
        raise error_of(status, last_error())


def encoded(name: str, text: str) -> bytes:
    """A text as the library takes it, which ends at a zero byte."""
    if not isinstance(text, str) or "\0" in text:
        raise ArgumentError(f"{name} is {text!r}, wanted a text")
    return text.encode()


def made(out: ctypes.c_void_p) -> int:
    """The handle or address that a call which succeeded has written."""
    return out.value or 0


def version() -> str:
    """"major.minor.patch" of the loaded library."""
    return lib.heddle_version().decode()
