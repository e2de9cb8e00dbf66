"""Plans that hold on the ranks they are asked for, and where parts are uneven; which modules get the whole."""
import heddle
import heddle.torch as ht
import pytest
import torch
import torch.nn.functional as F
from explore_kit import seeded  # noqa: F401
from heddle.torch import Attend, Extent, Gather, Halo, Split, Switch, Total

WIDTH = 16


class Attention(torch.nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Pairs(torch.nn.Module):
    """Windows of two rows, padded where rows are odd: right in even parts."""

    def __init__(self):
        super().__init__()
        self.both = torch.nn.Linear(2 * WIDTH, 2 * WIDTH)

    def forward(self, x):
        rows = x.shape[1]
        y = F.pad(x, (0, 0, 0, rows % 2)).unflatten(1, (-1, 2)).flatten(2)
        return self.both(y).unflatten(2, (2, WIDTH)).flatten(1, 2)[:, :rows]


class Block(torch.nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.attention, self.pairs, self.norm = Attention(heads), Pairs(), torch.nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.pairs(x).relu()


class Rows(torch.nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        self.blocks, self.last = torch.nn.ModuleList(blocks), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def made(rows, *kinds):
    torch.manual_seed(0)
    return Rows(*(kind() for kind in kinds)).eval(), torch.randn(2, rows, WIDTH)


@pytest.mark.parametrize("size,rows", ((2, 12), (3, 12), (4, 24), (16, 24)))
def test_a_window_that_pads_itself_has_the_whole(size, rows):
    model, x = made(rows, Block, Block)
    plan = ht.explore(model, x).plan(model, f"[sp={size}]")
    gathered = [name for name, step in plan.apart() if isinstance(step, Gather)]
    assert {"blocks.0.pairs", "blocks.1.pairs"} < set(gathered) and plan.proof, str(plan)
    for ranks, n in ((2, 12), (3, 12), (4, 12), (3, 10), (5, 13)):
        proof = plan.prove(model, torch.randn(2, n, WIDTH), ranks=ranks)
        assert proof, f"{n} rows: {proof}"


@pytest.mark.parametrize("size,rows", ((2, 11), (3, 11), (3, 35)))
def test_a_window_has_the_whole_where_only_last_parts_are_odd(size, rows):
    """6 and 5 rows, or 4, 4 and 3, begin at even rows."""
    model, x = made(rows, Block, Block)
    plan = ht.explore(model, x).plan(model, f"[sp={size}]")
    gathered = [name for name, step in plan.apart() if isinstance(step, Gather)]
    assert {"blocks.0.pairs", "blocks.1.pairs"} < set(gathered) and plan.proof, str(plan)
    for n in (13, 14):
        proof = plan.prove(model, torch.randn(2, n, WIDTH), ranks=2)
        assert proof, f"{n} rows: {proof}"


def test_a_window_has_the_whole_where_parts_are_even_on_few_ranks():
    """1680 rows begin at even ones on 2 to 8 ranks."""
    model, x = made(1680, lambda: Block(heads=1))
    plan = ht.explore(model, x[:1]).plan(model, "[sp=8]")
    gathered = [name for name, step in plan.apart() if isinstance(step, Gather)]
    assert "blocks.0.pairs" in gathered and plan.proof, str(plan)


def test_a_gather_around_a_window_is_no_waste():
    model, x = made(12, Block, Block)
    whole = Gather("x", "b s _", "s"), Split("output", "b s _", "s")
    attend = Attend("s", "ulysses")
    steps = [("blocks.0", Split("x", "b s _", "s")), *((f"blocks.{i}.attention", attend) for i in (0, 1)),
             *((f"blocks.{i}.pairs", whole) for i in (0, 1)), ("last", Gather("output", "b s _", "s"))]
    assert ht.prove(model, steps, x) and ht.lint(model, steps, x) == []


class Turned(Attention):
    """By angles of all rows, which the model makes."""

    def forward(self, x, angles):
        return x + super().forward(x * angles.cos() + x.flip(-1) * angles.sin())


class Convolved(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.taps = torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x, angles):
        return x + self.taps(x.mT).mT


class WithAngles(Rows):
    def forward(self, x):
        angles = torch.arange(x.shape[1])[:, None] * 0.2
        for block in self.blocks:
            x = block(x, angles)
        return self.last(x)


def test_rows_of_neighbours_are_fewer_bytes_than_the_whole():
    model, x = WithAngles(Convolved(), Turned()).eval(), torch.randn(2, 48, WIDTH)
    plan = ht.explore(model, x).plan(model, "[sp=4]")
    steps = plan.apart()
    assert any(isinstance(step, Halo) for _, step in steps) and plan.proof, str(plan)
    assert sum(isinstance(step, Gather) for _, step in steps) == 1, str(plan)  # at the end


class Mix(torch.nn.Module):
    def __init__(self, is_sorting):
        super().__init__()
        self.up, self.is_sorting = torch.nn.Linear(WIDTH, WIDTH), is_sorting

    def forward(self, x):
        return x + (self.up(x).sort(1)[0] if self.is_sorting else self.up(x))


class Twice(Block):
    def __init__(self):
        super().__init__()
        self.mix1, self.mix2 = Mix(True), Mix(False)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return self.mix2(self.mix1(x))


def test_names_that_differ_in_digits_are_no_repetitions():
    model, x = made(13, Twice, Twice)
    plan = ht.explore(model, x).plan(model, "[sp=4]")
    gathered = [name for name, step in plan.apart() if isinstance(step, Gather)]
    assert sorted(gathered) == ["blocks.0.mix1", "blocks.1.mix1", "last"] and plan.proof, str(plan)


class Coarse(torch.nn.Module):
    """All rows of a picture look at means of two by two, shaped by numbers that are told."""

    def __init__(self):
        super().__init__()
        self.taps, self.up = torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1), torch.nn.Linear(WIDTH, WIDTH)
        self.look = Look()

    def forward(self, x, height, width):
        x = x + self.look(x, height, width)
        y = self.taps(x.mT.unflatten(2, (height, width)))
        return x + self.up(y.flatten(2).mT)


class Look(torch.nn.Module):
    def forward(self, x, height, width):
        coarse = F.avg_pool2d(x.mT.unflatten(2, (height, width)), 2).flatten(2).mT
        return torch.softmax(x @ coarse.mT, -1) @ coarse


class Picture(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = torch.nn.Conv2d(3, WIDTH, 2, 2)
        self.blocks = torch.nn.ModuleList(Coarse() for _ in range(2))

    def forward(self, picture):
        x = self.patch(picture)
        height, width = x.shape[2:]
        x = x.flatten(2).mT
        for block in self.blocks:
            x = block(x, height, width)
        return x


def test_a_module_that_gets_the_whole_is_told_the_whole_extent():
    model, x = Picture().eval(), torch.randn(2, 3, 16, 24)
    plan = ht.explore(model, x).plan(model, "[sp=4]")
    steps = plan.apart()
    assert ("blocks.0.look", Total("width", "w")) in steps and plan.proof, str(plan)
    assert sum(isinstance(step, Halo) for _, step in steps) == 2, str(plan)
    for ranks, width in ((2, 24), (4, 24), (3, 20), (5, 8)):
        proof = plan.prove(model, torch.randn(2, 3, 16, width), ranks=ranks)
        assert proof, f"{width} wide: {proof}"


class Shaped(torch.nn.Module):
    """A picture of (h w) rows, by a tuple: neighbours, or all rows in plain products."""

    def __init__(self, is_far):
        super().__init__()
        self.taps, self.is_far = torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1), is_far

    def forward(self, x, size):
        if self.is_far:
            y = x.unflatten(1, tuple(size)).transpose(1, 2)
            return x + (torch.softmax(y @ y.mT, -1) @ y).transpose(1, 2).flatten(1, 2).cumsum(1)
        return x + self.taps(x.mT.unflatten(2, tuple(size))).flatten(2).mT


class Patches(torch.nn.Module):
    """All rows look at one another, and how many there are is told beside them."""

    def forward(self, x):
        rows = x.flatten(2).mT
        return torch.softmax(rows @ rows.mT, -1) @ rows, x.shape[2:]


class Sized(torch.nn.Module):
    def __init__(self, *is_far, first=None):
        super().__init__()
        self.first, self.taps = first, torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.blocks = torch.nn.ModuleList(map(Shaped, is_far))

    def forward(self, x, size=None):
        x = self.taps(x)
        x, size = self.first(x) if self.first else (x.flatten(2).mT, size or x.shape[2:])
        for block in self.blocks:
            x = block(x, size)
        return x.mT.unflatten(2, tuple(size))


@pytest.mark.parametrize("model,size,step", [
    (lambda: Sized(False), [9, 7], ("", Extent("size.0", "h"))),
    (lambda: Sized(False, True), None, ("blocks.1", Total("size.0", "h"))),
    (lambda: Sized(False, first=Patches()), None, ("first", Extent("output.1.0", "h")))])
def test_numbers_in_tuples_are_those_of_ranks(model, size, step):
    model = model()
    given = dict(x=torch.randn(1, WIDTH, 9, 7), **({"size": size} if size else {}))
    plan = ht.explore(model, **given).plan(model, "[sp=2]")
    assert step in plan.apart() and any(isinstance(each, Halo) for _, each in plan.apart()), str(plan)
    assert plan.prove(model, ranks=4, **given), str(plan)


@pytest.mark.parametrize("model,sizes,h,w,dim", [
    (lambda: torch.nn.Sequential(torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1), torch.nn.GroupNorm(2, WIDTH)),
     "h=18,w=35", 18, 35, "w"), (lambda: Sized(False, first=Patches()), "s=252", 18, 14, "h")])
def test_bytes_are_those_of_the_extents_that_are_asked_for(model, sizes, h, w, dim):
    """A row of neighbours has all columns, so of more columns than rows it is columns that are cut."""
    model = model()
    found = ht.explore(model, torch.randn(1, WIDTH, 9, 7))
    assert "h is cut all the way" in found.plan(model, "[sp=2]").why
    plan = found.plan(model, "[sp=2]", sizes=sizes)
    sent = plan.prove(model, torch.randn(1, WIDTH, h, w), ranks=2, gradients=False).bytes_total
    assert f"{dim} is cut all the way" in plan.why, str(plan)
    assert plan.why.endswith(f"; with {sizes} about {sent} bytes go on 2 ranks"), (sent, str(plan))


def test_sizes_that_are_none_are_refused_also_without_a_model_file():
    found = ht.explore(framewise(), torch.randn(1, WIDTH, 3, 11, 7))
    with pytest.raises(heddle.UnsupportedError):
        found.to_yaml()
    for sizes, words in (("h=1k", "dim 'h' needs a whole number of at least 1, found '1k'"),
                         ("h=0x12", "found '0x12'"), ("w=0", "found '0'"), ("h=18 w=35", "found '18 w=35'"),
                         ("h=18,h=36", "dim 'h' is given twice"), ("h=18,", "end with a comma"),
                         ("x=3", "has no dim 'x'; it has b=1, f=3, h=11, w=7"), ("18", "must look like t=16,s=256")):
        with pytest.raises(heddle.ArgumentError) as error:
            found.plan(framewise(), "[sp=2]", sizes=sizes)
        assert words in str(error.value) and error.value.__context__ is None, error.value


class Framed(torch.nn.Module):
    """Pictures of one size alone."""

    def __init__(self):
        super().__init__()
        self.taps = torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        return self.taps(x.flatten(0, 1)).reshape(*x.shape[:2], WIDTH, 11, 7)


def framewise():
    return torch.nn.Sequential(torch.nn.Conv3d(WIDTH, WIDTH, (1, 3, 3), padding=(0, 1, 1)))


@pytest.mark.parametrize("model,shape,size,sizes,why", [
    (framewise, (WIDTH, 3, 11, 7), 3, "", "f is cut all the way; nothing mixes it"),
    (framewise, (WIDTH, 3, 11, 7), 4, "", "h is cut all the way; 1 by Halo"),
    (framewise, (WIDTH, 3, 11, 7), 4, "f=4", "f is cut all the way; nothing mixes it"),
    (framewise, (WIDTH, 3, 11, 7), 2, "f=1,w=64", "w is cut all the way; 1 by Halo"),
    (Framed, (3, WIDTH, 11, 7), 4, "", "f is cut all the way; nothing mixes it")])
def test_a_dim_that_nothing_mixes_is_cut_if_every_rank_gets_rows(model, shape, size, sizes, why):
    model = model()
    plan = ht.explore(model, torch.randn(2, *shape)).plan(model, f"[sp={size}]", sizes=sizes)
    assert plan.proof and why in plan.why, str(plan)


def test_an_extent_that_is_no_rank_s_is_refused():
    model, x = Picture().eval(), torch.randn(2, 3, 16, 22)
    steps = [("", (Split("picture", "b _ (h 2) _", "h"), Gather("output", "b (h _) _", "h"))),
             ("blocks.0", Total("width", "h"))]
    proof = ht.prove(model, steps, x, ranks=3)
    assert isinstance(proof.error, heddle.ArgumentError), proof
    assert "'width' is 11, and this rank has 3 of h: wanted as many, or so many for each" in str(proof), proof


class Told(torch.nn.Module):
    def forward(self, x, rows):
        return x * rows


class Telling(torch.nn.Module):
    def __init__(self, times, rows):
        super().__init__()
        self.block, self.times, self.rows = Told(), times, rows

    def forward(self, x):
        return self.block(x, self.rows or self.times * x.shape[1])


@pytest.mark.parametrize("times,rows,error", [(1, 0, None), (3, 0, None), (0, 20, heddle.MismatchError)])
def test_ranks_have_so_many_for_each_of_their_rows_alike(times, rows, error):
    """13 rows on 3 ranks are 5, 4 and 4: 20 is 4 for each on the first, and 5 on the others."""
    steps = [("", (Split("x", "b s _", "s"), Gather("output", "b s _", "s"))), ("block", Total("rows", "s"))]
    proof = ht.prove(Telling(times, rows), steps, torch.randn(2, 13, WIDTH), ranks=3)
    assert type(proof.error) is (error or type(None)) and bool(proof) == (error is None), proof


class Chosen(torch.nn.Module):
    """Half of the rows, by their values, go through a layer."""

    def __init__(self):
        super().__init__()
        self.score, self.up = torch.nn.Linear(WIDTH, 1), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        at = self.score(x)[..., 0].sigmoid().topk(x.shape[1] // 2, 1).indices[..., None].expand(-1, -1, WIDTH)
        return torch.zeros_like(x).scatter(1, at, self.up(x.gather(1, at)))


class Behind(torch.nn.Module):
    """The row one behind, or two behind where a number is above 0."""

    def forward(self, x):
        return torch.where(x[..., :1] > 0, F.pad(x, (0, 0, 2, 0))[:, :-2], F.pad(x, (0, 0, 1, 0))[:, :-1])


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_are_chosen_by_their_values_are_no_neighbours(seed):
    torch.manual_seed(seed)
    x = torch.randn(2, 18, WIDTH)
    found = ht.explore(torch.nn.Sequential(Chosen(), torch.nn.Linear(WIDTH, WIDTH)), x)["0"].dims["s"]
    assert not found.is_near and not found.is_free, found


def test_rows_that_are_farther_with_other_numbers_are_no_neighbours():
    x = torch.randn(8, 18, WIDTH)
    x[..., 0] = -0.1
    found = ht.explore(torch.nn.Sequential(Behind(), torch.nn.Linear(WIDTH, WIDTH)), x)["0"].dims["s"]
    assert found.kind == "mixes" and "with other numbers" in found.why, found


class Axial(torch.nn.Module):
    """[b, t, s, c]: places, then times, by torch's own attention, which returns its weights, too."""

    def __init__(self):
        super().__init__()
        self.space, self.time = (torch.nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2))

    def forward(self, x):
        y = x.flatten(0, 1)
        x = x + self.space(y, y, y)[0].view_as(x)
        y = x.transpose(1, 2)
        rows = y.flatten(0, 1)
        return x + self.time(rows, rows, rows)[0].unflatten(0, y.shape[:2]).transpose(1, 2)


class Weighing(torch.nn.Module):
    """Axial's attention of rows alone, and what it returns beside."""

    def __init__(self):
        super().__init__()
        self.attend = torch.nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x):
        y, weights = self.attend(x, x, x)
        return x + y, weights


