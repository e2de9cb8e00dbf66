"""What stages of blocks cost on a device, beside the device's own copy and PyTorch, in one process.

    python3 tests/device/blocks.py host | rows | tail | products | temporal | spatial | linear | pair |
    compiled    by HEDDLE_PROBE

A line for each thing measured; a ratio above 1 means that heddle is faster. What both compute is compared first. The
widths are STDiT3's. PROBE_EMULATED=1: small, on the emulated device (tests/device/probe.py). Exit 77: torch or a device
is missing.
"""
import ctypes
import sys
import time

from probe import EMULATED, DEVICE, NUMBERS, STREAM, Probe, There, alternating, by_turns, check, host_us, settle, torch

import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BF16, F32 = NUMBERS[torch.bfloat16], NUMBERS[torch.float32]
if EMULATED:
    B, T, S, HEADS, D, TEXT = 1, 3, 5, 2, 16, 4
    HEIGHTS, TEMPORAL, SPATIAL, LATENCY = (5, 9), ((3, 5),), ((7, 16),), (2, 3)
else:
    B, T, S, HEADS, D, TEXT = 2, 32, 3600, 16, 72, 300
    HEIGHTS = (257, 1024, 4096, 65536)
    TEMPORAL = ((16, 7200), (32, 3600), (64, 1800), (128, 900))  # T, S
    SPATIAL = ((1024, 72), (1024, 128), (3600, 72), (3600, 128), (16384, 72))  # S, width of a head
    LATENCY = (16, 1024)
C, MLP = HEADS * D, 4 * HEADS * D
LAYERS = {"qkv": (3 * C, C), "proj": (C, C), "fc1": (MLP, C), "fc2": (C, MLP), "kv": (2 * C, C)}  # n, k
PARTS = 4096  # of sums for the weights of heads' norms, at most
WITHIN = 0.02  # of what is largest: a few roundings to bf16


def random(*shape, dtype=torch.bfloat16, scale=1.0):
    return (torch.randn(*shape, device=DEVICE, dtype=torch.float32) * scale).to(dtype)


def tell(what, *facts):
    print(f"{what:34s} {', '.join(facts)}", flush=True)


# --- rows


def modulated(x, vector, first):
    """x [b, rows, c], by rows first and first + 1 of vector [b, 6, c]."""
    normed = F.layer_norm(x.float(), x.shape[-1:], eps=1e-6)
    return (normed * (1 + vector[:, first + 1, None]) + vector[:, first, None]).to(x.dtype)


def turned(x, weights, turns):
    """q and k of rows [b t s], normed with weights [2, D], turned by the angles of t, [T, D / 2] of cos and sin."""
    heads = x.float().reshape(-1, T, S, 2, HEADS, D)
    heads = heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + 1e-6) * weights.view(2, 1, D)
    cos, sin = turns.view(T, 1, 1, 1, D // 2, 2).unbind(-1)
    even, odd = heads.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).reshape(x.shape)


