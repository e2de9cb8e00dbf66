"""Models of diffusers, unmodified and randomly initialised, against one process."""
import os
from pathlib import Path

from ranks import JUDGE, fork

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
from diffusers import (AllegroTransformer3DModel, CogVideoXTransformer3DModel, DiffusionPipeline,  # once for all ranks
                       FluxTransformer2DModel, HunyuanVideoTransformer3DModel, LatteTransformer3DModel,
                       LTXVideoTransformer3DModel, QwenImageTransformer2DModel, SD3Transformer2DModel,
                       WanTransformer3DModel)

import torch._dynamo
import torch.distributed.fsdp

EXAMPLES = Path(os.environ["HEDDLE_SOURCE"]) / "examples" / "python"

COMMON = JUDGE + """
import copy
import os
import torch
import heddle
import heddle.diffusers
import heddle.torch as ht
from diffusers import (AllegroTransformer3DModel, CogVideoXTransformer3DModel, FluxTransformer2DModel,
                       HunyuanVideoTransformer3DModel, LatteTransformer3DModel, LTXVideoTransformer3DModel,
                       QwenImageTransformer2DModel, SD3Transformer2DModel, WanTransformer3DModel)

def latte(heads=4, frames=7, layers=2):
    torch.manual_seed(0)
    model = LatteTransformer3DModel(
        num_attention_heads=heads, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=layers,
        caption_channels=12, cross_attention_dim=heads * 8, attention_bias=True, sample_size=16, patch_size=2,
        activation_fn="gelu-approximate", num_embeds_ada_norm=1000, norm_type="ada_norm_single",
        norm_elementwise_affine=False, video_length=frames)
    return model

def wan(heads=4, layers=2):
    torch.manual_seed(0)
    return WanTransformer3DModel(num_attention_heads=heads, attention_head_dim=12, in_channels=4, out_channels=4,
                                 text_dim=16, freq_dim=32, ffn_dim=64, num_layers=layers, rope_max_seq_len=64)

def ltx(layers=2):
    torch.manual_seed(0)
    return LTXVideoTransformer3DModel(in_channels=4, out_channels=4, num_attention_heads=4, attention_head_dim=8,
                                      cross_attention_dim=32, num_layers=layers, caption_channels=16)

def given_ltx(tokens, dtype):  # 45 tokens
    draw = torch.Generator().manual_seed(7)
    return dict(hidden_states=torch.randn(2, 45, 4, generator=draw).to(dtype), num_frames=3, height=3, width=5,
                encoder_hidden_states=torch.randn(2, 5, 16, generator=draw).to(dtype),
                encoder_attention_mask=torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
                timestep=torch.tensor([[3], [500]]) if tokens == 1 else torch.arange(2 * tokens).view(2, tokens))

def hunyuan(heads=4, **more):
    torch.manual_seed(0)
    return HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=heads, attention_head_dim=12, num_layers=1,
        num_single_layers=1, num_refiner_layers=1, text_embed_dim=16, pooled_projection_dim=8, rope_axes_dim=(4, 4, 4),
        **more)

def given_hunyuan(b, text, dtype, video=(3, 6, 10)):  # 45 tokens, and words of which some are not there
    draw = torch.Generator().manual_seed(7)
    x, words, pooled = (torch.randn(shape, generator=draw).to(dtype)
                        for shape in ((b, 4, *video), (b, text, 16), (b, 8)))
    there = torch.arange(text) < torch.tensor([[max(text - 3, 1)], [text]])[:b]
    return dict(hidden_states=x, timestep=torch.tensor([3, 500][:b]), encoder_hidden_states=words,
                pooled_projections=pooled, guidance=torch.tensor([6.0] * b), encoder_attention_mask=there.long())

def cogvideox(heads=4, rotary=False, layers=2):
    torch.manual_seed(0)
    return CogVideoXTransformer3DModel(
        num_attention_heads=heads, attention_head_dim=16, in_channels=4, out_channels=4, time_embed_dim=8,
        text_embed_dim=16, num_layers=layers, sample_width=10, sample_height=6, sample_frames=9, patch_size=2,
        max_text_seq_length=35, use_rotary_positional_embeddings=rotary)

def given_cogvideox(b, dtype, rotary=False):  # 45 tokens, 35 words
    draw = torch.Generator().manual_seed(7)
    x, words = (torch.randn(shape, generator=draw).to(dtype) for shape in ((b, 3, 4, 6, 10), (b, 35, 16)))
    angle = torch.rand(45, 16, generator=draw)
    return dict(hidden_states=x, timestep=torch.tensor([3, 500][:b]), encoder_hidden_states=words,
                image_rotary_emb=(angle.cos(), angle.sin()) if rotary else None)

def allegro(heads=4, layers=2):
    torch.manual_seed(0)
    return AllegroTransformer3DModel(
        patch_size=2, num_attention_heads=heads, attention_head_dim=12, in_channels=4, out_channels=4,
        num_layers=layers, cross_attention_dim=heads * 12, sample_height=6, sample_width=10, sample_frames=3,
        caption_channels=16)

def given_allegro(b, dtype):  # 45 tokens
    draw = torch.Generator().manual_seed(7)
    x, words = (torch.randn(shape, generator=draw).to(dtype) for shape in ((b, 4, 3, 6, 10), (b, 5, 16)))
    angles = [torch.rand(extent, 4, generator=draw) for extent in (3, 3, 5)]
    places = torch.cartesian_prod(*(torch.arange(extent) for extent in (3, 3, 5))).T.reshape(3, 1, -1)
    return dict(hidden_states=x, encoder_hidden_states=words, timestep=torch.tensor([3, 500][:b]),
                image_rotary_emb=([(a.cos(), a.sin()) for a in angles], list(places)))

def flux(heads=4, layers=2, single=2):
    torch.manual_seed(0)
    return FluxTransformer2DModel(num_layers=layers, num_single_layers=single, in_channels=8,
                                  num_attention_heads=heads, attention_head_dim=16, joint_attention_dim=16,
                                  pooled_projection_dim=12, guidance_embeds=True, axes_dims_rope=(4, 6, 6))

def given_flux(b, dtype, text=35):  # 45 tokens
    draw = torch.Generator().manual_seed(7)
    x, words, pooled = (torch.randn(shape, generator=draw).to(dtype) for shape in ((b, 45, 8), (b, text, 16), (b, 12)))
    return dict(hidden_states=x, encoder_hidden_states=words, pooled_projections=pooled, guidance=torch.ones(b),
                timestep=torch.tensor([0.1, 0.7][:b]), txt_ids=torch.zeros(text, 3),
                img_ids=torch.cartesian_prod(*(torch.arange(extent) for extent in (1, 5, 9))).float())

def qwen(heads=4, layers=2, **more):
    torch.manual_seed(0)
    return QwenImageTransformer2DModel(patch_size=2, in_channels=16, out_channels=4, num_layers=layers,
                                       attention_head_dim=16, num_attention_heads=heads, joint_attention_dim=16,
                                       axes_dims_rope=(4, 6, 6), **more)

def given_qwen(b, dtype, text=35, masked=False, images=((1, 5, 9),)):  # 45 tokens
    draw = torch.Generator().manual_seed(7)
    tokens = sum(f * h * w for f, h, w in images)
    x, words = (torch.randn(shape, generator=draw).to(dtype) for shape in ((b, tokens, 16), (b, text, 16)))
    there = torch.arange(text) < torch.tensor([[max(text - 13, 1)], [text]])[:b]
    return dict(hidden_states=x, encoder_hidden_states=words, timestep=torch.tensor([0.1, 0.7][:b]),
                img_shapes=[list(images)] * b, encoder_hidden_states_mask=there.long() if masked else None)

def sd3(heads=4, dual=(0,)):
    torch.manual_seed(0)
    return SD3Transformer2DModel(
        sample_size=16, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=12, num_attention_heads=heads,
        joint_attention_dim=16, caption_projection_dim=heads * 12, pooled_projection_dim=12, pos_embed_max_size=12,
        dual_attention_layers=dual, qk_norm="rms_norm")

def given_sd3(b, dtype):  # 45 tokens, 35 words
    draw = torch.Generator().manual_seed(7)
    x, words, pooled = (torch.randn(shape, generator=draw).to(dtype)
                        for shape in ((b, 4, 10, 18), (b, 35, 16), (b, 12)))
    return dict(hidden_states=x, encoder_hidden_states=words, pooled_projections=pooled,
                timestep=torch.tensor([3, 500][:b]))

def given(model, b, frames, height, width, dtype, tokens=None):
    draw = torch.Generator().manual_seed(7)
    text = model.config.caption_channels if "caption_channels" in model.config else model.config.text_dim
    x = torch.randn(b, 4, frames, height, width, generator=draw).to(dtype)
    time = torch.tensor([3, 500][:b])
    return dict(hidden_states=x, timestep=time if tokens is None else torch.arange(b * tokens).view(b, tokens),
                encoder_hidden_states=torch.randn(b, 5, text, generator=draw).to(dtype))

def forward(model, inputs):
    return model(**inputs, return_dict=False)[0]

def stepped(model, inputs):
    model.zero_grad()
    inputs = {**inputs, "hidden_states": inputs["hidden_states"].clone().requires_grad_()}
    y = forward(model, inputs)
    (y * torch.arange(y.numel(), dtype=torch.float32).view_as(y).cos()).sum().backward()
    return y.detach(), inputs["hidden_states"].grad, [p.grad.clone() for p in model.parameters()
                                                       if p.grad is not None]

def in_float64(model, inputs):
    wide = {name: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for name, x in inputs.items()}
    return stepped(copy.deepcopy(model).double(), wide)

def distance(got, truth):
    return torch.stack([(a.double() - t).norm() for a, t in zip(got, truth)])

def no_farther_from_float64(model, inputs, ours, theirs):
    '''Ranks add up rows in another order than one process does, which is none the nearer to the truth.'''
    _, dx, dw = in_float64(model, inputs)
    truth = [dx, *dw]
    assert len(ours) == len(theirs) == len(truth)
    ours, theirs, size = distance(ours, truth), distance(theirs, truth), torch.stack([t.norm() for t in truth])
    assert ours.norm() <= min(1.1 * theirs.norm(), 1e-6 * size.norm()), (ours.norm(), theirs.norm(), size.norm())
    assert (ours <= 2 * theirs + 1e-6 * size).all(), (ours / size, theirs / size)

later = []  # what is to be judged, of which each rank takes a part, when none waits for it any more

def judge(rank=int(os.environ["HEDDLE_RANK"]), size=int(os.environ["HEDDLE_SIZE"])):
    for facts in later[rank::size]:
        no_farther_from_float64(*facts)

def compare(model, inputs, comm, method="auto", within=0.0, gradients=True):
    one = stepped(model, inputs) if gradients else (forward(model, inputs).detach(),)
    handle = heddle.diffusers.parallelize(model, comm, method)
    if gradients:
        y, dx, _ = stepped(model, inputs)
        ht.reduce_gradients(model.parameters(), sum_over=comm)
        dw = [p.grad for p in model.parameters() if p.grad is not None]
        handle.remove()
        later.append((model, inputs, [dx, *dw], [one[1], *one[2]]))
    else:
        y = forward(model, inputs).detach()
    handle.remove()
    far = float((y.float() - one[0].float()).abs().max())
    assert y.shape == one[0].shape and (torch.equal(y, one[0]) if within == 0 else far <= within), (far, within)
    assert torch.equal(forward(model, inputs), one[0])  # without hooks
    assert ("whatever stands beside it" in handle.why) == ("ulysses, since" in handle.why or "switch" in handle.why)
    return handle.why
"""


