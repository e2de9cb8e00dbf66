"""Tensors in a communicator's pool. They take an array over by DLPack: nothing of Python's stays behind them."""
from __future__ import annotations

from typing import FrozenSet, Sequence

import torch

from .. import _abi
from ..comm import Comm

DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
          torch.float8_e4m3fn: "f8e4m3", torch.float8_e5m2: "f8e5m2", torch.int64: "i64", torch.int32: "i32",
          torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool"}
#: of others, as large as these, only bits are moved; not of quantized numbers, which are more than their elements
AS_BYTES = {dtype: {1: "u8", 2: "f16", 4: "i32", 8: "i64"}[dtype.itemsize] for dtype in vars(torch).values()
            if isinstance(dtype, torch.dtype) and dtype not in DTYPES and dtype.itemsize in (1, 2, 4, 8)
            and not dtype.is_complex and not repr(dtype).startswith(("torch.qu", "torch.qi"))}
_NUMBERS = {dtype: int(getattr(_abi, f"HEDDLE_{name.upper()}")) for dtype, name in DTYPES.items()}

#: the tensor of a capsule, as `Pool.lend` and `Reshard.execute_pooled` take it
tensor_of = getattr(torch._C, "_from_dlpack", torch.utils.dlpack.from_dlpack)


def _passes(dtype: torch.dtype) -> bool:
    try:
        return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(torch.empty(1, dtype=dtype))).dtype == dtype
    except (RuntimeError, BufferError, ValueError, TypeError):
        return False


#: what this torch takes by DLPack
BY_DLPACK: FrozenSet[torch.dtype] = frozenset(filter(_passes, DTYPES))


def pooled(comm: Comm, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A dense tensor, not initialised. No view, which nobody could write to in place once it is an operator's result.
    """
    if dtype in BY_DLPACK:
        return comm.pool.lend(_NUMBERS[dtype], shape, tensor_of)
    nbytes = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
    held = comm.pool.lend(_abi.HEDDLE_U8, (nbytes,), tensor_of).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(held, 0, shape)
