"""A schedule that is put on a model is followed, stage by stage, or refused: layouts, methods and ends."""
import os
import pathlib
import subprocess
import types

import pytest
import torch
from ranks import fork
from test_torch import COMMON
from test_torch_explore_models import WIDTH, Attention, Classified, Joint, Mlp
from test_torch_prove import hidden

import heddle
import heddle.diffusers
import heddle.torch as ht
from heddle.torch import Attend
from heddle.torch.planning.attended import _method

CUT = "blocks.0=s@sp/ulysses;blocks.1=s@sp/ulysses"
SIZES = dict(sizes="b=1", methods="", slack_percent=300)


class Rows(torch.nn.Module):
    """Blocks that attend over all rows; its result is as wide as what is between them."""

    def __init__(self, count=2):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Joint() for _ in range(count))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Axis(torch.nn.Module):
    """Attention over one of the dims of [b, h, w, c]."""

    def __init__(self, axis):
        super().__init__()
        self.attention, self.mlp, self.axis = Attention(), Mlp(), axis

    def forward(self, x):
        x = x + self.attention(x.movedim(self.axis, 2)).movedim(2, self.axis)
        return x + self.mlp(x)


class Axes(Rows):
    def __init__(self):
        super().__init__(0)
        self.blocks = torch.nn.ModuleList(Axis(1 + at % 2) for at in range(4))


class Deeper(Rows):
    def __init__(self):
        super().__init__(3)


class Heads(Attention):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, *shape[-2:])
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2)).reshape(shape)


