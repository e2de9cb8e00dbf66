"""Tables fit into 100 columns whatever the model and the machine, and complaints do on a terminal."""

import json
import os
import pty
import sys

import within

HEDDLE, SOURCE = os.environ["HEDDLE"], os.environ["HEDDLE_SOURCE"]
COLUMNS = 100
TWO = ["--machine", "2x8xh100-nvlink+ib400"]
PCIE, NINE = ["--machine", "8xl20-pcie"], ["--machine", "3x6xa800-nvlink+eth100"]
PLANS = [
    ["hunyuanvideo", "-n", "16", *TWO],
    ["stdit3-xl2", "--mesh", "node=2 a=2 gpu=4", "--size", "b=2", *TWO],
    ["axial-3d", "-n", "18", *NINE],
    ["transnormerllm-7b", "--mesh", "sp=8", *PCIE],
    ["pangu-like", "-n", "8", *PCIE],
    ["sd3-medium", "-n", "6", *NINE, "--training"],
    [f"{SOURCE}/examples/models/hybrid-mixed.yaml", "--mesh", "seqparallel=4", "--machine", "4xh100-nvlink"],
]
PROBLEM = "b=2 s=118800 h=24 d=128"
WAYS = [["plan"], ["explain"], ["memory"], ["simulate"], ["volume"],
        ["compare", "--methods", "best,dsp,ulysses,ring,usp,rsa,gather-kv,lasp,lasp2,scan,megatron-sp,megatron-tp"],
        ["plan", "--objective", "bytes"], ["explain", "--why-not", "*"]]  # fmt: skip
OTHERS = [
    ["sweep", "stdit3-xl2", "-n", "1..16", *TWO],
    ["sweep", "stdit3-xl2", "--size", "t=15..60:15", "-n", "2,3", *TWO],
    ["sweep", "hunyuanvideo", "-n", "1..4", "--memory", "1G", *TWO],
    ["memory", "hunyuanvideo", "-n", "8", "--longest", "s", *TWO],
    ["compare", "hunyuanvideo", "--meshes", "sp=16,cfg=2 sp=8", "--size", "b=2", "--baseline", "sp=16", *TWO],
    ["simulate", "attention", PROBLEM, "--mesh", "r=2 u=8", "--method", "usp", "--backward", *TWO],
    ["presets"],
    ["topo"],
    ["topo", *TWO],
    ["topo", *PCIE],
]
COMPLAINTS = [
    ["plan", "no-such-model", "-n", "8"],
    ["plan", "hunyuanvideo", "-n", "8", "--machine", "h100x8"],
    ["explain", "hunyuanvideo", "-n", "16", *TWO, "--why-not", "attn"],
]


def wide(text):
    return [line for line in text.splitlines() if len(line) > COLUMNS]


def of_model(way, plan):
    if way[-1] != "*":
        return [way[0], *plan, *way[1:]]
    stage = json.loads(within.answer([HEDDLE, "plan", *plan, "--json"]))["stages"][0]["name"]
    asked = [f"--why-not={stage}=/{method}" for method in ("auto", "local")]
    return ["explain", *plan, *asked, f"--why-not={stage}=*"]


def on_terminal(words):
    """What it says, and its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(HEDDLE, [HEDDLE, *words])
    said = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        said += part
    os.close(terminal)
    return said.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main():
    failed = 0
    for words in [of_model(way, plan) for plan in PLANS for way in WAYS] + OTHERS:
        done = within.run([HEDDLE, *words])
        if done.returncode not in (0, 3) or wide(done.stdout) or not done.stdout:
            print("FAILED", " ".join(words), done.returncode, done.stderr, *wide(done.stdout)[:3], sep="\n  ")
            failed = 1
    for words in COMPLAINTS:
        said, code = on_terminal(words)
        one_line = within.run([HEDDLE, *words]).stderr
        if code != 2 or wide(said) or len(one_line) <= COLUMNS or one_line.count("\n") != 1:
            print("FAILED", words, code, said, one_line)
            failed = 1
        if " ".join(one_line.split()) not in " ".join(said.split()):
            print("FAILED", words, "a terminal is told something else:", said, one_line)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
