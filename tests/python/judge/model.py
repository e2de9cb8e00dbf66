"""Small models on small meshes, written as model files, and the box that every rank has in every layout."""
import itertools

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
    """over: names of the dims that it mixes; window: tokens each way of each of them."""

    def __init__(self, name, kind, over=(), heads=0, kv_heads=0, causal=False, decay=1.0, ratio=0, rope=False,
                 zigzag=False, window=(), joins=False, methods=(), token=(0, 0), weights=0):
        self.name, self.kind, self.over, self.heads, self.ratio = name, kind, over, heads, ratio
        self.kv_heads, self.causal, self.decay = kv_heads or heads, causal, decay
        self.rope, self.zigzag, self.window, self.joins = rope, zigzag, window, joins
        self.methods, self.weights = methods, weights  # of a module
        self.token_flops, self.token_bytes = token

    def text(self):
        out = f"{{name: {self.name}, kind: {self.kind}"
        if self.kind == "cross":
            out += ", reads: y"
        if self.over:
            out += f", over: {self.over[0]}" if len(self.over) == 1 else f", over: [{', '.join(self.over)}]"
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
        if self.window:
            out += f", window: {self.window[0]}" if len(self.over) == 1 else f", window: {list(self.window)}"
        if self.zigzag:
            out += ", placement: zigzag"
        if self.decay != 1.0:
            out += f", decay: {self.decay}"
        if self.joins:
            out += ", joins: y"
        if self.kind == "module":
            out += f", token_flops: {self.token_flops}"
            out += f", token_bytes: {self.token_bytes}" if self.token_bytes else ""
            out += f", methods: [{', '.join(self.methods)}]" if self.methods else ""
        if self.weights:
            out += f", weights: {self.weights}"
        return out + "}"


class Model:
    def __init__(self, dtype, dims, channels, text_rows, stages, repeat, is_sharded=False):
        self.is_sharded = is_sharded  # its weights
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
        out += "weights: sharded\n" if self.is_sharded else ""
        out += f"repeat: {self.repeat}\nstages:\n"
        return out + "".join(f"  - {stage.text()}\n" for stage in self.stages)


    def dims_of(self, stage):
        """Numbers of the dims that a stage mixes."""
        return [d for d, name in enumerate(self.names) if name in stage.over]

    def text_of(self, stage):
        """Rows of text that are part of every fibre."""
        return self.text_rows if stage.joins else 0


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
