"""The numbers that are printed, computed again by other means: boxes element by element, sums of what stands above,
the table from the JSON."""

import itertools
import json
import math
import os
import re
import sys

import within

HEDDLE, MODELS = os.environ["HEDDLE"], os.path.join(os.environ["HEDDLE_SOURCE"], "examples/models")
BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "u8": 1, "i32": 4, "i8": 1, "bool": 1, "f8e4m3": 1, "f8e5m2": 1}
LINES = [
    "u8[t=7 s=5 c=3] on [sp=3]: t@sp(5 1 1) -> s@sp",
    "f32[t=7 s=5] on [sp=4]: s@sp -> t@sp",
    "bf16[t=9 s=7] on [x=3]: t@x -> *",
    "u8[t=9 s=7] on [x=3]: * -> t@x",
    "f64[t=5 s=6] on [a=2 b=3]: t@a,s@b -> t@b,s@a",
    "u8[t=5 s=7] on [a=2 b=2]: t@a,t@b -> s@b",
    "i32[t=4 s=7] on [x=3]: t@x(0 3 1) -> s@x(6 1 0)",
    "f16[t=2 s=2] on [x=4]: t@x -> s@x",
    "u8[t=6 s=5 c=2] on [a=3]: t@a -> t@a",
]
wrong = []


def run(*arguments):
    return within.answer([HEDDLE, *arguments])


def need(where, what, found, wanted):
    if found != wanted:
        wrong.append(f"{where}: {what} is {found}, by another count {wanted}")


