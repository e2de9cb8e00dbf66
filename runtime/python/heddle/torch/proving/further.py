"""On which other numbers of ranks a plan has to be proved."""
from __future__ import annotations

import math
from typing import Iterator

from .proof import Proof

RANKS_MAX = 8  #: that a plan is asked for are simulated as they are
_UNEVEN_MAX = 2 * RANKS_MAX  #: that are simulated for their uneven parts
_TRIES = 2  #: of these for a dim, where a module refuses such parts


def further(asked: int, proof: Proof) -> Iterator[int]:
    """As many as are asked for, where these are more. Then, for each dim, some with which ranks begin at rows that have
    no divisor in common: a window of two rows that pads itself is right wherever all begin at even rows, as on 6 and 5
    rows. Those that hold have to stand in `proof.further` before the next is taken."""
    if asked > proof.ranks:
        yield asked
    fewest = min(proof.cut.values(), default=0)
    for extent in proof.cut.values():
        left = list(range(2, min(extent, _UNEVEN_MAX) + 1))
        for _ in range(_TRIES):
            step = math.gcd(*(_step(extent, n) for n in (proof.ranks, *proof.further)))
            best = min(left, key=lambda n: (math.gcd(step, _step(extent, n)), n > fewest, n), default=0)
            if not best or math.gcd(step, _step(extent, best)) == step:
                break
            left.remove(best)
            yield best


def _step(extent: int, ranks: int) -> int:
    """What divides all rows at which parts begin."""
    rows, more = divmod(extent, ranks)
    return math.gcd(*(rank * rows + min(rank, more) for rank in range(1, ranks)))
