"""Where the best plan changes as links do (heddle explain): a crossing known in closed form; and of presets, plans and
forecasts on machines that this script writes itself, some as odd as calibrated ones, order as told at 0.95 and 1.05
times of what is told."""

import json
import math
import os
import random
import tempfile

import within
from checked import check, finish

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
MODELS = ("stdit3-xl2", "axial-3d", "hunyuanvideo", "cogvideox-2b", "ltx-video", "gpt-like", "latte-xl2",
          "hybrid-mixed")  # fmt: skip
# explain calls a plan better from 1e-9 of its value on, as picoseconds of every stage are rounded; and of both values
# that are compared here twelve digits are printed.
PRINTED = 1e-11
SAME = 1e-9 + PRINTED
told = 0


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
            check({c["class"] for c in found.values()} == {None}, f"{way} than {times} classes", found)
            check(all(c["times"] is None for c in found.values() if c["way"] != way), f"but not {way}", found)
            if times > 64:
                check(found[way]["times"] is None, f"{way} than {times}", found)
            else:
                check(abs((found[way]["times"] or 0) / times - 1) < 3e-3, f"{way} than {times}", found)
                check(found[way]["change"] == change, f"what is {way}", found)
            bytes_alone = ask("explain", *words, "--objective", "bytes")["changes"]
            check(bytes_alone == [], "bytes have no rate", bytes_alone)


def too_slow(folder):
    """Rates that cannot be so much lower are no reason to refuse the rest."""
    words = "stdit3-xl2", "--mesh", "sp=2", "--top", "0", "--machine", one_link(f"{folder}/one.yaml", 10)
    found = ask("explain", *words)["changes"]
    check([c["way"] for c in found] == ["faster"], "links of 10 bytes per second", found)


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


def odd(rng):
    """A machine as a calibration may find it: rates of any size, that rise and fall with it; one to three classes."""
    def rates(low, high, sizes):
        chosen = sorted(rng.sample(sizes, rng.randint(1, 3)))
        return [[size, 10 ** rng.uniform(math.log10(low), math.log10(high))] for size in chosen]
    sizes = rng.choice([[4, 2], [8, 4], [3, 5], [2, 2, 4], [7, 3], [4, 16], [6]])
    head = f"machine: odd\ncalibrated: true\noverlap_slowdown: {rng.uniform(1, 1.4)}\nlevels:\n"
    head += "".join(f"  - {{name: n{level}, size: {size}, link: l{level}}}\n" for level, size in enumerate(sizes))
    head += f"work:\n  memory: {{start_s: {10 ** rng.uniform(-7, -5)}, rates: {10 ** rng.uniform(11.5, 12.7)}}}\n"
    for work in ("product", "attention"):
        found = rates(1e13, 8e14, [16, 100, 1000, 4096, 16384, 70000])
        head += f"  {work}: {{bf16: {{start_s: {10 ** rng.uniform(-7, -4)}, rates: {found}}}}}\n"
    links = {
        f"l{level}": {
            exchange: (10 ** rng.uniform(-6, -4),
                       rates(6e10 / 15**level, 3e11 / 15**level, [4096, 65536, 1 << 20, 1 << 25]))
            for exchange in ("all_to_all", "ring", "all_gather", "reduce_scatter")
            if exchange == "all_to_all" or rng.random() < 0.7
        }
        for level in range(len(sizes))
    }  # fmt: skip

    def write(path, scaled=(), times=1.0):
        with open(path, "w") as file:
            file.write(head + "links:\n")
            for link, exchanges in links.items():
                file.write(f"  {link}:\n")
                for exchange, (start, found) in exchanges.items():
                    found = [[size, rate * (times if link in scaled else 1)] for size, rate in found]
                    file.write(f"    {exchange}: [{{start_s: {start}, rates: {found}}}]\n")
        return path

    write.links, write.ranks = links, math.prod(sizes)
    return write


def beside(folder, words, write, links, change, plan, times):
    """By how much the best plan is less than the one that was told of, where links are so much slower or faster."""
    scaled = links if change["class"] is None else [change["class"]]
    factor = times if change["way"] == "faster" else 1 / times
    on = ["--machine", write(f"{folder}/other.yaml", scaled, factor)]
    ranks = math.prod(int(x.split("=")[1]) for x in change["on"].strip("[]").split())
    if "-n" in words and int(words[2]) > 16:  # these are compared on their own mesh
        words = [words[0], "--mesh", change["on"], *words[3:]]
    best = ask("plan", *words, *on)
    way = [w for w in words if w in ("--training",)]
    stays = ask("simulate", words[0], "--schedule", plan, *way, *on)["time_s"]
    stays *= ranks if best["objective"]["name"] == "gpu-seconds" else 1
    return 1 - best["objective"]["value"] / stays


def orders(folder, words, write, links):
    """On both sides of what is told the plan and the best one order as it says."""
    global told
    here = ["--machine", write(f"{folder}/here.yaml")]
    plan = f"{folder}/plan.json"
    within.answer([HEDDLE, "plan", *words, *here, "-o", plan], 300)
    answer = ask("explain", *words, *here, "--top", "0")
    for change in answer["changes"]:
        what = f"{' '.join(words)}: {change['class']} {change['way']}"
        change["on"] = answer["mesh"]
        times = change["times"]
        if times is None:
            for step in (4, 16, 64):
                check(beside(folder, words, write, links, change, plan, step) < SAME, f"{what}: {step} times")
            continue
        told += 1
        before = beside(folder, words, write, links, change, plan, max(times * 0.95, times**0.5))
        behind = beside(folder, words, write, links, change, plan, times * 1.05)
        check(before < SAME, f"{what} than {times}: loses {before} before")
        check(behind > PRINTED, f"{what} than {times}: loses {behind} behind")


def presets(folder):
    for words in PRESETS:
        orders(folder, words, two_links, LINKS)


def odd_machines(folder):
    rng = random.Random(5)
    for case in range(12):
        write = odd(rng)
        ranks = write.ranks if case % 2 else rng.randint(2, write.ranks)
        words = [rng.choice(MODELS), "-n", str(ranks), *rng.choice(([], ["--objective", "gpu-seconds"]))]
        orders(folder, words + rng.choice(([], [], ["--training"])), write, write.links)


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
            check(asked.pop("machine") == f"drawn with links {links}", f"{command}: the name says it", asked)
            for one in asked, written:
                for key in "machine", "machine_from":
                    one.pop(key, None)
            if "schedule" in asked:
                named = asked["schedule"].pop("machine"), written["schedule"].pop("machine")
                check(named == (f"drawn with links {links}", "drawn"), f"{command}: the schedule's machine", named)
            check(asked == written, f"{command} {words} with links {links}", (asked, written))


def main():
    with tempfile.TemporaryDirectory() as folder:
        closed_form(folder)
        too_slow(folder)
        presets(folder)
        odd_machines(folder)
        asked_for(folder)
    check(told > 40, f"enough changes: {told}")


main()
finish()
