#!/usr/bin/env python3
"""Predicted against measured seconds of `heddle run`, after `heddle calibrate` in the same sitting.

    predicted.py BUILD [--record FILE [--budget S]] [--cases A:B] [--passes N] [--machine FILE] [--seconds S] [--stages]
    predicted.py BUILD --candidates

A machine is calibrated for every transport (or taken from FILE), models are planned, forecast and run: the median of N
passes, three times over, and the median of these. Exit 1 where the median error is above 6 % or the worst above 15 %.
--record does it in slices, each of about S seconds: a call calibrates for one transport, the one with the fewest runs
in FILE, runs models by it while the time lasts, those with the fewest runs first, and adds them to FILE. At the end
the table is of all runs in FILE: of a model run several times the medians. --budget 0 tells the table alone.
--candidates instead: of five small models the ways that are predicted fastest are run, whole fibres and methods in
every layout, and the plan must be within 5 % of the fastest. Timed: on a machine that does nothing else.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

MEDIAN, WORST, REGRET, ROUNDS, CANDIDATES = 0.06, 0.15, 0.05, 3, 12

HEAD = """model: {name}
dtype: {dtype}
dims:
  b: {{size: {b}, role: batch}}
  {dims}
  c: {{size: {c}, role: channel}}
  l: {{size: {text}, role: text}}
tensors:
  x: [b, {order}, c]
  text: {{dims: [b, l, c], const: true}}
