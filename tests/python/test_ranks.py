"""Arrays moved between ranks that are processes, against a judge that only cuts the whole array."""
from ranks import JUDGE, SCALE, run

COMMON = JUDGE + """
import gc, os, sys, time
import numpy as np
import heddle

def part(whole, axis, rank, size):
    cut = blocks(whole.shape[axis], size)
    return np.ascontiguousarray(whole[(slice(None),) * axis + (slice(cut[rank], cut[rank + 1]),)])

def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
"""


def test_every_dtype_and_order_bitwise(tmp_path):
    run(tmp_path, COMMON + """
with heddle.Comm.open() as comm:
    n, rank = comm.size, comm.rank
    for dtype, name in [("f64", "float64"), ("f32", "float32"), ("f16", "float16"), ("bf16", "uint16"),
                        ("f8e4m3", "uint8"), ("i64", "int64"), ("i32", "int32"), ("i8", "int8"), ("u8", "uint8"),
                        ("bool", "bool")]:
        raw = np.random.default_rng(7).integers(0, 2 if name == "bool" else 100, (2, 7, 5, 3))
        whole = raw.astype(name)
        line = f"{dtype}[b=2 t=7 s=5 c=3] on [sp={n}]: "
        mine = part(whole, 1, rank, n)
        assert same(comm.reshard(line + "t@sp -> s@sp")(mine), part(whole, 2, rank, n)), dtype
        assert same(comm.reshard(line + "t@sp -> *")(mine), whole)
        assert same(comm.reshard(line + "* -> b@sp")(whole), part(whole, 0, rank, n))
        turned = comm.reshard(line + "t@sp -> s@sp as s,c,b,t")(mine)
        assert same(turned, np.ascontiguousarray(part(whole, 2, rank, n).transpose(2, 3, 0, 1)))
    comm.plans_max = 2
    small = [f"f32[t={t} s=5] on [sp=3]: t@sp -> s@sp" for t in (7, 8, 9)]
    first, second = comm.reshard(small[0]), comm.reshard(small[1])
    assert comm.reshard(small[0]) is first and comm.reshard(small[2]) is comm.reshard(small[2])
    assert comm.reshard(small[0]) is first and comm.reshard(small[1]) is not second  # which was let go
    assert len(comm._plans) == 2
    problems = [f"f32[b=1 s={s} h=3 d=4] on [sp=3]: s@sp" for s in (7, 8, 9)]
    first, second = comm.attention(problems[0]), comm.attention(problems[1])
    assert comm.attention(problems[0].replace(" h", "  h")) is first
    assert comm.attention(problems[2], "ring") is comm.attention(problems[2], "ring")
    assert comm.attention(problems[0], "ulysses") is first and comm.attention(problems[1]) is not second
    assert comm.linear_attention(problems[0]) is not first and len(comm._attentions) == 2
    plan = comm.reshard("f32[t=7 s=5] on [sp=3]: t@sp -> s@sp")
    assert comm.reshard("f32[t=7  s=5] on [sp=3]: t@sp -> s@sp") is plan
    assert comm.reshard("f64[t=7 s=5] on [sp=3]: t@sp -> s@sp", "f32") is plan
    assert heddle.Reshard(comm, "f32[t=7 s=5]", "[sp=3]", "t@sp", "s@sp").line == plan.line
    info = plan.info()
    assert info.bytes_to == heddle.volume(plan.line)[rank] and info.line == plan.line.text
    plan(np.zeros(plan.src_shape, np.float32))
    assert plan.info().measured_bytes_sent == info.bytes_sent
print("ok")
""", 3)


