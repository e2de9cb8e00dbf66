"""Who the ranks are."""
from __future__ import annotations

import collections
import ctypes
import functools
import hashlib
import inspect
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from . import _abi
from ._library import encoded, lib
from .attention import Attention, LinearAttention
from .errors import ArgumentError
from .families import Family
from .line import Line, mesh_of
from .numbered import OfThisProcess, numbered
from .options import plain
from .pool import Pool
from .reshard import Reshard
from .state import State

#: plans by what was asked for, that of the last call last
_Kept = collections.OrderedDict[Any, Any]


class Comm(OfThisProcess):
    """The ranks that this process is one of. Made by `Comm.open`; closed by `close`, `with`, or when it is gone.

    One thread at a time may use a communicator and what was made with it, except `abort` and `close`; a second one is
    refused. Ctrl-C ends any wait for other ranks within some ten milliseconds; what the signal's handler raises
    (KeyboardInterrupt) comes out of the call, and the other ranks get `PeerError`. A fork of this process, a worker of
    a DataLoader say, cannot use it.
    """

    rank: int  #: of this process
    size: int  #: number of ranks
    mesh: str  #: `[sp=4]`: the axes that `axis` knows
    number: int  #: of this communicator in this process, for operators that take only plain values
    device: int  #: the number of the device that is attached to this rank; -1: none
    plans_max: int = 512  #: reshards that are kept, and as many attentions; the same on all ranks

    def __init__(self, state: State, mesh: str, parent: "Optional[Comm]" = None):
        self._state = state
        self._parent = parent  # destroyed after this one
        self.mesh = mesh
        self.rank = lib.heddle_comm_rank(state.handle)
        self.size = lib.heddle_comm_size(state.handle)
        self.device = lib.heddle_comm_device(state.handle)
        self._plans: _Kept = collections.OrderedDict()
        self._in_graphs: List[Reshard] = []  # no longer in _plans, but replays use them
        self._texts: Dict[Any, str] = {}
        self._asked: Dict[Any, Any] = {}  # for plans: their place in _plans
        self._attentions: _Kept = collections.OrderedDict()
        self._families: "weakref.WeakValueDictionary[Any, Family]" = weakref.WeakValueDictionary()
        self._compiled: Set[Family] = set()  # those of them that graphs know by number
        self._groups: Dict[str, Comm] = {}
        self._pool: Optional[Pool] = None
        self.number = numbered(self)
        if parent is None:
            weakref.finalize(self, state.close)

    @classmethod
    def open(cls, where: str = "auto", *, mesh: Optional[str] = None, deadline_s: Optional[float] = None,
             bind: bool = False, arena_bytes: Optional[int] = None) -> "Comm":
        """Joins the ranks. Collective.

        where        "auto": what torchrun, srun, mpirun or `python -m heddle` say in the environment, one rank without
                     any; "shm", "tcp", "mpi", "self", or another transport of heddle/comm.h
        mesh         the ranks' axes, `[dp=2 sp=4]`; `[sp=N]` by itself
        deadline_s   of every wait for other ranks; None: 60, and 600 once a device is attached
        bind         True: every rank gets an equal share of the host's cores. False, since threads and the workers of a
                     DataLoader inherit it
        arena_bytes  address space for memory that peers reach; the machine's memory by itself
        """
        return cls._opened(mesh, deadline_s, bind, arena_bytes,
                           lambda out, options: lib.heddle_comm_open(out, encoded("where", where), options))

    @classmethod
    def join(cls, key: str, rank: int, size: int, *, mesh: Optional[str] = None, deadline_s: Optional[float] = None,
             bind: bool = False, arena_bytes: Optional[int] = None) -> "Comm":
        """The processes of this host that name the same key, a word that nobody else has, as ranks. Collective."""
        return cls._opened(mesh, deadline_s, bind, arena_bytes,
                           lambda out, options: lib.heddle_comm_join(out, encoded("key", key), rank, size, options))

    @classmethod
    def from_nccl(cls, pointer: int, *, mesh: Optional[str] = None, deadline_s: Optional[float] = None,
                  bind: bool = False, arena_bytes: Optional[int] = None) -> "Comm":
        """The ranks that a communicator of NCCL has, on one host or several, with its device attached and the wire
        "nccl", whose messages go by it: see heddle_comm_from_nccl. Collective.

        pointer  the ncclComm_t, as a number. It is borrowed: it outlives this communicator, and while a call of heddle
                 runs nobody else uses it
        """
        return cls._opened(mesh, deadline_s, bind, arena_bytes,
                           lambda out, options: lib.heddle_comm_from_nccl(out, pointer, options))

    @classmethod
    def _opened(cls, mesh: Optional[str], deadline_s: Optional[float], bind: bool, arena_bytes: Optional[int],
                call: Callable[[Any, Any], int]) -> "Comm":
        wanted = None if mesh is None else lib.heddle_mesh_size(ctypes.byref(mesh_of(mesh)))
        options, state = _abi.heddle_comm_options(), State()
        lib.heddle_comm_options_init(ctypes.byref(options))
        options.deadline_ms = 0 if deadline_s is None else max(int(deadline_s * 1000), 1)
        options.bind = _abi.HEDDLE_BIND_AUTO if bind else _abi.HEDDLE_BIND_NONE
        options.interrupt = state.interrupt
        if arena_bytes is not None:
            options.arena_bytes = arena_bytes
        out = ctypes.c_void_p()
        status = call(ctypes.byref(out), ctypes.byref(options))
        state.handle = out.value
        try:
            state.check(status)
        except BaseException:  # a signal's handler raised when all was well
            state.close()
            raise
        size = lib.heddle_comm_size(out)
        comm = cls(state, mesh if mesh is not None else f"[sp={size}]")
        if wanted not in (None, size):
            why = f"the mesh {mesh} has {wanted} ranks, the communicator {size}"
            comm.abort(why)
            comm.close()
            raise ArgumentError(why)
        return comm

    @classmethod
    def from_env(cls, **options: Any) -> "Comm":
        """`open("auto")`: the ranks that a launcher has started."""
        return cls.open("auto", **options)

    def __enter__(self) -> "Comm":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._state.is_closed:
            return "<heddle.Comm, closed>"
        how = "in a call" if self._state.root.inside is not None else self.describe()
        return f"<heddle.Comm rank {self.rank} of {self.size}, {self.mesh}: {how}>"

    def close(self) -> None:
        """Leaves; plans and groups made with it end. Arrays from its pool stay. Not collective (over MPI it is). Twice
        is legal. Any thread, and a signal's handler: a call that waits meanwhile ends with an error, and so do those of
        the other ranks."""
        self._groups.clear()
        self._plans.clear()
        self._in_graphs.clear()
        self._attentions.clear()
        self._families.clear()
        self._compiled.clear()
        self._state.close()

    @property
    def closed(self) -> bool:
        return self._state.is_closed

    def describe(self) -> str:
        """One line: transport, ranks, hosts, binding, why."""
        return self._state.ask(lib.heddle_comm_describe, self._state.handle).decode()

    def axis(self, name: str) -> "Comm":
        """The ranks that differ from this one only in their place on the mesh axis `name`, made on first use and kept
        until it is closed. Making it is collective."""
        group = self._groups.get(name)
        if group is not None and not group.closed:
            return group
        mesh = mesh_of(self.mesh)
        index = lib.heddle_axis_index(ctypes.byref(mesh), encoded("axis", name))
        if index < 0:
            known = " ".join(mesh.axis[a].name.decode() for a in range(mesh.naxes))
            raise ArgumentError(f"no axis '{name}' in {self.mesh}: there is {known}")
        state = State(self._state)
        state.handle, number = self._state.create(state.end, lib.heddle_comm_axis_group, self._state.handle,
                                                  ctypes.byref(mesh), index)
        group = self._groups[name] = Comm(state, f"[{name}={mesh.axis[index].size}]", self)
        self._state.adopt(group, number)
        self._state.sweep()
        return group

    def attach_device(self, device: str = "cuda:current", wire: str = "auto") -> None:
        """A device for this rank, so that reshards can be asked for arrays in its memory (`space="device"`): see
        heddle_comm_attach_device. Collective, once.

        device  "cuda": by this rank's place on its host; "cuda:1": that number; "cuda:current": the one that is current
        wire    how bytes travel between devices: "auto" "peer" "nccl" "host"
        """
        prefix = "HEDDLE_WIRE_"
        wires = {name[len(prefix):].lower(): n for name, n in vars(_abi).items() if name.startswith(prefix)}
        if wire not in wires:
            raise ArgumentError(f"wire is '{wire}', wanted {' or '.join(wires)}")
        self._state.call(lib.heddle_comm_attach_device, self._state.handle, encoded("device", device), wires[wire])
        self.device = lib.heddle_comm_device(self._state.handle)

    def lend_peers(self, at: Sequence[int], nbytes: int) -> None:
        """Memory of devices that the program has mapped between its ranks itself (PyTorch's symmetric memory:
        `buffer_ptrs` and `buffer_size`): addresses of every rank's piece, as this rank has them. Results in it are
        stored there without a copy; the pieces live as long as the communicator: see heddle_comm_lend_peers.
        Collective."""
        if len(at) != self.size:
            raise ArgumentError(f"lend_peers: {len(at)} addresses, wanted one of each of {self.size} ranks")
        self._state.call(lib.heddle_comm_lend_peers, self._state.handle, (ctypes.c_void_p * self.size)(*at), nbytes)

    def barrier(self) -> None:
        self._state.call(lib.heddle_comm_barrier, self._state.handle)

    def allgather(self, data: bytes) -> List[bytes]:
        """As many bytes from every rank, ordered by rank. Collective."""
        data = memoryview(data).tobytes()  # a str is none
        out = ctypes.create_string_buffer(max(len(data) * self.size, 1))
        self._state.call(lib.heddle_comm_allgather, self._state.handle, data, ctypes.cast(out, ctypes.c_void_p),
                         len(data))
        return [out.raw[rank * len(data): (rank + 1) * len(data)] for rank in range(self.size)]

    def allreduce_sum(self, array: Any) -> None:
        """The ranks' NumPy arrays (float64, float32 or int64) added element by element in rank order, in place; the
        same bits on every rank. Collective."""
        if not hasattr(array, "__array_interface__"):
            raise ArgumentError(f"allreduce_sum of a {type(array).__name__}: wanted a NumPy array")
        dtype = {"float64": _abi.HEDDLE_F64, "float32": _abi.HEDDLE_F32, "int64": _abi.HEDDLE_I64}.get(str(array.dtype))
        if dtype is None or not array.flags.c_contiguous or not array.flags.writeable:
            raise ArgumentError(f"allreduce_sum: dtype {array.dtype}, strides {array.strides}: wanted a dense writable "
                                "array of float64, float32 or int64")
        self._state.call(lib.heddle_comm_allreduce_sum, self._state.handle, array.ctypes.data, array.size, dtype)

    def abort(self, why: str) -> None:
        """Gives up: waits of other ranks end with `PeerError` and this sentence. Any thread."""
        self._state.abort(why)

    def reset(self, why: Optional[str] = None) -> None:
        """All ranks go on after a failure, also after an exception that one of them has caught, while the others waited
        for it: see heddle_comm_reset. Collective; `why` is what those that still wait are told (`PeerError`), which
        then call it, too. Plans, attentions and axes stay as they are; those that it keeps (`reshard`, `attention`) and
        that not all ranks have are let go, and made again when they are asked for. PeerError: a rank died or has closed
        its communicator; what is left is `close`, and to open another one. DeadlineError: a rank did not come; it may
        be called again. UnsupportedError over MPI and NCCL, and where devices store to one another's memory."""
        if self._parent is not None:
            raise ArgumentError(f"reset of {self.mesh}, the ranks along one axis: wanted the communicator that it is "
                                "of")
        if why is not None:
            self.abort(why)
        self._state.call(lib.heddle_comm_reset, self._state.handle)
        self._keep_what_all_have()
        self._state.sweep()

    def _keep_what_all_have(self) -> None:
        """A creation that failed may have come to its end on some ranks, whose peers would make the plan anew."""
        kept = repr(([(key, plan._adjoint is not None) for key, plan in self._plans.items()],
                     [(kind.__name__, *rest) for kind, *rest in self._attentions]))
        digests = self.allgather(hashlib.blake2b(kept.encode(), digest_size=16).digest())
        if len(set(digests)) > 1:
            for plan in self._plans.values():
                plan._adjoint = None
            self._plans.clear()
            self._attentions.clear()
        mesh = mesh_of(self.mesh)
        names = [mesh.axis[a].name.decode() for a in range(mesh.naxes)]
        theirs = self.allgather(bytes(name in self._groups for name in names))
        for name, common in zip(names, zip(*theirs)):
            if all(common):
                self._groups[name]._keep_what_all_have()
            else:
                self._groups.pop(name, None)

    @property
    def pool(self) -> Pool:
        """Where results lie that are given no `out`."""
        pool = self._pool
        if pool is None:
            pool = self._pool = self._parent.pool if self._parent else Pool(self)
        return pool

    def again(self, asked: Any) -> Optional[Reshard]:
        """The plan that was put under this by `reshard`, if it is still kept: looking closer costs more than a small
        switch."""
        key = self._asked.get(asked)
        plan = self._plans.get(key)
        if plan is not None:
            self._plans.move_to_end(key)
        return plan

    def reshard(self, line: "str | Line", dtype: Optional[str] = None, space: str = "host", *,
                asked: Any = None) -> Reshard:
        """The plan of a line, made on first use and kept: `comm.reshard("f32[t=7 s=5] on [sp=2]: t@sp -> s@sp")`.
        `dtype` replaces the line's; `space` says where arrays lie. Making it is collective, so all ranks ask for the
        same lines in the same order. Of more than `plans_max` the one that was not asked for longest is let go, and
        made again when it is; what it has in graphs keeps its memory until the communicator is closed. `again(asked)`
        finds it next time."""
        text = self._text(line, dtype)
        if asked is not None:
            self._remember(self._asked, asked, (text, space))
        return self._kept(self._plans, (text, space), lambda: Reshard(self, text, space=space))

    def _text(self, line: "str | Line", dtype: Optional[str]) -> str:
        """The shortest form of a line: reading one costs more than a small switch."""
        key = (line, dtype)
        text = self._texts.get(key)
        if text is None:
            parsed = line if isinstance(line, Line) else Line(line)
            text = (parsed if dtype is None else parsed.with_dtype(dtype)).text
            self._remember(self._texts, key, text)
        return text

    def _remember(self, where: Dict[Any, Any], key: Any, value: Any) -> None:
        if len(where) >= 8 * self.plans_max:
            where.clear()
        where[key] = value

    def _kept(self, plans: _Kept, key: Any, make: Callable[[], Any]) -> Any:
        plan = plans.get(key)
        if plan is None:
            plan = plans[key] = make()
            while len(plans) > self.plans_max:
                _, oldest = plans.popitem(last=False)
                if isinstance(oldest, Reshard) and oldest.is_captured():
                    self._in_graphs.append(oldest)
        else:
            plans.move_to_end(key)
        return plan

    def attention(self, problem: str, method: str = "ulysses", dtype: Optional[str] = None,
                  **options: Any) -> Attention:
        """The plan of an attention, kept like a reshard's:
        `comm.attention("f32[b=2 s=37 h=6 d=16] on [sp=4]: s@sp", "ring", causal=True)`. The options are those of
        `heddle.Attention`. `dtype` replaces the problem's."""
        return self._attention(Attention, problem, method, dtype, options)

    def forget(self, plan: Attention) -> None:
        """An attention is kept no longer; its memory is freed behind a later collective call, when nobody has it."""
        for asked in [asked for asked, kept in self._attentions.items() if kept is plan]:
            del self._attentions[asked]

    def linear_attention(self, problem: str, method: str = "lasp2", dtype: Optional[str] = None,
                         **options: Any) -> LinearAttention:
        """The same of a linear attention; the options are those of `heddle.LinearAttention`."""
        return self._attention(LinearAttention, problem, method, dtype, options)

    def family(self, kind: Any, form: str, method: str, options: Dict[str, Any]) -> Family:
        """The plans of this kind, method and options: kept as long as any of them, or until the communicator is closed
        once a compiled graph has it."""
        key = kind, form, method, _frozen(options)
        family = self._families.get(key)
        if family is None:
            family = self._families[key] = Family(self, kind, form, method, dict(key[-1]))
        return family

    def _attention(self, kind: Any, problem: str, method: str, dtype: Optional[str], options: Dict[str, Any]) -> Any:
        if not isinstance(method, str):
            raise ArgumentError(f"{problem}: the method is {method!r}, wanted a word")
        frozen = _frozen({**_defaults(kind), **options})
        text = self._text(f"{problem} -> *", dtype)
        return self._kept(self._attentions, (kind, text, method, frozen),
                          lambda: kind(self, Line(text), method, **dict(frozen)))


@functools.lru_cache(maxsize=None)
def _defaults(kind: Any) -> Dict[str, Any]:
    parameters = inspect.signature(kind.__init__).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def _frozen(options: Dict[str, Any]) -> Tuple[Tuple[str, Any], ...]:
    """As a key, which nobody changes afterwards."""
    return tuple(sorted((name, plain(value)) for name, value in options.items()))


def check_comm(what: str, comm: Any) -> None:
    if not isinstance(comm, Comm):
        raise ArgumentError(f"{what}: the communicator is a {type(comm).__name__}, wanted a heddle.Comm")
