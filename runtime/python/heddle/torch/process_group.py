"""Ranks that torch.distributed knows already."""
from __future__ import annotations

import hashlib
import socket
import uuid
from typing import Any, List, Optional

import torch.distributed

from ..comm import Comm
from ..errors import UnsupportedError


def _nccl_of(group: Optional[Any]) -> int:
    """The communicator of NCCL that the group has on the current device; 0: torch shows none, or has not made it."""
    try:
        backend = (group or torch.distributed.group.WORLD)._get_backend(torch.device("cuda"))
        return int(backend._comm_ptr())
    except (AttributeError, RuntimeError):  # of another backend, or of an older torch
        return 0


def _gathered(word: Any, size: int, group: Optional[Any]) -> List[Any]:
    words: List[Any] = [None] * size
    torch.distributed.all_gather_object(words, word, group=group)
    return words


def from_process_group(group: Optional[Any] = None, *, nccl: Optional[bool] = None, **options: Any) -> Comm:
    """A communicator of the ranks of a process group; None: the default group. Collective over the group. The other
    options are those of `Comm.join`.

    nccl  True: the group's communicator of NCCL is lent (`Comm.from_nccl`), so that tensors on the current CUDA device
          go by its messages, and the group outlives this communicator. False: the ranks, which are of one host, meet
          by themselves, the group is used for two words per rank and for nothing after, and devices are attached by
          `Comm.attach_device`, which knows faster ways between those of a host. None: True where ranks are on several
          hosts, which is what the group's communicator is needed for
    """
    rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    words = _gathered((socket.gethostname(), uuid.uuid4().hex), size, group)
    hosts = sorted({host for host, _ in words})
    if nccl is None:
        nccl = len(hosts) > 1
    if not nccl and len(hosts) == 1:
        return Comm.join(words[0][1], rank, size, **options)
    spread = f"the {size} ranks of the process group are on {len(hosts)} hosts ({', '.join(hosts)})"
    if not nccl:
        raise UnsupportedError(f"{spread}: several hosts want nccl=True, or Comm.open('tcp')")
    pointer = _nccl_of(group)
    shown = _gathered(pointer != 0, size, group)
    if not all(shown):
        raise UnsupportedError(f"{spread}, and rank {shown.index(False)}'s torch shows no communicator of NCCL of the "
                               "group: a group of the backend nccl has one, or Comm.open('mpi')")
    return Comm.from_nccl(pointer, **options)


def beside(comm: Comm, group: Optional[Any]) -> Comm:
    """A second communicator of the same ranks. Collective over the first one, which hands round where they meet: who
    waits there is told where the others are."""
    own = hashlib.blake2b(socket.gethostname().encode(), digest_size=16).digest() + uuid.uuid4().bytes
    words = comm.allgather(own)
    if len({word[:16] for word in words}) > 1:
        return from_process_group(group)
    return Comm.join(words[0].hex(), comm.rank, comm.size)