def test_strided_views_and_what_is_refused(tmp_path):
    run(tmp_path, COMMON + """
comm = heddle.Comm.open()
n, rank = comm.size, comm.rank
line = heddle.Line(f"f32[t=7 s=5 c=4] on [sp={n}]: t@sp -> s@sp")
whole = np.arange(140, dtype=np.float32).reshape(7, 5, 4)
mine = part(whole, 0, rank, n)
room = np.zeros((mine.shape[0], 5 + rank, 9), np.float32)  # ranks may differ
view = room[:, :5, 1:9:2]
view[...] = mine
wanted = part(whole, 1, rank, n)
behind = np.full(wanted.shape[::-1], -1, np.float32)
result = behind.transpose(2, 1, 0)
plan = heddle.Reshard(comm, line, src_strides=heddle.strides_of(line, view),
                      dst_strides=heddle.strides_of(line, result, "dst"), tuning="rules")
assert plan(view, result) is result
assert np.array_equal(result, wanted)
assert np.array_equal(plan.adjoint()(result, np.zeros_like(room)[:, :5, 1:9:2]), mine)
refused(heddle.ArgumentError, "wanted strides", plan, mine, result)
refused(heddle.ArgumentError, "wants an array", plan, view)
refused(heddle.ArgumentError, "out has strides", plan, view, np.empty_like(wanted))
dense = comm.reshard(line)
refused(heddle.ArgumentError, "wanted a dense array", dense, view)
refused(heddle.ArgumentError, "is of float64, wanted float32", dense, mine.astype(np.float64))
refused(heddle.ArgumentError, "src has the shape (1,)", dense, np.zeros(1, np.float32))
frozen = np.empty_like(wanted)
frozen.flags.writeable = False
refused(heddle.ArgumentError, "read-only", dense, mine, frozen)
refused(heddle.ArgumentError, "wanted any or peer", heddle.Reshard, comm, line, memory="all")
refused(heddle.ArgumentError, "3 dims", heddle.Reshard, comm, line, src_strides=(1, 2))
assert same(dense(mine), wanted)  # nothing was harmed
peer = heddle.Reshard(comm, line, memory="peer")
refused(heddle.ArgumentError, "", peer, mine)
source = comm.pool.empty(peer.src_shape, np.float32)
source[...] = mine
assert same(peer(source), wanted)
print("ok")
""", 2)


def test_the_adjoint_is_the_transpose(tmp_path):
    run(tmp_path, COMMON + """
with heddle.Comm.open() as comm:
    rng = np.random.default_rng(comm.rank)
    for sides in ["t@sp -> s@sp", "* -> t@sp", "s@sp -> *", "sum@sp -> t@sp", "t@sp(4 0 3) -> s@sp as c,s,t"]:
        plan = comm.reshard(f"f64[t=7 s=5 c=2] on [sp={comm.size}]: {sides}")
        x = rng.integers(-9, 9, plan.src_shape).astype(np.float64)
        y = rng.integers(-9, 9, plan.dst_shape).astype(np.float64)
        back = plan.adjoint()
        sums = np.array([(plan(x) * y).sum(), (x * back(y)).sum()])
        comm.allreduce_sum(sums)
        assert sums[0] == sums[1], (sides, sums)
        assert back is plan.adjoint() and back.line == plan.line.adjoint()
        assert back.line.text == back.info().line
    refused(heddle.ArgumentError, "float16", comm.allreduce_sum, np.zeros(3, np.float16))
print("ok")
""", 3)


