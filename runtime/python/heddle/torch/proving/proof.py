"""Is the model on several ranks what it is on one?"""
from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, Container, Dict, List, Optional, Set, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import ArgumentError
from ..exploring.devices import need_one_device
from ..exploring.kept import same_random, telling_values
from ..exploring.trees import Tensors, fresh, tensors_of
from ..exploring.wide import HALF, widened
from ..hooks import around_in
from ..modules import put_on
from .copies import Copies
from .simulated import Moved, SimulatedRanks
from .turns import Turns


@dataclass
class Proof:
    """Of a plan, beside the whole model."""

    ranks: int
    holds: bool
    is_same_bits: bool = False  #: of the forward
    forward: float = 0.0  #: the largest difference, of the largest element
    gradients: Optional[float] = None  #: likewise, of the worst argument or parameter; None: none were compared
    worst: str = ""  #: where the difference begins: a module's name; or whose gradient is worst
    why: str = ""  #: the sentence, where it does not hold
    error: Optional[Exception] = None  #: that the model raised on ranks
    moves: List[Moved] = field(default_factory=list)  #: what the ranks sent in the forward
    cut: Dict[str, int] = field(default_factory=dict)  #: dims that steps cut, and their whole extents
    further: List[int] = field(default_factory=list)  #: numbers of ranks of which the forward holds, too

    def __bool__(self) -> bool:
        return self.holds

    @property
    def bytes_total(self) -> int:
        return sum(move.bytes_total for move in self.moves)

    def __str__(self) -> str:
        if not self.holds:
            return f"{self.ranks} ranks: {self.why}"
        bits = "the same bits" if self.is_same_bits else f"within {self.forward:.1e}"
        gradients = "not compared" if self.gradients is None else f"within {self.gradients:.1e}"
        return (f"{self.ranks} ranks are as one: forward {bits}, gradients {gradients}, "
                f"{self.bytes_total} bytes sent in a forward"
                + (f"; the forward of {' and '.join(map(str, self.further))} is so, too" if self.further else ""))


