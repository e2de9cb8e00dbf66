"""Why a pass on ranks goes wrong, from what modules were given there and what they returned."""
from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Set, Tuple

import torch

from ...errors import Error, MismatchError
from ..attending import Attend
from ..hooks import is_of_output, matching
from ..modules import Gather, Split, Switch, pairs_of
from ..sums import NORMS
from .known import Known
from .pieces import Held
from .watched import Seen, Watched

Said = Tuple[str, str, str]  #: module, sentence, mend


def causes_of(model: torch.nn.Module, steps: Any, every: List[Watched], known: Known) -> List[Said]:
    """Of what goes wrong on any rank, each module once, the first first. Numbers that are wrong are mended where they
    are seen, so what comes behind them is wrong by itself; what a rank raises may follow from them, and is told
    alone."""
    wrong = sorted((at, rank) for rank, each in enumerate(every) for at, seen in enumerate(each.seen)
                   if any(x.is_other for x in seen.held))
    said: Dict[str, Said] = {}
    for at, rank in wrong:
        cause = _Cause(model, steps, every[rank], known).of_other(at)
        said.setdefault(cause[0], cause)
    failed = [each for each in every if each.error is not None]
    if not failed or said:
        return list(said.values())
    last = next((each for each in failed if not isinstance(each.error, MismatchError)), failed[0])
    return [_Cause(model, steps, last, known).of_error()]


