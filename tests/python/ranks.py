"""Starts programs of several ranks and gives back what they printed."""
import os
import subprocess
import sys
import textwrap

SCALE = float(os.environ.get("HEDDLE_TEST_TIME_SCALE", "1"))

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
