"""The functions that sequence parallel backends have, with their signatures: local tensors, the numbers of two dims,
and a process group. Swapping one import brings heddle's exchanges: any extents, exact gradients, ranks that disagree
are named.

    from heddle.torch.compat import all_to_all, comm_of, gather, split

    q = all_to_all(q, scatter_dim=2, gather_dim=1, group=group)     # [b, s/n, h, d] -> [b, s, h/n, d]

Modules have the names of backends: yunchang, videosys, opensora, wan, fastvideo, deepspeed, diffusers, xdit.

A tensor does not say what the other ranks have. Where lengths are not given, all ranks are taken to have as much as
this one; ranks for which that comes to different tensors get MismatchError.
"""
from .attend import attention
from .exchange import all_to_all, gather, split
from .groups import comm_of, sizes_of
from .handle import Handle
from .heads import by_heads, heads_to_rows, qkv_to_heads
from .states import lasp

__all__ = ["Handle", "all_to_all", "attention", "by_heads", "comm_of", "gather", "heads_to_rows", "lasp",
           "qkv_to_heads", "sizes_of", "split"]
