"""Every option of every sub-command does something: two values of it give two answers, or the refusal that it is for.

What options there are is read off the usages, so a new one without a line here is an error. A line is two lists of
arguments and what is read off each answer: it must be the same twice for the first, and another for the second. `Fails`
instead of what is read: an exit code and words on stderr. `spends`: seconds, which follow the second arguments."""

import hashlib
import json
import math
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import within

HEDDLE, SOURCE = os.environ["HEDDLE"], os.environ["HEDDLE_SOURCE"]
WORK = tempfile.mkdtemp(dir=os.environ["WORK"])
MODEL = os.path.join(SOURCE, "tests/golden/tiny.yaml")
CONFIG = os.path.join(WORK, "config.json")
with open(CONFIG, "w", encoding="utf-8") as config:
    json.dump(
        {
            "_class_name": "WanTransformer3DModel",
            "patch_size": [1, 2, 2],
            "num_attention_heads": 12,
            "attention_head_dim": 128,
            "in_channels": 16,
            "ffn_dim": 8960,
            "num_layers": 30,
        },
        config,
    )
SAVED = os.path.join(WORK, "saved.json")
LINE, BIG = "f32[t=6 s=8 c=3] on [sp=2]: t@sp -> s@sp", "f32[t=600 s=800 c=3] on [sp=2]: t@sp -> s@sp"
SOFTMAX = LINEAR = "f32[b=2 s=12 h=4 d=8] on [sp=2]"
LARGE, STATES = "f32[b=2 s=16 h=16 d=256] on [sp=2]", "f32[b=2 s=8 h=16 d=128] on [sp=2]"
CLI = {
    "plan": ["plan", MODEL],
    "explain": ["explain", MODEL, "--mesh", "sp=2"],
    "compare": ["compare", MODEL, "--mesh", "sp=2"],
    "sweep": ["sweep", MODEL, "-n", "2"],
    "memory": ["memory", MODEL, "--mesh", "sp=2"],
    "simulate": ["simulate", MODEL, "--mesh", "sp=2"],
    "simulate attention": ["simulate", "attention", "b=2 s=4096 h=8 d=64"],
    "simulate linear-attention": ["simulate", "linear-attention", "b=2 s=4096 h=8 d=64"],
    "diff": ["diff", SAVED, SAVED],
    "volume": ["volume", LINE],
    "presets": ["presets"],
    "import": ["import", CONFIG],
    "verify": ["verify", LINE],
    "bench": ["bench", LINE, "--seconds", "0"],
    "run": ["run", MODEL, "--size", "t=3,s=9", "--layers", "1"],
    "verify attention": ["verify", "attention", SOFTMAX, "--method", "ring"],
    "verify linear-attention": ["verify", "linear-attention", LINEAR],
    "bench attention": ["bench", "attention", SOFTMAX, "--seconds", "0", "--method", "ring"],
    "bench linear-attention": ["bench", "linear-attention", LINEAR, "--seconds", "0"],
}


class Fails:
    def __init__(self, code, words):
        self.code, self.words = code, words


def run(arguments):
    done = within.run([HEDDLE, *arguments], 300)
    return done.returncode, done.stdout, done.stderr


def out(pattern):
    """What stands in stdout, all groups of all places."""
    return lambda answer, _: re.findall(pattern, answer[1])


def field(*path):
    def read(answer, _):
        value = json.loads(answer[1])
        for key in path:
            value = value[key]
        return value

    return read


