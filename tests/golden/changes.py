"""Where the best plan changes as links do (heddle explain): a crossing known in closed form; and of presets, plans and
forecasts on machines that this script writes itself order as told on both sides of what is told."""

import json
import math
import os
import sys
import tempfile

import within

HEDDLE = os.environ["HEDDLE"]
ROWS, CHANNELS, RATE = 1024, 256, 1e12
MODEL = f"""model: planted
dtype: bf16
dims: {{s: {ROWS}, c: {{size: {CHANNELS}, role: channel}}}}
tensors: {{x: [s, c]}}
stages:
  - {{name: mlp, kind: mlp, ratio: 4}}
"""
# Every rank has the input and wants the result. All work alike, flops / RATE; or each does half of it, and half of the
# result is sent. Both take the same at this rate of the link:
EVEN = (ROWS * CHANNELS * 2 / 2) / (16 * ROWS * CHANNELS**2 / RATE / 2)
HALF, WHOLE = "mlp in s@sp instead of *", "mlp in * instead of s@sp"
LINKS = {"near": 2e11, "far": 1.5e10}
PRESETS = (
    ["hunyuanvideo", "-n", "16"], ["hunyuanvideo", "--mesh", "sp=16"], ["stdit3-xl2", "-n", "8"],
    ["stdit3-xl2", "--mesh", "a=2 b=4"], ["gpt-like", "-n", "16", "--training"],
    ["wan2.1-14b", "-n", "8", "--memory", "30G"], ["cogvideox-5b", "-n", "12", "--objective", "gpu-seconds"],
    ["axial-3d", "--mesh", "sp=8"], ["transnormerllm-1b", "-n", "16"],
)  # fmt: skip
failed = told = 0


def need(what, is_so, found=""):
    global failed
    if not is_so:
        failed = 1
        print("FAILED", what, found)


def ask(*words):
    return json.loads(within.answer([HEDDLE, *words, "--json"], 300))


def one_link(path, rate):
    with open(path, "w") as file:
        file.write(f"""machine: planted
levels: [{{name: gpu, size: 2, link: wire}}]
work:
  product: {{bf16: {{start_s: 0, rates: {RATE}}}}}
  attention: {{bf16: {{start_s: 0, rates: {RATE}}}}}
  memory: {{start_s: 0, rates: 1e21}}
links:
  wire: {{all_gather: [{{start_s: 0, rates: {rate}}}]}}
""")
    return path


def closed_form(folder):
    model = f"{folder}/model.yaml"
    with open(model, "w") as file:
        file.write(MODEL)
    for times in (1.05, 3, 7.7, 60, 80):
        for way, rate, change in (("slower", EVEN * times, WHOLE), ("faster", EVEN / times, HALF)):
            machine = one_link(f"{folder}/one.yaml", rate)
            words = model, "--mesh", "sp=2", "--prologue", "*", "--machine", machine
            found = {c["way"]: c for c in ask("explain", *words)["changes"]}
            need(f"{way} than {times} classes", {c["class"] for c in found.values()} == {None}, found)
            need(f"but not {way}", all(c["times"] is None for c in found.values() if c["way"] != way), found)
            if times > 64:
                need(f"{way} than {times}", found[way]["times"] is None, found)
            else:
                need(f"{way} than {times}", abs((found[way]["times"] or 0) / times - 1) < 3e-3, found)
                need(f"what is {way}", found[way]["change"] == change, found)
            bytes_alone = ask("explain", *words, "--objective", "bytes")["changes"]
            need("bytes have no rate", bytes_alone == [], bytes_alone)


def too_slow(folder):
    """Rates that cannot be so much lower are no reason to refuse the rest."""
    words = "stdit3-xl2", "--mesh", "sp=2", "--top", "0", "--machine", one_link(f"{folder}/one.yaml", 10)
    found = ask("explain", *words)["changes"]
    need("links of 10 bytes per second", [c["way"] for c in found] == ["faster"], found)


