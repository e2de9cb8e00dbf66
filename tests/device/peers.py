"""What PyTorch takes for the data movement of one switch, on one device: a line of JSON each.

    python3 tests/device/peers.py T S C RANKS           bf16 [T, S, C], split over T, wanted split over S
    python3 tests/device/peers.py --questions           what run.sh asks of torch's libraries

Times are medians of samples by events, over tensors that alternate so that none is in the device's cache. Exit 77:
torch or a device is missing.
"""
import json
import statistics
import sys

try:
    import torch
except ImportError as error:
    print(f"no torch: {error}")
    sys.exit(77)
if not torch.cuda.is_available():
    print("no device: torch finds none")
    sys.exit(77)

COLD_BYTES = 256 << 20
SAMPLES = 20


def median_ms(call, tensors):
    """Of one call, each with the next tensor."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for x in tensors[:3]:
        call(x)
    torch.cuda.synchronize()
    times = []
    for i in range(SAMPLES):
        begin.record()
        for x in tensors:
            call(x)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / len(tensors))
    return statistics.median(times)


def permute(x):
    """All ranks' parts at once: one pass over the bytes. [R, T/R, R, S/R, C] -> [R, R, T/R, S/R, C]."""
    return x.permute(2, 0, 1, 3, 4).contiguous()


def split_and_cat(x):
    """What engines run around an all-to-all: split by S, made dense, exchanged (here: handed over), cat."""
    sent = [[piece.contiguous() for piece in part.chunk(len(x), 2)] for part in x.flatten(2, 3).unsqueeze(1)]
    return [torch.cat([row[r] for row in sent], 1) for r in range(len(x))]


def copy(x, into):
    into.copy_(x)


def bench(t, s, c, ranks):
    shape = (ranks, t // ranks, ranks, s // ranks, c)
    one = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
    count = max(2, COLD_BYTES // max(1, one.nbytes) + 1)
    tensors = [torch.randn_like(one) for _ in range(min(count, 64))]
    into = torch.empty_like(one)
    ways = {"copy": lambda x: copy(x, into), "permute": permute, "split+cat": split_and_cat,
            "torch.compile of permute": torch.compile(permute)}
    for name, call in ways.items():
        try:
            ms = median_ms(call, tensors)
        except Exception as error:  # a way that this torch cannot go is told, the others are timed
            print(json.dumps({"way": name, "error": str(error).splitlines()[0]}))
            continue
        print(json.dumps({"way": name, "shape": [t, s, c], "ranks": ranks, "median_ms": round(ms, 5),
                          "gb_per_s": round(2 * one.nbytes / ms * 1e-6, 1)}), flush=True)


def questions():
    print(f"6: torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {torch.cuda.nccl.version()}")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    q = torch.randn(1, 16, 1024, 72, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    try:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
        print(f"7: cuDNN {torch.backends.cudnn.version()} runs attention with d = 72, forward and backward")
    except RuntimeError as error:
        print(f"7: cuDNN {torch.backends.cudnn.version()} refuses d = 72: {str(error).splitlines()[0]}")
    x = torch.randn(4097, 1152, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(1152, 3456, device="cuda", dtype=torch.bfloat16)
    whole, other = x @ w, []
    for m in [1, 2, 7, 16, 64, 100, 128, 511, 1024, 2048, 4096]:
        if not torch.equal(x[:m] @ w, whole[:m]):
            other.append(m)
    print(f"8: rows of a matrix product (k 1152, n 3456) have other bits than among 4097 rows at heights {other}")


if sys.argv[1:] == ["--questions"]:
    questions()
elif len(sys.argv) == 5:
    bench(*(int(a) for a in sys.argv[1:]))
else:
    print(__doc__)
    sys.exit(2)
