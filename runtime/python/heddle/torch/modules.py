"""A model on several ranks by hooks on its modules, which know nothing of it.

    handle = heddle.torch.parallelize(model, {
        "blocks.0": Split("hidden_states", "b s c", "s"),     # from here on every rank has its own rows
        "blocks.*.attn": Attend("s"),                         # what mixes rows
        "proj_out": Gather("output", "b s o", "s"),           # and from here on all of them again
    }, comm)
"""
from __future__ import annotations

import fnmatch
import inspect
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from ..comm import Comm
from ..errors import ArgumentError, UnsupportedError
from ..line import mesh_of
from .attending import Attend, Attended
from .boundary import entering, leaving
from .reshard import resharded, texts_of

_Apply = Callable[[torch.Tensor], torch.Tensor]


class _Dims:
    """`(b t) s _`: the dims of a tensor as a model has it, some of them folded into one, some without a name."""

    def __init__(self, text: str):
        words = re.findall(r"\([^()]*\)|[^\s()]+", text)
        self.text = text
        self.groups: List[Tuple[str, ...]] = [
            tuple(f"any{i}_{j}" if name == "_" else name for j, name in enumerate(word.strip("()").split()))
            for i, word in enumerate(words)]
        self.names = tuple(name for group in self.groups for name in group)
        if not all(re.fullmatch("[a-z][a-z0-9_]{0,14}", name) for name in self.names) or (
                len(set(self.names)) != len(self.names) or not all(self.groups)):
            raise ArgumentError(f"'{text}': wanted names of dims, each once, like '(b t) s c'")

    def need(self, *names: str) -> None:
        for name in names:
            if name not in self.names:
                raise ArgumentError(f"'{self.text}' has no dim '{name}'")


class _Ranks:
    """What the steps of one model share: the axis, and the extents of the whole tensors, learned anew in every pass."""

    is_attending = False  #: this call of attention is heddle's own

    def __init__(self, comm: Comm):
        mesh = mesh_of(comm.mesh)
        if mesh.naxes != 1:
            raise ArgumentError(f"parallelize: the communicator has the mesh {comm.mesh}, wanted one axis: "
                                "comm.axis(...)")
        self.comm = comm
        self.axis = mesh.axis[0].name.decode()
        self.sizes: Dict[str, int] = {}  #: of the pass that runs, forward or backward

    def __deepcopy__(self, _: Any) -> "_Ranks":
        return self  # a copied model runs on the same ranks

    def part(self, name: str, rank: Optional[int] = None) -> Tuple[int, int]:
        """Where a rank's block of a dim begins, and how long it is; None: this one's."""
        return self.cut(self.sizes[name], self.comm.rank if rank is None else rank)

    def cut(self, length: int, rank: int) -> Tuple[int, int]:
        each, more = divmod(length, self.comm.size)
        return each * rank + min(rank, more), each + (rank < more)

    def unfold(self, x: torch.Tensor, dims: _Dims, cut: Optional[str] = None) -> torch.Tensor:
        """x with one axis per name. Extents that are not known yet are learned, if one of them only is unknown in its
        group. Of a dim that is cut x has this rank's block; a block without elements is one that is not looked at."""
        if x.dim() != len(dims.groups):
            raise ArgumentError(f"'{dims.text}' has {len(dims.groups)} dims, the tensor {tuple(x.shape)}")
        extents: List[int] = []
        learned: Dict[str, int] = {}  # kept when all of x fits
        for at, (length, group) in enumerate(zip(x.shape, dims.groups)):
            known = {name: self._local(name, cut) for name in group if name in self.sizes}
            unknown, rest = [name for name in group if name not in known], 1
            for extent in known.values():
                rest *= extent
            if len(unknown) == 1 and unknown[0] != cut and rest > 0 and length % rest == 0:
                known[unknown[0]] = length // rest
                if not unknown[0].startswith("any"):
                    learned[unknown[0]] = length // rest
            elif unknown or rest != length:
                raise ArgumentError(f"'{dims.text}': the tensor has the shape {tuple(x.shape)}, whose dim {at} is "
                                    f"{length}, {self._misfit(known, unknown, cut)}")
            extents += [known[name] for name in group]
        self.sizes.update(learned)
        x = x.reshape(extents)
        if cut is not None and self.part(cut)[1] == 0:
            x = x.narrow(dims.names.index(cut), 0, 0)
        return x

    def _misfit(self, known: Mapping[str, int], unknown: Sequence[str], cut: Optional[str]) -> str:
        there = " ".join(f"{name}={extent}{' (of this rank)' if name == cut else ''}" for name, extent in known.items())
        sizes = " ".join(f"{name}={size}" for name, size in self.sizes.items()) or "none"
        if not unknown:
            return f"not {there}: in one pass a name has one extent, another one wants another name; known are {sizes}"
        asked = " and ".join("_" if name.startswith("any") else name for name in unknown)
        return f"which does not say what {asked} is{' beside ' + there if there else ''}; known are {sizes}"

    def fold(self, x: torch.Tensor, dims: _Dims, cut: Optional[str] = None) -> torch.Tensor:
        """The way back. A rank without elements goes on with one row of ones, so that the model's shapes hold and its
        graph is that of the other ranks."""
        if cut is not None and self.part(cut)[1] == 0:
            axis = dims.names.index(cut)
            x = torch.cat([x, x.new_ones([1 if a == axis else n for a, n in enumerate(x.shape)])], axis)
        extents, at = list(x.shape), 0
        folded = []
        for group in dims.groups:
            size = 1
            for extent in extents[at: at + len(group)]:
                size *= extent
            folded.append(size)
            at += len(group)
        return x.reshape(folded)

    def line(self, x: torch.Tensor, dims: _Dims, cut: Tuple[str, ...], from_: str, to: str) -> str:
        sizes = " ".join(f"{name}={self.sizes[name] if name in cut else extent}"
                         for name, extent in zip(dims.names, x.shape))
        return f"f32[{sizes}] on {self.comm.mesh}: {from_} -> {to}"

    def _local(self, name: str, cut: Optional[str]) -> int:
        return max(self.part(name)[1], 1) if name == cut else self.sizes[name]


