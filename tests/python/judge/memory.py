"""Bytes of the rank that holds most, of stages on whole fibres."""
from judge.model import BYTES, volume


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
        return sum(self.parameters(stage) for stage in model.stages) * model.repeat * each + text

    def parameters(self, stage):
        c = self.model.channels
        if stage.kind == "mlp":
            return 2 * stage.ratio * c * c + stage.ratio * c + c
        keys = c if stage.kind == "cross" else c // stage.heads * stage.kv_heads
        return (c + 2 * keys) * (c + 1) + c * (c + 1)

    def made(self, stage, layout):
        """What a stage makes of its input, besides its output."""
        c, rows = self.model.channels, volume(self.layouts.boxes[layout][0])
        if stage.kind == "mlp":
            return rows * stage.ratio * c * self.unit
        if stage.kind == "cross":
            samples = 1
            if self.model.names[0] == "b":
                low, high = self.layouts.boxes[layout][0][0]
                samples = high - low
            return rows * (2 * c * self.unit + 2 * stage.heads * 4) + samples * self.model.text_rows * 2 * c * self.unit
        if stage.kind == "linear-attention":
            return rows * (3 * c * 4 + c * self.unit + stage.heads * 4)
        keys = c // stage.heads * stage.kv_heads
        return rows * ((2 * c + 2 * keys) * self.unit + 2 * stage.heads * 4)

    def of_stage(self, stage, layout):
        """Kept from forward to backward, and needed while it runs, that included."""
        c, rows = self.model.channels, volume(self.layouts.boxes[layout][0])
        inputs, made = rows * c * self.unit, self.made(stage, layout)
        if not self.training:
            return 0, inputs + made
        kept = inputs + (0 if self.recompute else made)
        gradients = rows * 4 * (stage.ratio * c if stage.kind == "mlp" else 4 * c)
        return kept, inputs + inputs + made + gradients

    def of_edge(self, before, after):
        if before == after:
            return 0
        return sum(volume(self.layouts.boxes[x][0]) for x in (before, after)) * self.model.channels * self.unit
