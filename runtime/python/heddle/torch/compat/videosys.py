"""The names of videosys.core.distributed.comm. Nothing is padded: a pad of `set_pad` knows the extent of its dim."""
from .exchange import all_to_all, gather, split
from .groups import get_pad as get_pad, grad_of, of_second_dim, padded, set_pad as set_pad


def all_to_all_comm(input_, process_group=None, scatter_dim=2, gather_dim=1):
    return all_to_all(input_, scatter_dim, gather_dim, process_group)


def all_to_all_with_pad(input_, process_group, scatter_dim=2, gather_dim=1, scatter_pad=0, gather_pad=0):
    sizes = padded(input_, gather_dim, gather_pad, process_group)
    return all_to_all(input_, scatter_dim, gather_dim, process_group, gather_sizes=sizes, empty="one")


def split_sequence(input_, process_group, dim, grad_scale=1.0, pad=0, pad_val=0):
    return split(input_, dim, process_group, grad=grad_of(grad_scale), empty="one")


def gather_sequence(input_, process_group, dim, grad_scale=1.0, pad=0):
    sizes = padded(input_, dim, pad, process_group)
    return gather(input_, dim, process_group, sizes=sizes, grad=grad_of(grad_scale), empty="one")


split_from_second_dim = of_second_dim(split_sequence, "down")
gather_from_second_dim = of_second_dim(gather_sequence, "up")
