"""Plans against every walk through small random models, by prices that are counted here: the elements that each rank
holds, one box after the other. Nothing is shared with the planner but docs/formats.md, which it was written from.

    python3 -m judge.cases [--seed N] [--bytes N] [--time N] [--long N] [--memory N] [--regret N] [--rsa N]

so many cases of each kind. A failing one prints its model and both answers.
"""
import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile

import heddle

from judge.by_bytes import Bytes
from judge.by_time import Machine, Times
from judge.memory import Memory
from judge.model import Grid, Layouts, Model, Stage

MOST_WALKS = 1000


def random_window(draw, over):
    return [draw.randint(0 if len(over) > 1 else 1, 9) for _ in over] if draw.random() < 0.3 else ()


def random_stage(draw, name, kind, seq, heads, channels):
    over = draw.sample(seq, draw.randint(1, len(seq)) if draw.random() < 0.3 else 1)
    kv = draw.choice([d for d in range(1, heads + 1) if heads % d == 0]) if draw.random() < 0.3 else heads
    joins = draw.random() < 0.15
    if kind == "attention":
        causal = len(over) == 1 and draw.random() < 0.3
        return Stage(name, kind, over, heads, kv, causal, rope=draw.random() < 0.3 and channels // heads % 2 == 0,
                     zigzag=causal and draw.random() < 0.5, window=random_window(draw, over), joins=joins,
                     weights=draw.randint(1, 9999) if draw.random() < 0.1 else 0)
    if kind == "module":
        token, weights = (draw.randint(1, 9999), draw.randint(0, 200)), draw.randint(0, 9999)
        if draw.random() < 0.3:
            return Stage(name, kind, joins=joins, token=token, weights=weights)
        methods = draw.sample(["ulysses", "usp", "ring", "gather-kv", "rsa"], draw.randint(0, 4))
        return Stage(name, kind, over, heads, kv, window=random_window(draw, over), joins=joins, token=token,
                     methods=methods, weights=weights)
    if kind == "linear-attention":
        return Stage(name, kind, over[:1], heads, causal=draw.random() < 0.5, decay=draw.choice([1.0, 0.5]))
    if kind == "mlp":
        return Stage(name, kind, ratio=draw.randint(1, 4), joins=joins)
    return Stage(name, kind, heads=heads)


def random_model(draw, naxes):
    extents = {"b": draw.randint(1, 4), "t": draw.randint(1, 17), "s": draw.randint(1, 40), "u": draw.randint(1, 12)}
    if draw.random() < 0.1:
        extents["t"] = draw.randint(130, 700)  # more rows than a chunk of linear attention
    names = [n for n in "btsu" if n == "t" or draw.random() < {"b": 0.5, "s": 0.8, "u": 0.25}[n]]
    if naxes == 3:
        names = names[:3]
    heads = draw.choice([1, 2, 3, 4, 6, 8])
    channels = heads * draw.choice([2, 4, 8])
    stages = []
    for i in range(draw.randint(1, 4)):
        kind = draw.choice(["attention"] * 3 + ["linear-attention"] * 2 + ["mlp", "cross", "module"])
        stages.append(random_stage(draw, f"s{i}", kind, [n for n in names if n != "b"], heads, channels))
    text_rows = draw.randint(1, 9) if any(stage.kind == "cross" or stage.joins for stage in stages) else 0
    return Model(draw.choice(["bf16", "f32"]), [(n, extents[n]) for n in names], channels, text_rows, stages,
                 draw.randint(1, 3), draw.random() < 0.2)


def random_grid(draw):
    sizes = draw.choice([(2,), (3,), (4,), (5,), (8,), (2, 2), (2, 3), (3, 2), (2, 4), (2, 2, 2)])
    return Grid(list(zip("xyz", sizes)))


def planned_on(machine):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(machine.text())
        file.flush()
        return heddle.Machine(file.name)


