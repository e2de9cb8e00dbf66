"""heddle run says what it holds, kind by kind, beside what was planned: byte by byte the same, by every method, there
and back; and the sum is what the processes have grown by."""

import json
import os
import subprocess
import sys
import tempfile
import time

import within
from checked import check, finish

HEDDLE = os.environ["HEDDLE"]
FOLDER = tempfile.TemporaryDirectory()
SOFTMAX = """model: softmax
dtype: DTYPE
dims: {b: {size: 1, role: batch}, t: 31, s: 90, c: {size: 64, role: channel}, l: {size: 20, role: text}}
tensors: {x: [b, t, s, c], text: {dims: [b, l, c], const: true}}
repeat: 2
stages:
  - {name: s.attn, kind: attention, over: s, heads: 4, modulate: true, qk_norm: true}
  - {name: cross, kind: cross, reads: text, heads: 4}
  - {name: t.attn, kind: attention, over: t, heads: 4, rope: true}
  - {name: mlp, kind: mlp, ratio: 2, modulate: true}
"""
LINEAR = """model: linear
dtype: DTYPE
dims: {b: {size: 2, role: batch}, t: 31, s: 45, c: {size: 64, role: channel}, l: {size: 3, role: text}}
tensors: {x: [b, t, s, c], text: {dims: [b, l, c], const: true}}
repeat: 2
stages:
  - {name: t.lin, kind: linear-attention, over: t, heads: 4, causal: true}
  - {name: cross, kind: cross, reads: text, heads: 4}
  - {name: both, kind: linear-attention, over: t, heads: 4}
"""
PLANNED = ("parameters", "gradients", "kept", "blocks", "switches")


def model(text, dtype):
    path = f"{FOLDER.name}/{text.split()[1]}-{dtype}.yaml"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("DTYPE", dtype))
    return path


def planned(path, mesh, method, *more):
    schedule = f"{FOLDER.name}/plan.json"
    words = [HEDDLE, "plan", path, "--mesh", mesh, "--objective", "bytes", "--output", schedule, *more]
    within.answer(words + (["--method", f"*={method}"] if method != "local" else []), cwd="/")
    return schedule


def memory_of(path, schedule, *more):
    words = [HEDDLE, "run", path, "--schedule", schedule, "--passes", "2", "--json", *more]
    return json.loads(within.answer(words, cwd="/"))


