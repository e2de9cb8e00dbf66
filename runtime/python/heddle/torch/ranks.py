"""The dims of a model's tensors, and what of them every rank has."""
from __future__ import annotations

import math
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import torch

from ..comm import Comm, check_comm
from ..errors import ArgumentError
from ..line import mesh_of
from .gradients import share
from .ones import filled
from .reshard import resharded
from .texts import texts_of

_FOLDED = r"\([^()]*\)"

Attended = Callable[..., torch.Tensor]


def is_name(name: Any) -> bool:
    """Of a dim, as a line has it."""
    return isinstance(name, str) and re.fullmatch("[a-z][a-z0-9_]{0,14}", name) is not None


def need_name(over: Any) -> None:
    """Of the dim that a step is over."""
    if not is_name(over):
        raise ArgumentError(f"over is {over!r}, wanted the name of a dim")


class Dims:
    """`(b t) s _`: the dims of a tensor as a model has it, some of them folded into one, some without a name. A number
    is a dim of this extent, without a name."""

    def __init__(self, text: str):
        self.text = text
        words = re.findall(rf"{_FOLDED}|[^\s()]+", text) if isinstance(text, str) else []
        parts = [word.strip("()").split() for word in words]
        self.given: Dict[str, int] = {}  #: extents
        self.unnamed: Set[str] = set()  #: what is told apart here by its place: of `_` and of numbers
        said = {name for part in parts for name in part}
        self.groups: List[Tuple[str, ...]] = [
            tuple(name if name != "_" and not name.isdecimal() else
                  self._placed(f"axis{i}_{j}" if len(group) > 1 else f"axis{i}", name, said)
                  for j, name in enumerate(group)) for i, group in enumerate(parts)]
        self.names = tuple(name for group in self.groups for name in group)
        if not self.names or not all(map(is_name, self.names)) or (
                len(set(self.names)) != len(self.names) or not all(self.groups)) or (
                re.search("[()]", re.sub(_FOLDED, "", text))):
            beside = "; rows beside others, '(1 + s)', are in one axis of a Split, a Switch or a Gather"
            raise ArgumentError(f"'{text}': wanted names of dims, each once, like '(b t) s c'"
                                f"{beside if isinstance(text, str) and '+' in text else ''}")

    def _placed(self, place: str, word: str, said: Set[str]) -> str:
        while place in said:
            place += "_"
        self.unnamed.add(place)
        if word.isdecimal():
            self.given[place] = int(word)
        return place

    def need(self, *names: str) -> None:
        for name in names:
            if name not in self.names:
                raise ArgumentError(f"'{self.text}' has no dim '{name}'")


