"""What is so small or so far away that it looks like nothing: half precision, decays, rows in the middle; and arguments
that a call changes."""
import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from explore_kit import seeded  # noqa: F401

import heddle.torch as ht
from heddle.torch import Attend, Gather, Split
from heddle.torch.exploring.exploration import Exploration, Module
from heddle.torch.exploring.flow import Attention, Flow
from heddle.torch.exploring.probe import Finding
from heddle.torch.exploring.wide import _without_autocast

WIDTH = 16


class Attending(torch.nn.Module):
    """As decoders begin: weights of 0.02 beside rows of 1."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        for linear in (self.qkv, self.out):
            torch.nn.init.normal_(linear.weight, std=0.02)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (4, 4)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        q, k = self.turned(q), self.turned(k)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def turned(self, x):
        return x


class Turning(Attending):
    """By numbers of its own, from 0."""

    def turned(self, x):
        angles = torch.arange(x.shape[2])[:, None] * torch.tensor([1.0, 0.1])
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class Layer(torch.nn.Module):
    def __init__(self, attend=Attending):
        super().__init__()
        self.attend, self.up = attend(), torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.full((WIDTH,), 1.5))

    def forward(self, x):
        x = x + self.attend(x)
        return x + self.scale * self.up(x).relu()


class Layers(torch.nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers, self.last = torch.nn.ModuleList(layers), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def explored(model, x):
    found = ht.explore(model, x)
    return found, {name: {dim: seen.kind for dim, seen in module.dims.items()}
                   for name, module in found.modules.items()}


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_half_precision_is_explored_and_proved_as_float32_is(dtype):
    model, x = Layers(Layer(), Layer()), torch.randn(2, 12, WIDTH)
    single, wanted = explored(model, x)
    whole = single.plan(model, "[sp=2]")
    proof = whole.proof
    model, x = model.to(dtype), x.to(dtype)
    before = {name: (id(p), p.clone()) for name, p in (*model.named_parameters(), *model.named_buffers())}
    found, got = explored(model, x)
    assert got == wanted and got["layers.0"]["s"] == "causal", (got, wanted)
    assert found.to_yaml() == single.to_yaml().replace("dtype: f32", "dtype: bf16")
    assert found.given[0] == () and found.given[1]["x"] is x
    plan = found.plan(model, "[sp=2]")
    assert any(isinstance(step, Attend) for _, step in plan.steps) and plan.proof, plan
    assert 0 < 2 * plan.proof.bytes_total == proof.bytes_total
    assert 0 < 2 * plan.schedule.bytes_total == whole.schedule.bytes_total
    without = [(name, step) for name, step in plan.steps if not isinstance(step, Attend)]
    for ranks in (2, 3):
        proof = ht.prove(model, without, x, ranks=ranks)
        assert not proof and proof.worst.startswith("layers.0.attend"), proof
    assert ht.lint(model, without, x, found=found)
    for name, p in (*model.named_parameters(), *model.named_buffers()):
        assert before[name][0] == id(p) and p.dtype == dtype and torch.equal(before[name][1], p), name


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_a_table_in_half_precision_makes_no_model_of_half_precision(dtype):
    model, x = Layers(Layer(), Layer()), torch.randn(2, 12, WIDTH)
    single = ht.explore(model, x)
    whole = single.plan(model, "[sp=2]")
    for layer in model.layers:
        layer.scale = layer.scale.to(dtype)
    found = ht.explore(model, x)
    plan = found.plan(model, "[sp=2]")
    assert found.to_yaml() == single.to_yaml() and "dtype: f32" in found.to_yaml()
    assert plan.proof and plan.proof.bytes_total == whole.proof.bytes_total > 0
    assert plan.schedule.bytes_total == whole.schedule.bytes_total > 0


def of_two(first, second):
    torch.manual_seed(0)
    return Layers(Layer(first), Layer(second)), torch.randn(2, 12, WIDTH)


def test_weights_as_training_begins_hide_no_numbers_of_rows():
    ends = ("layers.0", Split("x", "b s _", "s")), ("last", Gather("output", "b s _", "s"))
    steps = [ends[0], *((f"layers.{at}.attend", Attend("s")) for at in (0, 1)), ends[1]]
    for second in (Attending, Turning):
        model, x = of_two(Attending, second)
        before = copy.deepcopy(model.state_dict())
        for ranks in (2, 3):
            proof = ht.prove(model, steps, x, ranks=ranks, gradients=False)
            assert bool(proof) == (second is Attending) and (proof or proof.forward > 1e-2), str(proof)
            assert proof or proof.worst.startswith("layers.1.attend"), str(proof)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_layers_without_norms_are_proved_by_their_own_weights():
    """Scaled, what they return is twice as large layer by layer, and so is what roundings make of it."""
    model, x = Layers(*(Layer() for _ in range(20))), torch.randn(2, 12, WIDTH)
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.02)
    steps = [("layers.0", Split("x", "b s _", "s")), *((f"layers.{at}.attend", Attend("s")) for at in range(20)),
             ("last", Gather("output", "b s _", "s"))]
    proof = ht.prove(model, steps, x, ranks=3)
    assert proof and proof.forward < 1e-5, str(proof)
    assert not ht.prove(model, steps[:7] + steps[8:], x, ranks=3)


def test_attention_that_numbers_its_rows_has_all_of_them():
    for first, second, attends in ((Turning, Turning, 0), (Turning, Attending, 1), (Attending, Attending, 2)):
        model, x = of_two(first, second)
        found = ht.explore(model, x)
        assert [module.name for module in found.modules.values() if module.alone] == [
            f"layers.{at}.attend" for at, each in enumerate((first, second)) if each is Turning], str(found)
        assert str(found).count("numbers its rows by itself") == 2 - attends, str(found)
        assert found.to_yaml().count("methods: [ulysses") == attends, found.to_yaml()
        plan = found.plan(model, "[sp=3]")
        every = [step for _, steps in plan.steps for step in (steps if isinstance(steps, tuple) else (steps,))]
        assert sum(isinstance(step, Attend) for step in every) == attends, str(plan)
        with torch.no_grad():
            for layer in model.layers:
                layer.attend.qkv.weight.mul_(20)
        proof = ht.prove(model, plan, x)
        assert proof and proof.forward < 2e-6, str(proof)


def attended(x):
    x = x.unflatten(-1, (4, 4)).transpose(1, 2)
    return F.scaled_dot_product_attention(x, x, x).transpose(1, 2).flatten(2)


class Around(torch.nn.Module):
    """With rows of neighbours and sums of all in front of its attention."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1), torch.nn.GroupNorm(4, WIDTH)

    def forward(self, x, words, table):
        return x + attended(self.norm(self.conv(x.transpose(1, 2))).transpose(1, 2))


