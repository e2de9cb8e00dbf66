"""Backends' own signatures: exchanges by dims and groups, against one process."""
from ranks import JUDGE, SCALE, fork

import torch._dynamo  # once for all ranks
import torch._functorch.aot_autograd
import torch.distributed.device_mesh
import torch.fx.experimental.symbolic_shapes

COMMON = JUDGE + f"SCALE = {SCALE}\n" + """
import os
import signal
import sys
import threading
import time
import torch
import torch.distributed as dist
import torch.nn.functional as F
import heddle
import heddle.torch.compat as hc

rank, size = int(os.environ["HEDDLE_RANK"]), int(os.environ["HEDDLE_SIZE"])
dist.init_process_group("gloo", store=dist.FileStore(__file__ + ".store", size), rank=rank, world_size=size)

def draw(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)

def lengths(n, ranks=size):
    cut = blocks(n, ranks)
    return [b - a for a, b in zip(cut, cut[1:])]

def part(x, dim, sizes=None, at=rank):
    sizes = lengths(x.shape[dim]) if sizes is None else sizes
    return x.narrow(dim, sum(sizes[:at]), sizes[at])

def same(a, b):
    assert a.dtype == b.dtype and torch.equal(a, b), (a.shape, b.shape)

def ended():
    dist.barrier()
    dist.destroy_process_group()
    print("ok")
"""


def test_uneven_shapes_there_and_back_with_gradients(tmp_path):
    for ranks in (2, 3, 4):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        fork(folder, COMMON + """
for s, h in ((16, 8), (13, 8), (16, 6), (13, 7), (16, 3), (3, 8), (16, 9)):
    for dtype in (torch.float32, torch.bfloat16, torch.complex64):
        whole, gradient = draw(s, 2, s, h, 4, dtype=dtype), draw(h, 2, s, h, 4, dtype=dtype)
        x = part(whole, 1).clone().requires_grad_()
        y = hc.all_to_all(x, 2, 1, gather_sizes=lengths(s))
        same(y, part(whole, 2))
        y.backward(part(gradient, 2))
        same(x.grad, part(gradient, 1))
        back = hc.all_to_all(y, -3, -2, scatter_sizes=lengths(s), gather_sizes=lengths(h))
        same(back, part(whole, 1))
        ones = hc.all_to_all(x if x.shape[1] else x.new_ones(2, 1, h, 4), 2, 1, gather_sizes=lengths(s), empty="one")
        same(ones, part(whole, 2) if part(whole, 2).shape[2] else torch.ones(2, s, 1, 4, dtype=dtype))
    whole, sizes = draw(9, s, h), lengths(s)[::-1]
    x = whole.clone().requires_grad_()
    for grad, scale in (("sum", 1), ("mean", size)):
        y = hc.split(x, 0, sizes=sizes, grad=grad)
        same(y, part(whole, 0, sizes))
        w = torch.ones((), requires_grad=True)
        z = hc.gather(y * w, 0, sizes=sizes, grad=grad)
        same(z, whole)
        got = torch.autograd.grad((z * z).sum(), (x, w))
        assert (got[0] - 2 * whole).abs().max() < 1e-5
        mine = 2 * scale * part(whole, 0, sizes).square().sum()
        assert (got[1] - mine).abs() <= 1e-4 * (1 + mine)
x, y = draw(rank, 2, 3, 5, dtype=torch.float64), draw(7 + rank, 2, 3 * size, lengths(5)[rank], dtype=torch.float64)
there, home = hc.all_to_all(x, 2, 1), hc.all_to_all(y, 1, 2, gather_sizes=lengths(5))
sums = torch.stack([(there * y).sum(), (x * home).sum()])  # <y, F x> = <F* y, x> over all ranks
dist.all_reduce(sums)
assert (sums[0] - sums[1]).abs() < 1e-12 * (1 + sums[0].abs())
ended()
""", ranks)


