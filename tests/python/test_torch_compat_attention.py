"""Attention over one and two process groups, against one process."""
from ranks import fork
from test_torch_compat import COMMON

ATTENTION = COMMON + """
def judged(q, k, v, causal=False, seen=None):  # [b, s, h, d] -> o likewise, lse [b, h, s]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * 0.3
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), -torch.inf)
    if seen is not None:
        scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
    return (scores.softmax(3) @ v).transpose(1, 2), scores.logsumexp(3)

def close(a, b, within):
    assert a.shape == b.shape, (a.shape, b.shape)
    assert a.numel() == 0 or (a - b).abs().max() <= within * (1 + b.abs().max()), (a - b).abs().max()

def compare(ulysses, ring, s, h, kv, *, causal=False, l=0, lse=False, within=3e-6, dtype=torch.float32, masked=False,
            **options):
    over, around = (1 if group is None else dist.get_world_size(group) for group in (ulysses, ring))
    at, block = (0 if group is None else dist.get_rank(group) for group in (ulysses, ring))
    if ulysses is ring is None:
        over, at = size, rank
    blocks_ = lengths(s, around)
    rows = lengths(blocks_[block], over)
    def mine(x, dim=1):  # of [b, s, ...]
        return part(part(x, dim, blocks_, block), dim, rows, at)
    whole = [draw(i, 2, s, heads, 8, dtype=torch.float64).requires_grad_() for i, heads in enumerate((h, kv, kv))]
    text = [draw(7 + i, 2, l, heads, 8, dtype=torch.float64).requires_grad_() for i, heads in enumerate((h, kv, kv))]
    seen = draw(30, 2, s + l) > 0.3 if masked else None
    if masked:
        seen[:, 0] = True
        options.update(key_mask=mine(seen[:, :s]), **({"joint_mask": seen[:, s:]} if l else {}))
    o, top = judged(*(torch.cat(pair, 1) for pair in zip(whole, text)), causal, seen)
    given = [mine(x.detach()).to(dtype).requires_grad_() for x in whole]
    joint = [x.detach().to(dtype).requires_grad_() for x in text]
    found = hc.attention(*given, ulysses, ring, causal=causal, scale=0.3, joint=joint if l else None, return_lse=lse,
                         sizes=rows, ring_sizes=blocks_, **options)
    found = [*(found if l or lse else (found,))]
    if l and lse:
        found = [found[0][0], found[1][0], found[0][1], found[1][1]]
    wanted = [o[:, :s], top[:, :, :s], o[:, s:], top[:, :, s:]][:: 1 if lse else 2][: len(found)]
    d = [draw(20 + i, *x.shape, dtype=torch.float64) for i, x in enumerate(wanted)]
    cut = [(lambda x: mine(x, 1)), (lambda x: mine(x, 2)), (lambda x: x), (lambda x: x)][:: 1 if lse else 2]
    for got, of, take in zip(found, wanted, cut):
        close(got.double(), take(of), within)
    inputs, mine_inputs = [*whole, *(text if l else ())], [*given, *(joint if l else ())]
    gradients = torch.autograd.grad(wanted, inputs, d)
    got = torch.autograd.grad(found, mine_inputs, [take(x).to(y.dtype) for x, y, take in zip(d, found, cut)])
    for i, (a, b) in enumerate(zip(got, gradients)):
        close(a.double(), mine(b) if i < 3 else b, within)
"""


