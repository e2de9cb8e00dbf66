#!/usr/bin/env python3
"""Plans against every walk through small random models, by prices that are counted here: the elements that each rank
holds, one box after the other. Nothing is shared with the planner but docs/formats.md, which it was written from.

    every_walk.py [--cases N] [--seed N] [--only KIND]
"""
import argparse
import itertools
import math
import random
import sys
import tempfile

import heddle

BYTES = {"bf16": 2, "f32": 4}


def blocks(length, parts):
    """Balanced: each gets length / parts, the first length % parts one more."""
    out, start = [], 0
    for i in range(parts):
        end = start + length // parts + (1 if i < length % parts else 0)
        out.append((start, end))
        start = end
    return out


class Stage:
    def __init__(self, name, kind, over=None, heads=0, kv_heads=0, causal=False, decay=1.0, ratio=0, rope=False,
                 zigzag=False):
        self.name, self.kind, self.over, self.heads, self.ratio = name, kind, over, heads, ratio
        self.kv_heads, self.causal, self.decay = kv_heads or heads, causal, decay
        self.rope, self.zigzag = rope, zigzag

    def text(self):
        out = f"{{name: {self.name}, kind: {self.kind}"
        if self.kind == "cross":
            out += ", reads: y"
        if self.over is not None:
            out += f", over: {self.over}"
        if self.heads:
            out += f", heads: {self.heads}"
        if self.kv_heads != self.heads:
            out += f", kv_heads: {self.kv_heads}"
        if self.kind == "mlp":
            out += f", ratio: {self.ratio}"
        if self.causal:
            out += ", causal: true"
        if self.rope:
            out += ", rope: true"
        if self.zigzag:
            out += ", placement: zigzag"
        if self.decay != 1.0:
            out += f", decay: {self.decay}"
        return out + "}"


class Model:
    def __init__(self, dtype, dims, channels, text_rows, stages, repeat):
        self.dtype, self.dims, self.channels = dtype, dims, channels  # dims: [(name, extent)] without the channels
        self.text_rows, self.stages, self.repeat = text_rows, stages, repeat
        self.names = [name for name, _ in dims]
        self.extents = [extent for _, extent in dims]

    def text(self):
        dims = ", ".join(f"{n}: {{size: {e}, role: batch}}" if n == "b" else f"{n}: {e}" for n, e in self.dims)
        out = f"model: random\ndtype: {self.dtype}\n"
        out += f"dims: {{{dims}, c: {{size: {self.channels}, role: channel}}"
        out += f", l: {{size: {self.text_rows}, role: text}}}}\n" if self.text_rows else "}\n"
        out += f"tensors:\n  x: [{', '.join(self.names)}, c]\n"
        if self.text_rows:
            batch = "b, " if self.names[0] == "b" else ""
            out += f"  y: {{dims: [{batch}l, c], const: true}}\n"
        out += f"repeat: {self.repeat}\nstages:\n"
        return out + "".join(f"  - {stage.text()}\n" for stage in self.stages)


class Grid:
    """The ranks: coordinates along the axes, the first axis is the major one."""

    def __init__(self, axes):
        self.axes = axes  # [(name, size)]
        self.ranks = list(itertools.product(*(range(size) for _, size in axes)))

    def text(self):
        return "[" + " ".join(f"{name}={size}" for name, size in self.axes) + "]"


def volume(box):
    out = 1
    for low, high in box:
        out *= max(0, high - low)
    return out


class Layouts:
    """Every layout of a model on a grid, as the dim (or None) of each axis, and the box that each rank has in it."""

    def __init__(self, model, grid):
        self.model, self.grid = model, grid
        choices = [None, *range(len(model.dims))]
        self.all = list(itertools.product(choices, repeat=len(grid.axes)))
        self.boxes = {layout: [self.box(layout, rank) for rank in grid.ranks] for layout in self.all}
        self.most = {layout: max(volume(box) for box in boxes) for layout, boxes in self.boxes.items()}

    def box(self, layout, rank):
        out = [(0, extent) for extent in self.model.extents]
        for axis, dim in enumerate(layout):
            if dim is not None:
                low, high = out[dim]
                start, end = blocks(high - low, self.grid.axes[axis][1])[rank[axis]]
                out[dim] = (low + start, low + end)
        return out

    def text(self, layout):
        entries = [f"{self.model.names[dim]}@{self.grid.axes[axis][0]}" for axis, dim in enumerate(layout)
                   if dim is not None]
        return ",".join(entries) or "*"


