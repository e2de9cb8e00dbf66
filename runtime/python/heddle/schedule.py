"""Which layout every stage of a model runs in, and what moves between them."""
from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from typing import Callable, List, Optional

from . import _abi
from ._library import check, encoded, lib, made
from .errors import ArgumentError
from .gone import when_gone
from .line import Line, layout_text, mesh_of
from .machine import MachineLike, machine_of
from .model import ModelLike, opened

_KINDS = {_abi.HEDDLE_STAGE_ATTENTION: "attention", _abi.HEDDLE_STAGE_CROSS: "cross", _abi.HEDDLE_STAGE_MLP: "mlp",
          _abi.HEDDLE_STAGE_LINEAR: "linear", _abi.HEDDLE_STAGE_MODULE: "module"}


@dataclass(frozen=True)
class Stage:
    """A stage as it runs: heddle_schedule_stage in heddle/schedule.h."""

    name: str
    repetition: int
    kind: str  #: "attention" "cross" "mlp" "linear" "module"
    method: str  #: "local", or the method by which it runs over a sharded dim
    layout: str
    forward_bytes_total: int  #: that the method sends, all ranks
    backward_bytes_total: int
    predicted_s: float  #: of the pass that was planned for; 0 without a machine
    refusal: Optional[str]  #: why no block of the library runs it, but a framework may; None: one does


@dataclass(frozen=True)
class Edge:
    """What leads into stage `i`, the last one to the end: heddle_schedule_edge."""

    kind: str  #: "keep" "split" "switch" "gather" "general" "free"
    line: Line  #: the reshard; nothing moves where its sides are equal
    bytes_per_rank_max: int
    bytes_total: int
    messages: int
    predicted_s: float  #: of the pass that was planned for; 0 without a machine


