"""Ctrl-C ends waits, and what a handler raises comes out."""
import signal
import time

from ranks import SCALE, start

SOURCE = """
import os, signal, sys, time
import heddle
def ready():
    print("ready", flush=True)
"""


def interrupted(tmp_path, body, ranks=2):
    """Sends SIGINT to the whole group, as a terminal does, when the last rank is ready; output, seconds, code."""
    program = start(tmp_path, SOURCE + body, ranks, start_new_session=True)
    try:
        lines = ""
        while lines.count("ready") < ranks:
            line = program.stdout.readline()
            assert line, lines
            lines += line
        time.sleep(0.3)
        begin = time.monotonic()
        signal_group(program)
        output, _ = program.communicate(timeout=60 * SCALE)
        return lines + output, time.monotonic() - begin, program.returncode
    finally:
        program.kill()


def signal_group(program):
    import os
    os.killpg(program.pid, signal.SIGINT)


def test_ctrl_c_ends_a_wait_for_ranks_at_once(tmp_path):
    output, took_s, code = interrupted(tmp_path, """
comm = heddle.Comm.open()
ready()
if comm.rank == 1:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(1)
    try:
        comm.barrier()
    except heddle.PeerError as error:
        print("rank 1 hears:", error, flush=True)
    os._exit(0)
try:
    comm.barrier()
except KeyboardInterrupt as error:
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
    output, _, _ = interrupted(tmp_path, """
comm = heddle.Comm.open()
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(time.monotonic()))
ready()
if comm.rank == 1:
    time.sleep(1.5)
begin = time.monotonic()
comm.barrier()
print("rank", comm.rank, "passed, handler ran", len(seen), flush=True)
if comm.rank == 0:
    print("while waiting" if seen[0] < time.monotonic() - 0.5 else "afterwards", flush=True)
""")
    assert "rank 0 passed, handler ran 1" in output and "rank 1 passed, handler ran 1" in output, output
    assert "while waiting" in output, output
