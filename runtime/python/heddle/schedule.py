"""Which layout every stage of a model runs in, and what moves between them."""
from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from typing import Callable, List, Optional

from . import _abi
from ._library import check, lib, made
from .errors import ArgumentError
from .gone import when_gone
from .line import Line, layout_text, mesh_of

_KINDS = {_abi.HEDDLE_STAGE_ATTENTION: "attention", _abi.HEDDLE_STAGE_CROSS: "cross", _abi.HEDDLE_STAGE_MLP: "mlp",
          _abi.HEDDLE_STAGE_LINEAR: "linear"}


@dataclass(frozen=True)
class Stage:
    """A stage as it runs: heddle_schedule_stage in heddle/schedule.h."""

    name: str
    repetition: int
    kind: str  #: "attention" "cross" "mlp" "linear"
    method: str  #: "local", or the method by which it runs over a sharded dim
    layout: str
    forward_bytes_total: int  #: that the method sends, all ranks
    backward_bytes_total: int


@dataclass(frozen=True)
class Edge:
    """What leads into stage `i`, the last one to the end: heddle_schedule_edge."""

    kind: str  #: "keep" "split" "switch" "gather" "general" "free"
    line: Line  #: the reshard; nothing moves where its sides are equal
    bytes_per_rank_max: int
    bytes_total: int
    messages: int


class Schedule:
    """Made by `heddle.plan`, `load` or `parse`. Immutable.

    `stages[i]` runs in the layout that `edges[i]` leads to; `edges[-1]` is the epilogue.
    """

    def __init__(self, handle: int):
        self._handle = handle
        when_gone(self, functools.partial(lib.heddle_schedule_destroy, handle))
        raw = _abi.heddle_schedule_info(struct_bytes=ctypes.sizeof(_abi.heddle_schedule_info))
        check(lib.heddle_schedule_get_info(ctypes.byref(raw), handle))
        self.model: str = raw.model.decode()
        self.shape: str = _text(lib.heddle_shape_format, raw.shape)
        self.mesh: str = _text(lib.heddle_mesh_format, raw.mesh)
        self.switches: int = raw.switches  #: edges that move bytes
        self.bytes_per_rank_max: int = raw.bytes_per_rank_max
        self.bytes_total: int = raw.bytes_total
        self.backward_bytes_total: int = raw.backward_bytes_total
        self.note: str = raw.note.decode()
        self.stages: List[Stage] = [self._stage(i, raw) for i in range(raw.nstages)]
        self.edges: List[Edge] = [self._edge(i, raw) for i in range(raw.nedges)]

    @classmethod
    def load(cls, path: "str | os.PathLike[str]") -> "Schedule":
        """From a file that `save` or `heddle plan --output` wrote."""
        out = ctypes.c_void_p()
        check(lib.heddle_schedule_load(ctypes.byref(out), os.fsencode(path)))
        return cls(made(out))

    @classmethod
    def parse(cls, text: str, name: str = "schedule") -> "Schedule":
        """The same from a text; `name` stands for the file in sentences."""
        out, raw = ctypes.c_void_p(), text.encode()
        check(lib.heddle_schedule_parse(ctypes.byref(out), raw, len(raw), name.encode()))
        return cls(made(out))

    def save(self, path: "str | os.PathLike[str]") -> None:
        check(lib.heddle_schedule_save(self._handle, os.fsencode(path)))

    def find(self, name: str, repetition: int = 0) -> int:
        """The place of a stage in `stages`."""
        index = lib.heddle_schedule_find(self._handle, name.encode(), repetition)
        if index < 0:
            known = " ".join(dict.fromkeys(stage.name for stage in self.stages))
            raise ArgumentError(f"the schedule of {self.model} has no stage '{name}' in repetition "
                                f"{repetition}: {known}")
        return index

    def __repr__(self) -> str:
        return f"<heddle.Schedule {self.model}: {self.shape} on {self.mesh}, {len(self.stages)} stages>"

    def _stage(self, index: int, info: _abi.heddle_schedule_info) -> Stage:
        raw = _abi.heddle_schedule_stage(struct_bytes=ctypes.sizeof(_abi.heddle_schedule_stage))
        check(lib.heddle_schedule_stage_at(ctypes.byref(raw), self._handle, index))
        return Stage(name=raw.name.decode(), repetition=raw.repetition, kind=_KINDS[raw.kind],
                     method=raw.method.decode(), layout=layout_text(raw.layout, info.shape, info.mesh),
                     forward_bytes_total=raw.forward_bytes_total, backward_bytes_total=raw.backward_bytes_total)

    def _edge(self, index: int, info: _abi.heddle_schedule_info) -> Edge:
        raw = _abi.heddle_schedule_edge(struct_bytes=ctypes.sizeof(_abi.heddle_schedule_edge))
        check(lib.heddle_schedule_edge_at(ctypes.byref(raw), self._handle, index))
        line = _abi.heddle_reshard_line(shape=info.shape, mesh=info.mesh, from_=raw.from_, to=raw.to)
        return Edge(kind=raw.kind.decode(), line=Line._made(line), bytes_per_rank_max=raw.bytes_per_rank_max,
                    bytes_total=raw.bytes_total, messages=raw.messages)


def _text(format_: Callable[..., int], value: ctypes.Structure) -> str:
    out = ctypes.create_string_buffer(_abi.HEDDLE_LINE_BYTES)
    check(format_(out, len(out), ctypes.byref(value)))
    return out.value.decode()


def _model(model: "str | os.PathLike[str]") -> ctypes.c_void_p:
    out = ctypes.c_void_p()
    if isinstance(model, str) and "\n" in model:
        raw = model.encode()
        check(lib.heddle_model_parse(ctypes.byref(out), raw, len(raw), b"model"))
    else:
        check(lib.heddle_model_load(ctypes.byref(out), os.fsencode(model)))
    return out


def plan(model: "str | os.PathLike[str]", mesh: str, *, sizes: str = "", repeat: int = 0,
         prologue: Optional[str] = None, epilogue: Optional[str] = None, methods: Optional[str] = None,
         slack_percent: Optional[int] = None, backward: bool = False, max_waste_percent: int = 0) -> Schedule:
    """The schedule that sends the fewest bytes. Needs no ranks.

    model     path of a model file (docs/formats.md), or its text (of more than one line)
    mesh      `[sp=4]`
    sizes     other extents, `t=16,s=256`; repeat: another number of repetitions
    prologue  layout in which the activation arrives; None: a free choice
    epilogue  layout in which it must end; None: whole on every rank; "any": a free choice
    methods   `STAGE=METHOD,...`; None: every stage has whole fibres, as a framework's own modules want them
    The others are those of heddle_plan_options in heddle/planner.h.
    """
    options, out, grid = _abi.heddle_plan_options(), ctypes.c_void_p(), mesh_of(mesh)
    lib.heddle_plan_options_init(ctypes.byref(options))
    options.prologue = None if prologue is None else prologue.encode()
    options.epilogue = None if epilogue is None else epilogue.encode()
    options.methods = None if methods is None else methods.encode()
    options.backward, options.max_waste_percent = int(backward), max_waste_percent
    if slack_percent is not None:
        options.slack_percent = slack_percent
    handle = _model(model)
    try:
        if sizes or repeat:
            check(lib.heddle_model_resize(handle, sizes.encode(), repeat))
        check(lib.heddle_plan(ctypes.byref(out), handle, ctypes.byref(grid), ctypes.byref(options)))
    finally:
        lib.heddle_model_destroy(handle)
    return Schedule(made(out))
