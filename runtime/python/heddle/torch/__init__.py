"""Tensors of torch between ranks: gradients, torch.compile, results in memory that peers reach.

    plan = comm.reshard("f32[b=2 t=7 s=13 c=8] on [sp=2]: t@sp -> s@sp")
    x = heddle.torch.switch(x, plan)

A plan stands for its line: tensors of another dtype go by the same line in theirs (bf16 under autocast). Plans are made
on first use, collectively, those of gradients in the first backward; all ranks run the same graph. Tensors that are not
dense are copied before.
"""
from typing import TYPE_CHECKING, Any

from .attending import Attend
from .attention_op import attention, linear_attention
from .device_pool import mem_pool
from .exploring import Exploration, explore
from .gradients import reduce_gradients, share
from .halo import Halo, Numbered
from .linting import Fault, lint
from .modules import Count, Extent, Gather, Parallel, Sizes, Split, Switch, Total, Without, parallelize
from .moved import empty
from .planning import Plan
from .process_group import from_process_group
from .proving import Proof, prove
from .reshard import gather, split, switch
from .sums import Sums

if TYPE_CHECKING:
    from .dtensor import redistribute

__all__ = ["Attend", "Count", "Exploration", "Extent", "Fault", "Gather", "Halo", "Numbered", "Parallel", "Plan",
           "Proof", "Sizes", "Split", "Sums", "Switch", "Total", "Without", "attention", "empty", "explore",
           "from_process_group", "gather", "linear_attention", "lint", "mem_pool", "parallelize", "prove",
           "redistribute", "reduce_gradients", "share", "split", "switch"]


def __getattr__(name: str) -> Any:
    if name == "redistribute":
        from .dtensor import redistribute  # on first use: DTensors are long to import
        return redistribute
    raise AttributeError(f"module 'heddle.torch' has no attribute '{name}'")
