"""Attention of torch's tensors over a sharded sequence on a GPU: the library's kernels against torch's.

    python3 tests/device/torch_attention.py [--dry]     two ranks, processes of one GPU, and one rank alone

with the package on PYTHONPATH. Each method, dtype and mask by both ways against float64, forward and gradients; then
what a forward and both passes take by either, and which one `kernels="auto"` takes. --dry: in host memory, which shows
that the script works, and no figure. Exit 77: torch or a device is missing.
"""
import subprocess
import sys
import time

LIMIT_S = 100

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"no torch: {error}")
    sys.exit(77)

DRY = "--dry" in sys.argv
DEVICE = "cpu" if DRY else "cuda"
WITHIN = {torch.float32: 3e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}
#: b, s, h, kv, d; causal, lengths of keys
CASES = [((2, 30 if DRY else 300, 6, 2, 64), True, None), ((2, 257, 4, 4, 128), False, [257, 100]),
         ((1, 1, 2, 2, 40), False, None)]
#: b, s, h, d: what is timed
SIZES = [(1, 64, 2, 16)] if DRY else [(1, 512, 8, 64), (1, 4096, 8, 64), (1, 4096, 8, 128), (1, 16384, 8, 128)]


def draw(seed, shape, dtype):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)


def mine(x, comm):
    """This rank's rows."""
    each, more = divmod(x.shape[2], comm.size)
    lo = comm.rank * each + min(comm.rank, more)
    return x[:, :, lo: lo + each + (comm.rank < more)]


def settle():
    if not DRY:
        torch.cuda.synchronize()


def plan_of(comm, method, shape, kernels, **more):
    b, s, h, d = shape
    return comm.attention(f"f32[b={b} s={s} h={h} d={d}] on [sp={comm.size}]: s@sp", method, kernels=kernels, **more)


def wanted_of(q, k, v, d_o, causal, lengths):
    s = q.shape[2]
    seen = torch.ones(q.shape[0], 1, s, s, dtype=torch.bool, device=DEVICE)
    if lengths is not None:
        seen = seen & (torch.arange(s, device=DEVICE) < torch.tensor(lengths, device=DEVICE)[:, None, None, None])
    if causal:
        seen = seen.tril()
    given = [x.double().requires_grad_() for x in (q, k, v)]
    o = F.scaled_dot_product_attention(*given, seen, enable_gqa=q.shape[1] != k.shape[1])
    return [o.detach(), *torch.autograd.grad(o, given, d_o.double())]


def check(comm, method, dtype, case, kernels):
    """The largest difference from float64, of the largest element."""
    import heddle.torch

    (b, s, h, kv, d), causal, lengths = case
    q, d_o = (draw(seed, (b, h, s, d), dtype) for seed in (1, 2))
    k, v = (draw(seed, (b, kv, s, d), dtype) for seed in (3, 4))
    wanted = wanted_of(q, k, v, d_o, causal, lengths)
    plan = plan_of(comm, method, (b, s, h, d), kernels, kv_heads=kv, causal=causal, key_lengths=lengths)
    given = [mine(x, comm).clone().requires_grad_() for x in (q, k, v)]
    o = heddle.torch.attention(*given, plan)
    found = [o.detach(), *torch.autograd.grad(o, given, mine(d_o, comm))]
    settle()
    worst = 0.0
    for name, a, b in zip(("o", "dq", "dk", "dv"), found, (mine(x, comm) for x in wanted)):
        if a.numel():
            error = float((a.double() - b).abs().max() / (1 + b.abs().max()))
            assert error <= WITHIN[dtype], (method, dtype, case, kernels, name, error)
            worst = max(worst, error)
    return worst


def ms(call, comm, times=5):
    """The least of some rounds, of the slowest rank."""
    call()
    found = []
    for _ in range(times):
        settle()
        comm.barrier()
        began = time.perf_counter()
        call()
        settle()
        found.append(time.perf_counter() - began)
    return max(float(said) for said in comm.allgather(f"{min(found) * 1e3:24.9f}".encode()))


def timed(comm, method, dtype, shape):
    import heddle.torch

    b, s, h, d = shape
    q, k, v = (mine(draw(seed, (b, h, s, d), dtype), comm).clone().requires_grad_() for seed in (1, 2, 3))
    said = []
    for kernels in ("torch", "heddle"):
        plan = plan_of(comm, method, shape, kernels)

        def forward():
            with torch.no_grad():
                return heddle.torch.attention(q, k, v, plan)

        def both():
            torch.autograd.grad(heddle.torch.attention(q, k, v, plan).sum(), (q, k, v))

        said.append((ms(forward, comm), ms(both, comm)))
    auto = plan_of(comm, method, shape, "auto")  # the same one for every dtype
    with torch.no_grad():
        heddle.torch.attention(q, k, v, auto)
    heddle.torch.attention(q, k, v, auto)
    chosen = [f"{auto.chosen[key].kernels} ({auto.chosen[key].why})" if key in auto.chosen else "nothing"
              for key in ((dtype, False), (dtype, True))]
    (torch_f, torch_b), (own_f, own_b) = said
    if comm.rank == 0:
        print(f"{comm.size} ranks, {method}, {str(dtype)[6:]}[b={b} s={s} h={h} d={d}]: forward {torch_f:.3f} ms by "
              f"torch, {own_f:.3f} by heddle ({torch_f / own_f:.2f} times as fast); both passes {torch_b:.3f} and "
              f"{own_b:.3f} ({torch_b / own_b:.2f}); auto takes {chosen[0]}, {chosen[1]}", flush=True)


def run():
    import heddle

    with heddle.Comm.open(deadline_s=LIMIT_S / 2) as comm:
        if DRY:
            torch.set_num_threads(1)
        else:
            comm.attach_device("cuda:current", "peer")
        errors = []
        for method in ("ring", "gather-kv"):
            for dtype in WITHIN:
                for case in CASES:
                    for kernels in ("torch", "heddle"):
                        if kernels == "torch" and method == "gather-kv" and case[2] is not None:
                            continue  # torch's own knows no lengths of keys
                        if DRY and dtype is torch.float16 and method == "gather-kv" and case[2] is not None:
                            continue
                        errors.append(check(comm, method, dtype, case, kernels))
        if comm.rank == 0:
            print(f"{comm.size} ranks: {len(errors)} times as float64 says, the largest difference {max(errors):.1e}",
                  flush=True)
        for method in ("ring", "gather-kv"):
            for dtype in (torch.bfloat16, torch.float32):
                for shape in SIZES if dtype is torch.bfloat16 else SIZES[:2]:
                    timed(comm, method, dtype, shape)
    return 0


def main():
    if not DRY and not torch.cuda.is_available():
        print("no device: torch finds none")
        return 77
    if "--rank" in sys.argv:
        return run()
    for ranks in (2, 1):
        done = subprocess.run([sys.executable, "-m", "heddle", "-n", str(ranks), __file__, *sys.argv[1:], "--rank"],
                              timeout=LIMIT_S)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
