"""Which dims modules mix: models made of known parts, and what a model is after it was explored."""
import copy
import html.parser
import os
import random
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from explore_kit import in_folder, seeded  # noqa: F401
from ranks import limit_s

import heddle
import heddle.torch as ht
from heddle.torch.exploring.command import main

WIDTH = 8
DIMS = "b", "f", "h", "w"


class Mlp(torch.nn.Module):
    mixes = {}

    def __init__(self, over):
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 16)
        self.down = torch.nn.Linear(16, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Attention(torch.nn.Module):
    """Over the rows of [any, rows, c]; where `causal`, over those before; its gate is zero as adaLN-zero's is."""
    kind, is_causal = "mixes", False

    def __init__(self, over):
        super().__init__()
        self.qkv, self.gate = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        q, k, v = (y.unsqueeze(1) for y in self.qkv(x).chunk(3, -1))
        return x + self.gate * F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal).squeeze(1)


class Causal(Attention):
    kind, is_causal = "causal", True


class Sums(torch.nn.Module):
    """Mean and variance of the rows."""
    kind = "reduction"

    def __init__(self, over):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.scale * (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt()


class Taps(torch.nn.Module):
    """A convolution along the rows."""
    kind = "halo"

    def __init__(self, over):
        super().__init__()
        self.conv = torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class Known(torch.nn.Module):
    """x[b, c, f, h, w] through parts, of which each has rows of its own dims in [any, rows, c]."""

    def __init__(self, parts):
        super().__init__()
        self.first, self.last = torch.nn.Conv3d(3, WIDTH, (1, 2, 2), (1, 2, 2)), torch.nn.Linear(WIDTH, 3)
        self.blocks = torch.nn.ModuleList(kind(over) for kind, over in parts)
        self.over = [over for _, over in parts]

    def forward(self, x):
        x = self.first(x).permute(0, 2, 3, 4, 1)
        for block, over in zip(self.blocks, self.over):
            axes = [DIMS.index(dim) for dim in (*[dim for dim in DIMS if dim not in over], *over)]
            y = x.permute(*axes, 4)
            shape, rows = y.shape, y.shape[4 - len(over): 4].numel()
            y = block(y.reshape(-1, rows, WIDTH)).reshape(shape)
            x = y.permute(*[axes.index(axis) for axis in range(4)], 4)
        return self.last(x)


def wanted(kind, over):
    if kind is Mlp:
        return dict.fromkeys(DIMS, "free")
    return {dim: ("free" if dim not in over else kind.kind if len(over) == 1 else None) for dim in DIMS}


@pytest.mark.parametrize("seed", range(20))
def test_parts_that_are_known(seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    parts = [(draw.choice((Mlp, Attention, Causal, Sums, Taps)), draw.choice(("f", "h", "w")))
             for _ in range(3)] + [(Attention, draw.choice(("hw", "fhw", "fw")))]
    model = Known(parts)
    before = copy.deepcopy(model.state_dict())
    found = ht.explore(model, torch.randn(2, 3, draw.choice((4, 7)), 10, 12))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()) and model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert found.fixed == () and list(found.dims) == ["b", "f", "h", "w"]
    for at, (kind, over) in enumerate(parts):
        dims = found[f"blocks.{at}"].dims
        for dim, word in wanted(kind, over).items():
            got = dims[dim].kind
            assert got == word if word else got not in ("free", "table"), (at, kind, over, dim, str(dims[dim]), parts)
    for name in ("blocks.0", "last"):
        assert name in found.table()


class TextBeside(torch.nn.Module):
    """Words and frames in one axis, behind a token of a class."""

    def __init__(self):
        super().__init__()
        self.token = torch.nn.Parameter(torch.randn(1, 1, WIDTH))
        self.mlp, self.mix = Mlp(""), Attention("")
        self.blocks = torch.nn.ModuleList([self.mlp, self.mix])
        self.ends = torch.nn.ModuleList([Mlp("")])

    def forward(self, x, words):
        x = x.flatten(1, 2)
        both = torch.cat([words, x], 1)
        for block in self.blocks:
            both = block(both)
        x = torch.cat([self.token.expand(x.shape[0], 1, -1), both[:, words.shape[1]:]], 1)
        return self.ends[0](x)


def test_text_beside_video_and_a_token_beside_both():
    found = ht.explore(TextBeside(), torch.randn(2, 7, 5, WIDTH), torch.randn(2, 13, WIDTH))
    names = list(found.dims)
    assert len(names) == 4, found
    assert found["mlp"].out[""] in ("b (l + h w) _", "b (h w + l) _"), found["mlp"]
    assert all(found["mlp"].dims[dim].is_free for dim in names), found.table()
    assert not any(found["mix"].dims[dim].is_free for dim in names if dim != "b"), found.table()
    assert {dim for dim, seen in found["ends.0"].dims.items() if seen.is_free} == set(names) - {"l"}, found.table()


class Caching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kept, self.seen = {}, []
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        self.seen.append(len(self.seen))
        self.kept["x"] = x
        self.count += 1
        return x * self.count


class Refusing(torch.nn.Module):
    def forward(self, x):
        if x.shape[1] not in (7, 8):
            raise ValueError(f"{x.shape[1]} rows, 7 or 8 are taken")
        return x * 2


class Around(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.drop = inner, torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.inner(x))


def test_the_model_is_afterwards_as_it_was_and_what_is_not_understood_is_unknown():
    torch.manual_seed(3)
    model, x = Around(Caching()), torch.randn(2, 7, 5, 3)
    state = torch.get_rng_state()
    found = ht.explore(model, x)
    assert torch.equal(torch.get_rng_state(), state) and model.training and model.drop.training
    assert model.inner.kept == {} and model.inner.seen == [] and torch.equal(model.inner.count, torch.zeros(3))
    assert {seen.kind for seen in found["inner"].dims.values()} == {"unknown"}
    assert "it keeps state" in found.table()
    found = ht.explore(Around(Refusing()), x)
    rows = next(dim for dim, extent in found.dims.items() if extent == 7)
    assert found["inner"].dims[rows].kind == "unknown" and "7 or 8 are taken" in found["inner"].dims[rows].why
    one = ht.explore(Around(torch.nn.Identity()), torch.randn(1, 7, 5, 3))
    assert one["inner"].dims["b"].kind == "unknown" and "one row" in one["inner"].dims["b"].why


def test_what_is_refused():
    x = torch.randn(2, 7, 3)
    model = Around(torch.nn.Linear(3, 3))
    for kind, words, call in (
            (heddle.ArgumentError, "the model is a int", lambda: ht.explore(3, x)),
            (heddle.ArgumentError, "was given no tensor", lambda: ht.explore(model, 3)),
            (heddle.ArgumentError, "missing a required argument", lambda: ht.explore(model)),
            (heddle.ArgumentError, "dims are given for 'y', and the arguments that are tensors are 'x'",
             lambda: ht.explore(model, x, dims={"y": "b s c"})),
            (heddle.ArgumentError, "wanted a name for every axis", lambda: ht.explore(model, x, dims={"x": "b c"})),
            (heddle.UnsupportedError, "'inner.weight' is on the device meta, where nothing is computed",
             lambda: ht.explore(copy.deepcopy(model).to("meta"), x)),
            (RuntimeError, "", lambda: ht.explore(model, torch.randn(2, 7, 4)))):
        with pytest.raises(kind) as error:
            call()
        assert words in str(error.value)
        assert not model._forward_hooks and not model.inner._forward_hooks
    assert ht.explore(model, x, dims={"x": "b s c"})["inner"].dims["s"].is_free


def test_the_model_file_is_read_by_the_planner(tmp_path):
    found = ht.explore(Known([(Attention, "hw"), (Attention, "f"), (Mlp, "f")]), torch.randn(2, 3, 7, 10, 12))
    path = tmp_path / "found.yaml"
    path.write_text(found.to_yaml())
    for command in (["plan", path, "--mesh", "sp=2"], ["explain", path, "--mesh", "sp=2"]):
        run = subprocess.run([os.path.join(os.environ["HEDDLE_BUILD"], "heddle"), *map(str, command)],
                             capture_output=True, text=True, timeout=limit_s())
        assert run.returncode == 0, run.stdout + run.stderr
    schedule = heddle.plan(str(path), "[sp=2]", sizes="b=1")
    assert [stage.name for stage in schedule.stages] == ["blocks.0", "blocks.1", "blocks.2"]
    assert schedule.stages[0].layout == "f@sp" and schedule.stages[1].layout != "f@sp", schedule.stages


def test_the_command(tmp_path, in_folder, capsys):
    (tmp_path / "mine.py").write_text("""
import torch

number = 3

def made():
    return torch.nn.Sequential(torch.nn.Linear(3, 4)), (torch.randn(2, 7, 3),)

def single():
    return made()[0], torch.randn(2, 7, 3)

def listed():
    return made()[0], [torch.randn(2, 7, 3)]

def wide():
    return made()[0], {"input": torch.randn(2, 7, 4)}

def numbered():
    return made()[0], {1: torch.randn(2, 7, 3)}

def three():
    return 3

def none():
    pass

def wanting(what):
    pass

def failing():
    raise KeyError("weights")
""")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    for words, code, said in ((["mine:made"], 0, "0 (Linear): free b s"),
                              (["mine:single"], 0, "0 (Linear): free b s"),
                              (["mine:listed"], 2, "returned a Sequential and a list, wanted a model and its"),
                              (["mine:made", "--table"], 0, "(model)  b    free"),
                              (["mine"], 2, "wanted MODULE:FACTORY"),
                              (["mine:nothing"], 2, "no attribute 'nothing'"), (["mine:three"], 2, "returned a int"),
                              (["mine:none"], 2, "returned a NoneType, wanted a model and"),
                              (["mine:wanting"], 2, "missing 1 required positional argument: 'what': wanted a function "
                                                    "without arguments"),
                              (["mine:wide"], 2, "'mine:wide': Sequential raises RuntimeError: "),
                              (["mine:wide"], 2, ": wanted a model and arguments that its forward takes on this"),
                              (["mine:failing"], 2, "'mine:failing' raised KeyError: 'weights'\n"),
                              (["mine:numbered"], 2, "returned arguments [1], wanted their names"),
                              (["mine:number"], 2, "is not callable: wanted a function"),
                              (["broken:made"], 2, "the import of broken raises ZeroDivisionError: division by zero"),
                              (["nowhere:made"], 2, "No module named 'nowhere': wanted a module that Python finds"),
                              (["mine:made", "--output", "x.yaml"], 2, "no module of a list of modules")):
        assert main(words) == code
        seen = capsys.readouterr()
        assert said in seen.out + seen.err, seen
    run = subprocess.run([sys.executable, "-m", "heddle", "explore", "mine:nothing"], text=True, capture_output=True,
                         timeout=limit_s())
    assert run.returncode == 2 and "heddle explore: 'mine:nothing'" in run.stderr, run.stderr


def test_the_command_plans_and_proves(tmp_path, in_folder, capsys):
    (tmp_path / "planned.py").write_text(
        "import torch\nfrom test_torch_prove import made\n\ndef linear():\n    return torch.nn.Linear(3, 3), "
        "(torch.randn(2, 7, 3),)\n")
    for words, code, said in ((["planned:made", "--plan", "[sp=3]"], 0, "switch to w@sp"),
                              (["planned:made", "--prove", "2"], 0, "2 ranks are as one"),
                              (["planned:made", "--plan", "[sp"], 2, "heddle explore: "),
                              (["planned:linear", "--prove", "2"], 2, "no module of a list of modules")):
        assert main(words) == code
        seen = capsys.readouterr()
        assert said in seen.out + seen.err, seen


class Balanced(html.parser.HTMLParser):
    """Every element that is opened is closed, and text is escaped."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.open += [] if tag == "meta" else [tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_and_the_bar(tmp_path, monkeypatch, in_folder, capsys):
    (tmp_path / "paged.py").write_text("from test_torch_prove import made\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["paged:made", "--prove", "2", "--html", "page.html"]) == 0
    seen = Balanced()
    text = (tmp_path / "page.html").read_text()
    seen.feed(text)
    assert seen.open == [] and "http" not in text, seen.open
    said = "".join(seen.text)
    for words in ("space", "mixes", "What 2 ranks send", "Switch('output'", "bytes sent"):
        assert words in said, said
    drawn = capsys.readouterr().err.split("\r\033[K")
    counts = [line.split("] ")[1].split()[0] for line in drawn if "] " in line]
    assert counts[0] == "0/23" and counts[-1] == "23/23" and drawn[-1] == "", drawn
    assert all(len(line) < 80 for line in drawn), drawn
    assert f"[{'#' * 30}]" in drawn[-2] and f"[{'.' * 30}]" in drawn[1], drawn
    assert main(["paged:made", "--html", "no/page.html"]) == 2 and "no/page.html" in capsys.readouterr().err


def test_the_example(tmp_path):
    example = os.path.join(os.environ["HEDDLE_SOURCE"], "examples", "python", "05_explore.py")
    run = subprocess.run([sys.executable, example], cwd=tmp_path, text=True, capture_output=True, timeout=limit_s())
    assert run.returncode == 0 and all(said in run.stdout for said in (
        "space.0: f@sp\n  time.0: s@sp", "\n4 ranks are as one: forward")), run.stdout + run.stderr
