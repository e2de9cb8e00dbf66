"""Draws switch.svg beside this file: one activation, sharded over time and then over space.

    python3 docs/pictures/switch.py            writes the picture
    python3 docs/pictures/switch.py --check    says whether the picture is what this script draws (exit code 1: it is not)
"""

import pathlib
import sys

FRAMES, COLUMNS, ROWS, RANKS = 8, 8, 4, 4
CELL_W, CELL_H, STEP_X, STEP_Y = 15, 17, 17, 12
COLOURS = ["#4477aa", "#ee9944", "#44aa77", "#bb5588"]
FONT = 'font-family="Helvetica, Arial, sans-serif"'


def text(x, y, words, size=13, anchor="middle", weight="normal", colour="#222222"):
    return (f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
            f'fill="{colour}" {FONT}>{words}</text>')


def video(left, bottom, rank_of):
    """Frames from the last to the first, so that the first one lies in front."""
    out = []
    for frame in reversed(range(FRAMES)):
        x0, y0 = left + frame * STEP_X, bottom - ROWS * CELL_H - frame * STEP_Y
        width, height = COLUMNS * CELL_W, ROWS * CELL_H
        for rank in range(RANKS):
            mine = [column for column in range(COLUMNS) if rank_of(frame, column) == rank]
            if mine:
                out.append(f'<rect x="{x0 + mine[0] * CELL_W}" y="{y0}" width="{len(mine) * CELL_W}" height="{height}" '
                           f'fill="{COLOURS[rank]}"/>')
        lines = "".join(f"M{x0 + column * CELL_W} {y0}v{height}" for column in range(1, COLUMNS))
        lines += "".join(f"M{x0} {y0 + row * CELL_H}h{width}" for row in range(1, ROWS))
        out.append(f'<path d="{lines}" stroke="white" stroke-opacity="0.35"/>')
        out.append(f'<rect x="{x0}" y="{y0}" width="{width}" height="{height}" fill="none" stroke="white" stroke-width="2"/>')
    return out


def arrow(x, y, length, words, below):
    tip = x + length
    out = [f'<path d="M{x} {y}H{tip - 9}" stroke="#222222" stroke-width="2.5"/>',
           f'<path d="M{tip} {y}l-12 -6v12z" fill="#222222"/>', text(x + length / 2, y - 12, words, 14, weight="bold")]
    return out + [text(x + length / 2, y + 18 + 16 * i, line, 12) for i, line in enumerate(below)]


def picture():
    width, height, bottom = 820, 300, 214
    left, right = 40, 540
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="A video tensor '
           'on four ranks: each rank holds whole frames, then one part of every frame">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    out += video(left, bottom, lambda frame, column: frame * RANKS // FRAMES)
    out += video(right, bottom, lambda frame, column: column * RANKS // COLUMNS)
    out += arrow(315, 130, 190, "t@sp -&gt; s@sp", ["one all-to-all: a rank keeps a quarter", "and sends every other rank a quarter"])
    out.append(text(160, 24, "sharded over time: t@sp", 15, weight="bold"))
    out.append(text(160, 44, "spatial attention has whole frames"))
    out.append(text(660, 24, "sharded over space: s@sp", 15, weight="bold"))
    out.append(text(660, 44, "temporal attention has whole fibres"))
    for x in (left, right):
        out.append(text(x + COLUMNS * CELL_W / 2, bottom + 18, "space s", 12))
        out.append(text(x + COLUMNS * CELL_W + 52, bottom - 22, "time t", 12, "start"))
    for rank in range(RANKS):
        x = 250 + rank * 84
        out.append(f'<rect x="{x}" y="258" width="16" height="16" fill="{COLOURS[rank]}"/>')
        out.append(text(x + 23, 271, f"rank {rank}", 13, "start"))
    out.append("</svg>")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    file = pathlib.Path(__file__).with_suffix(".svg")
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if file.read_text() == picture() else f"{file} is not what {__file__} draws: run it without --check")
    file.write_text(picture())
