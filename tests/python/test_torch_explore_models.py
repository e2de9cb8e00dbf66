"""Whole models of known kinds, written in plain torch: tokens of a class, folded dims in another order, pairs of
residues. Found without hints, planned, and proved on several ranks."""
import pathlib

import pytest
import torch
import torch.nn.functional as F
from explore_kit import seeded  # noqa: F401
from ranks import fork
from test_torch import COMMON

import heddle
import heddle.torch as ht
from heddle.torch import Attend, Gather, Split, Switch
from heddle.torch.exploring.rows import is_of_pairs

WIDTH = 16


class Attention(torch.nn.Module):
    """Over the rows of [..., rows, c], by torch's own or in plain words."""

    def __init__(self, is_plain=False):
        super().__init__()
        self.is_plain, self.norm = is_plain, torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, *shape[-2:])
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = torch.softmax(q @ k.mT / 2, -1) @ v if self.is_plain else F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2)).reshape(shape)


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 24), torch.nn.Linear(24, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x))))


class Joint(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.mlp(x)


class Classified(torch.nn.Module):
    """Patches of a clip behind a token of a class; the table of positions fixes all extents."""

    def __init__(self):
        super().__init__()
        self.patches = torch.nn.Conv3d(3, WIDTH, (2, 4, 4), (2, 4, 4))
        self.token = torch.nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = torch.nn.Parameter(torch.randn(1, 1 + 3 * 5 * 5, WIDTH))
        self.layers, self.norm = torch.nn.ModuleList(Joint() for _ in range(2)), torch.nn.LayerNorm(WIDTH)

    def forward(self, pixels):
        x = self.patches(pixels.transpose(1, 2)).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], 1, -1), x], 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Divided(torch.nn.Module):
    """Along frames, then over the places of each frame and a token that all frames share."""

    def __init__(self, frames):
        super().__init__()
        self.frames, self.time, self.space, self.mlp = frames, Attention(True), Attention(True), Mlp()

    def forward(self, x):
        token, x = x[:, :1], x[:, 1:].unflatten(1, (-1, self.frames))
        x = x + self.time(x)
        each = torch.cat([token.expand(-1, self.frames, -1).unsqueeze(2), x.transpose(1, 2)], 2)
        y = self.space(each.flatten(0, 1)).unflatten(0, (-1, self.frames))
        x = x + y[:, :, 1:].transpose(1, 2)
        x = torch.cat([token + y[:, :, 0].mean(1, keepdim=True), x.flatten(1, 2)], 1)
        return x + self.mlp(x)


class Patches(torch.nn.Module):
    """Rows in the order h w f, behind a token."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv3d(3, WIDTH, (1, 4, 4), (1, 4, 4))
        self.token = torch.nn.Parameter(torch.randn(1, 1, WIDTH))

    def forward(self, pixels):
        x = self.conv(pixels.transpose(1, 2)).permute(0, 3, 4, 2, 1).flatten(1, 3)
        return torch.cat([self.token.expand(x.shape[0], 1, -1), x], 1)


class DividedModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.layers = Patches(), torch.nn.ModuleList(Divided(7) for _ in range(2))

    def forward(self, pixels):
        x = self.patches(pixels)
        for layer in self.layers:
            x = layer(x)
        return x


class Together(torch.nn.Module):
    """Rows of a text before those of a picture, in one axis, and positions that stand in a first axis."""

    def __init__(self):
        super().__init__()
        self.places, self.layers = torch.nn.Linear(3, WIDTH), torch.nn.ModuleList(Joint() for _ in range(2))
        self.last = torch.nn.Linear(WIDTH, 5)

    def forward(self, x, text, places):
        x = torch.cat([text, x + self.places(places)], 1)
        for layer in self.layers:
            x = layer(x)
        return self.last(x[:, text.shape[1]:])


class Language(torch.nn.Module):
    """Words, along which alone rows can be cut: attention is torch's own, or in plain products."""

    def __init__(self, is_plain):
        super().__init__()
        self.words, self.last = torch.nn.Embedding(20, WIDTH), torch.nn.Linear(WIDTH, 20)
        self.layers = torch.nn.ModuleList(Joint() for _ in range(2))
        for layer in self.layers:
            layer.attention.is_plain = is_plain

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


