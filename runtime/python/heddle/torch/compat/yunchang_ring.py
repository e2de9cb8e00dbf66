"""The names of yunchang.ring, of rows that follow one another from rank to rank."""
from .layers import round_ring as ring_flash_attn_func, unpacked

__all__ = ["ring_flash_attn_func", "ring_flash_attn_kvpacked_func", "ring_flash_attn_qkvpacked_func"]


def ring_flash_attn_kvpacked_func(q, kv, *args, **kwargs):
    return ring_flash_attn_func(q, *unpacked(kv, 2), *args, **kwargs)


def ring_flash_attn_qkvpacked_func(qkv, *args, **kwargs):
    return ring_flash_attn_func(*unpacked(qkv, 3), *args, **kwargs)