@dataclass(frozen=True)
class Sizes:
    """Learns the extents of whole dims from a tensor that every rank has, where later steps cannot tell them apart:
    `Sizes("hidden_states", "b _ t _ _")`."""

    what: str
    dims: str

    def _made(self, ranks: _Ranks) -> _Apply:
        dims = _Dims(self.dims)

        def apply(x: torch.Tensor) -> torch.Tensor:
            ranks.unfold(x, dims)
            return x
        return apply


@dataclass(frozen=True)
class Split:
    """From a tensor that every rank has whole to this rank's block of the dim `over`. What it was computed from gets
    the gradient of this block alone: an addend.

    optional  True: a tensor that has not these dims, in number or in the extents that are known, is left alone
    """

    what: str
    dims: str
    over: str
    optional: bool = False

    def _made(self, ranks: _Ranks) -> _Apply:
        dims = _Dims(self.dims)
        dims.need(self.over)

        def apply(x: torch.Tensor) -> torch.Tensor:
            try:
                unfolded = ranks.unfold(x, dims)
            except ArgumentError:
                if self.optional:
                    return x
                raise
            return ranks.fold(unfolded.narrow(dims.names.index(self.over), *ranks.part(self.over)), dims, self.over)
        return apply


@dataclass(frozen=True)
class Switch:
    """From blocks of one dim to blocks of another. `as_`: the dims of the result, where they are ordered or folded
    otherwise: `Switch("output", "(b t) s c", "t", "s", as_="(b s) t c")`."""

    what: str
    dims: str
    from_: str
    to: str
    as_: Optional[str] = None

    def _made(self, ranks: _Ranks) -> _Apply:
        dims, after = _Dims(self.dims), _Dims(self.as_ or self.dims)
        dims.need(self.from_, self.to)
        if sorted(after.names) != sorted(dims.names):
            raise ArgumentError(f"Switch: '{self.as_}' has not the dims of '{self.dims}'")

        def apply(x: torch.Tensor) -> torch.Tensor:
            x, axis = ranks.unfold(x, dims, self.from_), ranks.axis
            line = ranks.line(x, dims, (self.from_, self.to), f"{self.from_}@{axis}",
                              f"{self.to}@{axis} as {','.join(after.names)}")
            return ranks.fold(_moved(x, line, ranks.comm), after, self.to)
        return apply


@dataclass(frozen=True)
class Gather:
    """From blocks of a dim to the whole on every rank."""

    what: str
    dims: str
    over: str

    def _made(self, ranks: _Ranks) -> _Apply:
        dims = _Dims(self.dims)
        dims.need(self.over)

        def apply(x: torch.Tensor) -> torch.Tensor:
            x = ranks.unfold(x, dims, self.over)
            line = ranks.line(x, dims, (self.over,), f"{self.over}@{ranks.axis}", "*")
            return ranks.fold(_moved(x, line, ranks.comm), dims)
        return apply


