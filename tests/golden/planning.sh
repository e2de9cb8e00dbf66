#!/usr/bin/env bash
# heddle explain, compare, sweep, memory, simulate, volume of a model, diff: verdicts, rows, JSON and its keys, refusals.
set -u
: "${HEDDLE:?}" "${HEDDLE_SOURCE:?}"
export XDG_CONFIG_HOME=/nonexistent
. "$HEDDLE_SOURCE/tests/support/skip.sh"
. "$HEDDLE_SOURCE/tests/support/says.sh"
command -v python3 >/dev/null || skip_test python "no python3"
two="--machine 2x8xh100-nvlink+ib400"

# What does not fit is marked.
says "a sweep that fits nowhere" 0 "*: does not fit, a rank of the machine has 48.3 GB" \
    sweep wan2.1-14b -n 1..4 --machine 8xl20-pcie --training
says "and in JSON" 0 '"fits": false' sweep wan2.1-14b -n 1..4 --machine 8xl20-pcie --training --json
says "with no knee" 0 '"knee": null' sweep wan2.1-14b -n 1..4 --machine 8xl20-pcie --training --json
says "a comparison" 0 " GB*" compare gpt-like -n 8 --machine 8xa100-nvlink --training --methods best,rsa
says "and in JSON, too" 0 '"fits": true' compare hunyuanvideo -n 16 $two --json

# Where nothing has a plan a sentence says what has.
says "compare that fits nowhere" 3 "no row has a plan: where memory is why, --objective memory without --memory has the rows that need least" \
    compare hunyuanvideo -n 16 $two --memory 1G
! grep -q "sent max by" "$folder/out" || { echo "FAILED compare that fits nowhere: $(cat "$folder/out")" && failed=1; }
says "compare of no method" 3 "no row has a plan: heddle plan takes any method, and says" compare hunyuanvideo -n 16 $two --methods lasp
says "compare of no mesh" 3 "with -n in place of --meshes" compare hunyuanvideo --meshes sp=7 $two --max-waste 1 --method attn=usp
says "a link that a row does not reach" 0 "  sp=7              75.2 GB            -" compare hunyuanvideo --meshes sp=7,sp=16 $two
says "links of no class" 2 "has no links of class 'wire': nvlink, ib400" plan hunyuanvideo -n 16 $two --links wire=2
for links in x nvlink= 2x nvlink=2=3; do
    says "links $links" 2 "--links wants 0.25 or ib400=0.25, how many times the bytes per second" plan hunyuanvideo -n 16 $two --links $links
done

for links in , ,,0.5 0.5,; do
    says "no links" 2 "--links wants 0.25 or ib400=0.25, not '$links'" plan hunyuanvideo -n 16 $two --links $links
done
says "bytes of the slowest links, which a row does not reach" 0 "82.3 GB   82.3 GB   1.32 TB   26.9 GB    1.42 s        -" \
    compare hunyuanvideo --meshes sp=7,sp=16 --objective slow-bytes $two
says "a schedule of other links" 0 '"machine": "2x8xh100-nvlink+ib400 with links ib400=0.25,nvlink=2"' \
    plan axial-3d -n 16 $two --links ib400=0.25,nvlink=2 -o -
says "a machine that grows, with other links" 0 '"machine": "cpu with links 0.5"' \
    compare stdit3-xl2 --meshes sp=2,sp=64 --links 0.5 --json

# The first things that a new user types.
says "plan" 0 "objective time" plan hunyuanvideo -n 16 $two
says "where the machine is from" 0 "2x8xh100-nvlink+ib400, as asked" plan hunyuanvideo -n 16 $two
says "the machine's ranks" 0 "on [r=2 u=8]" plan hunyuanvideo $two
says "as many cores as are asked for" 0 "on [sp=4096]" plan axial-3d --mesh sp=4096 --machine cpu
says "default machine" 0 "machine cpu, a preset: none was named or calibrated" plan hunyuanvideo -n 2
"$HEDDLE" plan stdit3-xl2 --mesh sp=4096 --machine cpu -o "$folder/s4096.json" >/dev/null || failed=1
for named in memory simulate volume; do
    says "$named of a schedule of more ranks than cores" 0 "machine cpu, a preset" $named stdit3-xl2 --schedule "$folder/s4096.json"
    says "$named of a schedule of more ranks than the machine" 2 "has 16 ranks, 4096 are asked for" \
        $named stdit3-xl2 --schedule "$folder/s4096.json" $two