class Moved:
    """Elements that go from rank to rank."""

    def __init__(self):
        self.pairs = {}

    def add(self, sender, receiver, amount):
        if sender != receiver and amount > 0:
            self.pairs[sender, receiver] = self.pairs.get((sender, receiver), 0) + amount

    def back(self):
        out = Moved()
        for (sender, receiver), amount in self.pairs.items():
            out.add(receiver, sender, amount)
        return out

    def busiest(self, side):
        """What the rank that sends (side 0) or receives (1) most does."""
        sums = {}
        for pair, amount in self.pairs.items():
            sums[pair[side]] = sums.get(pair[side], 0) + amount
        return max(sums.values(), default=0)

    def sent_max(self):
        return self.busiest(0)

    def total(self):
        return sum(self.pairs.values())


def edge(layouts, before, after, unit):
    """Every rank gets what it lacks from the ranks that differ from it only along axes which shard it before."""
    out, grid = Moved(), layouts.grid
    if before == after:
        return out
    for r, receiver in enumerate(grid.ranks):
        wanted = layouts.boxes[after][r]
        for s, sender in enumerate(grid.ranks):
            if s != r and all(sender[a] == receiver[a] for a, dim in enumerate(before) if dim is None):
                has = layouts.boxes[before][s]
                common = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(wanted, has)]
                out.add(s, r, volume(common) * unit)
    return out


class Group:
    """The ranks that share fibres of a sharded dim: in their order, with the rows of each, and so many fibres."""

    def __init__(self, members, rows, fibres):
        self.members, self.rows, self.fibres = members, rows, fibres


def groups_of(layouts, layout, dim):
    grid, found = layouts.grid, {}
    for r, rank in enumerate(grid.ranks):
        found.setdefault(tuple(c for c, d in zip(rank, layout) if d != dim), []).append(r)
    for members in found.values():
        boxes = [layouts.boxes[layout][r] for r in members]
        fibres = volume([part for d, part in enumerate(boxes[0]) if d != dim])
        yield Group(members, [box[dim][1] - box[dim][0] for box in boxes], fibres)


