"""Plans that were found beside those that were written by hand: they hold, and send no more bytes; and on ranks."""
import fnmatch
import re

import pytest
from ranks import fork
from test_torch_diffusers import COMMON

import heddle.diffusers

exec(COMMON.split("def forward(model")[0])  # the models and their arguments

F32 = torch.float32  # noqa: F821
MODELS = {
    "latte": lambda: (latte(), given(latte(), 2, 7, 6, 10, F32)),
    "wan": lambda: (wan(), given(wan(), 2, 3, 6, 10, F32)),
    "ltx": lambda: (ltx(), given_ltx(1, F32)),
    "hunyuan": lambda: (hunyuan(), given_hunyuan(2, 35, F32)),
    "cogvideox": lambda: (cogvideox(), given_cogvideox(2, F32)),
    "cogvideox-rotary": lambda: (cogvideox(2, True, 1), given_cogvideox(1, F32, True)),
    "allegro": lambda: (allegro(), given_allegro(2, F32)),
    "sd3": lambda: (sd3(), given_sd3(2, F32)),
    "flux": lambda: (flux(4, 1, 1), given_flux(2, F32)),
    "qwen": lambda: (qwen(), given_qwen(2, F32, masked=True)),
}


@pytest.mark.parametrize("name", MODELS)
def test_found_plans_send_no_more_than_those_by_hand(name):
    model, inputs = MODELS[name]()
    found = ht.explore(model, **inputs)
    for ranks in (2, 3, 4) if name == "latte" else (3,):
        plan = found.plan(model, f"[sp={ranks}]")
        mine = plan.prove(model, ranks=ranks, gradients=ranks == 3, **inputs)
        hand = heddle.diffusers.plan(model, f"[sp={ranks}]").prove(model, ranks=ranks, gradients=ranks == 3, **inputs)
        print(f"{name} on {ranks}: found {mine.bytes_total} bytes, by hand {hand.bytes_total}")
        assert mine and hand, (str(mine), str(hand), str(plan))
        assert 0 < mine.bytes_total <= hand.bytes_total and mine.forward <= 1e-6, (str(mine), str(hand))
    by_hand = heddle.diffusers.plan(model, "[sp=3]")
    assert ht.lint(model, by_hand, found=found, **inputs) == []
    if name in ("latte", "wan", "flux"):
        assert ht.lint(model, plan, found=found, **inputs) == []
        without_a_step(model, by_hand, found, inputs)


def without_a_step(model, plan, found, inputs):
    """Lint names the module of every step that is left out, or says the step."""
    flat = [(pattern, step) for pattern, steps in plan.steps
            for step in (steps if isinstance(steps, (tuple, list)) else (steps,))]
    told = 0
    for at, (pattern, step) in enumerate(flat):
        left = [pair for other, pair in enumerate(flat) if other != at]
        left = [(name, tuple(each for other, each in left if other == name)) for name in dict(left)]
        if ht.prove(model, left, ranks=3, **inputs):
            continue
        fault, *_ = ht.lint(model, left, found=found, **inputs)
        print(f"  without {pattern!r} {step}: {fault}")
        kind = type(step).__name__
        named = re.fullmatch(fnmatch.translate(pattern), fault.module)
        assert kind in fault.mend, (pattern, step, str(fault))
        taken_from = pattern in ("rope", "pos_embed", "context_embedder")  # whose results are seen where they are taken
        assert named or kind == "Sizes" or taken_from and kind == "Split", (pattern, step, str(fault))
        told += 1
    assert told >= 4, told


def test_explored_models_on_ranks(tmp_path):
    fork(tmp_path, COMMON + """
with heddle.Comm.open() as comm:
    for model, inputs in ((latte(), given(latte(), 2, 7, 6, 10, torch.float32)),
                          (wan(), given(wan(), 2, 3, 6, 10, torch.float32))):
        found = ht.explore(model, **inputs)
        other = given(model, 1, 7, 8, 6, torch.float32)
        one = stepped(model, other)
        handle = ht.parallelize(model, found, comm)
        y, dx, _ = stepped(model, other)
        ht.reduce_gradients(model.parameters(), sum_over=comm)
        dw = [p.grad for p in model.parameters() if p.grad is not None]
        handle.remove()
        assert torch.equal(y, one[0]), (y - one[0]).abs().max()
        if comm.rank == 0:
            no_farther_from_float64(model, other, [dx, *dw], [one[1], *one[2]])
        words = ("switch to s@sp", "bytes") if isinstance(model, LatteTransformer3DModel) else ("ulysses",)
        assert all(word in handle.why for word in words), handle.why
        refused(heddle.ArgumentError, "the model is a Linear", ht.parallelize, torch.nn.Linear(1, 1), found, comm)
        assert torch.equal(forward(model, other), one[0]) and not model._forward_pre_hooks

    class Mine(WanTransformer3DModel):
        pass
    model = wan()
    model.__class__ = Mine
    heddle.diffusers.register(Mine, lambda model, method, saved: {
        "rope": (ht.Split("output.0", "_ s _ _", "s"), ht.Split("output.1", "_ s _ _", "s")),
        "blocks.0": ht.Split("hidden_states", "b s c", "s"), "blocks.*.attn1": ht.Attend("s", method, saved),
        "proj_out": ht.Gather("output", "b s o", "s")})
    assert heddle.diffusers.parallelize(model, comm).why.startswith("Mine on [sp=2]: ulysses")
    refused(heddle.ArgumentError, "attends by no, wanted", heddle.diffusers.register, "Mine", print, ["no"])
print("ok", flush=True)
""", 2)
