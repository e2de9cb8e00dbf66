"""Layouts and methods that a stage admits, and their prices in bytes."""
from judge.model import BYTES
from judge.moved import Moved, axes_of, edge, method_bytes


def methods_of(stage, model, grid, layout, slack):
    """Methods by which a stage may run in a layout, and which are not left to those who name them."""
    axes = axes_of(layout, model.dims_of(stage))
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
    if stage.kind == "module":
        return [method for method in out + ["rsa"] if method in stage.methods]
    return out


def admitted(stage, model, layouts, slack, is_local):
    """Layouts that divide the work of a stage."""
    ways = {layout: methods_of(stage, model, layouts.grid, layout, slack) for layout in layouts.all}
    if is_local:
        ways = {layout: methods for layout, methods in ways.items() if "local" in methods}
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
        self.slack, self.edges, self.is_local = slack, {}, False

    def of(self, out, back, is_method):
        both = [out] + ([back] if self.backward else [])
        total = sum(moved.total() for moved in both)
        return (sum(moved.sent_max() for moved in both), total, int(is_method), int(not is_method and out.total() > 0))

    def ways(self, stage):
        found = []
        for layout, method in admitted(stage, self.model, self.layouts, self.slack, self.is_local):
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
