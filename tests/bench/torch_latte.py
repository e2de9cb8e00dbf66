#!/usr/bin/env python3
"""A whole forward of diffusers' Latte, 1152 channels wide, by heddle, by gloo and on one rank, in one run.

    torchrun --nproc-per-node 2 tests/bench/torch_latte.py [--iterations N] [--layers N] [--frames N] [--side N]

    heddle    heddle.diffusers.parallelize
    gloo      the same hooks, whose tensors go by gloo's sends: contiguous parts of the boxes that peers want
    alone     one rank, unhooked, while the others wait

Seconds, minimum (median), of the slowest rank, ways in a new order in every iteration; then the ratio of gloo's and of
one rank's minimum to that of heddle. Every rank has one thread. The results are compared first, bit by bit.
"""
import argparse
import functools
import random
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


def main() -> None:
    parser = argparse.ArgumentParser(description="a forward of Latte, by heddle, by gloo, and on one rank")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--side", type=int, default=32, help="of the latent: side x side / 4 places")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = LatteTransformer3DModel(
        num_attention_heads=16, attention_head_dim=72, in_channels=4, out_channels=8, num_layers=given.layers,
        caption_channels=4096, cross_attention_dim=1152, attention_bias=True, sample_size=64, patch_size=2,
        activation_fn="gelu-approximate", num_embeds_ada_norm=1000, norm_type="ada_norm_single",
        norm_elementwise_affine=False, video_length=given.frames).eval()
    inputs = {"hidden_states": torch.randn(1, 4, given.frames, given.side, given.side), "timestep": torch.tensor([500]),
              "encoder_hidden_states": torch.randn(1, 120, 4096)}
    ours = modules._moved
    with heddle.Comm.open() as comm, torch.no_grad():
        def forward(way: str) -> torch.Tensor:
            if way == "alone":
                return model(**inputs).sample if comm.rank == 0 else torch.empty(0)
            modules._moved = by_gloo if way == "gloo" else ours
            handle = heddle.diffusers.parallelize(model, comm)
            try:
                return model(**inputs).sample
            finally:
                handle.remove()

        took: dict = {"heddle": [], "gloo": [], "alone": []}
        alone, first = forward("alone"), [forward(way) for way in ("heddle", "gloo")]
        assert comm.rank > 0 or all(torch.equal(alone, other) for other in first), "results differ"
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
            print(row, f" gloo/heddle {rows['gloo'][0] / rows['heddle'][0]:.2f} alone/heddle "
                  f"{rows['alone'][0] / rows['heddle'][0]:.2f}", flush=True)
    dist.destroy_process_group()


main()