def prove(model: torch.nn.Module, plan: Any, *args: Any, ranks: int = 3, gradients: bool = True,
          **kwargs: Any) -> Proof:
    """Runs the model once whole and once on so many ranks, which are simulated one after the other in this process,
    with no communicator; compares results and, with `gradients`, those of arguments and parameters. Works on copies
    of the modules, which share the model's parameters; in eval mode, but for batch norms in training, which mix
    rows. Parameters that are zero, or nearly so, are noise, since such a gate hides what is behind it; so do
    weights as training begins, by which attention is the mean of its rows: a matrix of a gain below a half has one
    of 1, in memory of its own, unless the model's results are those of roundings then. What is in half precision is
    compared in float32, in memory of its own, where the model runs so.

    plan  steps as `parallelize` takes them, or a Plan

    A proof that does not hold says which module is the first whose result is another, or what a rank raised. What the
    whole model raises goes on. ArgumentError: ranks below 1, no module. UnsupportedError: a model that cannot be
    copied, tensors on `meta` or on several devices.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"prove: the model is a {type(model).__name__}, wanted a torch.nn.Module")
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise ArgumentError(f"prove: ranks is {ranks!r}, wanted a number of at least 1")
    need_one_device("prove", model, args, kwargs)
    with torch.inference_mode(False), widened(model, args, kwargs) as (args, kwargs, halves):
        asked = (getattr(plan, "steps", plan), args, kwargs, ranks, gradients, halves)
        sharp = Copies(model, args, kwargs)
        proof = _proved(model, sharp, *asked)
        if not proof and proof.error is None and blows_up(sharp, args, kwargs, gradients):
            proof = _proved(model, Copies(model, args, kwargs, is_sharp=False), *asked)
        if not proof and proof.error is None:
            proof.why += _narrower(sharp.one(), args, kwargs)
        return proof


def _narrower(model: torch.nn.Module, args: Any, kwargs: Any) -> str:
    """What the model casts to by itself, which rounds more than what is compared."""
    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            seen.update(x.dtype for x in tensors_of(out).values() if x.dtype in HALF)
            return out
    seen: Set[torch.dtype] = set()
    args, kwargs = fresh(model, args, kwargs)
    with same_random(), torch.no_grad(), Seeing():
        outs = {x.dtype for x in tensors_of(model(*args, **kwargs)).values()}
    names = " and ".join(sorted(str(dtype).partition(".")[2] for dtype in seen))
    return f"; the model casts to {names} within, whose rounding may be all of it" if seen and not outs & seen else ""


def blows_up(copies: Copies, args: Any, kwargs: Any, gradients: bool) -> bool:
    """Do arguments that differ by roundings give another result already? Many layers without norms do so, scaled."""
    def nudged(_: str, x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        draw = torch.Generator().manual_seed(x.numel())
        signs = torch.randint(2, x.shape, generator=draw, device="cpu").to(x.device, x.dtype) * 2 - 1
        return x * (1 + 8 * torch.finfo(x.dtype).eps * signs)
    with same_random():
        one = passed(copies.one(), args, kwargs, gradients)
    args, kwargs = fresh(copies.model, args, kwargs, nudged)
    with same_random():
        other = passed(copies.one(), args, kwargs, gradients)
    most = max((within(y) for y in one[0].values()), default=0.0)
    return any(not bool(y.isfinite().all()) or far(b.get(name, y), y) > limit
               for a, b, limit in zip(one, other, (most, 10 * most, 10 * most)) for name, y in a.items())


def _proved(model: torch.nn.Module, copies: Copies, steps: Any, args: Any, kwargs: Any, ranks: int, gradients: bool,
            halves: Container[str]) -> Proof:
    whole = copies.one()
    seen: Dict[str, List[torch.Tensor]] = {}
    for name, module in whole.named_modules():
        module.register_forward_hook(_keeping(name, seen))
    with same_random(), telling_values(whole):
        one = passed(whole, args, kwargs, gradients)
    turns, compared = Turns(ranks), _Compared(seen)

    def of_rank(rank: int) -> Tuple[Tensors, Tensors, Tensors, SimulatedRanks]:
        mine = SimulatedRanks(f"[sp={ranks}]", rank, turns, halves)
        each = copies.one()
        _watched(each, mine, compared)
        put_on(each, lambda: (steps, ""), mine)
        _unwatched(each, mine, compared)
        try:
            return (*passed(each, args, kwargs, gradients), mine)
        except Exception:  # whatever a model raises
            compared.stopped(mine)
            raise
    try:
        with same_random():
            every = turns.run(of_rank)
    except Exception as error:  # whatever a model raises
        return Proof(ranks, False, worst=compared.first or compared.running, error=error, why=_raised(error, compared))
    return _judged(ranks, one, every, compared, model)


def _raised(error: Exception, compared: "_Compared") -> str:
    notes = " ".join(getattr(error, "__notes__", ()))
    began = f"; before, '{compared.first}' gives another result" if compared.first else ""
    return f"a rank raises {type(error).__name__}{compared.where}: {str(error).strip()[:400]} {notes}".rstrip() + began


def passed(model: torch.nn.Module, args: Any, kwargs: Any, gradients: bool) -> Tuple[Tensors, Tensors, Tensors]:
    """Results, gradients of arguments, gradients of parameters."""
    wants = gradients and any(p.requires_grad for p in model.parameters())
    numbers = {at: x for at, x in {**tensors_of(args), **tensors_of(kwargs)}.items() if x.is_floating_point()}
    asked = [at for at, x in numbers.items() if x.requires_grad] or sorted(
        numbers, key=lambda at: -numbers[at].numel())[:1]

    def leaf(name: str, x: torch.Tensor) -> torch.Tensor:
        return x.detach().clone().requires_grad_(wants and name in asked)
    args, kwargs = fresh(model, args, kwargs, leaf)
    with torch.set_grad_enabled(wants):
        out = tensors_of(model(*args, **kwargs))
        loss = [(y * torch.linspace(0.5, 1.5, y.numel(), dtype=torch.float32, device=y.device).to(y.dtype).view_as(y)
                 ).sum() for y in out.values() if y.requires_grad and y.is_floating_point()]
        if loss:
            sum(loss).backward()  # type: ignore[union-attr]
    given = {**tensors_of(args), **tensors_of(kwargs)}
    return ({name: y.detach() for name, y in out.items()},
            {name: x.grad for name, x in given.items() if x.grad is not None},
            {name: p.grad for name, p in model.named_parameters() if p.grad is not None})


def _keeping(name: str, seen: Dict[str, List[torch.Tensor]]) -> Any:
    def keep(module: Any, args: Any, out: Any) -> None:
        seen.setdefault(name, []).append([y.detach().clone() for y in tensors_of(out).values()])  # type: ignore
    return keep


class _Compared:
    """Results of modules on ranks beside those of the whole: which is the first that is no part of it?"""

    def __init__(self, seen: Dict[str, List[Any]]):
        self.seen, self.first = seen, ""
        self.running, self.where = "", ""  #: the module that raised, and the words for it
        self.calls: Dict[Tuple[int, str], Any] = {}
        self._at: Optional[int] = None

    def stopped(self, ranks: SimulatedRanks) -> None:
        """A rank has raised something; of several it is the first one that is told."""
        if not self.where:
            if not ranks.within:  # the forward has ended
                self.where = " in the way back"
                return
            self.running = ranks.within[-1]
            self.where = f" in '{self.running}'" if self.running else " in the model's own forward"
            self.where += f", behind '{ranks.behind}'" if ranks.behind else ""

    def look(self, ranks: SimulatedRanks, name: str, out: Any) -> None:
        call = next(self.calls.setdefault((ranks.comm.rank, name), itertools.count()))
        whole = self.seen.get(name, [])
        ranks.ended += 1
        number = ranks.ended
        if call >= len(whole) or ranks.is_wider(name) or (self._at is not None and number >= self._at):
            return
        mine = list(tensors_of(out).values())
        if len(mine) != len(whole[call]) or any(
                not _is_part(ranks, a.detach(), b) for a, b in zip(mine, whole[call])):
            self.first, self._at = name, number


def _is_part(ranks: SimulatedRanks, mine: torch.Tensor, whole: torch.Tensor) -> bool:
    """Is it this rank's block of the whole along some dims, which may be folded?"""
    if mine.dim() != whole.dim() or mine.dtype != whole.dtype:
        return True  # nothing can be said
    for axis, (n, m) in enumerate(zip(mine.shape, whole.shape)):
        if n == m:
            continue
        fits = []
        for extent in {*ranks.sizes.values()}:
            lo, length = ranks.cut(extent, ranks.comm.rank)
            if length == 0 or m % extent or n * extent != m * length:
                continue
            for inner in range(1, m // extent + 1):
                if (m // extent) % inner == 0:
                    shape = (*whole.shape[:axis], m // extent // inner, extent, inner, *whole.shape[axis + 1:])
                    fits.append(whole.reshape(shape).narrow(axis + 1, lo, length).reshape(
                        *whole.shape[:axis], n, *whole.shape[axis + 1:]))
        if not fits:
            return True
        return any(_is_part(ranks, mine, fit) for fit in fits)
    return far(mine, whole) <= within(whole) or any(ranks.part(name)[1] == 0 for name in ranks.sizes)


def _watched(model: torch.nn.Module, ranks: SimulatedRanks, compared: _Compared) -> None:
    """Before the steps are there: results as the modules gave them, arguments as they come."""
    for name, module in model.named_modules():
        def enter(_: Any, __: Any, name: str = name) -> None:
            ranks.within.append(name)

        def leave(_: Any, __: Any, out: Any, name: str = name) -> None:
            if name not in ranks.around:
                compared.look(ranks, name, out)
        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)


def _unwatched(model: torch.nn.Module, ranks: SimulatedRanks, compared: _Compared) -> None:
    ranks.around = around_in(model)
    for name, module in model.named_modules():
        def leave(_: Any, __: Any, out: Any, name: str = name) -> None:
            if name in ranks.around:  # of this rank's rows only now
                compared.look(ranks, name, out)
            ranks.within.pop()
            ranks.behind = name
        module.register_forward_hook(leave)


def within(x: torch.Tensor, times: int = 100) -> float:
    return {2: 32, 1: 32}.get(x.dtype.itemsize, times) * torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0


def far(a: torch.Tensor, b: torch.Tensor, least: float = 0.0) -> float:
    """The largest difference, of the largest element."""
    if a.shape != b.shape:
        return float("inf")
    if a.numel() == 0:
        return 0.0
    if not (a.is_floating_point() or a.is_complex()):
        return 0.0 if torch.equal(a, b) else float("inf")
    if not torch.equal(a.isnan(), b.isnan()):
        return float("inf")
    a, b = a.nan_to_num(), b.nan_to_num()
    largest = max(float(b.abs().max()), least)
    return float((a - b).abs().max()) / largest if largest > 0 else float((a - b).abs().max())


def _judged(ranks: int, one: Any, every: List[Any], compared: _Compared, model: torch.nn.Module) -> Proof:
    out, dx, dw = one
    forward, bits = 0.0, True
    for results, _, _, _ in every:
        if results.keys() != out.keys():
            return Proof(ranks, False, why=f"the model returns {len(results)} tensors, on one rank {len(out)}")
        forward = max(forward, *(far(results[name], out[name]) for name in out), 0.0)
        bits = bits and all(torch.equal(results[name], out[name]) for name in out)
    most = max((within(y) for y in out.values()), default=0.0)
    first_rank = every[0][3]
    moves, cut = first_rank.moves, {name: first_rank.sizes[name] for name in sorted(first_rank.cuts)
                                    if name in first_rank.sizes}
    first = compared.first if forward > most else ""
    if forward > most:
        return Proof(ranks, False, bits, forward, worst=first, moves=moves, why=(
            f"the result is another, by {forward:.1e} of its largest element; '{first}' "
            f"({type(dict(model.named_modules()).get(first)).__name__}) is the first module whose result is no part of "
            "what it is on one rank"))
    worst, name = 0.0, ""
    summed = {name: sum(g.get(name, 0) for _, _, g, _ in every) for name in dw}
    for side, mine in (("argument", dx), ("parameter", dw)):
        least = 1e-2 * max((float(g.abs().max()) for g in mine.values() if g.numel()), default=0.0)
        for key, g in mine.items():
            for got in [x.get(key) for _, x, _, _ in every] if side == "argument" else [summed[key]]:
                away = far(got, g, least) if isinstance(got, torch.Tensor) else float("inf")
                if away > worst:
                    worst, name = away, f"{side} '{key}'"
    holds = worst <= 10 * most
    why = "" if holds else f"the gradient of {name} is another, by {worst:.1e} of its largest element"
    return Proof(ranks, holds, bits, forward, worst if dx or dw else None, "" if holds else name, why, moves=moves,
                 cut=cut)
