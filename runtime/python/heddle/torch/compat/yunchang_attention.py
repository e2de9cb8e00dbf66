"""The names of yunchang.hybrid and yunchang.ulysses."""
from .layers import PROCESS_GROUP, OverGroups, PackedOverGroups

__all__ = ["LongContextAttention", "LongContextAttentionQKVPacked", "UlyssesAttention"]


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