done
mkdir -p "$folder/heddle"
printf 'nonsense: 1\n' >"$folder/heddle/machine.yaml"
XDG_CONFIG_HOME=$folder says "calibrated machine" 2 "$folder/heddle/machine.yaml:1:1" plan hunyuanvideo -n 2
says "no ranks" 2 "wants --mesh, for example --mesh sp=4, or -n 4" plan hunyuanvideo
says "too few ranks" 2 "has 16 ranks, 32 are asked for" plan hunyuanvideo -n 32 $two
says "two numbers" 2 "--ranks 8, but the mesh" plan hunyuanvideo -n 8 --mesh sp=4 $two
says "unknown preset" 2 "hunyuanvide" plan hunyuanvide -n 8
says "unknown machine" 2 "8xh100-nvlik" plan hunyuanvideo -n 8 --machine 8xh100-nvlik
for mesh in 16 2x8 sp16; do
    says "a mesh of $mesh" 2 "a mesh names its axes, as sp=16 or 'node=2 gpu=8', found '$mesh'" plan hunyuanvideo --mesh $mesh
done
says "a mesh of usp=2x8" 2 "a mesh is written sp=16 or 'node=2 gpu=8'" plan hunyuanvideo --mesh usp=2x8
for words in "--nproc 8" --gpus=8 --world-size=8 "-N 8"; do
    # shellcheck disable=SC2086
    says "$words" 2 "did you mean --ranks, or -n?" plan hunyuanvideo $words
done
says "-m" 2 "did you mean --machine?" plan hunyuanvideo -m cpu
says "-n=8" 0 "on [sp=8]" plan hunyuanvideo -n=8
says "a bare number" 2 "a number of ranks is said as -n 16" plan hunyuanvideo 16
says "two sizes" 0 "[b=2 t=30 " plan stdit3-xl2 --mesh sp=2 --size b=2 --size t=30
says "a bare mesh" 2 "a mesh is said as --mesh sp=16, an extent as --size sp=16" plan hunyuanvideo sp=16
says "a method alone" 2 "or *=ring for every stage, found 'ring'" plan hunyuanvideo -n 8 --method ring
one_sample=(plan stdit3-720p-204f -n 8 --machine 8xh100-nvlink)
says "guidance" 0 "passes with and without the condition are one after the other: --size b=2 has them at once," "${one_sample[@]}"
says "guidance on many ranks" 0 "--size b=2 has them at once" plan latte-xl2 -n 1024 --machine 128x8xh100-nvlink+ib400
! grep -q "a sample on" "$folder/out" || { echo "FAILED guidance on many ranks: $(cat "$folder/out")" && failed=1; }
says "three samples" 0 "--size b=6 has them at once," "${one_sample[@]}" --size b=3
says "guidance in the batch" 0 "a whole sample: " "${one_sample[@]}" --size b=2
! grep -q "one after the other" "$folder/out" || { echo "FAILED guidance in the batch: $(cat "$folder/out")" && failed=1; }
says "no command" 2 "unknown command 'plans': did you mean plan?" plans hunyuanvideo
says "a command in capitals" 2 "unknown command 'Plan': did you mean plan?" Plan hunyuanvideo
says "ranks of one stage" 2 "'-n': unknown option; did you mean --mesh?" simulate attention "b=1 s=64 h=4 d=16" -n 8
for problem in hunyuanvideo b=1,s=64,h=4,d=16; do
    says "problem $problem" 2 "simulate attention wants a problem, as 'b=1 s=8192 h=24 d=128', not '$problem'" \
        simulate attention $problem --mesh sp=4 --method ring
done
says "a model alone" 2 "unknown command 'hunyuanvideo', which is a model: heddle plan hunyuanvideo -n 8" hunyuanvideo
for range in 2000000,4 1099511627776,4 1..5:9223372036854775807 16..1 1-16 1..16:0 1..99999999999999999999 ,; do
    says "sweep -n $range" 2 "--ranks wants FIRST..LAST, FIRST..LAST:STEP or numbers with commas" sweep stdit3-xl2 -n $range
done
for why in ';' s.attn=/rings "s.attn=/ring;t.atn=/ring"; do
    if "$HEDDLE" explain stdit3-xl2 -n 2 --why-not "$why" --json >"$folder/half" 2>/dev/null || [ -s "$folder/half" ]; then
        echo "FAILED --why-not $why: half an answer"
        failed=1
    fi
done
says "letters are missing" 2 "did you mean --json?" plan hunyuanvideo -n 2 --jsn
says "gigabytes" 0 "objective time" plan hunyuanvideo -n 16 --memory "80 GiB" $two
says "of 1000" 3 "76000000 are allowed" plan hunyuanvideo -n 16 --memory 76MB $two
says "no bytes" 2 "as 80G (of 1024) or 80GB (of 1000)" plan hunyuanvideo -n 16 --memory 80Q $two
says "objective" 2 "--objective wants 'time', 'bytes'" plan hunyuanvideo -n 8 --objective speed
says "does not fit" 3 "1073741824 are allowed" plan hunyuanvideo -n 8 --memory 1G $two
says "stage by stage" 3 "  attn           needs 26.4 GB where plans need least, 1.07 GB are allowed" plan hunyuanvideo -n 8 --memory 1G $two
says "recompute" 2 "--recompute is of --training" plan hunyuanvideo -n 8 --recompute $two

