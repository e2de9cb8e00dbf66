"""Forward, backward and three steps of AdamW of a small model in f64 with NumPy: a reverse-mode tape of plain array
operations that shares nothing with the library but the formulas of docs/blocks.md. Usage: PROGRAM FOLDER; exit 1 and a
sentence where the program's numbers differ."""
import itertools
import os
import sys

import numpy as np
import within

SAMPLES, T, S, C, TOKENS, STEPS, DECAY, CLIP = 2, 7, 11, 24, 6, 3, 0.05, 0.7
STAGES = [
    dict(name="s.attn", kind="attention", over="s", heads=4, modulate=True, qk_norm=True),
    dict(name="cross", kind="cross", reads="text", heads=3),
    dict(name="s.mlp", kind="mlp", width=37, modulate=True),
    dict(name="t.attn", kind="attention", over="t", heads=2, modulate=True, qk_norm=True, rope=True),
    dict(name="t.lin", kind="linear-attention", over="t", heads=4, modulate=True, rope=True, causal=True,
         decay="slopes"),
    dict(name="s.lin", kind="linear-attention", over="s", heads=4, decay=0.9),
    dict(name="t.mlp", kind="mlp", width=16),
]
RUNS = [  # ranks, transport, methods, mesh, recompute, shard axis of the optimiser
    (1, "threads", "*=local", "[sp=1]", 0, -1),
    (4, "threads", "*=local", "[sp=4]", 0, -1),
    (4, "shm", "*=ring,s.lin=lasp,t.lin=lasp", "[sp=4]", 0, -1),
    (3, "threads", "s.attn=rsa,t.attn=ulysses,s.lin=lasp2,t.lin=lasp2", "[sp=3]", 1, -1),
    (4, "shm", "s.attn=usp,t.attn=usp,s.lin=scan,t.lin=scan", "[a=2 b=2]", 0, -1),
    (6, "threads", "*=gather-kv,s.lin=scan", "[a=2 b=3]", 1, 1),
]


class Node:
    """A value and how its gradient goes to what it was made of."""

    def __init__(self, value, parents=(), pull=None):
        self.value, self.parents, self.pull, self.grad = np.asarray(value, float), parents, pull, None

    def __add__(self, other):
        other = other if isinstance(other, Node) else Node(other)
        a, b = self.value.shape, other.value.shape
        return Node(self.value + other.value, (self, other), lambda g: (fold(g, a), fold(g, b)))

    def __mul__(self, other):
        other = other if isinstance(other, Node) else Node(other)
        a, b = self.value, other.value
        return Node(a * b, (self, other), lambda g: (fold(g * b, a.shape), fold(g * a, b.shape)))

    def __matmul__(self, other):
        a, b = self.value, other.value
        return Node(a @ b, (self, other),
                    lambda g: (fold(g @ b.swapaxes(-1, -2), a.shape), fold(a.swapaxes(-1, -2) @ g, b.shape)))

    def power(self, p):
        return Node(self.value**p, (self,), lambda g: (g * p * self.value ** (p - 1),))

    def axes(self, *order):
        return Node(self.value.transpose(order), (self,), lambda g: (g.transpose(np.argsort(order)),))

    def shaped(self, *shape):
        return Node(self.value.reshape(shape), (self,), lambda g: (g.reshape(self.value.shape),))

    def mean(self):
        n = self.value.shape[-1]
        return Node(self.value.mean(-1, keepdims=True), (self,), lambda g: (np.broadcast_to(g / n, self.value.shape),))

    def sum(self):
        return Node(self.value.sum(), (self,), lambda g: (np.broadcast_to(g, self.value.shape),))

    def tanh(self):
        t = np.tanh(self.value)
        return Node(t, (self,), lambda g: (g * (1 - t * t),))

    def softmax(self):
        e = np.exp(self.value - self.value.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)
        return Node(p, (self,), lambda g: (p * (g - (g * p).sum(-1, keepdims=True)),))

    def __getitem__(self, index):
        def pull(g):
            whole = np.zeros(self.value.shape)
            whole[index] = g
            return (whole,)

        return Node(self.value[index], (self,), pull)


def fold(g, shape):
    while g.ndim > len(shape):
        g = g.sum(0)
    for i, n in enumerate(shape):
        g = g.sum(i, keepdims=True) if n == 1 and g.shape[i] != 1 else g
    return g


def stack(nodes):
    return Node(np.stack([n.value for n in nodes]), tuple(nodes), lambda g: tuple(g))


def backward(root):
    order, seen, todo = [], set(), [(root, False)]
    while todo:
        node, done = todo.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            todo.append((node, True))
            todo.extend((p, False) for p in node.parents)
    root.grad = np.ones_like(root.value)
    for node in reversed(order):
        for parent, g in zip(node.parents, node.pull(node.grad) if node.pull else ()):
            parent.grad = g if parent.grad is None else parent.grad + g


def linear(x, weight, bias):
    return x @ weight.axes(1, 0) + bias


def rms(x):
    return x * ((x * x).mean() + 1e-6).power(-0.5)


