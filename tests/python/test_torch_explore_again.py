"""Plans and schedules, each made of the other; what a plan is asked with and cannot be; modules that are shared;
tables and masks beside rows that are cut along one dim."""
import pytest
import torch
from explore_kit import seeded  # noqa: F401
from test_torch_explore_models import WIDTH, Attention, Joint, Mlp, projected, together
from test_torch_prove import Block, made

import heddle
import heddle.torch as ht
from heddle.torch import Attend, Gather, Halo, Split


class Sharing(torch.nn.Module):
    """One activation for text that is pooled, [b, c], and for rows of [b, s, c]."""

    def __init__(self):
        super().__init__()
        self.act, self.blocks = torch.nn.SiLU(), torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, x, word):
        word, x = self.act(word), self.act(x)
        for block in self.blocks:
            x = block(x, word)
        return x


def test_a_module_that_is_called_with_other_axes():
    model, given = Sharing(), dict(x=torch.randn(2, 11, WIDTH), word=torch.randn(2, WIDTH))
    found = ht.explore(model, **given)
    assert found["act"].given == {"input": "b _"} and found["act"].later == ["input 'b s _'"], found["act"]
    plan = found.plan(model, "[sp=3]")
    assert plan.proof and "rows of s are cut, ulysses" in plan.why, str(plan)
    assert [(stage.layout, stage.method) for stage in plan.schedule.stages] == [("s@sp", "ulysses")] * 2


class Ended(torch.nn.Module):
    """Behind layers that mix all rows there is a list of which no module mixes any."""

    def __init__(self, is_plain):
        super().__init__()
        self.layers, self.ends = (torch.nn.ModuleList(kind() for _ in range(2)) for kind in (Joint, Mlp))
        for layer in self.layers:
            layer.attention.is_plain = is_plain

    def forward(self, x):
        for module in (*self.layers, *self.ends):
            x = module(x)
        return x


def ended():
    return Ended(False), dict(x=torch.randn(2, 11, WIDTH))


def ended_in_products():
    return Ended(True), ended()[1]


@pytest.mark.parametrize("made,method,wanted", (
    (made, "auto", ["h@sp/local", "w@sp/local"] * 2),
    (ended_in_products, "auto", ["*/local"] * 2 + ["s@sp/local"] * 2),
    (ended, "auto", ["s@sp/ulysses"] * 2 + ["s@sp/local"] * 2),
    (ended, "gather-kv", ["s@sp/gather-kv"] * 2 + ["s@sp/local"] * 2)))
def test_a_plan_is_again_that_of_its_schedule(made, method, wanted):
    model, given = made()
    found = ht.explore(model, **given)
    plan = found.plan(model, "[sp=3]", method=method)
    assert [f"{stage.layout}/{stage.method}" for stage in plan.schedule.stages] == wanted, str(plan)
    again = found.plan(model, "[sp=3]", schedule=plan.schedule)
    assert again.proof and again.steps == plan.steps, f"{plan}\n{again}"
    assert again.schedule.bytes_total == plan.schedule.bytes_total


class Taps(torch.nn.Module):
    """A convolution of rows that are normed over all of them; or those alone."""

    def __init__(self, is_near=True):
        super().__init__()
        self.norm = torch.nn.GroupNorm(4, WIDTH)
        self.last = torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1) if is_near else torch.nn.Identity()

    def forward(self, x):
        return x + self.last(self.norm(x.mT)).mT


