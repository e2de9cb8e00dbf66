"""python -m heddle, and the examples."""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import SCALE, start

EXAMPLES = Path(os.environ["HEDDLE_SOURCE"]) / "examples" / "python"


def outcome(tmp_path, source, ranks):
    program = start(tmp_path, source, ranks)
    output, _ = program.communicate(timeout=60 * SCALE)
    return program.returncode, output


def test_the_code_of_the_rank_that_failed(tmp_path):
    code, output = outcome(tmp_path, """
        import os, sys
        assert os.environ["HEDDLE_SIZE"] == "3"
        print(f"rank {os.environ['HEDDLE_RANK']} {sys.argv[1:]}")
    """, 3)
    assert code == 0 and sorted(output.split("\n")) == ["", "rank 0 []", "rank 1 []", "rank 2 []"]
    code, _ = outcome(tmp_path, """
        import os, sys
        sys.exit(7 if os.environ["HEDDLE_RANK"] == "2" else 0)
    """, 3)
    assert code == 7


def test_a_rank_that_hangs_is_ended_when_another_fails(tmp_path):
    begin = time.monotonic()
    code, _ = outcome(tmp_path, """
        import os, signal, time
        if os.environ["HEDDLE_RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    """, 2)
    assert code == 137 and time.monotonic() - begin < 30 * SCALE


def is_there(pid):
    """A zombie is not: whoever took it over has not looked yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_the_launcher(tmp_path, by):
    program = start(tmp_path, """
        import os, time
        print(os.getpid(), flush=True)
        time.sleep(600)
    """, 2)
    pids = [int(program.stdout.readline()) for _ in range(2)]
    assert all(is_there(pid) for pid in pids)
    program.send_signal(by)
    assert program.wait(timeout=30 * SCALE) == (143 if by == signal.SIGTERM else -9)
    until = time.monotonic() + 30 * SCALE
    while any(is_there(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(is_there(pid) for pid in pids)


def test_the_others_say_who_died(tmp_path):
    code, output = outcome(tmp_path, """
        import os, signal, heddle
        comm = heddle.Comm.open()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.barrier()
    """, 2)
    assert code == 137 and "PeerError: rank 1 died" in output, output


def test_the_switch_example():
    command = [sys.executable, "-m", "heddle", "-n", "4", str(EXAMPLES / "01_switch.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120 * SCALE)
    assert run.returncode == 0 and run.stdout.count(" 0 wrong") == 4, run.stdout + run.stderr
