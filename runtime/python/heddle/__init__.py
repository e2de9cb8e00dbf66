"""heddle: tensors that are sharded over ranks along one dim at a time, and switched between them.

    with heddle.Comm.open() as comm:                  # ranks: python -m heddle -n 4 program.py
        switch = comm.reshard("f32[t=10 s=7] on [sp=4]: t@sp -> s@sp")
        places = switch(frames)                       # NumPy arrays; heddle.torch has tensors and gradients

docs/python.md begins at the beginning. The package is a thin layer over libheddle: what a call does, and every error,
is in the headers under include/heddle.
"""
from ._library import version
from .attention import Attention, LinearAttention
from .comm import Comm
from .errors import (ArgumentError, DeadlineError, DeviceError, Error, FileError, InfeasibleError, InternalError,
                     InterruptedWait, LayoutError, MismatchError, NoMemoryError, ParseError, PeerError, TransportError,
                     UnsupportedError)
from .forecast import Forecast, forecast
from .line import Line, volume
from .machine import Machine
from .model import import_config
from .pool import Pool
from .reshard import Reshard, ReshardInfo, strides_of
from .schedule import Edge, Schedule, Stage, plan

__version__ = version()
__all__ = ["ArgumentError", "Attention", "Comm", "DeadlineError", "DeviceError", "Edge", "Error", "FileError",
           "Forecast", "InfeasibleError", "InternalError", "InterruptedWait", "LayoutError", "Line", "LinearAttention",
           "Machine", "MismatchError", "NoMemoryError", "ParseError", "PeerError", "Pool", "Reshard", "ReshardInfo",
           "Schedule", "Stage", "TransportError", "UnsupportedError", "forecast", "import_config", "plan", "strides_of",
           "version", "volume"]
