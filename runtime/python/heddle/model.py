"""Models as the planner reads them: files, their texts, presets by name."""
from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Iterator, Optional, Union

from . import _abi
from ._library import check, encoded, lib
from .errors import ArgumentError
from .line import DTYPES

ModelLike = Union[str, "os.PathLike[str]"]  #: a preset's name, a file's path, or a text of more than one line


def import_config(path: "str | os.PathLike[str]", *, frames: int = 0, height: int = 0, width: int = 0) -> str:
    """The text of the model that the config.json of a diffusers transformer describes, as `heddle import` writes it:
    for `heddle.plan`, or a file. `frames`, `height`, `width` of the clip in pixels; 0: what is usual for the model.

    FileError: the file cannot be read. ParseError: it is no such config, or of a class that is not known; the sentence
    lists those that are. ArgumentError: a clip that this model cannot make. LayoutError: it contradicts itself.
    """
    options, out = _abi.heddle_import_options(), ctypes.create_string_buffer(_abi.HEDDLE_IMPORT_BYTES)
    lib.heddle_import_options_init(ctypes.byref(options))
    options.frames, options.height, options.width = frames, height, width
    check(lib.heddle_model_import(out, len(out), os.fsencode(path), ctypes.byref(options)))
    return out.value.decode()


@contextlib.contextmanager
def opened(model: ModelLike, sizes: str, repeat: int, dtype: Optional[str]) -> Iterator[ctypes.c_void_p]:
    """The library's object of a model, in other sizes where some are given, for as long as the block runs."""
    out = ctypes.c_void_p()
    if isinstance(model, str) and "\n" in model:
        raw = encoded("model", model)
        check(lib.heddle_model_parse(ctypes.byref(out), raw, len(raw), b"model"))
    elif isinstance(model, (str, os.PathLike)):
        check(lib.heddle_model_load(ctypes.byref(out), os.fsencode(model)))
    else:
        raise ArgumentError(f"the model is a {type(model).__name__}, wanted a preset's name, the path of a model file, "
                            "or its text")
    try:
        if sizes or repeat:
            check(lib.heddle_model_resize(out, encoded("sizes", sizes), repeat))
        if dtype is not None:
            if dtype not in DTYPES:
                raise ArgumentError(f"dtype is {dtype!r}, wanted f32 or bf16")
            check(lib.heddle_model_set_dtype(out, DTYPES[dtype]))
        yield out
    finally:
        lib.heddle_model_destroy(out)
