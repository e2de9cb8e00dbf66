#!/usr/bin/env python3
"""One switch of torch tensors by heddle and by what one would write without it, in one run; ratios within it.

    torchrun --nproc-per-node 2 tests/bench/torch_peers.py [--iterations N] [TxSxC ...]

    raw       heddle_reshard_execute itself, source and result in the communicator's pool
    pooled    heddle.torch.switch on such memory
    result    source in torch's memory, result in the pool
    out=      both in torch's memory, the result's used again
    fresh     both in torch's memory, a new tensor for the result every time
    autograd  as "result", with the graph of a gradient
    graph     an empty torch.autograd.Function: what that graph alone costs
    compat    heddle.torch.compat.all_to_all, by the numbers of two dims
    gloo      split, contiguous, an exchange by gloo's sends, cat: by hand; a fresh result every time
    kept      the same with buffers that are used again
    single    torch.distributed.all_to_all_single of gloo, from parts put behind one another
    dtensor   redistribute of torch's DTensor, on gloo, where it gathers everything and cuts (all_gather and chunk in
              the place of an all-to-all); where ranks divide both lengths
    cp        the exchange of diffusers' context parallelism, on gloo; where ranks divide both lengths
    touch     a fresh tensor of the result's size, written once: what its page faults cost
    roofline  the same bytes, those that a rank keeps included, copied contiguously from the ranks that own them, all
              ranks at once: heddle_bench_reshard of heddle/sys/bench.h, measured before the others and after them

Microseconds, minimum (median), of the slowest rank, ways in a new order in every iteration; then ratios of minima:
gloo to pooled and to result; single to compat, of minima (medians); the best of single, dtensor, cp to result; pooled
to raw; autograd to result, and to result and graph together; fresh to what cannot be less, touch and raw together;
roofline to raw and to pooled; and gloo to roofline, which no way that moves every byte once can pass.
Every way's result is compared first.
"""
import argparse
import ctypes
import functools
import random
import sys
import time

import heddle
import heddle.torch as ht
import heddle.torch.compat as hc
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

try:
    from diffusers.models.attention_dispatch import SeqAllToAllDim as exchange
except ImportError:
    exchange = None

SHAPES = ["4x8x32", "8x64x64", "16x256x144", "16x1024x288", "32x1024x576", "64x2048x576"]


