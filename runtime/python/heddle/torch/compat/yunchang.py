"""The names of yunchang: exchanges, and attention over the groups that were set."""
from .layers import PROCESS_GROUP as PROCESS_GROUP, grouped
from .yunchang_attention import *
from .yunchang_comm import *
from .yunchang_ring import *


def set_seq_parallel_pg(sp_ulysses_degree, sp_ring_degree, rank, world_size, use_ulysses_low=True):
    PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG = grouped(sp_ulysses_degree, sp_ring_degree, use_ulysses_low)