def rows(probe):
    """Bytes a second, as a part of those of the device's copy."""
    count, each = B * T * S, T * S
    x, vector = random(B, each, C), random(B, 6, C, dtype=torch.float32, scale=0.3)
    wide, y = random(count, 3 * C), random(count, C, dtype=torch.float32)
    turns = torch.randn(T, D, device=DEVICE, dtype=torch.float32)
    ours = {name: There(probe, tensor) for name, tensor in dict(
        x=x.clone(), to=torch.zeros_like(x), vector=vector, wide=wide.clone(), y=y, dy=random(count, C), turns=turns,
        weights=1 + random(2, D, dtype=torch.float32, scale=0.1), dwide=random(count, 3 * C),
        sums=torch.zeros(2, D, device=DEVICE), parts=torch.zeros(PARTS, 2, D, device=DEVICE),
        hidden=random(count, MLP), stats=torch.zeros(count, 2, device=DEVICE)).items()}
    at = ours.__getitem__
    shape = (BF16, count, C, each)
    probe("norm_modulate", *shape, at("to"), at("x"), at("vector"), STREAM)
    check("norm_modulate", at("to").read(), modulated(x, vector, 0), WITHIN)
    probe("gate_residual", *shape, at("x"), at("y"), F32, at("vector"), STREAM)
    check("gate_residual", at("x").read(), x.float() + vector[:, 2, None] * y.view(x.shape), WITHIN)
    q_and_k = (BF16, count, HEADS, D, S, T)
    probe("rotate", *q_and_k, at("wide"), at("weights"), at("turns"), STREAM)
    check("norm_rotate", at("wide").read()[:, :2 * C], turned(wide[:, :2 * C], at("weights").read(), turns), WITHIN)
    size = x.numel() * 2
    works = {  # bytes read and written, in sizes
        "norm_modulate": (2, lambda i: probe("norm_modulate", *shape, at("to"), at("x"), at("vector"), STREAM)),
        "gate_residual": (4, lambda i: probe("gate_residual", *shape, at("x"), at("y"), F32, at("vector"), STREAM)),
        "rotate": (4, lambda i: probe("rotate", *q_and_k, at("wide"), None, at("turns"), STREAM)),
        "norm of heads": (4, lambda i: probe("rotate", *q_and_k, at("wide"), at("weights"), None, STREAM)),
        "norm of heads, rotate": (4, lambda i: probe("rotate", *q_and_k, at("wide"), at("weights"), at("turns"),
                                                     STREAM)),
        "norm of heads, rotate, back": (6, lambda i: probe(
            "rotate_back", *q_and_k, at("dwide"), at("wide"), at("weights"), at("turns"), at("sums"), at("parts"),
            at("parts").nbytes, STREAM)),
        "gelu": (8, lambda i: probe("gelu", BF16, count * MLP, at("hidden"), at("hidden"), STREAM)),
        "norm_back": (4, lambda i: probe("norm_back", *shape, at("to"), at("x"), at("dy"), at("vector"), at("stats"),
                                         STREAM)),
    }
    copy = (2, lambda i: probe("copy", at("to"), at("x"), size, STREAM))
    found = by_turns(copy=copy[1], **{name: work for name, (_, work) in works.items()})
    speed = {name: sizes * size / found[name] for name, (sizes, _) in dict(works, copy=copy).items()}
    for name in works:
        tell(f"rows: {name}", f"{speed[name] / speed['copy']:.3f} of the copy's {speed['copy'] / 1e9:.2f} TB/s",
             f"{found[name]:.3f} ms")


def tail(probe):
    """Gate and residual with the switch behind it: one after the other, and by one kernel; ranks share the device."""
    rounds, calls = (2, 1) if EMULATED else (9, 10)
    for ranks in (2,) if EMULATED else (2, 4):
        for b, t, s in ((1, 4, 6),) if EMULATED else ((B, T, S), (2, 32, 1590), (1, *LATENCY)):
            ms = (ctypes.c_double * (2 * rounds))()
            line = f"bf16[b={b} t={t} s={s} c={C}] on [sp={ranks}]: t@sp -> s@sp"
            probe("tail", ms, line.encode(), ranks, rounds, calls, b"cuda:0")
            apart, fused = sorted(ms[:rounds]), sorted(ms[rounds:])
            middle = rounds // 2
            tell(f"tail: {ranks} ranks, b={b} t={t} s={s}", f"fused {apart[middle] / fused[middle]:.3f} times",
                 f"by minima {apart[0] / fused[0]:.3f}", f"{apart[middle]:.4f} and {fused[middle]:.4f} ms")


# --- the host


def host(probe):
    """us of a thread to enqueue calls of CUDA and cuBLAS, and stages."""
    calls = ("context", "launch", "product", "event record", "event wait", "is it captured", "event query",
             "whose memory")
    kinds, ways = ("attention", "cross", "mlp", "linear"), ("forward", "with a tape", "backward")
    us = (ctypes.c_double * (len(calls) + len(kinds) * len(ways) + 2))()
    rounds, each = (1, 1) if EMULATED else (21, 20)
    probe("host", us, HEADS, D, TEXT, ctypes.c_int(rounds), ctypes.c_int(each), b"cuda:0")
    tell("host: us a call", *(f"{name} {us[i]:.2f}" for i, name in enumerate(calls)))
    for i, kind in enumerate(kinds):
        at = len(calls) + i * len(ways)
        tell(f"host: us a stage, {kind}", *(f"{way} {us[at + j]:.1f}" for j, way in enumerate(ways)))
    tell("host: us a stage in a graph", f"{us[len(us) - 2]:.2f} of four",
         f"by heddle_comm_replay {us[len(us) - 1]:.2f}")


# --- products


