"""Machines as the planner sees them: how fast a rank computes and exchanges bytes, and how much memory it has."""
from __future__ import annotations

import ctypes
import functools
import os
from typing import NamedTuple, Tuple, Union

from . import _abi
from ._library import check, lib, made
from .errors import ArgumentError
from .gone import when_gone


class Level(NamedTuple):
    """A level of links, of which the inner ones lie in the outer ones."""

    link: str  #: the class of its links: "nvlink" "ib400"
    ranks: int  #: that reach one another by links up to this level


class Machine:
    """A preset's name, or else a machine file, which `heddle calibrate` or `save` wrote (docs/formats.md).

        8xh100-nvlink            one host of 8 GPUs
        2x8xh100-nvlink+ib400    two of them, behind 400 Gb/s InfiniBand
        cpu                      this host: one rank per core, shared memory

    Ranks are dealt out host by host, as launchers do. Figures of presets are published ones: they rank plans; a
    calibrated machine predicts seconds. Any thread may use a machine, but resize it only while no other does.

    ArgumentError: neither a preset nor a file; the sentence has the form of the names, and the nearest. FileError: the
    file cannot be read. ParseError: it does not follow the format. LayoutError: it contradicts itself.
    """

    def __init__(self, name: "str | os.PathLike[str]"):
        if not isinstance(name, (str, os.PathLike)):
            raise ArgumentError(f"the machine is a {type(name).__name__}, wanted a preset's name, or a file's")
        out = ctypes.c_void_p()
        check(lib.heddle_machine_load(ctypes.byref(out), os.fsencode(name)))
        self._handle = made(out)
        when_gone(self, functools.partial(lib.heddle_machine_destroy, self._handle))

    @property
    def name(self) -> str:
        return self._info().name.decode()

    @property
    def source(self) -> str:
        """Where the figures come from, a sentence."""
        return (self._info().source or b"").decode()

    @property
    def ranks(self) -> int:
        """Of the whole machine."""
        return self._info().ranks

    @property
    def levels(self) -> Tuple[Level, ...]:
        """The innermost first."""
        info = self._info()
        return tuple(Level(info.link[i].decode(), info.ranks_within[i]) for i in range(info.nlinks))

    @property
    def memory_bytes(self) -> int:
        """Of a rank; 0: not known."""
        return self._info().memory_bytes

    @property
    def is_calibrated(self) -> bool:
        """True: measured by `heddle calibrate`; False: from published figures."""
        return bool(self._info().is_calibrated)

    def resize(self, ranks: int) -> None:
        """From now on the machine has so many ranks: fewer or more of its outermost level. ArgumentError: none."""
        if isinstance(ranks, bool) or not isinstance(ranks, int) or not 0 < ranks < 2 ** 31:
            raise ArgumentError(f"ranks is {ranks!r}, wanted a number of at least 1")
        check(lib.heddle_machine_resize(self._handle, ranks))

    def save(self, path: "str | os.PathLike[str]") -> None:
        """Writes a machine file (YAML), which replaces what is there only when it is whole. FileError."""
        check(lib.heddle_machine_save(self._handle, os.fsencode(path)))

    def __repr__(self) -> str:
        links = ", ".join(f"{level.ranks} by {level.link}" for level in self.levels)
        return f"<heddle.Machine {self.name}: {self.ranks} ranks, {links or 'no links'}>"

    def _info(self) -> _abi.heddle_machine_info:
        raw = _abi.heddle_machine_info(struct_bytes=ctypes.sizeof(_abi.heddle_machine_info))
        check(lib.heddle_machine_get_info(ctypes.byref(raw), self._handle))
        return raw


MachineLike = Union[Machine, str, "os.PathLike[str]"]  #: a machine, or what it is made from


def machine_of(machine: MachineLike) -> Machine:
    return machine if isinstance(machine, Machine) else Machine(machine)
