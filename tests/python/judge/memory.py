"""Bytes of the rank that holds most: docs/formats.md, "Memory", and docs/attention.md for what a method holds."""
from judge.model import BYTES, blocks, volume
from judge.moved import axes_of, groups_of, has_halo, key_heads, seen


class Memory:
    def __init__(self, model, layouts, training, recompute):
        self.model, self.layouts, self.training, self.recompute = model, layouts, training, recompute
        self.unit = BYTES[model.dtype]

    def resident(self):
        """Parameters, with gradients and moments where it trains, and the text of all samples."""
        model, each = self.model, self.unit
        if self.training:
            each = {"bf16": 2 + 4 + 4 + 8, "f32": 4 + 4 + 8}[model.dtype]
        samples = model.extents[0] if model.names[0] == "b" else 1
        text = samples * model.text_rows * model.channels * self.unit
        weights = sum(self.parameters(stage) for stage in model.stages) * model.repeat
        return (-(-weights // len(self.layouts.grid.ranks)) if model.is_sharded else weights) * each + text

    def parameters(self, stage):
        c = self.model.channels
        if stage.weights or stage.kind == "module":
            return stage.weights
        if stage.kind == "mlp":
            return 2 * stage.ratio * c * c + stage.ratio * c + c
        keys = c if stage.kind == "cross" else c // stage.heads * stage.kv_heads
        return (c + 2 * keys) * (c + 1) + c * (c + 1)

    def made(self, stage, layout, rows, method):
        """What a stage makes of its input, besides its output."""
        c = self.model.channels
        if stage.kind == "mlp":
            return rows * stage.ratio * c * self.unit
        if stage.kind == "module":
            return rows * stage.token_bytes
        if stage.kind == "cross":
            low, high = self.layouts.boxes[layout][0][0] if self.model.names[0] == "b" else (0, 1)
            text = (high - low) * self.model.text_rows * 2 * c * self.unit
            return rows * (2 * c * self.unit + 2 * stage.heads * 4) + text
        if stage.kind == "linear-attention":
            return rows * (3 * c * 4 + c * self.unit + stage.heads * 4)
        keys = c // stage.heads * stage.kv_heads
        return rows * ((2 * c + 2 * keys) * self.unit + (2 * stage.heads * 4 if method == "local" else 0))

    def of_stage(self, stage, layout, method, rows):
        """Kept from forward to backward, and needed while it runs, that included; rows: text that joins with them."""
        c = self.model.channels
        inputs, made = rows * c * self.unit, self.made(stage, layout, rows, method)
        saved, work = self.of_method(stage, layout, method) if method != "local" else (0, 0)
        if self.model.is_sharded and len(self.layouts.grid.ranks) > 1:
            work += self.parameters(stage) * (self.unit + (4 if self.training else 0))
        if not self.training:
            return 0, inputs + made + saved + work
        kept = inputs + (0 if self.recompute else made + saved)
        gradients = rows * 4 * (stage.ratio * c if stage.kind == "mlp" else 4 * c)
        return kept, inputs + inputs + made + saved + work + gradients

    def of_method(self, stage, layout, method):
        """What an object of the method keeps, and works in: each of the rank that has most, of a group with most
        fibres."""
        found = []
        groups = list(groups_of(self.layouts, layout, stage))
        most = max(group.fibres for group in groups)
        for i in range(len(groups[0].rows)):
            of = self.linear if stage.kind == "linear-attention" else self.softmax
            found.append(of(stage, layout, method, groups[0], i))
        return tuple(max(one[k] for one in found) * most for k in (0, 1))

    def softmax(self, stage, layout, method, group, i):
        width, unit, rows = self.model.channels // stage.heads, self.unit, group.rows
        axes, n = axes_of(layout, self.model.dims_of(stage)), len(rows)
        spread = {"ulysses": n, "usp": self.layouts.grid.axes[axes[-1]][1]}.get(method, 1)
        shares = blocks(stage.heads, spread)
        low, high = shares[i % spread]
        keys = key_heads(stage, (low, high)) if spread > 1 else stage.kv_heads
        segments = [sum(rows[k:k + spread]) for k in range(0, n, spread)]
        here = segments[i // spread]
        q, lines, all_three = (high - low) * here * width, (high - low) * here, (high - low + 2 * keys) * here * width
        is_half = unit < 4
        saved = all_three * unit + q * 4 + is_half * q * 4 + (0 if method == "rsa" else 2 * lines * 4)
        work = 0
        if spread > 1:
            packed = stage.heads + 2 * sum(key_heads(stage, share) for share in shares)
            work += packed * rows[i] * width * unit + is_half * q * unit
        if self.training:
            work += q * unit + lines * 4 + all_three * 4 + is_half * (q * 4 + (all_three * unit if spread > 1 else 0))
        ring = n // spread
        if method in ("ring", "usp", "rsa") and ring > 1:
            block = (1 if method == "rsa" else 2) * keys * max(segments) * width
            work += min(ring - 1, 2) * block * unit
            work += (min(ring - 1, 2) + 1) * block * 4 if self.training else 0
        if method == "rsa":
            scores = stage.heads * rows[i] * sum(rows) * 4
            saved, work = saved + scores, work + (scores if self.training else 0)
        if method == "gather-kv":
            held = 2 * stage.kv_heads * width * self.gathered(stage, layout, group, i)
            saved, work = saved + held * unit, work + (held * 4 if self.training else 0)
        return saved, work

    def gathered(self, stage, layout, group, i):
        if not has_halo(stage, self.model, layout):
            return sum(group.rows)
        boxes = [self.layouts.boxes[layout][member] for member in group.members]
        return sum(seen(stage, self.model, box, boxes[i]) if k != i else group.rows[i] for k, box in enumerate(boxes))

    def linear(self, stage, layout, method, group, i):
        d, rows, ways = self.model.channels // stage.heads, group.rows[i], 1 if stage.causal else 2
        chunk = max(1, min(max(128, min(256, -(-d // 64) * 64)), rows))
        state = stage.heads * d * d * 4
        borders = ways * -(-rows // chunk) * state
        work = borders + state
        held = {"lasp": 0, "scan": 1, "lasp2": len(group.rows)}[method]
        shares = method == "lasp2" and not stage.causal and stage.decay == 1.0
        return borders, work + (6 + (1 if shares else 2) * held) * state

    def of_edge(self, before, after):
        if before == after:
            return 0
        return sum(volume(self.layouts.boxes[x][0]) for x in (before, after)) * self.model.channels * self.unit
