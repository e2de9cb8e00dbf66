#!/usr/bin/env bash
# The main job on a fresh machine: install what is missing, build, plan a video transformer, run its spatial and
# temporal blocks on several ranks with the sharded dim switching in between, prove that the result is bitwise that of
# one rank, and train a small one. Takes a few minutes the first time, seconds after that.
set -euo pipefail
cd "$(dirname "$0")/.."
. examples/packages.sh

echo "== 1/5 packages"
heddle_packages build

echo "== 2/5 build what is run below (folder build/)"
mkdir -p build
log=build/quickstart.log
programs="heddle_cli example_make_clip example_train_video" # what runs here; kernels for GPUs would take minutes
generator=""
[ -f build/CMakeCache.txt ] || ! command -v ninja >/dev/null || generator="-G Ninja" # a folder keeps the one that it has
if ! { cmake --preset release $generator -DHEDDLE_TESTS=OFF && cmake --build build -j "$(nproc)" --target $programs; } >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "error: the build failed; the whole log is in $log" >&2
    exit 1
fi

model=examples/models/stdit3-240p-51f.yaml
echo "== 3/5 plan for the fewest bytes: which dim is sharded in each stage, and what the switches cost"
build/heddle plan "$model" --mesh sp=4 --objective bytes

echo
echo "== 4/5 run two layer pairs on 4 ranks (processes), then once more on one rank, and compare"
build/example_make_clip build/clip.y4m
build/heddle run "$model" --layers 2 --ranks 4 --transport shm --input build/clip.y4m --output build/result.npy --check

echo
echo "== 5/5 train a small video transformer on 2 ranks: forward, backward and the sums of gradients"
build/example_train_video --ranks 2 --transport shm --steps 200 --print-every 50

echo
if [ "$(nproc)" -lt 4 ]; then
    echo "(4 ranks shared $(nproc) cores here: the run shows exactness and bytes, not speed)"
fi
echo "The activation of all 6075 tokens of step 4 is in build/result.npy. A longer training with a picture of what was learnt,"
echo "half a minute: build/example_train_video --picture build/clip.png. Next: build/heddle help, examples/01_switch.c, docs/tour.md"
echo "Everything else, and kernels for GPUs where there is a CUDA Toolkit: cmake --build build -j $(nproc)"
