"""The names of wan.distributed.util. `group` is heeded."""
from .exchange import all_to_all as exchanged, gather
from .groups import comm_of


def all_to_all(x, scatter_dim, gather_dim, group=None, **kwargs):
    return exchanged(x, scatter_dim, gather_dim, group)


def gather_forward(input, dim):
    return gather(input, dim)


def get_rank():
    return comm_of().rank


def get_world_size():
    return comm_of().size