# Large files and numbers are refused with what is too large, never wrapped.
large() { printf 'model: large\ndtype: bf16\ndims: {t: 16, c: {size: 64, role: channel}}\ntensors: {x: [t, c]}\n%b\n' "$1" >"$folder/large.yaml"; }
large "stages:\n$(for i in $(seq 1 3000); do printf -- '- {name: a%d, kind: mlp, ratio: 4}\\n' "$i"; done)"
says "many stages" 2 "'stages' must have 1 to 256 entries, found 3000" plan "$folder/large.yaml" --mesh sp=4
head -c 2000000 /dev/zero | tr '\0' ' ' >>"$folder/large.yaml"
says "a long file" 2 "longer than the 1048576 bytes" plan "$folder/large.yaml" --mesh sp=4
large "repeat: 65536\nstages: [{name: a, kind: attention, over: t, heads: 4}, {name: m, kind: mlp, ratio: 4}]"
says "many runs" 2 "2 stages repeated 65536 times are 131072; at most 65536" plan "$folder/large.yaml" --mesh sp=4
large "repeat: 32768\nstages: [{name: a, kind: attention, over: t, heads: 4}, {name: m, kind: mlp, ratio: 4}]"
says "as many as may be" 0 "2 stages x 32768" plan "$folder/large.yaml" --mesh sp=4 -n 4
large "stages: [{name: a, kind: attention, over: t, heads: 4}]"
says "an extent" 2 "dim 't' is at most 281474976710656 long, asked for 281474976710657" plan "$folder/large.yaml" --mesh sp=4 --size t=281474976710657
says "work" 2 "stage 'a' would take a rank more than 2^63 picoseconds" plan "$folder/large.yaml" --mesh sp=4 --size t=281474976710656
large "repeat: 60000\nstages: [{name: a, kind: module, token_flops: 1, weights: 100000000000000}]"
says "memory" 2 "stage 'a' of repetition 1: the fullest rank would need more than 2^63 bytes" plan "$folder/large.yaml" --mesh sp=4 --training $two
large "stages: [{name: a, kind: module, token_flops: 9223372036854775807}]"
says "flops" 2 "stage 'a': token_flops 9223372036854775807 of 16 tokens is more than" plan "$folder/large.yaml" --mesh sp=4

# Why not: four verdicts.
why="explain hunyuanvideo --mesh sp=16 $two --why-not"
says "elsewhere" 0 "ranks: 33 % of the work idle" $why attn=/ulysses
says "regret" 0 "CHEAPER ELSEWHERE" $why attn=s@sp/ring
says "chosen" 0 "attn=s@sp/ulysses: CHOSEN" explain hunyuanvideo --mesh sp=8 $two --why-not attn=s@sp/ulysses
says "unavailable" 0 "UNAVAILABLE: " $why attn=s@sp/local
says "two questions, the first" 0 "attn=/ulysses: CHEAPER ELSEWHERE" $why attn=/ulysses --why-not attn=/ring
says "two questions, the second" 0 "attn=/ring: " $why attn=/ulysses --why-not attn=/ring
says "no such stage" 2 "STAGE is one of attn, mlp" $why atn=/ring
says "no such layout" 2 "LAYOUT '*' or DIM@AXIS" $why attn=q@sp
says "no form" 2 "it wants STAGE=LAYOUT/METHOD" $why attn
says "reasons" 0 "attends over s, which is sharded" explain hunyuanvideo -n 16 $two
says "what other links change" 0 "the best plan if links were slower or faster:
  links 16 times as slow: [sp=16] instead of [r=2 u=8]
  links 14 times as fast: [sp=16] instead of [r=2 u=8]
  nvlink 35.5 times as slow: [sp=16] instead of [r=2 u=8]
  nvlink 4, 16 or 64 times as fast: this plan
  ib400 15.3 times as slow: attn by ulysses instead of usp
  ib400 4, 16 or 64 times as fast: this plan" explain hunyuanvideo -n 16 $two
says "on one mesh, one class" 0 "the best plan on this mesh if links were slower or faster:
  links 60.3 times as slow" explain stdit3-3b --mesh sp=8 --machine 8xh100-nvlink