def test_groups_handles_and_out(tmp_path):
    fork(tmp_path, COMMON + """
pairs = [dist.new_group([0, 2]), dist.new_group([3, 1])]
mine = pairs[rank % 2]
mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
for group in (mine, mesh["sp"], mesh["dp"], None, dist.group.WORLD):
    process_group = hc.groups.group_of(group)
    ranks, at = dist.get_process_group_ranks(process_group), dist.get_rank(process_group)
    assert hc.comm_of(group) is hc.comm_of(group) and hc.comm_of(group).size == len(ranks)
    whole = torch.cat([draw(r, 1, 3, 5) for r in ranks], 1)
    same(hc.all_to_all(draw(rank, 1, 3, 5), 2, 1, group), part(whole, 2, lengths(5, len(ranks)), at))
refused(heddle.ArgumentError, "of 2 dims", hc.comm_of, mesh)
refused(heddle.ArgumentError, "not a rank of the group", hc.comm_of, pairs[1 - rank % 2])
refused(heddle.ArgumentError, "wanted a ProcessGroup", hc.comm_of, "sp")
alone = [dist.new_group([r]) for r in range(size)][rank]
x = draw(1, 2, 4)
for y in (hc.all_to_all(x, 1, 0, alone), hc.all_to_all(x, 1, 0, alone, async_op=True).wait(), hc.split(x, 1, alone),
          hc.all_to_all(x, 1, 0, alone, out=torch.empty(2, 4))):
    same(y, x)

whole = [draw(n, 2, 13, 6) for n in range(20)]
inputs = [part(x, 1).clone().requires_grad_() for x in whole]
handles = [hc.all_to_all(x, 2, 1, gather_sizes=lengths(13), async_op=True) for x in inputs]
between = hc.all_to_all(inputs[0], 2, 1, gather_sizes=lengths(13))  # beside them
for n in range(20):
    same(handles[n]().detach(), part(whole[n], 2))
    assert handles[n].is_completed()
same(between, part(whole[0], 2))
with torch.no_grad():
    again = [hc.all_to_all(x, 2, 1, gather_sizes=lengths(13), async_op=True) for x in inputs]
    for n in reversed(range(20)) if rank % 2 else range(20):  # waited for in another order
        same(again[n].wait(), part(whole[n], 2))
sum((n + 1) * handles[n].wait().sum() for n in range(20)).backward()
for n, x in enumerate(inputs):
    same(x.grad, torch.full_like(x, n + 1))
out = torch.empty(2, 13, lengths(6)[rank])
assert hc.all_to_all(inputs[1].detach(), 2, 1, gather_sizes=lengths(13), out=out) is out
same(out, part(whole[1], 2))
assert hc.sizes_of(rank * rank) == [r * r for r in range(size)]
ended()
""", 4)


def test_complex_numbers_go_as_pairs(tmp_path):
    fork(tmp_path, COMMON + """
s, h, flat = 13, 7, torch.compile(lambda *xs: (hc.all_to_all(xs[0], 2, 1, gather_sizes=lengths(13)),
                                               *hc.qkv_to_heads(*xs, sizes=lengths(13))), backend="aot_eager")
for dtype in (torch.complex64, torch.complex128):
    whole = [draw(i, 2, s, h, 4, dtype=dtype) for i in range(3)]
    mine, gradients = ([part(x, 1).clone() for x in whole], [draw(9 + i, 2, s, h, 4, dtype=dtype) for i in range(3)])
    x, out = mine[0], part(whole[0], 2).new_empty(part(whole[0], 2).shape)
    assert hc.all_to_all(x, 2, 1, gather_sizes=lengths(s), out=out) is out
    same(out, part(whole[0], 2))
    hc.all_to_all(x.conj(), 2, 1, gather_sizes=lengths(s), out=out)
    same(out, part(whole[0], 2).conj().resolve_conj())
    same(hc.all_to_all(x, 2, 1, gather_sizes=lengths(s), async_op=True).wait(), part(whole[0], 2))
    refused(heddle.ArgumentError, "conjugates", hc.all_to_all, x, 2, 1, gather_sizes=lengths(s), out=out.conj())
    refused(heddle.ArgumentError, "out is", hc.all_to_all, x, 2, 1, gather_sizes=lengths(s), out=out.real.clone())
    refused(heddle.ArgumentError, "out is", hc.all_to_all, x.real.clone(), 2, 1, gather_sizes=lengths(s), out=out)
    wanting = [x.clone().requires_grad_() for x in mine]
    for call in (lambda *xs: hc.qkv_to_heads(*xs, sizes=lengths(s)), lambda *xs: flat(*xs)[1:]):
        heads = call(*wanting)
        for y, z in zip(heads, whole):
            same(y, part(z, 2))
        back = torch.autograd.grad(heads, wanting, [part(g, 2) for g in gradients])
        for y, g in zip(back, gradients):
            same(y, part(g, 1))
        same(hc.heads_to_rows(heads[0], sizes=lengths(s), heads=h), mine[0])
    same(flat(*mine)[0], part(whole[0], 2))
    fewer = hc.qkv_to_heads(mine[0], *(x[:, :, :1] for x in mine[1:]), sizes=lengths(s))
    same(fewer[1], part(whole[1][:, :, :1], 2))
x = draw(rank, 2, 3, 2 * size, 4, dtype=torch.complex64)  # as torch's own collective has it
parts, came = [y.contiguous() for y in x.chunk(size, 2)], [torch.empty(2, 3, 2, 4, dtype=x.dtype) for _ in range(size)]
dist.all_to_all(came, parts)
same(hc.all_to_all(x, 2, 1), torch.cat(came, 1))
ended()
""", 3)


