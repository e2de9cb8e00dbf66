"""What the planner once answered wrongly: properties of its answers, each by its own name."""

import json
import os
import re
import tempfile

import within
from checked import check, finish

HEDDLE = os.environ["HEDDLE"]
TWO = ["--machine", "2x8xh100-nvlink+ib400"]
MANY = ["--machine", "8x8xh100-nvlink+ib400"]
PARTS = ["--workspace", "1000000"], ["--workspace", "1000"]
STDIT = ["stdit3-xl2", "--epilogue", "any"]
WHOLE = "s.attn=/local;t.attn=/local"


def say(*words):
    return within.answer([HEDDLE, *words], 300)


def ask(command, *words):
    return json.loads(say(command, *words, "--json"))


def mixing(plan):
    return [s for s in plan["stages"] if s["reason"].startswith("attends")]


def sent(plan, link):
    return sum(x["sent_max"] for x in plan["links"] if x["class"] == link)


def neighbours(where, seconds):
    """No number of ranks is so much worse than its better neighbour, seconds times ranks."""
    for n in seconds:
        others = [seconds[m] * m for m in (n - 1, n + 1) if m in seconds]
        worse = seconds[n] * n / min(others) if others else 1
        check(worse <= 1.3, f"{where}, {n} ranks: {worse:.2f} of a neighbour")


def ranks_that_do_not_divide():
    one_host = [ask("plan", *STDIT, "--mesh", f"sp={n}", "--machine", "8xh100-nvlink") for n in range(2, 9)]
    plans = one_host + [ask("plan", *STDIT, "--mesh", f"sp={n}", *MANY) for n in range(9, 65)]
    neighbours("sp=N of GPUs", {n: plan["time_s"] for n, plan in enumerate(plans, 2)})
    points = ask("sweep", *STDIT, "-n", "2..64")["points"]
    neighbours("-n N of cores", {p["ranks"]: p["time_s"] for p in points})
    for n in (11, 12, 15):
        mesh = ["--mesh", f"sp={n}", *TWO]
        forced = ask("plan", *STDIT, *mesh, "--force", WHOLE)
        check(all(s["method"] == "local" for s in mixing(forced)), f"whole fibres are forced on {n}")
        check(plans[n - 2]["time_s"] <= forced["time_s"] * (1 + 1e-9), f"no slower than whole fibres on {n}")


def bytes_say_what_the_slack_left_out():
    for n, of_fibres in ((11, 79.7), (12, 77.5), (13, 75.1), (15, 47.9)):
        asked = [*STDIT, "--mesh", f"sp={n}", *TWO, "--objective", "bytes"]
        plan, text = ask("plan", *asked), say("plan", *asked)
        told = re.search(r"whole fibres: .* left out by slack 25 %: (\d+) % more work in (\S+); --slack (\d+)", text)
        check(bool(told) == (plan["bytes_per_rank_max"] > 1e8), f"told on {n}", text[-300:])
        if told:
            in_reasons = [s["name"] for s in plan["stages"] if "left out by slack" in s["reason"]]
            check(set(in_reasons) == {told[2]}, f"the stage's reason on {n}", in_reasons)
            plan = ask("plan", *asked, "--slack", told[3])
            less = ask("plan", *asked, "--slack", str(int(told[3]) - 1))
            check(less["bytes_per_rank_max"] > plan["bytes_per_rank_max"], f"no less slack does on {n}")
        check(abs(plan["bytes_per_rank_max"] / 1e6 - of_fibres) < 0.06, f"whole fibres on {n}")


def no_rank_idles():
    for model, size in (("full-3d", "b=2,s=17776"), ("cogvideox-5b", "b=2")):
        plan = ask("plan", model, "--size", size, "--mesh", "sp=3", *TWO)
        batch = ask("plan", model, "--size", size, "--mesh", "sp=3", *TWO, "--force", "attn=b@sp/local")
        check(all("s@sp" in s["layout"] for s in mixing(plan)), f"{model} shards its sequence", plan["stages"])
        check(plan["time_s"] < 0.8 * batch["time_s"], f"{model} is faster so")


def heads_that_do_not_divide():
    plan = ask("plan", "hunyuanvideo", "-n", "16", *TWO)
    check(plan["bytes_per_rank_max"] <= 15.1e9, "16 ranks", plan["bytes_per_rank_max"])
    other = ask("plan", "hunyuanvideo", "--mesh", "u=8 r=2", *TWO, "--method", "*=usp")
    check(43e9 < other["bytes_per_rank_max"] < 44.5e9, "r=2 u=8, not u=8 r=2", other["bytes_per_rank_max"])
    plan = ask("plan", "hunyuanvideo", "-n", "16", "--size", "b=2", *TWO)
    check(plan["bytes_per_rank_max"] < 19.25e9, "16 ranks, guidance", plan["bytes_per_rank_max"])
    check(all("b@" in s["layout"] for s in plan["stages"]), "guidance over the outer axis", plan["mesh"])
    why = [a["reason"] for a in ask("explain", "hunyuanvideo", "-n", "16", *TWO)["stages"][0]["alternatives"]]
    idle = any("24 heads over 16 ranks: 33 % of the work idle" in w for w in why)
    check(idle, "what was not taken has a reason", why)


