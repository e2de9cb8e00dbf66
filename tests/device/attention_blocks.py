"""The kernels that a ring of a device's tensors attends by (heddle/torch/blocks.py), each against attention in float64.

    python3 tests/device/attention_blocks.py [cuda | cpu]          with the package on PYTHONPATH

Two blocks of keys, put together as a ring does, and the gradients of each of them; what chooses the kernel; every dtype
and width that a kernel takes. cpu: the kernels that the CPU has. Exit 77: torch or a device is missing.
"""
import sys

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    print(f"no torch, or one without torch.nn.attention: {error}")
    sys.exit(77)

HALVES = (torch.float16, torch.bfloat16)
WITHIN = {torch.float16: 5e-3, torch.bfloat16: 0.03, torch.float32: 1e-4}  # of what is largest
WIDTHS = (36, 64, 128)
B, H = 2, 3
#: rows, keys before, keys of the second block, which a causal one has as many of as rows
CASES = ((37, 50, 21, False), (64, 32, 64, False), (37, 0, 50, False), (37, 50, 37, True), (37, 0, 37, True),
         (1, 5, 1, True))


def takes(name, dtype, width):
    """Does a device of compute capability 8.0 or newer?"""
    if name == "flash":
        return dtype in HALVES
    return name != "efficient" or width % (8 if dtype in HALVES else 4) == 0


def kernels_of(device):
    """Each with the backends of which one is allowed alone where it is chosen."""
    from heddle.torch import blocks

    if device == "cpu":
        return {blocks.FLASH_OF_CPU: [SDPBackend.FLASH_ATTENTION], blocks.CHUNKS: []}
    return {blocks.FLASH: [SDPBackend.FLASH_ATTENTION], blocks.EFFICIENT: [SDPBackend.EFFICIENT_ATTENTION],
            blocks.CHUNKS: [SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]}


def judged(q, k, v, d_o, before, causal, scale):
    """o and the gradients, in float64."""
    given = [x.double().requires_grad_() for x in (q, k, v)]
    rows, keys = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
    seen = keys <= rows[:, None] + before if causal else None
    with sdpa_kernel(SDPBackend.MATH):
        o = F.scaled_dot_product_attention(*given, seen, scale=scale)
    return [o.detach(), *torch.autograd.grad(o, given, d_o.double())]


def by_blocks(kernel, q, k, v, d_o, before, causal, scale):
    """The same of keys in two blocks, of which a causal one is the second."""
    from heddle.torch.blocks import accumulated
    from heddle.torch.ring_op import _merge

    parts = [(slice(0, before), False)] * (before > 0) + [(slice(before, None), causal)]
    kind = accumulated(q.dtype)
    sums, lse = torch.zeros(q.shape, dtype=kind, device=q.device), q.new_full(q.shape[:3], -torch.inf, dtype=kind)
    for keys, is_causal in parts:
        _merge(sums, lse, *kernel.forward(q, k[:, :, keys], v[:, :, keys], is_causal, scale))
    o, dq = sums.to(q.dtype), torch.zeros_like(sums)
    found = []
    for keys, is_causal in parts:
        of_q, *of_keys = kernel.backward(d_o, q, k[:, :, keys], v[:, :, keys], o, lse, is_causal, scale)
        dq += of_q
        found.append(of_keys)
    return [o, dq, *(torch.cat(of, 2) for of in zip(*found))]


def check(kernel, device, dtype, width, case):
    rows, before, more, causal = case
    generator = torch.Generator().manual_seed(rows + width)
    q, k, v, d_o = (torch.randn(B, H, length, width, generator=generator).to(device, dtype)
                    for length in (rows, before + more, before + more, rows))
    scale = 1.3 * width ** -0.5  # not the one that torch would take, of this width or another
    wanted = judged(q, k, v, d_o, before, causal, scale)
    for name, a, b in zip(("o", "dq", "dk", "dv"), by_blocks(kernel, q, k, v, d_o, before, causal, scale), wanted):
        far = (a.double() - b).abs().max() / (1 + b.abs().max())
        if a.shape != b.shape or not far <= WITHIN[dtype]:
            raise AssertionError(f"{kernel.name}, {dtype}, width {width}, {case}: {name} of {tuple(a.shape)} is off by "
                                 f"{far:.2e}")


def check_choice(kernel, backend, device, dtype, width):
    from heddle.torch.blocks import kernel_for

    q, k = (torch.zeros(B, H, rows, width, dtype=dtype, device=device) for rows in (37, 50))
    with sdpa_kernel(backend):
        chosen = kernel_for(q, k, k).name
    wanted = kernel.name if takes(kernel.name, dtype, width) else "chunks"
    if chosen != wanted:
        raise AssertionError(f"{backend}, {dtype}, width {width}: {chosen}, wanted {wanted}")


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    if device == "cuda" and (not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0)):
        print("no device: torch finds none of compute capability 8.0 or newer")
        return 77
    done = 0
    kernels = kernels_of(device)
    for kernel, backends in kernels.items():
        for dtype in WITHIN:
            for width in WIDTHS:
                for backend in backends:
                    check_choice(kernel, backend, device, dtype, width)
                for case in CASES if takes(kernel.name, dtype, width) else ():
                    check(kernel, device, dtype, width, case)
                    done += 1
    print(f"{', '.join(kernel.name for kernel in kernels)}: {done} times as float64 says, torch {torch.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
