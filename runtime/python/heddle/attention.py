"""Attention over a sequence that is sharded over ranks: heddle/attention.h and heddle/linear_attention.h on arrays.

    attention = comm.attention("f32[b=2 s=37 h=6 d=16] on [sp=4]: s@sp", method="ring")
    o = attention(q, k, v)                            # this rank's rows: [b, s, h, d], unevenly cut
    dq, dk, dv = attention.backward(d_o)              # of the last call
"""
from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import _abi
from ._library import check, encoded, lib
from .attention_lines import States, Way, of_lse, to_heads, to_whole
from .errors import ArgumentError, UnsupportedError
from .line import Line
from .numbered import OfThisProcess, numbered
from .options import listed, scale_of
from .reshard import NUMPY, check_array, numpy_array
from .turns import Turn, turns_of

if TYPE_CHECKING:
    from .comm import Comm
    from .families import Family

#: data address and strides in elements, of [b, s, h, d]
Place = Tuple[int, Sequence[int]]


def _method(parse: Callable[..., int], name: str) -> int:
    out = ctypes.c_int()
    check(parse(ctypes.byref(out), encoded("method", name)))
    return out.value


def check_method(name: str) -> None:
    """Raises unless there is such a method of softmax attention."""
    _method(lib.heddle_attention_method_parse, name)


_SAVED_MAX = 1 << 20


def check_saved(what: str, saved_forwards: int) -> None:
    if not isinstance(saved_forwards, int) or isinstance(saved_forwards, bool) or saved_forwards < 1:
        raise ArgumentError(f"{what}: saved_forwards is {saved_forwards!r}, wanted 1 at least")
    if saved_forwards > _SAVED_MAX:
        raise ArgumentError(f"{what}: saved_forwards is {saved_forwards}, wanted {_SAVED_MAX} at most")


def _arrays(places: Sequence[Place]) -> List[Any]:
    """What a call in C takes: pointers to heddle_attention_array."""
    return [ctypes.byref(_abi.heddle_attention_array(data=data or None, stride_elems=(ctypes.c_int64 * 4)(*strides)))
            for data, strides in places]


def _told(array: Any) -> Any:
    """The array, or a copy where strides in elements cannot tell it: all zero, which the library takes for a dense one,
    or no multiples of the element."""
    numpy_array("attention: one of the arrays", array)
    if any(array.strides) and not any(stride % array.itemsize for stride in array.strides):
        return array
    return array.copy()


