"""On which other numbers of ranks a plan has to be proved."""
from __future__ import annotations

from typing import List

from .proof import Proof

RANKS_MAX = 8  #: that are simulated


def further(asked: int, proof: Proof) -> List[int]:
    """As many as are asked for, where these are more; and some by which parts are uneven, if they have been even on
    all: a window of two rows that pads itself is right in even parts alone."""
    ranks = [asked] if asked > proof.ranks else []
    for extent in proof.cut.values():
        if all(extent % n == 0 for n in (2, proof.ranks, *ranks)):
            ranks += [n for n in range(3, min(extent, RANKS_MAX + 1)) if extent % n][:1]
    return ranks
