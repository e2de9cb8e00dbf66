"""Ctrl-C ends waits, and what a handler raises comes out."""
import contextlib
import os
import signal
import threading
import time

from ranks import SCALE, start

SOURCE = f"""
LIMIT_S = {40 * SCALE}  # of what a rank waits for here
import os, pathlib, signal, sys, threading, time
import heddle
HEARD = pathlib.Path(__file__).with_name("heard")
def ready():
    print("ready", os.getpid(), flush=True)

def wait_for(come, what):
    until = time.monotonic() + LIMIT_S
    while not come():
        if time.monotonic() > until:
            print("not seen:", what, flush=True)
            os._exit(1)
        time.sleep(0.001)

def ready_within(comm):
    '''As soon as this thread is in a call.'''
    def look():
        wait_for(lambda: comm._state.root.inside is not None, "this rank in a call")
        ready()
    threading.Thread(target=look, daemon=True).start()

def await_heard():
    '''The other rank has heard the signal, and so has this one.'''
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(True))
    ready()
    wait_for(lambda: seen and HEARD.exists(), "a signal in both ranks")
    return seen
"""


def kill(program):
    """With all of its ranks."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)


def interrupted(tmp_path, body, ranks=2, whole_group=True):
    """Sends SIGINT to the whole group, as a terminal does, or to the ranks alone, when the last rank is ready; output,
    seconds, code."""
    program = start(tmp_path, SOURCE + body, ranks, start_new_session=True)
    late = threading.Timer(120 * SCALE, kill, (program,))
    late.start()
    try:
        lines, pids = "", []
        while len(pids) < ranks:
            line = program.stdout.readline()
            assert line, lines
            lines += line
            pids += [int(line.split()[1])] if line.startswith("ready") else []
        time.sleep(0.3)  # they are in the wait by now
        begin = time.monotonic()
        if whole_group:
            os.killpg(program.pid, signal.SIGINT)
        else:
            for pid in pids:
                os.kill(pid, signal.SIGINT)
        output, _ = program.communicate(timeout=60 * SCALE)
        return lines + output, time.monotonic() - begin, program.returncode
    finally:
        late.cancel()
        kill(program)


def test_ctrl_c_ends_a_wait_for_ranks_at_once(tmp_path):
    output, took_s, code = interrupted(tmp_path, """
comm = heddle.Comm.open()
if comm.rank == 1:
    await_heard()
    try:
        comm.barrier()
    except heddle.PeerError as error:
        print("rank 1 hears:", error, flush=True)
    os._exit(0)
ready_within(comm)
try:
    comm.barrier()
except KeyboardInterrupt as error:
    HEARD.touch()
    print("rank 0:", repr(error.__cause__), flush=True)
    os._exit(0)
""")
    assert "InterruptedWait" in output and "rank 1 hears: rank 0 gave up: interrupted" in output, output
    assert took_s < 10 * SCALE and "Exception ignored" not in output and code == 130


def test_ctrl_c_ends_the_meeting_too(tmp_path):
    output, took_s, _ = interrupted(tmp_path, """
ready()
if os.environ["HEDDLE_RANK"] == "1":
    time.sleep(60)
heddle.Comm.open()
""")
    assert output.count("KeyboardInterrupt") >= 2 and took_s < 20 * SCALE, output
    assert "Exception ignored" not in output


def test_a_handler_that_returns_ends_nothing(tmp_path):
    output, _, code = interrupted(tmp_path, """
comm, seen = heddle.Comm.open(), []
if comm.rank == 1:
    seen = await_heard()  # while rank 0 waits for this one
else:
    def handler(*_):
        seen.append(True)
        HEARD.touch()
    signal.signal(signal.SIGINT, handler)
    ready_within(comm)
comm.barrier()
print("rank", comm.rank, "passed, handler ran", len(seen), flush=True)
""", whole_group=False)
    assert "rank 0 passed, handler ran 1" in output and "rank 1 passed, handler ran 1" in output, output
    assert code == 0
