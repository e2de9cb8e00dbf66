"""Random machines, and prices in seconds by their figures."""
import math

from judge.by_bytes import Bytes, methods_of
from judge.memory import Memory
from judge.model import BYTES, blocks, volume
from judge.moved import Moved, axes_of, between_heads, edge, groups_of, has_halo, method_bytes


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
        self.is_calibrated = draw.random() < 0.5
        self.on_device = self.is_calibrated and draw.random() < 0.5
        sizes = [[ranks], [2, (ranks + 1) // 2], [4, 4], [2, 2, 2]] if ranks > 1 else [[1], [4]]
        self.sizes = draw.choice(sizes)
        self.crowding = draw.choice([1, 1.25, 2.5])
        idle = max(self.sizes[0] - ranks, 0)
        self.crowd = self.crowding ** (-idle / (self.sizes[0] - 1)) if idle else 1
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
        out = f"machine: random\noverlap_slowdown: {self.slowdown}\ncrowding_slowdown: {self.crowding}\n"
        out += "calibrated: true\n" if self.is_calibrated else ""
        out += "on_device: true\n" if self.on_device else ""
        out += "levels:\n"
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
        return self.crowd * (start + amount / rate.at(size)) * 1e12 if amount > 0 else 0

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

    def to_all_ps(self, exchange, ranks, amount):
        """Every rank sends so much to each of the others."""
        moved = Moved()
        for a in range(ranks):
            for b in range(ranks):
                moved.add(a, b, amount if a != b else 0)
        return self.slowest_ps(exchange, ranks, moved)

    def hidden_ps(self, work, transfer):
        return min(work, transfer) * max(0, 2 - self.slowdown)


class Times(Bytes):
    """Prices by seconds, as docs/formats.md counts them."""

    def __init__(self, machine, model, layouts, slack, backward, is_end_free, recompute):
        super().__init__(model, layouts, slack, backward, is_end_free)
        self.machine, self.recompute = machine, recompute

    def always(self):
        """Of every plan: whole gradients in f32 are added up, each rank's part first, and go to all ranks."""
        ranks = math.prod(size for _, size in self.layouts.grid.axes)
        if not self.backward or ranks == 1 or self.model.is_sharded:
            return 0
        memory = Memory(self.model, self.layouts, True, self.recompute)
        count = sum(memory.parameters(stage) for stage in self.model.stages) * self.model.repeat
        part = -(-count // ranks) * 4
        return sum(self.machine.to_all_ps(what, ranks, part) for what in ("reduce_scatter", "all_gather"))

    def ways(self, stage):
        found = []
        for layout in self.layouts.all:
            for method in methods_of(stage, self.model, self.layouts.grid, layout, 10 ** 9):
                if self.is_local and method != "local":
                    continue
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
            group = math.prod(self.layouts.grid.axes[a][1] for a in axes_of(layout, self.model.dims_of(stage)))
        ps = first + last + attention + self.method_ps(stage, layout, method, group, out, attention, False)
        if self.backward:
            ps += 2 * (first + last) + attention_back
            ps += self.method_ps(stage, layout, method, group, back, attention_back, True)
        if self.backward and self.recompute:
            ps += first + attention + self.method_ps(stage, layout, method, group, out, attention, False)
        work = first + last + attention
        if self.backward:
            work += 2 * (first + last) + attention_back + (first + attention if self.recompute else 0)
        return ps + self.weights_ps(stage, work)

    def weights_ps(self, stage, work):
        """Sharded parameters: a gather, on the way back another and a sum of f32, each beside a part of the work."""
        ranks = len(self.layouts.grid.ranks)
        if not self.model.is_sharded or ranks == 1:
            return 0
        part = -(-Memory(self.model, self.layouts, False, False).parameters(stage) // ranks)
        gather = self.machine.to_all_ps("all_gather", ranks, part * BYTES[self.model.dtype])
        times = [gather]
        if self.backward:
            times += [gather, self.machine.to_all_ps("reduce_scatter", ranks, part * 4)]
        return sum(ps - self.machine.hidden_ps(work / len(times), ps) for ps in times)

    def rows(self, stage, layout, method):
        """Rows of the rank that has most, text that joins them included; its part of a fibre, and its fibres."""
        box, dims, text = self.layouts.boxes[layout][0], self.model.dims_of(stage), self.model.text_of(stage)
        if not stage.over:
            cut = math.prod(size for (_, size), dim in zip(self.layouts.grid.axes, layout)
                            if dim is not None and self.model.names[dim] != "b")
            return volume(box) + self.samples(layout) * -(-text // cut), 0, 0
        n = math.prod(self.layouts.grid.axes[a][1] for a in axes_of(layout, dims))
        part = volume([box[d] for d in dims]) + -(-text // n)
        fibres = volume([side for d, side in enumerate(box) if d not in dims])
        return part * fibres, part, fibres

    def samples(self, layout):
        low, high = self.layouts.boxes[layout][0][0] if self.model.names[0] == "b" else (0, 1)
        return high - low

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
        if stage.kind == "module":
            return first + machine.work_ps("product", dtype, rows * stage.token_flops, rows), last, 0, 0
        if stage.kind == "mlp":
            width = stage.ratio * c
            return first + product(rows, width) + memory(2 * stage.ratio), last + product(rows, c, deep=width), 0, 0
        if stage.kind == "cross":
            first += product(rows, c) + product(self.samples(layout) * model.text_rows, 2 * c)
            attention = machine.work_ps("attention", dtype, 4 * rows * model.text_rows * c, model.text_rows)
            return first, last + product(rows, c), attention, 2.5 * attention
        share = stage.kv_heads / stage.heads
        is_ours = stage.kind == "linear-attention" and machine.is_calibrated and not machine.on_device
        first += product(rows, c * (1 + 2 * share), "f32" if is_ours else dtype)
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
        d, dtype, dims = self.model.channels // stage.heads, self.model.dtype, self.model.dims_of(stage)
        whole = math.prod(self.model.extents[i] for i in dims) + self.model.text_of(stage)
        axes = axes_of(layout, dims)
        sizes = [self.layouts.grid.axes[a][1] for a in axes]
        spread = {"ulysses": math.prod(sizes), "usp": sizes[-1] if sizes else 1}.get(method, 1)
        hops = {"ring": math.prod(sizes), "rsa": math.prod(sizes), "usp": sizes[0] if sizes else 1}.get(method, 1)
        gathered = axes if method == "ulysses" else axes[1:] if method == "usp" else []
        rows = {"ulysses": whole, "usp": self.rows_of_outer(stage, layout, axes)}.get(method, part)
        keys = self.keys(stage, [None if a in gathered else dim for a, dim in enumerate(layout)])
        flops = 4 * rows * fibres * -(-stage.heads // spread) * keys * d
        back = (2 if method == "rsa" else 2.5) * flops  # rsa has kept its weights
        return [hops * self.machine.work_ps("attention", dtype, f / hops, keys / hops) for f in (flops, back)]

    def rows_of_outer(self, stage, layout, axes):
        """Most rows that ranks along the second of two axes have together."""
        if len(axes) < 2:
            return 0
        rows, inner = next(iter(groups_of(self.layouts, layout, stage))).rows, self.layouts.grid.axes[axes[1]][1]
        return max(sum(rows[i:i + inner]) for i in range(0, len(rows), inner))

    def keys(self, stage, layout):
        """That a query sees on average, of the block that sees most; zigzag makes blocks alike. Text is seen by all."""
        model = self.model
        whole = math.prod(model.extents[d] for d in model.dims_of(stage)) + model.text_of(stage)
        if not stage.causal and not any(stage.window):
            return whole
        out = 1
        for d in model.dims_of(stage):
            extent, window = model.extents[d], stage.window[stage.over.index(model.names[d])] if stage.window else 0
            parts = [(0, extent)]
            for (_, size), dim in zip(self.layouts.grid.axes, layout):
                if dim == d and not stage.zigzag:
                    parts = [(low + a, low + b) for low, high in parts for a, b in blocks(high - low, size)]
            reach = window or extent
            seen = [1 + min(i, reach) + (0 if stage.causal else min(extent - 1 - i, reach)) for i in range(extent)]
            out *= max(sum(seen[low:high]) for low, high in parts) / max(high - low for low, high in parts)
        return out + model.text_of(stage)

    def method_ps(self, stage, layout, method, n, moved, attention, is_back):
        machine = self.machine
        if method == "local":
            return 0
        if method == "ulysses":
            return self.heads_ps(n, between_heads(stage, self.model, self.layouts, layout), is_back)
        if method == "ring":
            return self.ring_ps(n, moved, attention)
        if method == "rsa":  # keys go round, then values
            return self.ring_ps(n, moved, attention, 2)
        if method == "usp":
            inner = self.layouts.grid.axes[axes_of(layout, self.model.dims_of(stage))[1]][1]
            heads = between_heads(stage, self.model, self.layouts, layout, inner)
            ring = Moved()
            ring.join(moved)
            for part in heads:
                for (a, b), amount in (part.back() if is_back else part).pairs.items():
                    ring.pairs[a, b] -= amount
            return self.heads_ps(inner, heads, is_back) + self.ring_ps(n // inner, ring, attention)
        if method == "gather-kv" and has_halo(stage, self.model, layout):
            return machine.slowest_ps("ring", 2, moved)
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

    def heads_ps(self, spread, parts, is_back):
        """One exchange after the other, each as long as its own busiest rank takes."""
        return sum(self.machine.slowest_ps("all_to_all", spread, part.back() if is_back else part) for part in parts)

    def ring_ps(self, ring, moved, attention, turns=1):
        hops = turns * (ring - 1)
        if hops < 1:
            return 0
        hop = self.machine.slowest_ps("ring", ring, moved, 1 / hops)
        return hops * (hop - self.machine.hidden_ps(attention / (turns * ring), hop))
