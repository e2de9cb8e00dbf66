"""What a schedule will cost on a machine: seconds, bytes by link class, memory. Nothing is run."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Callable, Dict, Optional, Tuple

from . import _abi
from ._library import check, lib
from .errors import ArgumentError
from .machine import MachineLike, machine_of
from .model import ModelLike, opened
from .schedule import Schedule


@dataclass(frozen=True)
class Memory:
    """Bytes of the rank that holds most: heddle_forecast_memory in heddle/forecast.h."""

    weights: int  #: with gradients and optimiser state when training
    activations: int  #: kept for the way back; of a forward pass the activation itself and its conditioning
    workspace: int  #: of the stage or edge that needs most
    total: int  #: at the peak
    peak_stage: int  #: where it is; the number of stages: behind the last edge


@dataclass(frozen=True)
class Link:
    """Bytes of one link class in one pass: heddle_forecast_link."""

    name: str
    sent_max: int  #: of the busiest rank, summed over stages and edges
    received_max: int
    total: int  #: of all ranks


@dataclass(frozen=True)
class Step:
    """A stage, or the edge that leads into it: heddle_forecast_step."""

    time_s: float
    compute_s: float
    transfer_s: float
    hidden_s: float
    memory_bytes: int  #: held by the fullest rank while this runs
    sent_max: Dict[str, int]  #: by link class, of the busiest rank
    received_max: Dict[str, int]
    total: Dict[str, int]  #: of all ranks
    kept_bytes: int  #: training: of memory_bytes what this stage keeps for the way back


@dataclass(frozen=True)
class Forecast:
    """What `heddle.forecast` found: heddle_forecast_info. Seconds are those of the busiest rank."""

    machine: str
    time_s: float  #: of a pass (a training step): compute_s + transfer_s - hidden_s
    compute_s: float  #: the busiest rank's own work
    transfer_s: float  #: all exchanges, hidden or not
    hidden_s: float  #: of them behind work
    serial_s: float  #: what every rank does alike once per sample; not in time_s
    sample_s: float  #: a whole sample: steps, guidance, cache, serial parts; 0: the model gives no steps
    memory: Memory
    links: Tuple[Link, ...]  #: the innermost first
    stages: Tuple[Step, ...]  #: as in `schedule.stages`
    edges: Tuple[Step, ...]  #: as in `schedule.edges`
    end_s: float  #: tokens in, the final layer's output gathered: paid once, not in time_s
    end_bytes_per_rank_max: int


def forecast(model: ModelLike, schedule: Schedule, machine: MachineLike, *, sizes: str = "", repeat: int = 0,
             dtype: Optional[str] = None, training: bool = False, recompute: bool = False) -> Forecast:
    """What the schedule will cost on a machine, whether it was planned for it or for another one. Nothing is run.

        schedule = heddle.plan("hunyuanvideo", ranks=16, machine="2x8xh100-nvlink+ib400")
        print(heddle.forecast("hunyuanvideo", schedule, "2x8xl40-pcie+eth100").time_s)

    model      the one that was planned, with its `sizes`, `repeat` and `dtype`: as in `heddle.plan`
    machine    a `heddle.Machine`, or its name or file
    training   a forward and a backward pass, gradients and the optimiser's state
    recompute  training: stages keep their inputs alone and run again on the way back

    LayoutError: the schedule is not one of this model. ArgumentError: its mesh has more ranks than the machine.
    """
    if not isinstance(schedule, Schedule):
        raise ArgumentError(f"the schedule is a {type(schedule).__name__}, wanted a heddle.Schedule")
    on, out, options = machine_of(machine), ctypes.c_void_p(), _abi.heddle_forecast_options()
    lib.heddle_forecast_options_init(ctypes.byref(options))
    options.training, options.recompute = int(training), int(recompute)
    with opened(model, sizes, repeat, dtype) as handle:
        check(lib.heddle_forecast_create(ctypes.byref(out), handle, schedule._handle, on._handle,
                                         ctypes.byref(options)))
    try:
        return _read(out, schedule)
    finally:
        lib.heddle_forecast_destroy(out)


def _read(handle: ctypes.c_void_p, schedule: Schedule) -> Forecast:
    raw = _abi.heddle_forecast_info(struct_bytes=ctypes.sizeof(_abi.heddle_forecast_info))
    check(lib.heddle_forecast_get_info(ctypes.byref(raw), handle))
    links = tuple(_link(handle, i) for i in range(raw.nlinks))
    names = [link.name for link in links]
    memory = raw.memory
    return Forecast(
        machine=raw.machine.decode(), time_s=raw.time_s, compute_s=raw.compute_s, transfer_s=raw.transfer_s,
        hidden_s=raw.hidden_s, serial_s=raw.serial_s, sample_s=raw.sample_s,
        memory=Memory(memory.weights, memory.activations, memory.workspace, memory.total, memory.peak_stage),
        links=links,
        stages=tuple(_step(lib.heddle_forecast_stage, handle, i, names) for i in range(len(schedule.stages))),
        edges=tuple(_step(lib.heddle_forecast_edge, handle, i, names) for i in range(len(schedule.edges))),
        end_s=raw.end_s, end_bytes_per_rank_max=raw.end_bytes_per_rank_max)


def _link(handle: ctypes.c_void_p, index: int) -> Link:
    raw = _abi.heddle_forecast_link(struct_bytes=ctypes.sizeof(_abi.heddle_forecast_link))
    check(lib.heddle_forecast_link_at(ctypes.byref(raw), handle, index))
    return Link(raw.name.decode(), raw.sent_max, raw.received_max, raw.total)


def _step(read: Callable[..., int], handle: ctypes.c_void_p, index: int, links: "list[str]") -> Step:
    raw = _abi.heddle_forecast_step(struct_bytes=ctypes.sizeof(_abi.heddle_forecast_step))
    check(read(ctypes.byref(raw), handle, index))
    return Step(raw.time_s, raw.compute_s, raw.transfer_s, raw.hidden_s, raw.memory_bytes,
                dict(zip(links, raw.link_sent_max)), dict(zip(links, raw.link_received_max)),
                dict(zip(links, raw.link_total)), raw.kept_bytes)
