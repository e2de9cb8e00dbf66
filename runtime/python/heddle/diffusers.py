"""Models of diffusers on several ranks, unmodified.

    handle = heddle.diffusers.parallelize(transformer, comm)    # or a pipeline: whatever transformers it has
    print(handle.why)                                 # what was chosen, and why
    sample = transformer(latents, timestep, text)     # the whole on every rank, before and after
"""
from __future__ import annotations

import functools
import json
import os
import re
import tempfile
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from .attention import check_saved
from .comm import Comm
from .errors import ArgumentError, InfeasibleError, ParseError, UnsupportedError
from .line import axis_of
from .machine import Machine, MachineLike, machine_of
from .model import import_config
from .schedule import Schedule
from .schedule import plan as planned
from .torch.attending import Attend
from .torch.exploring import explore
from .torch.modules import Count, Gather, Parallel, Sizes, Split, Switch, put_on
from .torch.planning import Plan
from .torch.ranks import Ranks
from .torch.step import Step

_Plan = Dict[str, Union[Step, Sequence[Step]]]

_SAME = "the same bits as one process, as far as torch's kernels give a row its bits whatever stands beside it"


def parallelize(model: Any, comm: Comm, method: str = "auto", saved_forwards: int = 1, *,
                machine: Optional[MachineLike] = None, tokens: Optional[int] = None,
                example: Optional[Mapping[str, Any]] = None, dims: Optional[Mapping[str, str]] = None) -> Parallel:
    """Puts heddle's hooks on a model of diffusers; `handle.remove()` takes them off, `handle.why` says what was chosen.
    Arguments and results are whole on every rank. With "switch" and "ulysses" every row goes through torch's kernels as
    in one process: the same bits where a kernel gives a row the same bits whatever other rows stand beside it, else
    within rounding, as with "ring" and "gather-kv". Gradients of parameters are addends:
    heddle.torch.reduce_gradients.

    model           a model that is known, or one of a class derived from it; wrapped by torch.compile, PEFT's
                    get_peft_model or fully_shard, or before that; or a pipeline, all of whose known models are taken
                    (transformer, transformer_2). Another wrapper is refused, with the name of what is in it
    method          "auto", or how attention over all tokens runs, where the model has it: "ulysses" "ring" "gather-kv"
    saved_forwards  of heddle.Attention, for methods of the library: as many as layers save a second forward
    machine         of "auto": a heddle.Machine, or its name or file, on which heddle.plan predicts the seconds of a
                    pass by each method that the model has; the fewest are taken, and `handle.why` has them all. None:
                    ulysses where heads are enough for the ranks, else gather-kv
    tokens          of the sequence (of a video: frames times places), for the machine; None: those of the clip that is
                    usual for the model
    example         the arguments of a forward of small extents, for a model of a class that has no plan here: it is
                    explored with them (heddle.torch.explore, with these `dims`), which takes seconds, and the plan that
                    is found is proved; `handle.why` says so. Of a class that is known they are not looked at

    ArgumentError: a method that this model does not have, a machine or tokens where nothing is left to decide, more
    ranks than the machine has; and what heddle.Machine raises. Of a model that `heddle import` does not know
    (AllegroTransformer3DModel) a machine is refused with UnsupportedError.
    """
    on = _machine_of(method, machine, tokens)
    handles: List[Parallel] = []
    try:
        for each in _models_of(model):
            made = functools.partial(_plan_of, each, comm, method, saved_forwards, on, tokens)
            if example is not None and _known(each) is None and not _holding(each):
                made = functools.partial(_explored, each, comm.mesh, method, saved_forwards, machine, example, dims)
            handles.append(put_on(each, made, Ranks(comm)))
    except BaseException:
        for handle in handles:
            handle.remove()
        raise
    return Parallel.together(handles)