class Case:
    """A model on a grid, what is asked of the planner, and the ways and prices by which it is judged."""

    def __init__(self, draw, by_time, is_local=False):
        self.grid = random_grid(draw)
        self.model = random_model(draw, len(self.grid.axes))
        self.layouts = Layouts(self.model, self.grid)
        is_end_free, self.backward = draw.random() < 0.5, draw.random() < 0.3
        self.recompute = by_time and self.backward and draw.random() < 0.5
        slack = 25 if by_time else draw.choice([25, 25, 25, 0, 100, 10 ** 6])
        rest = (self.model, self.layouts, slack, self.backward, is_end_free)
        self.machine = Machine(draw, len(self.grid.ranks)) if by_time else None
        self.prices = Times(self.machine, *rest, self.recompute) if by_time else Bytes(*rest)
        self.prices.is_local = is_local
        self.ways = [self.prices.ways(stage) for stage in self.model.stages]
        while self.model.repeat > 1 and self.walks() > MOST_WALKS:
            self.model.repeat -= 1
        self.options = {"methods": "*=local" if is_local else "", "slack_percent": slack, "backward": self.backward,
                        "recompute": self.recompute, "epilogue": "any" if is_end_free else None}
        if by_time:
            self.options.update(machine=planned_on(self.machine), training=self.backward)

    def walks(self):
        out = 1
        for ways in self.ways:
            out *= len(ways)
        return out ** self.model.repeat

    def plan(self, **more):
        return heddle.plan(self.model.text(), self.grid.text(), **{**self.options, **more})

    def every_walk(self, choice=None):
        """The costs of all walks, least first; choice(step): the ways of one step alone."""
        ways = [choice(i) if choice else self.ways[i % len(self.ways)]
                for i in range(self.model.repeat * len(self.ways))]
        walks = [(way[2], way[0]) for way in ways[0]]
        for here in ways[1:]:
            edges = {(a, b): self.prices.edge(a, b) for a in {last for _, last in walks} for b, _, _ in here}
            walks = [(tuple(map(sum, zip(cost, edges[last, layout], more))), layout)
                     for cost, last in walks for layout, _, more in here]
        return sorted(tuple(map(sum, zip(cost, self.prices.end(last)))) for cost, last in walks)

    def complain(self, *lines):
        print(self.model.text(), self.grid.text(), self.options, self.machine.text() if self.machine else "")
        print(*lines, sep="\n", flush=True)
        return False

    def agrees(self, plan, walks, roundings=8):
        """The value and the next best one, and by bytes what else is compared."""
        wanted = [walk[0] for walk in walks[:2]] + [0] * (2 - len(walks))
        if self.machine is not None:  # every price is rounded to a picosecond
            terms = roundings * (len(plan.stages) + len(plan.edges))
            found = [plan.value * 1e12, plan.runner_up * 1e12]
            wanted = [one + self.prices.always() if one else 0 for one in wanted]
            return all(abs(a - b) <= max(1e-9 * b, terms) for a, b in zip(found, wanted))
        total = plan.bytes_total + (plan.backward_bytes_total if self.backward else 0)
        found = (total, sum(s.method != "local" for s in plan.stages), plan.switches)
        return [plan.value, plan.runner_up] == wanted and found == walks[0][1:4] and plan.lower_bound <= plan.value


def free_case(draw, by_time):
    case = Case(draw, by_time)
    if case.walks() > MOST_WALKS:
        return None
    plan, walks = case.plan(), case.every_walk()
    right = case.agrees(plan, walks) or case.complain(
        f"the plan: {plan.value} {plan.runner_up}", [(s.layout, s.method, s.predicted_s) for s in plan.stages],
        f"every walk: {walks[:2]}")
    if by_time:  # what is never chosen has a price, too
        stage = draw.randrange(len(case.ways))
        method = draw.choice(sorted({way[1] for way in case.ways[stage]}))
        layout = draw.choice([way[0] for way in case.ways[stage] if way[1] == method])
        asked = f"{case.model.stages[stage].name}={case.layouts.text(layout)}/{method}"
        plan, walks = case.plan(force=asked), case.every_walk(
            lambda step: [way for way in case.ways[step % len(case.ways)]
                          if step % len(case.ways) != stage or way[:2] == (layout, method)])
        right = (case.agrees(plan, walks) or case.complain(
            f"{asked}: {plan.value} {plan.runner_up}", f"every walk: {walks[:2]}")) and right
    return right


