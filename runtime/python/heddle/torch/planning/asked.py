"""Bytes of a plan with the extents that were asked for, from those that went in its proof, with the extents that were
explored."""
from __future__ import annotations

import math
import re
from typing import Dict, List, Tuple

from ...model import opened
from ..exploring.exploration import Exploration
from ..exploring.flow import as_output
from ..exploring.rows import Words, is_of_pairs, words_of
from ..halo import Halo
from ..proving import Proof
from ..proving.simulated import Moved
from .plan import Plan


def need_sizes(found: Exploration, sizes: str) -> None:
    """The planner reads them with a model file that has nothing but the dims."""
    dims = found.fused().extents(found.dims)
    if dims:
        text = [f"model: {found.model.lower()}", "dtype: f32", "dims:", *(f"  {dim}: {n}" for dim, n in dims.items()),
                "  c: {size: 1, role: channel}", "tensors:", f"  x: [{next(iter(dims))}, c]",
                "stages:", "  - {name: all, kind: module, token_flops: 1}"]
        with opened("\n".join(text), sizes, 0, None):
            pass


class Asked:
    """`sizes`, as `heddle.plan` has them and `plan_of` has seen; "": those that were explored."""

    def __init__(self, found: Exploration, sizes: str):
        self._found, self._sizes = found, sizes
        self.times: Dict[str, float] = {}  # of each dim: so many rows for one that was explored
        fused = found.fused()
        explored = fused.extents({**found.dims, **{dim: n for stage in reversed(found.stages())
                                                   for dim, n in stage.extents.items()}})
        for name, extent in re.findall(r"(\w+)=(\d+)", sizes):
            run = fused.parts.get(name, ())
            for dim in run:  # of several, nobody knows which is how long
                self.times[dim] = (int(extent) / explored[name]) ** (1 / len(run))

    def bytes_of(self, plan: Plan, proof: Proof) -> int:
        """In a forward. Rows beside those of a dim count as if they were as many times more."""
        if not self.times:
            return proof.bytes_total
        halos = {name: step.over for name, step in plan.apart() if isinstance(step, Halo)}
        return round(sum(move.bytes_total * self._times_of(move, halos.get(move.module, "")) for move in proof.moves))

    def said(self, plan: Plan, proof: Proof) -> str:
        return f"; with {self._sizes} about {self.bytes_of(plan, proof)} bytes go on {proof.ranks} ranks" if (
            self.times) else ""

    def _times_of(self, move: Moved, halo: str) -> float:
        tensors, line = self._tensors(move.module), move.what.split("]")[0]
        if not tensors:
            return 1.0
        elements = math.prod(map(int, re.findall(r"=(\d+)", line)))
        axes = next((axes for axes, n in tensors if n == elements), tensors[0][0])
        if line.startswith("f32[r="):  # sums of every sample
            axes = axes[:1]
        dims = {dim for axis in axes for part in axis for dim in part}
        return math.prod(self.times.get(dim, 1.0) for dim in dims - ({halo} if line.startswith("f32[e=") else set()))

    def _tensors(self, name: str) -> List[Tuple[Words, int]]:
        """Of a module, and how many elements each has."""
        module, call = self._found[name], next((call for call in self._found.flow.calls if call.module == name), None)
        texts = {**module.given, **{as_output(at): text for at, text in module.out.items()}}
        return [(words_of(texts[at.name]), math.prod(at.shape)) for at in (*call.given, *call.out)
                if at.name in texts and not is_of_pairs(texts[at.name], shape=at.shape)] if call else []
