"""Models of diffusers on several ranks, unmodified.

    handle = heddle.diffusers.parallelize(transformer, comm)
    print(handle.why)                                 # what was chosen, and why
    sample = transformer(latents, timestep, text)     # the whole on every rank, before and after
"""
from __future__ import annotations

from typing import Any, Callable, Dict, Sequence, Tuple, Union

from .attention import check_saved
from .comm import Comm
from .errors import ArgumentError, UnsupportedError
from .torch.attending import Attend
from .torch.modules import Count, Gather, Parallel, Sizes, Split, Step, Switch, put_on

_Plan = Dict[str, Union[Step, Sequence[Step]]]


def parallelize(model: Any, comm: Comm, method: str = "auto", saved_forwards: int = 1) -> Parallel:
    """Puts heddle's hooks on a model of diffusers; `handle.remove()` takes them off, `handle.why` says what was chosen.
    Arguments and results are whole on every rank; forward is bitwise what one process computes, unless attention is the
    library's ("ring", "gather-kv"). Gradients of parameters are addends: heddle.torch.reduce_gradients.

    method          "auto", or how attention over all tokens runs, where the model has it: "ulysses" "ring" "gather-kv"
    saved_forwards  of heddle.Attention, for methods of the library: as many as layers save a second forward
    """
    def made() -> Tuple[_Plan, str]:
        name = type(model).__name__
        if name not in _PLANS:
            raise UnsupportedError(f"heddle.diffusers knows no {name}: it knows {', '.join(_PLANS)}. "
                                   f"{_model_in(model)}")
        check_saved("heddle.diffusers.parallelize", saved_forwards)
        steps, why = _PLANS[name](model, comm, method, saved_forwards)
        return steps, f"{name} on {comm.mesh}: {why}"
    return put_on(model, made, comm)


def _model_in(model: Any) -> str:
    """What to do about something that is no model that is known."""
    components = getattr(model, "components", None)
    for name, part in components.items() if isinstance(components, dict) else ():
        if type(part).__name__ in _PLANS:
            return f"It is a pipeline, whose {name} is one: pass pipeline.{name}"
    return "heddle.torch.parallelize takes a plan of your own"


def _latte(model: Any, comm: Comm, method: str, saved: int) -> Tuple[_Plan, str]:
    if method not in ("auto", "switch"):
        raise ArgumentError("LatteTransformer3DModel attends over frames and places in turn: its method is switch, not "
                            f"{method}")
    later: _Plan = {"transformer_blocks.[1-9]*": Switch("hidden_states", "(b t) s c", "s", "t")}
    return {
        "": Sizes("hidden_states", "b _ t _ _"),
        "transformer_blocks.0": Split("hidden_states", "(b t) s c", "t"),
        **(later if len(model.transformer_blocks) > 1 else {}),
        "transformer_blocks.*": (Split("encoder_hidden_states", "(b t) l e", "t"), Split("timestep", "(b t) g", "t"),
                                 Switch("output", "(b t) s c", "t", "s")),
        "temporal_transformer_blocks.*": Split("timestep", "(b s) g", "s"),
        "proj_out": Gather("output", "(b t) s o", "s"),
    }, "switch: spatial blocks have whole frames, temporal blocks whole fibres of time: bitwise as one process"


def _wan(model: Any, comm: Comm, method: str, saved: int) -> Tuple[_Plan, str]:
    chosen, why = _method(model.config.num_attention_heads, comm, method)
    return {
        "rope": (Split("output.0", "_ s _ _", "s"), Split("output.1", "_ s _ _", "s")),
        "condition_embedder": (Split("output.0", "b s g", "s", optional=True),  # a timestep for every token
                               Split("output.1", "b s m", "s", optional=True)),
        "blocks.0": Split("hidden_states", "b s c", "s"),
        "blocks.*.attn1": Attend("s", chosen, saved),
        "proj_out": Gather("output", "b s o", "s"),
    }, why


def _ltx(model: Any, comm: Comm, method: str, saved: int) -> Tuple[_Plan, str]:
    chosen, why = _method(model.config.num_attention_heads, comm, method)
    return {
        "": Sizes("hidden_states", "b s _"),
        "rope": (Split("output.0", "b s _", "s"), Split("output.1", "b s _", "s")),
        "time_embed": (Split("output.0", "(b s) m", "s", optional=True),  # a timestep for every token
                       Split("output.1", "(b s) g", "s", optional=True)),
        "transformer_blocks.0": Split("hidden_states", "b s c", "s"),
        "transformer_blocks.*.attn1": Attend("s", chosen, saved),
        "proj_out": Gather("output", "b s o", "s"),
    }, why


