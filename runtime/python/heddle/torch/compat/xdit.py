"""The names of xfuser.model_executor.layers.usp, of [b, h, s, d], over the groups that were set."""
from .exchange import all_to_all
from .heads import qkv_to_heads
from .layers import PROCESS_GROUP, rows_first
from .xdit_attention import *

set_ulysses_group, set_ring_group = PROCESS_GROUP.set_ulysses, PROCESS_GROUP.set_ring


def _ft_c_input_all_to_all(x):
    return all_to_all(x, 1, 2, PROCESS_GROUP.ULYSSES_PG)


def _combined_qkv_all_to_all(q, k, v):
    return rows_first(*qkv_to_heads(*rows_first(q, k, v), PROCESS_GROUP.ULYSSES_PG))


def _ft_c_output_all_to_all(x):
    return all_to_all(x, 2, 1, PROCESS_GROUP.ULYSSES_PG)
