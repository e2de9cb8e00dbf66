"""Ranks of a process that has no communicator, and what they would send."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Container, List, Optional

import torch

from ...line import Line
from ..attending import Attend, Rows
from ..ranks import Ranks
from ..texts import texts_of
from .turns import Turns


@dataclass(frozen=True)
class Moved:
    """A reshard of a forward pass, or the exchange of an attention."""

    module: str  #: before or behind which, or within
    what: str  #: the line, or the method
    bytes_total: int  #: all ranks
    bytes_per_rank_max: int


class SimulatedComm:
    """What of a communicator the steps of a plan use."""

    def __init__(self, mesh: str, rank: int, turns: Turns):
        self.mesh, self.rank, self.size, self.turns = mesh, rank, turns.size, turns

    def allgather(self, mine: bytes) -> List[bytes]:
        return self.turns.exchange(self.rank, "a comparison", mine)


class SimulatedRanks(Ranks):
    """One rank of several."""

    def __init__(self, mesh: str, rank: int, turns: Turns, halves: Container[str] = ()):
        super().__init__(SimulatedComm(mesh, rank, turns))  # type: ignore[arg-type]
        self.halves = halves  #: modules in which float32 stands for half precision, of which the bytes are told
        self.moves: List[Moved] = []  #: of rank 0: of all ranks together
        self.within: List[str] = []  #: the modules that run, the innermost last
        self.behind = ""  #: the module that ended last
        self.ended = 0  #: modules so far
        self.around: List[str] = []  #: modules that run on rows of others, too
        self.attend = self._attend

    def is_wider(self, name: str) -> bool:
        """Has the module rows of others, because it is within one that asked for them?"""
        return any(name.startswith(f"{other}.") for other in self.around)

    def _check(self, comm: Any) -> None:
        pass

    def moved(self, x: torch.Tensor, line: str) -> torch.Tensor:
        text, adjoint, _ = texts_of(line)
        self._count(x, text, [text])
        return _Moved.apply(x, self, text, adjoint)

    def shared(self, x: torch.Tensor) -> torch.Tensor:
        if not x.requires_grad:
            return x
        head = f"f32[n={x.numel()}] on {self.comm.mesh}: "
        return _Moved.apply(x.reshape(-1), self, f"{head}* -> *", f"{head}sum@{self.axis} -> *").reshape(x.shape)

    def exchanged(self, x: torch.Tensor, text: str) -> torch.Tensor:
        """This rank's part of what the ranks have together."""
        line = Line(text)
        turns = self.comm.turns  # type: ignore[attr-defined]
        blocks = turns.exchange(self.comm.rank, f"a reshard {text}, of {x.dtype}", x)
        whole = x.new_zeros(line.shape)
        is_sum = "sum@" in text.split("]: ")[1].split(" -> ")[0]
        for rank, block in enumerate(blocks):
            order = line.src_order
            there, block = whole[line.src_slices(rank)], block.permute([order.index(d) for d in range(len(order))])
            there.copy_(there + block if is_sum else block)
        return whole[line.dst_slices(self.comm.rank)].permute(line.dst_order).clone(
            memory_format=torch.contiguous_format)

    def _attend(self, rows: Rows, step: Attend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                mask: Optional[torch.Tensor], is_causal: bool, scale: Optional[float]) -> torch.Tensor:
        """Of all rows, of which those of this rank are taken: what every method comes to."""
        axis, mesh = self.axis, self.comm.mesh

        def line(x: torch.Tensor, to: str) -> str:
            return (f"f32[b={x.shape[0]} s={rows.total} h={x.shape[1]} d={x.shape[3]}] on {mesh}: "
                    f"s@{axis}{rows.lengths} -> {to}")
        if step.method in ("ulysses", "usp"):
            there = [line(x, f"h@{axis}") for x in (q, k, v)]
            self._count(q, step.method, [*there, Line(there[0]).reversed().text])
        else:
            self._count(q, step.method, [line(x, "*") for x in (k, v)])
        whole = [_Moved.apply(x.transpose(1, 2), self, *texts_of(line(x, "*"))[:2]).transpose(1, 2) for x in (q, k, v)]
        if len(rows.of) > 1:
            whole = [rows.by_dim(x) for x in whole]
        o = torch.nn.functional.scaled_dot_product_attention(*whole, mask, is_causal=is_causal, scale=scale,
                                                             enable_gqa=q.shape[1] != k.shape[1])
        return o.index_select(2, rows.places(o.device))

    def _count(self, x: torch.Tensor, what: str, lines: List[str]) -> None:
        module = self.within[-1] if self.within else ""
        size = 2 if module in self.halves and x.dtype == torch.float32 else x.element_size()
        sent = [sum(sum(Line(text).sends(rank).values()) for text in lines) * size // 4
                for rank in range(self.comm.size)]
        if sum(sent) > 0:
            self.moves.append(Moved(module, what, sum(sent), max(sent)))


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ranks: SimulatedRanks, line: str, back: str) -> torch.Tensor:
        ctx.ranks, ctx.back = ranks, back
        return ranks.exchanged(x, line)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.ranks.exchanged(gradient, ctx.back), None, None, None
