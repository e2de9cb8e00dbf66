"""The names of fastvideo.distributed.communication_op, over the group that was set."""
from .exchange import all_to_all, gather, ranks_of, split
from .groups import shared

_group = None


def set_sp_group(group):
    global _group
    _group = group


def sequence_model_parallel_all_to_all_4D(input_, scatter_dim=2, gather_dim=1):
    return all_to_all(input_, scatter_dim, gather_dim, _group)


def sequence_model_parallel_all_gather(input_, dim=-1):
    return gather(input_, dim, _group)


def sequence_model_parallel_all_gather_with_unpad(input_, original_seq_len, dim=-1):
    return gather(input_, dim, _group, sizes=shared("original_seq_len", original_seq_len, ranks_of(_group)))


def sequence_model_parallel_shard(input_, dim=1):
    return split(input_, dim, _group), input_.shape[dim]