def test_compiled_once_for_all_lengths(tmp_path):
    fork(tmp_path, COMMON + """
def block(x):
    q, k, v = hc.qkv_to_heads(*x.sin().chunk(3, 3))
    o = hc.heads_to_rows(q * k + v)
    return hc.all_to_all(hc.all_to_all(o, 2, 1) * 2, 1, 2, group=dist.group.WORLD).cos()

compiled = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=True)
for s in (3, 7, 12):
    x = draw(rank + s, 2, s, 2 * size, 6).requires_grad_()
    again = x.detach().clone().requires_grad_()
    wanted, got = block(x), compiled(again)
    same(got, wanted)
    wanted.sum().backward()
    got.sum().backward()
    assert (again.grad - x.grad).abs().max() < 1e-6
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1, torch._dynamo.utils.counters["stats"]
ended()
""", 2)


def test_what_does_not_fit(tmp_path):
    fork(tmp_path, COMMON + """
x = draw(1, 2, 4, 6)
refused(heddle.ArgumentError, "both dim 1", hc.all_to_all, x, 1, -2)
refused(heddle.ArgumentError, "dim 3 of a tensor of 3 dims", hc.all_to_all, x, 3, 1)
refused(heddle.ArgumentError, "a length of each of 3 ranks", hc.all_to_all, x, 2, 1, gather_sizes=[4, 4])
refused(heddle.ArgumentError, "a length of each of 3 ranks", hc.split, x, 1, sizes=[4, 1, -1])
refused(heddle.ArgumentError, "has 4 rows in dim 1", hc.all_to_all, x, 2, 1, gather_sizes=[3, 3, 3])
refused(heddle.ArgumentError, "are 7 together", hc.all_to_all, x, 2, 1, scatter_sizes=[3, 2, 2])
refused(heddle.ArgumentError, "wanted 'sum' or 'mean'", hc.gather, x, 1, grad="up")
refused(heddle.ArgumentError, "wanted 'rows' or 'one'", hc.split, x, 1, empty="two")
refused(heddle.ArgumentError, "one at a time", hc.all_to_all, x, 2, 1, out=x, async_op=True)
refused(heddle.ArgumentError, "wanted a tensor", hc.split, [1], 0)
y = torch.zeros(2, 4, 6, 8)
for bad in (["a"] * size, [1.5] * size, [None] * size, 4, {1, 2, 3}, [torch.tensor(2)] * size):
    for name, call in (("gather_sizes", lambda: hc.all_to_all(x, 2, 1, gather_sizes=bad)),
                       ("scatter_sizes", lambda: hc.all_to_all(x, 2, 1, scatter_sizes=bad)),
                       ("sizes", lambda: hc.split(x, 1, sizes=bad)), ("sizes", lambda: hc.gather(x, 1, sizes=bad)),
                       ("sizes", lambda: hc.qkv_to_heads(y, y, y, sizes=bad)),
                       ("sizes", lambda: hc.heads_to_rows(y, sizes=bad)),
                       ("sizes", lambda: hc.attention(y, y, y, sizes=bad)),
                       ("ring_sizes", lambda: hc.attention(y, y, y, None, dist.group.WORLD, ring_sizes=bad)),
                       ("sizes", lambda: hc.lasp(y, y, y, torch.ones(4), sizes=bad))):
        refused(heddle.ArgumentError, f"{name} is {bad}, wanted a length of each of 3 ranks", call)
for bad in ("1", None, 1.5):
    refused(heddle.ArgumentError, f"dim {bad} of", hc.all_to_all, x, bad, 1)
    refused(heddle.ArgumentError, "length is", hc.sizes_of, bad)
for dim in range(4):  # nothing of a dim is exchanged, or refused by name
    none = y.narrow(dim, 0, 0)
    assert 0 in hc.all_to_all(none, 2, 1).shape and 0 in hc.split(none, 1).shape and 0 in hc.gather(none, 1).shape
    for ring in (None, dist.group.WORLD):
        if dim < 3:
            assert hc.attention(none, none, none, None, ring).shape == none.shape
        else:
            refused(heddle.ArgumentError, "q is (2, 4, 6, 0)", hc.attention, none, none, none, None, ring)
    if dim in (1, 3):
        refused(heddle.ArgumentError, f"v is {tuple(none.shape)}", hc.lasp, y, y, none, torch.ones(4))
    else:
        assert hc.lasp(none, none, none, torch.ones(4)).shape == none.shape
refused(heddle.ArgumentError, "whose heads divide", hc.attention, y, y[:, :, :0], y[:, :, :0])
refused(heddle.ArgumentError, "q is a list", hc.lasp, [1], y, y, torch.ones(4))
refused(heddle.ArgumentError, "v is (4, 6, 8)", hc.lasp, y, y, y[0], torch.ones(4))
refused(heddle.ArgumentError, "decay of head 0", hc.lasp, y.half(), y.half(), y.half(), -torch.ones(4))
refused(heddle.ArgumentError, "joint is a list", hc.attention, y, y, y, joint=[y, y])
refused(heddle.ArgumentError, "scale is 'a'", hc.attention, y, y, y, scale="a")
refused(heddle.ArgumentError, "a chunks of 6 key heads", hc.attention, y, y, y, chunks="a")
refused(heddle.ArgumentError, "out is a int", hc.all_to_all, x, 2, 1, out=3)
same(hc.split(x, 1, sizes=torch.tensor([1, 2, 1])), part(x, 1, [1, 2, 1]))
mine = draw(1, 2, 3 if rank == 1 else 4, 6)
def wrong(words, function):
    began = time.time()
    refused(heddle.MismatchError, words, function, mine)
    assert time.time() - began < 20 * SCALE
for guess in (lambda x: hc.all_to_all(x, 2, 1), lambda x: hc.gather(x, 1)):
    wrong("rank 1", guess)  # on all ranks at once
    guess(x)  # and nothing is broken
    wrong("they wait for one another", guess)  # one makes a plan, the others have theirs
    comm = hc.comm_of(failed="a wrong guess")
    guess(x[:, :3])  # now each has a plan for what it guesses
    wrong("rank 1", guess)
    assert hc.comm_of(failed="a wrong guess") is comm
    guess(x)

began = time.time()
try:
    if rank == 2:
        raise ValueError("a bad request")
    hc.all_to_all(x, 2, 1)
except (ValueError, heddle.PeerError) as error:
    assert "a bad request" in str(error)
    assert hc.comm_of(failed=f"{error}") is comm
assert time.time() - began < 20 * SCALE
same(hc.all_to_all(x, 2, 1, async_op=True).wait(), part(torch.cat([x] * size, 1), 2))
comm.close()
assert hc.comm_of() is not comm  # all ranks have closed it
same(hc.all_to_all(x, 2, 1), part(torch.cat([x] * size, 1), 2))
ended()
""", 3)


