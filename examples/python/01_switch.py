"""One switch: four ranks hold a video split over time and want it split over space.

    python -m heddle -n 4 01_switch.py
"""
import heddle
import numpy as np

FRAMES, PLACES = 10, 7  # on 4 ranks neither divides, and nothing is padded
whole = np.arange(FRAMES * PLACES, dtype=np.float32).reshape(FRAMES, PLACES)

with heddle.Comm.open() as comm:
    # A whole reshard is one line of text: what, on which ranks, from -> to. All ranks make the plan together, once, and
    # execute it any number of times.
    switch = comm.reshard(f"f32[t={FRAMES} s={PLACES}] on [sp={comm.size}]: t@sp -> s@sp")
    frames, places = switch.line.src_slices(comm.rank), switch.line.dst_slices(comm.rank)

    mine = np.ascontiguousarray(whole[frames])  # which part of the video is mine, before
    result = switch(mine)  # and after

    info, wrong = switch.info(), np.count_nonzero(result != whole[places])
    print(f"rank {comm.rank}: frames {frames[0].start}..{frames[0].stop - 1} -> places {places[1].start}.."
          f"{places[1].stop - 1}, sent {info.bytes_sent} bytes by {info.path}, {wrong} wrong", flush=True)
    if wrong:
        raise SystemExit(1)
