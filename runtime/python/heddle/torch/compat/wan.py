"""The names of wan.distributed.util. `group` is heeded."""
from torch.distributed import get_rank, get_world_size

from .exchange import all_to_all as exchanged, gather
from .groups import tensor_of

__all__ = ["all_gather", "all_to_all", "gather_forward", "get_rank", "get_world_size"]


def all_to_all(x, scatter_dim, gather_dim, group=None, **kwargs):
    return exchanged(x, scatter_dim, gather_dim, group)


def all_gather(tensor):
    return list(gather(tensor_of(tensor)[None], 0).unbind(0))


def gather_forward(input, dim):
    return gather(input, dim)
