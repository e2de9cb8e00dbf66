"""The names of yunchang.comm.all_to_all."""
from .exchange import all_to_all

__all__ = ["SeqAllToAll4D", "SeqAllToAll5D", "all_to_all_4D", "all_to_all_5D"]


class SeqAllToAll4D:
    @staticmethod
    def apply(group, input, scatter_idx=2, gather_idx=1, use_sync=False):
        return all_to_all(input, scatter_idx, gather_idx, group)


class SeqAllToAll5D(SeqAllToAll4D):
    @staticmethod
    def apply(group, input, scatter_idx=3, gather_idx=1, use_sync=False):
        return all_to_all(input, scatter_idx, gather_idx, group)


def all_to_all_4D(input, scatter_idx=2, gather_idx=1, group=None, use_sync=False):
    return all_to_all(input, scatter_idx, gather_idx, group)


def all_to_all_5D(input, scatter_idx=3, gather_idx=1, group=None, use_sync=False):
    return all_to_all(input, scatter_idx, gather_idx, group)