def plan(model: Any, mesh: str, method: str = "auto", saved_forwards: int = 1, *,
         machine: Optional[MachineLike] = None, tokens: Optional[int] = None) -> Plan:
    """The plan that `parallelize` takes on such ranks, `[sp=4]`; needs none of them: `plan.prove(model, ...)`."""
    size = axis_of(mesh)[1]
    on = _machine_of(method, machine, tokens)
    steps, why = _plan_of(_unwrapped(model), _Ranks(mesh, size), method, saved_forwards, on, tokens)
    return Plan(list(steps.items()), why)


class _Ranks(NamedTuple):
    mesh: str
    size: int


def register(kind: "str | type", steps: Callable[[Any, str, int], _Plan],
             methods: Sequence[str] = ("ulysses", "ring", "gather-kv")) -> None:
    """From now on `parallelize` and `plan` know a further model, also in pipelines and wrappers.

        heddle.diffusers.register(Mine, lambda model, method, saved_forwards: {
            "blocks.0": Split("hidden_states", "b s c", "s"),
            "blocks.*.attn": Attend("s", method, saved_forwards), "proj_out": Gather("output", "b s o", "s")})

    kind     the class, or its name; one that is known already is replaced
    steps    gives the steps for `heddle.torch.parallelize`: of the model, the method that was chosen, and how many
             forwards `Attend` keeps
    methods  by which it attends; ("switch",) where the steps switch and attend by none. By number of heads one is
             chosen of a model with `config.num_attention_heads`
    """
    name = kind if isinstance(kind, str) else kind.__name__
    if not callable(steps):
        raise ArgumentError(f"register: the steps of {name} are a {type(steps).__name__}, wanted a function of the "
                            "model, the method and saved_forwards")
    wrong = [method for method in methods if method not in ("switch", "ulysses", "ring", "gather-kv")]
    if wrong or not methods:
        raise ArgumentError(f"register: {name} attends by {wrong[0] if wrong else 'nothing'}, wanted some of switch, "
                            "ulysses, ring, gather-kv")
    _PLANS[name] = lambda model, chosen, why, saved: (steps(model, chosen, saved), why)
    _METHODS[name] = tuple(methods)


def _machine_of(method: str, machine: Optional[MachineLike], tokens: Optional[int]) -> Optional[Machine]:
    if machine is not None and method != "auto":
        raise ArgumentError(f"method is {method!r}, which leaves nothing for a machine to decide: wanted "
                            "method='auto', or no machine")
    if tokens is not None and machine is None:
        raise ArgumentError(f"tokens is {tokens!r}, which a machine alone asks for: wanted one, "
                            "machine='8xh100-nvlink'")
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1):
        raise ArgumentError(f"tokens is {tokens!r}, wanted a number of at least 1")
    return None if machine is None else machine_of(machine)


def _plan_of(model: Any, comm: Union[Comm, _Ranks], method: str, saved_forwards: int, machine: Optional[Machine],
             tokens: Optional[int]) -> Tuple[_Plan, str]:
    name = _known(model)
    if name is None:
        raise UnsupportedError(f"heddle.diffusers knows no {type(model).__name__}: it knows {', '.join(_PLANS)}. "
                               f"{_model_in(model)}")
    check_saved("heddle.diffusers.parallelize", saved_forwards)
    chosen, why = (_method(name, model, comm, method) if machine is None else
                   _fastest(name, model, comm, machine, tokens))
    steps, why = _PLANS[name](model, chosen, why, saved_forwards)
    return steps, f"{name} on {comm.mesh}: {why}"


def _explored(model: Any, mesh: str, method: str, saved: int, machine: Optional[MachineLike],
              example: Mapping[str, Any], dims: Optional[Mapping[str, str]]) -> Tuple[Any, str]:
    """The plan of a class that has none here."""
    plan = explore(model, dims=dims, **example).plan(model, mesh, method=method, machine=machine, saved_forwards=saved)
    why = f"{type(model).__name__} on {mesh} was explored, since no plan is known for it: {plan.why}; {plan.proof}"
    return plan.steps, "\n".join([why, *plan.stages])


