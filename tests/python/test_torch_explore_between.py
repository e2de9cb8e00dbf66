"""Code between modules that wants all rows, windows of three rows, and modules and results that are in containers of
other kinds than lists and tuples."""
import dataclasses
import pathlib

import pytest
import torch
from explore_kit import seeded  # noqa: F401
from ranks import fork
from test_torch import COMMON
from test_torch_explore_models import WIDTH, Joint, Mlp

import heddle
import heddle.torch as ht


class Between(torch.nn.Module):
    """Blocks of rows, and code of the model's own between them."""

    def __init__(self, between):
        super().__init__()
        self.between, self.layers = between, torch.nn.ModuleList(Joint() for _ in range(2))
        self.first, self.last = torch.nn.Linear(5, WIDTH), torch.nn.Linear(WIDTH, 5)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = self.between(x, layer(x))
        return self.last(x)


def gated(x, y):
    return x + torch.sigmoid(x.mean(1, keepdim=True)) * y


def shifted(x, y):
    return y + torch.nn.functional.pad(y, (0, 0, 1, -1))


def first(x, y):
    y[:, 0] = y[:, 0] + x[:, -1]
    return y


def centred(x, y):
    return y - y.mean(1, keepdim=True)


@pytest.mark.parametrize("between", (gated, shifted, first, centred))
def test_each_stage_is_cut_by_itself_where_code_between_wants_the_whole(between):
    model, x = Between(between), torch.randn(2, 13, 5)
    plan = ht.explore(model, x).plan(model, "[sp=3]")
    assert "s is cut in each stage by itself; 2 by Attend" in plan.why, str(plan)
    for ranks, rows in ((2, 17), (4, 9)):
        proof = ht.prove(model, plan, torch.randn(1, rows, 5), ranks=ranks)
        assert proof and proof.bytes_total > 0, str(proof)


