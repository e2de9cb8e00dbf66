"""How heddle goes with the rest of a program of PyTorch's on a GPU.

    python3 tests/device/torch_ways.py beside [--dry]     a push beside matrix products: what each costs the other
    python3 tests/device/torch_ways.py graphs [--dry]     switches in torch.cuda.graph and mode="reduce-overhead"
    python3 tests/device/torch_ways.py latte [--dry]      Latte of diffusers on two ranks against one

with the package on PYTHONPATH. --dry: in host memory, which shows that the script works and no figure. Exit 77: torch,
diffusers or a device is missing.
"""
import subprocess
import sys
import time

RANKS, LIMIT_S = 2, 100

try:
    import torch
except ImportError as error:
    print(f"no torch: {error}")
    sys.exit(77)

DRY = "--dry" in sys.argv
DEVICE, SPACE = ("cpu", "host") if DRY else ("cuda", "device")


def expect(condition, *facts):
    if not condition:
        raise AssertionError(facts)


def opened():
    import heddle

    comm = heddle.Comm.open(deadline_s=LIMIT_S / 2)
    if not DRY:
        comm.attach_device("cuda:current", "peer")
    return comm


def settle():
    if not DRY:
        torch.cuda.synchronize()


# --- a push beside matrix products


def timed(works):
    """ms a call of each, all at once: [(stream, call, calls)]. In host memory one after another."""
    if DRY:
        out = []
        for _, call, calls in works:
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            out.append((time.perf_counter() - begin) * 1e3 / calls)
        return out
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in works]
    settle()
    for (stream, _, _), (begin, _) in zip(works, marks):
        begin.record(stream)
    for i in range(max(calls for _, _, calls in works)):
        for stream, call, calls in works:
            if i < calls:
                with torch.cuda.stream(stream):
                    call()
    for (stream, _, _), (_, end) in zip(works, marks):
        end.record(stream)
    settle()
    return [begin.elapsed_time(end) / calls for (begin, end), (_, _, calls) in zip(marks, works)]


def beside():
    """One rank: its push is a copy that permutes, by the kernels of the wire."""
    import heddle.torch

    n = 64 if DRY else 8192
    a = torch.randn(n, n, device=DEVICE).to(torch.bfloat16)
    with opened() as comm:
        rows = 16 if DRY else 1600
        plan = comm.reshard(f"bf16[t=64 s={rows} c=1152] on [sp=1]: t@sp -> s@sp as s,t,c", space=SPACE)
        x = torch.randn(plan.src_shape, device=DEVICE).to(torch.bfloat16)
        streams = [None, None] if DRY else [torch.cuda.Stream() for _ in range(2)]
        products = (streams[0], lambda: a @ a, 4 if DRY else 50)
        pushes = (streams[1], lambda: heddle.torch.switch(x, plan), 4 if DRY else 400)
        timed([products, pushes])
        (product,), (push,) = timed([products]), timed([pushes])
        both = timed([products, pushes])
        print(f"a product {product:.3f} ms alone, {both[0]:.3f} beside pushes ({both[0] / product:.2f} times); "
              f"a push {push:.3f} ms alone, {both[1]:.3f} beside products ({both[1] / push:.2f} times)", flush=True)


# --- graphs


def per_call_us(call, times):
    call()
    settle()
    begin = time.perf_counter()
    for _ in range(times):
        call()
    settle()
    return (time.perf_counter() - begin) * 1e6 / times


def graphs_of(comm):
    import heddle.torch

    plan = comm.reshard(f"f32[t=16 s=24 c=16] on [sp={comm.size}]: t@sp -> s@sp", space=SPACE)
    whole = torch.arange(16 * 24 * 16, device=DEVICE, dtype=torch.float32).reshape(16, 24, 16)
    x = whole.chunk(comm.size, 0)[comm.rank].contiguous()

    def step(part):
        return heddle.torch.switch(part * 2, plan) + 1

    def check(y, grown, what):
        settle()
        expect(torch.equal(y, ((whole + grown) * 2 + 1).chunk(comm.size, 1)[comm.rank]), what)

    check(step(x), 0, "eager")
    eager = per_call_us(lambda: step(x), 20)
    said = f"eager {eager:.1f} us a step"
    if not DRY:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = step(x)
        for grown in (1, 2):
            x += 1
            graph.replay()
            check(y, grown, "torch.cuda.graph")
        said += f", torch.cuda.graph {per_call_us(graph.replay, 20):.1f}"
        x -= 2
    compiled = torch.compile(step, backend="eager") if DRY else torch.compile(step, mode="reduce-overhead")
    for grown in range(4):
        check(compiled(x + grown), grown, "torch.compile")
    said += f", {'compile' if DRY else 'reduce-overhead'} {per_call_us(lambda: compiled(x), 20):.1f}"
    comm.barrier()
    return said


def graphs():
    with opened() as comm:
        if DRY:
            said = graphs_of(comm)
        else:
            with torch.cuda.stream(torch.cuda.Stream()):
                said = graphs_of(comm)
        if comm.rank == 0:
            print(f"{comm.size} ranks, torch {torch.__version__}: {said}", flush=True)


# --- a model


def latte():
    try:
        from diffusers import LatteTransformer3DModel
    except ImportError as error:
        print(f"no diffusers: {error}")
        sys.exit(77)
    import heddle.diffusers

    torch.manual_seed(1)
    heads, width, side, layers, frames = (2, 8, 4, 1, 5) if DRY else (16, 72, 32, 4, 17)
    model = LatteTransformer3DModel(
        num_attention_heads=heads, attention_head_dim=width, in_channels=4, out_channels=8, num_layers=layers,
        cross_attention_dim=heads * width, sample_size=side, patch_size=2, activation_fn="gelu-approximate",
        norm_type="ada_norm_single", caption_channels=32, video_length=frames, attention_bias=True).eval().to(DEVICE)
    x = torch.randn(1, 4, frames, side, side, device=DEVICE)
    inputs = dict(hidden_states=x, timestep=torch.tensor([500], device=DEVICE),
                  encoder_hidden_states=torch.randn(1, 9, 32, device=DEVICE), return_dict=False)

    def run():
        with torch.no_grad():
            y = model(**inputs)[0]
        settle()
        return y

    with opened() as comm:
        one = run()
        alone = per_call_us(run, 3) / 1e3
        comm.barrier()
        handle = heddle.diffusers.parallelize(model, comm)
        y = run()
        error = float((y - one).abs().max())
        together = per_call_us(run, 3) / 1e3
        handle.remove()
        if comm.rank == 0:
            print(f"{comm.size} ranks: a pass {together:.2f} ms, one rank {alone:.2f} ms (both at once on one GPU); "
                  f"the largest difference {error:.1e} of {float(one.abs().max()):.1e}", flush=True)
        expect(error <= 1e-3 * float(one.abs().max()), error)


# --- as a program


def main():
    ways = {"beside": (beside, 1), "graphs": (graphs, RANKS), "latte": (latte, RANKS)}
    if len(sys.argv) < 2 or sys.argv[1] not in ways:
        print(__doc__)
        return 2
    way, ranks = ways[sys.argv[1]]
    if "--rank" in sys.argv or ranks == 1:
        if not DRY and not torch.cuda.is_available():
            print("no device: torch finds none")
            return 77
        return way()
    return subprocess.run([sys.executable, "-m", "heddle", "-n", str(ranks), __file__, *sys.argv[1:], "--rank"],
                          timeout=LIMIT_S).returncode


if __name__ == "__main__":
    sys.exit(main())
