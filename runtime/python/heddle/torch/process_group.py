"""Ranks that torch.distributed knows already."""
from __future__ import annotations

import socket
import uuid
from typing import Any, List, Optional

import torch.distributed

from ..comm import Comm
from ..errors import UnsupportedError


def from_process_group(group: Optional[Any] = None, **options: Any) -> Comm:
    """A communicator of the ranks of a process group, all of one host; None: the default group. Collective over the
    group, which is used for two words per rank and for nothing after. The options are those of `Comm.join`.
    """
    rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    words: List[Any] = [None] * size
    torch.distributed.all_gather_object(words, (socket.gethostname(), uuid.uuid4().hex), group=group)
    hosts = sorted({host for host, _ in words})
    if len(hosts) > 1:
        raise UnsupportedError(f"the {size} ranks of the process group are on {len(hosts)} hosts ({', '.join(hosts)}): "
                               "several hosts want Comm.open('mpi')")
    return Comm.join(words[0][1], rank, size, **options)