def batch_over_the_slow_links():
    for objective in ("time", "slow-bytes", "bytes"):
        words = ["stdit3-720p-204f", "--size", "b=2", "--mesh", "node=2 a=2 gpu=4", "--epilogue", "any", *TWO]
        plan = ask("plan", *words, "--objective", objective)
        check(sent(plan, "ib400") == 0 < sent(plan, "nvlink"), f"{objective}: nodes", plan["links"])
        check(all("b@node" in s["layout"] for s in plan["stages"]), f"{objective}: batch over nodes")


def batch_and_frames_nest():
    """Where the ranks are a multiple of the batch, two axes cut b x t as evenly as one over both dims would."""
    for n in (4, 8, 16, 24, 40):
        words = ["stdit3-720p-204f", "--size", "b=2", "-n", str(n), "--epilogue", "any", "--method", "*=local", *MANY]
        plan = ask("plan", *words, "--objective", "bytes")
        axes = {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", plan["mesh"])}
        most = {"b": 2, "t": 60}
        layout = next(s["layout"] for s in plan["stages"] if s["name"] == "s.attn")
        for dim, axis in re.findall(r"(\w+)@(\w+)", layout):
            most[dim] = -(-most[dim] // axes[axis])
        check(most["b"] * most["t"] == -(-120 // n) and "b@" in layout, f"fibres on {n}", (plan["mesh"], layout))


def ends_apart():
    plan = ask("plan", "transnormerllm-1b", "--mesh", "sp=64", *MANY, "--method", "*=lasp")
    state = 16 * 128 * 128 * 4  # heads, width, width, f32
    check(plan["bytes_per_rank_max"] == 16 * state, "states alone", plan["bytes_per_rank_max"])
    check(0 < plan["end_bytes_per_rank_max"] < 8.6e9 / 64, "ends are narrow, and apart", plan["end_bytes_per_rank_max"])
    wide = ask("plan", "transnormerllm-1b", "--mesh", "sp=64", *MANY, "--method", "*=lasp", "--epilogue", "*")
    check(wide["bytes_per_rank_max"] > 8.4e9, "a wide end is asked for", wide["bytes_per_rank_max"])


def steady_state():
    for layers in ("1", "2", "28"):
        text = say("plan", *STDIT, "--mesh", "sp=4", *TWO, "--layers", layers, "--objective", "bytes")
        ratio = re.search(r"Ulysses where the sharded dim is attended +\S+ \w+ +(\S+)x", text)
        check(ratio and ratio[1] == "2.00", f"{layers} layers against Ulysses", text[-500:])


def counts():
    for model, switches in (("axial-3d", 41), ("stdit3-xl2", 55)):
        plan = ask("plan", model, "--epilogue", "any", "--mesh", "sp=4", *TWO, "--objective", "bytes")
        check(plan["schedule"]["switches"] == switches, f"switches of {model}", plan["schedule"]["switches"])


def bounds_say_something():
    switch = 60 * 3600 * 1152 * 2 * 7 // 64  # bytes a rank sends in one of 8, on average
    plan = ask("plan", "stdit3-720p-204f", "--epilogue", "any", "--mesh", "sp=8", *TWO, "--objective", "bytes")
    check(plan["objective"]["lower_bound"] == 55 * switch, "55 switches at least", plan["objective"])
    for model in ("axial-3d", "hunyuanvideo", "latte-xl2", "hybrid-mixed"):
        for objective in ("bytes", "slow-bytes", "time", "memory", "gpu-seconds"):
            for mesh in (["--mesh", "sp=4"], ["-n", "12"], ["-n", "4", "--training"]):
                o = ask("plan", model, *mesh, *TWO, "--objective", objective)["objective"]
                is_below = 0.5 * o["value"] <= o["lower_bound"] <= o["value"] * (1 + 1e-12)
                check(is_below, f"{model} {objective} {mesh}", o)
    text = say("plan", "axial-3d", "--mesh", "sp=4", *TWO, "--objective", "bytes")
    alone = "least of all plans on this mesh within the slack;\n  the runner-up"
    check(re.search(alone, text), "no bound of no use", text[-300:])


def modules_run_by_the_methods_they_name():
    """Bytes of the busiest of four ranks, 1024 rows of 64 channels in bf16 each: 131072 bytes a block."""
    block = 4096 // 4 * 64 * 2
    sent_by = {"ring": 3 * 2 * block, "ulysses": 4 * block * 3 // 4, "rsa": 3 * 2 * block}
    with tempfile.TemporaryDirectory() as folder:
        path, saved = folder + "/m.yaml", folder + "/plan.json"
        mesh = ["--mesh", "sp=4", "--epilogue", "any", "--objective", "bytes", "--machine", "8xh100-nvlink"]
        for method in (None, *sent_by):
            named = f", heads: 8, methods: [{method}]" if method else ""
            with open(path, "w") as f:
                f.write("model: m\ndtype: bf16\ntensors: {x: [s, c]}\n")
                f.write("dims: {s: {size: 4096, role: seq}, c: {size: 64, role: channel}}\n")
                f.write(f"stages: [{{name: mod, kind: module, over: s, token_flops: 1000000{named}}}]\n")
            plan = ask("plan", path, *mesh)
            stage = plan["stages"][0]
            check(stage["method"] == (method or "local"), f"module with {method}: way", stage)
            check(plan["bytes_per_rank_max"] == sent_by.get(method, 0), f"module with {method}: bytes", plan["links"])
            say("plan", path, *mesh, "--output", saved)
            again = ask("simulate", path, "--schedule", saved, "--machine", "8xh100-nvlink")["bytes_total"]
            check(again == plan["bytes_total"], f"module with {method}: read again", plan)
            other = within.run([HEDDLE, "plan", path, *mesh, "--method", "mod=usp"])
            admitted = "there are auto, local" + (f", {method}" if method else "")
            check(other.returncode == 2 and other.stderr.strip().endswith(admitted), "usp is refused", other.stderr)


def training_counts_the_sums_of_gradients():
    """The objective's seconds are the forecast's, and those that a schedule says."""
    for model in ("stdit3-xl2", "latte-xl2", "transnormerllm-1b"):
        for options in ([], ["--training"]):
            for ranks in (["-n", "8"], ["--mesh", "sp=6"]):
                plan = ask("plan", model, *ranks, *TWO, *options)
                for other in (plan["objective"]["value"], plan["schedule"]["predicted_s"]):
                    same = abs(plan["time_s"] - other) <= 1e-9 * plan["time_s"]
                    check(same, f"{model} {ranks} {options}: seconds", (plan["time_s"], other))
    fits = ["--training", "--memory", "27G"]
    plan = ask("plan", "stdit3-xl2", "-n", "8", *TWO, *fits, "--objective", "gpu-seconds")
    ratio = plan["objective"]["value"] / plan["time_s"]
    check(abs(ratio - round(ratio)) < 1e-9 and round(ratio) > 1, "seconds of whole ranks", ratio)


def inference_holds_no_backward():
    """Of a ring without a backward: q, k, v, o and what the stage makes, the blocks in flight, a float per row."""
    words = ["hunyuanvideo", "--mesh", "sp=16", "--method", "*=ring", *TWO]
    rows, channels, heads = -(-118806 // 16), 3072, 24
    most = rows * channels * (14 + 8 + 8) + 2 * rows * heads * 4
    held = ask("memory", *words)["workspace"]
    check(0 < held <= most * 1.05, "work space of inference", (held, most))


def workspaces_in_parts():
    """Of 1620 rows of frames, 1530 of fibres of time: what stages make is cut, but not below a fibre or a row."""
    words = ["stdit3-xl2", "--mesh", "sp=4", "--objective", "bytes", *TWO]
    whole, parts, least = (ask("memory", *words, *more)["stages"] for more in ([], *PARTS))
    made = {"s.mlp": 1530 * 4608 * 2, "s.attn": 1620 * (4 * 1152 * 2 + 2 * 16 * 4)}
    fibre = {"s.mlp": 4608 * 2, "s.attn": 405 * (4 * 1152 * 2 + 2 * 16 * 4)}
    for a, b, c in zip(whole, parts, least):
        if a["name"] in made:
            lower = [a["memory_bytes"] - x["memory_bytes"] for x in (b, c)]
            name, limit = a["name"], max(1000000, fibre[a["name"]])
            wanted = [made[name] - limit, made[name] - max(1000, fibre[name])]
            check(lower == wanted, f"workspace of {name} in parts", (lower, wanted))


def attention_of_all_at_once():
    """What goes over ranks has all of its rows, whatever the workspace may have."""
    words = ["stdit3-xl2", "--mesh", "sp=4", "--objective", "bytes", "--force", "s.attn=s@sp/ring", *TWO]
    whole, least = ({stage["name"]: stage["memory_bytes"] for stage in ask("memory", *words, *more)["stages"]}
                    for more in ([], PARTS[1]))
    smaller = [name for name in whole if least[name] < whole[name]]
    check(smaller == [x for x in whole if x != "s.attn"], "stages in parts beside attention over ranks", smaller)


for question in (
    ranks_that_do_not_divide,
    bytes_say_what_the_slack_left_out,
    no_rank_idles,
    heads_that_do_not_divide,
    batch_over_the_slow_links,
    batch_and_frames_nest,
    ends_apart,
    steady_state,
    counts,
    bounds_say_something,
    modules_run_by_the_methods_they_name,
    training_counts_the_sums_of_gradients,
    inference_holds_no_backward,
    workspaces_in_parts,
    attention_of_all_at_once,
):
    question()
finish()