def test_ulysses_and_ring_alone(tmp_path):
    fork(tmp_path, ATTENTION + """
world = dist.group.WORLD
for s, h, kv in ((12, 6, 6), (13, 4, 2), (2, 3, 1), (11, 2, 2)):  # rows, heads for some ranks only
    for lse in (False, True):
        for causal in (False, True):
            compare(None, None, s, h, kv, causal=causal, lse=lse)
            compare(None, world, s, h, kv, causal=causal, lse=lse)
        compare(world, None, s, h, kv, l=5, lse=lse)
        compare(None, world, s, h, kv, l=2, lse=lse)
for causal in (False, True):
    compare(world, None, 13, 6, 3, causal=causal, masked=True)
    compare(None, world, 13, 6, 3, causal=causal, masked=True, lse=True)
compare(None, world, 13, 6, 3, masked=True, dtype=torch.bfloat16, within=0.05)
compare(None, world, 13, 6, 3, masked=True, dtype=torch.float16, within=5e-3)
for chunks in (2, 3):
    compare(world, None, 13, 7, 7, chunks=chunks)
    compare(world, None, 13, 8, 4, chunks=chunks, l=5, lse=True)
    compare(None, world, 13, 3, 3, chunks=chunks)
x = draw(1, 2, 4, 3, 8)
refused(heddle.ArgumentError, "4 chunks of 3 key heads", hc.attention, x, x, x, chunks=4)
refused(heddle.ArgumentError, "no place in a causal sequence", hc.attention, x, x, x, causal=True, joint=(x, x, x))
refused(heddle.ArgumentError, "joint has other heads", hc.attention, x, x, x, joint=(x[:, :, :2],) * 3)
refused(heddle.ArgumentError, "ring_sizes says 5 rows", hc.attention, x, x, x, None, world, ring_sizes=[5] * size)
refused(heddle.ArgumentError, "key_mask is torch.bool(2, 5), wanted torch.bool(2, 4)", hc.attention, x, x, x,
        key_mask=torch.ones(2, 5, dtype=torch.bool))
refused(heddle.ArgumentError, "joint_mask without joint", hc.attention, x, x, x, joint_mask=x)
refused(heddle.ArgumentError, "scale of 0", hc.attention, x, x, x, scale=0, key_mask=torch.ones(2, 4, dtype=torch.bool))
refused(heddle.MismatchError, "rank", hc.attention, *[x[:, : 3 + (rank == 1)]] * 3)
ended()
""", 3)


def test_two_groups(tmp_path):
    fork(tmp_path, ATTENTION + """
mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("ring", "ulysses"))
ulysses, ring = mesh["ulysses"].get_group(), mesh["ring"].get_group()
for s, h, kv in ((16, 4, 4), (13, 6, 3), (3, 1, 1)):
    for causal in (False, True):
        compare(ulysses, ring, s, h, kv, causal=causal)
    compare(ulysses, ring, s, h, kv, lse=True)
    compare(ulysses, ring, s, h, kv, l=5, lse=True)
    compare(ulysses, ring, s, h, kv, l=1)
    compare(ulysses, ring, s, h, kv, l=5, lse=True, masked=True)
compare(ulysses, ring, 13, 6, 3, l=5, chunks=3)
compare(ulysses, ring, 13, 4, 4, dtype=torch.float64, within=1e-12)
x = draw(rank, 2, 4, 3, 8)
even = hc.attention(x, x, x, mesh["ulysses"], mesh["ring"])  # and lengths of one's own
wanted = F.scaled_dot_product_attention(*[torch.cat([draw(r, 2, 4, 3, 8) for r in range(4)], 1).transpose(1, 2)] * 3)
close(even, part(wanted.transpose(1, 2), 1), 3e-6)
ended()
""", 4)


def test_a_ring_is_compiled_once_for_all_lengths(tmp_path):
    fork(tmp_path, ATTENTION + """
def ring(q, k, v, sizes, seen):
    world = dist.group.WORLD
    o, lse = hc.attention(q.sin(), k, v, None, world, causal=True, return_lse=True, ring_sizes=sizes)
    return hc.attention(o, k, v.cos(), None, world, key_mask=seen, ring_sizes=sizes), lse

def stepped(function, xs, *more):
    xs = [x.clone().requires_grad_() for x in xs]
    found = function(*xs, *more)
    return [*found, *torch.autograd.grad(found, xs, [y.detach().cos() for y in found])]

compiled = torch.compile(ring, backend="aot_eager", fullgraph=True, dynamic=True)
for s in (25, 21, 29):  # the first has as many rows as nothing else: torch would take both for one number
    sizes = lengths(s, size)
    q, k, v = (part(draw(s + i, 2, s, heads, 16), 1, sizes) for i, heads in enumerate((4, 2, 2)))
    seen = part(torch.arange(2 * s).view(2, s) % 5 != 2, 1, sizes)
    for got, wanted in zip(stepped(compiled, (q, k, v), sizes, seen), stepped(ring, (q, k, v), sizes, seen)):
        assert torch.equal(got, wanted), (s, (got - wanted).abs().max())
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1, torch._dynamo.utils.counters["stats"]
ended()
""", 2)


