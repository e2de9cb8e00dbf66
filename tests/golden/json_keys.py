"""Every key of every command's --json stands in the docs, in a row or a section that names its schema."""

import json
import os
import re
import sys
import tempfile

import within

HEDDLE, SOURCE = os.environ["HEDDLE"], os.environ["HEDDLE_SOURCE"]
GPUS = ["--machine", "8xh100-nvlink"]
PLAN = ["stdit3-xl2", "--mesh", "sp=4", *GPUS]
LINE = "bf16[b=2 t=30 s=16 c=32] on [sp=2]: t@sp -> s@sp"
TINY = os.path.join(SOURCE, "tests/golden/tiny.yaml")
SMALL = ["--transport", "threads"]
WAYS = [
    ["plan", *PLAN], ["plan", *PLAN, "--size", "b=2"], ["plan", *PLAN, "--training"],
    ["explain", *PLAN], ["explain", *PLAN, "--why-not", "t.attn=/ring"],
    ["compare", *PLAN, "--methods", "best,lasp"], ["sweep", "stdit3-xl2", "-n", "1..4", *GPUS], ["memory", *PLAN],
    ["memory", *PLAN, "--longest", "s"], ["simulate", *PLAN], ["volume", *PLAN], ["volume", LINE],
    ["topo"], ["presets"],
    ["simulate", "attention", "b=1 s=4096 h=8 d=64", "--mesh", "sp=8", "--method", "ring", *GPUS],
    ["run", TINY, "--mesh", "sp=2", *SMALL], ["run", TINY, "--mesh", "sp=2", *SMALL, "--backward", "--check"],
    ["plan", TINY, "--mesh", "sp=2", *SMALL, "--analyze"],
    ["plan", TINY, "--mesh", "sp=2", *SMALL, "--analyze", "--candidates", "2"],
    ["bench", LINE, *SMALL, "--seconds", "0"],
    ["bench", "attention", "f32[b=1 s=64 h=2 d=8] on [sp=2]", "--method", "ring", *SMALL, "--seconds", "0"],
    ["bench", "linear-attention", "f32[b=1 s=64 h=2 d=8] on [sp=2]", *SMALL, "--seconds", "0"],
    ["bench", "products", TINY, "--rows", "9", "--seconds", "0"],
    ["calibrate", "--ranks", "1", "--transport", "self", "--seconds", "1", "--output", os.devnull],
]


SIMULATOR = os.path.join(os.environ["HEDDLE_BUILD"], "tests/device-sim")
if os.path.exists(os.path.join(SIMULATOR, "libheddle_cuda.so")):
    os.environ["HEDDLE_MODULE_PATH"] = SIMULATOR
    WAYS.append(["run", TINY, "--size", "t=4,s=6", "--layers", "1", "--ranks", "1", *SMALL, "--device", "cuda",
                 "--backward", "--passes", "2"])


def keys_of(value):
    """Of objects in objects, but for what a file format says for itself."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key != "schedule":
                yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


def documented():
    text = "".join(open(os.path.join(SOURCE, "docs", name)).read() for name in ("formats.md", "planner.md"))
    return set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", " ".join(re.findall(r"`([^`]*)`", text)))), text


def main():
    failed, (known, text) = 0, documented()
    with tempfile.TemporaryDirectory() as folder:
        for i in (0, 1):
            within.answer([HEDDLE, "plan", *PLAN, "-o", f"{folder}/{i}.json"])
        for words in [*WAYS, ["diff", f"{folder}/0.json", f"{folder}/1.json"]]:
            done = within.run([HEDDLE, *words, "--json"])
            what = " ".join(words[:2])
            if done.returncode != 0:
                print("FAILED", what, done.returncode, done.stderr)
                failed = 1
                continue
            said = json.loads(done.stdout)
            schema = said.get("schema") if isinstance(said, dict) else None
            missing = sorted(set(keys_of(said)) - known)
            if not re.fullmatch(r"heddle-[a-z]+-[0-9]+", schema or "") or f"`{schema}`" not in text or missing:
                print("FAILED", what, "schema", schema, "keys that no document has:", missing)
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
