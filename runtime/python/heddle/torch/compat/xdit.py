"""The names of xfuser.model_executor.layers.usp, of [b, h, s, d], over the groups that were set."""
from .exchange import all_to_all
from .heads import qkv_to_heads
from .layers import PROCESS_GROUP, heads_first

set_ulysses_group, set_ring_group = PROCESS_GROUP.set_ulysses, PROCESS_GROUP.set_ring


def _ft_c_input_all_to_all(x):
    return all_to_all(x, 1, 2, PROCESS_GROUP.ULYSSES_PG)


def _combined_qkv_all_to_all(q, k, v):
    there = qkv_to_heads(*(x.transpose(1, 2) for x in (q, k, v)), PROCESS_GROUP.ULYSSES_PG)
    return tuple(x.transpose(1, 2) for x in there)


def _ft_c_output_all_to_all(x):
    return all_to_all(x, 2, 1, PROCESS_GROUP.ULYSSES_PG)


def ring_attn(query, key, value, dropout_p=0.0, is_causal=False):
    return heads_first(query, key, value, None, PROCESS_GROUP.RING_PG, dropout_p, is_causal)


def USP(query, key, value, dropout_p=0.0, is_causal=False):
    return heads_first(query, key, value, PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG, dropout_p, is_causal)