def test_attention_over_heads_is_compiled_once_for_all_lengths(tmp_path):
    fork(tmp_path, ATTENTION + """
def over_heads(q, k, v):
    return hc.attention(q.sin(), k, v, dist.group.WORLD, causal=True)

compiled = torch.compile(over_heads, backend="aot_eager", fullgraph=True, dynamic=True)
for key_heads in (4, 2):
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    for s in (10, 14, 18):
        q, k, v = (part(draw(s + i, 3, s, heads, 16), 1) for i, heads in enumerate((4, key_heads, key_heads)))
        assert torch.equal(compiled(q, k, v), over_heads(q, k, v)), (s, key_heads)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1, torch._dynamo.utils.counters["stats"]
ended()
""", 2)


def test_options_of_a_ring_may_be_arguments_of_a_compiled_function(tmp_path):
    fork(tmp_path, ATTENTION + """
def ring(q, k, v, causal, scale, forwards, more):
    return hc.attention(q.sin(), k, v, None, dist.group.WORLD, causal=causal, scale=scale, saved_forwards=forwards,
                        return_lse=more)

compiled = torch.compile(ring, backend="aot_eager", fullgraph=True, dynamic=True)
q, k, v = (draw(rank + seed, 2, 3, 4, 8) for seed in (1, 5, 9))
for asked in ((True, 0.25, 2, False), (1, 0.5, 3, 1), (0, 0.125, 2, 0), (False, None, 3, True), (-1, 0.5, 3, -1),
              (None, 0.5, 3, None), (True, -1, 3, True)):
    got, wanted = (function(q, k, v, *asked) for function in (compiled, ring))
    for a, b in zip(*(x if asked[3] else [x] for x in (got, wanted))):
        assert torch.equal(a, b), (asked, (a - b).abs().max())
dist.barrier()
hc.comm_of(dist.group.WORLD).close()
refused(heddle.ArgumentError, "is gone", compiled, q, k, v, *asked)
torch.compiler.reset()
for a, b in zip(compiled(q, k, v, *asked), ring(q, k, v, *asked)):
    same(a, b)
for function in (compiled, ring):
    refused(heddle.ArgumentError, "-1", function, q, k, v, True, 0.5, -1, False)
ended()
""", 2)


def test_decayed_states_are_compiled_once_for_all_lengths_and_slopes(tmp_path):
    fork(tmp_path, COMMON + """
def layers(q, k, v, slopes, sizes, method):
    o = hc.lasp(q.sin(), k, v, slopes, sizes=sizes, method=method)
    return hc.lasp(o, k, v.cos(), slopes.flatten() + 0.5, sizes=sizes, method=method)

def stepped(function, xs, *more):
    xs = [x.clone().requires_grad_() for x in xs]
    o = function(*xs, *more)
    return [o, *torch.autograd.grad(o, xs, o.detach().cos())]

compiled, graphs = torch.compile(layers, backend="aot_eager", fullgraph=True, dynamic=True), 0
for method, dtype in (("lasp2", torch.float32), ("scan", torch.float16)):  # the library's, and by torch's operations
    graphs += 1
    for n in (25, 22):  # the first has as many rows as nothing else
        sizes, slopes = lengths(n), draw(n, 3, 1, 1).abs()  # other slopes by every call
        xs = [part(draw(i, 2, 3, n, 16, dtype=dtype), 2, sizes) for i in range(3)]
        for got, wanted in zip(stepped(compiled, xs, slopes, sizes, method),
                               stepped(layers, xs, slopes, sizes, method)):
            assert torch.equal(got, wanted), (method, dtype, n, (got - wanted).abs().max())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs, torch._dynamo.utils.counters["stats"]
refused(heddle.ArgumentError, "decay of head 0", compiled, *xs, -slopes, sizes, method)
ended()
""", 3)
