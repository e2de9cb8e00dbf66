"""Starts programs of several ranks and gives back what they printed."""
import os
import subprocess
import sys
import textwrap

SCALE = float(os.environ.get("HEDDLE_TEST_TIME_SCALE", "1"))


def start(folder, source, ranks, **popen):
    """The program `source` on so many ranks, as a user starts it."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(source))
    command = [sys.executable, "-m", "heddle", "-n", str(ranks), str(program)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # whole lines
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            **popen)


def run(folder, source, ranks):
    """Every rank ends well and prints "ok" last; the output of all together."""
    program = start(folder, source, ranks)
    try:
        output, _ = program.communicate(timeout=120 * SCALE)
    finally:
        program.kill()
    assert program.returncode == 0 and output.count("ok\n") == ranks, output
    return output
