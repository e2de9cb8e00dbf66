"""The names of videosys.core.distributed.comm. Nothing is padded: a pad of `set_pad` knows the extent of its dim."""
from . import exchange, groups

_pads: dict = {}
get_pad = _pads.__getitem__  # by name


def set_pad(name, dim_size, parallel_group):
    _pads[name] = groups.Pad(dim_size, exchange.ranks_of(parallel_group))


def all_to_all_comm(input_, process_group=None, scatter_dim=2, gather_dim=1):
    return exchange.all_to_all(input_, scatter_dim, gather_dim, process_group)


def all_to_all_with_pad(input_, process_group, scatter_dim=2, gather_dim=1, scatter_pad=0, gather_pad=0):
    sizes = groups.padded(input_.shape[gather_dim], gather_pad, process_group)
    return exchange.all_to_all(input_, scatter_dim, gather_dim, process_group, gather_sizes=sizes, empty="one")


def split_sequence(input_, process_group, dim, grad_scale=1.0, pad=0, pad_val=0):
    return exchange.split(input_, dim, process_group, grad=groups.grad_of(grad_scale), empty="one")


def gather_sequence(input_, process_group, dim, grad_scale=1.0, pad=0):
    sizes = groups.padded(input_.shape[dim], pad, process_group)
    return exchange.gather(input_, dim, process_group, sizes=sizes, grad=groups.grad_of(grad_scale), empty="one")