repeat: {layers}
stages:
"""
ATTENTION = "  - {{name: {0}.attn, kind: attention, over: {0}, heads: {1}, modulate: true, qk_norm: true}}\n"
CROSS = "  - {{name: {0}.cross, kind: cross, reads: text, heads: {1}}}\n"
MLP = "  - {{name: {0}.mlp, kind: mlp, ratio: 4, modulate: true}}\n"
LINEAR = ("  - {{name: {0}.lin, kind: linear-attention, over: {0}, heads: {1}, modulate: true, causal: true, "
          "decay: slopes}}\n")
KINDS = {"stdit": ("ts", [ATTENTION, CROSS, MLP]), "latte": ("ts", [ATTENTION, MLP]),
         "full": ("s", [ATTENTION, CROSS, MLP]), "axial": ("thw", [ATTENTION]), "linear": ("ts", None)}


def model(kind, dtype, extents, c, text=64, b=1, layers=2):
    dims, parts = KINDS[kind]
    heads = c // 64
    out = HEAD.format(name=kind, dtype=dtype, b=b, c=c, text=text, layers=layers, order=", ".join(dims),
                      dims="\n  ".join(f"{d}: {{size: {n}, role: seq}}" for d, n in zip(dims, extents)))
    if kind == "linear":
        return out + ATTENTION.format("s", heads) + MLP.format("s") + LINEAR.format("t", heads) + MLP.format("t")
    for d in reversed(dims):
        out += "".join(part.format(d, heads) for part in parts)
    return out + (MLP.format("x") if kind == "axial" else "")


SHAPES = [("stdit", "f32", (16, 64), 512), ("stdit", "bf16", (16, 64), 512), ("stdit", "bf16", (8, 256), 384),
          ("stdit", "f32", (32, 48), 256), ("latte", "bf16", (16, 256), 256), ("latte", "f32", (8, 128), 512),
          ("latte", "bf16", (16, 128), 640), ("full", "bf16", (1024,), 512), ("full", "f32", (768,), 384),
          ("full", "bf16", (2048,), 256), ("axial", "f32", (8, 16, 16), 384), ("axial", "bf16", (16, 16, 16), 256),
          ("axial", "bf16", (8, 16, 32), 512), ("linear", "f32", (256, 8), 384), ("linear", "bf16", (512, 4), 512)]
PLACES = [("threads", 1), ("shm", 2), ("mpi", 2)]
# Two places of three for every shape, by turns: 30 runs.
CASES = [(shape, PLACES[(i + k) % 3]) for i, shape in enumerate(SHAPES) for k in (0, 1)]


class Sitting:
    def __init__(self, options, folder):
        self.options, self.folder, self.machines = options, folder, {}
        self.heddle = os.path.join(options.build, "heddle")
        self.forecaster = os.path.join(options.build, "tests", "bench_forecast")
        if not os.path.exists(self.forecaster):
            self.forecaster = os.path.join(options.build, "bench_forecast")

    def call(self, *words):
        done = subprocess.run(words, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)} exits {done.returncode}: {done.stderr}")
        for line in done.stderr.splitlines():
            if "not quiet" in line:
                print(f"# {line}", flush=True)
        return done.stdout

    def path(self, name):
        return os.path.join(self.folder, name)

    def machine(self, transport):
        if self.options.machine:
            return self.options.machine
        if transport not in self.machines:
            path = self.machines[transport] = self.path(transport + ".yaml")
            told = json.loads(self.call(self.heddle, "calibrate", "--transport", transport, "--ranks", "2", "--seconds",
                                        str(self.options.seconds), "--output", path, "--json"))
            for kind in told["errors"]:
                print(f"# {transport}: {kind['operation']:10} fit error median {100 * kind['median']:.1f} %, worst "
                      f"{100 * kind['worst']:.1f} %")
        return self.machines[transport]

    def plan(self, text, ranks):
        with open(self.path("model.yaml"), "w", encoding="utf-8") as file:
            file.write(text)
        self.call(self.heddle, "plan", self.path("model.yaml"), "--mesh", f"sp={ranks}", "--output",
                  self.path("plan.json"))

    def predict(self, transport):
        return json.loads(self.call(self.forecaster, self.path("model.yaml"), self.path("plan.json"),
                                    self.machine(transport)))

    def measure(self, transport, ranks):
        runs = [json.loads(self.call(self.heddle, "run", self.path("model.yaml"), "--schedule", self.path("plan.json"),
                                     "--ranks", str(ranks), "--transport", transport, "--passes",
                                     str(self.options.passes), "--json")) for _ in range(ROUNDS)]
        return sorted(runs, key=lambda run: run["forward_median_ms"])[len(runs) // 2]


def title(case):
    (kind, dtype, extents, c), (transport, ranks) = case
    return f"{kind} {dtype} {'x'.join(map(str, extents))} c={c}", f"{ranks} {transport}"


def run_case(sitting, case):
    shape, (transport, ranks) = case
    sitting.plan(model(*shape), ranks)
    forecast, run = sitting.predict(transport), sitting.measure(transport, ranks)
    names, stages = {}, []
    for stage in forecast["stages"]:
        one = names.setdefault(stage["stage"], [0, 0])
        one[0] += stage["block_s"] * 1e3
        one[1] += stage["switch_s"] * 1e3
    for stage in run["stages"]:
        block, switch = names.get(stage["stage"], (0, 0))
        stages.append([stage["stage"], stage["layout"], stage["method"], block, stage["block_ms"], switch,
                       stage["switch_ms"]])
    return {"case": title(case), "predicted_ms": forecast["time_s"] * 1e3, "measured_ms": run["forward_median_ms"],
            "stages": stages}


def middle(records, key):
    return statistics.median(record[key] for record in records)


def show(records, with_stages):
    """`records` of each case; errors are of a sitting, so that theirs is the median, not that of the medians."""
    errors = []
    print(f"{'model':28} {'ranks':12} {'runs':>4} {'predicted ms':>13} {'measured ms':>12} {'error %':>8}")
    for of in records:
        name, place = of[0]["case"]
        errors.append(statistics.median(r["predicted_ms"] / r["measured_ms"] - 1 for r in of))
        print(f"{name:28} {place:12} {len(of):4} {middle(of, 'predicted_ms'):13.2f} {middle(of, 'measured_ms'):12.2f} "
              f"{100 * errors[-1]:8.1f}")
        for i, (stage, layout, method, *_) in enumerate(of[-1]["stages"] if with_stages else []):
            block, block_ms, switch, switch_ms = (statistics.median(r["stages"][i][k] for r in of) for k in range(3, 7))
            print(f"#     {stage:8} {layout:8} {method:8} block {block:8.2f} {block_ms:8.2f}  switch {switch:8.3f} "
                  f"{switch_ms:8.3f} ms")
    sizes = sorted(abs(e) for e in errors)
    median, worst = statistics.median(sizes), sizes[-1]
    print(f"{len(sizes)} of {len(CASES)} cases: median error {100 * median:.1f} %, worst {100 * worst:.1f} %")
    return median <= MEDIAN and worst <= WORST


def compare(sitting, cases):
    records = []
    for case in cases:
        records.append([run_case(sitting, case)])
        print(f"# {' '.join(title(case))}", flush=True)
    return show(records, sitting.options.stages)


def compare_slice(sitting, cases):
    start, path, records = time.monotonic(), sitting.options.record, {title(case): [] for case in cases}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                records.setdefault(tuple(record["case"]), []).append(record)
    place = min(PLACES, key=lambda p: sum(len(records[title(case)]) for case in cases if case[1] == p))
    for case in sorted((case for case in cases if case[1] == place), key=lambda case: len(records[title(case)])):
        if time.monotonic() - start < sitting.options.budget:
            records[title(case)].append(run_case(sitting, case))
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(records[title(case)][-1]) + "\n")
    return show([of for of in records.values() if of], sitting.options.stages)


def choose(sitting, _):
    good = True
    for kind, dtype, extents, c in (SHAPES[1], SHAPES[4], SHAPES[7], SHAPES[10], SHAPES[14]):
        with open(sitting.path("model.yaml"), "w", encoding="utf-8") as file:
            file.write(model(kind, dtype, extents, c))
        words = ["--mesh", "sp=2", "--machine", sitting.machine("shm"), "--transport", "shm", "--analyze"]
        told = json.loads(sitting.call(sitting.heddle, "plan", sitting.path("model.yaml"), *words, "--candidates",
                                       str(CANDIDATES), "--json"))
        good &= told["above_best"] <= REGRET
        best, own = told["candidates"][0], next(c for c in told["candidates"] if c["is_plan"])
        print(f"{kind} {dtype} c={c}: {len(told['candidates'])} of {told['possible']} ways: plan {own['how']} "
              f"{own['measured_s'] * 1e3:.2f} ms, best {best['how']} {best['measured_s'] * 1e3:.2f} ms: "
              f"{100 * told['above_best']:.1f} % above", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--record")
    parser.add_argument("--budget", type=float, default=70)
    parser.add_argument("--cases", default=":")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--machine")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--candidates", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sitting = Sitting(options, folder)
        first, last = options.cases.split(":")
        cases = CASES[int(first or 0):int(last or len(CASES))]
        how = choose if options.candidates else compare_slice if options.record else compare
        good = how(sitting, cases)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
