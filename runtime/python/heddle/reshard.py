"""A plan that moves a tensor from one layout to another."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Tuple

from . import _abi
from ._library import lib
from .device_array import device_array
from .errors import ArgumentError
from .line import Line, make_line
from .numbered import OfThisProcess
from .pool import DLTENSOR, capsule_of, take_back

if TYPE_CHECKING:
    from .comm import Comm

# Where NumPy has no such type: a plain one as large, or the type of that name of a package beside NumPy.
NUMPY = {"f64": ("float64",), "f32": ("float32",), "f16": ("float16",), "bf16": ("uint16", "bfloat16"),
         "f8e4m3": ("uint8", "float8_e4m3fn"), "f8e5m2": ("uint8", "float8_e5m2"), "i64": ("int64",),
         "i32": ("int32",), "i8": ("int8",), "u8": ("uint8",), "bool": ("bool",)}

_execute_pooled = lib["heddle_reshard_execute_pooled"]  # as `capsule_of`


def check_array(text: str, dtype: str, rank: int, name: str, array: Any, shape: Tuple[int, ...]) -> None:
    """Raises ArgumentError unless the array is of the dtype and of the shape that the rank wants."""
    if str(array.dtype) not in NUMPY[dtype]:
        raise ArgumentError(f"{text}: {name} is of {array.dtype}, wanted {' or '.join(NUMPY[dtype])}")
    if array.shape != shape:
        raise ArgumentError(f"{text}: {name} has the shape {array.shape}, rank {rank} wants {shape}")


@dataclass(frozen=True)
class ReshardInfo:
    """What a plan does, of this rank; see heddle_reshard_info in heddle/reshard.h."""

    line: str
    path: str  #: "local" "peer push" "peer pull" "staged" "process_vm_readv" "messages" "mixed"
    kernel: str
    why: str
    bytes_to: List[int]
    bytes_from: List[int]
    bytes_sent: int
    bytes_peer_path: int
    bytes_messages: int
    messages: int
    workspace_bytes: int
    executions: int
    measured_bytes_sent: int


class Reshard(OfThisProcess):
    """`Reshard(comm, "f32[t=10 s=7] on [sp=4]: t@sp -> s@sp")`, or shape, mesh, from_ and to apart.

    Creation is collective; the ranks compare what they ask for. Calling it moves an array: collective, returns when the
    result is complete. A side's array has its axes in the order that the line names after `as`, else in the shape's.

    memory       "any": arrays may lie anywhere, where peers do not reach them they are staged; "peer": both lie in the
                 communicator's pool, else ArgumentError
    src_strides, dst_strides   in elements, per dim of the shape, where the arrays are not dense; ranks may differ.
                 `heddle.strides_of` gives those of an array
    space        "host"; "device": arrays lie in the memory of the device that this rank has attached
    tuning       "trials": timed on creation, up to half a second for large arrays; "rules": chosen by rule
    """

    def __init__(self, comm: "Comm", line: "str | Line", mesh: Optional[str] = None, from_: Optional[str] = None,
                 to: Optional[str] = None, *, memory: str = "any", src_strides: Optional[Sequence[int]] = None,
                 dst_strides: Optional[Sequence[int]] = None, tuning: str = "trials",
                 deadline_s: Optional[float] = None, space: str = "host"):
        self.comm = comm
        self.line = make_line(line, mesh, from_, to)
        options = _abi.heddle_reshard_options()
        lib.heddle_reshard_options_init(ctypes.byref(options))
        options.memory = _choice("memory", memory, {"any": _abi.HEDDLE_MEMORY_ANY, "peer": _abi.HEDDLE_MEMORY_PEER})
        options.tuning = _choice("tuning", tuning, {"trials": _abi.HEDDLE_TUNING_TRIALS,
                                                    "rules": _abi.HEDDLE_TUNING_RULES})
        options.space = _choice("space", space, {"host": _abi.HEDDLE_SPACE_HOST, "device": _abi.HEDDLE_SPACE_DEVICE})
        options.device = max(comm.device, 0) if space == "device" else 0
        options.deadline_ms = 0 if deadline_s is None else max(int(deadline_s * 1000), 1)
        options.src_stride_elems = self._strides("src_strides", src_strides)
        options.dst_stride_elems = self._strides("dst_strides", dst_strides)
        state = comm._state
        made = state.create(lib.heddle_reshard_destroy, lib.heddle_reshard_create_line, state.handle,
                            ctypes.byref(self.line._c), ctypes.byref(options))
        self._hold(made, space, src_strides, dst_strides)
        state.sweep()

    def _hold(self, made: Tuple[int, int], space: str, src_strides: Optional[Sequence[int]],
              dst_strides: Optional[Sequence[int]]) -> None:
        line, rank = self.line, self.comm.rank
        self.space = space
        self._handle, number = made
        self._state = self.comm._state
        self._state.adopt(self, number)
        self._adjoint: Optional[Reshard] = None
        self.src_shape: Tuple[int, ...] = line.src_shape(rank)  #: of this rank's array, before
        self.dst_shape: Tuple[int, ...] = line.dst_shape(rank)
        #: dst_shape with one row where only this rank has none
        self.dst_filled: Tuple[int, ...] = tuple(
            length or min(line.shape[dim], 1) for length, dim in zip(self.dst_shape, line.dst_order))
        self._src_strides = _side_strides(src_strides, line.src_order)
        self._dst_strides = _side_strides(dst_strides, line.dst_order)
        self._given = src_strides, dst_strides
        ways = line, line.adjoint(), line.reversed()
        self.texts = ways[0].text, ways[1].text, ways[2].text
        #: those without the extents that a compiler has as numbers
        self.forms, self.extents = (ways[0].form, ways[1].form, ways[2].form), line.free
        self._is_dense = dst_strides is None
        self._pool: Optional[ctypes.c_void_p] = None
        self._plan, self._src, self._array = ctypes.c_void_p(self._handle), ctypes.c_void_p(), ctypes.c_void_p()
        self._array_at = ctypes.byref(self._array)
        self.tensors: Any = None  #: heddle.torch's: the dtype of those that go by this very plan

    def _strides(self, name: str, strides: Optional[Sequence[int]]) -> Any:
        if strides is None:
            return None
        if len(strides) != len(self.line.shape):
            raise ArgumentError(f"{name} has {len(strides)} entries, the shape {len(self.line.shape)} dims")
        if any(not -1 << 63 <= stride < 1 << 63 for stride in strides):
            raise ArgumentError(f"{name} {tuple(strides)}: wanted numbers of 64 bits")
        return (ctypes.c_int64 * len(strides))(*strides)

    def __repr__(self) -> str:
        return f"<heddle.Reshard {self.line.text}>"

    def __call__(self, src: Any, out: Any = None, stream: int = 0) -> Any:
        """Moves this rank's array; the result lies in `out` or, without one, in the communicator's pool. Both are NumPy
        arrays (or have their interface) of exactly the plan's shape, dtype and strides.

        On a device they have __cuda_array_interface__ or __dlpack__, and `out` is wanted. The call is enqueued on
        `stream` (a cudaStream_t; 0: the default one), as heddle_reshard_execute says: both arrays stay until the stream
        has come so far.
        """
        if self.space == "device":
            return self._on_device(src, out, stream)
        numpy_array(f"{self.line.text}: src", src)
        if out is None:
            if not self._is_dense:
                raise ArgumentError(f"{self.line.text}: a plan with dst_strides wants an array `out`")
            out = self.comm.pool.empty(self.dst_shape, NUMPY[self.line.dtype][0])
            out = out.view(src.dtype) if out.dtype.itemsize == src.dtype.itemsize else out
        numpy_array(f"{self.line.text}: out", out)
        self._fit("src", src, src.flags.c_contiguous, self.src_shape, self._src_strides)
        self._fit("out", out, out.flags.c_contiguous, self.dst_shape, self._dst_strides)
        if not out.flags.writeable:
            raise ArgumentError(f"{self.line.text}: out is a read-only array")
        self.execute(src.__array_interface__["data"][0], out.__array_interface__["data"][0])
        return out

    def _on_device(self, src: Any, out: Any, stream: int) -> Any:
        from_ = device_array(f"{self.line.text}: src", src, self.comm.device, stream)
        to = device_array(f"{self.line.text}: out", out, self.comm.device, stream)
        self._fit("src", from_, from_.is_dense, self.src_shape, self._src_strides)
        self._fit("out", to, to.is_dense, self.dst_shape, self._dst_strides)
        if not to.is_writeable:
            raise ArgumentError(f"{self.line.text}: out is a read-only array")
        self.execute(from_.address, to.address, stream)
        return out

    def execute(self, src: int, dst: int, stream: int = 0) -> None:
        """The same on addresses, which nobody looks at."""
        self._state.call(lib.heddle_reshard_execute, self._handle, src, dst, stream)

    def execute_pooled(self, src: int, take: Callable[[Any], Any]) -> Any:
        """The same into a new array of the communicator's pool, dense: take(capsule), as `Pool.lend` has it."""
        state, array, capsule = self._state, self._array, None
        root = state.root
        while state.is_closed or root.inside is not None or self._pool is None:  # as `State.ask`
            state.open_handle()
            self._pool = self.comm.pool.handle()
        root.inside = state
        array.value = None
        try:
            self._src.value = src
            status = _execute_pooled(self._array_at, self._plan, self._src, self._pool, None)
            if status != 0 or root.raised:
                state.check(status)
            capsule = capsule_of(array, DLTENSOR, None)
            return take(capsule)
        except BaseException:
            take_back(array, capsule)
            raise
        finally:
            root.inside = None
            if root.late:
                root.finish()

    def adjoint(self) -> "Reshard":
        """The plan of the exact transpose, which gradients go by: <y, F x> = <F* y, x>. Made on first use,
        collectively, and kept."""
        if self._adjoint is None:
            adjoint = Reshard.__new__(Reshard)
            adjoint.comm, adjoint.line = self.comm, self.line.adjoint()
            adjoint._hold(self._state.create(lib.heddle_reshard_destroy, lib.heddle_reshard_create_adjoint,
                                             self._handle), self.space, self._given[1], self._given[0])
            self._adjoint = adjoint
        return self._adjoint

    def is_captured(self) -> bool:
        """An execution, of this plan or of its adjoint, is in a graph, whose replays use the plan's memory."""
        return self._info().is_captured != 0 or self._adjoint is not None and self._adjoint.is_captured()

    def _info(self) -> Any:
        raw = _abi.heddle_reshard_info(struct_bytes=ctypes.sizeof(_abi.heddle_reshard_info))
        self._state.call(lib.heddle_reshard_get_info, ctypes.byref(raw), self._handle)
        return raw

    def info(self) -> ReshardInfo:
        raw = self._info()
        return ReshardInfo(
            line=raw.line.decode(), path=raw.path.decode(), kernel=raw.kernel.decode(), why=raw.why.decode(),
            bytes_to=raw.bytes_to[: raw.nranks], bytes_from=raw.bytes_from[: raw.nranks], bytes_sent=raw.bytes_sent,
            bytes_peer_path=raw.bytes_peer_path, bytes_messages=raw.bytes_messages, messages=raw.messages,
            workspace_bytes=raw.workspace_bytes, executions=raw.executions,
            measured_bytes_sent=raw.measured_bytes_sent)

    def _fit(self, name: str, array: Any, is_dense: bool, shape: Tuple[int, ...],
             strides: Optional[Tuple[int, ...]]) -> None:
        check_array(self.line.text, self.line.dtype, self.comm.rank, name, array, shape)
        if is_dense if strides is None else self._agree(array, strides):
            return
        wanted = "a dense array" if strides is None else f"strides of {strides} elements"
        raise ArgumentError(f"{self.line.text}: {name} has strides of {array.strides} bytes, wanted {wanted}")

    @staticmethod
    def _agree(array: Any, strides: Tuple[int, ...]) -> bool:
        return all(extent <= 1 or array.size == 0 or got == want * array.itemsize
                   for extent, got, want in zip(array.shape, array.strides, strides))