def test_models_are_as_one_process(tmp_path):
    output = fork(tmp_path, COMMON + """
with heddle.Comm.open() as comm:
    assert "switch" in compare(latte(), given(latte(), 2, 7, 6, 10, torch.float32), comm)
    compare(latte(layers=1), given(latte(), 1, 7, 6, 10, torch.float32), comm, gradients=False)
    compare(latte(3, 2), given(latte(3, 2), 1, 2, 6, 10, torch.float32), comm)  # a rank without frames
    compare(latte().bfloat16(), given(latte(), 1, 7, 6, 10, torch.bfloat16), comm, gradients=False)
    refused(heddle.ArgumentError, "switch, not ring", heddle.diffusers.parallelize, latte(), comm, "ring")

    few = given(wan(2), 1, 3, 6, 10, torch.float32)  # 45 tokens
    assert "ulysses" in compare(wan(), given(wan(), 2, 3, 6, 10, torch.float32), comm)
    compare(wan(layers=1), given(wan(), 1, 3, 6, 10, torch.float32, tokens=45), comm)  # a timestep for every token
    # 2 tokens, a rank without: torch multiplies one row by other sums than two
    compare(wan(layers=1), given(wan(), 1, 1, 2, 4, torch.float32), comm, within=1e-6)
    compare(wan(layers=1).bfloat16(), given(wan(), 1, 3, 6, 10, torch.bfloat16), comm, gradients=False)
    assert "2 heads are not enough" in compare(wan(2, 1), few, comm, within=1e-5)
    compare(wan(2, 1), few, comm, "ring", within=1e-5)
    compare(wan(2, 1), few, comm, "ulysses")  # a rank without heads
    again = wan(2, 1).train()
    again.enable_gradient_checkpointing()
    compare(again, few, comm, "ulysses")

    for layers, tokens in ((2, 1), (1, 45)):
        compare(ltx(layers), given_ltx(tokens, torch.float32), comm)
    compare(ltx(1).bfloat16(), given_ltx(1, torch.bfloat16), comm, gradients=False)

    why = compare(hunyuan(), given_hunyuan(2, 35, torch.float32), comm)
    assert "ulysses, since 4 heads are enough for 3 ranks" in why, why
    compare(hunyuan(2), given_hunyuan(1, 35, torch.float32), comm, "ulysses")  # a rank without heads
    assert "gather-kv" in compare(hunyuan(2), given_hunyuan(2, 35, torch.float32), comm, within=1e-5)
    compare(hunyuan(), given_hunyuan(2, 2, torch.float32), comm, "gather-kv", within=1e-5)
    # 2 words, a rank without: torch multiplies few rows by other sums
    compare(hunyuan(), given_hunyuan(2, 2, torch.float32), comm, within=1e-5)
    compare(hunyuan().bfloat16(), given_hunyuan(1, 35, torch.bfloat16), comm, gradients=False)
    refused(heddle.ArgumentError, "with a mask of text", heddle.diffusers.parallelize, hunyuan(), comm, "ring")
    # a picture of 24 tokens before 24 others: of 16 to each rank 16, 8 and none are the picture's
    picture = given_hunyuan(2, 35, torch.float32, (2, 8, 12))
    compare(hunyuan(image_condition_type="token_replace"), picture, comm)

    assert "over text and video" in compare(cogvideox(), given_cogvideox(2, torch.float32), comm)
    compare(cogvideox(2, True, 1), given_cogvideox(1, torch.float32, True), comm, "ulysses")
    compare(cogvideox(layers=1).bfloat16(), given_cogvideox(1, torch.bfloat16), comm, gradients=False)
    assert "gather-kv" in compare(cogvideox(2, layers=1), given_cogvideox(1, torch.float32), comm, within=1e-5)
    again = cogvideox(layers=1).train()
    again.enable_gradient_checkpointing()
    compare(again, given_cogvideox(1, torch.float32), comm)

    assert "ulysses" in compare(allegro(), given_allegro(2, torch.float32), comm)
    compare(allegro(layers=1).bfloat16(), given_allegro(1, torch.bfloat16), comm, gradients=False)
    compare(allegro(2, 1), given_allegro(1, torch.float32), comm, "ring", within=1e-5)

    assert "over text and image" in compare(flux(), given_flux(2, torch.float32), comm)
    compare(flux(2, 0, 1), given_flux(1, torch.float32), comm, "ulysses")  # a rank without heads
    compare(flux(layers=1, single=0), given_flux(1, torch.float32, text=2), comm, within=1e-5)  # or without words
    compare(flux(4, 1, 1).bfloat16(), given_flux(1, torch.bfloat16), comm, gradients=False)
    compare(flux(2, 1, 1), given_flux(1, torch.float32), comm, within=1e-5)
    residuals = dict(controlnet_block_samples=[torch.randn(1, 45, 64)], controlnet_single_block_samples=[
        torch.randn(1, 45, 64)])
    compare(flux(4, 2, 1), {**given_flux(1, torch.float32), **residuals}, comm)

    assert "over text and image" in compare(qwen(), given_qwen(2, torch.float32), comm)
    compare(qwen(layers=1), given_qwen(2, torch.float32, masked=True), comm)
    compare(qwen(2, 1), given_qwen(1, torch.float32, masked=True), comm, "ulysses")  # a rank without heads
    compare(qwen(layers=1), given_qwen(2, torch.float32, 2, True), comm, within=1e-5)  # or without words
    edited = given_qwen(1, torch.float32, images=((1, 5, 5), (1, 4, 6)))
    compare(qwen(layers=1, zero_cond_t=True), edited, comm)
    residuals = (torch.randn(1, 45, 64), torch.randn(1, 45, 64))
    compare(qwen(), {**given_qwen(1, torch.float32), "controlnet_block_samples": residuals}, comm)
    compare(qwen(layers=1).bfloat16(), given_qwen(1, torch.bfloat16, masked=True), comm, gradients=False)

    assert "over image and text" in compare(sd3(), given_sd3(2, torch.float32), comm)
    compare(sd3(2, ()), given_sd3(1, torch.float32), comm, "ulysses")
    compare(sd3(), {**given_sd3(1, torch.float32), "skip_layers": [0]}, comm, gradients=False)
    residuals = {"block_controlnet_hidden_states": [torch.randn(1, 45, 48)]}
    compare(sd3(), {**given_sd3(1, torch.float32), **residuals}, comm)
    compare(sd3().bfloat16(), given_sd3(1, torch.bfloat16), comm, gradients=False)
    again = sd3(2).train()
    again.enable_gradient_checkpointing()
    compare(again, given_sd3(1, torch.float32), comm, within=1e-5)
    refused(heddle.UnsupportedError, "knows no Linear", heddle.diffusers.parallelize, torch.nn.Linear(1, 1), comm)

import runpy
import sys
for name in ("03_latte.py", "04_wan.py"):  # the examples, of which every one joins the ranks again
    sys.argv = [name]
    runpy.run_path(os.path.join(%r, name))
judge()
print("ok", flush=True)
""" % str(EXAMPLES), 3)
    assert output.count("; the same bits") == 3 and output.count("gradients as one rank's") == 3, output