@dataclass(frozen=True)
class Count:
    """From a number of rows, the first of the whole dim `over`, to how many of them this rank has:
    `Count("num_tokens", "s")`. The number is an argument by itself, no tensor."""

    what: str
    over: str

    def _made(self, ranks: _Ranks) -> Callable[[int], int]:
        def apply(count: int) -> int:
            if self.over not in ranks.sizes:
                raise ArgumentError(f"Count: the extent of '{self.over}' is not known yet: a Split before says it")
            lo, length = ranks.part(self.over)
            return min(max(count - lo, 0), length)
        return apply


def _moved(x: torch.Tensor, line: str, comm: Comm) -> torch.Tensor:
    text, adjoint, _ = texts_of(line)
    return resharded(x, text, adjoint, comm)


Step = Union[Sizes, Split, Switch, Gather, Count, Attend]


class Parallel:
    """A model with its hooks. `remove()` takes them off."""

    def __init__(self, ranks: _Ranks, why: str):
        self.comm = ranks.comm
        self._handles: List[Any] = []
        self.why = why  #: what was chosen, in one sentence

    def remove(self) -> None:
        """The model is as it was before."""
        for handle in reversed(self._handles):
            handle.remove()
        self._handles.clear()


def parallelize(model: torch.nn.Module, plan: Mapping[str, Union[Step, Sequence[Step]]], comm: Comm) -> Parallel:
    """Puts hooks on the modules that the plan's patterns name (`*` stands for a part between two dots, "" is the
    model). Steps of a module happen in their order: on its arguments before it runs, on its output (`output`,
    `output.0`) after.

    Outside of the model every rank computes what one rank would: arguments and results are whole, and so are the
    gradients of arguments. Gradients of parameters are addends: `reduce_gradients` adds them up. The loss is computed
    from what the model returns, alike on all ranks, and counts once. All ranks run the same graph, also those that get
    no rows. Not collective; ArgumentError where a pattern names no module, or a step an argument that its module has
    not.
    """
    return put_on(model, plan, comm, "the plan that was given")


def put_on(model: torch.nn.Module, plan: Mapping[str, Union[Step, Sequence[Step]]], comm: Comm, why: str) -> Parallel:
    """As `parallelize`; `why` is what the handle says of the plan."""
    ranks = _Ranks(comm)
    handle = Parallel(ranks, why)
    try:
        handle._handles.append(model.register_forward_pre_hook(entering(ranks), with_kwargs=True))
        for pattern, steps in plan.items():
            for module in _matching(model, pattern):
                for step in [steps] if not isinstance(steps, Sequence) else steps:
                    handle._handles += _hooked(module, pattern, step, ranks)
        handle._handles.append(model.register_forward_hook(leaving(ranks)))
    except BaseException:
        handle.remove()
        raise
    return handle


def _matching(model: torch.nn.Module, pattern: str) -> List[torch.nn.Module]:
    wanted = re.compile(fnmatch.translate(pattern).replace(".*", "[^.]*"))
    names = [name for name, _ in model.named_modules()]
    found = [module for name, module in model.named_modules() if wanted.match(name)]
    if not found:
        near = sorted({re.sub(r"\b\d+\b", "*", name) for name in names if name})
        raise ArgumentError(f"parallelize: no module of {type(model).__name__} is called '{pattern}'; there are "
                            f"{', '.join(near[:20])}")
    return found


def _hooked(module: torch.nn.Module, pattern: str, step: Step, ranks: _Ranks) -> List[Any]:
    if isinstance(step, Attend):
        return [Attended(module, pattern, step, ranks)]
    apply, (name, *path) = step._made(ranks), step.what.split(".")
    if name == "output":
        return [module.register_forward_hook(lambda _, args, output: _at(output, path, apply))]
    parameters = inspect.signature(module.forward).parameters
    names = list(parameters)
    if name not in names and not any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
        raise ArgumentError(f"parallelize: '{pattern}' ({type(module).__name__}) has no argument '{name}': "
                            f"{', '.join(names)}")

    def hook(_: torch.nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        at = names.index(name) if name in names else len(args)
        if at < len(args):
            args = (*args[:at], _at(args[at], path, apply), *args[at + 1:])
        elif name in kwargs:
            kwargs = {**kwargs, name: _at(kwargs[name], path, apply)}
        elif name not in names and not getattr(step, "optional", False):
            raise ArgumentError(f"parallelize: '{pattern}' ({type(module).__name__}) was called without '{name}'")
        return args, kwargs
    return [module.register_forward_pre_hook(hook, with_kwargs=True)]


def _at(value: Any, path: List[str], apply: Callable[[Any], Any]) -> Any:
    """`apply` on what is at this place of a tuple or list; an argument that is None stays it."""
    if value is None:
        return None
    if not path:
        return apply(value)
    index = int(path[0])
    return type(value)([*value[:index], _at(value[index], path[1:], apply), *value[index + 1:]])