def blocks(length: int, parts: int) -> list:
    return [length // parts + (i < length % parts) for i in range(parts)]


class BenchResult(ctypes.Structure):
    """heddle_bench_result as far as it is wanted here."""

    _fields_ = [("struct_bytes", ctypes.c_size_t),
                *[(name, ctypes.c_int64) for name in ("rounds", "samples", "repeats")],
                *[(name, ctypes.c_double) for name in ("min_ms", "median_ms", "roofline_min_ms", "roofline_median_ms")]]


def roofline_us(line: heddle.Line, comm: heddle.Comm) -> tuple:
    """Minimum and median."""
    result = BenchResult(struct_bytes=ctypes.sizeof(BenchResult))
    comm._state.call(heddle._library.lib["heddle_bench_reshard"], ctypes.byref(result),
                     ctypes.c_void_p(comm._state.handle), ctypes.byref(line._c), None)
    return 1000 * result.roofline_min_ms, 1000 * result.roofline_median_ms


class Graph(torch.autograd.Function):
    """A node of a graph, and no work."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, kept: tuple) -> torch.Tensor:
        ctx.kept = kept
        return x.detach()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple:
        return gradient, None


class ByHand:
    """t -> s by gloo's sends and receives."""

    def __init__(self, t: int, s: int, c: int, comm: heddle.Comm, is_kept: bool):
        self.comm, self.to, self.from_ = comm, blocks(s, comm.size), blocks(t, comm.size)
        self.mine = self.to[comm.rank]
        self.room = self._fresh(c) if is_kept else None
        self.result = torch.empty(t, self.mine, c) if is_kept else None
        self.c = c

    def _fresh(self, c: int) -> list:
        return [torch.empty(rows, self.mine, c) for rows in self.from_]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        room = self.room if self.room is not None else self._fresh(self.c)
        parts = [part.contiguous() for part in x.split(self.to, 1)]
        room[self.comm.rank].copy_(parts[self.comm.rank])
        others = [peer for peer in range(self.comm.size) if peer != self.comm.rank]
        wanted = [dist.P2POp(op, buffers[peer], peer) for peer in others
                  for op, buffers in ((dist.isend, parts), (dist.irecv, room)) if buffers[peer].numel()]
        for work in dist.batch_isend_irecv(wanted) if wanted else []:
            work.wait()
        return torch.cat(room, 0, out=self.result) if self.result is not None else torch.cat(room, 0)


class BySingle:
    """t -> s by all_to_all_single."""

    def __init__(self, t: int, s: int, c: int, comm: heddle.Comm):
        self.to, self.from_, self.c = blocks(s, comm.size), blocks(t, comm.size), c
        self.mine, self.rows = self.to[comm.rank], self.from_[comm.rank]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        sent = torch.cat([part.reshape(-1) for part in x.split(self.to, 1)])
        wanted = [rows * self.mine * self.c for rows in self.from_]
        room = sent.new_empty(sum(wanted))
        dist.all_to_all_single(room, sent, wanted, [self.rows * columns * self.c for columns in self.to])
        return room.view(sum(self.from_), self.mine, self.c)


def by_others(t: int, s: int, x: torch.Tensor, comm: heddle.Comm) -> dict:
    """What torch and diffusers have; none of both cuts as heddle does where ranks do not divide a length."""
    if t % comm.size or s % comm.size:
        return {}
    mesh = dist.device_mesh.init_device_mesh("cpu", (comm.size,))
    ways = {"dtensor": lambda: DTensor.from_local(x, mesh, [Shard(0)], run_check=False).redistribute(
        placements=[Shard(1)]).to_local()}
    if exchange is not None:
        ways["cp"] = lambda: exchange.apply(dist.group.WORLD, x[None])[0]
    return ways


def ways_of(plan: heddle.Reshard, t: int, s: int, c: int, comm: heddle.Comm) -> dict:
    lo = sum(blocks(t, comm.size)[: comm.rank])
    x = torch.arange(t * s * c, dtype=torch.float32).view(t, s, c)[lo: lo + blocks(t, comm.size)[comm.rank]].clone()
    pooled = ht.empty(plan, torch.float32, "src").copy_(x)
    wanting, out, there = x.clone().requires_grad_(), torch.empty(plan.dst_shape), ht.empty(plan, torch.float32)

    def raw() -> torch.Tensor:
        plan.execute(pooled.data_ptr(), there.data_ptr())
        return there

    fresh, kept = ByHand(t, s, c, comm, False), ByHand(t, s, c, comm, True)
    ways = {"raw": raw, "pooled": lambda: ht.switch(pooled, plan), "result": lambda: ht.switch(x, plan),
            "out=": lambda: ht.switch(x, plan, out=out),
            "fresh": lambda: ht.switch(x, plan, out=torch.empty(plan.dst_shape)),
            "autograd": lambda: ht.switch(wanting, plan),
            "compat": lambda: hc.all_to_all(x, 1, 0, gather_sizes=blocks(t, comm.size)),
            "gloo": lambda: fresh(x), "kept": lambda: kept(x),
            "single": functools.partial(BySingle(t, s, c, comm), x), **by_others(t, s, x, comm)}
    for name, call in ways.items():
        if not torch.equal(call().detach(), ways["gloo"]()):
            sys.exit(f"rank {comm.rank}: {name} has another result than gloo, {t}x{s}x{c}")
    return {**ways, "graph": lambda: Graph.apply(wanting, ()),
            "touch": lambda: torch.empty(plan.dst_shape).fill_(1.0)}


def timed(ways: dict, comm: heddle.Comm, iterations: int) -> dict:
    took = {name: [] for name in ways}
    order = random.Random(7)  # the same on every rank
    for _ in range(iterations):
        for name in order.sample(list(ways), len(ways)):
            ways[name]()
            comm.barrier()
            begin = time.perf_counter_ns()
            result = ways[name]()
            mine = time.perf_counter_ns() - begin
            del result
            slowest = max(int.from_bytes(one, "little") for one in comm.allgather(mine.to_bytes(8, "little")))
            took[name].append(slowest / 1000)
    return {name: sorted(values) for name, values in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="a switch of torch tensors, by heddle and by gloo")
    parser.add_argument("--iterations", type=int, default=21)
    parser.add_argument("shapes", nargs="*", default=SHAPES, metavar="TxSxC")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with heddle.Comm.open() as comm, torch.enable_grad():
        for shape in given.shapes:
            t, s, c = map(int, shape.split("x"))
            plan = comm.reshard(f"f32[t={t} s={s} c={c}] on {comm.mesh}: t@sp -> s@sp")
            before = roofline_us(plan.line, comm)
            took = timed(ways_of(plan, t, s, c, comm), comm, given.iterations)
            took["roofline"] = [min(both) for both in zip(before, roofline_us(plan.line, comm))]
            if comm.rank == 0:
                row = "  ".join(f"{name} {all_[0]:.1f} ({all_[len(all_) // 2]:.1f})" for name, all_ in took.items())
                least = {name: all_[0] for name, all_ in took.items()}
                middle = {name: all_[len(all_) // 2] for name, all_ in took.items()}
                others = min(least[name] for name in ("single", "dtensor", "cp") if name in least)
                ratios = (f"gloo/pooled {least['gloo'] / least['pooled']:.1f} gloo/result "
                          f"{least['gloo'] / least['result']:.1f} "
                          f"single/compat {least['single'] / least['compat']:.1f} "
                          f"({middle['single'] / middle['compat']:.1f}) others/result {others / least['result']:.1f} "
                          f"pooled/raw {least['pooled'] / least['raw']:.2f} "
                          f"autograd/result {least['autograd'] / least['result']:.2f} "
                          f"autograd/(result+graph) {least['autograd'] / (least['result'] + least['graph']):.2f} "
                          f"fresh/(touch+raw) {least['fresh'] / (least['touch'] + least['raw']):.2f} "
                          f"roofline/raw {least['roofline'] / least['raw']:.2f} "
                          f"roofline/pooled {least['roofline'] / least['pooled']:.2f} "
                          f"gloo/roofline {least['gloo'] / least['roofline']:.1f}")
                size = f"{4 * t * s * c / comm.size / 1e6:.3f} MB per rank"
                print(f"{shape} {size}: {row}  {ratios}", flush=True)
    dist.destroy_process_group()


main()
