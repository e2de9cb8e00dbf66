"""together.py JOBS MODULES FILE...: pytest of the files, JOBS at a time, each in a fork of this process, which has
imported what takes seconds of every file and used nothing of it. A file sees nothing of the others, and what it prints
stands together, with its seconds and those of cores. What takes too long is ended and has failed."""
import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
import tempfile
import time

LIMIT_S = 900  # of a file; of all ctest has one

# As files have it before they import these: no threads and no helpers where a process forks, no network.
os.environ.update(OPENBLAS_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1", HF_HUB_OFFLINE="1",
                  TRANSFORMERS_VERBOSITY="error")
jobs, modules = int(sys.argv[1]), {name: importlib.import_module(name) for name in sys.argv[2].split()}
if "torch" in modules:  # what ranks that take a step or have checkpoints import
    importlib.import_module("torch._dynamo")
    importlib.import_module("torch._functorch.aot_autograd")
if "diffusers" in modules:
    modules["diffusers"].ModelMixin  # imports what models share
elif "torch" in modules:
    with contextlib.suppress(ImportError):  # the files that need it say what is missing
        importlib.import_module("torch._inductor.compile_fx")
prctl = ctypes.CDLL(None).prctl
gc.collect()
gc.freeze()  # no fork looks for garbage among it


def begun(file):
    """Its process, what that prints, and when it began."""
    print(f"begins {os.path.basename(file)}", flush=True)
    output, since = tempfile.TemporaryFile(), time.monotonic()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # by which it is ended with its processes
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not without the parent
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
        code = modules["pytest"].main(["-q", "-p", "no:cacheprovider", "--rootdir", os.path.dirname(file), file])
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)  # to take apart what is imported takes longer than most files
    return child, (os.path.basename(file), output, since)


waiting, running, failed = sys.argv[:2:-1], {}, []
while waiting or running:
    while waiting and len(running) < jobs:
        child, facts = begun(waiting.pop())
        running[child] = facts
    child, status, used = os.wait4(-1, os.WNOHANG)
    if child == 0:
        for late in [child for child, (_, _, since) in running.items() if time.monotonic() - since > LIMIT_S]:
            print(f"{running[late][0]} is ended: it takes more than {LIMIT_S} s", flush=True)
            os.killpg(late, signal.SIGKILL)
            os.waitid(os.P_PID, late, os.WEXITED | os.WNOWAIT)
        time.sleep(0.1)
        continue
    name, output, since = running.pop(child)
    print(f"--- {name}: {time.monotonic() - since:.0f} s, of cores {used.ru_utime + used.ru_stime:.0f} s", flush=True)
    output.seek(0)
    sys.stdout.buffer.write(output.read())
    sys.stdout.flush()
    if status != 0:
        failed.append(name)
if failed:
    print(f"failed: {' '.join(failed)}", flush=True)
os._exit(bool(failed))