def _known(model: Any) -> Optional[str]:
    """The class that it is of, or is derived from, as a user's own and fully_shard's are."""
    return next((kind.__name__ for kind in type(model).__mro__ if kind.__name__ in _PLANS), None)


def _unwrapped(model: Any) -> Any:
    """What torch.compile and PEFT have put something around, and call as it is."""
    while _known(model) is None:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif hasattr(model, "get_base_model"):
            model = model.get_base_model()
        else:
            break
    return model


def _models_of(model: Any) -> List[Any]:
    """The models that are known of a pipeline; else what was given, unwrapped."""
    components = getattr(model, "components", None)
    parts = [_unwrapped(part) for part in components.values()] if isinstance(components, dict) else []
    return [part for part in parts if _known(part)] or [_unwrapped(model)]


def _holding(model: Any) -> str:
    """The path of a model that is known within it."""
    return next((path for path, part in getattr(model, "named_modules", list)() if _known(part)), "")


def _model_in(model: Any) -> str:
    """What to do about something that is no model that is known."""
    if _holding(model):
        return f"Unwrap it: its .{_holding(model)} is one, parallelize that before it is wrapped"
    return "With example=dict(...), the arguments of a small forward, it is explored; or write a plan (heddle.torch)"


def _latte(model: Any, chosen: str, why: str, saved: int) -> Tuple[_Plan, str]:
    later: _Plan = {"transformer_blocks.[1-9]*": Switch("hidden_states", "(b t) s c", "s", "t")}
    return {
        "": Sizes("hidden_states", "b _ t _ _"),
        "transformer_blocks.0": Split("hidden_states", "(b t) s c", "t"),
        **(later if len(model.transformer_blocks) > 1 else {}),
        "transformer_blocks.*": (Split("encoder_hidden_states", "(b t) l e", "t"), Split("timestep", "(b t) g", "t"),
                                 Switch("output", "(b t) s c", "t", "s")),
        "temporal_transformer_blocks.*": Split("timestep", "(b s) g", "s"),
        "proj_out": Gather("output", "(b t) s o", "s"),
    }, why


def _wan(model: Any, chosen: str, why: str, saved: int) -> Tuple[_Plan, str]:
    return {
        "rope": (Split("output.0", "_ s _ _", "s"), Split("output.1", "_ s _ _", "s")),
        "condition_embedder": (Split("output.0", "b s g", "s", optional=True),  # a timestep for every token
                               Split("output.1", "b s m", "s", optional=True)),
        "blocks.0": Split("hidden_states", "b s c", "s"),
        "blocks.*.attn1": Attend("s", chosen, saved),
        "proj_out": Gather("output", "b s o", "s"),
    }, why


def _ltx(model: Any, chosen: str, why: str, saved: int) -> Tuple[_Plan, str]:
    return {
        "": Sizes("hidden_states", "b s _"),
        "rope": (Split("output.0", "b s _", "s"), Split("output.1", "b s _", "s")),
        "time_embed": (Split("output.0", "(b s) m", "s", optional=True),  # a timestep for every token
                       Split("output.1", "(b s) g", "s", optional=True)),
        "transformer_blocks.0": Split("hidden_states", "b s c", "s"),
        "transformer_blocks.*.attn1": Attend("s", chosen, saved),
        "proj_out": Gather("output", "b s o", "s"),
    }, why


def _hunyuan(model: Any, chosen: str, why: str, saved: int) -> Tuple[_Plan, str]:
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


def _cogvideox(model: Any, chosen: str, why: str, saved: int) -> Tuple[_Plan, str]:
    return {
        "transformer_blocks.0": (Split("hidden_states", "b s c", "s"), Split("encoder_hidden_states", "b l c", "l")),
        "transformer_blocks.*": (Split("image_rotary_emb.0", "s _", "s"), Split("image_rotary_emb.1", "s _", "s")),
        "transformer_blocks.*.attn1": Attend(("l", "s"), chosen, saved),
        "proj_out": Gather("output", "b s o", "s"),
    }, f"over text and video, both cut: {why}"