class Projected(Together):
    """Of several texts each is projected by a module of a list, which mixes nothing."""

    def __init__(self):
        super().__init__()
        self.texts = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x, text, places):
        return super().forward(x, self.texts[0](text) + self.texts[1](text.sin()), places)


class Near(torch.nn.Module):
    """Attention of rows that are near one another, by a mask of all rows with all that every layer is given."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Masked() for _ in range(2))

    def forward(self, x):
        at = torch.arange(x.shape[1])
        mask = (at - at[:, None]).abs()[None, None] < 3
        for layer in self.layers:
            x = layer(x, mask)
        return x


class Stream(torch.nn.Module):
    """Rows of a picture and of a text, each with what is its own, attend as one: text first, turned by a table of both.
    """

    def __init__(self):
        super().__init__()
        self.qkv, self.out = (torch.nn.ModuleList(torch.nn.Linear(WIDTH, n * WIDTH) for _ in range(2)) for n in (3, 1))
        self.gate = torch.nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x, text, time, turns):
        gates = self.gate(time)[:, None].chunk(2, -1)
        rows = torch.cat([linear(y) for linear, y in zip(self.qkv, (text, x))], 1).unflatten(-1, (3, 4, -1))
        q, k, v = (y.transpose(1, 2) for y in rows.unbind(2))
        turned = turns.unflatten(-1, (4, -1)).transpose(0, 1)
        y = F.scaled_dot_product_attention(q * turned, k * turned, v).transpose(1, 2).flatten(2)
        of_text, of_x = y.split([text.shape[1], x.shape[1]], 1)
        return x + gates[0] * self.out[0](of_x), text + gates[1] * self.out[1](of_text)


class Streams(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.last = torch.nn.ModuleList(Stream() for _ in range(2)), torch.nn.Linear(WIDTH, 5)

    def forward(self, x, text, time):
        places = torch.arange(text.shape[1] + x.shape[1], dtype=x.dtype)[:, None]
        turns = 1 + (places * torch.linspace(0.1, 1, WIDTH)).cos() / 2
        for block in self.blocks:
            x, text = block(x, text, time, turns)
        return self.last(x)


class Single(torch.nn.Module):
    """Rows of a text and of a picture that are in one axis already, turned by a table of both."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, rows, turns):
        q, k, v = (y.transpose(1, 2) for y in self.qkv(rows).unflatten(-1, (3, 4, -1)).unbind(2))
        turned = turns.unflatten(-1, (4, -1)).transpose(0, 1)
        y = F.scaled_dot_product_attention(q * turned, k * turned, v)
        return rows + self.out(y.transpose(1, 2).flatten(2))


class Chained(Streams):
    """Blocks of two streams, then those of one."""

    def __init__(self):
        super().__init__()
        self.singles = torch.nn.ModuleList(Single() for _ in range(2))

    def forward(self, x, text, time):
        places = torch.arange(text.shape[1] + x.shape[1], dtype=x.dtype)[:, None]
        turns = 1 + (places * torch.linspace(0.1, 1, WIDTH)).cos() / 2
        for block in self.blocks:
            x, text = block(x, text, time, turns)
        rows = torch.cat([text, x], 1)
        for block in self.singles:
            rows = block(rows, turns)
        return self.last(rows[:, text.shape[1]:])