def test_memory_outlives_and_is_used_again(tmp_path):
    run(tmp_path, COMMON + """
comm = heddle.Comm.open()
plan = comm.reshard(f"f32[t=64 s=64 c=8] on [sp={comm.size}]: t@sp -> s@sp")
x = comm.pool.empty(plan.src_shape, np.float32)
x[...] = comm.rank
y = plan(x)
address, held = y.ctypes.data, comm.pool.held_bytes
del y
y = plan(x)
assert (y.ctypes.data, comm.pool.held_bytes) == (address, held)
z = plan(x)
view = z[3:5]
assert comm.pool.held_bytes > held and z.ctypes.data != address
del z
gc.collect()
assert plan(x).ctypes.data not in (address, view.base.ctypes.data if view.base is not None else 0)
comm.pool.trim()
held = comm.pool.held_bytes
comm.reshard(f"i8[t=5000] on [sp={comm.size}]: * -> t@sp")(np.zeros(5000, np.int8))
assert comm.pool.held_bytes == held + 4096
empty = comm.pool.empty((0, 3), np.float32)
comm.pool.trim()
held, page = comm.pool.held_bytes, 4096
lent = comm.pool.buffer(100 * page)
for pages in [*range(1, 100), *range(99, 0, -1)] * 3:  # lengths that vary
    lent = None
    lent = comm.pool.buffer(pages * page)
    assert comm.pool.held_bytes - held <= 4 * 104 * page, (pages, comm.pool.held_bytes)  # 2 blocks at most at once
lent = None
lent = comm.pool.buffer(104 * page)
before, lent = comm.pool.held_bytes, None
lent = comm.pool.buffer(97 * page)  # where 104 were
assert comm.pool.held_bytes == before
lent = None
for _ in range(50):  # plans that nobody holds are destroyed
    heddle.Reshard(comm, f"f32[t=8] on [sp={comm.size}]: t@sp -> *", tuning="rules")
gc.collect()

class Owner:
    pass
freed = []
for make in (lambda: heddle.Reshard(comm, "f32[t=9] on [sp=2]: t@sp -> *", tuning="rules"), lambda: comm.axis("sp"),
             lambda: comm.attention("f32[b=1 s=9 h=2 d=4] on [sp=2]: s@sp", "ring")(
                 *[np.zeros((1, 5 - comm.rank, 2, 4), np.float32)] * 3)):
    _, number = comm._state.create(
        lambda plan: (freed.append(time.monotonic()), heddle._library.lib.heddle_reshard_destroy(plan)),
        heddle._library.lib.heddle_reshard_create_adjoint, plan._handle)
    comm._state.adopt(Owner(), number)  # let go at once
    time.sleep(0.2 * comm.rank)  # the other rank may still be in an execution
    begin = time.monotonic()
    make()
    theirs = [float(word) for word in comm.allgather(b"%-32.6f" % begin)]
    assert freed.pop() >= max(theirs)
comm.axis("sp").close()
comm._groups.clear()
comm._attentions.clear()
gc.collect()
comm._state.sweep()
assert len(comm._state._live) == 2
comm.barrier()
comm.close()
comm.close()
assert y.sum() == sum(range(comm.size)) * y.size / comm.size  # memory of a closed communicator
del y, x, view
refused(heddle.ArgumentError, "closed", plan, np.zeros(plan.src_shape, np.float32))
refused(heddle.ArgumentError, "closed", comm.pool.buffer, 5)
refused(heddle.ArgumentError, "closed", comm.reshard, "f32[t=7] on [sp=2]: t@sp -> *")
print("ok")
""", 2)


def test_groups_of_an_axis(tmp_path):
    run(tmp_path, COMMON + """
comm = heddle.Comm.open(mesh="[dp=2 sp=2]")
group = comm.axis("sp")
assert (group.size, group.rank, group.mesh) == (2, comm.rank % 2, "[sp=2]")
assert comm.axis("sp") is group
assert group.allgather(bytes([comm.rank])) == [bytes([comm.rank // 2 * 2]), bytes([comm.rank // 2 * 2 + 1])]
whole = np.arange(24, dtype=np.int64).reshape(6, 4) + 100 * (comm.rank // 2)
assert same(group.reshard("i64[t=6 s=4] on [sp=2]: t@sp -> s@sp")(part(whole, 0, group.rank, 2)),
            part(whole, 1, group.rank, 2))
refused(heddle.ArgumentError, "there is dp sp", comm.axis, "tp")
other = comm.axis("dp")
other.close()
refused(heddle.ArgumentError, "closed", other.barrier)
assert comm.axis("dp").allgather(b"x") == [b"x"] * 2  # made again
total = np.array([1.0, comm.rank])
comm.allreduce_sum(total)
assert total.tolist() == [4.0, 6.0]
comm.barrier()
comm.close()  # with a group and its plans still there
refused(heddle.ArgumentError, "closed", group.barrier)
refused(heddle.ArgumentError, "closed", comm.axis, "sp")
with heddle.Comm.open(arena_bytes=64 << 20) as small:  # 16 MB of each rank
    for mb in (9, 10, 11, 9, 8, 11):  # no two fit
        held = None
        held = small.pool.buffer(mb << 20)
print("ok")
""", 4)


