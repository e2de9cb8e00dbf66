"""Ranks in different calls are told at once, and after a failure all of them go on."""
from ranks import JUDGE, SCALE, limit_s, run, start

COMMON = JUDGE + f"SCALE = {SCALE}\n" + """
import os, sys, time
import numpy as np
import heddle

def told(kind, call, *given):
    began = time.time()
    try:
        call(*given)
    except kind as error:
        assert time.time() - began < 30 * SCALE, error
        return str(error)
    raise AssertionError("not told")

"""


def test_a_kept_plan_and_a_new_one(tmp_path):
    """What models of dynamic lengths run into: every rank takes its own rows times the number of ranks."""
    run(tmp_path, COMMON + """
with heddle.Comm.open(deadline_s=300) as comm:
    def to_heads(rows):
        x = np.full((rows, 4), comm.rank, np.float32)
        return comm.reshard(f"f32[s={rows * comm.size} h=4] on [sp={comm.size}]: s@sp -> h@sp")(x)
    first = to_heads(4)
    for _ in range(3):
        words = told(heddle.MismatchError, to_heads, 4 if comm.rank == 0 else 3)
        assert "rank 1 is in the creation of a reshard f32[s=6 h=4] on [sp=2]: s@sp -> h@sp" in words, words
        assert "rank 0 is in an execution of a reshard f32[s=8 h=4] on [sp=2]: s@sp -> h@sp" in words, words
        assert told(heddle.MismatchError, comm.barrier) == words
        comm.reset()
        assert to_heads(4).tobytes() == first.tobytes()
        to_heads(5)
print("ok")
""", 2)


def test_an_exception_that_one_rank_catches(tmp_path):
    run(tmp_path, COMMON + """
with heddle.Comm.open(mesh="[dp=2 sp=2]", deadline_s=300) as comm:
    line = "f32[t=8 s=8] on [sp=2]: t@sp -> s@sp"
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    def forward(step):
        y = comm.axis("sp").reshard(line)(x)
        if step % 3 == 1 and comm.rank == step % 4:
            raise ValueError("a bad request")
        comm.axis("sp").reshard(line).adjoint()(y)
        return comm.axis("dp").allgather(bytes([step % 256]))
    good = forward(0)
    plan = comm.axis("sp").reshard(line)
    failed = 0
    for step in range(30):
        try:
            assert forward(step) == [bytes([step])] * 2
        except (ValueError, heddle.PeerError) as error:
            failed += 1
            assert "a bad request" in str(error), error
            comm.reset(f"{type(error).__name__}: {error}")
            assert comm.axis("sp").reshard(line) is plan  # which all ranks have
    assert failed == 10
print("ok")
""", 4)


def test_what_not_all_ranks_have_is_let_go(tmp_path):
    run(tmp_path, COMMON + """
with heddle.Comm.open(deadline_s=300) as comm:
    line = "f32[t=8 s=8] on [sp=2]: t@sp -> s@sp"
    x = np.ones((4, 8), np.float32)
    plan = comm.reshard(line)
    plan.adjoint()
    if comm.rank == 0:  # as a creation that failed on rank 1 alone
        comm._plans[("f32[t=9 s=8] on [sp=2]: t@sp -> s@sp", "host")] = plan
    comm.reset()
    assert not comm._plans
    again = comm.reshard(line)
    assert again is not plan and again(x).tobytes() == plan(x).tobytes()
    refused(heddle.ArgumentError, "the ranks along one axis", comm.axis("sp").reset)
    comm.reset()
    assert comm.reshard(line) is again
print("ok")
""", 2)


def test_a_rank_that_died(tmp_path):
    program = start(tmp_path, COMMON + """
comm = heddle.Comm.open(deadline_s=300)
comm.barrier()
if comm.rank == 1:
    os._exit(3)
words = told(heddle.PeerError, comm.reset)
print(words)
comm.close()
""", 2)
    output, _ = program.communicate(timeout=limit_s())
    assert "rank 1 died" in output and "cannot come to the reset" in output, output
