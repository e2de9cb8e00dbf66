"""heddle plan --analyze: bytes of every stage as planned, each stage in a row; and the activations that heddle run
keeps are those of the forecast, byte by byte."""

import json
import os
import tempfile

import within
from checked import check, finish

HEDDLE = os.environ["HEDDLE"]
SOURCE = os.environ["HEDDLE_SOURCE"]
TINY = f"{SOURCE}/tests/golden/tiny.yaml"
FOLDER = tempfile.TemporaryDirectory()
# Heads of 16 channels: rows of their states are as wide as a vector.
LINEAR = """model: linear
dtype: bf16
dims: {b: {size: 2, role: batch}, t: 5, s: 9, c: {size: 64, role: channel}, l: {size: 3, role: text}}
tensors: {x: [b, t, s, c], text: {dims: [b, l, c], const: true}}
repeat: 2
stages:
  - {name: t.lin, kind: linear-attention, over: t, heads: 4, causal: true}
  - {name: both, kind: linear-attention, over: t, heads: 4}
  - {name: cross, kind: cross, reads: text, heads: 4}
  - {name: mlp, kind: mlp, ratio: 4}
"""
METHODS = ("ring", "rsa", "ulysses", "gather-kv", "lasp", "lasp2", "scan")


def ask(*words):
    return json.loads(within.answer([HEDDLE, *words, "--json"], cwd="/"))


def analyzed(transport, *words):
    plan = ask("plan", TINY, *words)
    of = ask("plan", TINY, *words, "--analyze", "--transport", transport)
    what = f"{transport} {' '.join(words)}"
    stages, edges = plan["schedule"]["stages"], plan["schedule"]["edges"]
    check(of["schema"] == "heddle-analysis-1" and of["mesh"] == plan["mesh"], f"{what}: {of['schema']} {of['mesh']}")
    check(of["bytes_agree"] and of["bytes_sent"] == of["bytes_planned"] == plan["bytes_total"] > 0,
          f"{what}: {of['bytes_sent']} bytes sent, {of['bytes_planned']} to send, {plan['bytes_total']} planned")
    check(abs(of["predicted_s"] - plan["time_s"]) <= 1e-9 * plan["time_s"], f"{what}: predicted {of['predicted_s']}")
    check(sum(r["runs"] for r in of["stages"]) == len(stages) + 1, f"{what}: rows of {len(stages)} stages")
    check(abs(sum(r["predicted_s"] for r in of["stages"]) - plan["time_s"]) <= 1e-9 * plan["time_s"],
          f"{what}: rows do not add up to what is predicted")
    for row in of["stages"]:
        check(row["bytes_sent"] == row["bytes_planned"], f"{what}: {row}")
        check(row["measured_s"] > 0 or row["stage"] == "end", f"{what}: {row} takes no time")
        if row["stage"] != "end":
            own = [i for i, s in enumerate(stages) if (s["name"], s["layout"], s["method"]) ==
                   (row["stage"], row["layout"], row["method"])]
            moved = [edges[i].get("forward_bytes_per_rank_max", edges[i].get("bytes_per_rank_max", 0)) for i in own]
            check(len(own) == row["runs"] and (row["bytes_planned"] > 0 or not any(moved)), f"{what}: {row}, {moved}")
    check(0 < of["memory_held_bytes"] <= of["memory_predicted_bytes"], f"{what}: memory {of['memory_held_bytes']}")
    check(of["memory_held_bytes"] < of["memory_peak_bytes"], f"{what}: memory {of['memory_peak_bytes']}")


def weights_of_a_layer():
    """A run's layers share their weights: more of them are more of a plan's memory, and not of a run's."""
    words = ["plan", "latte-xl2", "--size", "t=2,s=8,c=288", "--mesh", "sp=2", "--objective", "bytes", "--analyze",
             "--layers"]
    one, six = ask(*words, "1"), ask(*words, "6")
    check(six["memory_predicted_bytes"] > 5 * one["memory_predicted_bytes"], f"{six['memory_predicted_bytes']} bytes")
    for of in one, six:
        check(0.9 < of["memory_held_bytes"] / one["memory_predicted_bytes"] < 1.1, f"{of['memory_held_bytes']} bytes")
        check(of["memory_held_bytes"] < of["memory_peak_bytes"], f"memory {of['memory_peak_bytes']}")