def strides_of(line: "str | Line", array: Any, side: str = "src") -> Tuple[int, ...]:
    """The strides of an array of a side ("src", "dst"), in elements per dim of the shape, as a plan wants them."""
    line = make_line(line)
    order = _choice("side", side, {"src": line.src_order, "dst": line.dst_order})
    numpy_array("strides_of: the array", array)
    if array.ndim != len(order):
        raise ArgumentError(f"strides_of: {line.text} has {len(order)} dims, the array {array.ndim}")
    strides = [0] * len(order)
    for axis, dim in enumerate(order):
        if array.strides[axis] % array.itemsize:
            raise ArgumentError(f"{line.text}: a stride of {array.strides[axis]} bytes is no multiple of "
                                f"{array.itemsize}, the element's")
        strides[dim] = array.strides[axis] // array.itemsize
    return tuple(strides)


def numpy_array(name: str, array: Any) -> None:
    if not hasattr(array, "__array_interface__") or not hasattr(array, "flags"):
        raise ArgumentError(f"{name} is a {type(array).__name__}, wanted a NumPy array")


def _side_strides(strides: Optional[Sequence[int]], order: Tuple[int, ...]) -> Optional[Tuple[int, ...]]:
    """Per axis of the side's array."""
    return None if strides is None else tuple(strides[dim] for dim in order)


def _choice(name: str, given: Any, known: dict) -> Any:
    if given not in known:
        raise ArgumentError(f"{name} is '{given}', wanted {' or '.join(known)}")
    return known[given]