class Schedule:
    """Made by `heddle.plan`, `load` or `parse`. Immutable.

    `stages[i]` runs in the layout that `edges[i]` leads to; `edges[-1]` is the epilogue. `value` is what `objective`
    comes to, in seconds or bytes; no schedule is below `lower_bound`, and `runner_up` is the best of those that differ
    in a layout or a method of some stage. Seconds are those of `heddle.forecast` on the machine that was planned for.
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
        self.note: str = raw.note.decode()  #: why it is the best
        self.machine: Optional[str] = _said(raw.machine)  #: that was planned for; None: bytes alone, or not known
        self.objective: Optional[str] = _said(raw.objective)  #: "time" "bytes" ...; None: of a file that has none
        self.value: float = raw.value
        self.lower_bound: float = raw.lower_bound
        self.runner_up: float = raw.runner_up  #: 0: there is no other
        self.predicted_s: float = raw.predicted_s  #: of a pass; 0 without a machine
        self.stages: List[Stage] = [self._stage(i, raw) for i in range(raw.nstages)]
        self.edges: List[Edge] = [self._edge(i, raw) for i in range(raw.nedges)]

    @classmethod
    def load(cls, path: "str | os.PathLike[str]") -> "Schedule":
        """From a file that `save` or `heddle plan --output` wrote, or what `heddle plan --json` printed."""
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
                     forward_bytes_total=raw.forward_bytes_total, backward_bytes_total=raw.backward_bytes_total,
                     predicted_s=raw.predicted_s, refusal=_said(raw.refusal))

    def _edge(self, index: int, info: _abi.heddle_schedule_info) -> Edge:
        raw = _abi.heddle_schedule_edge(struct_bytes=ctypes.sizeof(_abi.heddle_schedule_edge))
        check(lib.heddle_schedule_edge_at(ctypes.byref(raw), self._handle, index))
        line = _abi.heddle_reshard_line(shape=info.shape, mesh=info.mesh, from_=raw.from_, to=raw.to)
        return Edge(kind=raw.kind.decode(), line=Line._made(line), bytes_per_rank_max=raw.bytes_per_rank_max,
                    bytes_total=raw.bytes_total, messages=raw.messages, predicted_s=raw.predicted_s)


def _text(format_: Callable[..., int], value: ctypes.Structure) -> str:
    out = ctypes.create_string_buffer(_abi.HEDDLE_LINE_BYTES)
    check(format_(out, len(out), ctypes.byref(value)))
    return out.value.decode()


def _said(text: Optional[bytes]) -> Optional[str]:
    return None if text is None else text.decode()


def plan(model: ModelLike, mesh: Optional[str] = None, *, ranks: Optional[int] = None, sizes: str = "", repeat: int = 0,
         dtype: Optional[str] = None, machine: Optional[MachineLike] = None, objective: Optional[str] = None,
         memory_bytes: int = 0, training: bool = False, recompute: bool = False, force: Optional[str] = None,
         prologue: Optional[str] = None, epilogue: Optional[str] = None, methods: Optional[str] = None,
         slack_percent: Optional[int] = None, backward: bool = False, max_waste_percent: int = 0) -> Schedule:
    """The best schedule of all. Needs no ranks.

        heddle.plan("stdit3-xl2", "[sp=4]")                                   # the fewest bytes
        heddle.plan("hunyuanvideo", ranks=16, machine="2x8xh100-nvlink+ib400")  # the fewest seconds

    model         a preset's name, the path of a model file (docs/formats.md), or its text (of more than one line)
    mesh, ranks   one of them: `[sp=4]`, or so many ranks on whatever mesh of them is best
    sizes         other extents, `t=16,s=256`; repeat: another number of repetitions; dtype: "f32" or "bf16"
    machine       whose seconds and links count: a `heddle.Machine`, or its name or file; None: bytes alone
    objective     what is made smallest: "time" (None, with a machine), "bytes" (None, without one), "slow-bytes",
                  "memory", "gpu-seconds"
    memory_bytes  that a rank may need at most; 0: no limit
    training      a forward and a backward pass, gradients and the optimiser's state; recompute: stages keep their
                  inputs alone and run again on the way back
    force         `STAGE=LAYOUT/METHOD;...`: these stages run so, whatever it costs
    prologue      layout in which the activation arrives; None: a free choice
    epilogue      layout in which it must end; None: whole on every rank; "any": a free choice
    methods       `STAGE=METHOD,...`; "": whatever method is best; None: that with a machine, and without one "*=local":
                  every stage has whole fibres, as a framework's own modules want them
    The others are those of heddle_plan_options in heddle/planner.h.

    InfeasibleError: no schedule fits the memory, the waste, or what is forced; the sentence names the stage, with the
    reason. ArgumentError: what the model, the machine or the options do not know; the sentence has what they do.
    UnsupportedError: more to search than is taken.
    """
    if (mesh is None) == (ranks is None):
        raise ArgumentError(f"mesh is {mesh!r}, ranks {ranks!r}: wanted one of them")
    if ranks is not None and (not isinstance(ranks, int) or not 0 < ranks < 2 ** 31):
        raise ArgumentError(f"ranks is {ranks!r}, wanted a number of at least 1")
    options, out = _abi.heddle_plan_options(), ctypes.c_void_p()
    lib.heddle_plan_options_init(ctypes.byref(options))
    for name, text in (("prologue", prologue), ("epilogue", epilogue), ("methods", methods), ("objective", objective),
                       ("force", force)):
        setattr(options, name, None if text is None else encoded(name, text))
    options.backward, options.training, options.recompute = int(backward), int(training), int(recompute)
    options.max_waste_percent, options.memory_bytes = max_waste_percent, memory_bytes
    if slack_percent is not None:
        options.slack_percent = slack_percent
    on = None if machine is None else machine_of(machine)  # which the options borrow
    options.machine = None if on is None else on._handle
    with opened(model, sizes, repeat, dtype) as handle:
        if mesh is not None:
            grid = mesh_of(mesh)
            check(lib.heddle_plan(ctypes.byref(out), handle, ctypes.byref(grid), ctypes.byref(options)))
        else:
            check(lib.heddle_plan_ranks(ctypes.byref(out), handle, ranks, ctypes.byref(options)))
    return Schedule(made(out))
