"""The names of yunchang.globals, yunchang.hybrid and yunchang.ulysses."""
from .layers import PROCESS_GROUP, OverGroups, PackedOverGroups, grouped

__all__ = ["PROCESS_GROUP", "LongContextAttention", "LongContextAttentionQKVPacked", "UlyssesAttention",
           "set_seq_parallel_pg"]


def set_seq_parallel_pg(sp_ulysses_degree, sp_ring_degree, rank, world_size, use_ulysses_low=True):
    PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG = grouped(sp_ulysses_degree, sp_ring_degree, use_ulysses_low)


class LongContextAttention(OverGroups):
    def __init__(self, scatter_idx=2, gather_idx=1, ring_impl_type="basic", use_pack_qkv=False, use_sync=False,
                 attn_type=None, attn_processor=None):
        super().__init__(PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG, (scatter_idx, gather_idx), ring_impl_type)


class LongContextAttentionQKVPacked(PackedOverGroups):
    def __init__(self, scatter_idx=3, gather_idx=1, ring_impl_type="basic", use_sync=False, attn_type=None):
        super().__init__(PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG, (scatter_idx, gather_idx), ring_impl_type)


class UlyssesAttention(OverGroups):
    def __init__(self, sequence_process_group=None, scatter_idx=2, gather_idx=1, use_sync=False, attn_type=None):
        super().__init__(sequence_process_group, None, (scatter_idx, gather_idx))
