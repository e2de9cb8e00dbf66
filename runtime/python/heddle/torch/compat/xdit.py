"""The names of xfuser.model_executor.layers.usp, of [b, h, s, d], over the group that was set."""
from .exchange import all_to_all
from .heads import qkv_to_heads

_group = None


def set_ulysses_group(group):
    global _group
    _group = group


def _ft_c_input_all_to_all(x):
    return all_to_all(x, 1, 2, _group)


def _combined_qkv_all_to_all(q, k, v):
    return tuple(x.transpose(1, 2) for x in qkv_to_heads(*(x.transpose(1, 2) for x in (q, k, v)), _group))


def _ft_c_output_all_to_all(x):
    return all_to_all(x, 2, 1, _group)
