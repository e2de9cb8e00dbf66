#!/usr/bin/env python3
"""A whole forward of diffusers' Latte or Wan, 1152 and 1536 channels wide, by heddle, by its peer and on one rank.

    torchrun --nproc-per-node 2 tests/bench/torch_models.py [latte | wan] [--iterations N] [--layers N] [--frames N]
                                                            [--side N]

    heddle    heddle.diffusers.parallelize
    gloo      Latte: the same hooks, whose tensors go by gloo's sends: contiguous parts of the boxes that peers want
    cp        Wan: diffusers' own context parallelism (enable_parallelism), by Ulysses and gloo; it has none for Latte
    alone     one rank, unhooked, while the others wait

Seconds, minimum (median), of the slowest rank, ways in a new order in every iteration; then the ratio of the peer's and
of one rank's minimum to that of heddle. Every rank has one thread. The results are compared first, bit by bit.
"""
import argparse
import copy
import functools
import random
import sys
import time

import heddle
import heddle.diffusers
import torch
import torch.distributed as dist
from diffusers import LatteTransformer3DModel
from heddle.torch import modules


@functools.lru_cache(maxsize=None)
def line_of(text: str) -> heddle.Line:
    return heddle.Line(text)


def common(mine: tuple, theirs: tuple) -> tuple:
    """Of two boxes of the whole, as slices within the first."""
    lo = [max(a.start, b.start) for a, b in zip(mine, theirs)]
    hi = [min(a.stop, b.stop) for a, b in zip(mine, theirs)]
    return tuple(slice(x - a.start, max(y, x) - a.start) for x, y, a in zip(lo, hi, mine))


def by_gloo(x: torch.Tensor, text: str, comm: heddle.Comm) -> torch.Tensor:
    line = line_of(text)
    held, wanted, out = line.src_slices(comm.rank), line.dst_slices(comm.rank), x.new_empty(line.dst_shape(comm.rank))
    room, works = {}, []
    for peer in range(comm.size):
        part = x[common(held, line.dst_slices(peer))]
        at = common(wanted, line.src_slices(peer))
        if peer == comm.rank:
            out[at] = part
            continue
        room[peer] = at, torch.empty_like(out[at], memory_format=torch.contiguous_format)
        works += [dist.P2POp(dist.isend, part.contiguous(), peer), dist.P2POp(dist.irecv, room[peer][1], peer)]
    for work in dist.batch_isend_irecv([op for op in works if op.tensor.numel()]):
        work.wait()
    for at, part in room.values():
        out[at] = part
    return out


class Latte:
    ways, layers, frames = ("heddle", "gloo", "alone"), 2, 16

    def __init__(self, layers: int, frames: int, side: int):
        self.model = LatteTransformer3DModel(
            num_attention_heads=16, attention_head_dim=72, in_channels=4, out_channels=8, num_layers=layers,
            caption_channels=4096, cross_attention_dim=1152, attention_bias=True, sample_size=64, patch_size=2,
            activation_fn="gelu-approximate", num_embeds_ada_norm=1000, norm_type="ada_norm_single",
            norm_elementwise_affine=False, video_length=frames).eval()
        self.inputs = {"hidden_states": torch.randn(1, 4, frames, side, side), "timestep": torch.tensor([500]),
                       "encoder_hidden_states": torch.randn(1, 120, 4096)}

    def by_peer(self, hooked: torch.nn.Module) -> torch.Tensor:
        ours = modules._moved
        modules._moved = by_gloo
        try:
            return hooked(**self.inputs).sample
        finally:
            modules._moved = ours


class Wan:
    """As wide as the model of 1.3e9 parameters."""

    ways, layers, frames = ("heddle", "cp", "alone"), 2, 5

    def __init__(self, layers: int, frames: int, side: int):
        from diffusers import WanTransformer3DModel  # which diffusers that have a Latte may lack, and what is below

        self.model = WanTransformer3DModel(num_attention_heads=12, attention_head_dim=128, ffn_dim=8960,
                                           num_layers=layers).eval()
        self.inputs = {"hidden_states": torch.randn(1, 16, frames, side, side), "timestep": torch.tensor([500]),
                       "encoder_hidden_states": torch.randn(1, 512, 4096)}
        self.theirs = copy.deepcopy(self.model)
        self._enable_parallelism(dist.get_world_size())

    def _enable_parallelism(self, ranks: int) -> None:
        """enable_parallelism numbers accelerators; here it gets a mesh of CPUs."""
        from diffusers import ContextParallelConfig, ParallelConfig

        config = ParallelConfig(context_parallel_config=ContextParallelConfig(ulysses_degree=ranks))
        mesh = dist.device_mesh.init_device_mesh("cpu", (1, ranks), mesh_dim_names=("ring", "ulysses"))
        config.setup(dist.get_rank(), ranks, torch.device("cpu"), mesh=mesh)
        self.theirs._resolve_parallel_config = lambda _: config
        plan = {name: step for name, step in self.theirs._cp_plan.items() if name}  # one timestep, not one per token
        self.theirs.enable_parallelism(config=config, cp_plan=plan)

    def by_peer(self, _: torch.nn.Module) -> torch.Tensor:
        return self.theirs(**self.inputs).sample


def main() -> None:
    parser = argparse.ArgumentParser(description="a forward of a model of diffusers, by heddle, a peer, and one rank")
    parser.add_argument("model", nargs="?", choices=["latte", "wan"], default="latte")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--frames", type=int, help="of the latent: 16 for Latte, 5 for Wan")
    parser.add_argument("--side", type=int, default=32, help="of the latent: side x side / 4 places")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    kind = {"latte": Latte, "wan": Wan}[given.model]
    of = kind(given.layers, given.frames or kind.frames, given.side)
    hooked = copy.deepcopy(of.model)
    with heddle.Comm.open() as comm, torch.no_grad():
        heddle.diffusers.parallelize(hooked, comm)

        def forward(way: str) -> torch.Tensor:
            if way == "alone":
                return of.model(**of.inputs).sample if comm.rank == 0 else torch.empty(0)
            return hooked(**of.inputs).sample if way == "heddle" else of.by_peer(hooked)

        first = {way: forward(way) for way in of.ways}
        if comm.rank == 0 and not all(torch.equal(first["alone"], other) for other in first.values()):
            sys.exit("results differ")
        took: dict = {way: [] for way in of.ways}
        order = random.Random(7)  # the same on every rank
        for _ in range(given.iterations):
            for way in order.sample(list(took), len(took)):
                comm.barrier()
                begin = time.perf_counter_ns()
                forward(way)
                mine = (time.perf_counter_ns() - begin).to_bytes(8, "little")
                took[way].append(max(int.from_bytes(one, "little") for one in comm.allgather(mine)))
        if comm.rank == 0:
            rows = {way: sorted(all_) for way, all_ in took.items()}
            row = "  ".join(f"{way} {all_[0] / 1e9:.2f} ({all_[len(all_) // 2] / 1e9:.2f})"
                            for way, all_ in rows.items())
            ratios = " ".join(f"{way}/heddle {rows[way][0] / rows['heddle'][0]:.2f}" for way in of.ways[1:])
            print(f"{given.model}: {row}  {ratios}", flush=True)
    dist.destroy_process_group()


main()