class Residuals(Streams):
    """What a controlnet returns: of every block."""

    def __init__(self):
        super().__init__()
        self.residuals = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x, text, time):
        turns, found = torch.ones(text.shape[1] + x.shape[1], WIDTH), []
        for block, residual in zip(self.blocks, self.residuals):
            x, text = block(x, text, time, turns)
            found.append(residual(x))
        return {"of_blocks": tuple(found)}


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.mlp = torch.nn.Linear(WIDTH, 3 * WIDTH), Mlp()

    def forward(self, x, mask):
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.mlp(x + F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


class Windows(torch.nn.Module):
    """Attention within windows of four by four, behind a convolution."""

    def __init__(self):
        super().__init__()
        self.first, self.layers = torch.nn.Conv2d(3, WIDTH, 3, padding=1), torch.nn.ModuleList([Attention()])

    def forward(self, x):
        x = self.first(x).unflatten(3, (-1, 4)).unflatten(2, (-1, 4)).permute(0, 2, 4, 3, 5, 1)
        y = self.layers[0](x.flatten(3, 4).flatten(0, 2)).reshape(x.shape)
        return (x + y).permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


class Convolved(torch.nn.Module):
    """Rows of neighbours before those of attention."""

    def __init__(self):
        super().__init__()
        self.near = torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.layers = torch.nn.ModuleList(Joint() for _ in range(2))

    def forward(self, x):
        x = self.near(x.mT).mT
        for layer in self.layers:
            x = layer(x)
        return x


class OuterProduct(torch.nn.Module):
    """Of pairs of residues, over all sequences."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(16, WIDTH)
        self.left, self.right = torch.nn.Linear(WIDTH, 4), torch.nn.Linear(WIDTH, 4)

    def forward(self, m):
        m = self.norm(m)
        return self.out(torch.einsum("bnic,bnjd->bijcd", self.left(m), self.right(m)).flatten(3) / m.shape[1])


class Triangle(torch.nn.Module):
    """z[i, j] from z[i, k] and z[j, k], or from z[k, i] and z[k, j]."""

    def __init__(self, product):
        super().__init__()
        self.product, self.norm, self.last = product, torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.left, self.right, self.gate, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, z):
        x = self.norm(z)
        y = torch.einsum(self.product, self.left(x), self.right(x))
        return torch.sigmoid(self.gate(x)) * self.out(self.last(y))


class Evoformer(torch.nn.Module):
    """m[b, sequences, residues, c] beside z[b, residues, residues, c]."""

    def __init__(self):
        super().__init__()
        self.of_rows, self.of_columns, self.of_starts, self.of_ends = (Attention() for _ in range(4))
        self.mlp, self.outer = Mlp(), OuterProduct()
        self.outgoing, self.incoming = Triangle("bikc,bjkc->bijc"), Triangle("bkic,bkjc->bijc")

    def forward(self, m, z):
        m = m + self.of_rows(m)
        m = m + self.of_columns(m.transpose(1, 2)).transpose(1, 2)
        m = m + self.mlp(m)
        z = z + self.outer(m)
        z = z + self.outgoing(z)
        z = z + self.incoming(z)
        z = z + self.of_starts(z)
        return m, z + self.of_ends(z.transpose(1, 2)).transpose(1, 2)


class Pairs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Evoformer() for _ in range(2))

    def forward(self, m, z):
        for block in self.blocks:
            m, z = block(m, z)
        return m, z


def classified():
    return Classified(), dict(pixels=torch.randn(2, 6, 3, 20, 20))


def divided():
    return DividedModel(), dict(pixels=torch.randn(2, 7, 3, 12, 20))


def together():
    return Together(), dict(x=torch.randn(2, 11, WIDTH), text=torch.randn(2, 5, WIDTH), places=torch.randn(11, 3))


def language():
    return Language(False), dict(words=torch.randint(20, (2, 11)))


def language_in_products():
    return Language(True), dict(words=torch.randint(20, (2, 11)))


def streams():
    return Streams(), dict(x=torch.randn(2, 11, WIDTH), text=torch.randn(2, 5, WIDTH), time=torch.randn(2, WIDTH))


def chained():
    return Chained(), streams()[1]


def residuals():
    return Residuals(), streams()[1]


def projected():
    return Projected(), together()[1]


def near():
    return Near(), dict(x=torch.randn(2, 11, WIDTH))


def convolved():
    return Convolved(), dict(x=torch.randn(2, 11, WIDTH))


def evoformer():
    return Pairs(), dict(m=torch.randn(1, 5, 7, WIDTH), z=torch.randn(1, 7, 7, WIDTH))


WANTED = {classified: ("alike=1", "rows of s are cut"),
          divided: ("(1 + h _)", "h is cut all the way; 4 by Switch; the planner has no schedule of it: in 'layers.0' "
                                 "it cuts f or s, and no part of them"),
          together: ("rows of (l + s) are cut as one dim from 'layers.0' on", "Attend('rows'"),
          chained: ("rows of l and s are cut, ulysses", "'singles.1': (Split('turns', 'l+s _'"),
          residuals: ("rows of l and s are cut, ulysses", "'output.of_blocks.0'", "'output.of_blocks.1'"),
          convolved: ("s is cut all the way; 1 by Halo, 2 by Attend", "layers.1: keep to s@sp, 0 bytes by ulysses, "),
          evoformer: ("Attend('h'", "h is cut all the way")}


def test_positions_vary_with_their_rows():
    model, given = together()
    found = ht.explore(model, **given)
    assert found.dims == {"b": 2, "s": 11, "l": 5} and found.fixed == (), found
    assert found[""].given == {"x": "b s _", "text": "b l _", "places": "s _"}, found[""]


def test_a_plan_along_one_dim_has_a_schedule():
    model, given = convolved()
    found = ht.explore(model, **given)
    plan = found.plan(model, "[sp=3]")
    assert [(stage.layout, stage.method) for stage in plan.schedule.stages] == [("s@sp", "ulysses")] * 2, str(plan)
    assert plan.schedule.bytes_total == found.schedule(model, plan, "[sp=3]").bytes_total > 0
    machine = found.plan(model, "[sp=3]", machine="8xh100-nvlink").schedule
    assert machine.predicted_s > 0 and plan.schedule.predicted_s == 0


@pytest.mark.parametrize("made", WANTED)
def test_found_planned_and_proved(made):
    model, given = made()
    found = ht.explore(model, **given)
    plan = found.plan(model, "[sp=3]")
    assert all(words in str(plan) for words in WANTED[made]), str(plan)
    for ranks in (2, 4, 5):
        proof = ht.prove(model, plan, ranks=ranks, **given)
        assert proof and proof.forward < 1e-5 and proof.gradients < 1e-4 and proof.bytes_total > 0, str(proof)
    for pattern, steps in plan.steps:  # each is needed
        kinds = {type(step) for step in (steps if isinstance(steps, tuple) else [steps])}
        if pattern and kinds & {Attend, Gather, Switch}:
            fewer = [pair for pair in plan.steps if pair[0] != pattern]
            assert not ht.prove(model, fewer, ranks=2, gradients=False, **given), pattern


@pytest.mark.parametrize("made,layout,why", (
    (language, "s@sp/ulysses", ""), (classified, "s@sp/gather-kv", ""),
    (together, "", "; the planner has no schedule of it: in 'layers.0' it cuts s or l, and no part of them"),
    (language_in_products, "", "; the planner has no schedule of it: stage 'layers.0' cannot run as "
                               "'layers.0=s@sp/local': local wants dim 's' whole, it is sharded over 3 ranks")))
def test_a_plan_along_one_dim_has_a_schedule_or_says_why_not(made, layout, why):
    model, given = made()
    plan = ht.explore(model, **given).plan(model, "[sp=3]")
    assert plan.proof and plan.why.endswith(why) and ("the planner has no schedule" in plan.why) == bool(why), plan.why
    if layout:
        assert [f"{stage.layout}/{stage.method}" for stage in plan.schedule.stages] == [layout] * 2, plan.schedule
        assert plan.schedule.bytes_total > 0 and sum("s@sp" in line for line in plan.stages) == 2, str(plan)
    else:
        assert plan.schedule is None and plan.stages == [], str(plan)


@pytest.mark.parametrize("made,words", ((projected, "rows of (l + s) are cut as one dim from 'layers.0' on"),
                                        (near, "Attend('s'")))
def test_lists_that_mix_nothing_and_masks_of_all_rows(made, words):
    model, given = made()
    plan = ht.explore(model, **given).plan(model, "[sp=3]")
    assert words in str(plan) and "'mask'" not in str(plan), str(plan)
    for ranks in (2, 4):
        assert ht.prove(model, plan, ranks=ranks, **given), str(plan)


@pytest.mark.parametrize("made", (projected, together))
@pytest.mark.parametrize("method", ("ulysses", "ring", "gather-kv"))
def test_rows_in_one_axis_attend_by_the_method_that_is_asked_for(made, method):
    model, given = made()
    plan = ht.explore(model, **given).plan(model, "[sp=3]", method=method)
    assert f"from 'layers.0' on, {method} of 4 heads" in plan.why and f"method='{method}'" in str(plan), str(plan)
    assert plan.proof and plan.proof.bytes_total > 0, str(plan.proof)


def test_channels_as_many_as_the_rows_of_text_and_picture_are_no_rows():
    model, given = streams()
    plan = ht.explore(model, **given).plan(model, "[sp=3]")
    assert Split("turns", "l+s _", ("l", "s")) in dict(plan.steps)["blocks.0"], str(plan)
    assert "time" not in str(plan.steps) and plan.proof.forward < 1e-5, str(plan)
    for ranks in (2, 4):
        assert ht.prove(model, plan, ranks=ranks, **given), str(plan)


def test_pairs_are_axes_as_long_as_each_other():
    assert is_of_pairs("b _ s s") and is_of_pairs("b (l + s) (l + s)", "l") and is_of_pairs("s s", shape=(15, 15))
    assert not is_of_pairs("s s", shape=(15, 8)) and not is_of_pairs("b b _") and not is_of_pairs("s l s", "l")


def test_windows_are_cut_between_one_another():
    model, given = Windows(), dict(x=torch.randn(1, 3, 8, 12))
    plan = ht.explore(model, **given).plan(model, "[sp=2]")
    assert "w is cut all the way; 1 by Halo" in plan.why, str(plan)
    assert Split("x", "b _ _ (w 4)", "w") in dict(plan.steps)[""], str(plan)
    assert ht.prove(model, plan, ranks=3, **given), str(plan)


def test_a_token_of_a_class_on_ranks(tmp_path):
    fork(tmp_path, COMMON + f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from test_torch_explore_models import classified

with heddle.Comm.open() as comm:
    torch.manual_seed(0)
    model, given = classified()
    plan = ht.explore(model, **given).plan(model, comm.mesh)
    handle, results = ht.parallelize(model, plan, comm), []
    for is_whole in (False, True):
        y = model(**given)
        y.square().mean().backward()
        if not is_whole:
            ht.reduce_gradients(model.parameters(), sum_over=comm)
            handle.remove()
        results.append([y.detach(), *(p.grad for p in model.parameters())])
        model.zero_grad()
    for mine, whole in zip(*results):
        assert (mine - whole).abs().max() <= 1e-5 * max(float(whole.abs().max()), 1e-2), (mine - whole).abs().max()
print("ok", flush=True)
""", 3)