def _allegro(model: Any, chosen: str, why: str, saved: int) -> Tuple[_Plan, str]:
    return {
        "transformer_blocks.0": Split("hidden_states", "b s c", "s"),
        "transformer_blocks.*": [*(Split(f"image_rotary_emb.1.{axis}", "_ s", "s") for axis in range(3)),
                                 Split("attention_mask", "b _ s", "s")],
        "transformer_blocks.*.attn1": Attend("s", chosen, saved),
        "proj_out": Gather("output", "b s o", "s"),
    }, why


def _flux(model: Any, chosen: str, why: str, saved: int) -> Tuple[_Plan, str]:
    plan: _Plan = {
        "": (Split("hidden_states", "b s i", "s"), Split("img_ids", "s _", "s"),
             Split("encoder_hidden_states", "b l e", "l"), Split("txt_ids", "l _", "l"),
             *(Split(f"controlnet_{blocks}_samples.*", "b s c", "s") for blocks in ("block", "single_block"))),
        "proj_out": Gather("output", "b s o", "s"),
    }
    for blocks in ("transformer_blocks", "single_transformer_blocks"):
        if len(getattr(model, blocks)) > 0:
            plan[f"{blocks}.*.attn"] = Attend(("l", "s"), chosen, saved)
    return plan, f"over text and image, both cut: {why}"


def _qwen(model: Any, chosen: str, why: str, saved: int) -> Tuple[_Plan, str]:
    return {
        "": Split("controlnet_block_samples.*", "b s c", "s"),
        "pos_embed": (Split("output.0", "s _", "s"), Split("output.1", "l _", "l")),
        "transformer_blocks.0": (Split("hidden_states", "b s c", "s"), Split("encoder_hidden_states", "b l c", "l")),
        "transformer_blocks.*": (Split("encoder_hidden_states_mask", "b l", "l"), Split("modulate_index", "b s", "s")),
        "transformer_blocks.*.attn": Attend(("l", "s"), chosen, saved),
        "proj_out": Gather("output", "b s o", "s"),
    }, f"over text and image, both cut: {why}"


def _sd3(model: Any, chosen: str, why: str, saved: int) -> Tuple[_Plan, str]:
    plan: _Plan = {
        "": Split("block_controlnet_hidden_states.*", "b s c", "s"),
        "pos_embed": Split("output", "b s c", "s"),
        "context_embedder": Split("output", "b l e", "l"),
        "transformer_blocks.*.attn": Attend(("s", "l"), chosen, saved),
        "proj_out": Gather("output", "b s o", "s"),
    }
    if len(model.config.dual_attention_layers) > 0:
        plan["transformer_blocks.*.attn2"] = Attend("s", chosen, saved)
    return plan, f"over image and text, both cut: {why}"


def _methods(name: str) -> Tuple[str, ...]:
    """That the model has."""
    return _METHODS.get(name, ("ulysses", "ring", "gather-kv"))


def _reason(method: str) -> str:
    """What a result by this method is, beside one process's."""
    if method == "switch":
        return f"spatial blocks have whole frames, temporal blocks whole fibres of time: {_SAME}"
    return _SAME if method == "ulysses" else "within rounding of one process"