def modulated(stage, x, vector, first):
    centred = x + x.mean() * -1.0
    n = rms(centred)
    if not stage.get("modulate"):
        return n, None
    shift, scale, gate = [vector[:, first + i].shaped(SAMPLES, 1, 1, C) for i in range(3)]
    return n * (scale + 1.0) + shift, gate


def rotated(x, d):
    turns = np.zeros((x.value.shape[-2], d, d))
    for t, i in itertools.product(range(len(turns)), range(d // 2)):
        angle = t * 10000.0 ** (-2 * i / d)
        pair = slice(2 * i, 2 * i + 2)
        turns[t, pair, pair] = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
    return (x.shaped(*x.value.shape[:-1], 1, d) @ Node(turns)).shaped(*x.value.shape)


def decays(stage, length):
    heads, i = stage["heads"], np.arange(length)
    slopes = np.exp(-(2.0 ** (-8 * (np.arange(heads) + 1) / heads)))
    rate = slopes if stage["decay"] == "slopes" else np.full(heads, stage["decay"])
    kept = rate[:, None, None] ** abs(i[:, None] - i)
    return kept * (i[:, None] >= i) if stage.get("causal") else kept


def attention(stage, x, p, vector):
    m, gate = modulated(stage, x, vector, 0)
    heads, d, over_t = stage["heads"], C // stage["heads"], stage["over"] == "t"
    order = (0, 2, 1, 3) if over_t else (0, 1, 2, 3)
    length, others = (T, S) if over_t else (S, T)
    qkv = linear(m, p[0], p[1])
    q, k, v = [qkv[..., j * C : (j + 1) * C].axes(*order).shaped(SAMPLES, others, length, heads, d).axes(0, 1, 3, 2, 4)
               for j in range(3)]
    if stage.get("qk_norm"):
        q, k = rms(q) * p[4], rms(k) * p[5]
    if stage.get("rope"):
        q, k = rotated(q, d), rotated(k, d)
    scores = (q @ k.axes(0, 1, 2, 4, 3)) * d**-0.5
    o = scores.softmax() @ v if stage["kind"] == "attention" else rms((scores * decays(stage, length)) @ v)
    y = linear(o.axes(0, 1, 3, 2, 4).shaped(SAMPLES, others, length, C).axes(*order), p[2], p[3])
    return x + (y * gate if gate is not None else y)


def cross(stage, x, p, text, lengths):
    heads, d, out = stage["heads"], C // stage["heads"], []
    for b in range(SAMPLES):
        n = int(lengths[b])
        q = linear(x[b], p[0], p[1]).shaped(T * S, heads, d).axes(1, 0, 2)
        kv = linear(text[b, :n], p[4], p[5])
        k, v = [kv[:, j * C : (j + 1) * C].shaped(n, heads, d).axes(1, 0, 2) for j in range(2)]
        o = ((q @ k.axes(0, 2, 1)) * d**-0.5).softmax() @ v
        out.append(x[b] + linear(o.axes(1, 0, 2).shaped(T, S, C), p[2], p[3]))
    return stack(out)


def mlp(stage, x, p, vector):
    m, gate = modulated(stage, x, vector, 3)
    u = linear(m, p[0], p[1])
    y = linear(u * 0.5 * (((u + u * u * u * 0.044715) * np.sqrt(2 / np.pi)).tanh() + 1.0), p[2], p[3])
    return x + (y * gate if gate is not None else y)


def shapes(stage):
    if stage["kind"] == "mlp":
        return [(stage["width"], C), (stage["width"],), (C, stage["width"]), (C,)]
    if stage["kind"] == "cross":
        return [(C, C), (C,), (C, C), (C,), (2 * C, C), (2 * C,)]
    d = C // stage["heads"]
    return [(3 * C, C), (3 * C,), (C, C), (C,)] + ([(d,), (d,)] if stage.get("qk_norm") else [])


def model_text():
    stages = "".join("  - {%s}\n" % ", ".join("%s: %s" % (k, str(v).lower()) for k, v in s.items()) for s in STAGES)
    return ("model: small\ndtype: f32\ndims: {b: {size: %d, role: batch}, t: %d, s: %d, c: {size: %d, role: channel}, "
            "l: {size: %d, role: text}}\ntensors:\n  x: [b, t, s, c]\n  text: {dims: [b, l, c], const: true}\n"
            "repeat: 1\nstages:\n%s" % (SAMPLES, T, S, C, TOKENS, stages))


class Problem:
    def __init__(self, folder, seed):
        rng = np.random.default_rng(seed)

        def draw(name, scale, shape):
            values = rng.normal(0, scale, shape).astype("f4")
            values.tofile(os.path.join(folder, name))
            return values

        open(os.path.join(folder, "model.yaml"), "w").write(model_text())
        self.weights = [[(rng.normal(0, 0.4 * q[-1] ** -0.5 if len(q) > 1 else 0.1, q) +
                          (1 if i > 3 and s["kind"] == "attention" else 0)).astype("f4")
                         for i, q in enumerate(shapes(s))] for s in STAGES]
        flat(self.weights).tofile(os.path.join(folder, "weights.bin"))
        self.vector = draw("vector.bin", 0.5, (SAMPLES, 6, C))
        self.text = draw("text.bin", 1, (SAMPLES, TOKENS, C))
        self.x = draw("x.bin", 1, (SAMPLES, T, S, C))
        self.dy = draw("dy.bin", 1, self.x.shape)
        self.lengths = np.array([TOKENS, 3], "i8")
        self.lengths.tofile(os.path.join(folder, "lengths.bin"))

    def run(self, params):
        """Output, loss, gradients of parameters, of vector and text, of the input."""
        nodes = [[Node(w) for w in p] for p in params]
        x, vector, text = Node(self.x), Node(self.vector), Node(self.text)
        y = x
        for stage, p in zip(STAGES, nodes):
            y = (cross(stage, y, p, text, self.lengths) if stage["kind"] == "cross" else
                 mlp(stage, y, p, vector) if stage["kind"] == "mlp" else attention(stage, y, p, vector))
        loss = (y * Node(self.dy)).sum()
        backward(loss)
        return y.value, float(loss.value), [[n.grad for n in p] for p in nodes], [vector.grad, text.grad], x.grad


def flat(lists):
    return np.concatenate([w.ravel() for p in lists for w in p])


def reference(problem):
    """The first pass, the parameters after STEPS steps as torch.optim.AdamW makes them, where they are well conditioned
    (a gradient that is nothing but rounding still makes a whole step), and the loss after them."""
    params = [[w.astype(float) for w in p] for p in problem.weights]
    mean, square = [[[np.zeros_like(w) for w in p] for p in params] for _ in range(2)]
    first, clear = None, np.ones(flat(params).size, bool)
    for t in range(1, STEPS + 1):
        rate, result = 0.01 * t, problem.run(params)
        first = first or result
        grads = result[2]
        norm = np.sqrt((flat(grads) ** 2).sum() + sum((g**2).sum() for g in result[3]))
        clear &= np.concatenate([(abs(g) > 0.01 * abs(g).max()).ravel() for p in grads for g in p])
        for p, g, m, v in zip(params, grads, mean, square):
            for i in range(len(p)):
                clipped = g[i] * min(1, CLIP / norm)
                m[i] = 0.9 * m[i] + 0.1 * clipped
                v[i] = 0.999 * v[i] + 0.001 * clipped**2
                p[i] *= 1 - rate * DECAY if p[i].ndim > 1 else 1
                p[i] -= rate / (1 - 0.9**t) * m[i] / (np.sqrt(v[i]) / np.sqrt(1 - 0.999**t) + 1e-8)
    return first, flat(params), clear, problem.run(params)[1]


def compare(folder, problem, expected, run):
    (y, _, grads, conditioning, dx), params, clear, loss = expected
    failed = []

    def read(name):
        return np.fromfile(os.path.join(folder, name), "f4").astype(float)

    def check(what, found, wanted, tolerance):
        error = abs(found.ravel() - wanted.ravel()).max() / abs(wanted).max()
        if not error <= tolerance:
            failed.append("%s: %.2e of the largest value, allowed %g" % (what, error, tolerance))

    check("y", read("y.bin"), y, 1e-5)
    found = np.zeros(dx.shape)
    for rank in range(run[0]):
        path = os.path.join(folder, "dx%d.bin" % rank)
        lo, length = np.fromfile(path, "i8", 8).reshape(2, 4)
        part = np.fromfile(path, "f4", offset=64)
        found[tuple(slice(a, a + n) for a, n in zip(lo, length))] += part.reshape(length)
    check("gradient of the input", found, dx, 2e-4)
    if run[5] < 0:
        found, at = read("gradients.bin"), 0
        names = ["parameter %d of %s" % (i, s["name"]) for s, p in zip(STAGES, grads) for i in range(len(p))]
        for name, g in zip(names + ["vector", "text"], [g for p in grads for g in p] + conditioning):
            check("gradient of " + name, found[at : at + g.size], g, 2e-4)
            at += g.size
    found = read("params.bin")
    worst = abs(found - params)[clear].max()
    if not (worst <= 5e-4 and np.median(abs(found - params)) <= 1e-5 and clear.mean() > 0.7):
        failed.append("parameters after %d steps: %.2e, median %.2e" % (STEPS, worst, np.median(abs(found - params))))
    found = np.fromfile(os.path.join(folder, "loss.bin"), "f8")[0]
    if not abs(found - loss) <= 1e-3 * abs(loss):
        failed.append("loss after %d steps: %.6f, expected %.6f" % (STEPS, found, loss))
    return failed


def main():
    program, folder = sys.argv[1:]
    problem = Problem(folder, 1)
    expected = reference(problem)
    bad = 0
    for run in RUNS:
        done = within.run([program, folder, *run])
        failed = ["exit %d: %s" % (done.returncode, done.stderr)] if done.returncode != 0 else None
        for line in failed or compare(folder, problem, expected, run):
            print("FAILED", run, line)
            bad = 1
    sys.exit(bad)


main()