def test_weights_of_attention_have_gradients_and_ranks_without_rows_none():
    model, x = Weighing(), torch.randn(5, 7, WIDTH)  # [t, s, c]
    plan = [("attend", (Split("query", "t s c", "t"), Split("key", "t s c", "t"), Split("value", "t s c", "t"),
                        Gather("output.0", "t s c", "t"), Gather("output.1", "t s _", "t")))]
    switched = [("", (Split("x", "t s c", "s"), Gather("output.0", "t s c", "s"))), ("attend", (
        Switch("query", "t s c", "s", "t"), Switch("key", "t s c", "s", "t"), Switch("value", "t s c", "s", "t"),
        Switch("output.0", "t s c", "t", "s"), Gather("output.1", "t s _", "t")))]
    for steps in (plan, switched):
        for ranks in (2, 3, 6, 8):  # of 5 and 7 rows some have none
            proof = ht.prove(model, steps, x, ranks=ranks)
            assert proof and proof.gradients is not None and proof.gradients < 1e-4, (ranks, str(proof))


class Long(torch.nn.Module):
    """Rows by a number that it was made with."""

    def __init__(self, rows):
        super().__init__()
        self.rows, self.up = rows, torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.up(x.reshape(-1, self.rows, WIDTH)).reshape(x.shape)


def test_a_length_of_the_configuration_wants_the_whole():
    found = ht.explore(torch.nn.Sequential(Long(11), torch.nn.Linear(WIDTH, WIDTH)), torch.randn(2, 11, WIDTH))
    assert "s" not in found["0"].free and found["0"].dims["s"].kind in ("unknown", "mixes"), found.table()


def test_attention_that_returns_its_weights_is_switched():
    model, x = torch.nn.Sequential(Axial(), Axial()), torch.randn(2, 5, 7, WIDTH)
    plan = ht.explore(model, x, dims={"input": "b t s c"}).plan(model, "[sp=3]")
    steps = dict(plan.steps)
    assert [(type(step), step.what) for step in steps["0.time"]] == [
        (Switch, ("query", "key", "value")), (Switch, "output.0"), (Gather, "output.1")], plan