def test_what_is_refused_of_rows_that_are_alike():
    model, given = classified()
    split, gather = Split("x", "b (1 + s) c", "s"), Gather("output", "b (1 + s) c", "s")
    for steps, words in (({"layers.0": Split("x", "b (99 + s) c", "s")}, "wanted more than 99 rows in dim 1"),
                         ({"layers.0": Split("x", "b (1 + 2 + s) c", "s")}, "wanted names of dims"),
                         ({"layers.0": Split("x", "b (1 + s) c", "t")}, "has no dim 't'"),
                         ({"layers.0": Switch("x", "b (1 + s) c", "s", "c", as_="b s c")}, "stay in their order"),
                         ({"layers.0": (split, gather), "layers.0.attention": Attend("s", "gather-kv", alike=80)},
                          "wanted 80 rows that are alike")):
        proof = ht.prove(model, steps, ranks=2, **given)
        assert not proof and words in proof.why, (steps, str(proof))
    for arguments in (dict(over="s", alike=1), dict(over=("l", "s"), method="gather-kv", alike=1),
                      dict(over="s", method="gather-kv", alike=-1), dict(over="s", method="gather-kv", alike=True)):
        with pytest.raises(heddle.ArgumentError) as error:
            Attend(**arguments)
        assert "Attend: alike is" in str(error.value), error.value


class Around(torch.nn.Module):
    """Nothing mixes rows, and those of the beginning go round the blocks."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        first = x = self.first(x)
        for block in self.blocks:
            x = x + block(x).relu()
        return self.last(torch.cat([x, first], -1))


def test_rows_that_go_round_blocks_which_mix_nothing():
    model = Around()
    plan = ht.explore(model, torch.randn(2, 13, WIDTH)).plan(model, "[sp=2]")
    assert plan.proof and not any(isinstance(step, Gather) for name, step in plan.apart() if name), str(plan)


def test_a_dim_that_nothing_mixes_is_cut_rather_than_one_of_neighbours():
    model = torch.nn.Sequential(*(torch.nn.Conv2d(WIDTH, WIDTH, (3, 1), padding=(1, 0)) for _ in range(2)))
    plan = ht.explore(model, torch.randn(2, WIDTH, 9, 7)).plan(model, "[sp=2]")
    assert plan.proof and "w is cut all the way; nothing mixes it" in plan.why, str(plan)