class Nearby(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList((Taps(), Taps(False), Joint()))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_schedule_with_halos_and_sums_is_followed_or_refused():
    model, given = Nearby(), dict(x=torch.randn(2, 11, WIDTH))
    found = ht.explore(model, **given)
    for method in ("ulysses", "ring"):
        asked = dict(sizes="b=1", methods="", force=f"layers.2=/{method}")
        schedule = heddle.plan(found.to_yaml(), "[sp=2]", **asked)
        wanted = [f"s@sp/{each}" for each in ("halo", "sums", method)]
        assert [f"{stage.layout}/{stage.method}" for stage in schedule.stages] == wanted, schedule
        plan = found.plan(model, "[sp=2]", schedule=schedule)
        assert plan.proof and plan.schedule is schedule and Attend("s", method) in dict(plan.steps).values(), str(plan)
        kinds = [type(step) for _, step in plan.steps]
        assert kinds.count(Halo) == 1 and kinds.count(ht.Sums) == 2, str(plan)
        seen = found.schedule(model, plan, "[sp=2]")
        assert [f"{stage.layout}/{stage.method}" for stage in seen.stages] == wanted, seen
        assert seen.bytes_total == schedule.bytes_total > 0
    whole = heddle.plan(found.to_yaml(), "[sp=2]", sizes="b=1", methods="", slack_percent=300,
                        force="layers.0=s@sp/halo;layers.1=*/local;layers.2=s@sp/ring")
    assert [stage.layout for stage in whole.stages] == ["s@sp", "*", "s@sp"], whole
    with pytest.raises(heddle.UnsupportedError) as error:
        found.plan(model, "[sp=2]", schedule=whole)
    for words in ("has 'layers.0' s@sp by halo", "'layers.1' has s@sp by sums, and not * by local"):
        assert words in str(error.value), error.value


def test_a_schedule_that_is_not_of_the_model():
    for other, mine, words in (
            (together, projected, "has no stage 'texts.0', which Projected has"),
            (made, ended, "has no stage 'layers.0', which Ended has"),
            (projected, projected, "cuts 's' in stage 'texts.0', which has none of it")):
        model, given = mine()
        schedule = heddle.plan(ht.explore(*_shown(other)).to_yaml(), "[sp=3]", sizes="b=1")
        with pytest.raises(heddle.ArgumentError) as error:
            ht.explore(model, **given).plan(model, "[sp=3]", schedule=schedule)
        assert words in str(error.value), error.value


def _shown(made):
    model, given = made()
    return model, *given.values()


@pytest.mark.parametrize("asked,words", ((dict(machine="nosuch"), "no machine is called 'nosuch'"),
                                         (dict(schedule="x"), "the schedule is a str, wanted one of heddle.plan"),
                                         (dict(sizes=None), "sizes is None, wanted a text"),
                                         (dict(sizes="q=3"), "has no dim 'q'"),
                                         (dict(sizes="c=16,"), "sizes end with a comma")))
def test_what_the_planner_does_not_know_is_refused(asked, words):
    for model, given in (projected(), made(), ended()):
        with pytest.raises(heddle.ArgumentError) as error:
            ht.explore(model, **given).plan(model, "[sp=3]", **asked)
        assert words in str(error.value), error.value


def test_a_stage_that_is_whole_around_its_attention():
    model, given = ended()
    found = ht.explore(model, **given)
    steps = {"layers.*.attention": (Split("x", "b s _", "s"), Attend("s"), Gather("output", "b s _", "s"))}
    assert ht.prove(model, steps, **given)
    assert {stage.layout for stage in found.schedule(model, steps, "[sp=3]").stages} == {"*"}


class Turned(torch.nn.Module):
    """Rows of neighbours, times a table of rows by channels."""

    def __init__(self):
        super().__init__()
        self.near = torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x, turns):
        return x + self.near(x.mT).mT * turns.repeat(1, 2)


class Banded(torch.nn.Module):
    """Softmax in plain products, with a mask of all rows with all."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + (q @ k.mT).masked_fill(~mask, -1e9).softmax(-1) @ v


class Placed(torch.nn.Module):
    """Positions fix the number of rows, so of the table's 15 x 8 both axes are read as rows."""

    def __init__(self):
        super().__init__()
        self.places = torch.nn.Parameter(torch.randn(15, WIDTH))
        self.layers = torch.nn.ModuleList(Turned() for _ in range(2))

    def forward(self, x, turns):
        x = x + self.places
        for layer in self.layers:
            x = layer(x, turns)
        return x