def key_heads(stage, share):
    group = stage.heads // stage.kv_heads
    return len({head // group for head in range(*share)})


def heads_to_and_fro(out, back, stage, width, group, unit, real):
    """Ulysses in one group: q, k, v from rows to heads, the result from heads to rows; and the way back."""
    shares = blocks(stage.heads, len(group.members))
    for i, sender in enumerate(group.members):
        for j, receiver in enumerate(group.members):
            if i != j:
                query = group.fibres * width * group.rows[i] * (shares[j][1] - shares[j][0])
                keys = group.fibres * width * group.rows[i] * key_heads(stage, shares[j]) * 2
                out.add(sender, receiver, (query + keys) * unit)  # rows of i, heads of j
                out.add(receiver, sender, query * unit)
                back.add(sender, receiver, query * unit)
                back.add(receiver, sender, (query + keys) * unit)


def round_the_ring(out, back, heads, width, members, rows, fibres, unit, real):
    """Blocks of k and v visit all ranks; gradients follow from the rank behind their owner home to it."""
    n = len(members)
    for owner in range(n):
        block = 2 * heads * width * rows[owner] * fibres
        for hop in range(n - 1):
            at, to = members[(owner + hop) % n], members[(owner + hop + 1) % n]
            out.add(at, to, block * unit)
            back.add(at, to, block * unit)
            back.add(members[(owner + hop + 1) % n], members[(owner + hop + 2) % n], block * real)


def method_bytes(method, stage, model, layouts, layout):
    """What a stage sends by a method: forward and backward, in bytes."""
    out, back = Moved(), Moved()
    unit, real = BYTES[model.dtype], 4
    width = model.channels // stage.heads
    dim = model.names.index(stage.over)
    for group in groups_of(layouts, layout, dim):
        n = len(group.members)
        if method == "ulysses":
            heads_to_and_fro(out, back, stage, width, group, unit, real)
        elif method == "ring":
            round_the_ring(out, back, stage.kv_heads, width, group.members, group.rows, group.fibres, unit, real)
        elif method == "gather-kv":
            for i, j in itertools.permutations(range(n), 2):
                block = 2 * stage.kv_heads * width * group.rows[i] * group.fibres
                out.add(group.members[i], group.members[j], block * unit)
                back.add(group.members[j], group.members[i], block * real)
        elif method == "usp":
            inner = layouts.grid.axes[[a for a, d in enumerate(layout) if d == dim][1]][1]
            shares = blocks(stage.heads, inner)
            for r in range(n // inner):
                part = slice(r * inner, (r + 1) * inner)
                heads_to_and_fro(out, back, stage, width, Group(group.members[part], group.rows[part], group.fibres),
                                 unit, real)
            for u in range(inner):
                rows = [sum(group.rows[r * inner:(r + 1) * inner]) for r in range(n // inner)]
                round_the_ring(out, back, key_heads(stage, shares[u]), width, group.members[u::inner], rows,
                               group.fibres, unit, real)
        else:
            states(out, back, method, stage, group, stage.heads * width * width * group.fibres * 4)
    return out, back


def states(out, back, method, stage, group, state):
    """Linear attention: one state per direction, however many rows a rank has."""
    n = len(group.members)
    for there in (True,) if stage.causal else (True, False):
        ranks = group.members if there else group.members[::-1]
        if method == "lasp":
            hops = [(i, i + 1) for i in range(n - 1)]
        elif method == "lasp2":
            if not there and stage.decay == 1.0:  # one gather is enough for both directions
                continue
            hops = list(itertools.permutations(range(n), 2))
        else:
            hops = [(p, p + 2 ** k) for k in range(8) for p in range(n) if p + 2 ** k < n and 2 ** k < n]
        for i, j in hops:
            out.add(ranks[i], ranks[j], state)
            back.add(ranks[j], ranks[i], state)


def axes_of(layout, dim):
    return [a for a, d in enumerate(layout) if d == dim]


def methods_of(stage, model, grid, layout, slack):
    """Methods by which a stage may run in a layout, and which are not left to those who name them."""
    if stage.over is None:
        return ["local"]
    axes = axes_of(layout, model.names.index(stage.over))
    n = 1
    for a in axes:
        n *= grid.axes[a][1]
    if n == 1:
        return ["local"]
    if len(axes) > 2 or axes[-1] - axes[0] + 1 != len(axes):
        return []
    if stage.kind == "linear-attention":
        return ["lasp", "scan", "lasp2"]
    inner = grid.axes[axes[-1]][1]
    even = lambda parts: -(-stage.heads // parts) * 100 * parts <= (100 + slack) * stage.heads
    out = ["ulysses"] if even(n) else []
    out += ["ring", "gather-kv"]
    if len(axes) == 2 and even(inner):
        out.append("usp")
    return out


def admitted(stage, model, layouts, slack):
    """Layouts that divide the work of a stage."""
    ways = {layout: methods_of(stage, model, layouts.grid, layout, slack) for layout in layouts.all}
    whole = min((layouts.most[l] for l, m in ways.items() if "local" in m), default=None)
    cut = min((layouts.most[l] for l, m in ways.items() if m and "local" not in m), default=None)
    least = min(x for x in (whole, cut) if x is not None)
    own = whole if whole is not None and 2 * whole < 3 * least else least
    out = []
    for layout, methods in ways.items():
        limit = own if "local" in methods else least
        if methods and layouts.most[layout] * 100 <= limit * (100 + slack):
            out += [(layout, method) for method in methods]
    return out


class Bytes:
    """Prices by bytes: of the busiest rank, of all, stages by a method, edges that move, work of the busiest rank."""

    def __init__(self, model, layouts, slack, backward, is_end_free):
        self.model, self.layouts, self.backward, self.is_end_free = model, layouts, backward, is_end_free
        self.slack, self.edges = slack, {}

    def of(self, out, back, is_method):
        both = [out] + ([back] if self.backward else [])
        total = sum(moved.total() for moved in both)
        return (sum(moved.sent_max() for moved in both), total, int(is_method), int(not is_method and out.total() > 0))

    def ways(self, stage):
        found = []
        for layout, method in admitted(stage, self.model, self.layouts, self.slack):
            cost = (0, 0, 0, 0)
            if method != "local":
                cost = self.of(*method_bytes(method, stage, self.model, self.layouts, layout), True)
            found.append((layout, method, (*cost, self.layouts.most[layout])))
        return found

    def edge(self, before, after):
        cost = self.edges.get((before, after))
        if cost is None:
            out = edge(self.layouts, before, after, self.model.channels * BYTES[self.model.dtype])
            cost = self.edges[before, after] = (*self.of(out, out.back(), False), 0)
        return cost

    def end(self, layout):
        if self.is_end_free:
            return (0,) * 5
        whole = (None,) * len(layout)
        out = edge(self.layouts, layout, whole, self.model.channels * BYTES[self.model.dtype])
        return (*self.of(out, Moved(), False), 0)


def add(a, b):
    return tuple(map(sum, zip(a, b)))


def every_walk(ways, repeat, prices):
    """All walks: (cost, [(layout, method)]), the first of the least and the least of the others."""
    walks = [(way[2], way[0]) for way in ways[0]]
    for step in range(1, repeat * len(ways)):
        here = ways[step % len(ways)]
        walks = [(tuple(map(sum, zip(cost, prices.edge(last, layout), more))), layout)
                 for cost, last in walks for layout, _, more in here]
    return sorted(add(cost, prices.end(last)) for cost, last in walks)


class Rate:
    """A number, or pairs of size and rate: between two the logarithms are interpolated."""

    def __init__(self, draw, low, high):
        sizes = sorted(draw.sample([1, 8, 30, 64, 200, 900, 4096, 20000, 10 ** 6], draw.randint(1, 4)))
        self.points = [(size, round(draw.uniform(low, high))) for size in sizes]

    def text(self):
        points = self.points
        return str(points[0][1]) if len(points) == 1 else str([list(point) for point in points])

    def at(self, size):
        if size <= self.points[0][0]:
            return self.points[0][1]
        for (x, a), (y, b) in zip(self.points, self.points[1:]):
            if size <= y:
                return a * (b / a) ** (math.log(size / x) / math.log(y / x))
        return self.points[-1][1]


class Machine:
    """Random figures. Seconds are counted in picoseconds, like the planner's, but as numbers with a fraction."""

    EXCHANGES = ("all_to_all", "ring", "all_gather", "reduce_scatter")
    WORK = {"product": ("bf16", "f32"), "attention": ("bf16", "f32"), "linear": ("bf16", "f32"), "memory": None}

    def __init__(self, draw, ranks):
        self.slowdown = draw.choice([1, 1.125, 1.5, 2.25])
        self.sizes = draw.choice([[ranks], [2, (ranks + 1) // 2], [4, 4], [2, 2, 2]]) if ranks > 1 else [1]
        self.work, self.links = {}, []
        for name, dtypes in self.WORK.items():
            for dtype in dtypes or (None,):
                self.work[name, dtype] = (draw.randint(0, 9) * 1e-6, Rate(draw, 1e9, 9e9))
        for _ in self.sizes:
            link = {}
            for exchange in self.EXCHANGES:
                groups = sorted(draw.sample([2, 3, 4, 6, 8], draw.randint(1, 2)))
                link[exchange] = [(group, draw.randint(0, 9) * 1e-6, Rate(draw, 1e8, 4e9)) for group in groups]
            self.links.append(link)

    def text(self):
        out = f"machine: random\noverlap_slowdown: {self.slowdown}\nlevels:\n"
        for l, size in enumerate(self.sizes):
            out += f"  - {{name: level{l}, size: {size}, link: link{l}}}\n"
        out += "work:\n"
        for name, dtypes in self.WORK.items():
            figures = [(dtype, *self.work[name, dtype]) for dtype in dtypes or (None,)]
            if dtypes is None:
                out += f"  {name}: {{start_s: {figures[0][1]:.9f}, rates: {figures[0][2].text()}}}\n"
                continue
            out += f"  {name}:\n"
            out += "".join(f"    {d}: {{start_s: {start:.9f}, rates: {rate.text()}}}\n" for d, start, rate in figures)
        out += "links:\n"
        for l, link in enumerate(self.links):
            out += f"  link{l}:\n"
            for exchange, groups in link.items():
                out += f"    {exchange}:\n"
                for ranks, start, rate in groups:
                    out += f"      - {{ranks: {ranks}, start_s: {start:.9f}, rates: {rate.text()}}}\n"
        return out

    def level(self, a, b):
        for l, size in enumerate(self.sizes[:-1]):
            a, b = a // size, b // size
            if a == b:
                return l
        return len(self.sizes) - 1

    def work_ps(self, name, dtype, amount, size):
        start, rate = self.work[name, None if name == "memory" else dtype]
        return (start + amount / rate.at(size)) * 1e12 if amount > 0 else 0

    def exchange_ps(self, exchange, group, level, amount):
        if amount <= 0:
            return 0
        tables = self.links[level][exchange]
        below = max((t for t in tables if t[0] <= group), default=tables[0], key=lambda t: t[0])
        above = min((t for t in tables if t[0] >= group), default=tables[-1], key=lambda t: t[0])
        part = math.log(group / below[0]) / math.log(above[0] / below[0]) if below is not above else 0
        start = below[1] + part * (above[1] - below[1])
        rate = below[2].at(amount) * (above[2].at(amount) / below[2].at(amount)) ** part
        return (start + amount / rate) * 1e12

    def slowest_ps(self, exchange, group, moved, part=1):
        """An exchange takes its slowest level's: the larger of what any rank sends and receives there."""
        levels = {}
        for (a, b), amount in moved.pairs.items():
            levels.setdefault(self.level(a, b), Moved()).add(a, b, amount)
        return max((self.exchange_ps(exchange, group, l, max(on.busiest(0), on.busiest(1)) * part)
                    for l, on in levels.items()), default=0)

    def hidden_ps(self, work, transfer):
        return min(work, transfer) * max(0, 2 - self.slowdown)


class Times(Bytes):
    """Prices by seconds, as docs/formats.md counts them."""

    def __init__(self, machine, *rest, recompute=False):
        super().__init__(*rest)
        self.machine, self.recompute = machine, recompute

    def ways(self, stage):
        found = []
        for layout in self.layouts.all:
            for method in methods_of(stage, self.model, self.layouts.grid, layout, 10 ** 9):
                found.append((layout, method, (self.stage_ps(stage, layout, method),)))
        return found

    def edge(self, before, after):
        cost = self.edges.get((before, after))
        if cost is None:
            cost = self.edges[before, after] = (self.edge_ps(before, after, self.backward),)
        return cost

    def end(self, layout):
        return (0 if self.is_end_free else self.edge_ps(layout, (None,) * len(layout), False),)

    def edge_ps(self, before, after, there_and_back):
        changed = [a for a in range(len(before)) if before[a] != after[a]]
        if not changed:
            return 0
        group = math.prod(self.layouts.grid.axes[a][1] for a in changed)
        is_gather = all(before[a] is not None and after[a] is None for a in changed)
        moved = edge(self.layouts, before, after, self.model.channels * BYTES[self.model.dtype])
        ps = self.machine.slowest_ps("all_gather" if is_gather else "all_to_all", group, moved)
        if there_and_back:
            completes = any(after[a] is None for a in changed)
            is_gather = all(before[a] is None and after[a] is not None for a in changed)
            # what was split is there already; what was gathered comes back as sums
            ps += self.machine.slowest_ps("reduce_scatter" if completes else "all_to_all", group, moved.back())
        return ps

    def stage_ps(self, stage, layout, method):
        first, last, attention, attention_back = self.work(stage, layout, method)
        out, back, group = Moved(), Moved(), 1
        if method != "local":
            out, back = method_bytes(method, stage, self.model, self.layouts, layout)
            group = math.prod(self.layouts.grid.axes[a][1] for a in axes_of(layout, self.dim(stage)))
        ps = first + last + attention + self.method_ps(stage, layout, method, group, out, attention, False)
        if self.backward:
            ps += 2 * (first + last) + attention_back
            ps += self.method_ps(stage, layout, method, group, back, attention_back, True)
        if self.backward and self.recompute:
            ps += first + attention + self.method_ps(stage, layout, method, group, out, attention, False)
        return ps

    def dim(self, stage):
        return self.model.names.index(stage.over)

    def rows(self, stage, layout, method):
        """Tokens of the rank that has most, the longest part of a fibre, and the most fibres."""
        box = self.layouts.boxes[layout][0]
        rows = volume(box)
        if stage.over is None:
            return rows, 0, 0
        low, high = box[self.dim(stage)]
        return rows, high - low, rows // (high - low) if high > low else 0

    def work(self, stage, layout, method):
        """Picoseconds: of what recomputing does again and what it leaves out, of attention there and back."""
        machine, model, dtype = self.machine, self.model, self.model.dtype
        rows, part, fibres = self.rows(stage, layout, method)
        c, unit = model.channels, BYTES[dtype]
        product = lambda count, columns, kind=dtype, deep=c: machine.work_ps(
            "product", kind, 2 * count * deep * columns, count)
        memory = lambda arrays: machine.work_ps("memory", None, arrays * rows * c * unit, arrays * rows * c * unit)
        if rows == 0:
            return 0, 0, 0, 0
        first, last = memory(2), memory(3)
        if stage.kind == "mlp":
            width = stage.ratio * c
            return first + product(rows, width) + memory(2 * stage.ratio), last + product(rows, c, deep=width), 0, 0
        if stage.kind == "cross":
            samples = 1
            if model.names[0] == "b":
                low, high = self.layouts.boxes[layout][0][0]
                samples = high - low
            first += product(rows, c) + product(samples * model.text_rows, 2 * c)
            attention = machine.work_ps("attention", dtype, 4 * rows * model.text_rows * c, model.text_rows)
            return first, last + product(rows, c), attention, 2.5 * attention
        share = stage.kv_heads / stage.heads
        first += product(rows, c * (1 + 2 * share), "f32" if stage.kind == "linear-attention" else dtype)
        first += memory(2 * (1 + share)) if stage.rope else 0
        last += product(rows, c)
        if stage.kind == "linear-attention":
            return first + memory(2), last, *self.linear_ps(stage, part, fibres)
        return first, last, *self.attention_ps(stage, layout, method, part, fibres)

    def linear_ps(self, stage, rows, fibres):
        """Products inside chunks, and with states."""
        d = self.model.channels // stage.heads
        chunk = min(max(128, min(256, -(-d // 64) * 64)), rows)
        pairs = 0
        for start in range(0, rows, max(chunk, 1)):
            here = min(chunk, rows - start)
            pairs += here * (here + 1) // 2 if stage.causal else here * here
        ways = 1 if stage.causal else 2
        flops = fibres * stage.heads * (2 * pairs * 2 * d + ways * 4 * rows * d * d)
        flops_back = fibres * stage.heads * (2 * pairs * 5 * d + ways * 8 * rows * d * d)
        return [self.machine.work_ps("linear", self.model.dtype, f, rows) for f in (flops, flops_back)]

    def attention_ps(self, stage, layout, method, part, fibres):
        d, dtype = self.model.channels // stage.heads, self.model.dtype
        whole = self.model.extents[self.dim(stage)]
        axes = axes_of(layout, self.dim(stage))
        sizes = [self.layouts.grid.axes[a][1] for a in axes]
        spread = {"ulysses": math.prod(sizes), "usp": sizes[-1] if sizes else 1}.get(method, 1)
        hops = {"ring": math.prod(sizes), "usp": sizes[0] if sizes else 1}.get(method, 1)
        rows = {"ulysses": whole, "usp": blocks(whole, sizes[0])[0][1] if sizes else whole,
                "local": whole}.get(method, part)
        keys = whole
        if stage.causal:
            keys = (whole + 1) / 2 if stage.zigzag or rows == whole else whole - (rows - 1) / 2
        flops = 4 * rows * fibres * -(-stage.heads // spread) * keys * d
        return [hops * self.machine.work_ps("attention", dtype, f / hops, keys / hops) for f in (flops, 2.5 * flops)]

    def method_ps(self, stage, layout, method, n, moved, attention, is_back):
        machine = self.machine
        if method == "local":
            return 0
        if method == "ulysses":
            return self.heads_ps(stage, n, moved)
        if method == "ring":
            return self.ring_ps(n, moved, attention)
        if method == "usp":
            inner = self.layouts.grid.axes[axes_of(layout, self.dim(stage))[1]][1]
            heads, ring = self.usp_parts(stage, layout, inner, is_back)
            return self.heads_ps(stage, inner, heads) + self.ring_ps(n // inner, ring, attention)
        if method == "gather-kv":
            return machine.slowest_ps("reduce_scatter" if is_back else "all_gather", n, moved)
        if method == "lasp2":
            return machine.slowest_ps("all_gather", n, moved)
        _, _, fibres = self.rows(stage, layout, method)
        state = fibres * stage.heads * (self.model.channels // stage.heads) ** 2 * 4
        used = {machine.level(a, b) for a, b in moved.pairs}
        hop = max((machine.exchange_ps("ring", 2, level, state) for level in used), default=0)
        if method == "scan":
            return hop * math.ceil(math.log2(n))
        return hop * (n - 1) - machine.hidden_ps(attention, hop * (n - 1))

    def heads_ps(self, stage, spread, moved):
        packed = stage.heads + 2 * sum(key_heads(stage, share) for share in blocks(stage.heads, spread))
        both = packed + stage.heads
        return sum(self.machine.slowest_ps("all_to_all", spread, moved, part / both)
                   for part in (packed, stage.heads))

    def ring_ps(self, ring, moved, attention):
        if ring < 2:
            return 0
        hop = self.machine.slowest_ps("ring", ring, moved, 1 / (ring - 1))
        return (ring - 1) * (hop - self.machine.hidden_ps(attention / ring, hop))

    def usp_parts(self, stage, layout, inner, is_back):
        """What usp sends: between heads, and round the ring."""
        heads = [Moved(), Moved()]
        model, unit = self.model, BYTES[self.model.dtype]
        width = model.channels // stage.heads
        for group in groups_of(self.layouts, layout, self.dim(stage)):
            for r in range(0, len(group.members), inner):
                part = slice(r, r + inner)
                heads_to_and_fro(*heads, stage, width, Group(group.members[part], group.rows[part], group.fibres),
                                 unit, 4)
        every = method_bytes("usp", stage, model, self.layouts, layout)[is_back]
        ring = Moved()
        for (a, b), amount in every.pairs.items():
            ring.add(a, b, amount - heads[is_back].pairs.get((a, b), 0))
        return heads[is_back], ring


def random_model(draw, naxes):
    extents = {"b": draw.randint(1, 4), "t": draw.randint(1, 17), "s": draw.randint(1, 40), "u": draw.randint(1, 12)}
    names = [n for n in "btsu" if n == "t" or draw.random() < {"b": 0.5, "s": 0.8, "u": 0.25}[n]]
    if naxes == 3:
        names = names[:3]
    heads = draw.choice([1, 2, 3, 4, 6, 8])
    channels = heads * draw.choice([2, 4, 8])
    stages, text_rows = [], 0
    for i in range(draw.randint(1, 4)):
        kind = draw.choice(["attention"] * 3 + ["linear-attention"] * 2 + ["mlp", "cross"])
        over = draw.choice([n for n in names if n != "b"])
        if kind == "attention":
            kv = draw.choice([d for d in range(1, heads + 1) if heads % d == 0]) if draw.random() < 0.3 else heads
            causal = draw.random() < 0.3
            rope = draw.random() < 0.3 and channels // heads % 2 == 0
            stages.append(Stage(f"s{i}", kind, over, heads, kv, causal, rope=rope,
                                zigzag=causal and draw.random() < 0.5))
        elif kind == "linear-attention":
            stages.append(Stage(f"s{i}", kind, over, heads, causal=draw.random() < 0.5,
                                decay=draw.choice([1.0, 0.5])))
        elif kind == "mlp":
            stages.append(Stage(f"s{i}", kind, ratio=draw.randint(1, 4)))
        else:
            text_rows = text_rows or draw.randint(1, 9)
            stages.append(Stage(f"s{i}", kind, heads=heads))
    return Model(draw.choice(["bf16", "f32"]), [(n, extents[n]) for n in names], channels, text_rows, stages,
                 draw.randint(1, 3))


def random_grid(draw):
    sizes = draw.choice([(2,), (3,), (4,), (5,), (8,), (2, 2), (2, 3), (3, 2), (2, 4), (2, 2, 2)])
    return Grid(list(zip("xyz", sizes)))


def number_of_walks(ways, repeat):
    out = 1
    for found in ways:
        out *= len(found)
    return out ** repeat


def bytes_case(draw):
    grid = random_grid(draw)
    model = random_model(draw, len(grid.axes))
    layouts = Layouts(model, grid)
    slack = draw.choice([25, 25, 25, 0, 100, 10 ** 9])
    is_end_free, backward = draw.random() < 0.5, draw.random() < 0.3
    prices = Bytes(model, layouts, slack, backward, is_end_free)
    ways = [prices.ways(stage) for stage in model.stages]
    while model.repeat > 1 and number_of_walks(ways, model.repeat) > MOST_WALKS:
        model.repeat -= 1
    if number_of_walks(ways, model.repeat) > MOST_WALKS:
        return None
    walks = every_walk(ways, model.repeat, prices)
    plan = heddle.plan(model.text(), grid.text(), methods="", slack_percent=slack, backward=backward,
                       epilogue="any" if is_end_free else None)
    found = (int(plan.value), plan.bytes_total + (plan.backward_bytes_total if backward else 0),
             sum(s.method != "local" for s in plan.stages), plan.switches)
    wanted = walks[0]
    if found != wanted[:4] or (len(walks) > 1 and plan.runner_up != walks[1][0]):
        print(model.text(), grid.text(), "slack", slack, "backward", backward, "free end", is_end_free)
        print("plan", found, plan.runner_up, [(s.name, s.layout, s.method) for s in plan.stages])
        print("here", wanted, walks[1:2])
        return False
    return True


def time_case(draw):
    grid = random_grid(draw)
    model = random_model(draw, len(grid.axes))
    layouts, machine = Layouts(model, grid), Machine(draw, len(grid.ranks))
    is_end_free, backward = draw.random() < 0.5, draw.random() < 0.3
    recompute = backward and draw.random() < 0.5
    prices = Times(machine, model, layouts, 25, backward, is_end_free, recompute=recompute)
    ways = [prices.ways(stage) for stage in model.stages]
    while model.repeat > 1 and number_of_walks(ways, model.repeat) > MOST_WALKS:
        model.repeat -= 1
    if number_of_walks(ways, model.repeat) > MOST_WALKS:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(machine.text())
        file.flush()
        on = heddle.Machine(file.name)
    plan = heddle.plan(model.text(), grid.text(), methods="", machine=on, training=backward, recompute=recompute,
                       epilogue="any" if is_end_free else None)
    walks = every_walk(ways, model.repeat, prices)
    wanted = [walk[0] for walk in walks[:2]] + [0]
    terms = 8 * (len(plan.stages) + len(plan.edges))
    if any(abs(a * 1e12 - b) > max(1e-9 * b, terms) for a, b in zip((plan.value, plan.runner_up), wanted)):
        print(model.text(), machine.text(), grid.text(), "backward", backward, recompute, "free end", is_end_free)
        print("plan", plan.value * 1e12, plan.runner_up * 1e12, wanted[:2])
        chosen = [(s.name, s.layout, s.method, round(s.predicted_s * 1e12)) for s in plan.stages]
        for i, (name, layout, method, ps) in enumerate(chosen):
            here = [w for w in ways[i % len(ways)] if layouts.text(w[0]) == layout and w[1] == method]
            print(name, layout, method, ps, [w[2] for w in here])
        print([(e.kind, round(e.predicted_s * 1e12)) for e in plan.edges])
        return False
    return True


MOST_WALKS = 3000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=["bytes", "time"], default="bytes")
    asked = parser.parse_args()
    draw, wrong, done = random.Random(asked.seed), 0, 0
    while done < asked.cases:
        result = {"bytes": bytes_case, "time": time_case}[asked.kind](draw)
        done += result is not None
        wrong += result is False
        if wrong > 3:
            break
    print(f"{done} cases, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
