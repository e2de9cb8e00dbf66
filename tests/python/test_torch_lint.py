"""Plans with one fault each: lint names the module, and says what it is; right plans have none."""
import copy

import pytest
import torch
import torch.nn.functional as F
from test_torch_prove import Mean, made, planted

import heddle
import heddle.torch as ht
from heddle.torch import Attend, Extent, Gather, Halo, Split, Switch

WIDTH = 16


class Rows(torch.nn.Module):
    """x[b, s, c] through a part of each kind."""

    def __init__(self, *parts):
        super().__init__()
        self.first, self.last = torch.nn.Linear(3, WIDTH), torch.nn.Linear(WIDTH, 5)
        self.blocks = torch.nn.ModuleList(parts)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + F.gelu(self.up(x))


class Ignoring(Mlp):
    def forward(self, x, _):
        return super().forward(x)


class Experts(torch.nn.Module):
    """Each gets the rows of all samples that are its own."""

    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(WIDTH, 2)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        of, y = self.router(x).argmax(-1), torch.zeros_like(x)
        for at, expert in enumerate(self.experts):
            y[of == at] = expert(x[of == at])
        return x + y


class Numbered(torch.nn.Module):
    """The first rows of a table, as many as there are."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(64, WIDTH))

    def forward(self, x):
        return x + self.table[:x.shape[1]]


class Taps(torch.nn.Module):
    def __init__(self, taps=3):
        super().__init__()
        self.conv = torch.nn.Conv1d(WIDTH, WIDTH, taps, padding=taps // 2)

    def forward(self, x):
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.GroupNorm(4, WIDTH)

    def forward(self, x):
        return x + self.norm(x.transpose(1, 2)).transpose(1, 2)


class Batched(torch.nn.Module):
    def __init__(self, norm=torch.nn.BatchNorm1d):
        super().__init__()
        self.norm = norm(WIDTH)

    def forward(self, x):
        return x + self.norm(x.transpose(1, 2)).transpose(1, 2)


class Summed(Batched):
    """Which mixes rows by itself, too."""

    def forward(self, x):
        return super().forward(x) + x.cumsum(1)


class Pooled(Batched):
    def forward(self, x):
        return x + self.norm(x.mean(1)).unsqueeze(1)


class Near(torch.nn.Module):
    """Taps, with a norm of what they make, or of a text beside."""

    def __init__(self):
        super().__init__()
        self.taps, self.batched = Taps(), Batched()

    def forward(self, x, text=None):
        x = self.taps(x)
        return self.batched(x) if text is None else x + self.batched(text).mean(1, keepdim=True)


class Sums(torch.nn.Module):
    def forward(self, x):
        return x.cumsum(1)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask=None):
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


class Keeping(Mlp):
    """A loss beside its result."""

    def forward(self, x):
        y = super().forward(x)
        self.beside = y.pow(2).mean()
        return y


class Counting(torch.nn.Module):
    """A shape made of a number."""

    def __init__(self):
        super().__init__()
        self.mlp = Mlp()

    def forward(self, x, rows):
        return self.mlp(x).reshape(x.shape[0], *rows, WIDTH) if isinstance(rows, tuple) else self.mlp(x).reshape(
            x.shape[0], rows, WIDTH)


class Counted(Rows):
    def __init__(self, *parts, is_tuple=False):
        super().__init__(*parts)
        self.is_tuple = is_tuple

    def forward(self, x):
        s, x = x.shape[1], self.first(x)
        for block in self.blocks:
            x = block(x, (s,) if self.is_tuple else s)
        return self.last(x)


class Placed(Rows):
    """Code between modules numbers rows, or brings them back that went round."""

    def __init__(self, *parts, way):
        super().__init__(*parts)
        self.way, self.table = way, torch.nn.Embedding(64, WIDTH)

    def forward(self, x):
        x = self.first(x)
        round_ = x
        x = self.blocks[0](x)
        if self.way == "number":
            x = x + self.table(torch.arange(x.shape[1]))
        elif self.way == "mean":
            x = x - x.mean(1, keepdim=True)
        elif self.way == "round":
            x = self.blocks[1](x) + round_
        return self.last(self.blocks[-1](x))


class Masked(Rows):
    def forward(self, x, mask):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, mask)
        return self.last(x)


class Cross(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x, text):
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in (self.q(x), *self.kv(text).chunk(2, -1)))
        return x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Folded(torch.nn.Module):
    """Of rows (t 7) each less the mean of all t, or of the seven."""

    def __init__(self, over):
        super().__init__()
        self.over, self.mlp = over, Mlp()

    def forward(self, x):
        x = x.unflatten(1, (-1, 7))
        return self.mlp((x - x.mean(self.over, keepdim=True)).flatten(1, 2))


class Lit(torch.nn.Module):
    """Some rows count less, as a mask says."""

    def __init__(self):
        super().__init__()
        self.mlp = Mlp()

    def forward(self, x, mask):
        return self.mlp(x) * mask[..., None]


def ends(*more):
    return [("blocks.0", Split("x", "b s c", "s")), *more, ("last", Gather("output", "b s o", "s"))]


def to_channels(*more):
    """Rows for channels in the first block."""
    return [("blocks.0", (Split("x", "b s c", "s"), Switch("output", "b s c", "s", "c"))), *more]


def folded():
    return [("blocks.0", Split("x", "b (t 7) c", "t")), ("last", Gather("output", "b (t 7) o", "t"))]


X, FOLDED, TEXT = torch.randn(2, 11, 3), torch.randn(2, 42, 3), torch.randn(2, 5, WIDTH)
MASK = (torch.arange(22) % 3 > 0).float().reshape(2, 11)
#: a model and its arguments, a plan, words of the fault, its module
FAULTS = {
    "a mean": (Rows(Mlp(), Mean()), (X,), ends(), "mixes rows of s", "blocks.1"),
    "taps": (Rows(Mlp(), Taps()), (X,), ends(), "Halo('input', 'b _ s', 's', 1) at", "blocks.1.conv"),
    "too few taps": (Rows(Mlp(), Taps(5)), (X,), ends(("blocks.*.conv", Halo("input", "b c s", "s", 1))),
                     "mixes rows of s", "blocks.1.conv"),
    "norm": (Rows(Mlp(), Normed()), (X,), ends(), "Sums('s') at", "blocks.1.norm"),
    "batches": (Rows(Mlp(), Batched()), (X,), ends(), "(BatchNorm1d) is in training, where it takes means over rows "
                "of s", "blocks.1.norm"),
    "batches by sums": (Rows(Mlp(), Batched()), (X,), ends(("blocks.*.norm", ht.Sums("s"))), "model.eval(), or",
                        "blocks.1.norm"),
    "batches in a halo": (Rows(Mlp(), Near()), (X,), ends(("blocks.1", Halo("x", "b s c", "s", 1))), "takes means over "
                          "rows of s", "blocks.1.batched.norm"),
    "batches beside": (Rows(Batched(), Mlp(), Mlp()), (X,), [
        (f"blocks.{at}", (Split("x", "b s c", "s"), Gather("output", "b s c", "s"))) for at in (1, 2)],
        "undo one another", "blocks.1"),
    "sums of nothing": (Rows(Mlp()), (X,), ends(("blocks.0.up", ht.Sums("s"))), "called no group_norm", "blocks.0.up"),
    "sums": (Rows(Mlp(), Sums()), (X,), ends(), "(causal)", "blocks.1"),
    "attention": (Rows(Attention()), (X,), ends(), "Attend('s') at 'blocks.0'", "blocks.0"),
    "numbered": (Rows(Mlp(), Numbered()), (X,), ends(), "by their number", "blocks.1"),
    "numbered between": (Placed(Mlp(), Mlp(), way="number"), (X,), ends(), "numbers rows of s", "table"),
    "mean between": (Placed(Mlp(), Mlp(), way="mean"), (X,), ends(), "mixes or numbers rows of s", "blocks.1"),
    "round": (Placed(Mlp(), Mlp(), way="round"), (X,), ends(), "needs s as it is on one rank", "blocks.1"),
    "no gather": (Rows(Mlp()), (X,), ends()[:-1], "Split without Gather", "last"),
    "gather of another": (Rows(Mlp()), (X,), [*ends()[:-1], ("last", Gather("output", "b o s", "s"))],
                          "(Linear): Gather('output', 'b o s', 's'): 'b o s'", "last"),
    "mask": (Masked(Lit()), (X, MASK), ends(), "'mask' of 'blocks.0' goes round the split", "blocks.0"),
    "mask of other dims": (Masked(Lit()), (X, MASK), ends(("blocks.*", Split("mask", "s b", "s"))), "'s b'",
                           "blocks.0"),
    "kept": (Rows(Keeping()), (X,), ends(), "keeps 'beside'", "blocks.0"),
    "kept whole": (Rows(Mlp(), Keeping()), (X,), [("blocks.0", (Split("x", "b s c", "s"),
                                                                Gather("output", "b s c", "s")))],
                   "counts 3 times", "blocks.1"),
    "an extent": (Counted(Counting()), (X,), ends(), "Extent('rows', 's')", "blocks.0"),
    "an extent in a tuple": (Counted(Counting(), is_tuple=True), (X,), ends(), "Extent('rows.0', 's')", "blocks.0"),
    "no such module": (Rows(Mlp()), (X,), ends(("block.*", Attend("s"))), "no module of Rows is called 'block.*'", ""),
    "no such argument": (Rows(Mlp()), (X,), ends(("blocks.0.up", Split("x", "b s c", "s"))), "has no argument 'x'", ""),
    "attends by nothing": (Rows(Mlp()), (X,), ends(("blocks.0.up", Attend("s"))), "scaled_dot", "blocks.0.up"),
    "twice": (Rows(Mlp()), (X,), [*ends(), ends()[0]], "the plan has 'blocks.0' twice", ""),
    "no step": (Rows(Mlp()), (X,), ends(("blocks.0.up", 3)), "has the step 3", ""),
    "another dim": (Rows(Attention()), (X,), ends(("blocks.*", Attend("t"))), "the extent of 't' is not known",
                    "blocks.0"),
    "cut twice": (Rows(Mlp(), Mlp()), (X,), ends(("blocks.1", Split("x", "b s c", "s"))), "is cut here", "blocks.1"),
    "to channels": (Rows(Mlp(), Mlp(), Mlp()), (X,), to_channels(("blocks.1", Switch("output", "b s c", "c", "s")),
                                                                 ends()[-1]), "cuts c, which has no rows", "blocks.0"),
    "to channels, other numbers": (Rows(Mlp(), torch.nn.Softmax(-1)), (X,), to_channels(
        ("blocks.1", Gather("output", "b s c", "c"))), "'blocks.1' (Softmax) wants all of it", "blocks.0"),
    "split channels": (Rows(Mlp()), (X,), [("blocks.0", (Split("x", "b s c", "c"), Gather("output", "b s c", "c")))],
                       "Cut a dim of rows in its place", "blocks.0"),
    "gathered twice": (Rows(Mlp(), Mlp()), (X,), ends(("blocks.1", Gather("output", "b s c", "s"))),
                       "at 'blocks.1' has made s whole before: leave one of the two out", "last"),
    "extent of a tensor": (Rows(Mlp()), (X,), ends(("blocks.0.up", Extent("input", "s"))), "Split is for tensors",
                           "blocks.0.up"),
    "text cut": (Masked(Cross()), (X, TEXT), [("blocks.0", (Split("x", "b s c", "s"), Split("text", "b l c", "l"))),
                                              ends()[-1]], "Leave it out: every rank has all of them", "blocks.0"),
    "text attended": (Masked(Cross()), (X, TEXT), [("blocks.0", (Split("x", "b s c", "s"), Attend("s"))), ends()[-1]],
                      "keys are of a text that every rank has, leave it out", "blocks.0"),
    "rows of rows": (Rows(Mlp(), Folded(1)), (FOLDED,), folded(), "mixes rows of t", "blocks.1"),
    "there and back": (Rows(Mlp(), Mlp()), (X,), ends(("blocks.1", (Gather("x", "b s c", "s"),
                                                                    Split("x", "b s c", "s")))),
                       "undo one another", "blocks.1"),
    "whole between": (Rows(Mlp(), Mlp(), Mlp()), (X,), ends(
        ("blocks.1", Gather("x", "b s c", "s")), ("blocks.2", Split("x", "b s c", "s"))), "undo one another",
        "blocks.1"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults(name):
    model, given, plan, said, where = FAULTS[name]
    faults = ht.lint(model, plan, *given)
    print(*faults)
    assert faults and faults[0].module == where and said in str(faults[0]), (where, [str(fault) for fault in faults])
    assert len(faults) == 1 or name == "kept whole", [str(fault) for fault in faults]  # which sends more, too
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()) and model.training


def test_all_faults_of_a_pass_are_told():
    model = Rows(Mlp(), Mean(), Attention(), Taps(), Normed(), Numbered(), Mlp())
    faults = ht.lint(model, ends(), X)
    print(*faults, sep="\n")
    wanted = ["blocks.1", "blocks.2", "blocks.3.conv", "blocks.4.norm", "blocks.5"]
    assert [fault.module for fault in faults] == wanted, [str(fault) for fault in faults]


@pytest.mark.parametrize("steps", ((), (("blocks.1", Halo("x", "b s c", "s", 1)),)))
def test_what_a_norm_in_training_does_not_hide(steps):
    """A module around it that mixes rows, which would go wrong in eval mode, too."""
    model = Rows(Mlp(), Summed(), Batched())
    told = {is_training: [fault.module for fault in ht.lint(model.train(is_training), ends(*steps), X)]
            for is_training in (True, False)}
    assert told == {True: ["blocks.1.norm", "blocks.2.norm", "blocks.1"], False: ["blocks.1"]}
    assert not model.training


RIGHT = {
    "rows": (Rows(Mlp(), Mlp()), (X,), ends()),
    "attention": (Rows(Attention(), Mlp()), (X,), ends(("blocks.0", (Split("x", "b s c", "s"), Attend("s"))))[1:]),
    "mean in the whole": (Rows(Mlp(), Mean()), (X,), [("blocks.0", (Split("x", "b s c", "s"),
                                                                    Gather("output", "b s c", "s")))]),
    "mask": (Masked(Lit()), (X, MASK), ends(("blocks.*", Split("mask", "b s", "s")))),
    "extent": (Counted(Counting()), (X,), ends(("blocks.*", Extent("rows", "s")))),
    "neighbours": (Rows(Mlp(), Taps(), Mlp()), (X,), ends(("blocks.*.conv", Halo("input", "b c s", "s", 1)))),
    "sums": (Rows(Mlp(), Normed(), Mlp()), (X,), ends(("blocks.*.norm", ht.Sums("s")))),
    "rows of rows": (Rows(Mlp(), Folded(2)), (FOLDED,), folded()),
    "means that were learned": (Rows(Mlp(), Batched().eval()), (X,), ends()),
    "batches of the whole": (Rows(Mlp(), Batched()), (X,), [("blocks.0", (Split("x", "b s c", "s"),
                                                                          Gather("output", "b s c", "s")))]),
    "batches between": (Rows(Mlp(), Batched(), Mlp()), (X,), ends(
        ("blocks.1", (Gather("x", "b s c", "s"), Split("output", "b s c", "s"))))),
    "batches of a text in a halo": (Masked(Near()), (X, TEXT), [
        ("blocks.0", (Split("x", "b s c", "s"), Halo("x", "b s c", "s", 1))), ends()[-1]]),
    "text": (Masked(Cross()), (X, TEXT), ends()),
    "an argument that nobody uses": (Masked(Ignoring()), (X, MASK), ends()),
    "experts": (Rows(Mlp(), Experts()), (X,), ends()),
    "numbers": (Rows(Mlp(), Numbered(), Mlp()), (X,), ends(("blocks.1", ht.Numbered("x", "b s c", "s")))),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_plans(name):
    model, given, plan = RIGHT[name]
    assert ht.lint(model, plan, *given) == [] and ht.prove(model, plan, *given)


@pytest.mark.parametrize("part", (Taps, Attention))
def test_batch_norms_in_training_get_the_whole(part):
    torch.manual_seed(0)
    model = Rows(part(), Batched(), Mlp())
    state = copy.deepcopy(model.state_dict())
    found = ht.explore(model, X)
    assert found["blocks.1.norm"].dims["s"].kind == "reduction" and found["blocks.1"].dims["b"].kind == "mixes"
    assert any("'blocks.1.norm' (batch norms) in training" in note and "model.eval()" in note for note in found.notes)
    plan = found.plan(model, "[sp=3]")
    assert ht.lint(model, plan, X, found=found) == [] and plan.prove(model, X, ranks=3)
    proof = ht.prove(model, [each for each in plan.steps if not each[0].startswith("blocks.1")], X)
    assert not proof and proof.worst.startswith("blocks.1"), proof
    assert all(torch.equal(x, state[name]) for name, x in model.state_dict().items()) and model.blocks[1].norm.training
    found = ht.explore(model.eval(), X)  # the means that it has learned
    assert found["blocks.1.norm"].free == ("b", "s") and found.notes == []
    assert not any(name.startswith("blocks.1") for name, _ in found.plan(model, "[sp=3]").steps)


def test_one_value_per_channel_in_training():
    model = Rows(Mlp(), Pooled())
    for work in (ht.explore, lambda *given: ht.prove(given[0], ends(), given[1]),
                 lambda *given: ht.lint(given[0], ends(), given[1])):
        with pytest.raises(heddle.ArgumentError, match=r"'blocks.1.norm' \(BatchNorm1d\) is in training.* model.eval"):
            work(model.train(), X[:1])
    assert ht.explore(model, X)["blocks.1.norm"].mixed == ("b",)
    assert ht.explore(model.eval(), X[:1])["blocks.1"].dims["s"].kind == "reduction"


def test_planned_in_training_and_explored_in_eval_mode():
    model = Rows(Mlp(), Batched())
    found = ht.explore(model.eval(), X)
    with pytest.raises(heddle.UnsupportedError, match="'blocks.1.norm' is in training.* model.eval"):
        found.plan(model.train(), "[sp=3]")
    assert found.plan(model.eval(), "[sp=3]")


def test_norms_of_one_kind_in_training_and_not():
    model = Rows(Batched(), Batched())
    model.blocks[0].eval()
    found = ht.explore(model, X)
    assert found["blocks.0.norm"].free == ("b", "s") and found["blocks.1.norm"].free == (), found


def test_switched_plans():
    model, given = made()
    found = ht.explore(model, **given)
    plan = found.plan(model, "[sp=3]")
    assert ht.lint(model, plan, found=found, **given) == []
    wanted = "last", "space.0", "time.0", "time.0", "space.1", "space.0", "time.0", "space.1"
    for (steps, _), where in zip(planted(plan), wanted):
        faults = ht.lint(model, steps, found=found, **given)
        print(*faults)
        assert faults and faults[0].module == where, (where, *map(str, faults))
    for name, old, new, said, where in (
            ("time.0", "(b w) _", "(w b) _", "Write '(b w) _'", "time.0"),
            ("space.0", "(b h) w _", "(h b) w _", "Write '(b h) w _'", "space.0")):
        steps = [(each, tuple(type(step)(**{**vars(step), "dims": new if step.dims == old else step.dims}) for step in (
            value if isinstance(value, tuple) else (value,))) if each == name else value) for each, value in plan.steps]
        faults = ht.lint(model, steps, found=found, **given)
        assert faults and faults[0].module == where and said in str(faults[0]), [str(fault) for fault in faults]
    more = [(name, (*steps, Switch("output", "(b w) h _", "h", "w"), Switch("output", "(b w) h _", "w", "h"))
             if name == "time.0" else steps) for name, steps in plan.steps]
    (fault,) = ht.lint(model, more, found=found, **given)
    assert "undo one another" in fault.sentence and fault.module == "time.0", fault
    at = dict(plan.steps)
    whole = [*at["space.0"][:-1], Gather("output", "(b h) w _", "h")], [Split("x", "(b w) h _", "w"), *at["time.0"]]
    steps = [(name, dict(zip(("space.0", "time.0"), map(tuple, whole))).get(name, each)) for name, each in plan.steps]
    (fault,) = ht.lint(model, steps, found=found, **given)
    assert fault.module == "space.0" and "are enough" in fault.sentence and "Switch" in fault.mend, fault


class InAnyOrder(torch.nn.Linear):
    """Products of other numbers of rows are summed in another order, as devices do."""

    def forward(self, x):
        order = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(x.shape[1]))
        return F.linear(x[..., order], self.weight[:, order], self.bias)


class Sines(torch.nn.Module):
    """Weights as training begins; of a gain of 1 the smallest difference would be a large one few layers later."""

    def __init__(self):
        super().__init__()
        self.up = InAnyOrder(WIDTH, WIDTH)
        torch.nn.init.normal_(self.up.weight, std=0.02)

    def forward(self, x):
        return x + (8 * self.up(x)).sin()


@pytest.mark.parametrize("parts,where", (([], []), ([Mean()], ["blocks.6"])))
def test_layers_that_blow_up_roundings_have_no_faults_of_their_own(parts, where):
    torch.manual_seed(0)
    model = Rows(*(Sines() for _ in range(6)), *parts)
    assert [fault.module for fault in ht.lint(model, ends(), X)] == where


def test_what_is_refused():
    model, plan = Rows(Mlp()), ends()
    for words, call in (("the model is a int", lambda: ht.lint(3, plan, X)),
                        ("ranks is 1, wanted a number of at least 2", lambda: ht.lint(model, plan, X, ranks=1))):
        with pytest.raises(heddle.ArgumentError) as error:
            call()
        assert words in str(error.value)
    with pytest.raises(RuntimeError):
        ht.lint(model, plan, X[..., :2])
