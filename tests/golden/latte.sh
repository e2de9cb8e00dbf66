#!/usr/bin/env bash
# The published transformer, small: the same bits on any number of ranks, against NumPy where there is one, files of all
# kinds, and what is damaged or asks for something else refused by a sentence.
set -uo pipefail
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
latte=$HEDDLE_BUILD/example_latte
[ -x "$latte" ] || { echo "FAILED: the examples are not built"; exit 1; }
command -v python3 >/dev/null || skip_test python "no Python"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $1" >&2
    [ ! -f "$work/out" ] || cat "$work/out" >&2
    exit 1
}
folder() { # NAME, options of latte_folder.py
    python3 "$HEDDLE_SOURCE/tests/golden/latte_folder.py" "$work/$1" "${@:2}" || fail "no folder $1"
}
run() { # OUTPUT, then options; the last line says what was sent
    "$latte" "$work/${@:2:1}" --text-tokens 7 --output "$work/$1.npy" "${@:3}" >"$work/out" 2>&1 || fail "$*"
}
same() {
    cmp -s "$work/$1.npy" "$work/$2.npy" || fail "$3: other bits"
}
folder plain
folder shards dtype=mixed shards=3
folder wide dtype=F32 heads=1 head_dim=20 frames=1 side=6 out=4 bias=0

# --- bits: 5 frames and 25 tokens are divided by no number of ranks but 5 ---------------------------------------------
run one plain --ranks 1
for ranks in 2 3 4; do
    run some plain --ranks $ranks --transport $([ $ranks = 3 ] && echo threads || echo shm)
    same one some "$ranks ranks"
    grep -q 'planned [1-9][0-9]*, counted [1-9]' "$work/out" || fail "$ranks ranks: nothing was sent"
done
run some plain --mesh '[a=2 b=2]' --threads 2 --transport threads
same one some "two axes, two threads"
if have_mpi; then
    ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" mpirun --allow-run-as-root --oversubscribe -n 2 "$latte" \
        "$work/plain" --ranks 2 --text-tokens 7 --output "$work/some.npy" </dev/null >"$work/out" 2>&1 || fail "mpirun"
    same one some "mpirun"
    [ "$(grep -c '^latte:' "$work/out")" = 1 ] || fail "mpirun: one rank speaks"
fi
run guided-one plain --ranks 1 --steps 2 --guidance 4
for ranks in 2 3; do # the two samples of a pass go to ranks of their own, or do not
    run guided plain --ranks $ranks --steps 2 --guidance 4
    same guided-one guided "guided, $ranks ranks"
done
cmp -s "$work/one.npy" "$work/guided-one.npy" && fail "steps change nothing"
run picture wide --ranks 1 --steps 1
run some wide --ranks 3 --steps 1
same picture some "a picture"

