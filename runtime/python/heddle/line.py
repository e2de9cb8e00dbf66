"""A whole reshard as one line of text, and what follows from it without any communicator."""
from __future__ import annotations

import ctypes
from typing import Dict, List, Optional, Set, Tuple

from . import _abi
from ._library import check, encoded, lib
from .errors import ArgumentError

DTYPES = {"f64": _abi.HEDDLE_F64, "f32": _abi.HEDDLE_F32, "f16": _abi.HEDDLE_F16, "bf16": _abi.HEDDLE_BF16,
          "f8e4m3": _abi.HEDDLE_F8E4M3, "f8e5m2": _abi.HEDDLE_F8E5M2, "i64": _abi.HEDDLE_I64,
          "i32": _abi.HEDDLE_I32, "i8": _abi.HEDDLE_I8, "u8": _abi.HEDDLE_U8, "bool": _abi.HEDDLE_BOOL}
_NAMES = {number: name for name, number in DTYPES.items()}


def mesh_of(text: str) -> _abi.heddle_mesh:
    mesh = _abi.heddle_mesh()
    check(lib.heddle_mesh_parse(ctypes.byref(mesh), encoded("mesh", text)))
    return mesh


def axis_of(text: str) -> Tuple[str, int]:
    """Name and ranks of the only axis of such a mesh, `[sp=4]`."""
    mesh = mesh_of(text)
    if mesh.naxes != 1:
        raise ArgumentError(f"the mesh is {text}, wanted one axis: [sp=4]")
    return mesh.axis[0].name.decode(), mesh.axis[0].size


def layout_text(layout: _abi.heddle_layout, shape: _abi.heddle_shape, mesh: _abi.heddle_mesh) -> str:
    out = ctypes.create_string_buffer(_abi.HEDDLE_LINE_BYTES)
    check(lib.heddle_layout_format(out, len(out), ctypes.byref(layout), ctypes.byref(shape), ctypes.byref(mesh)))
    return out.value.decode()