def test_models_are_known_by_what_they_are(tmp_path):
    """Derived classes, what wraps a model, and pipelines."""
    fork(tmp_path, COMMON + """
import functools
from diffusers import DiffusionPipeline
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import torch.distributed as dist

wan = functools.partial(wan, layers=1)

class Mine(WanTransformer3DModel):
    pass

class Adapted(torch.nn.Module):
    '''As PEFT's: what it wraps lies within a tuner.'''
    def __init__(self, model):
        super().__init__()
        self.base_model = torch.nn.Module()
        self.base_model.model = model

    def get_base_model(self):
        return self.base_model.model

    def __getattr__(self, name):  # what it has not is the model's, its _orig_mod say
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base_model.model, name)

    def forward(self, *given, **named):
        return self.get_base_model()(*given, **named)

class Pipeline(DiffusionPipeline):
    def __init__(self, transformer, transformer_2, text):
        super().__init__()
        self.register_modules(transformer=transformer, transformer_2=transformer_2, text=text)

def derived():
    model = wan()
    model.__class__ = Mine
    return model

def judged(model, inner, comm, words="WanTransformer3DModel on [sp=2]: ulysses"):
    inputs, seen = given(inner, 1, 3, 6, 10, torch.float32), []
    wanted = forward(wan(), inputs)
    handle = heddle.diffusers.parallelize(model, comm)
    hook = inner.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    assert torch.equal(forward(model, inputs), wanted) and set(seen) == {23 - comm.rank}, seen
    assert handle.why.startswith(words), handle.why
    hook.remove()
    handle.remove()
    assert not any(type(hook).__module__.startswith("heddle") for module in inner.modules()
                   for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()))

rank = int(os.environ["HEDDLE_RANK"])
dist.init_process_group("gloo", store=dist.FileStore(%r, 2), rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
with heddle.Comm.open() as comm, torch.no_grad():
    for wrap in (lambda model: model, Adapted, lambda model: torch.compile(model, backend="eager"),
                 lambda model: Adapted(torch.compile(model, backend="eager")),
                 lambda model: torch.compile(Adapted(model), backend="eager")):
        inner = wan()
        judged(wrap(inner), inner, comm)
    model = derived()
    judged(model, model, comm)
    sharded = wan()
    for module in (*sharded.blocks, sharded):
        fully_shard(module, mesh=mesh)
    assert type(sharded) is not WanTransformer3DModel
    judged(sharded, sharded, comm)

    two = Pipeline(wan(), torch.compile(wan(2), backend="eager"), torch.nn.Linear(1, 1))
    handle = heddle.diffusers.parallelize(two, comm)
    assert handle.why.count("WanTransformer3DModel on [sp=2]: ulysses") == 2, handle.why
    for heads, model in ((4, two.transformer), (2, two.transformer_2)):
        inputs = given(model, 1, 3, 6, 10, torch.float32)
        assert torch.equal(forward(model, inputs), forward(wan(heads), inputs))
    refused(heddle.ArgumentError, "is parallelized over these ranks already", heddle.diffusers.parallelize, two, comm)
    handle.remove()
    parts = Pipeline(wan(), wan(2), None)
    refused(heddle.ArgumentError, "method is 'no'", heddle.diffusers.parallelize, parts, comm, "no")
    held = heddle.diffusers.parallelize(parts.transformer_2, comm)
    refused(heddle.ArgumentError, "already", heddle.diffusers.parallelize, parts, comm)  # the second
    held.remove()
    for model in (parts.transformer, parts.transformer_2):
        assert not model._forward_pre_hooks  # of the first nothing stays
    alone = Pipeline(wan(), None, None)
    heddle.diffusers.parallelize(alone, comm).remove()
    wrapped = torch.nn.Sequential(torch.nn.Sequential(wan()))
    refused(heddle.UnsupportedError, "knows no Sequential: it knows Latte", heddle.diffusers.parallelize, wrapped, comm)
    refused(heddle.UnsupportedError, "Unwrap it: its .0.0 is one", heddle.diffusers.parallelize, wrapped, comm)
    refused(heddle.UnsupportedError, "With example=dict(...)", heddle.diffusers.parallelize,
            two.text, comm)
    refused(heddle.UnsupportedError, "knows no int", heddle.diffusers.parallelize, 3, comm)
dist.destroy_process_group()
print("ok", flush=True)
""" % str(tmp_path / "store"), 2)


