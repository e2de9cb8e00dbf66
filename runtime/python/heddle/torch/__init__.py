"""Tensors of torch between ranks: gradients, torch.compile, results in memory that peers reach.

    plan = comm.reshard("f32[b=2 t=7 s=13 c=8] on [sp=2]: t@sp -> s@sp")
    x = heddle.torch.switch(x, plan)

A plan stands for its line: tensors of another dtype go by the same line in theirs (bf16 under autocast). Plans are made
on first use, collectively, those of gradients in the first backward; all ranks run the same graph. Tensors that are not
dense are copied before.
"""
from .attending import Attend
from .attention_op import attention, linear_attention
from .gradients import reduce_gradients
from .modules import Gather, Parallel, Sizes, Split, Switch, parallelize
from .process_group import from_process_group
from .reshard import empty, gather, split, switch

__all__ = ["Attend", "Gather", "Parallel", "Sizes", "Split", "Switch", "attention", "empty",
           "from_process_group", "gather", "linear_attention", "parallelize", "reduce_gradients", "split", "switch"]