# --- against NumPy ----------------------------------------------------------------------------------------------------
judged=0
for python in python3 /usr/bin/python3; do
    if "$python" -c 'import numpy' 2>/dev/null; then
        for name in "plain full" "shards short" "wide short"; do
            "$python" "$HEDDLE_SOURCE/tests/golden/latte_numpy.py" "$latte" "$work/${name% *}" "$work" ${name#* } || exit 1
        done
        judged=1
        break
    fi
done
[ $judged = 1 ] || not_here numpy "no Python with NumPy"

# --- refused: exit code 2, one sentence that names it, before any rank starts -----------------------------------------
refused() { # part of the sentence, FOLDER, options
    local sentence=$1 got=0
    shift
    "$latte" "$work/$1" "${@:2}" >"$work/out" 2>&1 </dev/null || got=$?
    [ "$got" = 2 ] || fail "$*: exit code $got"
    grep -q -- "$sentence" "$work/out" || fail "$*: not the sentence: $sentence"
    [ "$(wc -l <"$work/out")" = 1 ] || fail "$*: more than a sentence"
}
damaged() { # part of the sentence, options of latte_folder.py
    folder damaged "${@:2}"
    refused "$1" damaged
    rm -rf "$work/damaged"
}
damaged "1 tensors are missing: temporal_transformer_blocks.1.ff.net.2.weight" change=missing
damaged "'caption_projection.y_embedding' is nothing of this model" change=extra
damaged "'temporal_transformer_blocks.1.ff.net.2.weight' is \[96, 24\], the model needs \[24, 96\]" change=shape
damaged "has dtype I64; F32, F16 and BF16 are read" change=type
damaged "safetensors: .* of the data, which has" change=cut
damaged "has more than 2^63 elements" change=huge
damaged "stands in another file" change=twice shards=2
damaged "is not in diffusion_pytorch_model-00002-of-00002" change=place shards=2
damaged "'num_layers' is 2000, not a whole number from 1 to 1024" config.num_layers=2000
damaged "34 tensors are missing: transformer_blocks.2.attn1.to_q.weight, .*, \.\.\.$" config.num_layers=3
damaged "tensor 'temporal_transformer_blocks.1.* is nothing of this model" config.num_layers=1
damaged "make 1048576 channels, not a multiple of 4 up to 65536" config.num_attention_heads=1024 \
    config.attention_head_dim=1024
damaged "'pos_embed.proj.weight' is \[24, 4, 2, 2\], the model needs \[65536, 4, 2, 2\]" config.num_attention_heads=256 \
    config.attention_head_dim=256 config.cross_attention_dim=65536
damaged "'proj_out.weight' is \[32, 24\], the model needs \[4096, 24\]" config.out_channels=1024
damaged "'cross_attention_dim' is 48, but the text is projected to 24" config.cross_attention_dim=48
damaged "'activation_fn' is geglu; this program does gelu-approximate" 'config.activation_fn="geglu"'
damaged "'norm_type' is layer_norm; this program does ada_norm_single" 'config.norm_type="layer_norm"'
damaged "'norm_eps' is 1e-05" config.norm_eps=1e-5
damaged "'qk_norm' is nothing that this program knows" config.qk_norm=true
damaged "'norm_type' is missing" config.norm_type=-
damaged "'_class_name' is PixArtTransformer2DModel" 'config._class_name="PixArtTransformer2DModel"'
damaged "'sample_size' 9 is no multiple of 'patch_size' 2" config.sample_size=9
damaged "the latent is empty, or has more than" config.sample_size=4096 config.video_length=4096
refused "config.json: cannot be opened" nowhere
mkdir "$work/damaged" && echo '{"num_layers": 2, "num_layers": 3}' >"$work/damaged/config.json"
refused "'num_layers' is there twice" damaged
printf '{"num_layers": 2' >"$work/damaged/config.json"
refused "the file ends at byte 16 where '}' should stand" damaged
: >"$work/damaged/config.json"
refused "not a file with anything in it" damaged
cp "$work/plain/config.json" "$work/damaged/config.json"
refused "diffusion_pytorch_model.safetensors: cannot be opened" damaged
echo '{"weight_map": {"a": "../a.safetensors"}}' >"$work/damaged/diffusion_pytorch_model.safetensors.index.json"
refused "is no name of a safetensors file beside it" damaged
echo '{"metadata": {}}' >"$work/damaged/diffusion_pytorch_model.safetensors.index.json"
refused "'weight_map' is missing or empty" damaged

refused "the latent is .*; the model takes 4 channels, 5 frames or 1" plain --frames 3
refused "not a .npy file" plain --latent "$latte"
refused "3 of '<f2', '<f4' or '<f8' are wanted" plain --text "$work/one.npy"
refused "one.npy is \[1 8 5 10 10\]; the model takes 4" plain --latent "$work/one.npy"
refused "has no method 'best'" plain --method t.attn=best
refused "column 6" plain --mesh '[sp=2'
refused "3, and 256 are the most" plain --mesh '[sp=2]' --ranks 3
refused "whole number from 1 to 1000, not 0" plain --steps 0
refused "goes with --steps" plain --guidance 3
refused "cannot be written\|no such\|No such" plain --output "$work/none/a.npy"
refused "is no option" plain --rank 2
refused "--timestep is for one pass, not --steps" plain --timestep 3 --steps 2
refused "--frames is for seeded noise, not --latent" plain --frames 1 --latent "$work/one.npy"
refused "--text-tokens is for seeded text, not --text" plain --text-tokens 7 --text "$work/one.npy"
folder odd out=6
refused "--steps wants a model that predicts noise" odd --steps 1

for options in --help '' '--transport threads'; do # what is printed and does not arrive is a failure, said once
    got=0
    # shellcheck disable=SC2086
    "$latte" "$work/plain" $options >/dev/full 2>"$work/out" || got=$?
    [ "$got" = 1 ] && [ "$(grep -c 'standard output could not be written' "$work/out")" = 1 ] && [ "$(wc -l <"$work/out")" = 1 ] ||
        fail "'$options' with a full standard output: exit code $got"
done
echo ok
