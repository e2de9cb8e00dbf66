"""The package's annotations hold, so that a program's own check against it (py.typed) is worth something."""
import os
import subprocess
import sys
from pathlib import Path


def test_mypy_finds_nothing(tmp_path):
    package = Path(os.environ["HEDDLE_BUILD"]) / "python" / "heddle"
    # torch itself is not read: it takes half a minute
    run = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), "--follow-imports", "skip",
                          "--warn-unreachable", "--no-implicit-reexport", str(package)],
                         capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stdout + run.stderr