def two_links(path, scaled=(), times=1.0):
    rates = {link: rate * (times if link in scaled else 1) for link, rate in LINKS.items()}
    with open(path, "w") as file:
        file.write("""machine: drawn
overlap_slowdown: 1.1
levels: [{name: gpu, size: 8, link: near}, {name: host, size: 2, link: far}]
work:
  product: {bf16: {start_s: 5e-6, rates: [[16, 2e13], [1024, 3e14], [16384, 6e14]]}}
  attention: {bf16: {start_s: 8e-6, rates: [[64, 5e13], [4096, 4.5e14]]}}
  memory: {start_s: 4e-6, rates: 3e12}
links:
""")
        for link, rate in rates.items():
            file.write(f"  {link}:\n")
            for exchange in ("all_to_all", "ring", "all_gather", "reduce_scatter"):
                file.write(f"    {exchange}: [{{start_s: 1e-5, rates: [[65536, {rate / 4}], [16777216, {rate}]]}}]\n")
    return path


def beside(folder, words, change, plan, times):
    """By how much the best plan is less than the one that was told of, where links are so much slower or faster."""
    scaled = LINKS if change["class"] is None else [change["class"]]
    factor = times if change["way"] == "faster" else 1 / times
    on = ["--machine", two_links(f"{folder}/other.yaml", scaled, factor)]
    best = ask("plan", *words, *on)
    way = [w for w in words if w in ("--training",)]
    stays = ask("simulate", words[0], "--schedule", plan, *way, *on)["time_s"]
    ranks = math.prod(int(x.split("=")[1]) for x in change["on"].strip("[]").split())
    stays *= ranks if best["objective"]["name"] == "gpu-seconds" else 1
    return 1 - best["objective"]["value"] / stays


def presets(folder):
    global told
    here = ["--machine", two_links(f"{folder}/here.yaml")]
    plan = f"{folder}/plan.json"
    for words in PRESETS:
        within.answer([HEDDLE, "plan", *words, *here, "-o", plan], 300)
        answer = ask("explain", *words, *here, "--top", "0")
        for change in answer["changes"]:
            what = f"{' '.join(words)}: {change['class']} {change['way']}"
            change["on"] = answer["mesh"]
            if change["times"] is None:
                need(f"{what}: 64 times", beside(folder, words, change, plan, 64) < 1e-9)
                continue
            told += 1
            before = beside(folder, words, change, plan, max(change["times"] * 0.9, change["times"] ** 0.5))
            behind = beside(folder, words, change, plan, change["times"] * 1.1)
            need(f"{what} than {change['times']}: loses {before} before", before < 1e-9)
            need(f"{what} than {change['times']}: loses {behind} behind", behind > 1e-9)


def asked_for(folder):
    """--links is a machine that was written with these rates, for every command."""
    here, other = two_links(f"{folder}/here.yaml"), f"{folder}/other.yaml"
    attention = ["simulate", "attention", "b=1 s=4096 h=16 d=64", "--mesh", "sp=16", "--method", "ring"]
    commands = (["plan", "stdit3-xl2", "-n", "12"], ["sweep", "stdit3-xl2", "-n", "7..9"],
                ["memory", "axial-3d", "-n", "2"], ["compare", "hunyuanvideo", "-n", "16"],
                ["explain", "axial-3d", "--mesh", "sp=16"], ["simulate", "hunyuanvideo", "--mesh", "sp=16"],
                attention)  # fmt: skip
    scalings = ("0.25", LINKS, 0.25), ("far=0.125", ["far"], 0.125), ("near=3,near=0.5", ["near"], 1.5)
    for links, scaled, times in scalings:
        two_links(other, scaled, times)
        for command, *words in commands:
            asked, written = (ask(command, *words, "--machine", *on) for on in ((here, "--links", links), (other,)))
            need(f"{command}: the name says it", asked.pop("machine") == f"drawn with links {links}", asked)
            for one in asked, written:
                for key in "machine", "machine_from":
                    one.pop(key, None)
            need(f"{command} {words} with links {links}", asked == written, (asked, written))


def main():
    with tempfile.TemporaryDirectory() as folder:
        closed_form(folder)
        too_slow(folder)
        presets(folder)
        asked_for(folder)
    need(f"enough changes: {told}", told > 15)
    return failed


sys.exit(main())
