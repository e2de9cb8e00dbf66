"""python -m heddle explore MODULE:FACTORY: which dims a model mixes, as a tree, a table, a page or a model file.

The factory returns a model and its arguments: a dict of names, a tuple, or one tensor.
"""
from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Tuple

import torch

from ...errors import ArgumentError, Error
from ...line import axis_of
from .exploration import Exploration
from .explorer import explore
from .report import page

if TYPE_CHECKING:
    from ..planning.plan import Plan


def _made(name: str) -> Tuple[Any, Any]:
    module, _, factory = name.partition(":")
    if not module or not factory:
        raise ArgumentError(f"'{name}', wanted MODULE:FACTORY, the name of a function that returns a model and its "
                            "arguments")
    sys.path.insert(0, os.getcwd())
    try:
        make = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"'{name}': {error}: wanted a module that Python finds from here, and a function in it"
                            ) from None
    except (Exception, SystemExit) as error:  # whatever the file raises
        raise ArgumentError(f"'{name}': the import of {module} raises {_said(error)}") from error
    try:
        made = make()
    except (Exception, SystemExit) as error:  # whatever the factory raises
        wanted = ": wanted a function without arguments that returns a model and its arguments"
        raise ArgumentError(f"'{name}' raised {_said(error)}{wanted if isinstance(error, TypeError) else ''}"
                            ) from error
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], (Mapping, tuple, torch.Tensor)):
        kinds = " and a ".join(type(one).__name__ for one in made) if type(made) is tuple and len(made) == 2 else \
            type(made).__name__
        raise ArgumentError(f"'{name}' returned a {kinds}, wanted a model and its arguments: a dict, a tuple or a "
                            "tensor")
    if isinstance(made[1], Mapping) and not all(isinstance(argument, str) for argument in made[1]):
        raise ArgumentError(f"'{name}' returned arguments {[*made[1]]}, wanted their names")
    return made


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()}"


class _Bar:
    """How many modules are done, on a terminal; elsewhere nothing."""

    def __init__(self, model: Any):
        self._total = sum(type(module).forward is not torch.nn.Module.forward for module in model.modules()) \
            if isinstance(model, torch.nn.Module) else 0
        self._done = 0
        if sys.stderr.isatty():
            self._draw("other extents")

    def __call__(self, module: str) -> None:
        self._done += 1
        if sys.stderr.isatty():
            self._draw(module or "the whole")

    def _draw(self, said: str) -> None:
        width = 30
        full = width * min(self._done, self._total) // max(self._total, 1)
        columns = shutil.get_terminal_size().columns - 1
        line = f"[{'#' * full}{'.' * (width - full)}] {self._done}/{self._total} {said}"
        print(f"\r\033[K{line[:columns]}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _explored(name: str) -> Tuple[Any, Exploration]:
    model, given = _made(name)
    bar = _Bar(model)
    args, kwargs = ((), given) if isinstance(given, Mapping) else (given if isinstance(given, tuple) else (given,), {})
    try:
        return model, explore(model, *args, **{"progress": bar, **kwargs})
    except Error:
        raise
    except (Exception, SystemExit) as error:  # whatever the model raises
        raise ArgumentError(f"'{name}': {type(model).__name__} raises {_said(error)}: wanted a model and arguments "
                            "that its forward takes on this machine") from error
    finally:
        bar.close()


def main(words: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m heddle explore", description="which dims a model mixes")
    parser.add_argument("factory", metavar="MODULE:FACTORY", help="a function that returns a model and its arguments")
    parser.add_argument("--table", action="store_true", help="a line for every module and dim, with the reason")
    parser.add_argument("--output", metavar="FILE", help="write a model file for heddle plan")
    parser.add_argument("--plan", metavar="MESH", help="the steps for heddle.torch.parallelize on these ranks, [sp=4]")
    parser.add_argument("--prove", metavar="RANKS", type=int, help="prove the plan on so many simulated ranks")
    parser.add_argument("--html", metavar="FILE", help="write a page with the table, and the plan or why there is none")
    given = parser.parse_args(words)
    try:
        _need_possible(given)
        model, found = _explored(given.factory)
        plan, refused = _planned(found, model, given)
        if given.output:
            _write(given.output, found.to_yaml())
        if given.html:
            _write(given.html, page(found, plan or refused))
        if refused:
            raise refused
    except Error as error:
        print(f"heddle explore: {error}", file=sys.stderr)
        return 2
    print(plan or (found.table() if given.table else found))
    return 0 if plan is None or plan.proof else 1


def _need_possible(given: argparse.Namespace) -> None:
    """What is known to be in vain before a model is explored, which takes a while."""
    if given.prove is not None and given.prove < 1:
        raise ArgumentError(f"--prove is {given.prove}, wanted 1 rank at least")
    if given.plan is not None:
        try:
            axis_of(given.plan)
        except Error as error:
            raise ArgumentError(f"--plan '{given.plan}': {error}: wanted ranks as in [sp=4]") from None
    for option, path in (("--output", given.output), ("--html", given.html)):
        why = None if path is None else _why_not(path)
        if why:
            raise ArgumentError(f"{option} '{path}': {why}, wanted the name of a file that can be written")


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ArgumentError(f"'{path}': {error.strerror}") from error


def _why_not(path: str) -> Optional[str]:
    """A file of this name cannot be written."""
    folder = os.path.dirname(path) or "."
    if not path or os.path.isdir(path):
        return "it is a folder" if path else "it has no letters"
    if not os.path.isdir(folder):
        return f"there is no folder '{folder}'"
    return None if os.access(path if os.path.exists(path) else folder, os.W_OK) else "nobody may write there"


def _planned(found: Exploration, model: Any, given: argparse.Namespace) -> "Tuple[Optional[Plan], Optional[Error]]":
    """The plan that is asked for, or why there is none."""
    mesh = given.plan or (f"[sp={given.prove}]" if given.prove is not None else None)
    try:
        plan = found.plan(model, mesh) if mesh else None
        if plan and given.prove is not None:
            args, kwargs = found.given
            plan.proof = plan.prove(model, *args, ranks=given.prove, **kwargs)
    except Error as error:
        return None, error
    return plan, None
