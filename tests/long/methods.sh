#!/usr/bin/env bash
# Random small models with random methods on random meshes: every run equals one rank's within the tolerance, and what the
# ranks sent, inside stages too, is what was planned. HEDDLE_SEED chooses other ones.
set -u
: "${HEDDLE:?}" "${HEDDLE_BUILD:?}"
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
command -v python3 >/dev/null || { echo "FAILED: needs python3"; exit 1; }
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
transports=threads,shm
if have_mpi; then
    transports=$transports,mpi
    export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # Open MPI leaks
fi
python3 - "$folder/model.yaml" "$transports" "${HEDDLE_SEED:-1}" <<'PY'
import os, random, subprocess, sys

path, transports, seed = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
draw = random.Random(seed)
failed = runs = infeasible = 0


def model():
    heads, stages, methods = draw.randint(1, 4), [], []
    flag = lambda: draw.choice(["true", "false"])
    for i in range(draw.randint(1, 4)):
        over = draw.choice("ts")
        kind = draw.choice(["attention", "attention", "linear-attention", "mlp"])
        text = f"  - {{name: x{i}, kind: {kind}, modulate: {flag()}"
        if kind == "mlp":
            text += ", ratio: 2}"
        elif kind == "attention":
            text += f", over: {over}, heads: {heads}, rope: {flag()}, qk_norm: {flag()}}}"
            methods.append(f"x{i}=" + draw.choice("auto local ulysses ring rsa gather-kv usp".split()))
        else:
            decay = draw.choice(["1", "0.9", "slopes"])
            text += f", over: {over}, heads: {heads}, causal: {flag()}, decay: {decay}}}"
            methods.append(f"x{i}=" + draw.choice("auto local lasp lasp2 scan".split()))
        stages.append(text)
    dims = (f"b: {{size: {draw.randint(1, 3)}, role: batch}}, t: {draw.randint(1, 20)}, s: {draw.randint(1, 30)}, "
            f"c: {{size: {heads * draw.choice([2, 4, 6])}, role: channel}}")
    head = f"model: r\ndtype: {draw.choice(['f32', 'f32', 'bf16'])}\ndims: {{{dims}}}\n"
    return head + f"tensors: {{x: [b, t, s, c]}}\nrepeat: {draw.randint(1, 2)}\nstages:\n" + "\n".join(stages) + "\n", methods


for _ in range(max(10, 6 * int(os.environ.get("HEDDLE_LONG_PERCENT", "100")))):
    text, methods = model()
    with open(path, "w") as file:
        file.write(text)
    mesh = draw.choice([f"sp={draw.randint(1, 7)}", f"a={draw.randint(1, 3)},b={draw.randint(1, 3)}"])
    transport = draw.choice(transports + ["threads", "shm"])
    command = [os.environ["HEDDLE"], "run", path, "--mesh", mesh, "--transport", transport, "--check"]
    command += ["--method", ",".join(methods)] if methods else []
    command += ["--messages", "--hosts", "2"] if transport == "mpi" and draw.random() < 0.5 else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    runs += 1
    infeasible += done.returncode == 3
    if done.returncode not in (0, 3):
        failed += 1
        print(" ".join(command), text, done.stdout[-800:], done.stderr[-400:], sep="\n")
print(f"{runs} runs, {infeasible} of them infeasible, {failed} failed")
sys.exit(failed > 0 or infeasible * 3 > runs)
PY
