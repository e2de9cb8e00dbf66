"""together.py MODULES FILE...: pytest of one file after the other, each in a fork of this process, which has imported
what takes seconds of every file and used nothing of it. A file sees nothing of those before it."""
import gc
import importlib
import os
import sys

# As files have it before they import these: no threads and no helpers where a process forks, no network.
os.environ.update(OPENBLAS_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1", HF_HUB_OFFLINE="1",
                  TRANSFORMERS_VERBOSITY="error")
modules = {name: importlib.import_module(name) for name in sys.argv[1].split()}
if "torch" in modules:  # what ranks that take a step or have checkpoints import
    importlib.import_module("torch._dynamo")
    importlib.import_module("torch._functorch.aot_autograd")
if "diffusers" in modules:
    modules["diffusers"].ModelMixin  # imports what models share
gc.collect()
gc.freeze()  # no fork looks for garbage among it

failed = []
for file in sys.argv[2:]:
    print(f"--- {os.path.basename(file)}", flush=True)
    child = os.fork()
    if child == 0:
        words = ["-q", "-p", "no:cacheprovider", "--rootdir", os.path.dirname(file), file]
        code = modules["pytest"].main(words)
        gc.unfreeze()  # it ends as any other process does
        sys.exit(code)
    if os.waitpid(child, 0)[1] != 0:
        failed.append(os.path.basename(file))
gc.unfreeze()
sys.exit(f"failed: {' '.join(failed)}" if failed else 0)