def test_so_it_is_on_ranks(tmp_path):
    fork(tmp_path, COMMON + f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from test_torch_explore_between import Between, gated
comm = heddle.Comm.open()
torch.manual_seed(0)
model, x = Between(gated), torch.randn(2, 13, 5)
plan = ht.explore(model, x).plan(model, comm.mesh)
x = torch.randn(1, 10, 5)
y = model(x)
y.square().sum().backward()
wanted = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
handle = ht.parallelize(model, plan, comm)
mine = model(x)
mine.square().sum().backward()
ht.reduce_gradients(model.parameters(), sum_over=comm)
assert (mine - y).abs().max() < 1e-5
for p, grad in zip(model.parameters(), wanted):
    assert (p.grad - grad).abs().max() <= 1e-5 * max(float(grad.abs().max()), 1.0)
handle.remove()
comm.close()
print("ok")
""", 3)


class BesideNeighbours(torch.nn.Module):
    """Rows that every rank has, in front of those of which each reaches its neighbours."""

    def __init__(self):
        super().__init__()
        self.weight, self.up = torch.nn.Parameter(torch.randn(5, 5, 3) / 5), torch.nn.Linear(5, 5)

    def forward(self, x):
        near = torch.nn.functional.conv1d(x[:, 3:].mT, self.weight, padding=1).mT
        return self.up(torch.cat([x[:, :3], near], 1)).relu()


class Fronted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.front = torch.nn.Parameter(torch.randn(3, 5))
        self.layers = torch.nn.ModuleList(BesideNeighbours() for _ in range(2))

    def forward(self, x):
        x = torch.cat([self.front.expand(len(x), 3, 5), x], 1)
        for layer in self.layers:
            x = layer(x)
        return x


def test_neighbours_of_rows_beside_others_are_no_halo():
    model, x = Fronted(), torch.randn(2, 11, 5)
    found = ht.explore(model, x)
    assert found["layers.0"].dims["s"].kind == "halo" and found["layers.0"].given == {"x": "b (3 + s) _"}
    plan = found.plan(model, "[sp=3]")
    assert plan.proof and "(3 + s)" in str(plan) and "Halo" not in str(plan), str(plan)
    cut = {"layers.0": ht.Split("x", "b (3 + s) _", "s"), "layers.1": ht.Gather("output", "b (3 + s) _", "s")}
    faults = ht.lint(model, cut, x)
    assert faults and not any("Halo" in fault.mend for fault in faults), faults


class Windows(torch.nn.Module):
    """Attention within windows of three rows by three."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, WIDTH, 1)
        self.layers = torch.nn.ModuleList(Joint() for _ in range(2))

    def forward(self, x):
        x = self.first(x).permute(0, 2, 3, 1)
        for layer in self.layers:
            rows = x.unflatten(2, (-1, 3)).unflatten(1, (-1, 3)).transpose(2, 3)
            x = layer(rows.flatten(0, 2).flatten(1, 2)).reshape(rows.shape).transpose(2, 3).flatten(1, 2).flatten(2, 3)
        return x


def test_a_dim_that_is_a_multiple_of_three_varies():
    found = ht.explore(Windows(), torch.randn(2, 3, 9, 15))
    assert found.dims == {"b": 2, "h": 9, "w": 15} and found.fixed == (), found.fixed


def test_multiples_are_looked_for_a_few_times_and_not_of_channels():
    class Seen(torch.nn.Linear):
        def forward(self, x):
            seen.add(tuple(x.shape))
            return super().forward(x + self.rows if hasattr(self, "rows") else x)
    seen, model = set(), Seen(1152, 4)
    ht.explore(model, torch.randn(2, 3, 1152))
    assert {shape[-1] - 1152 for shape in seen} == {0, 1, 2, 4, 8, 16}, seen
    seen, model.rows = set(), torch.randn(1155, 1)  # as many rows as there are positions
    ht.explore(model, torch.randn(2, 1155, 1152))
    assert {shape[1] - 1155 for shape in seen if shape[1] >= 1155} == {0, 1, 2, 4, 8, 16, 3, 5, 7, 11}, seen


@dataclasses.dataclass
class Result:
    sample: torch.Tensor
    layers: list
    rows: int


class Kept(torch.nn.Module):
    """Modules by name, and a result that is no tuple."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(5, WIDTH), torch.nn.Linear(WIDTH, 5)
        self.layers = torch.nn.ModuleList(torch.nn.ModuleDict({"joint": Joint(), "mlp": Mlp()}) for _ in range(2))

    def forward(self, *, x):
        x, kept = self.first(x), []
        for layer in self.layers:
            x = layer["joint"](x)
            x = x + layer["mlp"](x)
            kept.append(x)
        return Result(self.last(x), kept, x.shape[1])


def test_modules_by_name_are_stages_and_a_dataclass_is_a_result():
    model, given = Kept(), dict(x=torch.randn(2, 13, 5))
    found = ht.explore(model, **given)
    assert [stage.name for stage in found.stages()] == [
        "layers.0.joint", "layers.0.mlp", "layers.1.joint", "layers.1.mlp"]
    assert heddle.plan(found.to_yaml(), "[sp=3]").bytes_total > 0
    plan = found.plan(model, "[sp=3]")
    proof = ht.prove(model, plan, x=torch.randn(1, 17, 5), ranks=4)
    assert proof and proof.bytes_total > 0, str(proof)


def test_a_sequential_of_blocks_has_stages_and_one_of_layers_has_none():
    first, last = torch.nn.Linear(5, WIDTH), torch.nn.Sequential(torch.nn.Linear(WIDTH, 8), torch.nn.Linear(8, 5))
    blocks = torch.nn.Sequential(*(torch.nn.TransformerEncoderLayer(WIDTH, 2, 24, batch_first=True) for _ in range(2)))
    for model, width, names in ((blocks, WIDTH, ["0", "1"]),
                                (torch.nn.Sequential(first, blocks, last), 5, ["1.0", "1.1"])):
        model = model.eval()
        found = ht.explore(model, torch.randn(2, 13, width))
        assert [stage.name for stage in found.stages()] == names, found.table()
        plan = found.plan(model, "[sp=3]")
        proof = ht.prove(model, plan, torch.randn(1, 17, width), ranks=4)
        assert proof and proof.bytes_total > 0, str(proof)


def test_what_a_rank_raises_is_told_where_it_is_raised():
    class Shaped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(Mlp() for _ in range(2))

        def forward(self, x):
            y = self.layers[0](x.clone())
            return self.layers[1](y.reshape(2, 13, WIDTH))
    model = Shaped()
    steps = {"layers.0": ht.Split("x", "b s c", "s"), "layers.1": ht.Gather("output", "b s c", "s")}
    proof = ht.prove(model, steps, torch.randn(2, 13, WIDTH), ranks=2)
    assert not proof and proof.worst == "" and (
        "raises RuntimeError in the model's own forward, behind 'layers.0'" in proof.why), proof.why


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        if gradient.shape[1] != 13:
            raise ValueError("wants 13 rows")
        return gradient


def test_what_is_raised_in_the_way_back_is_in_no_modules_forward():
    class Returned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = Mlp(), Mlp()

        def forward(self, x):
            return self.last(Backwards.apply(self.first(x)))
    steps = {"first": ht.Split("x", "b s c", "s"), "last": ht.Gather("output", "b s c", "s")}
    proof = ht.prove(Returned(), steps, torch.randn(2, 13, WIDTH), ranks=2)
    assert not proof and proof.worst == "", str(proof)
    assert "raises ValueError in the way back: wants 13 rows" in proof.why, proof.why
