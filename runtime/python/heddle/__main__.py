"""python -m heddle -n RANKS program.py ...: starts the ranks of this host, each a Python of its own.

Every rank finds HEDDLE_RANK, HEDDLE_SIZE and HEDDLE_KEY, which Comm.open() goes by. When one fails the others have two
seconds to say what they make of it; the exit code is that of the first that failed. No rank outlives this process.

python -m heddle explore MODULE:FACTORY: which dims a model of torch mixes (docs/explore.md).
"""
from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
from typing import List

GRACE_S = 2.0
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl  # looked up before the fork


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start(size: int, command: List[str]) -> List[subprocess.Popen]:
    key = uuid.uuid4().hex
    return [subprocess.Popen(command, env={**os.environ, "HEDDLE_RANK": str(rank), "HEDDLE_SIZE": str(size),
                                           "HEDDLE_KEY": key}, preexec_fn=_die_with_parent)
            for rank in range(size)]


def _wait(ranks: List[subprocess.Popen]) -> int:
    """The first code that is not 0, when all have ended."""
    code, failed_at = 0, None
    while True:
        codes = [rank.poll() for rank in ranks]
        if failed_at is None and any(codes):
            code, failed_at = min(filter(None, codes)), time.monotonic()  # who was killed before who says so
        if None not in codes:
            return code
        if failed_at is not None and time.monotonic() - failed_at > GRACE_S:
            _end(ranks)
        time.sleep(0.02)


def _end(ranks: List[subprocess.Popen]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
    for rank in ranks:
        rank.wait()


def main() -> int:
    if sys.argv[1:2] == ["explore"]:
        from .torch.exploring.command import main as explore  # torch is needed for nothing else here
        return explore(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m heddle", description="start ranks on this host")
    parser.add_argument("-n", type=int, required=True, metavar="RANKS", help="how many")
    parser.add_argument("program", help="a Python program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    given = parser.parse_args()
    if given.n < 1:
        parser.error(f"-n is {given.n}, wanted 1 at least")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by way of _end
    ranks = _start(given.n, [sys.executable, given.program, *given.arguments])
    try:
        code = _wait(ranks)
    except KeyboardInterrupt:  # the terminal sends it to the ranks as well
        code = _interrupted(ranks)
    finally:
        _end(ranks)
    return code if code >= 0 else 128 - code


def _interrupted(ranks: List[subprocess.Popen]) -> int:
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until and any(rank.poll() is None for rank in ranks):
        time.sleep(0.02)
    return 130


if __name__ == "__main__":
    sys.exit(main())
