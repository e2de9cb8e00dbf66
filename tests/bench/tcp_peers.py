#!/usr/bin/env python3
"""The transport tcp against gloo's, between two processes of this host, by 127.0.0.1, in one run.

    python3 tests/bench/tcp_peers.py [--build BUILD] [--iterations N] [KB ...]

    even      torch.distributed.all_to_all_single of gloo, KB per rank, of which a rank keeps half
    switch    the same bytes by heddle, from rows to columns of two: one piece to the other rank. Ranks of a host would
              share memory: messages are forced
    rows      heddle: pieces of 2304 bytes (t@sp -> s@sp of f32[t s c=576]), put down where they belong
    by hand   gloo: the same, of parts that are made contiguous, and put together

Microseconds of the slower rank, minimum (median), ways in a new order every time; then gloo/heddle of both minima.
Results are compared first.
"""
import argparse
import os
import random
import socket
import statistics
import subprocess
import sys
import time

WIDTH, SIZES_KB = 576, [2, 64, 1024, 8192, 50000]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("kb", type=int, nargs="*", default=SIZES_KB)
    return parser.parse_args()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def start(options: argparse.Namespace) -> int:
    words = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "HEDDLE_PORT": str(free_port()),
             "HEDDLE_KEY": os.urandom(16).hex(), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo",
             "PYTHONPATH": os.path.join(options.build, "python")}
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **words, "RANK": str(r)}) for r in (0, 1)]
    return max(r.wait() for r in ranks)


def ways_of(kb: int, comm, torch, dist):
    """Of each way a call and its result as the others have it."""
    rank, elements = comm.rank, kb * 256 // 2 * 2
    x = torch.arange(elements, dtype=torch.float32) + elements * rank
    y, z = torch.empty_like(x), torch.empty_like(x)
    half = elements // 2
    plan = comm.reshard(f"f32[t=2 s=2 c={half}] on [sp=2]: t@sp -> s@sp")
    yield "even", lambda: dist.all_to_all_single(y, x), lambda: y
    yield "switch", lambda: plan(x.view(1, 2, half).numpy(), z.view(2, 1, half).numpy()), lambda: z
    rows = elements // WIDTH
    if rows >= 4:
        s = rows // 2 * 2  # rows of all ranks, of two parts each
        a = torch.arange(s * WIDTH, dtype=torch.float32).view(s // 2, 2, WIDTH) + s * WIDTH * rank
        b, parts, came = torch.empty(s, 1, WIDTH), torch.empty(2, s // 2, 1, WIDTH), torch.empty(2, s // 2, 1, WIDTH)
        by_rows = comm.reshard(f"f32[t={s} s=2 c={WIDTH}] on [sp=2]: t@sp -> s@sp")

        def by_hand() -> None:
            parts[0].copy_(a[:, :1])
            parts[1].copy_(a[:, 1:])
            dist.all_to_all_single(came, parts)

        yield "by hand", by_hand, lambda: came.flatten()
        yield "rows", lambda: by_rows(a.numpy(), b.numpy()), lambda: b.flatten()


def measure(kb: int, iterations: int, comm, torch, dist) -> str:
    ways = list(ways_of(kb, comm, torch, dist))
    for _, call, _ in ways:
        call()
    for one, other in zip(ways[::2], ways[1::2]):
        assert torch.equal(one[2]().flatten(), other[2]().flatten()), f"{kb} KB: {one[0]} is not {other[0]}"
    turns = iterations * (20 if kb <= 1024 else 1)
    times = torch.zeros(len(ways), turns, dtype=torch.float64)
    order = random.Random(kb)
    for turn in range(turns):
        for i in order.sample(range(len(ways)), len(ways)):
            comm.barrier()
            begin = time.perf_counter()
            ways[i][1]()
            times[i, turn] = time.perf_counter() - begin
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    us = {name: sorted(1e6 * v for v in times[i].tolist()) for i, (name, _, _) in enumerate(ways)}
    text = " ".join(f"{name} {v[0]:.0f} ({statistics.median(v):.0f})" for name, v in us.items())
    ratios = [f"gloo/heddle {us['even'][0] / us['switch'][0]:.2f}"]
    if "rows" in us:
        ratios.append(f"in rows {us['by hand'][0] / us['rows'][0]:.2f}")
    return f"{kb:>6} KB  {text}  {', '.join(ratios)}"


def main() -> int:
    options = parse()
    if "RANK" not in os.environ:
        return start(options)
    import heddle
    import torch
    import torch.distributed as dist
    from heddle._library import lib
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    def forced(out, options):
        options._obj.force_messages = 1
        return lib.heddle_comm_open(out, b"tcp", options)

    with heddle.Comm._opened(None, 60, False, None, forced) as comm:
        for kb in options.kb:
            text = measure(kb, options.iterations, comm, torch, dist)
            if comm.rank == 0:
                print(text, flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
