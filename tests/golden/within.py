"""Programs that end at a limit of time: so many seconds on a machine of its own, more where other work shares the
cores, and by HEDDLE_TEST_TIME_SCALE (in C support/time_limit.h, in shell support/within.sh)."""

import os
import subprocess
import sys


def cores():
    """Those of this process's affinity, and no more than the quota of its container (cgroup v2)."""
    own = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
    except OSError:
        return own
    return own if quota == "max" else min(own, int(quota) / int(period))


def limit(seconds):
    scale = float(os.environ.get("HEDDLE_TEST_TIME_SCALE", "1"))
    return seconds * scale * max(1, os.getloadavg()[0] / cores())


def run(words, seconds=120, **given):
    """What subprocess.run gives, as text; past the limit the code 124, as of timeout, and a sentence on stderr."""
    words, limit_s = [str(word) for word in words], limit(seconds)
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=limit_s, **given
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"{' '.join(words)}: not done in {limit_s:.0f} s\n")


def answer(words, seconds=120, **given):
    """What it prints where it ends well; else the script ends."""
    done = run(words, seconds, **given)
    if done.returncode != 0:
        sys.exit(f"FAILED {' '.join(done.args)}: exit {done.returncode}: {done.stderr}")
    return done.stdout