def test_a_failure_beside_an_exchange_is_told_at_once(tmp_path):
    fork(tmp_path, COMMON + """
x, comm, began = draw(1, 2, 4, 6), hc.comm_of(), time.time()
y = hc.all_to_all(x, 2, 1)
refused(heddle.MismatchError, "they wait for one another", hc.all_to_all, x, 2, 1, async_op=rank == 0)
assert hc.comm_of(failed="one alone has a handle") is comm
same(hc.all_to_all(x, 2, 1, async_op=True).wait(), y)
for at in (0, 1, 0):
    if rank == at:
        handle = None
        why = "a bad request"
    else:
        handle = hc.all_to_all(x, 2, 1, async_op=True)
        if at == 1:  # else it is left alone
            refused(heddle.PeerError, "a bad request", handle.wait)
        why = "its handle"
    assert hc.comm_of(failed=why) is comm
    same(hc.all_to_all(x, 2, 1, async_op=True).wait(), y)
    if handle is not None:
        refused(heddle.PeerError, "", handle.wait)
left = [hc.all_to_all(x, 2, 1, async_op=True) for _ in range(50)]  # under way while all give up
assert hc.comm_of(failed="no more of these") is comm
same(hc.all_to_all(x, 2, 1, async_op=True).wait(), y)
same(hc.all_to_all(x, 2, 1), y)
if rank == 0:  # alone: as if its making had ended on one rank
    hc.groups._seconds.clear()
assert hc.comm_of(failed="one has none") is comm
same(hc.all_to_all(x, 2, 1, async_op=True).wait(), y)
comm.close()
if rank == 0:
    hc.groups._seconds.clear()
assert hc.comm_of(failed="the first is closed, too") is not comm
same(hc.all_to_all(x, 2, 1, async_op=True).wait(), y)
assert time.time() - began < 20 * SCALE
ended()
""", 2)