def long_case(draw, by_time):
    """Models that repeat themselves too often for every walk: the two best ways to each layout, step by step."""
    case = Case(draw, by_time)
    if case.walks() > MOST_WALKS * 100:
        return None
    case.model.repeat = draw.randint(4, 120)
    best = {}  # layout: the least two costs of all walks to it
    for layout, _, cost in case.ways[0]:
        best.setdefault(layout, []).append(cost)
    for step in range(1, case.model.repeat * len(case.ways)):
        behind = {}
        for layout, _, cost in case.ways[step % len(case.ways)]:
            for last, so_far in best.items():
                edge = case.prices.edge(last, layout)
                behind.setdefault(layout, []).extend(tuple(map(sum, zip(one, edge, cost))) for one in so_far)
        best = {layout: sorted(costs)[:2] for layout, costs in behind.items()}
    walks = sorted(tuple(map(sum, zip(cost, case.prices.end(layout)))) for layout, costs in best.items()
                   for cost in costs)
    plan = case.plan()
    return case.agrees(plan, walks) or case.complain(
        f"the plan: {plan.value} {plan.runner_up}", f"the best of all walks: {walks[:2]}")


def memory_case(draw, by_time):
    """Under a cap: a filter of inference, sums of training."""
    case = Case(draw, by_time, is_local=draw.random() < 0.5)
    if case.walks() > MOST_WALKS:
        return None
    prices, memory = case.prices, Memory(case.model, case.layouts, case.backward, case.recompute)
    rows = Times(None, case.model, case.layouts, 0, False, False, False).rows
    walks, needed = [], {}
    for steps in itertools.product(*case.ways * case.model.repeat):
        cost, peak, kept, last = prices.end(steps[-1][0]), 0, 0, None
        for stage, (layout, method, price) in zip(case.model.stages * case.model.repeat, steps):
            if last is not None:
                cost = tuple(map(sum, zip(cost, prices.edge(last, layout))))
                peak = max(peak, kept + memory.of_edge(last, layout))
            cost, last = tuple(map(sum, zip(cost, price))), layout
            if (stage, layout, method) not in needed:
                needed[stage, layout, method] = memory.of_stage(stage, layout, method, rows(stage, layout, method)[0])
            keeps, needs = needed[stage, layout, method]
            peak, kept = max(peak, kept + needs), kept + keeps
        if not prices.is_end_free:
            peak = max(peak, kept + memory.of_edge(last, (None,) * len(last)))
        walks.append((cost, peak + memory.resident()))
    peaks = sorted(peak for _, peak in walks)
    least, most = peaks[0], peaks[-1]
    cap = least - 1 if draw.random() < 0.15 else draw.randint(least, most)
    fitting = sorted(cost for cost, peak in walks if peak <= cap)
    try:
        plan = case.plan(memory_bytes=cap)
    except heddle.InfeasibleError as error:
        said = any(f"'{stage.name}'" in str(error) for stage in case.model.stages)
        said = said and f"{cap} are allowed" in str(error)
        return (not fitting and said) or case.complain(f"cap {cap} of {least}..{most}: {error}", fitting[:2])
    smallest = case.plan(objective="memory")
    next_one = peaks[1] if len(peaks) > 1 else 0
    right = bool(fitting) and case.agrees(plan, fitting) and (smallest.value, smallest.runner_up) == (least, next_one)
    return right or case.complain(
        f"cap {cap} of {peaks[:2]}..{most}: the plan: {plan.value} {plan.runner_up}, "
        f"by memory {smallest.value} {smallest.runner_up}",
        f"every walk: {fitting[:2]}")


