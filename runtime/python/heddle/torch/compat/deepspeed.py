"""The names of deepspeed.sequence.layer."""
from .exchange import all_to_all
from .groups import need_dict
from .layers import DistributedAttention as DistributedAttention


def single_all_to_all(input, scatter_idx, gather_idx, batch_dim_idx, group, async_op=False, handle=None, type=None):
    need_dict("handle", handle)
    moved = all_to_all(input, scatter_idx, gather_idx, group, async_op=async_op)
    if async_op and handle is not None:
        handle[f"{type}_work"] = moved
    return moved


class _SeqAllToAll:
    @staticmethod
    def apply(group, input, scatter_idx, gather_idx, batch_dim_idx, stream=None, handle=None, type=None, is_fwd=True):
        return all_to_all(input, scatter_idx, gather_idx, group)
