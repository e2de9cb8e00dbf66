"""A communicator closed in the middle of a call, used by two threads, interrupted where something would be lost."""
from ranks import JUDGE, SCALE, run

COMMON = JUDGE + f"""
import faulthandler, gc, os, signal, sys, threading, time
import numpy as np
import heddle
from heddle._library import lib
SCALE = {SCALE}
""" + """
def waiting(comm):
    until = time.monotonic() + 20 * SCALE
    while comm._state.root.inside is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    time.sleep(0.05)

def on_another_thread(*calls):
    heard = []
    def main():
        for call in calls:
            try:
                call()
                heard.append(None)
            except heddle.Error as error:
                heard.append(error)
    thread = threading.Thread(target=main)
    thread.start()
    return thread, heard
"""
ALARMED = """
class Now(Exception):
    pass

def handler(*_):
    raise Now

signal.signal(signal.SIGALRM, handler)
"""


def test_closed_while_another_thread_waits(tmp_path):
    run(tmp_path, COMMON + """
for way in ("barrier", "reshard", "pooled", "group", "creation"):
    comm = heddle.Comm.open(deadline_s=60 * SCALE)
    other = heddle.Comm.join(os.environ["HEDDLE_KEY"] + way, comm.rank, comm.size)  # in which they meet again
    plan, group = comm.reshard(f"f32[t=4 s=8] on {comm.mesh}: t@sp -> s@sp"), comm.axis("sp")
    x, y = np.zeros(plan.src_shape, np.float32), np.zeros(plan.dst_shape, np.float32)
    kept = comm.pool.empty((3, 5), np.float32)
    kept[...] = 7
    call = {"barrier": comm.barrier, "reshard": lambda: plan(x, y), "group": group.barrier,
            "pooled": lambda: plan.execute_pooled(x.ctypes.data, lambda capsule: capsule),
            "creation": lambda: comm.reshard(f"f32[t=9] on {comm.mesh}: t@sp -> *")}[way]
    if comm.rank == 0:
        abort = lib.heddle_comm_abort
        lib.heddle_comm_abort = lambda *given: (abort(*given), time.sleep(0.05))  # the call it ends is done first
        freed = []
        comm._state.on_close(lambda: freed.append(True))
        thread, heard = on_another_thread(call, call)
        waiting(comm)
        begin = time.monotonic()
        comm.close()
        assert comm.closed
        comm.close()
        thread.join()
        assert time.monotonic() - begin < 20 * SCALE  # not the deadline
        assert "closed while this call was in it" in str(heard[0]), (way, heard)
        assert isinstance(heard[1], heddle.ArgumentError) and "is closed" in str(heard[1]), (way, heard)
        assert len(freed) == 1 and comm._state.handle == 0
        assert comm._state.root.inside is None
        assert group.closed and "closed" in repr(comm)
        lib.heddle_comm_abort = abort
        other.barrier()
    else:
        other.barrier()
        refused(heddle.PeerError, "closed in the middle of a call", call)
        comm.close()
    other.barrier()
    assert kept.sum() == 105
    other.close()
print("ok")
""", 2)


def test_a_group_closed_while_its_parent_waits(tmp_path):
    run(tmp_path, COMMON + """
comm = heddle.Comm.open(deadline_s=60 * SCALE)
other, group = heddle.Comm.join(os.environ["HEDDLE_KEY"] + "again", comm.rank, comm.size), comm.axis("sp")
if comm.rank == 0:
    thread, heard = on_another_thread(comm.barrier, group.barrier)
    waiting(comm)
    group.close()
    other.barrier()
    thread.join()
    assert heard[0] is None and "is closed" in str(heard[1]), heard
else:
    other.barrier()
    comm.barrier()
    group.close()
assert comm.axis("sp").allgather(b"x") == [b"x"] * 2  # made again
print("ok")
""", 2)


def test_closed_by_a_handler_in_the_middle_of_its_own_call(tmp_path):
    run(tmp_path, COMMON + """
comm = heddle.Comm.open(deadline_s=60 * SCALE)
other = heddle.Comm.join(os.environ["HEDDLE_KEY"] + "again", comm.rank, comm.size)
if comm.rank == 0:
    def handler(*_):
        refused(heddle.ArgumentError, "in a call", comm.allgather, b"x")  # which would come between the barrier's words
        refused(heddle.ArgumentError, "in a call", comm.pool.empty, (3,), np.float32)
        assert "in a call" in repr(comm)
        comm.close()
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    refused(heddle.ArgumentError, "closed while this call was in it", comm.barrier)
    assert comm.closed and comm._state.handle == 0
    other.barrier()
else:
    other.barrier()
    refused(heddle.PeerError, "closed in the middle of a call", comm.barrier)
print("ok")
""", 2)