def test_ranks_that_disagree_are_told_on_every_rank(tmp_path):
    output = run(tmp_path, COMMON + """
comm = heddle.Comm.open()
refused(heddle.MismatchError, "t", comm.reshard, f"f32[t={7 + comm.rank}] on [sp=2]: t@sp -> *")
comm.barrier()
if os.fork() == 0:
    refused(heddle.ArgumentError, "fork", comm.barrier)
    refused(heddle.ArgumentError, "fork", comm.pool.buffer, 5)
    comm.close()
    os._exit(0)
assert os.wait()[1] == 0
comm.barrier()
if comm.rank == 1:
    comm.abort("rank 1 has had enough")
else:
    refused(heddle.PeerError, "had enough", comm.barrier)
print("ok")
""", 2)
    assert "Exception ignored" not in output


ALL_HERE = f"SCALE = {SCALE}\n" + """
import os, pathlib, time

def meet(name, rank, ranks):
    '''However long each took to come: what follows begins at the same time.'''
    here = [pathlib.Path(__file__).with_name(f"{name}-{r}") for r in range(ranks)]
    here[rank].touch()
    until = time.monotonic() + 60 * SCALE
    while not all(path.exists() for path in here) and time.monotonic() < until:
        time.sleep(0.001)
"""


def test_the_deadline_and_a_rank_that_dies(tmp_path):
    run(tmp_path, COMMON + ALL_HERE + """
RANK = int(os.environ["HEDDLE_RANK"])
meet("begun", RANK, 2)
comm = heddle.Comm.open(deadline_s=2 * SCALE)
if comm.rank == 0:
    refused(heddle.DeadlineError, "rank 1", comm.barrier)
    meet("told", 0, 2)
    print("ok")
else:
    meet("told", 1, 2)  # not before rank 0 has waited long enough
    print("ok", flush=True)
    os._exit(0)
""", 2)


def test_a_deadline_of_its_own_and_after_it(tmp_path):
    run(tmp_path, COMMON + ALL_HERE + """
comm = heddle.Comm.open(deadline_s=60 * SCALE)
line, limit = "f32[t=8 s=8] on [sp=2]: t@sp -> s@sp", 1 * SCALE
patient, hasty, x = comm.reshard(line), heddle.Reshard(comm, line, deadline_s=limit), np.ones((4, 8), np.float32)
for turn in range(2):
    meet(f"turn {turn}", comm.rank, 2)
    assert (hasty(x) == 1).all() and (patient(x) == 1).all()
    time.sleep(1.1 * limit if turn == 0 else 0)
comm.barrier()
begin = time.monotonic()
if comm.rank == 0:
    refused(heddle.DeadlineError, "rank 1", hasty, x)
    assert limit * 0.9 < time.monotonic() - begin < 30 * SCALE, time.monotonic() - begin
    meet("told", 0, 2)
else:
    meet("told", 1, 2)
print("ok", flush=True)
""", 2)


def test_ranks_that_name_a_key(tmp_path):
    run(tmp_path, COMMON + """
rank, key = int(os.environ["HEDDLE_RANK"]), os.environ["HEDDLE_KEY"]
with heddle.Comm.join(key + ("even", "odd")[rank % 2], rank // 2, (2, 1)[rank % 2]) as comm:
    assert (comm.rank, comm.size) == (rank // 2, (2, 1)[rank % 2])
    assert comm.allgather(b"%d" % rank) == ([b"0", b"2"], [b"1"])[rank % 2]
refused(heddle.ArgumentError, "rank 3 of 3", heddle.Comm.join, key, 3, 3)
print("ok")
""", 3)
