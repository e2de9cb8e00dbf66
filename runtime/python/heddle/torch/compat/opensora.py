"""The names of opensora.acceleration.communications, and those of mmdit's `_var_len`."""
from .exchange import all_to_all as exchanged, gather, split
from .groups import grad_of


def all_to_all(input_, process_group, scatter_dim=2, gather_dim=1):
    return exchanged(input_, scatter_dim, gather_dim, process_group)


def split_forward_gather_backward(input_, process_group, dim, grad_scale=1.0):
    return split(input_, dim, process_group, grad=grad_of(grad_scale))


def gather_forward_split_backward(input_, process_group, dim, grad_scale=None):
    return gather(input_, dim, process_group, grad=grad_of(grad_scale))


def split_forward_gather_backward_var_len(input_, dim, process_group, splits):
    return split(input_, dim, process_group, sizes=splits, grad="mean")


def gather_forward_split_backward_var_len(input_, dim, process_group, splits):
    return gather(input_, dim, process_group, sizes=splits, grad="mean")