class Beside(torch.nn.Module):
    """Of words and rows, whose positions are given."""

    def forward(self, x, words, table):
        return x + attended(torch.cat([words, x], 1) + table)[:, words.shape[1]:]


class Tabled(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layers, self.last = torch.nn.ModuleList([layer]), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, words):
        rows = torch.arange(x.shape[1] + words.shape[1])[:, None]
        table = torch.sin(rows * torch.linspace(0.1, 1, WIDTH))[None].expand(x.shape[0], -1, -1)
        return self.last(self.layers[0](x, words, table))


@pytest.mark.parametrize("layer", (Around, Beside))
def test_neighbours_sums_and_words_beside_are_no_numbers_of_its_own(layer):
    found = ht.explore(Tabled(layer()), torch.randn(2, 12, WIDTH), torch.randn(2, 5, WIDTH))
    assert len(found.flow.attentions) == 1 and not any(each.alone for each in found.modules.values()), str(found)


class Frames(Attending):
    """Of [b, f, s, c], along s."""

    def forward(self, x):
        return super().forward(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class OfFrames(Frames, Turning):
    pass


@pytest.mark.parametrize("attend", (Frames, OfFrames))
def test_as_many_frames_as_rows_are_no_numbers_of_rows(attend):
    found = ht.explore(Layers(Layer(attend), Layer(attend)), torch.randn(2, 12, 12, WIDTH))
    wanted = ["layers.0.attend", "layers.1.attend"] if attend is OfFrames else []
    assert [each.name for each in found.modules.values() if each.alone] == wanted, found.table()


def test_attention_that_numbers_its_rows_is_cut_along_another_dim():
    model, x = Layers(Layer(OfFrames), Layer(OfFrames)), torch.randn(2, 7, 12, WIDTH)
    found = ht.explore(model, x)
    assert [each.name for each in found.modules.values() if each.alone] == ["layers.0.attend", "layers.1.attend"]
    plan = found.plan(model, "[sp=3]")
    assert plan.proof and "Attend" not in str(plan.steps) and "Gather" not in str(plan.steps[1:-1]), str(plan)


def test_lint_says_that_attention_numbers_its_rows():
    model, x = of_two(Attending, Turning)
    steps = [("layers.0", Split("x", "b s _", "s")), *((f"layers.{at}.attend", Attend("s")) for at in (0, 1)),
             ("last", Gather("output", "b s _", "s"))]
    faults = ht.lint(model, steps, x)
    assert [fault.module for fault in faults] == ["layers.1.attend"], faults
    assert "numbers its rows by itself" in str(faults[0]) and "Put a Gather before it" in faults[0].mend, faults


class Entered(Attending):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


class Decorated(Attending):
    @torch.autocast("cpu", torch.bfloat16)
    def forward(self, x):
        return super().forward(x)


class Casting(Attending):
    def forward(self, x):
        return F.linear(super().forward(x).bfloat16(), self.out.weight.bfloat16()).float()


@pytest.mark.parametrize("attend", (Entered, Decorated))
def test_autocast_within_a_model_is_off_while_it_is_compared(attend):
    model, x = Layers(*(Layer(attend) for _ in range(2))), torch.randn(2, 37, WIDTH)
    wanted, enter = model(x), torch.autocast.__enter__
    plan = ht.explore(model, x).plan(model, "[sp=3]")
    assert plan.proof and plan.proof.gradients < 1e-5, str(plan)
    without = [(name, step) for name, step in plan.steps if not isinstance(step, Attend)]
    with torch.autocast("cpu", torch.bfloat16):  # in ranks' threads, too
        assert ht.prove(model, plan, x, ranks=2).gradients < 1e-5 and torch.get_autocast_dtype("cpu") == torch.bfloat16
        proof = ht.prove(model, without, x, ranks=2)
        assert not proof and "casts to" not in str(proof) and torch.is_autocast_enabled("cpu"), proof
    assert torch.autocast.__enter__ is enter and torch.equal(model(x), wanted)


def test_autocast_is_as_it_was_behind_the_last_of_two_that_are_explored_at_once():
    enter, both = torch.autocast.__enter__, [_without_autocast(), _without_autocast()]
    for one in both:
        one.__enter__()
    for one in both:  # the first one first
        with torch.autocast("cpu", torch.bfloat16):
            assert not torch.is_autocast_enabled("cpu")
        one.__exit__(None, None, None)
    assert torch.autocast.__enter__ is enter


def test_a_model_that_casts_by_itself_is_said_to_round():
    model, x = Layers(*(Layer(Casting) for _ in range(2))), torch.randn(2, 37, WIDTH)
    plan = {"layers.0": Split("x", "b s _", "s"), "layers.*.attend": Attend("s"),
            "last": Gather("output", "b s _", "s")}
    proof = ht.prove(model, plan, x, ranks=3)
    assert not proof and proof.gradients < 0.1, proof
    assert "; the model casts to bfloat16 within, whose rounding may be all of it" in str(proof)


class HalfAlone(torch.nn.Module):
    """As kernels are that take nothing else."""

    def __init__(self):
        super().__init__()
        self.attend = Attending()

    def forward(self, x):
        if x.dtype != torch.bfloat16:
            raise RuntimeError("FlashAttention only supports fp16 and bf16")
        return x + self.attend(x)


def test_a_model_of_half_precision_alone_is_explored_as_it_is():
    model, x = Layers(HalfAlone(), HalfAlone()).bfloat16(), torch.randn(2, 12, WIDTH).bfloat16()
    found, kinds = explored(model, x)
    assert kinds["layers.0"]["s"] == kinds["layers.1"]["s"] == "causal", found.table()
    assert kinds["last"]["s"] == "free" and all(p.dtype == torch.bfloat16 for p in model.parameters())
    assert "dtype: bf16" in found.to_yaml(), found.to_yaml()


class Gated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(4, 4)

    def forward(self, x):
        gates, h, out = torch.sigmoid(3 * self.gate(x) - 2), torch.zeros_like(x[:, 0]), []
        for row in range(x.shape[1]):
            h = gates[:, row] * h + x[:, row]
            out.append(h)
        return torch.stack(out, 1)


class Ema(torch.nn.Module):
    def forward(self, x):
        out = [x[:, 0]]
        for row in range(1, x.shape[1]):
            out.append(0.2 * out[-1] + x[:, row])
        return torch.stack(out, 1)


class Rnn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.RNN(4, 4, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


class Alibi(torch.nn.Module):
    def forward(self, x):
        rows = torch.arange(x.shape[1])
        return F.scaled_dot_product_attention(x, x, x, attn_mask=-(rows[:, None] - rows[None]).abs().to(x.dtype))


class Taps(torch.nn.Module):
    """Whose outer taps count for little."""

    def __init__(self, causal):
        super().__init__()
        self.conv, self.causal = torch.nn.Conv1d(4, 4, 5, padding=4 if causal else 2), causal
        with torch.no_grad():
            self.conv.weight[..., (0, -1)] *= 1e-4

    def forward(self, x):
        return self.conv(x.transpose(1, 2)).transpose(1, 2)[:, :x.shape[1]]


@pytest.mark.parametrize("kind, wanted, rows", (
    (Gated, "causal", 0), (Ema, "causal", 0), (Rnn, "causal", 0), (Alibi, "mixes", 0),
    (lambda: Taps(True), "causal", 4), (lambda: Taps(False), "halo", 2)))
def test_a_halo_ends_and_a_decay_does_not(kind, wanted, rows):
    seen = ht.explore(torch.nn.Sequential(kind(), torch.nn.Linear(4, 4)), torch.randn(2, 48, 4))["0"].dims["s"]
    assert (seen.kind, seen.rows, seen.is_near) == (wanted, rows, rows > 0), seen.why


class InTheMiddle(torch.nn.Module):
    def __init__(self, less):
        super().__init__()
        self.less = less

    def forward(self, x):
        return x + x[:, (x.shape[1] - self.less) // 2, None]


@pytest.mark.parametrize("less", (0, 1))
@pytest.mark.parametrize("rows", (2, 3, 16, 17))
def test_a_row_in_the_middle_that_all_see(rows, less):
    seen = ht.explore(torch.nn.Sequential(InTheMiddle(less), torch.nn.Linear(4, 4)), torch.randn(5, rows, 4))
    assert not seen["0"].dims["s"].is_free and seen["1"].dims["s"].is_free, seen.table()


def test_rows_of_neighbours_are_not_enough_where_a_module_within_wants_all():
    def found(kind, attentions=()):
        modules = {"a": Module("a", "A", {"s": Finding("halo", "", 2)}), "a.b": Module("a.b", "B", {"s": kind})}
        return Exploration("M", {"s": 16}, (), modules, flow=Flow(attentions=list(attentions)))._brought("a", "s")
    assert found(Finding("free")) == found(Finding("halo", "", 1)) == found(Finding("causal", "", 1)) == (2, 0)
    assert found(Finding("mixes")) is found(Finding("causal")) is None
    assert found(Finding("free"), [Attention("a.b", 4, 4, 16, 16, False)]) is None
    assert found(Finding("free"), [Attention("ab", 4, 4, 16, 16, False)]) == (2, 0)


class Keys:
    """Of all calls, as generation keeps them."""

    def __init__(self):
        self.keys = []

    def with_these(self, x):
        self.keys.append(x)
        return torch.cat(self.keys, 1)


class Caching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.key = torch.nn.Linear(4, 4)

    def forward(self, x, keys=None):
        return x + self.key(x) @ keys.with_these(self.key(x)).transpose(1, 2).softmax(-1) @ x


class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.last = torch.nn.ModuleList([Caching()]), torch.nn.Linear(4, 4)

    def forward(self, x, keys=None):
        keys = Keys() if keys is None else keys
        for layer in self.layers:
            x = layer(x, keys=keys)
        return self.last(x)


@pytest.mark.parametrize("is_ours", (False, True))
def test_a_cache_among_the_arguments_does_not_grow(is_ours):
    model, x, keys = Cached(), torch.randn(2, 8, 4), Keys()
    named = {"keys": keys} if is_ours else {}
    before = copy.deepcopy(model.state_dict())
    found = ht.explore(model, x, **named)
    assert found["layers.0"].dims["s"].kind == "mixes" and found["last"].dims["s"].is_free, found.table()
    assert ht.prove(model, [], x, ranks=2, **named)
    assert keys.keys == [] and all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class Missing:
    pass


UNSET = object()  # what nobody has given
MISSING = Missing()


class Given:
    def __init__(self, layer):
        self.layer, self.weight, self.scale, self.seen = layer, layer.weight, MISSING, []


class Same(torch.nn.Module):
    """Looks whether its arguments are those that they were."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x, given, scale=UNSET, again=None, by=None, how=MISSING):
        assert scale is UNSET and how is given.scale is MISSING and given is again and not given.seen
        assert given.layer is self.layer is by.func.__self__ and given.weight is self.layer.weight
        given.seen.append(x)
        return by(x)


class Passing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.same, self.last = Same(), torch.nn.Linear(4, 4)

    def forward(self, x, given, scale=UNSET, again=None, by=None, how=None):
        given.seen.clear()
        return self.last(self.same(x, given, scale, again=again, by=by, how=how))


def test_arguments_of_a_call_are_what_they_were():
    model = Passing()
    given = Given(model.same.layer)
    given.seen.append(model)
    by = functools.partial(model.same.layer.forward)
    found = ht.explore(model, torch.randn(2, 8, 4), given, UNSET, again=given, by=by, how=MISSING)
    assert all(found[name].dims["s"].is_free for name in ("", "same", "last")), found.table()
    assert given.seen == [model]
