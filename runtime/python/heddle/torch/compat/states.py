"""Linear attention with decay, as LASP calls it."""
from __future__ import annotations

from typing import Any, Optional, Sequence

import torch

from ..attention_op import linear_attention
from .exchange import ranks_of
from .groups import checked, comm_of


def lasp(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor, group: Any = None, *,
         sizes: Optional[Sequence[int]] = None, method: str = "lasp2") -> torch.Tensor:
    """o_i = sum over j <= i of exp(-slope (i - j)) (q_i . k_j) v_j, of a sequence of which every rank has its rows:
    q, k [b, h, n, d] and v [b, h, n, e], of one dtype. Any rows; o has its gradient. Collective.

    slopes  one of each head, 0 at least, of any shape
    sizes   the ranks' rows; None: as many as this one has, and where that is wrong it is MismatchError, on every rank
    method  "lasp2" gathers states, "lasp" hands them from rank to rank, "scan" adds them up in log2(ranks) steps
    """
    ranks, comm = ranks_of(group), comm_of(group)
    rows = [q.shape[2]] * ranks if sizes is None else checked("sizes", sizes, ranks)
    b, h, _, d = q.shape
    decay = torch.exp(-slopes.detach().double()).flatten().tolist()
    problem = f"f32[b={b} s={sum(rows)} h={h} d={d}] on [sp={ranks}]: s@sp({' '.join(map(str, rows))})"
    plan = comm.linear_attention(problem, method, decay=decay, dv=v.shape[3])
    return linear_attention(q, k, v, plan)