# A window over a sharded dim: rank 0 of two has 8 of 16 rows, of which the other sees 3, 2 arrays x 3 x 64 channels x 4.
printf 'model: window\ndtype: f32\ndims: {s: 16, c: {size: 64, role: channel}}\ntensors: {x: [s, c]}\nstages:\n' >"$folder/w.yaml"
printf '  - {name: attn, kind: attention, over: s, heads: 4, window: 3}\n' >>"$folder/w.yaml"
says "halo" 0 "gather-kv free       1.54 kB" plan "$folder/w.yaml" --mesh sp=2 --objective bytes -o "$folder/w.json"
says "halo of a schedule" 0 "1.54 kB" volume "$folder/w.yaml" --schedule "$folder/w.json"
says "a window is not run" 2 "attention within a window, which no block does yet" run "$folder/w.yaml" --mesh sp=2
sed 's/"window": \[3\]/"window": [4]/' "$folder/w.json" >"$folder/w4.json"
says "another window" 2 "forward_bytes_per_rank_max" volume "$folder/w.yaml" --schedule "$folder/w4.json"


# The same rows once, as a module's halo wants them; and the mean and squares of four groups of channels.
module='kind: module, over: s, token_flops: 1000'
sed "s/- {name: attn.*/- {name: conv, $module, window: 3, methods: [halo]}/" "$folder/w.yaml" >"$folder/h.yaml"
says "a module's halo" 0 "halo      free         768 B" plan "$folder/h.yaml" --mesh sp=2 --objective bytes
sed "s/- {name: attn.*/- {name: norm, $module, heads: 4, methods: [sums]}/" "$folder/w.yaml" >"$folder/n.yaml"
says "a module's sums" 0 "sums      free          32 B" plan "$folder/n.yaml" --mesh sp=2 --objective bytes
says "no sums of attention" 2 "has no method 'halo'; there are auto, local, ulysses, usp, ring, gather-kv, rsa" \
    plan "$folder/w.yaml" --mesh sp=2 --method attn=halo

says "compare" 0 "megatron-sp" compare hunyuanvideo -n 16 $two --methods best,ulysses,megatron-sp --baseline ulysses
says "no linear attention" 0 "lasp         no plan: the model has no linear" compare hunyuanvideo -n 16 $two --methods best,lasp
says "unknown method" 2 "is none of best, dsp" compare hunyuanvideo -n 16 $two --methods best,magic
says "baseline" 2 "is no row" compare hunyuanvideo -n 16 $two --baseline rsa
says "meshes" 0 "cfg=2 sp=8" compare hunyuanvideo $two --size b=2 --meshes 'sp=16,cfg=2 sp=8'
says "windows" 0 "megatron-tp  [node=2 gpu=4]" compare pangu-like -n 8 --machine 8xl20-pcie --methods best,megatron-tp
says "split weights fit" 0 "megatron-sp" compare cogvideox-5b -n 8 $two --methods best,megatron-sp --memory 4G
says "they do not" 3 "bytes; 1073741824 are allowed" compare cogvideox-5b -n 8 $two --methods megatron-tp --memory 1G
says "fewer ranks" 0 "fewer ranks take less time than: 7 (6) 9 (8) 10 (8) 11 (8)" sweep stdit3-xl2 -n 1..16 $two
says "sweep" 0 "knee: " sweep hunyuanvideo -n 1..8 $two
says "sweep of extents" 0 "t=30" sweep stdit3-xl2 --size t=15..30:15 --mesh sp=2 $two
says "extents with commas" 0 "8 t=60 " sweep stdit3-xl2 --size t=15,30,60,s=405 --mesh sp=8 --machine 8xh100-nvlink
says "two dims with commas" 2 "one dim can be swept, found t and s" sweep stdit3-xl2 --size t=15,30,s=405,90 --mesh sp=8
says "methods change" 0 "t=30: s.attn by local instead of gather-kv" sweep stdit3-xl2 --size t=15,30,60 --mesh sp=8 --machine 8xh100-nvlink
says "layouts change" 0 "s.mlp in t@sp instead of s@sp" sweep stdit3-xl2 --size t=105,120 --mesh sp=8 --machine 8xh100-nvlink
says "a mesh that was searched has names" 0 "on [sp=5] lets it run" compare hunyuanvideo -n 5 $two --methods best,usp
for bad in 4..1 1..x 0..4 1..99999999 , ''; do
    says "range '$bad'" 2 "wants" sweep hunyuanvideo -n "$bad" $two