class _Sharded(OfThisProcess):
    """What softmax and linear attention have in common.

    The library keeps in an object what the backward of its last forward needs. A plan has `saved_forwards` such objects
    and takes the next one in every forward, so that as many forwards may follow one another before their backwards.
    """

    method: str  #: as it was asked for
    saved_forwards: int  #: how many forwards may come before their backwards
    heads: int  #: of q
    kv_heads: int  #: of k and v
    width: int  #: of q and k
    dv: int  #: width of v and o
    space: str = "host"  #: where arrays lie
    log_sum_exp: bool = False
    _destroy: Callable[[int], None]

    def __init__(self, comm: "Comm", problem: "str | Line", method: str, saved_forwards: int,
                 options: Dict[str, Any]):
        self.comm = comm
        self._options = {"saved_forwards": saved_forwards, **options}
        self.line = problem if isinstance(problem, Line) else Line(f"{problem} -> *")  #: whose left side it is about
        if len(self.line.shape) != 4:
            raise ArgumentError(f"{problem}: attention has four dims (batch, sequence, heads, width), not "
                                f"{len(self.line.shape)}")
        check_saved(self.text, saved_forwards)
        self.method, self.saved_forwards = method, saved_forwards
        self.heads = self.kv_heads = self.line.shape[2]
        self.number = numbered(self)  #: of this plan in this process, for operators that take only plain values
        self._state = comm._state
        self._objects: List[int] = [0] * saved_forwards
        self._forwards = 0
        self.width = self.dv = self.line.shape[3]
        #: which plans a compiled graph takes for this one's, and what tells this from them
        self._family, self.numbers = self._in_family()
        self.family: int = self._family.number
        #: what this rank has of [b, s, h, d]
        self.slices: Tuple[slice, ...] = self.line.src_slices(comm.rank)
        #: of its q, and the first of its rows
        self.q_shape: Tuple[int, ...] = tuple(part.stop - part.start for part in self.slices)
        self.first: int = self.slices[1].start

    def of(self, dtype: str, space: str = "host") -> Any:
        """The same plan for elements of another type, or in another memory, kept by the communicator."""
        if (dtype, space) == (self.line.dtype, self.space):
            return self
        there = {} if space == "host" else {"space": space}
        return self.comm._attention(type(self), self.text, self.method, dtype, {**self._options, **there})

    def _in_family(self) -> Tuple[Family, Tuple[int, ...]]:
        options, space = dict(self._options), {} if self.space == "host" else {"space": self.space}
        key_lengths = options.pop("key_lengths", None)
        form = self.line.form.rsplit(" -> ", 1)[0]
        family = self.comm.family(type(self), form, self.method, {**options, **space})
        return family, (*self.line.free, *(() if key_lengths is None else key_lengths))

    @property
    def text(self) -> str:
        """`f32[b=2 s=37 h=6 d=16] on [sp=4]: s@sp`"""
        return self.line.text.rsplit(" -> ", 1)[0]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<heddle.{type(self).__name__} {self.text}, {self.method}>"

    def _create(self) -> Tuple[int, int]:
        raise NotImplementedError

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        """o of this rank's rows. NumPy arrays [b, s, h, d] with any strides; the result lies in the pool."""
        self._need_host()
        q, k, v = _told(q), _told(k), _told(v)
        inputs = self._inputs(q, k, v)
        o = self._empty(q, self.heads, self.dv)
        self.execute(*inputs, self._place("o", o, self.heads, self.dv))
        return o

    def prepare(self) -> None:
        """Makes what the first call would, with its memory. Collective."""
        self._object(self._forwards + 1)

    def execute(self, q: Place, k: Place, v: Place, o: Place) -> int:
        """The same on addresses and strides, which nobody looks at. Its ticket is for `execute_backward`."""
        raise NotImplementedError

    def _need_host(self) -> None:
        if self.space != "host":
            raise ArgumentError(f"{self.text}: a plan of space={self.space!r} takes no arrays of NumPy: execute(...) "
                                "and execute_backward(...) take addresses on the device, and tensors of torch go by "
                                "heddle.torch.attention")

    def _object(self, turn: int) -> int:
        self._state.open_handle()
        at = turn % len(self._objects)
        if self._objects[at] == 0:
            self._objects[at], number = self._create()
            self._state.adopt(self, number)
            self._state.sweep()
        return self._objects[at]

    def _next(self) -> Tuple[int, int]:
        handle = self._object(self._forwards + 1)
        self._forwards += 1
        return handle, self._forwards

    def holds(self, ticket: int) -> bool:
        """Is what the forward of this ticket left still there?"""
        return self._forwards - ticket < len(self._objects)

    def _last(self) -> int:
        if self._forwards == 0:
            raise ArgumentError(f"{self.text}: backward before any forward")
        return self._forwards

    def _place(self, name: str, array: Any, heads: int, width: int) -> Place:
        check_array(self.text, self.line.dtype, self.comm.rank, name, array, self.local_shape(heads, width))
        strides = [stride // array.itemsize for stride in array.strides]
        return array.__array_interface__["data"][0], strides

    def local_shape(self, heads: int, width: int) -> Tuple[int, ...]:
        """Of an array with so many heads before they are sharded."""
        b, s, h, _ = self.q_shape
        return b, s, h * heads // self.heads, width

    def _inputs(self, q: Any, k: Any, v: Any) -> Tuple[Place, Place, Place]:
        return (self._place("q", q, self.heads, self.width), self._place("k", k, self.kv_heads, self.width),
                self._place("v", v, self.kv_heads, self.dv))

    def _empty(self, like: Any, heads: int, width: int) -> Any:
        out = self.comm.pool.empty(self.local_shape(heads, width), NUMPY[self.line.dtype][0])
        return out.view(like.dtype)


class Attention(_Sharded):
    """softmax(scale q k^T + mask) v. Made by `Comm.attention`; the first call, which makes the plan in C, and every
    other is collective.

    problem      `f32[b=2 s=37 h=6 d=16] on [sp=4]: s@sp`: batch, sequence, heads, width; f32, bf16 or f64
    method       "local" "ulysses" "ring" "rsa" "usp" "gather-kv"
    kv_heads     of k and v, divides the heads of q; None: as many
    causal       a query sees keys up to its own position
    key_lengths  per sample of the whole batch: keys from there on are not seen
    scale        None: 1 / sqrt(width)
    threads      of this rank
    saved_forwards   how many forwards may come before their backwards
    log_sum_exp  True: a call gives (o, lse). lse [b, h, s] of this rank's rows, in float64 for f64 and else in float32,
                 is the logarithm of the sum of exp(scale q k) over the keys that a query sees, by which results of
                 several sets of keys are put together
    space        "host"; "device": arrays lie in the memory of the device that this rank has attached, and calls are
                 enqueued: `execute` on addresses, with what heddle/attention.h says of devices
    kernels      of torch's tensors on a device, by ring, usp and gather-kv: "torch"; "heddle", the library's own;
                 "auto": whichever the first forward finds to be the faster, `chosen` says why. Which one that is
                 depends on the shape (docs/benchmarks.md)
    """

    _destroy = lib.heddle_attention_destroy

    def __init__(self, comm: "Comm", problem: "str | Line", method: str = "ulysses", *, kv_heads: Optional[int] = None,
                 causal: bool = False, key_lengths: Optional[Sequence[int]] = None, scale: Optional[float] = None,
                 threads: int = 1, saved_forwards: int = 1, log_sum_exp: bool = False, space: str = "host",
                 kernels: str = "torch"):
        self._method = _method(lib.heddle_attention_method_parse, method)
        if space not in ("host", "device") or kernels not in ("auto", "torch", "heddle"):
            raise ArgumentError(f"{problem}: space is {space!r}, kernels {kernels!r}, wanted host or device, and auto, "
                                "torch or heddle")
        self.space, self.kernels = space, kernels
        key_lengths, scale = listed(f"{problem}: key_lengths", key_lengths), scale_of(f"{problem}", scale)
        self.chosen: Dict[Any, Any] = {}  #: of a framework: whose kernels, and why
        super().__init__(comm, problem, method, saved_forwards,
                         {"kv_heads": kv_heads, "causal": causal, "key_lengths": key_lengths, "scale": scale,
                          "threads": threads, "log_sum_exp": log_sum_exp, "kernels": kernels})
        self.kv_heads = self.heads if kv_heads is None else kv_heads
        self.is_grouped: bool = self.heads != self.kv_heads  #: several query heads to a key head
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ArgumentError(f"{self.text}: kv_heads is {self.kv_heads}, which does not divide {self.heads} heads")
        if key_lengths is not None and len(key_lengths) != self.line.shape[0]:
            raise ArgumentError(f"{self.text}: {len(key_lengths)} key_lengths for {self.line.shape[0]} samples")
        #: the ways of o, and of what goes together as one; None: ulysses cannot be written as reshards
        self.to_heads: Optional[Tuple[Way, Way]] = to_heads(self)
        #: that of the log-sum-exp; None likewise
        self.to_heads_of_lse: Optional[Way] = of_lse(self, self.to_heads[0]) if self.to_heads else None
        #: that of gather-kv: k and v as one, from this rank's rows to all, and of their gradient; None likewise
        self.to_whole: Optional[Way] = to_whole(self)
        self.causal, self.key_lengths, self.scale, self._threads = causal, key_lengths, scale, threads
        self.log_sum_exp = log_sum_exp
        self._turns: Optional[List[Turn]] = None

    def turns(self) -> List[Turn]:
        """Of ring and usp, where k and v are gathered in parts: the parts, and who sees what of them. Of others: what
        there is of them where they go so for the log-sum-exp, one part where a rank has all rows."""
        if self._turns is None:
            if self.method not in ("usp", "ulysses"):
                sides: Optional[str] = re.split(" on |: ", self.text)[2]
            else:
                sides = self.to_heads and self.to_heads[0].texts[0].rsplit(" -> ", 1)[1].split(" as ")[0]
            self._turns = turns_of(self, sides) if sides else None
        if self._turns is None:
            raise UnsupportedError(f"{self.text}: {self.method} in parts wants the sequence on neighbouring axes and "
                                   "every query head where its key head is; usp on two, and whole heads")
        return self._turns

    def _create(self) -> Tuple[int, int]:
        if self.scale == 0:  # which in C stands for 1 / sqrt(width)
            raise UnsupportedError(f"{self.text}: scale is 0, which method {self.method} does not know")
        options, line = _abi.heddle_attention_options(), self.line._c
        lib.heddle_attention_options_init(ctypes.byref(options))
        options.method, options.kv_heads, options.causal = self._method, self.kv_heads, int(self.causal)
        options.scale, options.threads = 0.0 if self.scale is None else self.scale, self._threads
        options.log_sum_exp = int(self.log_sum_exp)
        if self.space == "device":
            options.space, options.device = _abi.HEDDLE_SPACE_DEVICE, max(self.comm.device, 0)
        if self.key_lengths is not None:
            options.key_lengths = (ctypes.c_int64 * len(self.key_lengths))(*self.key_lengths)
        return self._state.create(self._destroy, lib.heddle_attention_create, self._state.handle,
                                  ctypes.byref(line.shape), ctypes.byref(line.mesh), ctypes.byref(line.from_),
                                  ctypes.byref(options))

    def backward(self, d_o: Any) -> Tuple[Any, Any, Any]:
        """dq, dk, dv of the last call: those of a loss that is the sum over all ranks."""
        self._need_host()
        d_o = _told(d_o)
        given = self._place("d_o", d_o, self.heads, self.dv)
        dq, dk, dv = (self._empty(d_o, heads, self.width) for heads in (self.heads, self.kv_heads, self.kv_heads))
        self.execute_backward(self._last(), given, *self._inputs(dq, dk, dv))
        return dq, dk, dv

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        """o of this rank's rows; (o, lse) with `log_sum_exp`. NumPy arrays [b, s, h, d] with any strides; the result
        lies in the pool."""
        if not self.log_sum_exp:
            return super().__call__(q, k, v)
        self._need_host()
        q, k, v = _told(q), _told(k), _told(v)
        inputs = self._inputs(q, k, v)
        o, lse = self._empty(q, self.heads, self.dv), self.comm.pool.empty(self.lse_shape, self.lse_dtype)
        self.execute(*inputs, self._place("o", o, self.heads, self.dv), lse.__array_interface__["data"][0])
        return o, lse

    @property
    def lse_shape(self) -> Tuple[int, int, int]:
        """[b, h, s] of this rank."""
        return self.q_shape[0], self.q_shape[2], self.q_shape[1]

    @property
    def lse_dtype(self) -> str:
        return "float64" if self.line.dtype == "f64" else "float32"

    def execute(self, q: Place, k: Place, v: Place, o: Place, lse: int = 0, stream: int = 0) -> int:
        """lse: an address, dense; 0: not wanted. stream: a cudaStream_t, of device arrays; 0: the default one"""
        handle, ticket = self._next()
        self._state.call(lib.heddle_attention_forward, handle, *_arrays((q, k, v, o)), lse or None, stream or None)
        return ticket

    def execute_backward(self, ticket: int, d_o: Place, dq: Place, dk: Place, dv: Place, stream: int = 0) -> None:
        handle = self._object(ticket)
        self._state.call(lib.heddle_attention_backward, handle, *_arrays((d_o, dq, dk, dv)), stream or None)


class LinearAttention(_Sharded):
    """o_i = sum over j of decay^|i-j| (q_i . k_j) v_j, causal unless `bidirectional`. Made by `Comm.linear_attention`;
    every call is collective.

    problem   `f32[b=2 s=37 h=6 d=16] on [sp=4]: s@sp`: of q and k
    method    "local" "lasp" "lasp2" "scan"
    decay     per head, 0 < g <= 1; None: all 1
    dv        width of v and o; None: that of q
    """

    _destroy = lib.heddle_linear_attention_destroy

    def __init__(self, comm: "Comm", problem: "str | Line", method: str = "lasp2", *,
                 decay: Optional[Sequence[float]] = None, bidirectional: bool = False, dv: Optional[int] = None,
                 threads: int = 1, saved_forwards: int = 1):
        self._method, decay = _method(lib.heddle_linear_method_parse, method), listed(f"{problem}: decay", decay)
        super().__init__(comm, problem, method, saved_forwards,
                         {"decay": decay, "bidirectional": bidirectional, "dv": dv, "threads": threads})
        if decay is not None and len(decay) != self.heads:
            raise ArgumentError(f"{self.text}: {len(decay)} decays for {self.heads} heads")
        for head, each in enumerate(decay or ()):
            if not 0 < each <= 1:
                raise ArgumentError(f"{self.text}: decay of head {head} is {each}, not above 0 and at most 1")
        if dv is not None and dv < 1:
            raise ArgumentError(f"{self.text}: dv is {dv}, wanted 1 at least")
        self.decay, self.bidirectional, self._threads = decay, bidirectional, threads
        self.dv = self.width if dv is None else dv
        self.known: Dict[str, Any] = {}  #: what a framework keeps of this, by device
        #: None: every rank has all rows
        self.states: Optional[States] = States(self) if re.search(rf"\b{self.line.dims[1]}@", self.text) else None

    def _create(self) -> Tuple[int, int]:
        options, line = _abi.heddle_linear_attention_options(), self.line._c
        lib.heddle_linear_attention_options_init(ctypes.byref(options))
        options.method, options.dv, options.bidirectional = self._method, self.dv, int(self.bidirectional)
        options.threads = self._threads
        if self.decay is not None:
            options.decay = (ctypes.c_double * self.heads)(*self.decay)
        return self._state.create(self._destroy, lib.heddle_linear_attention_create, self._state.handle,
                                  ctypes.byref(line.shape), ctypes.byref(line.mesh), ctypes.byref(line.from_),
                                  ctypes.byref(options))

    def backward(self, q: Any, k: Any, v: Any, d_o: Any) -> Tuple[Any, Any, Any]:
        """dq, dk, dv of the last call, given its q, k, v again."""
        q, k, v, d_o = _told(q), _told(k), _told(v), _told(d_o)
        inputs = *self._inputs(q, k, v), self._place("d_o", d_o, self.heads, self.dv)
        dq, dk, dv = (self._empty(d_o, self.heads, width) for width in (self.width, self.width, self.dv))
        self.execute_backward(self._last(), *inputs, *self._inputs(dq, dk, dv))
        return dq, dk, dv

    def execute(self, q: Place, k: Place, v: Place, o: Place) -> int:
        handle, ticket = self._next()
        self._state.call(lib.heddle_linear_attention_forward, handle, *_arrays((q, k, v, o)), None)
        return ticket

    def execute_backward(self, ticket: int, q: Place, k: Place, v: Place, d_o: Place, dq: Place, dk: Place,
                         dv: Place) -> None:
        handle = self._object(ticket)
        self._state.call(lib.heddle_linear_attention_backward, handle, *_arrays((q, k, v, d_o, dq, dk, dv)), None)
