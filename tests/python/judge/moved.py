"""What ranks send: element by element of their boxes, as docs/formats.md and docs/attention.md say it."""
import itertools

from judge.model import BYTES, blocks, volume


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

    def join(self, other):
        for (sender, receiver), amount in other.pairs.items():
            self.add(sender, receiver, amount)

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
    """The ranks that share fibres of sharded dims: in their order, with the rows of each, and so many fibres."""

    def __init__(self, members, rows, fibres):
        self.members, self.rows, self.fibres = members, rows, fibres


def groups_of(layouts, layout, stage):
    grid, dims, found = layouts.grid, layouts.model.dims_of(stage), {}
    for r, rank in enumerate(grid.ranks):
        found.setdefault(tuple(c for c, d in zip(rank, layout) if d not in dims), []).append(r)
    for members in found.values():
        boxes = [layouts.boxes[layout][r] for r in members]
        fibres = volume([part for d, part in enumerate(boxes[0]) if d not in dims])
        text = blocks(layouts.model.text_of(stage), len(members))
        rows = [volume([box[d] for d in dims]) + high - low for box, (low, high) in zip(boxes, text)]
        yield Group(members, rows, fibres)


def seen(stage, model, mine, yours):
    """Tokens of mine that some token of yours sees, one by one along each dim: windows are boxes."""
    out = 1
    for d in model.dims_of(stage):
        reach = stage.window[stage.over.index(model.names[d])] or model.extents[d]
        queries = range(*yours[d])
        out *= sum(any(abs(q - k) <= reach and (q >= k or not stage.causal) for q in queries) for k in range(*mine[d]))
    return out


def has_halo(stage, model, layout):
    """Some sharded dim has a window; text and rows that are dealt zigzag are seen by all."""
    cut = [d for d in model.dims_of(stage) if d in layout and stage.window]
    return not (stage.joins or stage.zigzag) and any(stage.window[stage.over.index(model.names[d])] for d in cut)


def key_heads(stage, share):
    group = stage.heads // stage.kv_heads
    return len({head // group for head in range(*share)})


def between_heads(stage, model, layouts, layout, inner=None):
    """Ulysses within `inner` members of every group (None: all): q, k, v from rows to heads, then the result from heads
    to rows. The way back turns both round."""
    there, home = Moved(), Moved()
    for group in groups_of(layouts, layout, stage):
        shares = blocks(stage.heads, inner or len(group.members))
        for i, sender in enumerate(group.members):
            for j, share in enumerate(shares):
                receiver = group.members[i // len(shares) * len(shares) + j]
                head = group.fibres * (model.channels // stage.heads) * group.rows[i] * BYTES[model.dtype]
                query = head * (share[1] - share[0])
                there.add(sender, receiver, query + 2 * head * key_heads(stage, share))  # rows of i, heads of j
                home.add(receiver, sender, query)
    return there, home


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
    dims, is_halo = model.dims_of(stage), has_halo(stage, model, layout)
    inner = layouts.grid.axes[axes_of(layout, dims)[1]][1] if method == "usp" else None
    if method in ("ulysses", "usp"):
        for part in between_heads(stage, model, layouts, layout, inner):
            out.join(part)
            back.join(part.back())
    for group in groups_of(layouts, layout, stage):
        n = len(group.members)
        if method in ("ring", "rsa"):
            round_the_ring(out, back, stage.kv_heads, width, group.members, group.rows, group.fibres, unit, real)
        elif method == "gather-kv":
            for i, j in itertools.permutations(range(n), 2):
                boxes = [layouts.boxes[layout][group.members[k]] for k in (i, j)]
                rows = seen(stage, model, *boxes) if is_halo else group.rows[i]
                block = 2 * stage.kv_heads * width * rows * group.fibres
                out.add(group.members[i], group.members[j], block * unit)
                back.add(group.members[j], group.members[i], block * real)
        elif method == "usp":
            shares = blocks(stage.heads, inner)
            for u in range(inner):
                rows = [sum(group.rows[r * inner:(r + 1) * inner]) for r in range(n // inner)]
                round_the_ring(out, back, key_heads(stage, shares[u]), width, group.members[u::inner], rows,
                               group.fibres, unit, real)
        elif method != "ulysses":
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


def axes_of(layout, dims):
    return [a for a, d in enumerate(layout) if d in dims]