def product(probe, is_own, kind, dst, n, k, has_bias):
    made = probe.made("product", is_own, kind, BF16, dst, n, k, has_bias)
    return lambda to, src, other, bias, count: probe("product_run", made, to, src, other, bias, count, STREAM), made


def forward_of(probe, layer):
    n, k = LAYERS[layer]
    weight, bias = random(n, k, scale=k ** -0.5), random(n)
    bias32 = There(probe, bias.float())
    placed = There(probe, weight), There(probe, bias)
    ways = {"pinned": product(probe, 0, 0, BF16, n, k, 1), "own": product(probe, 1, 0, BF16, n, k, 1),
            "to f32": product(probe, 0, 0, F32, n, k, 1)}
    tell(f"products: {layer} [{n}][{k}]", probe.text("product_kernel", ways["pinned"][1]))
    for height in HEIGHTS:
        sets = alternating(height * (n + k) * 2)
        src = [random(height, k) for _ in range(sets)]
        froms = [There(probe, x) for x in src]
        tos = [There(probe, torch.zeros(height, n, device=DEVICE, dtype=x.dtype)) for x in src]
        to32 = There(probe, torch.zeros(height, n, device=DEVICE))

        def by(name, i):
            to, its_bias = (to32, bias32) if name == "to f32" else (tos[i % sets], placed[1])
            ways[name][0](to, froms[i % sets], placed[0], its_bias, height)

        wanted = F.linear(src[0], weight, bias)
        for name in ways:
            by(name, 0)
            check(f"{name} {layer} {height}", (to32 if name == "to f32" else tos[0]).read(), wanted, WITHIN)
        found = by_turns(torch=lambda i: F.linear(src[i % sets], weight, bias),
                         **{name: lambda i, name=name: by(name, i) for name in ways})
        ratios = [f"{name} {found['torch'] / found[name]:.3f}" for name in ways]
        tell(f"products: {layer}, {height} rows", *ratios, f"times torch's {found['torch']:.4f} ms",
             f"pinned {2e-9 * height * n * k / found['pinned']:.0f} TFLOP/s")


def gradients_of(probe, layer, height):
    """Of what the layer was given, and of its weight."""
    n, k = LAYERS[layer]
    weight, dy, x = random(n, k, scale=k ** -0.5), random(height, n), random(height, k)
    w, g, s = (There(probe, t) for t in (weight, dy, x))
    dx, dw = (There(probe, torch.zeros(*of, device=DEVICE, dtype=kind))
              for of, kind in (((height, k), torch.bfloat16), ((n, k), torch.float32)))
    back, outer = product(probe, 0, 1, BF16, n, k, 0)[0], product(probe, 0, 2, F32, n, k, 0)[0]
    back(dx, g, w, None, height)
    outer(dw, g, s, None, height)
    check(f"back {layer}", dx.read(), dy @ weight, WITHIN)
    check(f"outer {layer}", dw.read(), dy.t() @ x, WITHIN)
    found = by_turns(back=lambda i: back(dx, g, w, None, height), outer=lambda i: outer(dw, g, s, None, height),
                     torch_back=lambda i: dy @ weight, torch_outer=lambda i: dy.t() @ x)
    tell(f"products: {layer}, gradients, {height}",
         *(f"{name} {found['torch_' + name] / found[name]:.3f} times torch's {found['torch_' + name]:.4f} ms"
           for name in ("back", "outer")))


def products(probe):
    tell("products: by", probe.text("products"))
    for layer in LAYERS:
        forward_of(probe, layer)
    for layer in ("qkv", "fc1", "fc2"):
        gradients_of(probe, layer, HEIGHTS[-1])


# --- attention


def parts_of(qkv):
    """q, k and v of [outer, n, inner, 3, heads, d], as torch's attention takes them: [outer inner, heads, n, d]."""
    outer, n, inner, _, heads, d = qkv.shape
    return qkv.permute(3, 0, 2, 4, 1, 5).reshape(3, outer * inner, heads, n, d).unbind(0)


def put_back(o, outer, inner):
    """[outer inner, heads, n, d] to [outer, n, inner, heads, d]."""
    _, heads, n, d = o.shape
    return o.view(outer, inner, heads, n, d).permute(0, 3, 1, 2, 4).contiguous()