def _hunyuan(model: Any, comm: Comm, method: str, saved: int) -> Tuple[_Plan, str]:
    chosen, why = _method(model.config.num_attention_heads, comm, method)
    if chosen == "ring":
        raise ArgumentError("HunyuanVideoTransformer3DModel attends with a mask of text, which ring does not know: "
                            "ulysses and gather-kv do")
    blocks, joint = "transformer_blocks", ("s", "l")
    plan: _Plan = {
        "rope": (Split("output.0", "s _", "s"), Split("output.1", "s _", "s")),
        f"{blocks}.0": (Split("hidden_states", "b s c", "s"), Split("encoder_hidden_states", "b l c", "l")),
        f"{blocks}.*.attn": Attend(joint, chosen, saved),
        f"single_{blocks}.*.attn": Attend(joint, chosen, saved),
        "proj_out": Gather("output", "b s o", "s"),
    }
    if model.config.image_condition_type == "token_replace":  # tokens of the first frame, a picture, are treated apart
        plan.update({f"{blocks}.*": Count("num_tokens", "s"), f"single_{blocks}.*": Count("num_tokens", "s")})
    return plan, f"over video and text, both cut, with the text's mask: {why}"


def _cogvideox(model: Any, comm: Comm, method: str, saved: int) -> Tuple[_Plan, str]:
    chosen, why = _method(model.config.num_attention_heads, comm, method)
    return {
        "transformer_blocks.0": (Split("hidden_states", "b s c", "s"), Split("encoder_hidden_states", "b l c", "l")),
        "transformer_blocks.*": (Split("image_rotary_emb.0", "s _", "s"), Split("image_rotary_emb.1", "s _", "s")),
        "transformer_blocks.*.attn1": Attend(("l", "s"), chosen, saved),
        "proj_out": Gather("output", "b s o", "s"),
    }, f"over text and video, both cut: {why}"


def _allegro(model: Any, comm: Comm, method: str, saved: int) -> Tuple[_Plan, str]:
    chosen, why = _method(model.config.num_attention_heads, comm, method)
    return {
        "transformer_blocks.0": Split("hidden_states", "b s c", "s"),
        "transformer_blocks.*": [Split(f"image_rotary_emb.1.{axis}", "_ s", "s") for axis in range(3)],
        "transformer_blocks.*.attn1": Attend("s", chosen, saved),
        "proj_out": Gather("output", "b s o", "s"),
    }, why


def _flux(model: Any, comm: Comm, method: str, saved: int) -> Tuple[_Plan, str]:
    chosen, why = _method(model.config.num_attention_heads, comm, method)
    plan: _Plan = {
        "": (Split("hidden_states", "b s i", "s"), Split("img_ids", "s _", "s"),
             Split("encoder_hidden_states", "b l e", "l"), Split("txt_ids", "l _", "l")),
        "proj_out": Gather("output", "b s o", "s"),
    }
    for blocks in ("transformer_blocks", "single_transformer_blocks"):
        if len(getattr(model, blocks)) > 0:
            plan[f"{blocks}.*.attn"] = Attend(("l", "s"), chosen, saved)
    return plan, f"over text and image, both cut: {why}"


def _qwen(model: Any, comm: Comm, method: str, saved: int) -> Tuple[_Plan, str]:
    chosen, why = _method(model.config.num_attention_heads, comm, method)
    return {
        "pos_embed": (Split("output.0", "s _", "s"), Split("output.1", "l _", "l")),
        "transformer_blocks.0": (Split("hidden_states", "b s c", "s"), Split("encoder_hidden_states", "b l c", "l")),
        "transformer_blocks.*": (Split("encoder_hidden_states_mask", "b l", "l"), Split("modulate_index", "b s", "s")),
        "transformer_blocks.*.attn": Attend(("l", "s"), chosen, saved),
        "proj_out": Gather("output", "b s o", "s"),
    }, f"over text and image, both cut: {why}"


def _sd3(model: Any, comm: Comm, method: str, saved: int) -> Tuple[_Plan, str]:
    chosen, why = _method(model.config.num_attention_heads, comm, method)
    plan: _Plan = {
        "pos_embed": Split("output", "b s c", "s"),
        "context_embedder": Split("output", "b l e", "l"),
        "transformer_blocks.*.attn": Attend(("s", "l"), chosen, saved),
        "proj_out": Gather("output", "b s o", "s"),
    }
    if len(model.config.dual_attention_layers) > 0:
        plan["transformer_blocks.*.attn2"] = Attend("s", chosen, saved)
    return plan, f"over image and text, both cut: {why}"


def _method(heads: int, comm: Comm, method: str) -> Tuple[str, str]:
    if method == "auto" and heads >= comm.size:
        return "ulysses", f"ulysses, since {heads} heads are enough for {comm.size} ranks: bitwise as one process"
    if method == "auto":
        return "gather-kv", (f"gather-kv, since {heads} heads are not enough for {comm.size} ranks by ulysses: within "
                             "rounding of one process")
    if method not in ("ulysses", "ring", "gather-kv"):
        raise ArgumentError(f"method is '{method}', wanted auto, ulysses, ring or gather-kv")
    return method, f"{method}, as asked for"


_PLANS: Dict[str, Callable[[Any, Comm, str, int], Tuple[_Plan, str]]] = {
    "LatteTransformer3DModel": _latte,
    "WanTransformer3DModel": _wan,
    "LTXVideoTransformer3DModel": _ltx,
    "HunyuanVideoTransformer3DModel": _hunyuan,
    "CogVideoXTransformer3DModel": _cogvideox,
    "AllegroTransformer3DModel": _allegro,
    "FluxTransformer2DModel": _flux,
    "QwenImageTransformer2DModel": _qwen,
    "SD3Transformer2DModel": _sd3,
}