def kept(model, *words):
    """What a run's stages keep for the way back, in tapes and in objects of methods, is what is planned of each."""
    recompute = [w for w in words if w == "--recompute"]
    words = [w for w in words if w not in recompute] + ["--objective", "bytes"]
    path = f"{FOLDER.name}/plan.json"
    size = words[words.index("--size"):][:2] if "--size" in words else []
    ask("plan", model, *words, "--backward", "--output", path)
    planned = [model, *size, "--schedule", path, *recompute]
    run, plan = ask("run", *planned, "--transport", "threads", "--backward"), ask("memory", *planned, "--training")
    planned = {stage["name"]: stage["kept_bytes"] for stage in plan["stages"]}
    measured = dict.fromkeys([*planned, "end"], 0)
    for row in run["backward"]["stages"]:
        measured[row["stage"]] += row["kept_bytes"]
    what = f"{words} {recompute}:"
    check(measured == {**planned, "end": 0}, f"{what} {measured} kept, {planned} planned")
    check(run["backward"]["kept_bytes_max"] == sum(planned.values()), f"{what} {run['backward']} in all, {planned}")
    return {row["method"] for row in run["stages"]} - {""}, plan["activations"] - sum(planned.values())


def kept_by_every_method():
    """On whole fibres the activation on its way and its text come on top: the plan is fullest behind the last stage."""
    text, linear = 20 * 48 * 4, f"{FOLDER.name}/linear.yaml"
    with open(linear, "w", encoding="utf-8") as file:
        file.write(LINEAR)
    for ranks in (1, 2, 3, 4):
        mesh = ["--mesh", f"sp={ranks}"]
        parts = (-(-15 // ranks) * 25, 15 * -(-25 // ranks))
        for more in ([], ["--recompute"]):
            methods, rest = kept(TINY, "--size", "t=15,s=25", *mesh, *more)
            check(methods == {"local"} and rest in [part * 48 * 4 + text for part in parts], f"{mesh} {more}: {rest}")
            for method in METHODS if ranks == 3 or (ranks > 1 and not more) else ():
                model = [linear] if method in ("lasp", "lasp2", "scan") else [TINY, "--size", "t=5,s=9"]
                ways = [*model, *mesh, "--method", f"*={method}", *more]
                check(method in kept(*ways)[0], f"{ways} by other methods")
    check("usp" in kept(TINY, "--mesh", "r=2 u=2", "--method", "*=usp", "--size", "t=5,s=9")[0], "usp")


def candidates():
    """Six ways for each of two attentions: whole fibres in 3 layouts, and 3 methods over the sharded dim."""
    words = ["plan", TINY, "--mesh", "sp=2", "--size", "t=4,s=6", "--layers", "1"]
    plan, of = ask(*words), ask(*words, "--analyze", "--candidates", "4")
    own = [c for c in of["candidates"] if c["is_plan"]]
    check(of["possible"] == 36 and len(of["candidates"]) == 4, f"{of['possible']} candidates")
    check(len(own) == 1 and abs(own[0]["predicted_s"] - plan["time_s"]) <= 1e-9 * plan["time_s"], f"the plan: {own}")
    times = [c["measured_s"] for c in of["candidates"]]
    check(times == sorted(times) and times[0] > 0, f"measured: {times}")
    quotient = own[0]["measured_s"] / times[0]  # of numbers of six digits; a busy machine stretches one of them
    check(abs(of["above_best"] - (quotient - 1)) < 1e-4 * quotient, f"above the best: {of}")
    check(min(c["predicted_s"] for c in of["candidates"]) >= plan["time_s"] * (1 - 1e-9), f"one is faster: {of}")


candidates()
weights_of_a_layer()
for transport in ("threads", "shm"):
    analyzed(transport, "--mesh", "sp=2")
analyzed("shm", "--mesh", "sp=3", "--objective", "bytes")
analyzed("threads", "--mesh", "sp=2", "--method", "*=ring", "--force", "s.attn=s@sp")
kept_by_every_method()
finish()