class Band(torch.nn.Module):
    """No row looks at the first one, so a layer's own rows and columns of the mask reach no further than the band."""

    def __init__(self):
        super().__init__()
        self.near = torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.layers = torch.nn.ModuleList(Banded() for _ in range(2))

    def forward(self, x):
        x, at = self.near(x.mT).mT, torch.arange(x.shape[1])
        mask = ((at - at[:, None]).abs() < 3) & (at > 0)
        for layer in self.layers:
            x = layer(x, mask)
        return x


def test_a_table_by_channels_is_cut_along_one_dim():
    model, given = Placed(), dict(x=torch.randn(2, 15, WIDTH), turns=torch.randn(15, 8))
    found = ht.explore(model, **given)
    assert found["layers.0"].given == {"x": "b s _", "turns": "s s"}, found["layers.0"]
    plan = found.plan(model, "[sp=2]")
    steps = dict(plan.steps)
    assert plan.proof and isinstance(steps["layers.1.near"], Halo) and "2 by Halo" in plan.why, str(plan)
    assert Split("turns", "s _", "s") in steps["layers.0"] and ht.prove(model, plan, ranks=4, **given), str(plan)


def test_rows_beside_a_mask_of_all_rows_are_whole():
    model, given = Band(), dict(x=torch.randn(2, 23, WIDTH))
    found = ht.explore(model, **given)
    assert found["layers.0"].dims["s"].kind == "halo" and found["layers.0"].given["mask"] == "s s", found.table()
    plan = found.plan(model, "[sp=2]")
    assert plan.proof and "2 by Gather" in plan.why and "'mask'" not in str(plan), str(plan)
    assert ht.prove(model, plan, ranks=3, **given), str(plan)


class Beside(torch.nn.Module):
    """Rows of a picture and of a text, of which both are cut; they attend together."""

    def __init__(self):
        super().__init__()
        self.attention, self.linear = Attention(), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, text):
        of_text, of_x = self.attention(torch.cat([text, x], 1)).split([text.shape[1], x.shape[1]], 1)
        return x + self.linear(of_x), text + of_text


class Pictures(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.last = torch.nn.ModuleList(Beside() for _ in range(2)), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, text):
        for block in self.blocks:
            x, text = block(x, text)
        return self.last(x)


def test_a_schedule_says_what_it_does_not_count():
    model, given = Pictures(), dict(x=torch.randn(2, 11, WIDTH), text=torch.randn(2, 6, WIDTH))
    plan = ht.explore(model, **given).plan(model, "[sp=3]")
    assert [stage.layout for stage in plan.schedule.stages] == ["s@sp"] * 2 and "rows of l and s are cut" in plan.why
    assert "; the schedule's bytes are without the rows of l; " in plan.why, plan.why
    assert f" {plan.proof.bytes_total} bytes go on 3 ranks, and the schedule counts " in plan.why, plan.why
    model, given = ended()
    assert "without" not in ht.explore(model, **given).plan(model, "[sp=3]").why


class Numbers(list):
    """A list that knows more than a list."""

    def grow(self, x):
        self.append(x.shape[1])


class Sized(torch.nn.Module):
    """Takes a form and a list of another kind, and writes to it."""

    def forward(self, x, size, seen):
        seen.grow(x)
        return x * (1 + 0 * size.numel())


class OfSized(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.sized, self.last = Sized(), torch.nn.Linear(4, 4)

    def forward(self, x, size, seen):
        return self.last(self.sized(x, size, seen))


def test_kinds_of_lists_and_tuples_stay_what_they_are():
    model, x, seen = OfSized(), torch.randn(2, 7, 4), Numbers()
    found = ht.explore(model, x, x.shape, seen)
    assert found["sized"].free == ("b", "s") and seen == [], found.table()
    assert ht.prove(model, {"sized": ht.Split("x", "b s c", "s"), "last": ht.Gather("output", "b s c", "s")},
                    x, x.shape, seen) and seen == []