done
says "memory" 0 "the peak is at" memory hunyuanvideo -n 8 $two
says "longest" 0 "by attn=s@" memory hunyuanvideo -n 8 $two --longest s
says "longest that does not fit" 3 "1073741824 are allowed" memory stdit3-xl2 -n 8 $two --longest t --memory 1G
says "longest of no dim" 2 "no batch or sequence dim" memory stdit3-xl2 -n 8 $two --longest c
says "longest by bytes" 2 "plans by time, gpu-seconds or memory" memory stdit3-xl2 -n 8 $two --longest t --objective bytes
says "simulate" 0 "all repetitions" simulate hunyuanvideo --mesh sp=8 $two --method '*=ulysses'
one="simulate attention"
says "an attention" 0 "a rank sends at most 319 MB" $one 'b=1 s=118800 h=24 d=128' --mesh sp=8 --method ulysses --machine 8xh100-nvlink
says "a line of bench" 0 "ring on 2 ranks" bench attention 'f32[b=1 s=64 h=4 d=8] on [sp=2]' --method ring --seconds 0
says "the same line" 0 "attention on [sp=2]" $one 'f32[b=1 s=64 h=4 d=8] on [sp=2]' --method ring
says "another layout" 0 "attention on [dp=2 sp=4]" $one 'bf16[n=2 rows=1800 h=8 d=64] on [dp=2 sp=4]: n@dp,rows@sp' --method ring --causal --zigzag --kv-heads 2 --backward $two
says "linear attention" 0 "a rank sends at most 1.05 MB" simulate linear-attention 'b=1 s=2097152 h=16 d=128' --mesh sp=16 $two
says "one rank" 0 "attention on [sp=1]" $one 'b=1 s=4096 h=24 d=128' --machine 8xh100-nvlink
says "idle ranks" 0 "attention on [sp=16]" $one 'b=1 s=118800 h=24 d=128' --mesh sp=16 --method ulysses $two
says "a sharded dim" 2 "local wants dim 's' whole" $one 'b=1 s=4096 h=24 d=128' --mesh sp=8
says "two meshes" 2 "another one in --mesh" $one 'f32[b=1 s=64 h=4 d=8] on [sp=2]' --mesh sp=2
says "three dims" 2 "attention wants 4 dims" $one 'b=1 s=64 h=4' --method ring
says "one axis" 2 "over two mesh axes" $one 'b=1 s=64 h=4 d=8' --mesh sp=2 --method usp
says "no method" 2 "no attention method is called 'zing'" $one 'b=1 s=64 h=4 d=8' --method zing
says "linear attention's own" 2 "lasp" $one 'b=1 s=64 h=4 d=8' --method lasp
says "few ranks" 2 "has 8 ranks, 16 are asked for" $one 'b=1 s=64 h=16 d=8' --mesh sp=16 --method ring --machine 8xh100-nvlink
printf 'model: m\ndtype: f32\ndims:\n  s: 8\n  c: {size: 8, role: channel}\ntensors:\n  x: [s, c]\nstages:\n  - {name: a, kind: attention, over: s, heads: 2, core: true}\n' >"$folder/core.yaml"
says "nothing runs it" 2 "no products of its own" run "$folder/core.yaml" --ranks 2
says "volume" 0 "ib400" volume hunyuanvideo -n 16 $two
for shown in "plan hunyuanvideo -n 16" "explain hunyuanvideo -n 16" "compare hunyuanvideo -n 16 --baseline ulysses" \
    "sweep hunyuanvideo -n 1..16" "memory hunyuanvideo -n 16" "simulate hunyuanvideo -n 16"; do
    # shellcheck disable=SC2086
    says "$shown" 0 "" $shown $two
    awk 'length($0) > 100 { print; bad = 1 } END { exit bad }' "$folder/out" || {
        echo "FAILED $shown: more than 100 columns"
        failed=1
    }
done
for shown in "compare axial-3d -n 16 --baseline best" "compare axial-3d -n 64 --baseline best" "sweep stdit3-xl2 -n 64" "plan stdit3-xl2 -n 16 --objective slow-bytes --method t.attn=ring"; do
    case $shown in *"axial-3d -n 64"*) ! is_sanitized || continue ;; esac # half a minute there, for the width of a table
    # shellcheck disable=SC2086
    "$HEDDLE" $shown --machine 8x8xh100-nvlink+ib400 >"$folder/out" || failed=1
    awk 'length($0) > 100 { print; bad = 1 } END { exit bad }' "$folder/out" || {
        echo "FAILED $shown: a mesh of many axes, more than 100 columns"
        failed=1
    }