class _Cause:
    def __init__(self, model: torch.nn.Module, steps: Any, pass_: Watched, known: Known):
        self.known, self.seen, self.running, self.error = known, pass_.seen, pass_.running, pass_.error
        self.types = {name: type(module).__name__ for name, module in model.named_modules()}
        self.steps: Dict[str, List[Any]] = {}
        self.called = type(model).__name__
        self.cuts: Set[str] = set()  #: dims that steps cut
        names = {id(module): name for name, module in model.named_modules()}
        try:
            for pattern, each in pairs_of(steps):
                for module in matching(model, pattern):
                    self.steps.setdefault(names[id(module)], []).extend(
                        each if isinstance(each, (list, tuple)) else [each])
        except Error:  # which the ranks raise, too
            pass
        for step in (step for each in self.steps.values() for step in each):
            for over in (getattr(step, "over", ()), getattr(step, "to", ())):
                self.cuts.update((over,) if isinstance(over, str) else over)

    # --- numbers that are others ------------------------------------------------------------------------------------
    def of_other(self, at: int) -> Said:
        seen = self.seen[at]
        wrong = next(x for x in seen.held if x.is_other)
        place = f"'{wrong.place}' of '{seen.module}'"
        mine = [step for step in self.steps.get(seen.module, []) if getattr(step, "what", "") == wrong.place]
        if seen.side == "left" or seen.side == "given" and mine:
            said = self._misread(seen, wrong, mine)
            step = ", ".join(map(str, mine)) or "a step"
            return said or (seen.module, f"{step} makes of {place} what is no block of the whole", "The order of the "
                            "dims in its text, `(b t)` or `(t b)`, and the dim that is cut have to be the model's")
        chain = self._chain(at)
        if seen.side == "given":
            chain = chain[:-1]
            parent = chain[-1][0] if chain else ""
            mixing = self._mixing(parent, chain) if chain and self._is_mixing(chain[-1]) else None
            return self._apart(chain, parent) or self._misread_before(at) or mixing or self._between(at, wrong, parent)
        if seen.module == "":
            said = self._ungathered("", None)
            if said:
                return said
        return (self._apart(chain, seen.module) or self._misread_before(at) or self._mixing(seen.module, chain))

    def _is_mixing(self, last: Tuple[str, Optional[Seen]]) -> bool:
        name, seen = last
        cut = {dim for x in (seen.held if seen else []) if x.cut for dim in x.cut}
        return name != "" and any(kind != "free" for dim in cut for kind in self.known.kinds(name, dim))

    def _between(self, at: int, wrong: Held, parent: str) -> Said:
        seen = self.seen[at]
        before = next((each.module for each in reversed(self.seen[:at]) if each.side == "left"
                       and self._is_next(parent, each.module)), None)
        where = f"between '{before}' and '{seen.module}'" if before else f"before '{seen.module}'"
        cut = " ".join(sorted(self._cut_near(at))) or "rows"
        kind = self.types.get(parent, self.called)
        return (seen.module, f"'{wrong.place}' of '{seen.module}' is no block of the whole one: code of {kind} {where} "
                             f"mixes or numbers rows of {cut}, which is cut there",
                f"Let {cut} be whole there: put the Switch or the Gather behind '{before or seen.module}', or the "
                f"Split before '{seen.module}'")

    def _cut_near(self, at: int) -> Set[str]:
        return {dim for each in self.seen[max(at - 12, 0): at + 1] for x in each.held if x.cut for dim in x.cut}

    def _alone(self, chain: List[Tuple[str, Optional[Seen]]], module: str) -> Optional[Said]:
        """Attention that does something with the rows that it has by itself."""
        how, given = self.known.alone(module), chain[-1][1] if chain else None
        text = " ".join(sorted({dim for x in (given.held if given else []) if x.cut for dim in x.cut}))
        kind = self.types.get(module, self.called)
        return (module, f"the attention of '{module}' ({kind}) {how}, and a rank that has some of {text} does so with "
                        "these alone",
                f"Put a Gather before it and a Split behind{self._or_switch(module, text.split())}"
                ) if how and text else None

    def _or_switch(self, module: str, cut: List[str]) -> str:
        free = [dim for dim in self.known.free(module) if dim not in cut]
        return f", or a Switch to {free[0]}, which it leaves free" if free else ""

    def _mixing(self, module: str, chain: List[Tuple[str, Optional[Seen]]]) -> Said:
        given = chain[-1][1]
        cut = sorted({dim for x in (given.held if given else []) if x.cut for dim in x.cut})
        text, kind = " ".join(cut) or "rows", self.types.get(module, self.called)
        attend = [step for step in self.steps.get(module, []) if isinstance(step, Attend)]
        if attend:
            return (module, f"'{module}' ({kind}) gives another result with {attend[0]}, of {text} that is cut there",
                    "`over` has the dims in the order in which their rows stand in the axis, all that are cut")
        said = self._number(chain) or self._width(chain[-1]) or self._keys(module, cut)
        if said:
            return said
        kinds = {each for dim in cut for each in self.known.kinds(module, dim)}
        if kinds & {"table", "unknown"} and not kinds & {"mixes", "halo", "causal", "reduction"}:
            return (module, f"'{module}' ({kind}) makes rows of {text} by their number, and a rank has some of them: "
                            "it gives every rank the first ones", f"Split what '{module}' returns, not what it takes; "
                    "or Numbered there, by which this rank's rows have their own numbers")
        how = " and ".join(sorted(kinds - {"free", "unknown"})) or "mixes"
        near = self._near(module, given, cut, kinds - {"free"})
        return (module, f"'{module}' ({kind}) mixes rows of {text} ({how}), which is cut there",
                near or f"Put a Gather before it and a Split behind{self._or_switch(module, cut)}; attention over all "
                "ranks is Attend")

    def _near(self, module: str, given: Optional[Seen], cut: List[str], kinds: Set[str]) -> Optional[str]:
        """Rows of neighbours or sums of all do for it."""
        held = [x for x in (given.held if given else []) if x.cut]
        if len(cut) != 1 or len(held) != 1 or len(kinds) != 1 or module not in self.types:
            return None
        rows = self.known.reach(module, cut[0])
        text = self.known.text(module, held[0].place, held[0].shape, cut[0])
        if rows and "+" not in text:
            after = ", 0" if "causal" in kinds else ""
            return f"Halo('{held[0].place}', '{text}', '{cut[0]}', {rows}{after}) at '{module}'"
        if kinds == {"reduction"} and self.types[module] in NORMS:
            return f"Sums('{cut[0]}') at '{module}'"
        return None

    def _number(self, chain: List[Tuple[str, Optional[Seen]]]) -> Optional[Said]:
        """An argument that counts rows, and is that of the whole."""
        for name, seen in reversed(chain):
            cut = {dim for x in (seen.held if seen else []) if x.cut for dim in x.cut}
            for argument, value in (seen.numbers if seen else {}).items():
                has = any(getattr(step, "what", "") == argument for step in self.steps.get(name, []))
                sizes = [dim for dim in cut if value == self.known.sizes.get(dim)]
                fits = [dim for dim in cut if 1 < value < self.known.sizes.get(dim, 0) and "." not in argument]
                if not has and (sizes or fits):
                    dim = (sizes or fits)[0]
                    step = f"Extent('{argument}', '{dim}')" if sizes else f"Count('{argument}', '{dim}')"
                    return (name, f"'{argument}' of '{name}' is {value}, which counts rows of {dim} of all ranks, and "
                                  f"the module has this rank's", f"{step} at '{name}'")
        return None

    # --- errors -----------------------------------------------------------------------------------------------------
    def of_error(self) -> Said:
        error, chain = self.error, self.running
        if not chain:
            return self._whole_result() or ("", str(error).replace("parallelize: ", "", 1), "The plan has to fit "
                                            f"{self.called}, in this version of it: str(model) has its names")
        module = chain[-1][0]
        if isinstance(error, MismatchError) and len(chain) == 1:
            return self._whole_result() or (module, str(error),
                                            "All ranks have to compute the same outside of the steps")
        if isinstance(error, Error):
            return (self._alone(chain, module) or self._unlearned(chain, str(error)) or self._apart(chain, "")
                    or self._misread_before(len(self.seen))
                    or (module, str(error).replace("parallelize: ", "", 1), self._step_mend(module, str(error))))
        said = self._apart(chain, module) or self._number(chain) or self._width(chain[-1])
        if said:
            return said
        return self._code(module)

    def _whole_result(self) -> Optional[Said]:
        """Split without Gather."""
        for seen in self.seen:
            if seen.module == "" and seen.side == "made":
                for x in seen.held:
                    if x.cut:
                        return self._ungathered("", sorted(x.cut)[0])
        return None

    def _ungathered(self, module: str, dim: Optional[str]) -> Optional[Said]:
        """Of what the last one left that the module's own code has called."""
        last = [seen for seen in self.seen if seen.side == "left" and self._is_next(module, seen.module)]
        held = [(seen, x) for seen in last[-1 if dim is None else 0:] for x in seen.held
                if x.cut and (dim is None or dim in x.cut)]
        if not held:
            return None
        seen, x = held[-1]
        dim = dim or sorted(x.cut or ())[0]
        return (seen.module,
                f"Split without Gather: what the model returns is cut along {dim}, last by '{seen.module}'",
                f"Gather('{x.place}', '{self.known.text(seen.module, x.place, x.shape, dim)}', '{dim}') at "
                f"'{seen.module}'")

    def _unlearned(self, chain: List[Tuple[str, Optional[Seen]]], text: str) -> Optional[Said]:
        """A step over a dim whose extent nobody has told."""
        text = text.replace("parallelize: ", "", 1)
        asked = re.search("the extent of '([a-z0-9_]+)' is not known yet", text)
        if asked is None and "does not say what" not in text:
            return None
        for name, seen in chain[1:]:
            for x in seen.held if seen and asked else []:
                split = self.known.unlearned(name, x.place, x.shape, asked[1]) if x.is_whole and asked else None
                if split:
                    return (name, f"{text}; '{x.place}' of '{name}' is whole there", f"{split} at '{name}'")
        first = next((x for seen in self.seen for x in seen.held if seen.module == "" and len(x.shape) > 2), None)
        place = first.place if first else "..."
        return (chain[-1][0], text, f"Sizes('{place}', ...) at '', with names of the dims that steps cannot tell "
                                    "apart: it learns their extents before they are folded")

    def _width(self, last: Tuple[str, Optional[Seen]]) -> Optional[Said]:
        """A step cuts what has no rows, channels say, of which a module behind wants all."""
        name, given = last
        for dim in sorted({dim for x in (given.held if given else []) if x.cut for dim in x.cut}):
            made = self._made(dim, False)
            if made and not self.known.has_rows(dim) and not re.search(rf"\([^)]*\b{dim}\b", made[1].dims):
                return (made[0], f"{made[1]} at '{made[0]}' cuts {dim}, which has no rows: '{name}' "
                                 f"({self.types.get(name, self.called)}) wants all of it",
                        "Cut a dim of rows in its place, or leave the step out")
        return None

    def _keys(self, module: str, cut: List[str]) -> Optional[Said]:
        """A step cuts a text, of which attention in the module sees all keys."""
        for dim in cut:
            made = self._made(dim, False)
            if made and self.known.is_of_keys(module, dim):
                return (made[0], f"{made[1]} at '{made[0]}' cuts {dim}, which are keys of attention in '{module}' and "
                                 "no rows of it: a rank attends to its own alone",
                        "Leave it out: every rank has all of them")
        return None

    def _made(self, dim: str, is_whole: bool) -> Optional[Tuple[str, Any]]:
        """The last step that has made a dim whole, or cut it, and where."""
        for seen in reversed(self.seen):
            for step in self.steps.get(seen.module, []):
                does = isinstance(step, Gather if is_whole else Split) and step.over == dim or isinstance(
                    step, Switch) and dim == (step.from_ if is_whole else step.to)
                if does and seen.side == ("left" if is_of_output(step) else "given"):
                    return seen.module, step
        return None

    def _step_mend(self, module: str, error: str) -> str:
        otherwise = re.search(r"(\w+) is (whole|cut) here", error)
        made = self._made(otherwise[1], otherwise[2] == "whole") if otherwise else None
        if otherwise and made:
            return f"{made[1]} at '{made[0]}' has made {otherwise[1]} {otherwise[2]} before: leave one of the two out"
        if "Attend(" in error and "this rank has" in error:
            return ("Attend is for queries and keys of the same rows: where keys are of a text that every rank has, "
                    "leave it out")
        if "is a Tensor, wanted a number" in error:
            return "Split is for tensors; Extent and Count are for arguments that are numbers"
        return (f"What comes into '{module}' is not as its steps say: a Split, Switch or Gather before it is missing, "
                "or of another dim")

    def _code(self, module: str) -> Said:
        """A module's own code raises, between those in it."""
        inner = [seen for seen in self.seen if seen.side == "left" and self._is_next(module, seen.module)]
        cuts = [(seen, x) for seen in inner for x in seen.held if x.cut]
        kind, said = self.types.get(module, self.called), str(self.error).strip()[:200]
        where = f"code of {kind}" + (f" behind '{inner[-1].module}'" if inner else "")
        if not cuts:
            return (module, f"'{module}' ({kind}) raises on this rank's rows: {said}",
                    "Let it have all rows: Gather before it, or Split behind it")
        seen, x = cuts[-1]
        dim = sorted(x.cut or ())[0]
        ends = any(isinstance(step, Gather) or isinstance(step, Switch) and step.from_ == dim
                   for each in self.steps.values() for step in each)
        without = None if ends else self._ungathered(module, dim)
        if without:
            return without[0], f"{without[1]}; {where} raises: {said}", without[2]
        wholes = [f", or a Split of '{y.place}' at '{each.module}', which makes whole rows of {dim}" for each in inner
                  for y in each.held if y.is_whole and each.module != seen.module
                  and self.known.holds(each.module, y.place, y.shape, dim)]
        beside = wholes[-1] if wholes else ""
        return (seen.module, f"{where} needs {dim} as it is on one rank, and '{x.place}' of '{seen.module}' is cut "
                             f"along {dim}: {said}", f"Switch or Gather of '{x.place}' at '{seen.module}'{beside}")

    def _is_next(self, module: str, other: str) -> bool:
        """Is the other one called by this one's own code? Lists are called by nobody."""
        if other == module or module and not other.startswith(f"{module}."):
            return False
        above = [name for name in self.types if other.startswith(f"{name}.") and len(name) > len(module)]
        return not any(seen.module in above for seen in self.seen)

    # --- what was given ---------------------------------------------------------------------------------------------
    def _chain(self, at: int) -> List[Tuple[str, Optional[Seen]]]:
        """Modules that run there, the innermost last."""
        name = self.seen[at].module
        chain: List[Tuple[str, Optional[Seen]]] = []
        for seen in reversed(self.seen[:at + 1]):
            if seen.side == "given" and seen.module not in [other for other, _ in chain] and (
                    seen.module in ("", name) or name.startswith(f"{seen.module}.")):
                chain.insert(0, (seen.module, seen))
        return sorted(chain, key=lambda each: len(each[0]))

    def _attends(self, module: str) -> Set[str]:
        """Dims over which attention in it is that of all ranks."""
        overs = [step.over for name, each in self.steps.items() for step in each if isinstance(step, Attend)
                 and (name == module or name.startswith(f"{module}.") or module == "")]
        return {dim for over in overs for dim in ((over,) if isinstance(over, str) else over)}

    def _unattended(self, module: str) -> Optional[Said]:
        """Attention of this rank's rows alone."""
        above = [name for name in self.steps if name == module or module.startswith(f"{name}.")]
        if any(isinstance(step, Attend) for name in above for step in self.steps[name]):
            return None
        cut = {dim for seen in reversed(self.seen) if seen.module == module and seen.side == "given"
               for x in seen.held if x.cut for dim in x.cut}
        seen = self.known.attention(module, cut, self.cuts)
        if seen is None:
            return None
        over = f"'{seen[1][0]}'" if len(seen[1]) == 1 else str(tuple(seen[1]))
        rows = " and ".join(seen[1])
        return (module, f"'{module}' ({self.types.get(module)}) attends over rows of {rows}, which are cut there, and "
                        "has this rank's alone", f"Attend({over}) at '{module}'")

    def _apart(self, chain: List[Tuple[str, Optional[Seen]]], module: str) -> Optional[Said]:
        """Arguments of one module of which some are cut, and others that have the dim are not, or along another one.
        A mask of all rows is what attention of all ranks wants, so that is asked for first, of `module`."""
        alone = self._alone(chain, module)
        if alone:
            return alone
        for is_mask in (False, True):
            for name, seen in chain:
                said = self._apart_in(name, seen, is_mask) if seen else None
                if said:
                    return said
            if module and not is_mask:
                unattended = self._unattended(module)
                if unattended:
                    return unattended
        return None

    def _apart_in(self, name: str, seen: Seen, is_mask: bool) -> Optional[Said]:
        cut = {dim: x for x in seen.held if x.cut for dim in x.cut}
        if name == "" and not cut:
            return None
        wanted = {**dict.fromkeys(sorted(self._attends(name))), **cut}
        for x in seen.held:
            if ("mask" in x.place) != is_mask:
                continue
            for dim, other in wanted.items():
                if x.is_whole and self.known.holds(name, x.place, x.shape, dim):
                    beside = f"'{other.place}' has this rank's" if other else f"attention over {dim} wants them cut"
                    return (name, f"'{x.place}' of '{name}' goes round the split: it has whole rows of {dim}, while "
                                  f"{beside}", self._split(name, x, dim))
                if other and x.cut and dim not in x.cut and self.known.holds(name, x.place, x.shape, dim):
                    mine = sorted(x.cut)[0]
                    return (name, f"'{x.place}' of '{name}' is cut along {mine}, and '{other.place}' along {dim}",
                            f"Switch('{x.place}', '{self.known.text(name, x.place, x.shape, dim)}', '{mine}', '{dim}') "
                            f"at '{name}', or of the output before it, or the one of '{other.place}'")
        return None

    def _split(self, name: str, x: Held, dim: str) -> str:
        return f"Split('{x.place}', '{self.known.text(name, x.place, x.shape, dim)}', '{dim}') at '{name}'"

    # --- texts ------------------------------------------------------------------------------------------------------
    def _misread_before(self, at: int) -> Optional[Said]:
        for seen in self.seen[:at]:
            for x in seen.held:
                said = self._misread(seen, x, [step for step in self.steps.get(seen.module, [])
                                               if getattr(step, "what", "") == x.place])
                if said:
                    return said
        return None

    def _misread(self, seen: Seen, x: Held, steps: List[Any]) -> Optional[Said]:
        """A step whose text has the dims of an axis in another order than the model."""
        for step in steps:
            for text in (getattr(step, "dims", None), getattr(step, "as_", None)):
                dim = getattr(step, "to", None) or getattr(step, "over", None)
                if not isinstance(text, str) or not isinstance(dim, str) or dim not in self.known.sizes:
                    continue
                read = self.known.text(seen.module, x.place, x.shape, dim)
                if "(" in read and sorted(_letters(read)) == sorted(_letters(text)) and read != text:
                    return (seen.module, f"{step} at '{seen.module}': '{text}', and '{x.place}' is '{read}' there",
                            f"Write '{read}'")
        return None


def _letters(text: str) -> List[str]:
    return [word for word in text.replace("(", " ").replace(")", " ").split() if word != "_"]