class Line:
    """`bf16[b=2 t=30 s=1590 c=1152] on [sp=4]: t@sp -> s@sp as b,s,t,c`, read and checked.

    A side's array has its axes in the order that `as` names, else in the shape's. Everything here is pure: no ranks are
    needed. `text` is the shortest form of the line; two lines are equal when their texts are.
    """

    def __init__(self, text: str):
        self._c = _abi.heddle_reshard_line()
        check(lib.heddle_reshard_parse(ctypes.byref(self._c), encoded("a line", text)))
        self._describe()

    @classmethod
    def _made(cls, struct: _abi.heddle_reshard_line) -> "Line":
        line = cls.__new__(cls)
        line._c = struct
        line._describe()
        return line

    def _describe(self) -> None:
        out = ctypes.create_string_buffer(_abi.HEDDLE_LINE_BYTES)
        check(lib.heddle_reshard_format(out, len(out), ctypes.byref(self._c)))
        shape = self._c.shape
        self.text: str = out.value.decode()
        self.dtype: str = _NAMES[shape.dtype]
        self.dims: Tuple[str, ...] = tuple(shape.dim[d].name.decode() for d in range(shape.ndim))
        self.shape: Tuple[int, ...] = tuple(shape.dim[d].extent for d in range(shape.ndim))
        self.nranks: int = lib.heddle_mesh_size(ctypes.byref(self._c.mesh))

    def __repr__(self) -> str:
        return f"heddle.Line({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def itemsize(self) -> int:
        return lib.heddle_dtype_bytes(self._c.shape.dtype)

    @property
    def form(self) -> str:
        """`text` with %d for the extents `free`: `form % free` is `text`."""
        rest, fixed = self.text.partition("]")[2], self._fixed()
        sizes = (extent if d in fixed else "%d" for d, extent in enumerate(self.shape))
        return f"{self.dtype}[{' '.join(f'{dim}={size}' for dim, size in zip(self.dims, sizes))}]{rest}"

    @property
    def free(self) -> Tuple[int, ...]:
        """The extents of dims whose blocks have no lengths of their own, which are of one extent alone."""
        fixed = self._fixed()
        return tuple(extent for d, extent in enumerate(self.shape) if d not in fixed)

    def _fixed(self) -> Set[int]:
        return {layout.dim_of_axis[a] for layout in (self._c.from_, self._c.to)
                for a, n in enumerate(layout.nshards[: self._c.mesh.naxes]) if n > 0}

    def with_dtype(self, dtype: str) -> "Line":
        """The same line for elements of another type."""
        if dtype not in DTYPES:
            raise ArgumentError(f"dtype is '{dtype}', wanted one of {' '.join(DTYPES)}")
        struct = _abi.heddle_reshard_line.from_buffer_copy(self._c)
        struct.shape.dtype = DTYPES[dtype]
        return Line._made(struct)

    def reversed(self) -> "Line":
        """The way back: what is left becomes right."""
        struct = _abi.heddle_reshard_line.from_buffer_copy(self._c)
        struct.from_, struct.to = self._c.to, self._c.from_
        struct.from_order, struct.to_order = self._c.to_order, self._c.from_order
        return Line._made(struct)

    def adjoint(self) -> "Line":
        """The exact transpose, which gradients go by: the way back, with replicated and partial sums exchanged."""
        struct = self.reversed()._c
        for side in ("from_", "to"):
            setattr(struct, side, lib.heddle_layout_dual(ctypes.byref(getattr(struct, side))))
        return Line._made(struct)

    def _order(self, order: _abi.heddle_order) -> Tuple[int, ...]:
        ndim = len(self.shape)
        return tuple(order.dim[d] for d in range(ndim)) if order.ndim else tuple(range(ndim))

    @property
    def src_order(self) -> Tuple[int, ...]:
        """Dims of the shape in the order of the source array's axes."""
        return self._order(self._c.from_order)

    @property
    def dst_order(self) -> Tuple[int, ...]:
        return self._order(self._c.to_order)

    def _box(self, layout: _abi.heddle_layout, rank: int) -> Tuple[slice, ...]:
        box = _abi.heddle_box()
        check(lib.heddle_layout_box(ctypes.byref(box), ctypes.byref(self._c.shape), ctypes.byref(self._c.mesh),
                                    ctypes.byref(layout), rank))
        return tuple(slice(box.lo[d], box.lo[d] + box.len[d]) for d in range(box.ndim))

    def src_slices(self, rank: int) -> Tuple[slice, ...]:
        """The part of the whole tensor that `rank` holds before, per dim of the shape: whole[line.src_slices(rank)]."""
        return self._box(self._c.from_, rank)

    def dst_slices(self, rank: int) -> Tuple[slice, ...]:
        return self._box(self._c.to, rank)

    def src_shape(self, rank: int) -> Tuple[int, ...]:
        """Of the local array before, axes in its own order."""
        part = self.src_slices(rank)
        return tuple(part[d].stop - part[d].start for d in self.src_order)

    def dst_shape(self, rank: int) -> Tuple[int, ...]:
        part = self.dst_slices(rank)
        return tuple(part[d].stop - part[d].start for d in self.dst_order)

    def sends(self, rank: int) -> Dict[int, int]:
        """Bytes that `rank` sends to every peer that it sends to; what it keeps is not counted."""
        count = ctypes.c_int()
        line = ctypes.byref(self._c)
        check(lib.heddle_reshard_sends(None, 0, ctypes.byref(count), line, rank))
        out = (_abi.heddle_peer_bytes * max(count.value, 1))()
        check(lib.heddle_reshard_sends(out, count.value, ctypes.byref(count), line, rank))
        return {entry.peer: entry.bytes for entry in out[: count.value]}


def make_line(what: "str | Line", mesh: Optional[str] = None, from_: Optional[str] = None,
              to: Optional[str] = None) -> Line:
    """A line as it is, or one from its parts."""
    if isinstance(what, Line):
        return what
    if mesh is None and from_ is None and to is None:
        return Line(what)
    if mesh is None or from_ is None or to is None:
        raise ArgumentError("a reshard is one line, or shape, mesh, from_ and to together")
    return Line(f"{what} on {mesh}: {from_} -> {to}")


def volume(line: "str | Line") -> List[List[int]]:
    """The bytes that every rank (row) sends to every rank (column), known before anything runs."""
    line = make_line(line)
    rows = [[0] * line.nranks for _ in range(line.nranks)]
    for rank, row in enumerate(rows):
        for peer, sent in line.sends(rank).items():
            row[peer] = sent
    return rows