done
"$HEDDLE" plan stdit3-xl2 --mesh sp=8 $two --json >"$folder/a.json" || failed=1
"$HEDDLE" plan stdit3-xl2 --mesh sp=8 $two --objective bytes --method '*=ring' -o "$folder/b.json" >/dev/null || failed=1
says "diff" 0 "of 168 stages differ" diff "$folder/a.json" "$folder/b.json"
grep -qE '^  switches +[0-9]+ +[0-9]+( |$)' "$folder/out" && grep -qE '^  predicted_s +[0-9.]+ m?s +[0-9.]+ m?s' "$folder/out" &&
    grep -qE '^  t.attn +#1-28 ' "$folder/out" && ! grep -q "two models" "$folder/out" || {
    echo "FAILED diff: counts, seconds or repetitions"
    failed=1
}
"$HEDDLE" plan latte-xl2 --mesh sp=8 $two -o "$folder/latte.json" >/dev/null || failed=1
says "another model" 0 "these are schedules of two models" diff "$folder/a.json" "$folder/latte.json"
printf '%s\n' 'model: fsdp' 'dtype: bf16' 'dims: {s: 4096, c: {size: 64, role: channel}}' 'tensors: {x: [s, c]}' 'repeat: 2' \
    'weights: sharded' 'stages:' '  - {name: m, kind: module, token_flops: 100, token_bytes: 8, weights: 1000}' >"$folder/fsdp.yaml"
says "weights gathered" 0 "weights gathered: a rank sends 3.50 kB of its part" plan "$folder/fsdp.yaml" --mesh sp=8 --machine 8xh100-nvlink --epilogue any
grep -q "^link nvlink: a rank sends at most 3.50 kB" "$folder/out" || {
    echo "FAILED weights gathered: not the bytes of the links"
    failed=1
}
says "weights gathered, as JSON" 0 '"weights_gathered_bytes_per_rank": 3500,' \
    plan "$folder/fsdp.yaml" --mesh sp=8 --machine 8xh100-nvlink --epilogue any --json
says "a step gathers twice and scatters gradients" 0 '"weights_gathered_bytes_per_rank": 10500,' \
    plan "$folder/fsdp.yaml" --mesh sp=8 --machine 8xh100-nvlink --epilogue any --json --training
says "whole weights" 0 '"weights_gathered_bytes_per_rank": 0,' plan hunyuanvideo -n 16 $two --json
says "no difference" 0 "0 of 168 stages differ" diff "$folder/a.json" "$folder/a.json"
says "a schedule as a model" 2 "a.json:1:12: this is a schedule or an answer, no model: " plan "$folder/a.json" -n 2
"$HEDDLE" topo --machine 8xh100-nvlink -o "$folder/machine.yaml" >/dev/null || failed=1
says "a machine as a model" 2 "machine.yaml:1:10: this is a machine, no model: " plan "$folder/machine.yaml" -n 2
says "a model as a machine" 2 "this is a model, no machine" plan hunyuanvideo -n 2 --machine "$folder/w.yaml"
"$HEDDLE" plan stdit3-xl2 --mesh sp=4 --layers 4 $two --objective bytes -o "$folder/four.json" >/dev/null || failed=1
"$HEDDLE" plan stdit3-xl2 --mesh sp=4 --layers 4 $two --objective bytes --force 't.attn#2=/ring' -o "$folder/second.json" >"$folder/out" || failed=1
sed -n '/^repetition 2$/,/^repetition/p' "$folder/out" | grep -q '  t.attn  *t@sp  *ring' || {
    echo "FAILED a force of the second repetition: it is not the one that the table calls 2"
    failed=1
}
says "diff of the second" 0 "  t.attn           #2 " diff "$folder/four.json" "$folder/second.json"
says "volume of the second" 0 "ring      t.attn #2 " volume stdit3-xl2 --layers 4 --schedule "$folder/second.json" $two
says "all that are so" 0 "the least of all plans that run as asked on this mesh" plan stdit3-xl2 --mesh sp=2 $two --force 't.attn=/ring'
says "all by a method" 0 "the least of all plans that run as asked on this mesh" simulate stdit3-xl2 --mesh sp=2 $two --method 't.attn=ring'
says "all but rsa" 0 "the least of all plans on this mesh, with rsa only where it is asked for;" plan gpt-like --mesh sp=8 --machine 8xa100-nvlink --training
says "rsa costs less" 0 "attn=/rsa: LEFT OUT: 415 ms instead of 441 ms, 26.0 ms (5.9 %) less; the planner takes rsa" explain gpt-like --mesh sp=8 --machine 8xa100-nvlink --training --why-not attn=/rsa
says "rsa holds more" 0 "a rank would hold 244 GB, of the plan" explain gpt-like --mesh sp=8 --machine 8xa100-nvlink --training --why-not attn=/rsa
says "what was asked for costs more" 0 "attn=/ulysses: LEFT OUT" explain gpt-like --mesh sp=8 --machine 8xa100-nvlink --training --method attn=ring --why-not attn=/ulysses
says "fewer ranks are cheaper" 0 "the least of all plans on any mesh of 16 ranks or of a divisor;" plan hunyuanvideo -n 16 $two --objective gpu-seconds
says "before the first" 2 "a force must look like" plan stdit3-xl2 -n 2 --force 't.attn#0=/ring'
says "behind the last" 2 "has repetitions 1 to 28" plan stdit3-xl2 -n 2 --force 't.attn#29=/ring'
says "why not the last" 0 "t.attn#28=/local: CHOSEN" explain stdit3-xl2 --mesh sp=4 $two --objective bytes --why-not 't.attn#28=/local'
says "one operand" 2 "wants two schedules, found 1" diff "$folder/a.json"
for model in hunyuanvideo gpt-like axial-3d pangu-like; do # joined text, key heads, several dims
    "$HEDDLE" plan $model -n 8 $two --method '*=auto' -o "$folder/read.json" >/dev/null || failed=1
    says "$model, read back" 0 "$model on" diff "$folder/read.json" "$folder/read.json"
