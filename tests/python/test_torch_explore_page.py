"""The page of an exploration as a browser shows it, and the steps of a plan as one would write them."""
import html
import json
import re
import shutil
import subprocess

import pytest
import torch
from explore_kit import in_folder  # noqa: F401
from ranks import limit_s
from test_torch_prove import made

import heddle.torch as ht
from heddle.torch import Attend, Extent, Gather, Halo, Split, Sums, Switch
from heddle.torch.exploring.command import main
from heddle.torch.planning.plan import Plan

MODELS = """
import torch
from test_torch_prove import made

class Net(torch.nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(
            torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8)) for _ in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x

class Padded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        x = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 32))
        for block in self.blocks:
            x = block(x).cumsum(1).flip(1)
        return x.sum(1)

def hinted():
    return Net(2), torch.randn(2, 8, 11, 14)

def refused():
    return Padded(), torch.randn(2, 9, 8)

def big():
    torch.manual_seed(0)
    model = Net(40)
    model.blocks[-1] = torch.nn.Sequential(*(torch.nn.Sequential(block) for block in model.blocks[-1]))
    return model.eval(), torch.randn(2, 8, 11, 14)
"""
# What a page says of itself: how wide it is, what is wider than its place, words of cells and of their key by colour,
# where the names of modules begin.
SCRIPT = """<pre id="found"></pre><script>
var all=function(s){return Array.from(document.querySelectorAll(s))};
document.getElementById('found').textContent=JSON.stringify({wide:document.documentElement.scrollWidth,
cut:all('td,th,p,pre').filter(function(e){return e.scrollWidth>e.clientWidth+1}).map(function(e){return e.textContent}),
cells:all('td.dim').map(function(e){return [e.textContent,getComputedStyle(e).backgroundColor]}),
key:all('.key b').map(function(e){return [e.textContent,getComputedStyle(e).backgroundColor]}),
names:all('tr td:first-child').map(function(e){var r=document.createRange();r.selectNodeContents(e);
return [e.textContent,Math.round(r.getBoundingClientRect().left)]})});</script>"""


def shown(folder, page):
    """What a browser says of a page."""
    (folder / "shown.html").write_text(page.replace("</body>", SCRIPT + "</body>"))
    run = subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900",
                          "--disable-background-networking", f"--user-data-dir={folder}/profile", "--dump-dom",
                          (folder / "shown.html").as_uri()], capture_output=True, text=True, timeout=limit_s())
    return json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', run.stdout, re.S)[1]))


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium (Debian: chromium)")
@pytest.mark.parametrize("name,code,kinds", (("hinted", 0, {"free", "halo", "mixes", "reduction"}),
                                             ("refused", 2, {"free", "mixes"}), ("big", 0, {"free", "halo", "mixes"})))
def test_the_page_in_a_browser(tmp_path, in_folder, name, code, kinds):
    (tmp_path / "browsed.py").write_text(MODELS)
    assert main([f"browsed:{name}", "--prove", "3", "--html", "page.html"]) == code
    seen = shown(tmp_path, (tmp_path / "page.html").read_text())
    assert seen["wide"] <= 1200 and seen["cut"] == [], seen
    colours = {words.split()[0]: colour for words, colour in seen["cells"]}
    assert colours == dict(seen["key"]) and colours.keys() == kinds, seen  # one of each kind, and the key has it
    at = dict(seen["names"])
    assert list(at)[1].startswith("blocks.0 ") and at["blocks.0 " + list(at)[1].split()[1]] > seen["names"][0][1], at
    assert name != "hinted" or at["0 Conv2d"] > at["blocks.0 Sequential"] == at["blocks.1 Sequential"], at


def test_a_model_without_a_plan_has_its_page(tmp_path, in_folder, capsys):
    (tmp_path / "unplanned.py").write_text(MODELS)
    assert main(["unplanned:refused", "--plan", "[sp=2]", "--html", "page.html"]) == 2
    page, said = (tmp_path / "page.html").read_text(), capsys.readouterr().err
    assert "No plan" in page and "no module of a list of modules" in page and "no module of a list" in said


def test_what_is_in_vain_is_refused_before_the_model_is_made(tmp_path, monkeypatch, in_folder, capsys):
    (tmp_path / "unwritten.py").write_text("def made():\n    raise SystemExit(0)\n")
    before = sorted(tmp_path.rglob("*"))
    for words, said in (
            (["--html", "none/page.html", "--output", "x.yaml"], "--html 'none/page.html': there is no folder 'none'"),
            (["--html", str(tmp_path)], "it is a folder"), (["--output", ""], "it has no letters"),
            (["--output", "unwritten.py/x.yaml"], "there is no folder 'unwritten.py'"),
            (["--prove", "0"], "--prove is 0, wanted 1 rank"), (["--plan", ""], "--plan '': mesh, column 1"),
            (["--plan", "[sp=0]"], "axis 'sp' has size 0, less than 1: wanted ranks as in [sp=4]"),
            (["--plan", "[dp=2 sp=2]"], "wanted one axis: [sp=4]"),
            (["--output", "x.yaml"], "'unwritten:made' raised SystemExit: 0")):
        assert main(["unwritten:made", *words]) == 2
        seen = capsys.readouterr()
        assert not seen.out and seen.err.startswith("heddle explore: ") and said in seen.err, seen
        assert seen.err.count("\n") == 1
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert main(["unwritten:made", "--html", "page.html"]) == 2 and "nobody may write there" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_that_is_full(tmp_path, in_folder, capsys):
    (tmp_path / "filling.py").write_text(MODELS)
    assert main(["filling:hinted", "--output", "/dev/full"]) == 2
    assert capsys.readouterr().err == "heddle explore: '/dev/full': No space left on device\n"


def test_steps_as_one_would_write_them():
    model, given = made()
    plan = ht.explore(model, **given).plan(model, "[sp=3]")
    by_hand = Plan([("a", Attend("s", "ring", alike=0)), ("b", (Split("x", "b s", ("l", "s"), True),)),
                    ("c", [Halo("x", "b s", "s", 2, 0), Sums("s"), Extent("n", "s")]),
                    ("d", (Switch("x", "b s t", "s", "t", as_="b t s"), Gather("output.0", "b s", "s")))])
    names = {kind.__name__: kind for kind in (Attend, Extent, Gather, Halo, Split, Sums, Switch, ht.Sizes)}
    for each in (plan, by_hand):
        steps = [(name, tuple(given) if isinstance(given, list) else given) for name, given in each.steps]
        assert list(eval(each.code(), names).items()) == steps, each
        assert each.code() in str(each) and "optional=False" not in each.code()
    assert Plan([("a", "b")]).code() == "{\n    'a': b,\n}"  # no step, as `parallelize` will say