def regret_case(draw, folder):
    """What a forced stage costs more, by the library and by the command line."""
    case = Case(draw, False)
    if case.walks() > MOST_WALKS:
        return None
    stage = draw.randrange(len(case.ways))
    layout, method, _ = draw.choice(case.ways[stage])
    repetition = draw.randrange(case.model.repeat) if draw.random() < 0.5 else None
    place = case.layouts.text(layout) if draw.random() < 0.7 else ""
    how = f"/{method}" if not place or draw.random() < 0.7 else ""
    name = case.model.stages[stage].name + ("" if repetition is None else f"#{repetition + 1}")

    def choice(step):
        ways = case.ways[step % len(case.ways)]
        if step % len(case.ways) != stage or repetition not in (None, step // len(case.ways)):
            return ways
        return [w for w in ways if (not place or w[0] == layout) and (not how or w[1] == method)]

    walks, forced = case.every_walk(), case.every_walk(choice)
    plan, asked = case.plan(force=f"{name}={place}{how}"), f"{name}={place}{how}"
    regret = forced[0][0] - walks[0][0]
    said = explained(case, asked, folder)
    verdict = said["verdict"]
    right = case.agrees(plan, forced) and said["regret"] == regret and said["value"] == forced[0][0]
    right = right and (verdict == "CHEAPER ELSEWHERE" if regret > 0 else verdict in ("CHOSEN", "TIE"))
    return right or case.complain(f"{asked}: {said}, the plan: {plan.value} {plan.runner_up}",
                                  f"every walk: {walks[:2]} {forced[:2]}")


def rsa_case(draw, folder):
    """What no plan does that is not told to, in a training step, where it may cost less than the best of the rest."""
    case = Case(draw, True)
    stages = [k for k, stage in enumerate(case.model.stages) if stage.kind == "attention"
              and any(way[1] == "ring" for way in case.ways[k])]
    if case.walks() > MOST_WALKS or not case.backward or not stages:
        return None
    asked = draw.choice(stages)
    stage = case.model.stages[asked]
    rsa = [(layout, "rsa", (case.prices.stage_ps(stage, layout, "rsa"),))
           for layout, method, _ in case.ways[asked] if method == "ring"]
    walks = case.every_walk()
    forced = case.every_walk(lambda step: rsa if step % len(case.ways) == asked else case.ways[step % len(case.ways)])
    plan, said = case.plan(force=f"{stage.name}=/rsa"), explained(case, f"{stage.name}=/rsa", folder)
    regret, hops = forced[0][0] - walks[0][0], 64  # of each hop its time is rounded, and what of it hides
    rounding = hops * (len(plan.stages) + len(plan.edges)) + 2e-9 * forced[0][0]
    right = case.agrees(plan, forced, hops) and said["regret"] is not None
    right = right and abs(said["regret"] * 1e12 - regret) <= rounding and said["method"] == "rsa"
    if abs(regret) > rounding:
        right = right and said["verdict"] == ("LEFT OUT" if regret < 0 else "CHEAPER ELSEWHERE")
        right = right and ("rsa" in said["reason"]) == (regret < 0)
    return right or case.complain(f"{stage.name}=/rsa: {said}, the plan: {plan.value} {plan.runner_up}",
                                  f"every walk: {walks[:2]} {forced[:2]}")


def explained(case, asked, folder):
    path, machine = os.path.join(folder, "model.yaml"), os.path.join(folder, "machine.yaml")
    with open(path, "w") as file:
        file.write(case.model.text())
    words = [os.environ["HEDDLE"], "explain", path, "--mesh", case.grid.text().strip("[]"), "--why-not", asked,
             "--slack", str(case.options["slack_percent"]), "--json"]
    if case.machine is None:
        words += ["--objective", "bytes"] + (["--backward"] if case.backward else [])
    else:
        with open(machine, "w") as file:
            file.write(case.machine.text())
        words += ["--machine", machine] + (["--training"] if case.backward else [])
        words += ["--recompute"] if case.recompute else []
    words += ["--epilogue", case.options["epilogue"]] if case.options["epilogue"] else []
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        return {"verdict": done.stderr, "regret": None, "value": None}
    return json.loads(done.stdout)["why_not"][0]


def judge(kind, count, seed):
    """So many cases; the number of wrong ones."""
    draw, done, wrong = random.Random(f"{kind} {seed}"), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        while done < count and wrong < 3:
            result = {"bytes": lambda: free_case(draw, False), "time": lambda: free_case(draw, True),
                      "long": lambda: long_case(draw, draw.random() < 0.5),
                      "memory": lambda: memory_case(draw, draw.random() < 0.7),
                      "regret": lambda: regret_case(draw, folder),
                      "rsa": lambda: rsa_case(draw, folder)}[kind]()
            done += result is not None
            wrong += result is False
    print(f"{kind}: {done} cases, {wrong} wrong (seed {seed})", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", default="1")
    kinds = ("bytes", "time", "long", "memory", "regret", "rsa")
    for kind in kinds:
        parser.add_argument(f"--{kind}", type=int, default=0)
    asked = parser.parse_args()
    return any([judge(kind, getattr(asked, kind), asked.seed) for kind in kinds])


if __name__ == "__main__":
    sys.exit(main())