def test_a_rank_is_killed_and_the_others_go_on(tmp_path):
    fork(tmp_path, COMMON + """
living = dist.new_group([0, 1])
x = draw(1, 2, 4, 6)
hc.all_to_all(x, 2, 1)
handle = hc.all_to_all(x, 2, 1, async_op=True)
handle.wait()
if rank == 2:
    print("ok", flush=True)
    os._exit(0)
began = time.time()
refused(heddle.PeerError, "rank 2", hc.all_to_all, x, 2, 1)
handle = hc.all_to_all(x, 2, 1, async_op=True)
refused(heddle.PeerError, "rank 2", handle.wait)
refused(heddle.PeerError, "rank 2", hc.comm_of, failed="a rank is gone")
same(hc.all_to_all(x, 2, 1, living), part(torch.cat([x] * 2, 1), 2, [3, 3]))
assert time.time() - began < 20 * SCALE
print("ok", flush=True)
os._exit(0)  # gloo waits for who is gone
""", 3)


def test_exchanges_of_a_device_are_beside_its_stream(tmp_path):
    """Who waits for whom, by streams that only say so: torch has no device here."""
    fork(tmp_path, COMMON + """
from heddle.torch.compat import handle
said = []

class Stream:
    def __init__(self, name, priority=0):
        self.name, self.priority = name, priority

    def wait_stream(self, other):
        said.append(f"{self.name} waits for {other.name}")

    def record_event(self):
        said.append(f"event of {self.name}")
        return Event()

    def wait_event(self, event):
        said.append(f"{self.name} waits for the event")

    def __enter__(self):
        now.append(self)

    def __exit__(self, *_):
        now.pop()

class Event:
    query = lambda self: True

class Tensor(torch.Tensor):
    is_cuda, device = True, "cuda:0"
    name = "x"

    def detach(self):
        return self

    def record_stream(self, stream):
        said.append(f"{self.name} is used by {stream.name}")

def moved(x, line, back, comm):
    said.append(f"{line} on {now[-1].name}")
    y = torch.zeros(3).as_subclass(Tensor)
    y.name = "y"
    return y

now, made = [Stream("main")], []
torch.cuda.current_stream = lambda device: now[-1]
torch.cuda.stream = lambda stream: stream
torch.cuda.Stream = lambda device, priority: made.append(Stream("side", priority)) or made[-1]
handle.resharded, handle.check_device = moved, lambda x, comm: None
comm = hc.comm_of()
x = torch.zeros(3).as_subclass(Tensor)
first = handle.started(x, "there", "back", comm, None)
assert said == ["side waits for main", "there on side", "event of side", "x is used by side"], said
assert first.is_completed() and len(said) == 4  # nobody waits yet
with Stream("other"):
    assert first.wait().name == "y" and first().name == "y"
assert said[4:] == ["other waits for the event", "y is used by other"] * 2, said
second = handle.started(x, "there", "back", comm, None)
assert len(made) == 1 and made[0].priority == -1  # one stream for all of them
ended()
""", 2)
