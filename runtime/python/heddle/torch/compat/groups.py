"""Process groups of torch.distributed, and the communicators of their ranks."""
from __future__ import annotations

import numbers
import weakref
from collections.abc import KeysView, ValuesView
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ...comm import Comm
from ...errors import ArgumentError, PeerError, UnsupportedError
from ...options import of_numbers
from ..eager import static
from ..process_group import beside, from_process_group
from .side import settle

_Kept = Tuple[Any, Comm]  #: a weak reference to the group, and its communicator

_kept: Dict[int, _Kept] = {}  # by id of the group, which is faster to find than by a weak reference
_seconds: Dict[int, _Kept] = {}  # those of exchanges that run beside the program


def comm_of(group: Any = None, *, failed: Optional[str] = None) -> Comm:
    """The communicator of the ranks of a group: a ProcessGroup, a DeviceMesh of one dim (`mesh["sp"]`), or None, the
    default group. Made on first use, which is collective over the group, and kept as long as the group. Where it was
    closed it is made anew.

    failed  after an exception, what to tell the other ranks, who may still wait for this one: all ranks call it, as
            `Comm.reset`. The communicator goes on, or is made anew where it cannot. PeerError: a rank died. The group
            is then of no more use; a group of the ranks that live gets a communicator of its own
    """
    group = group_of(group)
    if failed is not None:
        _recover(group, failed)
    return _of(_kept, group, lambda: from_process_group(group))


def second_of(group: Any) -> Comm:
    """A second one of the same ranks, for one thread more. They meet by the first one: where some are elsewhere all are
    told."""
    group = group_of(group)
    return _of(_seconds, group, lambda: beside(comm_of(group), group))


def _of(kept: Dict[int, _Kept], group: Any, made: Callable[[], Comm]) -> Comm:
    found, key = _in(kept, group), id(group)
    if found is None:
        found = made()
        kept[key] = weakref.ref(group, lambda _: kept.pop(key, None)), found
    return found


def _in(kept: Dict[int, _Kept], group: Any) -> Optional[Comm]:
    found = kept.get(id(group))
    return None if found is None or found[0]() is not group or found[1]._state.is_closed else found[1]


def _recover(group: Any, why: str) -> None:
    first, second = _in(_kept, group), _in(_seconds, group)
    for comm in (first, second):
        if comm is not None:
            comm.abort(why)  # others may wait in either
    if second is not None:
        settle(second)
    is_everywhere = False
    try:
        have = first.allgather(bytes([second is not None])) if first is not None and _goes_on(first) else []
        is_everywhere = bool(have) and all(map(any, have))
    finally:  # it may have been made on some ranks only, which nothing compares without a first one; or one has died
        if second is not None and not is_everywhere:
            second.close()
    if second is not None and not second.closed:
        _goes_on(second)


def _goes_on(comm: Comm) -> bool:
    try:
        comm.reset()
    except (PeerError, UnsupportedError) as error:
        comm.close()
        if isinstance(error, PeerError):
            raise
    return not comm.closed


@torch.compiler.assume_constant_result
def rank_of(group: Any) -> int:
    return comm_of(group).rank


def group_of(group: Any) -> Any:
    """The ProcessGroup that is meant."""
    if group is None:
        if not dist.is_initialized():
            raise ArgumentError("there is no default group: torch.distributed.init_process_group comes first")
        return dist.group.WORLD
    if isinstance(group, dist.ProcessGroup):
        return getattr(group, "real_obj", group)  # of what a compiler has in its place
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ArgumentError("this process is not a rank of the group")
    if hasattr(group, "get_group") and hasattr(group, "mesh_dim_names"):
        if group.ndim != 1:
            raise ArgumentError(f"a DeviceMesh of {group.ndim} dims, wanted one of its dims: mesh['sp']")
        return group.get_group()
    raise ArgumentError(f"a {type(group).__name__}, wanted a ProcessGroup, a DeviceMesh of one dim, or None")


def sizes_of(length: int, group: Any = None) -> List[int]:
    """Every rank's number. Collective, 8 bytes from each: for lengths that ranks cannot work out by themselves."""
    if not is_length(length) or int(length) >= 1 << 64:
        raise ArgumentError(f"sizes_of: length is {length!r}, wanted a number from 0 on")
    length = int(length)
    if dist.get_world_size(group_of(group)) == 1:
        return [length]
    return [int.from_bytes(each, "little") for each in comm_of(group).allgather(length.to_bytes(8, "little"))]


def tensor_of(x: torch.Tensor) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        raise ArgumentError(f"a {type(x).__name__}, wanted a tensor of torch")
    if x.layout is not torch.strided:
        raise ArgumentError(f"a tensor of {x.layout}, wanted a dense one")
    return x