def parameters(text, repeat):
    """Of 64 channels, an MLP twice as wide; counted by hand."""
    c = 64
    attention, cross = 4 * c * c + 4 * c, 4 * c * c + 4 * c
    if text == LINEAR:
        return repeat * (2 * attention + cross) * 4
    return repeat * (2 * attention + 2 * (c // 4) + cross + 4 * c * c + 3 * c) * 4


def same(text, dtype, mesh, method, *ways, transport="threads", size=""):
    path = model(text, dtype)
    sizes = ["--size", size] if size else []
    schedule = planned(path, mesh, method, *sizes, *[w for w in ways if w == "--backward"])
    run = memory_of(path, schedule, "--transport", transport, *sizes, *ways)
    memory, what = run["memory"], f"{text.split()[1]} {dtype} {mesh} {method} {transport} {size} {ways}:"
    for kind in PLANNED:  # a rank that has nothing in a layout has an address all the same
        page = 4096 if kind == "switches" and size else 0
        differ = memory[kind]["held_bytes"] - memory[kind]["planned_bytes"]
        check(differ in (0, page), f"{what} {kind} {memory[kind]}")
    methods = memory["methods"]
    check(methods["planned_bytes"] == methods["held_bytes"] + methods["lent_bytes"], f"{what} methods {methods}")
    check(methods["lent_bytes"] == 0 or method in ("ring", "rsa", "usp"), f"{what} {methods} is lent")
    check((methods["held_bytes"] > 0) == (method != "local"), f"{what} {methods} for the method")
    check(method == "local" or method in {row["method"] for row in run["stages"]}, f"{what} by other methods")
    back = "--backward" in ways
    # a stage's repetitions have one block where they run alike, each its own on the way back
    check(memory["parameters"]["held_bytes"] == parameters(text, 2 if back else 1), f"{what} {memory['parameters']}")
    check(memory["gradients"]["held_bytes"] == (memory["parameters"]["held_bytes"] if back else 0), f"{what} gradients")
    check((memory["kept"]["held_bytes"] > 0) == back, f"{what} {memory['kept']} kept")
    if back:
        check(run["backward"]["kept_bytes_max"] == memory["kept"]["held_bytes"], f"{what} {memory['kept']} kept")
    parts = sum(memory[kind]["held_bytes"] for kind in memory if kind != "held_bytes_max")
    check(0 < memory["held_bytes_max"] <= parts, f"{what} {memory['held_bytes_max']} of {parts}")
    return memory


def every_method():
    """Each of them there, there and back, and recomputing; ranks and dtypes by turns."""
    ways = ([], ["--backward"], ["--backward", "--recompute"])
    methods = (("local", SOFTMAX), ("ring", SOFTMAX), ("rsa", SOFTMAX), ("ulysses", SOFTMAX), ("gather-kv", SOFTMAX),
               ("local", LINEAR), ("lasp", LINEAR), ("lasp2", LINEAR), ("scan", LINEAR))
    for i, (method, text) in enumerate(methods):
        for j, more in enumerate(ways):
            same(text, ("f32", "bf16")[(i + j) % 2], f"sp={2 + (i + j) % 3}", method, *more)
    for j, more in enumerate(ways):
        same(SOFTMAX, ("bf16", "f32")[j % 2], "r=2 u=2", "usp", *more)
        same((SOFTMAX, LINEAR)[j % 2], "f32", "sp=1", "local", *more)
    same(SOFTMAX, "bf16", "sp=4", "ring", "--backward", size="t=3,s=1500")  # a rank without rows
    same(LINEAR, "f32", "sp=4", "lasp2", "--backward", "--recompute", size="t=3,s=500")
    same(SOFTMAX, "f32", "sp=4", "local", size="t=3,s=1500")


def wide_mlp():
    """The hidden rows that its way back walks in f32 may be more than the gradients of q, k and v of all rows."""
    path, size = model(SOFTMAX.replace("ratio: 2", "ratio: 4"), "f32"), ["--size", "t=4,s=10"]
    schedule = planned(path, "sp=2", "local", "--backward", *size)
    blocks = memory_of(path, schedule, "--transport", "threads", "--backward", *size)["memory"]["blocks"]
    rows, c = 20, 64
    more = blocks["held_bytes"] - blocks["planned_bytes"]
    check(more == (rows * 4 * c - rows * 3 * c) * 4, f"an MLP that is wider than q, k and v: {blocks}")


def out_of_reach():
    """By messages nothing is lent: all that is planned is held."""
    for method in ("ring", "rsa"):
        reached = same(SOFTMAX, "f32", "sp=3", method, "--backward", transport="shm")["methods"]
        check(reached["lent_bytes"] > 0, f"{method}: nothing is lent: {reached}")
        by_messages = same(SOFTMAX, "f32", "sp=3", method, "--backward", "--messages", transport="tcp")["methods"]
        check(by_messages["lent_bytes"] == 0, f"{method} by messages: {by_messages}")


def layers():
    """What stages work in is no more for more of them."""
    path = model(SOFTMAX, "f32")
    one, many = ({}, {})
    for of, repeat in ((one, "1"), (many, "5")):
        schedule = planned(path, "sp=2", "ring", "--backward", "--layers", repeat)
        of.update(memory_of(path, schedule, "--transport", "threads", "--layers", repeat, "--backward")["memory"])
    for kind in ("methods", "blocks", "switches", "threads"):
        check(one[kind]["held_bytes"] == many[kind]["held_bytes"] > 0, f"{kind}: {one[kind]}, of 5 layers {many[kind]}")


def pss_of(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def ranks_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []


def grown(path, schedule, *more):
    """What heddle run says it holds in all, and the largest Pss of its processes together while it ran."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        words = [HEDDLE, "run", path, "--schedule", schedule, "--json", "--transport", "shm", *more]
        process = subprocess.Popen(words, stdout=out, stdin=subprocess.DEVNULL, cwd="/")
        most = 0
        while process.poll() is None:
            most = max(most, sum(pss_of(pid) for pid in [process.pid, *ranks_of(process.pid)]))
            time.sleep(0.01)
        if process.returncode != 0:
            sys.exit(f"FAILED {' '.join(words)}: exit {process.returncode}")
        out.seek(0)
        return json.load(out)["memory"]["held_bytes_max"], most


def outside():
    """The ranks' growth from a small problem to one whose arrays are nearly all of it."""
    path, size = model(SOFTMAX, "f32"), ["--size", "t=60,s=600"]
    for method, back in (("ring", True), ("ulysses", True), ("gather-kv", False)):
        ways = ["--backward"] if back else []
        small = grown(path, planned(path, "sp=2", method, *ways), *ways)
        large = grown(path, planned(path, "sp=2", method, *ways, *size), *ways, *size)
        said, seen = 2 * (large[0] - small[0]), large[1] - small[1]
        check(0.9 * said < seen < 1.1 * said, f"{method} {ways}: {said} bytes more are said, {seen} seen")
        print(f"{method} {ways}: said {said}, seen {seen}: {seen / said:.3f}")


every_method()
wide_mlp()
out_of_reach()
layers()
if os.path.exists("/proc/self/smaps_rollup"):
    outside()
finish()