# --- who has what: element by element -------------------------------------------------------------------------------
def cut(extent, parts, lengths):
    if not lengths:
        lengths = [extent // parts + (i < extent % parts) for i in range(parts)]
    ends = list(itertools.accumulate(lengths))
    return [range(end - length, end) for end, length in zip(ends, lengths)]


def holders(shape, axes, layout):
    """Of every element the ranks that have it, in order. Axes of one dim: the next one cuts parts of the first."""
    parts = {name: [] for name in shape}
    for dim, axis, lengths in re.findall(r"(\w+)@(\w+)(?:\(([\d ]+)\))?", layout):
        parts[dim].append((axis, [int(n) for n in lengths.split()]))
    own = []
    for place in itertools.product(*[range(size) for size in axes.values()]):
        at, box = dict(zip(axes, place)), []
        for dim, extent in shape.items():
            number, count, lengths = 0, 1, []
            for axis, given in parts[dim]:
                number, count, lengths = number * axes[axis] + at[axis], count * axes[axis], given
            box.append(cut(extent, count, lengths)[number])
        own.append(set(itertools.product(*box)))
    return own


def sent(line):
    """bytes[from][to]: what a rank lacks comes from the holder that agrees with it on most axes."""
    text, mesh, before, after = re.match(r"(.*) on \[(.*)\]: (.*) -> (.*)", line).groups()
    dtype, dims = re.match(r"(\w+)\[(.*)\]", text).groups()
    shape = {name: int(n) for name, n in re.findall(r"(\w+)=(\d+)", dims)}
    axes = {name: int(n) for name, n in re.findall(r"(\w+)=(\d+)", mesh)}
    src, dst = holders(shape, axes, before), holders(shape, axes, after)
    n, places = len(src), list(itertools.product(*[range(size) for size in axes.values()]))
    count = [[0] * n for _ in range(n)]
    for to in range(n):
        for element in dst[to] - src[to]:
            owners = [r for r in range(n) if element in src[r]]
            best = max(sum(x == y for x, y in zip(places[r], places[to])) for r in owners)
            count[min(r for r in owners if sum(x == y for x, y in zip(places[r], places[to])) == best)][to] += BYTES[
                dtype
            ]
    return count


def volume():
    for line in LINES:
        answer, text = json.loads(run("volume", line, "--json")), run("volume", line)
        bytes_to = answer["bytes"]
        received = [sum(row[to] for row in bytes_to) for to in range(len(bytes_to))]
        gives = [sum(row) for row in bytes_to]
        need(line, "bytes", bytes_to, sent(line))
        need(line, "bytes_total", answer["bytes_total"], sum(gives))
        need(line, "bytes_per_rank_max", answer["bytes_per_rank_max"], max(gives))
        need(line, "bytes_received_max", answer["bytes_received_max"], max(received))
        need(line, "ranks", answer["ranks"], len(bytes_to))
        pairs, peers = sum(b > 0 for row in bytes_to for b in row), max(sum(b > 0 for b in row) for row in bytes_to)
        rows = re.findall(r"(?m)^ +(\d+)((?: +[\d.]+)+)  \| +(\d+)$", text)
        need(line, "the table", [[0 if x == "." else int(x) for x in row.split()] for _, row, _ in rows], bytes_to)
        need(line, "the table's sums", [int(total) for _, _, total in rows], gives)
        need(
            line,
            "the total",
            re.search(
                r"total (\d+) bytes in (\d+) messages between (\d+) pairs of ranks; .* at most (\d+) other", text
            ).groups(),
            tuple(map(str, (sum(gives), answer["messages"], pairs, peers))),
        )
        most = re.search(r"sent per rank: most (\d+) \(rank (\d+)\), mean ([\d.]+), least (\d+) bytes", text).groups()
        need(
            line,
            "sent",
            most,
            (str(max(gives)), str(gives.index(max(gives))), f"{sum(gives) / len(gives):.1f}", str(min(gives))),
        )
        most = re.search(r"received per rank: most (\d+) \(rank (\d+)\), least (\d+) bytes", text).groups()
        need(line, "received", most, (str(max(received)), str(received.index(max(received))), str(min(received))))


# --- a schedule: its edges one by one, and their sums ---------------------------------------------------------------
def plan():
    for model, mesh in (
        ("axial-3d.yaml", "sp=2"),
        ("latte-xl2.yaml", "sp=3"),
        ("stdit3-240p-51f.yaml", "sp=4"),
        ("timesformer-base.yaml", "a=2 b=2"),
    ):
        s, where = (
            json.loads(run("plan", os.path.join(MODELS, model), "--mesh", mesh, "--objective", "bytes", "-o", "-")),
            f"plan {model} {mesh}",
        )
        need(where, "stages", len(s["stages"]), s["period"] * s["repeat"])
        need(where, "edges", len(s["edges"]), len(s["stages"]) + 1)
        need(where, "switches", s["switches"], sum(edge["bytes_total"] > 0 for edge in s["edges"]))
        seen = {}
        for i, edge in enumerate(s["edges"]):
            key = (edge["from"], edge["to"])
            if key not in seen:
                seen[key] = json.loads(
                    run("volume", f"{s['shape']} on {s['mesh']}: {edge['from']} -> {edge['to']}", "--json")
                )
            v = seen[key]
            for field in ("bytes_per_rank_max", "bytes_received_max", "bytes_total", "messages"):
                need(where, f"{field} of edge {i}", edge[field], v[field])
            need(
                where,
                f"where edge {i} leads",
                edge["to"],
                s["stages"][i]["layout"] if i < len(s["stages"]) else edge["to"],
            )
        if all(stage["method"] == "local" for stage in s["stages"]):
            need(where, "bytes_total", s["bytes_total"], sum(edge["bytes_total"] for edge in s["edges"]))
            need(
                where,
                "bytes_per_rank_max",
                s["bytes_per_rank_max"],
                sum(edge["bytes_per_rank_max"] for edge in s["edges"]),
            )


# --- a run: its stages and their sums, measured as planned ----------------------------------------------------------
def a_run():
    tiny = os.path.join(os.environ["HEDDLE_SOURCE"], "tests/golden/tiny.yaml")
    for more in (["--mesh", "sp=2"], ["--mesh", "sp=3", "--size", "t=4,s=10"]):
        planned = json.loads(run("plan", tiny, *more, "--objective", "bytes", "-o", "-"))
        r, where = json.loads(run("run", tiny, *more, "--backward", "--json")), f"run {more}"
        back = r["backward"]
        for part, name in ((r, "forward"), (back, "backward")):
            for field in ("bytes_planned", "bytes_sent"):
                need(
                    f"{where} {name}",
                    f"{field}_per_rank_max, at most the sum of the stages'",
                    part[f"{field}_per_rank_max"] <= sum(stage[field] for stage in part["stages"]),
                    True,
                )
            need(f"{where} {name}", "sent", part["bytes_sent"], part["bytes_planned"])
        need(where, "bytes_planned", r["bytes_planned"], planned["bytes_total"])
        need(where, "bytes_planned backward", back["bytes_planned"], planned["backward_bytes_total"])
        need(where, "runs", sum(stage["runs"] for stage in r["stages"]), len(planned["edges"]))
        need(
            where,
            "step_bytes_planned",
            back["step_bytes_planned"],
            r["bytes_planned"] + back["bytes_planned"] + back["gradient_bytes_planned"],
        )
        need(
            where,
            "step_bytes_sent",
            back["step_bytes_sent"],
            r["bytes_sent"] + back["bytes_sent"] + back["gradient_bytes_sent"],
        )
        need(where, "peak_bytes", len(r["peak_bytes"]), r["ranks"])
        for stage in r["stages"]:
            edges = [
                e
                for e, s in zip(planned["edges"], planned["stages"] + [{"name": "end"}])
                if s["name"] == stage["stage"]
            ]
            need(
                f"{where} {stage['stage']}",
                "bytes_planned",
                stage["bytes_planned"],
                sum(e["bytes_per_rank_max"] for e in edges),
            )
            need(f"{where} {stage['stage']}", "runs", stage["runs"], len(edges))


# --- benches: what follows from what --------------------------------------------------------------------------------
def close(a, b):
    return abs(a - b) <= 0.02 * max(abs(a), abs(b)) + 1e-3


def is_quotient(found, a, b):
    """Of numbers that were printed with four digits behind the point, itself with three."""
    half = 0.5e-4
    most = (a + half) / (b - half) if b > half else math.inf
    return (a - half) / (b + half) - 1e-3 <= found <= most + 1e-3


def bench():
    line = "f32[t=70 s=500 c=30] on [sp=3]: t@sp(50 10 10) -> s@sp"
    b = json.loads(run("bench", line, "--seconds", "0", "--json"))
    need("bench", "bytes_sent_per_rank", b["bytes_sent_per_rank"], 50 * (500 - 167) * 30 * 4)
    need("bench", "bytes_total", b["bytes_total"], 70 * 500 * 30 * 4)
    need("bench", "roofline_ratio", close(b["roofline_ratio"], b["roofline_min_ms"] / b["min_ms"]), True)
    need("bench", "roofline_ratio_median in its range", 0 < b["roofline_ratio_median"] < 10, True)
    need("bench", "gb_per_s", close(b["gb_per_s"], b["bytes_total"] / b["min_ms"] * 1e-6), True)
    need("bench", "samples", b["samples"], 4 * b["rounds"])
    need("bench", "min_ms", b["min_ms"] <= b["median_ms"] and b["roofline_min_ms"] <= b["roofline_median_ms"], True)
    a = json.loads(
        run("bench", "attention", "f32[b=2 s=12 h=4 d=8] on [sp=2]", "--method", "ring", "--seconds", "0", "--json")
    )
    need(
        "bench attention", "bytes_per_rank", a["bytes_per_rank"], 2 * 2 * 6 * 4 * 8 * 4
    )  # keys and values of the own rows
    need(
        "bench attention", "flops_per_rank", a["flops_per_rank"], 2 * 2 * 4 * 6 * 12 * 8 * 2
    )  # scores, and sums of values
    need(
        "bench attention",
        "times_longer_min",
        is_quotient(a["times_longer_min"], a["min_ms"], max(a["local_min_ms"], a["moving_min_ms"])),
        True,
    )
    n = json.loads(run("bench", "linear-attention", "f32[b=2 s=12 h=4 d=8] on [sp=2]", "--seconds", "0", "--json"))
    need("bench linear-attention", "bytes_per_rank", n["bytes_per_rank"], 2 * 4 * 8 * 8 * 4)  # one state


for count in (volume, plan, a_run, bench):
    count()
print("\n".join(wrong[:40]) if wrong else "the numbers are right")
sys.exit(bool(wrong))