def test_masks_and_batches_of_guidance(tmp_path):
    fork(tmp_path, COMMON + """
def masked(inputs):  # as one frame less is there of the second sample, and a column less of both
    there = torch.ones(2, 3, 6, 10)
    there[1, 2], there[..., 8:] = 0, 0
    return {**inputs, "attention_mask": there}

with heddle.Comm.open() as comm:
    compare(flux(4, 1, 1).bfloat16(), given_flux(2, torch.bfloat16), comm, gradients=False)
    compare(allegro(layers=1), masked(given_allegro(2, torch.float32)), comm)
    compare(allegro(2, 1), masked(given_allegro(2, torch.float32)), comm, within=1e-5)
    compare(allegro(layers=1).bfloat16(), masked(given_allegro(2, torch.bfloat16)), comm, gradients=False)
    whole = given_allegro(2, torch.float32)
    for inputs in (whole, masked(whole)):
        assert "ring" in compare(allegro(2, 1), inputs, comm, "ring", within=1e-5)
    for with_mask in (False, True):
        assert "ring" in compare(qwen(2, 1), given_qwen(2, torch.float32, masked=with_mask), comm, "ring", within=1e-5)
judge()
print("ok", flush=True)
""", 3)


def test_the_planner_decides_where_there_is_a_machine(tmp_path):
    fork(tmp_path, COMMON + f"""
FOLDER = {str(tmp_path)!r}
""" + """
import re

def machine(slow):
    '''A preset whose links are slow at these operations.'''
    made, path = heddle.Machine("8xh100-nvlink"), os.path.join(FOLDER, f"{'-'.join(slow)}.{comm.rank}.yaml")
    made.save(path)
    text = open(path).read()
    for operation in slow:
        text, n = re.subn(f"(?s)( {operation}:.*?rates: )[0-9.e+]+", "\\\\g<1>1000000", text, count=1)
        assert n == 1
    with open(path, "w") as file:
        file.write(text)
    return path

def milliseconds(why):
    return [float(found) for found in re.findall("([0-9.e+-]+) ms", why)]

with heddle.Comm.open() as comm, torch.no_grad():
    links = {"ulysses": machine(["ring", "all_gather"]), "ring": machine(["all_to_all", "all_gather"]),
             "gather-kv": machine(["ring", "all_to_all"])}
    for model, inputs in ((wan(), given(wan(), 1, 3, 6, 10, torch.float32)),
                          (cogvideox(), given_cogvideox(1, torch.float32)), (sd3(), given_sd3(1, torch.float32)),
                          (hunyuan(), given_hunyuan(1, 35, torch.float32))):
        one, has_ring = forward(model, inputs), not isinstance(model, HunyuanVideoTransformer3DModel)
        for method, where in links.items():
            if method == "ring" and not has_ring:
                continue
            asked = heddle.diffusers.parallelize(model, comm, machine=where, tokens=45)
            assert f"{method}, since the planner predicts " in asked.why, (method, asked.why)
            times = milliseconds(asked.why)
            assert len(times) == 2 + has_ring and times == sorted(times) and re.search("f32.* s=45 ", asked.why)
            assert ("ring" in asked.why) == has_ring and (method == "ulysses") == ("the same bits" in asked.why)
            got = forward(model, inputs)
            asked.remove()
            named = heddle.diffusers.parallelize(model, comm, method)
            assert torch.equal(forward(model, inputs), got) and (got - one).abs().max() <= 1e-5
            named.remove()
    model = latte(frames=6)
    handle = heddle.diffusers.parallelize(model, comm, machine="8xh100-nvlink", tokens=6 * 15)
    assert "switch, since the planner predicts" in handle.why and "t=6 s=15 " in handle.why, handle.why
    inputs = given(model, 1, 6, 6, 10, torch.float32)
    got = forward(model, inputs)
    handle.remove()
    assert torch.equal(forward(model, inputs), got)
    usual = heddle.diffusers.parallelize(wan().bfloat16(), comm, machine="8xh100-nvlink")
    assert "bf16[b=2 s=75600 " in usual.why, usual.why
    usual.remove()

    for kind, words, model, named in (
            (heddle.ArgumentError, "method is 'ring', which leaves nothing for a machine", wan(),
             dict(method="ring", machine="8xh100-nvlink")),
            (heddle.ArgumentError, "tokens is 45, which a machine alone asks for", wan(), dict(tokens=45)),
            (heddle.ArgumentError, "tokens is 0, wanted", wan(), dict(machine="8xh100-nvlink", tokens=0)),
            (heddle.ArgumentError, "tokens is '45', wanted", wan(), dict(machine="8xh100-nvlink", tokens="45")),
            (heddle.ArgumentError, "wanted a multiple of the 6 frames", latte(frames=6),
             dict(machine="8xh100-nvlink", tokens=91)),
            (heddle.ArgumentError, "nvlnk", wan(), dict(machine="8xh100-nvlnk")),
            (heddle.ArgumentError, "the machine is a int", wan(), dict(machine=3)),
            (heddle.ArgumentError, "the mesh has 2 ranks, machine", wan(), dict(machine="1xh100-nvlink")),
            (heddle.UnsupportedError, "asked for AllegroTransformer3DModel, whose config", allegro(),
             dict(machine="8xh100-nvlink"))):
        refused(kind, words, heddle.diffusers.parallelize, model, comm, **named)
        assert not model._forward_pre_hooks
print("ok", flush=True)
""", 2)
