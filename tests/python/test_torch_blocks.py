"""The kernels that a ring of torch's operations attends by: the CPU's as a GPU machine compares its own, and what those
of CUDA are called with."""
import os
import subprocess
import sys

from ranks import JUDGE, SCALE, fork

SCRIPT = os.path.join(os.environ["HEDDLE_SOURCE"], "tests", "device", "attention_blocks.py")

COMMON = JUDGE + """
import torch
import heddle
from heddle.torch import blocks as kernels
"""


def test_kernels_of_the_cpu_against_float64():
    ran = subprocess.run([sys.executable, SCRIPT, "cpu"], capture_output=True, text=True, timeout=120 * SCALE)
    assert ran.returncode == 0 and "flash of the CPU, chunks: 108 times" in ran.stdout, ran.stdout + ran.stderr


def test_kernels_of_cuda_have_these_arguments(tmp_path):
    fork(tmp_path, COMMON + """
from torch._subclasses.fake_tensor import FakeTensorMode

given = {}

class Watched:
    def __getattr__(self, name):
        def call(*arguments, **named):
            given[name] = arguments
            return getattr(torch.ops.aten, name)(*arguments, **named)
        return call

kernels._aten = Watched()
with FakeTensorMode():  # shapes and arguments alone
    for kernel, dtype, width in ((kernels.FLASH, torch.bfloat16, 64), (kernels.FLASH, torch.float16, 36),
                                 (kernels.EFFICIENT, torch.float32, 64), (kernels.EFFICIENT, torch.bfloat16, 64)):
        for keys, causal in ((9, False), (5, True)):
            q, k = (torch.empty(2, 3, length, width, dtype=dtype, device="cuda") for length in (5, keys))
            o, lse = kernel.forward(q, k, k, causal, 0.1)
            assert o.shape == q.shape and o.dtype == dtype and lse.shape == (2, 3, 5) and lse.dtype == torch.float32
            grads = kernel.backward(q, q, k, k, q, lse, causal, 0.1)
            assert [x.shape for x in grads] == [q.shape, k.shape, k.shape] and len(grads) == 3
for name, arguments in given.items():
    tensors = [x for x in arguments if isinstance(x, torch.Tensor) and x.dim() == 4]
    assert len(tensors) == (5 if "backward" in name else 3) and all(x.shape[3] % 8 == 0 for x in tensors), name
_, _, _, _, _, o, lse, *_ = given["_scaled_dot_product_efficient_attention_backward"]
assert o.transpose(1, 2).is_contiguous() and lse.shape == (2, 3, 32)
print("ok")
""", 1)


def test_the_choice_is_one_of_training(tmp_path):
    fork(tmp_path, COMMON + """
asked = []
torch.backends.cuda.SDPAParams = lambda *given: asked.append(given)
torch.backends.cuda.can_use_flash_attention = lambda _: False
torch.backends.cuda.can_use_efficient_attention = lambda _: True

from torch._subclasses.fake_tensor import FakeTensorMode

with FakeTensorMode():  # as if there were a device
    q, k = (torch.empty(2, 3, rows, 36, device="cuda") for rows in (5, 9))
    with torch.inference_mode():
        known = q.clone()
        assert kernels.kernel_for(known, k, k) is kernels.EFFICIENT
    with torch.no_grad():
        kernels.kernel_for(q, k, k)
    kernels.kernel_for(known, k, k)
for *tensors, mask, dropout, causal, gqa in asked:
    assert [tuple(x.shape) for x in tensors] == [(2, 3, 5, 36), (2, 3, 9, 36), (2, 3, 9, 36)]
    assert all(x.requires_grad and x.stride(3) == 1 and x.is_cuda for x in tensors)
assert len(asked) == 3 and not q.requires_grad
print("ok")
""", 1)
