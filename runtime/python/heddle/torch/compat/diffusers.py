"""The names of diffusers.models.attention_dispatch."""
from .exchange import all_to_all
from .groups import length_of, shared, sizes_of


class SeqAllToAllDim:
    @staticmethod
    def apply(group, input, scatter_id=2, gather_id=1):
        return all_to_all(input, scatter_id, gather_id, group)


def all_to_all_single_any_qkv_async(x, group, **kwargs):
    return all_to_all(x, 2, 1, group, gather_sizes=sizes_of(length_of(x, 1), group), async_op=True)


def all_to_all_single_any_o_async(x, group, **kwargs):
    rows, heads = sizes_of(kwargs.get("Q_S_LOCAL"), group), kwargs.get("NUM_QO_HEAD")
    of = None if heads is None else shared("NUM_QO_HEAD", heads, len(rows))
    return all_to_all(x, 1, 2, group, scatter_sizes=rows, gather_sizes=of, async_op=True)
