"""The wheel: built as a user builds it, installed where nothing of the source tree is seen."""
import os
import subprocess
import sys
import zipfile
from pathlib import Path

SOURCE = Path(os.environ["HEDDLE_SOURCE"])


def call(*command, **given):
    run = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=1500, **given)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_a_wheel_is_built_installed_and_used(tmp_path):
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    call(*pip, "wheel", SOURCE, "--no-build-isolation", "--no-deps", "-w", tmp_path, f"-Cbuild-dir={tmp_path}/build")
    (wheel,) = tmp_path.glob("heddle-*.whl")
    assert "-py3-none-linux_" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("_abi.py", "comm.py", "torch/reshard.py", "py.typed", "libheddle.so"):
        assert f"heddle/{name}" in names, names
    has_mpi = (Path(os.environ["HEDDLE_BUILD"]) / "libheddle_mpi.so").exists()
    assert ("heddle/libheddle_mpi.so" in names) == has_mpi
    assert not [name for name in names if not name.startswith(("heddle/", "heddle-"))], names

    call(*pip, "install", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    environment.pop("LD_LIBRARY_PATH", None)
    where = call(sys.executable, "-c", "import heddle; print(heddle.__file__)", cwd=tmp_path, env=environment)
    assert where.strip() == str(tmp_path / "site" / "heddle" / "__init__.py")
    output = call(sys.executable, "-m", "heddle", "-n", "4", SOURCE / "examples/python/01_switch.py", cwd=tmp_path,
                  env=environment)
    assert output.count(" 0 wrong") == 4
    if has_mpi:
        call(sys.executable, "-c", "import heddle; heddle.Comm.open('mpi').close()", cwd=tmp_path,
             env={**environment, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