class Narrow(Rows):
    """Its result is a fourth as wide, behind the stages or in the last of them."""

    def __init__(self, is_stage):
        super().__init__()
        last = torch.nn.Linear(WIDTH, WIDTH // 4)
        self.last = torch.nn.ModuleList([last]) if is_stage else torch.nn.Sequential(last)

    def forward(self, x):
        return self.last[0](super().forward(x))


def rows():
    torch.manual_seed(0)
    return Rows(), dict(x=torch.randn(1, 11, WIDTH))


def axes():
    torch.manual_seed(0)
    return Axes(), dict(x=torch.randn(1, 7, 11, WIDTH))


def two():
    return rows()[0], dict(x=torch.randn(2, 11, WIDTH))


def tokens():
    torch.manual_seed(0)
    return Classified(), dict(pixels=torch.randn(1, 6, 3, 20, 20))


def deeper():
    return Deeper(), rows()[1]


#: what is forced, and what the plan says
CASES = (
    (rows, "blocks.0=s@sp/gather-kv;blocks.1=s@sp/ring", "gather-kv in 1 of 2 stages and ring in 1 of 2 stages, as"),
    (rows, "blocks.0=s@sp/ring;blocks.1=s@sp/ring", "ring in 2 of 2 stages, as the schedule has it"),
    (rows, "blocks.0=*;blocks.1=*", "nothing is cut in blocks"),
    (rows, "blocks.0=s@sp/ulysses;blocks.1=*", "s is cut by ulysses in blocks; nothing is cut in blocks"),
    (axes, "blocks.0=w@sp;blocks.1=h@sp;blocks.2=w@sp;blocks.3=*", "w is cut in blocks; h is cut in blocks; nothing"),
    (axes, "blocks.0=h@sp/ulysses;blocks.1=h@sp;blocks.2=h@sp/ring;blocks.3=h@sp", "h is cut by ulysses in blocks; h "),
    (axes, "blocks.0=h@sp/gather-kv;blocks.1=w@sp/ulysses;blocks.2=w@sp;blocks.3=*", "h is cut by gather-kv in blocks"))


@pytest.mark.parametrize("made,force,why", CASES)
def test_every_stage_has_what_its_schedule_says(made, force, why):
    model, given = made()
    found = ht.explore(model, **given)
    for ranks in (2, 3):
        mesh = f"[sp={ranks}]"
        schedule = heddle.plan(found.to_yaml(), mesh, force=force, **SIZES)
        plan = found.plan(model, mesh, schedule=schedule)
        proof = plan.prove(model, ranks=ranks, **given)
        assert proof and plan.schedule is schedule and why in plan.why, str(plan)
        assert proof.bytes_total == schedule.bytes_total, f"{plan}\n{proof}"
        seen = found.schedule(model, plan, mesh, sizes="b=1")
        have = [[(stage.name, stage.layout, stage.method) for stage in each.stages] for each in (schedule, seen)]
        assert have[0] == have[1] and seen.bytes_total == schedule.bytes_total, (have, str(plan))


def test_ranks_have_what_is_planned(tmp_path):
    fork(tmp_path, COMMON + f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from test_torch_schedules import CASES, SIZES

with heddle.Comm.open() as comm:
    for made, force, why in (CASES[0], CASES[2], CASES[6]):
        model, given = made()
        whole = model(**given)
        schedule = heddle.plan(ht.explore(model, **given).to_yaml(), comm.mesh, force=force, **SIZES)
        handle = ht.parallelize(model, schedule, comm)
        assert (model(**given) - whole).abs().max() <= 1e-5 and why in handle.why, handle.why
        handle.remove()
print("ok", flush=True)
""", 3)


#: On which a product of a few rows takes longer than their bytes
SLOW = """
machine: slow
source: made up
ranks: 4
levels: [{name: core, size: 4, link: bus}]
work:
  product: {f32: {start_s: 1e-6, rates: 1e7}}
  attention: {f32: {start_s: 1e-6, rates: 1e7}}
  memory: {start_s: 1e-6, rates: 1e9}
links:
  bus: {all_to_all: [{ranks: 4, start_s: 1e-6, rates: 1e8}], ring: [{start_s: 1e-6, rates: 9e7}]}
"""


@pytest.mark.parametrize("made,blocks,ranks,wanted,why", (
    (rows, "blocks", 4, ["ulysses", "gather-kv"], "ulysses in 1 of 2 stages and gather-kv in 1 of 2 stages, as"),
    (axes, "blocks", 2, ["local", "ring", "local", "ulysses"], "ring in 1 of 2 stages and ulysses in 1 of 2 stages"),
    (tokens, "layers", 4, ["gather-kv"] * 2, "; the fewest seconds on slow are those of ulysses in 'layers.0' and "
     "gather-kv in 'layers.1', which no plan has: the schedule of classified has 'layers.0' by ulysses: 1 rows in")))
def test_a_mix_of_methods_that_a_machine_wants_is_followed(tmp_path, made, blocks, ranks, wanted, why):
    machine, (model, given) = tmp_path / "slow.yaml", made()
    machine.write_text(SLOW)
    getattr(model, blocks)[1].attention = Heads(1)
    found = ht.explore(model, **given)
    plan = found.plan(model, f"[sp={ranks}]", machine=machine)
    assert plan.proof and why in plan.why and [stage.method for stage in plan.schedule.stages] == wanted, str(plan)
    attends = [step.method for _, step in plan.steps if isinstance(step, Attend)]
    assert attends == [method for method in wanted if method != "local"], str(plan)
    if made is not tokens:
        best = heddle.plan(found.to_yaml(), f"[sp={ranks}]", machine=machine, sizes="b=1", methods="")
        assert plan.schedule.predicted_s == best.predicted_s and f"predicts {best.predicted_s:.3g} s by it" in plan.why
        assert "by it on slow" not in found.plan(model, f"[sp={ranks}]", machine=machine, method="gather-kv").why
    assert plan.prove(model, ranks=ranks, **given)


class Sorted(Rows):
    """Between the blocks rows are sorted, by a module of no list."""

    def __init__(self):
        super().__init__()
        self.adapter = Sorting()
        self.blocks[1].attention = Heads(1)

    def forward(self, x):
        return self.blocks[1](self.adapter(self.blocks[0](x)))


class Sorting(torch.nn.Module):
    def forward(self, x):
        return x + x.sort(1)[0]


def test_a_mix_of_which_no_plan_holds_is_told(tmp_path):
    machine = tmp_path / "slow.yaml"
    machine.write_text(SLOW)
    torch.manual_seed(0)
    model, x = Sorted(), torch.randn(1, 11, WIDTH)
    plan = ht.explore(model, x).plan(model, "[sp=4]", machine=machine)
    assert plan.proof and ("; the fewest seconds on slow are those of ulysses in 'blocks.0' and gather-kv in 'blocks.1'"
                           ", which no plan has: the best does not hold on 2 ranks: ") in plan.why, str(plan)


def test_halos_and_sums_are_no_methods_of_attention():
    for method in ("halo", "sums"):
        schedule = types.SimpleNamespace(stages=[types.SimpleNamespace(method=method)], machine="slow", predicted_s=1.0)
        assert [_method(None, schedule, "auto", heads, 4)[0] for heads in (3, 4)] == ["gather-kv", "ulysses"], method


@pytest.mark.parametrize("is_stage", (False, True))
def test_bytes_that_go_are_told_where_the_schedule_counts_others(is_stage):
    torch.manual_seed(0)
    model, given = Narrow(is_stage), dict(x=torch.randn(2, 11, WIDTH))
    plan = ht.explore(model, **given).plan(model, "[sp=4]")
    gathered = 2 * 2 * 11 * WIDTH * 4  # by the two other ranks of the proof, each row
    sent, counted = plan.proof.bytes_total, plan.proof.bytes_total + gathered * 3 // 4
    whose = ", of 16 channels: 'last.0' has 4" if is_stage else ""
    assert plan.why.endswith(f"; of the extents that were explored {sent} bytes go on 3 ranks, and the schedule counts "
                             f"{counted}{whose}"), str(plan)
    model, given = rows()
    assert "bytes go" not in ht.explore(model, **given).plan(model, "[sp=4]").why


@pytest.mark.parametrize("force", (None, "blocks.0=*;blocks.1=*", "blocks.0=s@sp/ulysses;blocks.1=s@sp/ring"))
def test_a_method_that_is_none_is_refused(force):
    model, given = rows()
    found = ht.explore(model, **given)
    schedule = heddle.plan(found.to_yaml(), "[sp=2]", force=force, **SIZES) if force else None
    for asked, words in ((dict(method="bogus"), "no attention method is called 'bogus'"),
                         (dict(method=None), "method is None"), (dict(method=3), "method is 3"),
                         (dict(method="local"), "method is local, which is attention of a rank's rows alone"),
                         (dict(saved_forwards="a"), "saved_forwards is 'a'")):
        with pytest.raises(heddle.Error) as error:
            found.plan(model, "[sp=2]", schedule=schedule, **asked)
        assert words in str(error.value), error.value


def test_the_method_that_is_asked_for_is_named_before_those_of_a_schedule():
    (model, given), (other, shown) = hidden(), hidden(True)
    force = "blocks.0=s@sp/ring;blocks.1=s@sp/ulysses"
    schedule = heddle.plan(ht.explore(model, **given).to_yaml(), "[sp=2]", force=force, **SIZES)
    found = ht.explore(other, **shown)
    for method, named in (("usp", "usp"), ("ulysses", "ring"), ("auto", "ring")):
        with pytest.raises(heddle.ArgumentError) as error:
            found.plan(other, "[sp=2]", schedule=schedule, method=method)
        assert f"method is '{named}', and Hidden attends with a mask" in str(error.value), error.value


def test_a_method_that_is_asked_for_is_that_of_all():
    model, given = rows()
    found = ht.explore(model, **given)
    schedule = heddle.plan(found.to_yaml(), "[sp=2]", force="blocks.0=s@sp/ulysses;blocks.1=s@sp/ring", **SIZES)
    plan = found.plan(model, "[sp=2]", schedule=schedule, method="gather-kv")
    assert plan.proof and "gather-kv in 2 of 2 stages, as asked for" in plan.why, str(plan)
    assert [stage.method for stage in plan.schedule.stages] == ["gather-kv"] * 2, str(plan)


@pytest.mark.parametrize("planned,asked", (("ulysses", "ring"), ("ring", "ulysses"), ("gather-kv", "ring")))
def test_a_method_that_is_asked_for_beside_a_whole_stage_has_a_schedule(planned, asked):
    model, given = rows()
    found = ht.explore(model, **given)
    schedule = heddle.plan(found.to_yaml(), "[sp=2]", force=f"blocks.0=s@sp/{planned};blocks.1=*", **SIZES)
    plan = found.plan(model, "[sp=2]", schedule=schedule, method=asked)
    assert plan.proof and "has no schedule" not in plan.why, str(plan)
    assert [(stage.layout, stage.method) for stage in plan.schedule.stages] == [("s@sp", asked), ("*", "local")]
    assert plan.schedule.bytes_total == plan.prove(model, ranks=2, **given).bytes_total, str(plan)


@pytest.mark.parametrize("made,of,asked,words", (
    (rows, rows, dict(force=CUT, epilogue="any"), "ends with s@sp behind 'blocks.1': what a model returns is whole on"),
    (rows, rows, dict(force=CUT, epilogue="s@sp"), "wanted heddle.plan without epilogue"),
    (axes, axes, dict(force="blocks.0=*", prologue="h@sp"), "begins with h@sp and has 'blocks.0' *: what a model is"),
    (two, two, dict(sizes="", force="blocks.0=b@sp"), "has 'blocks.0' b@sp by local: samples are not cut here"),
    (tokens, tokens, dict(force=CUT.replace("blocks", "layers")),
     "has 'layers.0' by ulysses: 1 rows in front are alike on every"),
    (rows, deeper, {}, "has the stage 'blocks.2', which Rows has not: wanted one of heddle.plan(found.to_yaml(), ...)"),
    (deeper, rows, {}, "has no stage 'blocks.2', which Deeper has"),
    (rows, rows, dict(repeat=2), "has 2 times the stage 'blocks.0', which Rows has")))
def test_what_cannot_be_followed_is_refused(made, of, asked, words):
    (model, given), (other, shown) = made(), of()
    schedule = heddle.plan(ht.explore(other, **shown).to_yaml(), "[sp=2]", **{**SIZES, **asked})
    with pytest.raises(heddle.Error) as error:
        ht.explore(model, **given).plan(model, "[sp=2]", schedule=schedule)
    assert words in str(error.value), error.value


def test_a_report_is_read_as_its_schedule(tmp_path):
    model, given = rows()
    found = ht.explore(model, **given)
    file = tmp_path / "rows.yaml"
    file.write_text(found.to_yaml())
    asked = [f"{os.environ['HEDDLE_BUILD']}/heddle", "plan", str(file), "--mesh", "sp=2", "--size", "b=1", "--force",
             "blocks.0=s@sp/gather-kv;blocks.1=s@sp/ring"]
    report, saved = (subprocess.run([*asked, *form], capture_output=True, text=True, check=True, timeout=60).stdout
                     for form in (["--json"], ["--output", "-"]))
    assert "heddle-plan-1" in report and "heddle-plan-1" not in saved
    read = [heddle.Schedule.parse(text) for text in (report, saved)]
    assert read[0].stages == read[1].stages and read[0].bytes_total == read[1].bytes_total > 0
    (tmp_path / "report.json").write_text(report)
    plan = found.plan(model, "[sp=2]", schedule=heddle.Schedule.load(tmp_path / "report.json"))
    assert [step.method for _, step in plan.steps if isinstance(step, Attend)] == ["gather-kv", "ring"], str(plan)
    for text, words in (('{"schema": "heddle-plan-1"}', "schedule:1:1: a report of heddle-plan-1 has no 'schedule'"),
                        (report.replace('"heddle-schedule-1"', '"heddle-plan-1"'), "'schema' is 'heddle-plan-1'")):
        with pytest.raises(heddle.ParseError) as error:
            heddle.Schedule.parse(text)
        assert words in str(error.value), error.value


def test_a_model_that_is_registered_needs_no_configuration():
    model, given = rows()
    heddle.diffusers.register(Rows, lambda model, method, saved: {
        "blocks.0": ht.Split("x", "b s c", "s"), "blocks.*": Attend("s", method, saved),
        "blocks.1": ht.Gather("output", "b s c", "s")})
    plan = heddle.diffusers.plan(model, "[sp=2]", "ring")
    assert "ring, as asked for" in plan.why and plan.prove(model, **given), str(plan)
    with pytest.raises(heddle.ArgumentError, match=r"the mesh is \[r=2 u=2\], wanted one axis: \[sp=4\]"):
        heddle.diffusers.plan(model, "[r=2 u=2]", "ring")  # which parallelize refuses, too
    for kind, asked, words in (
            (heddle.ArgumentError, {}, "Rows has no config.num_attention_heads, by which"),
            (heddle.UnsupportedError, dict(machine="8xh100-nvlink"), "no machine can be asked for Rows")):
        with pytest.raises(kind) as error:
            heddle.diffusers.plan(model, "[sp=2]", **asked)
        assert words in str(error.value), error.value