def _method(name: str, model: Any, comm: Union[Comm, _Ranks], method: str) -> Tuple[str, str]:
    """By the number of heads alone."""
    heads: Any = getattr(getattr(model, "config", None), "num_attention_heads", None)
    methods = _methods(name)
    if methods == ("switch",) and method in ("auto", "switch"):
        return "switch", f"switch: {_reason('switch')}"
    if methods == ("switch",):
        raise ArgumentError(f"{name} attends over frames and places in turn: its method is switch, not {method}")
    if method == "auto" and heads is None:
        raise ArgumentError(f"{name} has no config.num_attention_heads, by which a method is chosen: wanted one of "
                            f"{', '.join(methods)}")
    if method == "auto" and heads >= comm.size:
        return "ulysses", f"ulysses, since {heads} heads are enough for {comm.size} ranks: {_reason('ulysses')}"
    if method == "auto":
        return "gather-kv", (f"gather-kv, since {heads} heads are not enough for {comm.size} ranks by ulysses: "
                             f"{_reason('gather-kv')}")
    if method == "ring" and method not in methods:
        raise ArgumentError(f"{name} attends with a mask of text, which ring does not know: {' and '.join(methods)} do")
    if method not in methods:
        raise ArgumentError(f"method is '{method}', wanted auto, ulysses, ring or gather-kv")
    return method, f"{method}, as asked for"


def _fastest(name: str, model: Any, comm: Union[Comm, _Ranks], machine: Machine,
             tokens: Optional[int]) -> Tuple[str, str]:
    """By the seconds of a pass that the planner predicts for each method, tokens cut as the hooks cut them."""
    text, sizes = _text_of(name, model), ""
    dtype = "bf16" if model.dtype.itemsize == 2 else "f32"
    if tokens is not None and name == "LatteTransformer3DModel":
        frames = model.config.video_length
        if tokens % frames != 0:
            raise ArgumentError(f"tokens is {tokens}, wanted a multiple of the {frames} frames of the model")
        sizes = f"t={frames},s={tokens // frames}"
    elif tokens is not None:
        sizes = f"s={tokens}"
    axis = comm.mesh.strip("[]").split("=")[0]
    plans: Dict[str, Schedule] = {}
    refused: Dict[str, str] = {}
    for method in _methods(name):
        # Between two blocks of Latte rows are of places where the temporal one has run, and of frames behind it.
        cut = {"s.": f"t@{axis}"} if method == "switch" else {}
        stages = re.findall(r"^ *- \{name: ([^,]+),", text, re.M)
        force = ";".join(f"{stage}={cut.get(stage[:2], f's@{axis}')}" for stage in stages)
        try:
            plans[method] = planned(text, comm.mesh, sizes=sizes, dtype=dtype, machine=machine, force=force,
                                 epilogue="any", methods="*=local" if method == "switch" else f"*={method}")
        except InfeasibleError as error:
            refused[method] = str(error)
    if not plans:
        raise InfeasibleError(f"{name} on {comm.mesh}: {'; '.join(refused.values())}")
    first, *others = sorted(plans, key=lambda method: plans[method].predicted_s)
    words = [f"{method} {_seconds(plans[method].predicted_s)}" for method in others]
    words += [f"{method} not at all ({why})" for method, why in refused.items()]
    beside = f", {', '.join(words)}" if words else ""
    return first, (f"{first}, since the planner predicts {_seconds(plans[first].predicted_s)} of a pass on "
                   f"{machine.name} by it{beside}, with {plans[first].shape}: {_reason(first)}")


def _seconds(time_s: float) -> str:
    return f"{time_s:.3g} s" if time_s >= 1 else f"{time_s * 1e3:.3g} ms"


def _text_of(name: str, model: Any) -> str:
    """The model as the planner reads it, from its config."""
    config = {**getattr(model, "config", {}), "_class_name": name}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "config.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file, default=str)
        try:
            return import_config(path)
        except ParseError as error:
            why = str(error).replace(path, "config.json")
    raise UnsupportedError(f"no machine can be asked for {name}, whose config the planner does not read: {why}. "
                           "Without one the number of heads decides, or method=")


_PLANS: Dict[str, Callable[[Any, str, str, int], Tuple[_Plan, str]]] = {
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

_METHODS: Dict[str, Tuple[str, ...]] = {"LatteTransformer3DModel": ("switch",),
                                        "HunyuanVideoTransformer3DModel": ("ulysses", "gather-kv")}