def attention(probe, what, outer, inner, n, heads, d, by_flash=False):
    qkv = random(outer, n, inner, 3, heads, d)
    o = There(probe, torch.zeros(outer, n, inner, heads, d, device=DEVICE, dtype=torch.bfloat16))
    placed, stats = There(probe, qkv), There(probe, torch.zeros(outer, inner, heads, n, 2, device=DEVICE))
    delta = There(probe, torch.zeros(outer, inner, heads, n, device=DEVICE))
    d_o, dqkv = random(outer, n, inner, heads, d), There(probe, torch.zeros_like(qkv))
    given = There(probe, d_o)
    shape = BF16, outer, inner, n, heads, d
    flat = [x.detach().requires_grad_() for x in parts_of(qkv)]
    leaf = qkv.clone().requires_grad_()

    def ours(i):
        probe("attention", *shape, placed, o, stats, STREAM)

    def ours_back(i):
        probe("attention_back", *shape, placed, o, stats, given, dqkv, delta, STREAM)

    def theirs(x):
        return put_back(F.scaled_dot_product_attention(*parts_of(x)), outer, inner)

    ours(0)
    ours_back(0)
    kept, flat_o = theirs(leaf), F.scaled_dot_product_attention(*flat)
    flat_d_o = parts_of(d_o[:, :, :, None].expand(-1, -1, -1, 3, -1, -1))[0].contiguous()
    check(f"{what}: o", o.read(), kept.detach(), WITHIN)
    check(f"{what}: dqkv", dqkv.read(), torch.autograd.grad(kept, leaf, d_o, retain_graph=True)[0], WITHIN)

    def forward(call):
        def run(i):
            with torch.no_grad():
                call()
        return run

    def flash():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(*flat)

    calls = dict(ours=ours, permuted=forward(lambda: theirs(qkv)),
                 bare=forward(lambda: F.scaled_dot_product_attention(*flat)), ours_back=ours_back,
                 permuted_back=lambda i: torch.autograd.grad(kept, leaf, d_o, retain_graph=True),
                 bare_back=lambda i: torch.autograd.grad(flat_o, flat, flat_d_o, retain_graph=True))
    if by_flash:
        flash_o = flash()
        calls.update(flash=forward(flash),
                     flash_back=lambda i: torch.autograd.grad(flash_o, flat, flat_d_o, retain_graph=True))
    found = by_turns(**calls)
    flops = 4e-9 * outer * inner * heads * n * n * d
    for way, back, times in (("forward", "", 1), ("backward", "_back", 2.5)):
        mine = found["ours" + back]
        tell(f"{what}, {way}", f"{found['permuted' + back] / mine:.2f} times torch with its permutations",
             f"{found['bare' + back] / mine:.2f} times its attention alone",
             *([f"{found['flash' + back] / mine:.2f} times its FlashAttention 2"] if by_flash else []),
             f"{mine:.3f} ms", f"{times * flops / mine:.0f} TFLOP/s")


def temporal(probe):
    for t, s in TEMPORAL:
        attention(probe, f"temporal: T {t}, S {s}", B, s, t, HEADS, D)


