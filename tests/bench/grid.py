#!/usr/bin/env python3
"""Switches of 1 to 32 MB against the machine's contiguous copy: which kernel the trials take, and how near it comes.

    python3 tests/bench/grid.py [--heddle build/heddle] [--mb 1,2,4,8,16,32] [--rows 144,576,2304,9216] [--ranks 2,4]
                                [--transport shm,threads] [--samples 80] [--sum] [options of heddle bench ...]

Each cell is one `heddle bench` of a tensor [t, s, c] in f32 that is switched from t to s: s is the number of ranks, so
that every run is one row; the size is the whole tensor's. With --sum it is a sum of as many parts instead, "sum@sp ->
t@sp". Other options go to heddle bench: `--tuning rules`, `--kernel NAME`.

A cell shows roofline / reshard of the same run, by minima (by medians), and the kernel. The last lines count the cells
that miss: 0.90 by minima, 0.80 for rows below 576 bytes, which are no whole cache lines. Ranks beyond the cores take
turns on them: of those cells only the ratio of medians counts, for a minimum is there the luck of the scheduler.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

MB = 1 << 20


def numbers(text: str) -> list:
    return [int(x) for x in text.split(",")]


def line_of(mb: int, row: int, ranks: int, is_sum: bool) -> str:
    t = max(mb * MB // (ranks * row), 1)
    way = "sum@sp -> t@sp" if is_sum else "t@sp -> s@sp"
    return f"f32[t={t} s={ranks} c={row // 4}] on [sp={ranks}]: {way}"


def measure(given: argparse.Namespace, rest: list, transport: str, ranks: int, mb: int, row: int) -> dict:
    line = line_of(mb, row, ranks, given.sum)
    command = [given.heddle, "bench", line, "--ranks", str(ranks), "--transport", transport, "--iterations",
               str(given.samples), "--json", *rest]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heddle", default="build/heddle")
    parser.add_argument("--mb", type=numbers, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--rows", type=numbers, default=[144, 576, 2304, 9216])
    parser.add_argument("--ranks", type=numbers, default=[2, 4])
    parser.add_argument("--transport", default="shm,threads")
    parser.add_argument("--samples", type=int, default=80)
    parser.add_argument("--sum", action="store_true")
    given, rest = parser.parse_known_args()
    cores = len(os.sched_getaffinity(0))
    for ranks in given.ranks:
        shared = ranks > cores
        for transport in given.transport.split(","):
            print(f"{ranks} ranks, {transport}{f', {cores} cores: medians count' if shared else ''}")
            seen = []
            for row in given.rows:
                cells = []
                for mb in given.mb:
                    said = measure(given, rest, transport, ranks, mb, row)
                    least, median = said["roofline_ratio"], said["roofline_ratio_median"]
                    missed = (median if shared else least) < (0.90 if row >= 576 else 0.80)
                    seen.append((least, median, missed))
                    cells.append(f"{mb} MB {least:.2f} ({median:.2f}) {said['kernel']}{' *' if missed else ''}")
                print(f"  rows of {row} B: " + "; ".join(cells), flush=True)
            print(f"  missed {sum(m for *_, m in seen)} of {len(seen)}; least {min(a for a, *_ in seen):.2f} "
                  f"(median {min(b for _, b, _ in seen):.2f}), middle {statistics.median(a for a, *_ in seen):.2f} "
                  f"({statistics.median(b for _, b, _ in seen):.2f})")


main()
