"""Models that nobody should have to explore: a sentence with the module and the dim, and the model as it was."""
import copy

import numpy
import pytest
import torch
from explore_kit import seeded  # noqa: F401

import heddle
import heddle.torch as ht


class Around(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.last = inner, torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.inner(x))


class Seven(torch.nn.Module):
    def forward(self, x):
        if x.shape[1] < 7:
            raise ValueError(f"{x.shape[1]} rows, wanted 7")
        return x + 1


class Listed(torch.nn.Module):
    def forward(self, x):
        return list(x.unbind(1))


class Stacked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.listed = Listed()

    def forward(self, x):
        return torch.stack(self.listed(x), 1)


class Drawn(torch.nn.Module):
    def forward(self, x):
        return x * float(numpy.random.rand())


class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Remembering(torch.nn.Module):
    """All that it was ever given, in containers within containers."""

    def __init__(self):
        super().__init__()
        self.calls, self.kept = 0, {"rows": [[]]}

    def forward(self, x):
        rows = self.kept["rows"][0]
        rows.append(x)
        return x + torch.cat(rows, 1).mean(1, keepdim=True)


class Square(torch.nn.Module):
    """Rows and columns of which nobody can say which is which."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(5, 5, 4))

    def forward(self, x):
        return x + self.table


#: a model and x; the module, the dim, what is found of it, and words of the sentence
ODD = {
    "fewer rows": (Around(Seven()), (2, 7, 4), "inner", "s",
                   "on fewer rows of s it raises ValueError: 5 rows, wanted 7"),
    "lists": (Around(Stacked()), (2, 7, 4), "inner.listed", "s", "its result has no s"),
    "numpy's numbers": (Around(Drawn()), (2, 7, 4), "inner", "s", "the same arguments gave two results"),
    "a cache": (Around(Cached()), (2, 7, 4), "inner", "s", "the same arguments gave two results"),
    "a cache of rows": (Around(Remembering()), (2, 7, 4), "inner", "s", "the same arguments gave two results"),
    "one row": (Around(torch.nn.Linear(4, 4)), (2, 1, 4), "inner", "s", "s has one row there"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_not_understood(name):
    model, shape, module, dim, words = ODD[name]
    before, state = copy.deepcopy(model.__dict__), copy.deepcopy(model.state_dict())
    numbers = torch.get_rng_state(), numpy.random.get_state()[1].copy()
    found = ht.explore(model, torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    seen = found[module].dims[dim]
    kind = "mixes" if name == "lists" else "unknown"
    assert seen.kind == kind and words in seen.why and dim in found[module].mixed, (seen, found)
    assert words in found.table()
    assert torch.equal(numbers[0], torch.get_rng_state()) and (numbers[1] == numpy.random.get_state()[1]).all()
    assert before.keys() == model.__dict__.keys() and model.training
    assert all(torch.equal(x, state[key]) for key, x in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in model.modules())
    assert getattr(model.inner, "calls", 0) == 0 and getattr(model.inner, "kept", {"rows": [[]]}) == {"rows": [[]]}
    try:
        found.plan(model, "[sp=3]")
    except heddle.UnsupportedError:
        pass
    assert torch.equal(numbers[0], torch.get_rng_state()) and (numbers[1] == numpy.random.get_state()[1]).all()


def test_a_compiled_model_is_not_compiled_anew():
    counted = []

    def backend(graph, _):
        counted.append(graph)
        return graph.forward
    model = torch.compile(Around(Attending()), backend=backend)
    found = ht.explore(model, torch.randn(2, 7, 4))
    assert found["_orig_mod.inner"].mixed == ("s",) and not counted, found


def test_dims_that_cannot_be_told_apart():
    model, x = Around(Square()), torch.randn(2, 5, 5, 4)
    found = ht.explore(model, x)
    assert not [dim for dim in found[""].free if dim != "b"], found  # never a wrong plan
    named = ht.explore(model, x, dims={"x": "b h w c"})
    assert named.fixed == ("h", "w") and not set(named[""].free) & {"h", "w"}, named
    for dims, words in (({"x": "(b h) w c"}, "for 'x', which has the shape (2, 5, 5, 4)"),
                        ({"x": "b (h v) w c"}, "wanted the product of dims that other axes have, which are b=2 w=5")):
        with pytest.raises(heddle.ArgumentError) as error:
            ht.explore(model, x, dims=dims)
        assert words in str(error.value), error.value


def test_a_module_that_stands_in_two_places():
    shared = torch.nn.Linear(4, 4)
    model = torch.nn.Sequential(shared, torch.nn.GELU(), shared)
    found = ht.explore(model, torch.randn(2, 7, 4))
    assert found["0"].calls == 2 and found["0"].free == ("b", "s") == found[""].free, found


class Ways(torch.nn.Module):
    """One attention, of rows of h and then of rows of w; of frames in a later call."""

    def __init__(self):
        super().__init__()
        self.attend, self.last = Attending(), torch.nn.Linear(4, 4)

    def forward(self, x):
        b, f, h, w, _ = x.shape
        x = self.last(self.attend(x.reshape(b * f, h, w, -1)).reshape(x.shape))
        return self.attend(x.transpose(1, 3).reshape(b * w, h, f, -1)).reshape(b, w, h, f, -1).transpose(1, 3)


class Attending(torch.nn.Module):
    """x[_, rows, of, c]: over `of`."""

    def forward(self, x):
        return x + torch.softmax(x @ x.mT, -1) @ x


def test_a_later_call_mixes_what_the_first_leaves_free():
    model = Ways()
    found = ht.explore(model, torch.randn(2, 3, 5, 6, 4))
    seen = found["attend"].dims
    assert found["attend"].calls == 2 and set(found["attend"].mixed) == {"f", "w"}, found.table()
    assert seen["f"].why.startswith("in a later call") and seen["h"].is_free and not seen["w"].why, found.table()
    assert found["last"].calls == 1 and found[""].free == ("b", "h"), found
    with pytest.raises(heddle.UnsupportedError) as error:
        found["attend"].need_one_way()
    assert "called with x '(b f) h w _' and then with x '(b w) h f _'" in str(error.value), error.value


class By(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.table = function, torch.nn.Parameter(torch.randn(64, 4))

    def forward(self, x):
        return self.function(x, self.table)


#: nothing of this happens with the numbers that the model is explored with
LARGE = {
    "a threshold": lambda x, _: x + (x > 9).any(1, keepdim=True),
    "a gate": lambda x, _: torch.where(x[..., :1] > 9, torch.nn.functional.pad(x, (0, 0, 3, 0))[:, :-3], x),
    "a branch": lambda x, _: x * 2 if x.abs().max() > 9 else x,
    "its own": lambda x, _: torch.where(x > 9, -x, x),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_rows_of_large_numbers_do(name):
    x = torch.randn(2, 12, 4, generator=torch.Generator().manual_seed(1))
    seen = ht.explore(Around(By(LARGE[name])), x)["inner"].dims["s"]
    assert seen.is_free == (name == "its own") and (seen.is_free or "where numbers are large" in seen.why), seen


#: of the last row another thing, and what is of every row the same
ENDS = {
    "a table": lambda x, table: torch.cat([x[:, :-1], x[:, -1:] + table[0]], 1),
    "a mask": lambda x, _: x * (torch.arange(x.shape[1]) < x.shape[1] - 1)[:, None],
    "positions": lambda x, table: x + table[-x.shape[1]:],
    "numbers": lambda x, _: x * torch.arange(x.shape[1] - 1, -1, -1.0)[:, None],
    "nothing": lambda x, table: x + table[0],
}
WAYS = {
    "last": lambda of: of,
    "first": lambda of: lambda x, table: of(x.flip(1), table.flip(0)).flip(1),
    "of even extents": lambda of: lambda x, table: of(x.unflatten(1, (x.shape[1] // 2, 2)).flatten(1, 2), table),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("rows", (2, 8))
def test_an_end_that_is_another_row(name, way, rows):
    if rows == 2 and way == "of even extents":
        return  # of which there are no fewer
    found = ht.explore(Around(By(WAYS[way](ENDS[name]))), torch.randn(2, rows, 4))
    seen = found["inner"].dims["s"]
    assert seen.is_free if name == "nothing" else "on fewer rows of s its results are others" in seen.why, seen


class Windows(torch.nn.Module):
    """Means of four rows each."""

    def forward(self, x):
        y = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 4)).unflatten(1, (-1, 4))
        return x + y.mean(2, keepdim=True).expand_as(y).flatten(1, 2)[:, :x.shape[1]]


class Reversed(torch.nn.Module):
    def forward(self, x):
        return x + x.flip(1)


class Summed(torch.nn.Module):
    def forward(self, x):
        return x.cumsum(1)


class Taps(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x):
        return self.conv(x.mT).mT


@pytest.mark.parametrize("inner, kind, words", (
    (Windows(), "mixes", "by their number, as windows do"), (Reversed(), "mixes", ""),
    (Summed(), "causal", "a row of s reaches all that are behind it")))
@pytest.mark.parametrize("rows", (6, 7, 8, 9))
def test_what_no_number_of_neighbours_is_enough_for(inner, kind, words, rows):
    """Its plan holds at other lengths, too, and so does what mends one."""
    model = torch.nn.Sequential(Taps(), Around(inner))
    found = ht.explore(model, torch.randn(2, rows, 4))
    seen = found["1.inner"].dims["s"]
    assert seen.kind == kind and words in seen.why and not seen.is_near, seen
    plan = found.plan(model, "[sp=3]")
    assert "1 by Halo, 1 by Gather" in plan.why, plan.why
    for other, ranks in ((13, 3), (10, 4), (21, 3)):
        assert ht.prove(model, plan, torch.randn(2, other, 4), ranks=ranks)
    steps = [(name, step) for name, step in plan.steps if name != "1.inner"]
    (fault,) = ht.lint(model, steps, torch.randn(2, rows, 4))
    assert fault.module == "1.inner" and "Put a Gather before it" in fault.mend, fault


class Scaled(torch.nn.Module):
    """As blocks of convolutional nets begin."""

    def __init__(self, scale):
        super().__init__()
        self.inner, self.scale = Taps(), torch.nn.Parameter(torch.full((4,), scale))

    def forward(self, x):
        return x + self.scale * self.inner(x)


@pytest.mark.parametrize("scale", (0.0, 1e-6, 1e-4))
def test_what_a_scale_of_almost_nothing_hides(scale):
    blocks = torch.nn.ModuleList([Scaled(scale), Scaled(scale)])
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), *blocks)
    found = ht.explore(model, torch.randn(2, 9, 4))
    assert found["1"].mixed == ("s",) and str(found["1"].dims["s"]) == "halo of 1", found
    assert torch.equal(model[1].scale, torch.full((4,), scale))
    assert not ht.prove(model, [("1", ht.Split("x", "b s c", "s")), ("2", ht.Gather("output", "b s c", "s"))],
                        torch.randn(2, 9, 4), gradients=False)


class Listing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.GELU(), Attending()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_stage_without_parameters():
    found = ht.explore(Listing(), torch.randn(2, 9, 4))
    schedule = heddle.plan(found.to_yaml(), "[sp=3]")
    assert [stage.name for stage in schedule.stages] == ["layers.0", "layers.1", "layers.2"], found.to_yaml()


class Blocks(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        setattr(self, name, torch.nn.ModuleList([torch.nn.Conv1d(4, 4, 3, padding=1)]))

    def forward(self, x):
        for block in next(iter(self.children())):
            x = block(x)
        return x


def test_a_plan_for_another_version():
    x = torch.randn(2, 4, 9)
    plan = ht.explore(Blocks("blocks"), x).plan(Blocks("blocks"), "[sp=2]")
    other = Blocks("layers")
    proof = ht.prove(other, plan, x, ranks=2)
    assert not proof and "no module of Blocks is called 'blocks.0'; there are layers, layers.*" in proof.why, str(proof)
    (fault,) = ht.lint(other, plan, x, ranks=2)
    assert "no module of Blocks is called 'blocks.0'" in fault.sentence and "str(model) has its names" in fault.mend
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in other.modules())


class Shifted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.attend = torch.nn.Linear(8, 8), Attending()
        self.register_buffer("shift", torch.ones(8))

    def forward(self, x, scale=None):
        return self.attend(self.linear(x) + self.shift)


def test_several_devices_and_meta():
    x, meta = torch.randn(2, 7, 8), torch.device("meta")
    shifted, plan, one = Shifted(), {"linear": ht.Split("input", "b s c", "s")}, x[0, 0, 0]
    shifted.shift = shifted.shift.to(meta)
    whole = Shifted()
    for words, call in (("the buffer 'shift' is on the device meta", lambda: ht.explore(shifted, x)),
                        ("the argument 'x' is on the device meta", lambda: ht.explore(whole, x.to(meta))),
                        ("the argument 'scale' is on the device meta", lambda: ht.explore(whole, x, one.to(meta))),
                        ("prove: the buffer 'shift' is on the device meta", lambda: ht.prove(shifted, plan, x)),
                        ("prove: 'linear.weight' is on the device meta",
                         lambda: ht.prove(copy.deepcopy(whole).to(meta), plan, x))):
        with pytest.raises(heddle.UnsupportedError) as error:
            call()
        assert words in str(error.value), error.value
    assert not whole._forward_hooks and not shifted.linear._forward_hooks


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16))
def test_dtypes(dtype):
    model, x = Shifted().to(dtype), torch.randn(2, 7, 8, dtype=dtype)
    found = ht.explore(model, x)
    assert found["linear"].free == ("b", "s") and found["attend"].mixed == ("s",), found.table()
    other = torch.float32 if dtype == torch.float64 else torch.float64
    with pytest.raises(RuntimeError) as error:
        ht.explore(model, x.to(other))
    assert f"'x' is {other}, and the parameters are {dtype}" in " ".join(error.value.__notes__)
    assert not model._forward_hooks and model.training


class Kept(torch.nn.Module):
    """A product with weights as they are kept: in 8 bits, or those alone that are not zero."""

    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.register_buffer("again", weight)

    def forward(self, x):
        if self.weight.layout is torch.strided:
            return x @ self.weight.to(x.dtype) * 0.1
        return (self.weight @ x.flatten(0, -2).mT).mT.view_as(x)


FORMS = (*(lambda x, dtype=dtype: x.to(dtype) for dtype in (torch.float8_e4m3fn, torch.float8_e5m2,
                                                            torch.float8_e8m0fnu, torch.int8)),
         torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr)


@pytest.mark.parametrize("form", FORMS)
def test_weights_in_8_bits_and_sparse_ones(form):
    model, x = Around(Kept(form(torch.randn(4, 4)))), torch.randn(2, 7, 4)
    wanted = model(x)
    found = ht.explore(model, x)
    assert found["inner"].free == ("b", "s") and torch.equal(model(x), wanted), found.table()
    assert ht.prove(model, {"inner": ht.Split("x", "b s c", "s"), "last": ht.Gather("output", "b s c", "s")}, x)


@pytest.mark.parametrize("asked,words", ((dict(dims=["b s c"]), "dims is a list, progress a NoneType: wanted a"),
                                         (dict(dims="b s c"), "dims is a str"), (dict(progress=3), "progress a int")))
def test_options_that_are_none_are_refused(asked, words):
    with pytest.raises(heddle.ArgumentError) as error:
        ht.explore(Around(torch.nn.Identity()), torch.randn(2, 7, 4), **asked)
    assert words in str(error.value), error.value
    with pytest.raises(heddle.ArgumentError) as error:
        ht.lint(Around(torch.nn.Identity()), {}, torch.randn(2, 7, 4), found=3)
    assert "lint: found is a int, wanted what" in str(error.value), error.value