done
says "ranks beside a schedule" 2 "--ranks 3, but the mesh of the model has" simulate stdit3-xl2 --schedule "$folder/b.json" $two -n 3
for other in "--mesh sp=2" "--objective bytes" "--method *=ring" "--force s.attn=/ring" "--prologue *" "--epilogue *" "--memory 9G" \
    "--max-waste 9"; do
    # shellcheck disable=SC2086
    set -f && says "$other beside a schedule" 2 "it goes without ${other%% *}" simulate stdit3-xl2 --schedule "$folder/b.json" $two $other
done
set +f
says "a saved schedule" 0 "all repetitions" simulate stdit3-xl2 --schedule "$folder/b.json" $two
# Under a sanitizer one search by trying all instead of four: what is found is the same in every build.
python3 - "$HEDDLE" "$(is_sanitized && echo 1 || echo 4)" <<'PY' || failed=1
import csv, json, subprocess, sys

TWO = ["--machine", "2x8xh100-nvlink+ib400"]


def ask(*words):
    return json.loads(subprocess.run([sys.argv[1], *words, *TWO, "--json"], capture_output=True, check=True).stdout)


p = ask("plan", "hunyuanvideo", "-n", "16")
for key in "schema model mesh machine objective time_s memory_bytes_per_rank bytes_per_rank_max bytes_total links schedule stages".split():
    assert key in p, key
assert p["schema"] == "heddle-plan-1" and p["schedule"]["schema"] == "heddle-schedule-1"
o = p["objective"]
assert o["name"] == "time" and o["lower_bound"] <= o["value"] <= o["runner_up"], o
assert set(p["links"][0]) == {"class", "sent_max", "received_max", "total"}
assert all({"name", "repeat", "layout", "method", "time_s", "reason"} <= set(s) for s in p["stages"])
assert sum(s["repeat"] for s in p["stages"]) == len(p["schedule"]["stages"])
# What a sample takes with both halves of guidance in the batch is the plan of that batch, where it is searched.
g = ask("plan", "stdit3-720p-204f", "-n", "16")
both = ask("plan", "stdit3-720p-204f", "-n", "16", "--size", "b=2")
assert g["at_once"] == {"size": "b=2", "mesh": both["mesh"], "sample_s": both["sample_s"]} and both["mesh"] != g["mesh"]
assert g["schedule"]["shape"] == ask("plan", "stdit3-720p-204f", "--mesh", "sp=16")["schedule"]["shape"], "the model stays"
assert both["at_once"] is None and p["at_once"] is None, "they are"
assert ask("simulate", "stdit3-720p-204f", "-n", "16")["at_once"] == g["at_once"], "simulate has what plan has"
assert ask("plan", "stdit3-720p-204f", "-n", "16", "--memory", "2600MB")["at_once"] is None, "it does not fit"
long = ("plan", "stdit3-720p-204f", "-n", "2", "--size")
assert ask(*long, "t=2400,b=1")["at_once"] is None and ask(*long, "t=600,b=1")["at_once"], "nor does the machine hold it"
# A training step makes no samples, and --backward asks for one.
t = ask("plan", "stdit3-xl2", "-n", "4", "--training")
assert t["time_s"] == t["objective"]["value"] and t["sample_s"] == t["serial_s"] == 0 and t["at_once"] is None, t
assert ask("plan", "stdit3-xl2", "-n", "4", "--backward") == t
# A comparison's ratios are of what the objective counts.
counted = {"time": lambda r: r["time_s"], "bytes": lambda r: r["bytes_per_rank_max"], "memory": lambda r: r["memory_bytes_per_rank"],
           "gpu-seconds": lambda r: r["time_s"] * r["ranks"], "slow-bytes": lambda r: r["links"][-1]["sent_max"]}