def spatial(probe):
    for s, d in SPATIAL:
        frames = max(1, B * T * S // (2 * s))
        attention(probe, f"spatial: S {s}, d {d}", frames, 1, s, HEADS, d, by_flash=not EMULATED)


# --- linear attention


def in_chunks(q, k, v, decay, chunk):
    """Linear attention of [b, n, heads, d] with decay of each head, causal, as torch's products make it from chunks."""
    b, n, heads, d = q.shape
    q, k, v = (x.view(b, -1, chunk, heads, d).permute(0, 3, 1, 2, 4) for x in (q, k, v))  # [b, heads, chunks, rows, d]
    power = decay[:, None] ** torch.arange(chunk + 1, device=DEVICE)  # [heads, chunk + 1]
    rows, chunks = torch.arange(chunk, device=DEVICE), torch.arange(n // chunk, device=DEVICE)
    inside = (power[:, (rows[:, None] - rows).clamp(min=0)] * (rows[:, None] >= rows)).to(q.dtype)
    between = power[:, chunk, None, None] ** (chunks[:, None] - 1 - chunks).clamp(min=0) * (chunks[:, None] > chunks)
    parts = (k * power[:, None, :chunk].flip(-1)[..., None].to(k.dtype)).transpose(-1, -2) @ v
    states = (between.to(q.dtype) @ parts.flatten(-2)).view(parts.shape)  # in front of each chunk
    o = (q @ k.transpose(-1, -2) * inside[:, None]) @ v
    o = o + (q * power[:, None, 1:, None].to(q.dtype)) @ states
    return o.permute(0, 2, 3, 1, 4).reshape(b, n, heads, d)


def linear_of(probe, n, heads, d, dtype):
    import ctypes

    decay = torch.exp2(-torch.arange(1, heads + 1).double() * 8 / heads).neg().exp()  # as the slopes of heddle's
    made = probe.made("linear", NUMBERS[dtype], 1, n, heads, d, (ctypes.c_double * heads)(*decay.tolist()), 0)
    q, k, v, d_o = (random(1, n, heads, d, dtype=dtype, scale=d ** -0.25) for _ in range(4))
    given = [There(probe, x) for x in (q, k, v, d_o)]
    o, dq, dk, dv = (There(probe, torch.zeros_like(q)) for _ in range(4))
    leaves, chunk = [x.clone().requires_grad_() for x in (q, k, v)], 8 if EMULATED else 256
    decay = decay.to(DEVICE, torch.float32)

    def ours(i):
        probe("linear_forward", made, *given[:3], o, STREAM)

    def ours_back(i):
        probe("linear_backward", made, *given, dq, dk, dv, STREAM)

    def theirs(i):
        with torch.no_grad():
            return in_chunks(q, k, v, decay, chunk)

    ours(0)
    ours_back(0)
    exact = [(x.double() if EMULATED else x.float()).requires_grad_() for x in (q, k, v)]
    wanted = in_chunks(*exact, decay, chunk)
    gradients = torch.autograd.grad(wanted, exact, d_o.to(wanted.dtype))
    for name, got, it in zip(("dq", "dk", "dv"), (dq, dk, dv), gradients):
        check(f"linear: {name}", got.read(), it, 2 * WITHIN)
    check("linear: o", o.read(), wanted.detach(), 2 * WITHIN)
    kept = in_chunks(*leaves, decay, chunk)
    found = by_turns(ours=ours, torch=theirs, ours_back=ours_back,
                     torch_back=lambda i: torch.autograd.grad(kept, leaves, d_o, retain_graph=True))
    flops = 1e-9 * n * heads * (4 * d * d + 2 * 64 * d)  # in chunks of 64, half of each square
    for way, back, times in (("forward", "", 1), ("backward", "_back", 3)):
        mine = found["ours" + back]
        tell(f"linear: {n} x {heads} x {d} {str(dtype)[6:]}, {way}", f"{mine:.3f} ms",
             f"{times * flops / mine:.0f} TFLOP/s",
             f"{found['torch' + back] / mine:.2f} times torch in chunks, {found['torch' + back]:.3f} ms")
    probe.library.probe_linear_end(made)


def linear(probe):
    for shape in ((72, 2, 16), (64, 1, 72)) if EMULATED else ((32768, 16, 128), (32768, 16, 64), (4096, 16, 128)):
        linear_of(probe, *shape, torch.bfloat16)
    linear_of(probe, *((72, 2, 12) if EMULATED else (32768, 16, 128)), torch.float32)


# --- stages


class Stage:
    """A block of heddle's, and the same of torch's functions, with its weights."""

    KINDS = {"attention": 0, "cross": 1, "mlp": 2}

    def __init__(self, probe, kind, extent, mixed, seed, before, trains):
        self.probe, self.kind, self.mixed = probe, kind, mixed
        self.block = probe.made("block", self.KINDS[kind], BF16, extent, mixed, HEADS, MLP, TEXT, int(mixed == 1),
                                seed, before.block if before else None, trains)
        b, t, s, c = extent
        shapes = {"attention": ((3 * c, c), (3 * c,), (c, c), (c,), (D,), (D,)),
                  "mlp": ((MLP, c), (MLP,), (c, MLP), (c,)),
                  "cross": ((c, c), (c,), (c, c), (c,), (2 * c, c), (2 * c,))}[kind]
        self.weights = [self.weight(i, shape).to(DEVICE, torch.bfloat16) for i, shape in enumerate(shapes)]
        angle = torch.arange(t)[:, None] * 10000.0 ** (-torch.arange(0, D, 2) / D)
        self.cos, self.sin = (f(angle).to(DEVICE) for f in (torch.cos, torch.sin))

    def weight(self, index, shape):
        import ctypes

        data, elems = ctypes.POINTER(ctypes.c_float)(), ctypes.c_int64()
        self.probe("block_weights", ctypes.byref(data), ctypes.byref(elems), self.block, index)
        return torch.tensor(data[:elems.value]).view(shape)

    def ours(self, x, vector, text, keeps=0):
        self.probe("block_forward", self.block, x, vector, text, keeps, STREAM)

    def ours_back(self, dx, vector, text):
        self.probe("block_backward", self.block, dx, vector, text, STREAM)

    def rotated(self, x):
        """x [..., T, d]"""
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack((even * self.cos - odd * self.sin, even * self.sin + odd * self.cos), -1)
        return turned.flatten(-2).to(x.dtype)

    def mixed_by_torch(self, x):
        b, t, s, c = x.shape
        qkv = F.linear(x, *self.weights[:2])
        outer, n, inner = (b, t, s) if self.mixed == 1 else (b * t, s, 1)
        q, k, v = parts_of(qkv.view(outer, n, inner, 3, HEADS, D))
        q, k = (F.rms_norm(x, (D,), weight, eps=1e-6) for x, weight in zip((q, k), self.weights[4:]))
        if self.mixed == 1:
            q, k = self.rotated(q), self.rotated(k)
        o = put_back(F.scaled_dot_product_attention(q, k, v), outer, inner)
        return F.linear(o.view(b, t, s, c), *self.weights[2:4])

    def theirs(self, x, vector, text):
        b, t, s, c = x.shape
        first = 3 if self.kind == "mlp" else 0
        flat = x.view(b, t * s, c)
        if self.kind == "cross":
            q = F.linear(flat, *self.weights[:2]).view(b, -1, HEADS, D).transpose(1, 2)
            kv = F.linear(text.to(x.dtype), *self.weights[4:]).view(b, -1, 2, HEADS, D).permute(2, 0, 3, 1, 4)
            o = F.scaled_dot_product_attention(q, *kv.unbind(0)).transpose(1, 2).reshape(b, -1, c)
            return x + F.linear(o, *self.weights[2:4]).view(x.shape)
        normed = F.layer_norm(flat, (c,), eps=1e-6)
        normed = torch.addcmul(vector[:, first, None], normed, 1 + vector[:, first + 1, None])
        if self.kind == "mlp":
            hidden = F.gelu(F.linear(normed, *self.weights[:2]), approximate="tanh")
            change = F.linear(hidden, *self.weights[2:4])
        else:
            change = self.mixed_by_torch(normed.view(x.shape)).view(flat.shape)
        return torch.addcmul(flat, vector[:, first + 2, None], change).view(x.shape)


def stages_of(probe, extent, trains):
    import ctypes

    made = []
    for i, (kind, mixed) in enumerate((("attention", 2), ("cross", 2), ("mlp", 2), ("attention", 1), ("cross", 1),
                                       ("mlp", 1))):
        made.append(Stage(probe, kind, (ctypes.c_int64 * 4)(*extent), mixed, i + 1, made[0] if made else None, trains))
    return made


def graph_of(call):
    call(0)
    settle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        call(0)
    return lambda i: graph.replay()


def given_to(probe, extent):
    """x, the vector as a model in bf16 has it and the text; and the three as heddle takes them."""
    b, _, _, c = extent
    x, vector, text = random(*extent), random(b, 6, c, dtype=torch.float32, scale=0.3), random(b, TEXT, c).float()
    return x, vector.to(x.dtype), text, [There(probe, y) for y in (x.clone(), vector, text)]


def pair_of(probe, name, extent, trains):
    stages = stages_of(probe, extent, trains)
    x, narrow, text, (mine, its_vector, its_text) = given_to(probe, extent)

    def ours(i, keeps=0):
        for stage in stages:
            stage.ours(mine, its_vector, its_text, keeps)

    def theirs(i, y=x):
        with torch.no_grad():
            for stage in stages:
                y = stage.theirs(y, narrow, text)
        return y

    ours(0)
    check(f"pair {name}", mine.read(), theirs(0), 2 * WITHIN)
    calls = dict(ours=ours, torch=theirs)
    if not EMULATED:
        calls.update(ours_graph=graph_of(ours), torch_graph=graph_of(theirs))
    found = by_turns(**calls)
    tell(f"pair: {name}, forward", f"{found['torch'] / found['ours']:.3f} times torch's {found['torch']:.3f} ms",
         *([] if EMULATED else [f"by graphs {found['torch_graph'] / found['ours_graph']:.3f} times "
                                f"{found['torch_graph']:.3f} ms"]))
    for stage in stages[:3]:
        enqueue = host_us(lambda i: stage.ours(mine, its_vector, its_text), 1 if EMULATED else 20)
        cost = by_turns(ours=lambda i: stage.ours(mine, its_vector, its_text),
                        torch=lambda i: stage.theirs(x, narrow, text))
        tell(f"pair: {name}, {stage.kind}", f"{cost['torch'] / cost['ours']:.3f} times torch's {cost['torch']:.3f} ms",
             f"{enqueue:.1f} us of the host to enqueue it")
    if trains:
        both_ways(probe, name, stages, x, mine, (its_vector, its_text), narrow, text)
    for stage in stages:
        probe.library.probe_block_end(stage.block)


def compiled_of(probe, name, extent, trains):
    """The pair beside torch.compile's of the same; what it takes to compile is told, and not counted."""
    stages = stages_of(probe, extent, trains)
    x, narrow, text, (mine, *given) = given_to(probe, extent)

    def all_of(y, narrow, text):
        for stage in stages:
            y = stage.theirs(y, narrow, text)
        return y

    compiled = torch.compile(all_of)
    if trains:
        both_ways(probe, f"{name}, compiled", stages, x, mine, given, narrow, text, compiled)
    with torch.no_grad():
        begin = time.perf_counter()
        theirs = compiled(x, narrow, text)
        settle()
        took_s = time.perf_counter() - begin
        mine.refill(x)
        for stage in stages:
            stage.ours(mine, *given)
        check(f"compiled {name}", mine.read(), theirs, 2 * WITHIN)

        def ours(i):
            for stage in stages:
                stage.ours(mine, *given)

        def torchs(i):
            with torch.no_grad():
                compiled(x, narrow, text)

        found = by_turns(ours=ours, torch=torchs, ours_graph=graph_of(ours), torch_graph=graph_of(torchs))
    tell(f"compiled: {name}, forward",
         f"{found['torch'] / found['ours']:.3f} times torch.compile's {found['torch']:.3f} ms",
         f"by graphs {found['torch_graph'] / found['ours_graph']:.3f} times {found['torch_graph']:.3f} ms",
         f"compiled in {took_s:.0f} s")
    for stage in stages:
        probe.library.probe_block_end(stage.block)


def both_ways(probe, name, stages, x, mine, given, narrow, text, forward=None):
    gradient, weights = random(*x.shape), [w for stage in stages for w in stage.weights]
    dx = There(probe, gradient.clone())
    for weight in weights:
        weight.requires_grad_()

    def ours(i):
        for stage in stages:
            stage.ours(mine, *given, 1)
        for stage in reversed(stages):
            stage.ours_back(dx, *given)

    def theirs(i):
        y = leaf = x.detach().requires_grad_()
        if forward:
            y = forward(y, narrow, text)
        for stage in stages if not forward else ():
            y = stage.theirs(y, narrow, text)
        return torch.autograd.grad(y, [leaf, *weights], gradient)[0]

    mine.refill(x)
    dx.refill(gradient)
    ours(0)
    check(f"pair {name}: dx", dx.read(), theirs(0), 3 * WITHIN)
    found = by_turns(ours=ours, torch=theirs)
    tell(f"pair: {name}, forward and back",
         f"{found['torch'] / found['ours']:.3f} times torch's {found['torch']:.3f} ms")


def pair(probe):
    pair_of(probe, "small", (1, *LATENCY, C), 1)
    if not EMULATED:
        pair_of(probe, "large", (B, T, S, C), 0)


def compiled(probe):
    if EMULATED:
        print("not on the emulated device: its ratio would be nothing, and a compiler has much to do")
        sys.exit(77)
    compiled_of(probe, "small", (1, *LATENCY, C), 1)
    compiled_of(probe, "large", (B, T, S, C), 0)


def main():
    ways = {way.__name__: way for way in (host, rows, tail, products, temporal, spatial, linear, pair, compiled)}
    if len(sys.argv) != 2 or sys.argv[1] not in ways:
        print(__doc__)
        return 2
    torch.manual_seed(1)
    ways[sys.argv[1]](Probe())
    return 0


if __name__ == "__main__":
    sys.exit(main())
