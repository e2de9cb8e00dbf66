#!/usr/bin/env python3
"""Predicted against measured seconds of `heddle run`, after `heddle calibrate` in the same sitting.

    predicted.py BUILD [--record FILE [--budget S]] [--cases A:B] [--passes N] [--machine FILE] [--seconds S] [--stages]
    predicted.py BUILD --candidates

A machine is calibrated for every transport (or taken from FILE), models are planned, forecast and run: the median of N
passes, and of five such runs the median. All models are run once before the first is run again: what disturbs the
machine for a while disturbs one run of many models, not all of one. Exit 1 where the median error is above 6 % or the
worst above 15 %. --record does it in slices, each of about S seconds: a call calibrates for one transport, the one
with the fewest runs in FILE, runs its models by it while the time lasts and adds them to FILE. At the end the table is
of all in FILE: of a model run in several slices the medians. --budget 0 tells the table alone.
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

MEDIAN, WORST, REGRET, ROUNDS, CANDIDATES = 0.06, 0.15, 0.05, 5, 12

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


def title(case):
    (kind, dtype, extents, c), (transport, ranks) = case
    return f"{kind} {dtype} {'x'.join(map(str, extents))} c={c}", f"{ranks} {transport}"


class Trial:
    """One case of a sitting: planned and forecast at once, run again and again."""

    def __init__(self, sitting, case):
        self.sitting, self.case, self.runs = sitting, case, []
        shape, (self.transport, self.ranks) = case
        self.model, self.plan = (sitting.path(f"{CASES.index(case)}.{what}") for what in ("yaml", "json"))
        with open(self.model, "w", encoding="utf-8") as file:
            file.write(model(*shape))
        sitting.call(sitting.heddle, "plan", self.model, "--mesh", f"sp={self.ranks}", "--output", self.plan)
        self.forecast = json.loads(sitting.call(sitting.forecaster, self.model, self.plan,
                                                sitting.machine(self.transport)))

    def run(self):
        self.runs.append(json.loads(self.sitting.call(
            self.sitting.heddle, "run", self.model, "--schedule", self.plan, "--ranks", str(self.ranks), "--transport",
            self.transport, "--passes", str(self.sitting.options.passes), "--json")))

    def record(self):
        run = sorted(self.runs, key=lambda one: one["forward_median_ms"])[len(self.runs) // 2]
        stages = {}  # by name: its repetitions may have different layouts
        for stage in run["stages"]:
            one = stages.setdefault(stage["stage"], [stage["stage"], stage["layout"], stage["method"], 0, 0, 0, 0])
            one[4] += stage["block_ms"]
            one[6] += stage["switch_ms"]
        for stage in self.forecast["stages"]:
            stages[stage["stage"]][3] += stage["block_s"] * 1e3
            stages[stage["stage"]][5] += stage["switch_s"] * 1e3
        return {"case": title(self.case), "predicted_ms": self.forecast["time_s"] * 1e3,
                "measured_ms": run["forward_median_ms"], "stages": list(stages.values())}


def run_all(sitting, cases, end=float("inf")):
    """Records of those that ran before `end`."""
    trials = [Trial(sitting, case) for case in cases]
    for _ in range(ROUNDS):
        for trial in trials:
            if time.monotonic() < end:
                trial.run()
    return [trial.record() for trial in trials if trial.runs]


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
    return show([[record] for record in run_all(sitting, cases)], sitting.options.stages)


def compare_slice(sitting, cases):
    end, path, records = time.monotonic() + sitting.options.budget, sitting.options.record, {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                records.setdefault(tuple(record["case"]), []).append(record)
    place = min(PLACES, key=lambda p: sum(len(records.get(title(case), [])) for case in cases if case[1] == p))
    made = run_all(sitting, [case for case in cases if case[1] == place], end) if sitting.options.budget > 0 else []
    with open(path, "a", encoding="utf-8") as file:
        for record in made:
            records.setdefault(record["case"], []).append(record)
            file.write(json.dumps(record) + "\n")
    return show(list(records.values()), sitting.options.stages)


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
    parser.add_argument("--budget", type=float, default=120)
    parser.add_argument("--cases", default=":")
    parser.add_argument("--passes", type=int, default=3)
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