class Ranks:
    """What the steps of one model share: the axis, and the extents of the whole tensors, learned anew in every pass."""

    is_attending = False  #: this call of attention is heddle's own
    attend: Optional[Attended] = None  #: what attends in place of a communicator's plan

    def __init__(self, comm: Comm):
        self._check(comm)
        mesh = mesh_of(comm.mesh)
        if mesh.naxes != 1:
            raise ArgumentError(f"parallelize: the communicator has the mesh {comm.mesh}, wanted one axis: "
                                "comm.axis(...)")
        self.comm = comm
        self.axis = mesh.axis[0].name.decode()
        self.sizes: Dict[str, int] = {}  #: of the pass that runs, forward or backward
        self.cuts: Set[str] = set()  #: dims that steps cut

    def _check(self, comm: Any) -> None:
        check_comm("parallelize", comm)

    def moved(self, x: torch.Tensor, line: str) -> torch.Tensor:
        """x by a line, and its gradient by the adjoint."""
        text, adjoint, _ = texts_of(line)
        return resharded(x, text, adjoint, self.comm)

    def shared(self, x: torch.Tensor) -> torch.Tensor:
        """x as it is; its gradient is the sum of the ranks' addends."""
        return share(x, self.comm)

    def __deepcopy__(self, _: Any) -> "Ranks":
        return self  # a copied model runs on the same ranks

    def __reduce__(self) -> Any:
        raise ArgumentError("a model that parallelize has put hooks on cannot be pickled: save its state_dict(), or "
                            "handle.remove() first")

    def part(self, name: str, rank: Optional[int] = None) -> Tuple[int, int]:
        """Where a rank's block of a dim begins, and how long it is; None: this one's."""
        if name not in self.sizes:
            raise ArgumentError(f"the extent of '{name}' is not known yet: a Split or Sizes before says it; known are "
                                f"{self._known()}")
        return self.cut(self.sizes[name], self.comm.rank if rank is None else rank)

    def cut(self, length: int, rank: int) -> Tuple[int, int]:
        each, more = divmod(length, self.comm.size)
        return each * rank + min(rank, more), each + (rank < more)

    def unfold(self, x: torch.Tensor, dims: Dims, cut: Optional[str] = None) -> torch.Tensor:
        """x with one axis per name. Extents that are not known yet are learned, if one of them only is unknown in its
        group. Of a dim that is cut x has this rank's block; a block without elements is one that is not looked at."""
        if x.dim() != len(dims.groups):
            raise ArgumentError(f"'{dims.text}' has {len(dims.groups)} dims, the tensor {tuple(x.shape)}")
        extents: List[int] = []
        learned: Dict[str, int] = {}  # kept when all of x fits
        for at, (length, group) in enumerate(zip(x.shape, dims.groups)):
            known = {name: dims.given[name] if name in dims.given else self._local(name, cut) for name in group
                     if name in self.sizes or name in dims.given}
            unknown, rest = [name for name in group if name not in known], 1
            for extent in known.values():
                rest *= extent
            if len(unknown) == 1 and unknown[0] != cut and rest > 0 and length % rest == 0:
                known[unknown[0]] = length // rest
                if unknown[0] not in dims.unnamed:
                    learned[unknown[0]] = length // rest
            elif unknown or rest != length:
                raise ArgumentError(f"'{dims.text}': the tensor has the shape {tuple(x.shape)}, whose dim {at} is "
                                    f"{length}, {self._misfit(length, known, dims, unknown, cut)}")
            extents += [known[name] for name in group]
        self.sizes.update(learned)
        x = x.reshape(extents)
        if cut is not None and self.part(cut)[1] == 0:
            x = x.narrow(dims.names.index(cut), 0, 0)
        return x

    def extent(self, dims: Dims, name: str) -> int:
        """Of a whole dim of a text."""
        if name in dims.given:
            return dims.given[name]
        if name not in self.sizes:
            raise ArgumentError(f"'{dims.text}': the extent of '{name}' is not known; known are {self._known()}")
        return self.sizes[name]

    def _misfit(self, length: int, known: Mapping[str, int], dims: Dims, unknown: Sequence[str],
                cut: Optional[str]) -> str:
        named = {name: extent for name, extent in known.items() if name not in dims.given}
        there = " ".join(f"{name}={extent}{' (of this rank)' if name == cut else ''}" if name in named else
                         f"{'x ' if at else ''}{extent}" for at, (name, extent) in enumerate(known.items()))
        sizes = self._known()
        if not unknown:
            hint = self._cut_otherwise(length, known, named, cut)
            if hint:
                return f"not {there}: {hint}; known are {sizes}"
            if not named:
                return f"not {there}; known are {sizes}"
            return f"not {there}: in one pass a name has one extent, another one wants another name; known are {sizes}"
        asked = " and ".join("_" if name in dims.unnamed else name for name in unknown)
        return f"which does not say what {asked} is{' beside ' + there if there else ''}; known are {sizes}"

    def _cut_otherwise(self, length: int, known: Mapping[str, int], named: Mapping[str, int],
                       cut: Optional[str]) -> str:
        """What a dim looks like: a block where the whole was wanted, or the other way round."""
        for name, extent in named.items():
            other = self.sizes[name] if name == cut else max(self.part(name)[1], 1)
            if 0 < extent != other and length * extent == math.prod(known.values()) * other:
                return (f"{name} is whole here, and wanted cut" if name == cut else
                        f"{name} is cut here, {other} are this rank's block, and wanted whole")
        return ""

    def _known(self) -> str:
        return " ".join(f"{name}={size}" for name, size in self.sizes.items()) or "none"

    def fold(self, x: torch.Tensor, dims: Dims, cut: Optional[str] = None) -> torch.Tensor:
        """The way back. A rank without elements goes on with one row of ones, so that the model's shapes hold and its
        graph is that of the other ranks."""
        if cut is not None and self.part(cut)[1] == 0:
            x = filled(x, [1 if name == cut else n for name, n in zip(dims.names, x.shape)])
        extents, at = list(x.shape), 0
        folded = []
        for group in dims.groups:
            size = 1
            for extent in extents[at: at + len(group)]:
                size *= extent
            folded.append(size)
            at += len(group)
        return x.reshape(folded)

    def line(self, x: torch.Tensor, dims: Dims, cut: Tuple[str, ...], from_: str, to: str) -> str:
        sizes = " ".join(f"{name}={self.sizes[name] if name in cut else extent}"
                         for name, extent in zip(dims.names, x.shape))
        return f"f32[{sizes}] on {self.comm.mesh}: {from_} -> {to}"

    def _local(self, name: str, cut: Optional[str]) -> int:
        return max(self.part(name)[1], 1) if name == cut else self.sizes[name]