def dim_of(x: torch.Tensor, dim: int) -> int:
    """A dim of x by its number from 0 on."""
    x = tensor_of(x)
    if isinstance(dim, bool) or not isinstance(dim, (int, numbers.Integral)) or not -x.dim() <= dim < x.dim():
        raise ArgumentError(f"dim {dim} of a tensor of {x.dim()} dims")
    return int(dim) % x.dim()


def length_of(x: torch.Tensor, dim: int) -> int:
    at = dim_of(x, dim)
    return x.shape[at]


def balanced(length: Any, ranks: int) -> List[Any]:
    """As a layout cuts a dim: the first ranks have one more. `length` may be symbolic."""
    return [(length + ranks - 1 - rank) // ranks for rank in range(ranks)]


def checked(name: str, sizes: Sequence[int], ranks: int) -> Sequence[int]:
    is_list = isinstance(sizes, (range, KeysView, ValuesView))
    found = of_numbers(name, sizes) if hasattr(sizes, "tolist") else list(sizes) if is_list else sizes
    if not isinstance(found, (list, tuple)) or len(found) != ranks or any(not is_length(size) for size in found):
        raise ArgumentError(f"{name} is {sizes}, wanted a length of each of {ranks} ranks")
    return found


def is_length(size: Any) -> bool:
    """Is it a whole number from 0 on?"""
    is_number = isinstance(size, (int, numbers.Integral, torch.SymInt)) and not isinstance(size, bool)
    return is_number and bool(size >= 0)


def flag_of(name: str, given: Any) -> bool:
    if given is None or isinstance(given, (bool, int)):
        return bool(static(given))
    is_one = isinstance(given, torch.Tensor) and given.numel() == 1 and not given.is_meta
    if not is_one and not isinstance(given, torch.SymBool) and getattr(given, "size", None) != 1:
        raise ArgumentError(f"{name} is {given!r}, wanted True or False")
    return bool(given)


def shared(name: str, length: Any, ranks: int) -> Sequence[Any]:
    """A length that the ranks share as a layout cuts it, or what each of them has."""
    return balanced(length, ranks) if is_length(length) else checked(name, length, ranks)


def need_dict(name: str, given: Any) -> None:
    if given is not None and not isinstance(given, dict):
        raise ArgumentError(f"{name} is a {type(given).__name__}, wanted a dict")


class Pad(int):
    """What would be padded to a dim for ranks to share it evenly, and the dim's extent, which they share as it is."""

    extent: int

    def __new__(cls, extent: int, ranks: int) -> "Pad":
        pad = super().__new__(cls, -extent % ranks)
        pad.extent = extent
        return pad


_pads: Dict[str, Pad] = {}


def get_pad(name: str) -> Pad:
    if not isinstance(name, str) or name not in _pads:
        raise ArgumentError(f"there is no pad of {name!r}: set_pad comes first")
    return _pads[name]


def set_pad(name: str, dim_size: int, parallel_group: Any) -> None:
    if not isinstance(name, str) or not is_length(dim_size):
        raise ArgumentError(f"set_pad: the extent of {name!r} is {dim_size!r}, wanted a name and a number from 0 on")
    _pads[name] = Pad(dim_size, dist.get_world_size(group_of(parallel_group)))


def of_second_dim(call: Callable[..., torch.Tensor], grad_scale: str) -> Callable[..., torch.Tensor]:
    """`split_sequence` or what is like it, of [b t, ...], along t, whose pad is "temporal"."""
    def folded(x: torch.Tensor, batch_size: int, parallel_group: Any) -> torch.Tensor:
        rows = length_of(x, 0)
        if not is_length(batch_size) or batch_size == 0 or rows % batch_size:
            raise ArgumentError(f"{rows} rows [b t] of a batch of {batch_size!r}, wanted a number that divides them")
        x = x.unflatten(0, (batch_size, x.shape[0] // batch_size))
        return call(x, parallel_group, 1, grad_scale, get_pad("temporal")).flatten(0, 1)
    return folded


def padded(x: torch.Tensor, dim: int, pad: int, group: Any) -> List[int]:
    """Every rank's length of a dim: with a plain number, as many as this one's."""
    length = length_of(x, dim)
    if not is_length(pad):
        raise ArgumentError(f"the pad of dim {dim} is {pad!r}, wanted a number from 0 on")
    ranks = dist.get_world_size(group_of(group))
    return balanced(pad.extent if isinstance(pad, Pad) else length * ranks, ranks)


def grad_of(scale: Any) -> str:
    """By the name of what a backend multiplies a gradient with."""
    if isinstance(scale, str) and scale in ("up", "down"):
        return "mean"
    if scale is not None and not (isinstance(scale, numbers.Real) and scale == 1):
        raise ArgumentError(f"grad_scale is {scale!r}, wanted 'up', 'down' or 1")
    return "sum"