for objective, of in counted.items():
    rows = ask("compare", "cogvideox-5b", "-n", "12", "--objective", objective, "--methods", "best,ring,usp,megatron-sp")["rows"]
    least = min(map(of, rows))
    assert all(abs(r["to_best"] - (of(r) / least if least else 0)) <= 1e-5 * r["to_best"] for r in rows), (objective, rows)
# Bytes are those of the schedule, and its links have no more and no less.
b = ask("plan", "hunyuanvideo", "--mesh", "sp=8", "--objective", "bytes")
assert b["objective"]["value"] == b["bytes_per_rank_max"] == b["schedule"]["bytes_per_rank_max"], b["objective"]
assert sum(link["total"] for link in b["links"]) == b["bytes_total"]
s = ask("simulate", "hunyuanvideo", "-n", "16")
assert s["time_s"] == p["time_s"] and s["memory_bytes_per_rank"] == p["memory_bytes_per_rank"]
parts = sum(part["time_s"] for part in s["breakdown"])
assert abs(parts - s["time_s"]) < 1e-6 * parts, (parts, s["time_s"])
m = ask("memory", "hunyuanvideo", "-n", "16")
assert m["memory_bytes_per_rank"] == p["memory_bytes_per_rank"]
# The longest that fits: the last of all that fit, one by one.
for words, dim, cap, end in (
    (["stdit3-xl2", "--mesh", "sp=4"], "t", "2310M", 50),
    (["stdit3-xl2", "--mesh", "sp=3", "--training"], "t", "24G", 40),
    (["axial-3d", "-n", "4", "--size", "h=5,w=7"], "t", "284M", 90),
    (["full-3d", "--mesh", "sp=3", "--size", "s=200"], "b", "1160M", 50),
)[: int(sys.argv[2])]:
    limit = ["--memory", cap]
    found = ask("memory", *words, *limit, "--longest", dim)["longest"]
    sizes = [i for i, w in enumerate(words) if w.startswith("h=") or w.startswith("s=")]
    fits = []
    for n in range(1, end):
        this = [w + f",{dim}={n}" if i in sizes else w for i, w in enumerate(words)]
        this += [] if sizes else ["--size", f"{dim}={n}"]
        fits += [n] if subprocess.run([sys.argv[1], "plan", *this, *limit, *TWO], capture_output=True).returncode == 0 else []
    assert fits == list(range(1, found["extent"] + 1)) and 1 < len(fits) < end - 1, (words, found, fits)
# Regret is what is lost: forced plan less plan. A comparison's rows are plans; its ratios theirs.
e = ask("explain", "hunyuanvideo", "--mesh", "sp=16", "--why-not", "attn=/ulysses;attn=s@sp/ring")
forced = ask("plan", "hunyuanvideo", "--mesh", "sp=16", "--force", "attn=/ulysses")
assert e["why_not"][0]["value"] == forced["objective"]["value"]
assert abs(e["why_not"][0]["regret"] - (forced["objective"]["value"] - e["value"])) < 1e-12
assert {w["verdict"] for w in e["why_not"]} == {"CHEAPER ELSEWHERE"}
assert ask("explain", "hunyuanvideo", "-n", "16")["stages"][0]["alternatives"]
c = ask("compare", "hunyuanvideo", "-n", "16", "--methods", "best,ulysses,ring,lasp", "--baseline", "ulysses")
rows = {r["name"]: r for r in c["rows"]}
assert rows["best"]["time_s"] == p["time_s"] and "refusal" in rows["lasp"]
assert abs(rows["ring"]["to_baseline"] - rows["ring"]["time_s"] / rows["ulysses"]["time_s"]) < 1e-4
w = ask("sweep", "hunyuanvideo", "-n", "1,8,16")
assert [x["ranks"] for x in w["points"]] == [1, 8, 16] and w["points"][2]["time_s"] == p["time_s"]
assert all((x["change"] != "") == x["is_crossover"] for x in w["points"]) and w["points"][1]["is_crossover"]
assert all(x["mesh"] and x["gpu_seconds"] == x["time_s"] * x["ranks"] or x["gpu_seconds"] > 0 for x in w["points"])
v = ask("volume", "hunyuanvideo", "-n", "16")
for i, link in enumerate(p["links"]):
    assert sum(x["links"][i]["total"] for x in v["moves"]) == link["total"]
d = subprocess.run([sys.argv[1], "sweep", "hunyuanvideo", "-n", "1..4", *TWO, "--csv"], capture_output=True, text=True)
assert len(d.stdout.splitlines()) == 5 and d.stdout.startswith("ranks,size,mesh,time_s")
rows = list(csv.DictReader(d.stdout.splitlines()))
assert [r["change"] for r in rows] == [x["change"] for x in ask("sweep", "hunyuanvideo", "-n", "1..4")["points"]]
assert any(r["change"] for r in rows), rows
PY
exit $failed
