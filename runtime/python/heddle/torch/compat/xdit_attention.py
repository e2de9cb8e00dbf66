"""The attention of xfuser.model_executor.layers.usp, of [b, h, s, d], over the groups that were set."""
from .layers import PROCESS_GROUP, heads_first

__all__ = ["USP", "USP_joint", "ring_attn"]


def ring_attn(query, key, value, dropout_p=0.0, is_causal=False):
    return heads_first(query, key, value, None, PROCESS_GROUP.RING_PG, dropout_p, is_causal)


def USP(query, key, value, dropout_p=0.0, is_causal=False):
    return heads_first(query, key, value, PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG, dropout_p, is_causal)


def USP_joint(query, key, value, joint_query, joint_key, joint_value, joint_strategy, dropout_p=0.0, is_causal=False):
    groups, joint = (PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG), (joint_query, joint_key, joint_value)
    return heads_first(query, key, value, *groups, dropout_p, is_causal, joint, joint_strategy)