def file_at(name):
    """A file that the command wrote below its own folder."""

    def read(_, folder):
        with open(os.path.join(folder, name), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()

    return read


def is_there(name):
    return lambda _, folder: os.path.exists(os.path.join(folder, name))


def code(answer, _):
    return answer[0]


def spends(least, more, lasted_s, wanted_s):
    """More samples than in no time, or as long as was asked for: on a busy machine the least may take longer."""
    return field("samples")(more, None) > field("samples")(least, None) or lasted_s >= wanted_s


def whole(answer, _):
    return answer[1]


ROWS, LAYOUTS = r"(?m)^\S+ +\d+ (\S+) +(\S+)", lambda a, _: [s["layout"] for s in json.loads(a[1])["stages"]]
METHODS = lambda a, _: [s["method"] for s in json.loads(a[1])["stages"]]  # noqa: E731
# (sub-command, option): arguments, other arguments (or Fails), what to read. {} is a folder of the command's own.
TABLE = {
    ("plan", "mesh"): (["--mesh", "sp=2"], ["--mesh", "sp=3"], whole),
    ("plan", "output"): (["--mesh", "sp=2"], ["--mesh", "sp=2", "--output", "{}/s.json"], is_there("s.json")),
    ("plan", "analyze"): (["--mesh", "sp=2"], ["--mesh", "sp=2", "--analyze"], out("in the fastest of")),
    ("plan", "candidates"): (
        ["--mesh", "sp=2", "--analyze", "--candidates", "1"],
        ["--mesh", "sp=2", "--analyze", "--candidates", "2"],
        out(r"(\d+) of \d+ ways"),
    ),
    ("plan", "transport"): (
        ["--mesh", "sp=2", "--analyze"],
        ["--mesh", "sp=2", "--analyze", "--transport", "shm"],
        out(r"(?m)^(\w+): 2 ranks"),
    ),
    ("plan", "json"): (["--mesh", "sp=2"], ["--mesh", "sp=2", "--json"], whole),
    ("presets", "json"): ([], ["--json"], whole),
    ("import", "frames"): ([], ["--frames", "41"], out(r"s: \{size: (\d+)")),
    ("import", "height"): ([], ["--height", "480"], out(r"s: \{size: (\d+)")),
    ("import", "width"): ([], ["--width", "832"], out(r"s: \{size: (\d+)")),
    ("import", "output"): ([], ["--output", "{}/m.yaml"], is_there("m.yaml")),
    ("explain", "why-not"): ([], ["--why-not", "nothing=/ring"], Fails(2, "no such stage")),
    ("explain", "top"): ([], ["--top", "0"], whole),
    ("compare", "methods"): ([], ["--methods", "best"], whole),
    ("compare", "meshes"): ([], ["--meshes", "sp=2,sp=3"], whole),
    ("compare", "baseline"): ([], ["--baseline", "best"], whole),
    ("compare", "csv"): ([], ["--csv"], whole),
    ("sweep", "csv"): ([], ["--csv"], whole),
    ("diff", "json"): ([], ["--json"], whole),
    ("verify", "random"): (
        ["-", "--ranks", "2", "--random", "3"],
        ["-", "--ranks", "2", "--random", "4"],
        out(r"^(\d+) reshards"),
    ),
    ("verify", "seed"): (
        ["-", "--ranks", "2", "--random", "3"],
        ["-", "--ranks", "2", "--random", "3", "--seed", "2"],
        whole,
    ),
    ("verify", "input"): ([], ["--input", "{}/none.npy"], Fails(2, "none.npy")),
    ("verify", "save"): ([], ["--save", "{}"], is_there("to-1.npy")),
    ("memory", "longest"): (
        ["--mesh", "sp=2", "--json"],
        ["--mesh", "sp=2", "--json", "--memory", "1G", "--longest", "t"],
        out("longest"),
    ),
    ("verify", "memory"): (["--memory", "peer", "--transport", "shm"], ["--memory", "some"], Fails(2, "--memory")),
    ("verify", "device"): ([], ["--device", "cuda:99"], code),
    ("verify", "wire"): ([], ["--wire", "nccl"], Fails(2, "--device is needed")),
    ("bench", "iterations"): (["--json"], ["--json", "--iterations", "400"], field("samples")),
    ("bench", "seconds"): (["--json"], ["--json", "--seconds"], spends),
    ("bench", "memory"): (
        ["--json", "--transport", "shm"],
        ["--json", "--transport", "shm", "--memory", "any"],
        field("path"),
    ),
    ("bench", "device"): ([], ["--device", "cuda:99"], code),
    ("bench", "wire"): ([], ["--wire", "nccl"], Fails(2, "--device is needed")),
    ("bench", "tuning"): (["--json", "--tuning", "rules"], ["--json", "--tuning", "nothing"], Fails(2, "--tuning")),
    ("bench", "kernel"): (["--json", "--kernel", "memcpy"], ["--json", "--kernel", "movsb"], field("kernel")),
    ("bench", "list-kernels"): (["-", "--list-kernels"], [], out(r"runs of at least")),
    ("bench", "json"): ([], ["--json"], out(r"^\{")),
    ("run", "mesh"): (["--json", "--mesh", "sp=2"], ["--json", "--mesh", "a=2 b=1"], field("mesh")),
    ("run", "machine"): (["--ranks", "2"], ["--ranks", "2", "--machine", "nothing"], Fails(2, "nothing")),
    ("run", "objective"): (["--ranks", "2"], ["--ranks", "2", "--objective", "nothing"], Fails(2, "--objective")),
    ("run", "layers"): (["--ranks", "2", "--json"], ["--ranks", "2", "--json", "--layers", "3"], field("layers")),
    ("run", "size"): (["--ranks", "2", "--json"], ["--ranks", "2", "--json", "--size", "b=2"], field("shape")),
    ("run", "method"): (["--ranks", "2", "--json"], ["--ranks", "2", "--json", "--method", "*=ring"], METHODS),
    ("run", "schedule"): (["--ranks", "2"], ["--ranks", "2", "--schedule", "{}/none.json"], Fails(2, "none.json")),
    ("run", "input"): (["--ranks", "2"], ["--ranks", "2", "--input", "{}/none.npy"], Fails(2, "none.npy")),
    ("run", "output"): (["--ranks", "2"], ["--ranks", "2", "--output", "{}/y.npy"], is_there("y.npy")),
    ("run", "weights"): (
        ["--ranks", "2"],
        ["--ranks", "2", "--weights", "{}/none.safetensors"],
        Fails(2, "none.safetensors"),
    ),
    ("run", "seed"): (
        ["--ranks", "2", "--output", "{}/y.npy"],
        ["--ranks", "2", "--output", "{}/y.npy", "--seed", "2"],
        file_at("y.npy"),
    ),
    ("run", "dtype"): (["--ranks", "2", "--json"], ["--ranks", "2", "--json", "--dtype", "bf16"], field("shape")),
    ("run", "backward"): (
        ["--ranks", "2", "--json"],
        ["--ranks", "2", "--json", "--backward"],
        lambda a, _: "backward" in json.loads(a[1]),
    ),
    ("run", "recompute"): (
        ["--ranks", "2", "--json", "--backward"],
        ["--ranks", "2", "--json", "--backward", "--recompute"],
        field("backward", "kept_bytes_max"),
    ),
    ("run", "threads"): (["--ranks", "2", "--json"], ["--ranks", "2", "--json", "--threads", "2"], field("threads")),
    ("run", "passes"): (["--ranks", "2", "--json"], ["--ranks", "2", "--json", "--passes", "3"], field("passes")),
    ("run", "check"): (["--ranks", "2"], ["--ranks", "2", "--check"], out(r"(?m)^check: bitwise equal")),
    ("run", "device"): (["--ranks", "2"], ["--ranks", "2", "--device", "cuda:99"], code),
    ("run", "blocks"): (["--ranks", "2"], ["--ranks", "2", "--blocks", "host"], Fails(2, "--device is needed")),
    ("run", "fused"): (["--ranks", "2"], ["--ranks", "2", "--fused", "no"], Fails(2, "a --device, which is needed")),
    ("run", "wire"): (["--ranks", "2"], ["--ranks", "2", "--wire", "nccl"], Fails(2, "--device is needed")),
    ("run", "json"): (["--ranks", "2"], ["--ranks", "2", "--json"], out(r"^\{")),
}
# What every command that asks the planner has: answers, or refusals, that differ.
PLANNING = ("plan", "explain", "compare", "sweep", "memory", "simulate", "volume")
for command in PLANNING:
    begin = ["-", MODEL, "--json"] if command == "volume" else ["--json"]
    on = [] if command == "sweep" else ["--mesh", "sp=2"]
    small, by_bytes = ["--size", "t=3,s=9"], ["--objective", "bytes"]
    for option, first, second in (
        ("ranks", [], ["-n", "3"]),
        ("machine", [], ["--machine", "8xh100-nvlink"]),
        ("links", [], ["--links", "nothing"]),
        ("objective", [], ["--objective", "nothing"]),
        ("memory", [], ["--memory", "1K"]),
        ("training", [], ["--training"]),
        ("recompute", [], ["--recompute"]),
        ("workspace", [], ["--workspace", "x"]),
        ("force", [], ["--force", "nothing=/ring"]),
        ("layers", [], ["--layers", "5"]),
        ("size", [], ["--size", "t=9"]),
        ("mesh", [], ["--mesh", "sp=3"]),
        ("prologue", [], ["--prologue", "q@sp"]),
        ("epilogue", [], ["--epilogue", "q@sp"]),
        ("method", [], ["--method", "nothing=ring"]),
        ("backward", [], ["--backward"]),
        ("slack", [], ["--slack", "x"]),
        ("max-waste", small, [*small, "--max-waste", "1", "--method", "*=local"]),
        ("json", [], None),
    ) + ((("schedule", [], ["--schedule", "{}/none.json"]),) if command in ("volume", "memory", "simulate") else ()):
        if option == "backward" and command in ("volume", "memory", "simulate"):
            continue
        if option == "ranks" and command != "sweep":
            first, second = ["--mesh", "sp=2"], ["--mesh", "sp=2", "-n", "3"]
        elif option == "mesh" and command == "sweep":
            first, second = [], ["--mesh", "sp=2"]
        elif option == "mesh":
            first = ["--mesh", "sp=2"]
        elif command in ("plan", "volume"):
            first, second = on + first, None if second is None else on + second
        said = lambda a, _: (a[0], re.sub(r'"(backward_)?note": .*', "", a[1]))  # noqa: E731
        rest = {"plan": on, "volume": begin[:-1] + on}.get(command)
        TABLE[command, option] = (
            (rest or [], (rest or []) + ["--json"], whole)
            if option == "json"
            else (begin + first, begin + second, said)
        )
# One problem of each kind, priced.
for command, method, other in (
    ("simulate attention", "ring", "ulysses"),
    ("simulate linear-attention", "lasp", "lasp2"),
):
    on = ["--mesh", "sp=4", "--method", method]
    TABLE.update(
        {
            (command, "mesh"): (on, ["--mesh", "sp=2", *on[2:]], whole),
            (command, "machine"): (on, [*on, "--machine", "8xh100-nvlink"], whole),
            (command, "links"): (on, [*on, "--links", "0.5"], whole),
            (command, "method"): (on, [*on[:2], "--method", other], whole),
            (command, "backward"): (on, [*on, "--backward"], whole),
            (command, "json"): (on, [*on, "--json"], whole),
        }
    )
on = ["--mesh", "sp=4", "--method", "ring"]
TABLE["simulate attention", "kv-heads"] = (on, [*on, "--kv-heads", "2"], whole)
TABLE["simulate attention", "causal"] = (on, [*on, "--causal"], whole)
TABLE["simulate attention", "zigzag"] = ([*on, "--causal"], [*on, "--causal", "--zigzag"], whole)
for kind, values, sizes in (
    ("attention", "q k v do", "o dq dk dv lse"),
    ("linear-attention", "q k v do", "o dq dk dv"),
):
    verify, bench = f"verify {kind}", f"bench {kind}"
    TABLE.update(
        {
            (verify, "random"): (
                ["-", "--ranks", "2", "--random", "2"],
                ["-", "--ranks", "2", "--random", "3"],
                out(r"(?m)^(\d+) .*problems? right"),
            ),
            (verify, "save"): (
                [],
                ["--save", "{}"],
                lambda a, d, n=values + " " + sizes: all(os.path.exists(f"{d}/{x}.npy") for x in n.split()),
            ),
            (bench, "seconds"): (["--json"], ["--json", "--seconds"], spends),
            (bench, "json"): ([], ["--json"], out(r"^\{")),
            (bench, "threads"): (["--json"], ["--threads", "0"], Fails(2, "--threads")),
            (verify, "threads"): ([], ["--threads", "0"], Fails(2, "--threads")),
        }
    )
for command in ("verify attention", "bench attention"):
    seen = (
        whole
        if command[0] == "v"
        else (
            lambda a, _: [
                json.loads(a[1])[k]
                for k in ("bytes_per_rank", "backward_bytes_per_rank", "messages_per_rank", "flops_per_rank")
            ]
        )
    )
    plus = [] if command[0] == "v" else ["--json"]
    ring = ["--method", "ring"] + plus
    TABLE.update(
        {
            (command, "method"): (ring, ["--method", "ulysses"] + plus, seen),
            (command, "kv-heads"): (ring, ring + ["--kv-heads", "2"], seen),
            (command, "causal"): (ring, ring + ["--causal"], seen),
            (command, "zigzag"): (ring + ["--causal"], ring + ["--causal", "--zigzag"], seen),
            (command, "key-lengths"): (ring, ring + ["--key-lengths", "3,5"], seen),
            (command, "all-reduce"): (
                ["--method", "rsa"] + plus,
                ["--method", "rsa", "--all-reduce"] + plus,
                seen if command[0] == "v" else field("backward_messages_per_rank"),
            ),
        }
    )
TABLE["verify attention", "project"] = (["--method", "rsa"], ["--method", "rsa", "--project", "3"], whole)
for command in ("verify linear-attention", "bench linear-attention"):
    seen = whole if command[0] == "v" else field("problem")
    plus = ["--method", "lasp"] if command[0] == "v" else ["--method", "lasp", "--json"]
    TABLE.update(
        {
            (command, "method"): (plus, plus[2:] + ["--method", "lasp2"], seen),
            (command, "dv"): (plus, plus + ["--dv", "5"], seen),
            (command, "decay"): (plus + ["--decay", "0.5"], plus + ["--decay", "per-head"], seen),
            (command, "causal"): (plus + ["--causal"], plus + ["--bidirectional"], seen),
            (command, "bidirectional"): (plus, plus + ["--bidirectional"], seen),
            (command, "receive-first"): (
                plus,
                plus + ["--receive-first"],
                seen if command[0] == "v" else field("why"),
            ),
            (command, "chunk"): (
                plus + ["--chunk", "2"],
                plus + ["--chunk", "3"],
                seen if command[0] == "v" else field("chunk_rows"),
            ),
        }
    )
TABLE.update(
    {
        ("verify attention", "seed"): (["--save", "{}"], ["--save", "{}", "--seed", "2"], file_at("q.npy")),
        ("verify linear-attention", "seed"): (["--save", "{}"], ["--save", "{}", "--seed", "2"], file_at("q.npy")),
        ("bench linear-attention", "seed"): (["--json"], ["--json", "--seed", "2"], field("problem")),
        ("bench linear-attention", "backward"): (["--json"], ["--json", "--backward"], field("pass")),
        ("bench linear-attention", "iterations"): (["--json"], ["--json", "--iterations", "17"], field("samples")),
    }
)
# Seeds of random problems, besides those of values; and refusals.
MORE = [
    (
        "verify attention",
        ["-", "--random", "4", "--ranks", "2"],
        ["-", "--random", "4", "--ranks", "2", "--seed", "9"],
        whole,
    ),
    (
        "verify linear-attention",
        ["-", "--random", "4", "--ranks", "2"],
        ["-", "--random", "4", "--ranks", "2", "--seed", "9"],
        whole,
    ),
    ("bench attention", ["--threads", "1"], ["--threads", "300"], Fails(2, "--threads")),
    (
        "verify",
        ["-", "--random", "2", "--ranks", "2"],
        ["-", "--random", "2", "--ranks", "2", "--save", "{}"],
        Fails(2, "need a reshard line"),
    ),
    (
        "verify attention",
        [],
        ["-", "--random", "2", "--ranks", "2", "--save", "{}"],
        Fails(2, "--save needs a problem"),
    ),
    ("verify attention", ["--key-lengths", "3,4"], ["--key-lengths", "3;4"], Fails(2, "whole numbers with commas")),
    ("plan", ["--mesh", "sp=2"], ["--mesh", "sp=2", "--method", "ring"], Fails(2, "methods must look like")),
]
for command, base in CLI.items():  # where ranks run
    if command.split()[0] in (*PLANNING, "diff", "presets", "import"):
        continue
    ranks = ["--ranks", "2"] if command == "run" else []
    large = {
        "run": ["-", MODEL, "--ranks", "2", "--layers", "1"],
        "verify": ["-", BIG],
        "bench": ["-", BIG, "--seconds", "0"],
    }.get(
        command,
        ["-", STATES if "linear" in command else LARGE, "--method", "lasp" if "linear" in command else "ring"],
    )
    TABLE.update(
        {
            (command, "ranks"): (
                ranks,
                ["--ranks", "3"],
                (lambda a, _: "3 ranks" in a[1]) if command == "run" else Fails(2, "--ranks 3"),
            ),
            (command, "transport"): (ranks, ranks + ["--transport", "fault(fail=1@1):threads"], Fails(1, "fault")),
            (command, "deadline"): (
                ranks,
                ranks + ["--transport", "fault(delay=1400ms@1):threads", "--deadline", "1"],
                Fails(1, "did not come in time|passed its deadline|gave up"),
            ),
            (command, "messages"): (ranks, ranks + ["--messages"], Fails(2, "--messages needs --transport tcp or mpi")),
            (command, "hosts"): (ranks, ranks + ["--hosts", "2"], Fails(2, "--hosts needs --transport tcp or mpi")),
            (command, "arena"): (
                ranks,
                large + ["--transport", "shm", "--arena", "64K"],
                Fails(1, "arena|address space"),
            ),
        }
    )


def arguments_of(command, more, folder):
    base = CLI[command]
    if more[:1] == ["-"]:  # without the operand and what follows it
        base, more = command.split(), more[1:]
    return base + [word.replace("{}", folder) for word in more]


def ask(command, more):
    folder = tempfile.mkdtemp(dir=WORK)
    return run(arguments_of(command, more, folder)), folder


def timed(command, more):
    begin_s = time.monotonic()
    return ask(command, more)[0], time.monotonic() - begin_s


def try_seconds(command, first, second):
    for _ in range(3):  # how many calls fit is told by the first of them, which others may have kept from the cores
        least, took_s = timed(command, first)
        wanted_s = 1 + math.ceil(2 * took_s)
        more, lasted_s = timed(command, [*second, str(wanted_s)])
        if least[0] == more[0] == 0 and spends(least, more, lasted_s, wanted_s):
            return None
    return f"{command} --seconds: {wanted_s} of them are not spent, {lasted_s:.1f} are: {more}, without {least}"


def try_line(asked, command, option, first, second, reads):
    where = f"{command} --{option}"
    one = asked[command, tuple(first), 0]
    if one[0][0] != 0:
        return f"{where}: {first} fails: {one[0][2]}"
    if isinstance(reads, Fails):
        answer = ask(command, second)[0]
        good = answer[0] == reads.code and re.search(reads.words, answer[2])
        return None if good else f"{where}: {second} gives {answer[0]} and not '{reads.words}': {answer[2]}"
    if reads is spends:
        return try_seconds(command, first, second)
    again, other = asked[command, tuple(first), 1], ask(command, second)
    try:
        read = [reads(answer, folder) for answer, folder in (one, again, other)]
    except (ValueError, KeyError, IndexError, OSError) as error:
        return f"{where}: {first}, {second}: {error}: {other[0][2]}"
    if read[0] != read[1]:
        return f"{where}: {first} gives {read[0]}, then {read[1]}"
    return f"{where}: {first} and {second} both give {read[0]}" if read[0] == read[2] else None


def main():
    wrong, told = [], set()
    within.answer([HEDDLE, "plan", MODEL, "--mesh", "sp=2", "-o", SAVED], 300)
    for command in CLI:
        for option in re.findall(r"(?m)^  --([a-z-]+)", within.answer([HEDDLE, *command.split(), "--help"], 300)):
            told.add((command, option))
            if option != "help" and (command, option) not in TABLE:
                wrong.append(f"{command} --{option}: no line says what it does")
    wrong += [
        f"{command} --{option}: there is no such option" for command, option in TABLE if (command, option) not in told
    ]
    lines = [(*key, *line) for key, line in TABLE.items()] + [
        (line[0], "and more", *line[1:]) for line in MORE
    ]
    # What several lines begin with is asked once for all of them, and once again where one must be the same.
    begins = {(command, tuple(first), 0) for command, _, first, _, _ in lines}
    begins |= {(command, tuple(first), 1) for command, _, first, _, reads in lines
               if reads is not spends and not isinstance(reads, Fails)}
    begins = sorted(begins)
    with ThreadPoolExecutor(4) as pool:
        asked = dict(zip(begins, pool.map(lambda begin: ask(begin[0], list(begin[1])), begins)))
        wrong += [problem for problem in pool.map(lambda line: try_line(asked, *line), lines) if problem]
    print("\n".join(wrong) if wrong else f"{len(lines)} lines for {len(told)} options")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