def test_a_second_thread_is_refused_while_one_waits(tmp_path):
    run(tmp_path, COMMON + """
with heddle.Comm.open(deadline_s=60 * SCALE) as comm:
    other = heddle.Comm.join(os.environ["HEDDLE_KEY"] + "again", comm.rank, comm.size)
    group, plan = comm.axis("sp"), comm.reshard(f"f32[t=4 s=8] on {comm.mesh}: t@sp -> s@sp")
    x = np.full(plan.src_shape, comm.rank, np.float32)
    if comm.rank == 0:
        thread, heard = on_another_thread(comm.barrier)
        waiting(comm)
        ring = comm.attention(f"f32[b=1 s=4 h=2 d=4] on {comm.mesh}: s@sp", "ring")
        for call in (comm.barrier, group.barrier, comm.describe, plan.info, plan.adjoint, comm.pool.trim,
                     lambda: plan(x), lambda: plan.execute(0, 0), lambda: plan.execute_pooled(x.ctypes.data, id),
                     lambda: comm.pool.buffer(5), lambda: comm.reshard(f"f32[t=5] on {comm.mesh}: t@sp -> *"),
                     lambda: ring.execute(*[(0, [0] * 4)] * 4)):
            refused(heddle.ArgumentError, "in a call", call)
        child = os.fork()
        if child == 0:
            refused(heddle.ArgumentError, "fork", comm.barrier)
            comm.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        other.barrier()
        thread.join()
        assert heard == [None], heard
    else:
        other.barrier()
        comm.barrier()
    y = plan(x)  # nothing was harmed
    assert np.array_equal(y, np.repeat([0, 1], 2)[:, None] + np.zeros((4, 4))), y
    attention = comm.attention(f"f32[b=1 s=4 h=2 d=4] on {comm.mesh}: s@sp", "ring")
    attention(*[np.zeros(attention.q_shape, np.float32)] * 3)
print("ok")
""", 2)


def test_what_a_signal_interrupts_gives_its_memory_back(tmp_path):
    """A handler may raise behind any call, and where a function begins: what was made by then is given back."""
    run(tmp_path, COMMON + ALARMED + """
import ctypes, random

def interrupted(call, after_s):
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            call()
    except Now:
        return 1
    return 0  # it came where Python drops what is raised, or not at all

def function(name, result, *given):
    return ctypes.PYFUNCTYPE(result, *given)((name, ctypes.pythonapi))

pointer = function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
rename = function("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
USED = b"used_dltensor"

def taking(capsule):  # as a framework does, in C: no signal comes between
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    array = pointer(capsule, b"dltensor")
    rename(capsule, USED)
    lib.heddle_pool_give_back(array)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])

def refusing(capsule):
    raise TypeError("such arrays are not taken")

comm = heddle.Comm.open("self")
plan = comm.reshard("f32[t=4 s=8] on [sp=1]: t@sp -> s@sp")
draw = random.Random(5)
x, lines = np.ones(plan.src_shape, np.float32), iter(range(5, 10000))
calls = {
    "barrier": comm.barrier,
    "lent": lambda: comm.pool.lend(9, (5,), taking),
    "moved": lambda: plan.execute_pooled(x.ctypes.data, taking),
    "made": lambda: heddle.Reshard(comm, f"f32[t={next(lines)}] on [sp=1]: t@sp -> *", tuning="rules")}
for name, call in calls.items():
    call()
    comm.pool.trim()
    assert comm.pool.held_bytes == 0, name
    times = sum(interrupted(call, draw.uniform(1e-6, 1e-4)) for _ in range(1000))
    assert times > 500, (name, times)
    gc.collect()
    call()
    gc.collect()
    comm.pool.trim()
    assert comm.pool.held_bytes == 0 and not comm._state.raised, (name, comm.pool.held_bytes)
for take in (lambda: plan.execute_pooled(x.ctypes.data, refusing), lambda: comm.pool.lend(9, (5,), refusing)):
    refused(TypeError, "not taken", take)
gc.collect()
comm.pool.trim()
assert comm.pool.held_bytes == 0
print("ok")
""", 1)


def test_what_is_gone_when_a_signal_comes_is_freed(tmp_path):
    """A signal that comes in C just before the last reference goes finds no Python of a finaliser to raise in."""
    run(tmp_path, COMMON + ALARMED + """
import ctypes, functools, weakref

class Signalling:
    pass

class Reference(weakref.ref):
    _as_parameter_ = 0

def gone_behind_a_signal(things):
    # Within one instruction of Python's: a list lets go of the last first.
    things.append(Signalling())
    kept = Reference(things[-1], functools.partial(ctypes.CDLL(None)["raise"], int(signal.SIGALRM)))
    try:
        things.clear()
    except Now:
        return
    raise AssertionError("no signal")

dropped = []
sys.unraisablehook = dropped.append
comm = heddle.Comm.open("self")
for turn in range(3):
    gone_behind_a_signal([comm.pool.empty((5, turn + 1), np.float32)])
    comm.pool.trim()
    assert comm.pool.held_bytes == 0, turn
    gone_behind_a_signal([heddle.Reshard(comm, f"f32[t={turn + 7}] on [sp=1]: t@sp -> *", tuning="rules")])
    comm._state.sweep()
    assert not comm._state._live, turn
assert not dropped, dropped
print("ok")
""", 1)


def test_what_was_being_made_when_it_was_closed_is_destroyed(tmp_path):
    run(tmp_path, COMMON + """
import ctypes
comm = heddle.Comm.open("self")
state, destroyed = comm._state, []

def made_then_closed(out, *given):
    status = lib.heddle_reshard_create_line(out, *given)
    comm.close()
    assert status == 0 and not destroyed
    return status

def destroy(plan):
    destroyed.append(plan)
    lib.heddle_reshard_destroy(plan)

line = heddle.Line("f32[t=4 s=8] on [sp=1]: t@sp -> s@sp")
refused(heddle.ArgumentError, "closed while this call was in it", state.create, destroy, made_then_closed, state.handle,
        ctypes.byref(line._c), None)
assert len(destroyed) == 1 and destroyed[0] and state.handle == 0
print("ok")
""", 1)
