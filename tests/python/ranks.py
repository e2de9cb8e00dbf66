"""Starts programs of several ranks and gives back what they printed."""
import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import textwrap
import time
import uuid

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's: no thread is there when this process forks


sys.path.append(os.path.join(os.environ["HEDDLE_SOURCE"], "tests", "golden"))
from within import limit

SCALE = limit(1)  # of limits of time: longer while the machine does other work


def limit_s():
    """Of a program of ranks."""
    return limit(120)


# At the beginning of a program: what cuts a dim evenly, and what holds an error to its kind and words.
JUDGE = """
def blocks(length, parts):
    cut = [0]
    for i in range(parts):
        cut.append(cut[-1] + length // parts + (1 if i < length % parts else 0))
    return cut

def refused(kind, words, call, *given, **named):
    try:
        call(*given, **named)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")

"""


def written(folder, source):
    program = folder / "program.py"
    program.write_text(textwrap.dedent(source))
    return str(program)


def start(folder, source, ranks, **popen):
    """The program `source` on so many ranks, as a user starts it."""
    command = [sys.executable, "-m", "heddle", "-n", str(ranks), written(folder, source)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # whole lines
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            **popen)


def run(folder, source, ranks):
    """Every rank ends well and prints "ok" last; the output of all together."""
    program = start(folder, source, ranks)
    try:
        output, _ = program.communicate(timeout=limit_s())
    finally:
        program.kill()
    assert program.returncode == 0 and output.count("ok\n") == ranks, output
    return output


def fork(folder, source, ranks):
    """The same in forks of this process, which has imported what takes seconds of every rank and used nothing of it."""
    program, log, key = written(folder, source), folder / "output", uuid.uuid4().hex
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_rank, args=(program, log, rank, ranks, key)) for rank in range(ranks)]
    until = time.monotonic() + limit_s()
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(until - time.monotonic(), 0))
    finally:
        for process in processes:
            process.kill()
    output = log.read_text()
    assert not any(process.exitcode for process in processes) and output.count("ok\n") == ranks, output
    return output


def _rank(program, log, rank, ranks, key):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not without the parent
    to = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(to, stream)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    os.environ.update(HEDDLE_RANK=str(rank), HEDDLE_SIZE=str(ranks), HEDDLE_KEY=key)
    sys.argv = [program]
    runpy.run_path(program, run_name="__main__")


# `lender(comm)`: an ncclComm_t of the fake NCCL over the ranks of comm, on device `rank`. Wants os.environ and heddle.
NCCL = """
import ctypes, os
SIM = os.path.join(os.environ["HEDDLE_BUILD"], "tests", "nccl-sim")
os.environ["HEDDLE_MODULE_PATH"] = SIM

# With their own calls of CUDA and NCCL, whichever torch has loaded for everybody.
_, nccl = (ctypes.CDLL(f"{SIM}/libheddle_{name}.so", os.RTLD_NOW | os.RTLD_DEEPBIND) for name in ("cuda", "nccl"))

class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]

def lender(comm):
    own, made = UniqueId(), ctypes.c_void_p()
    assert nccl.ncclGetUniqueId(ctypes.byref(own)) == 0
    first = UniqueId.from_buffer_copy(comm.allgather(bytes(own))[0])
    assert nccl.cudaSetDevice(comm.rank) == 0
    assert nccl.ncclCommInitRank(ctypes.byref(made), comm.size, first, comm.rank) == 0
    return made.value
"""
