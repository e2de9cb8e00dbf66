"""What was found of a model, and its plan, as one page of HTML that wants nothing else."""
from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, List, Optional, Union

from .exploration import Exploration
from .probe import Finding

if TYPE_CHECKING:
    from ...errors import Error
    from ..planning.plan import Plan

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222;
  background: #fff }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .15em .6em; text-align: left; white-space: nowrap }
th { border-bottom: 1px solid #888; position: sticky; top: 0; background: #fff }
td.dim { border: 1px solid #fff } td.dim, th.dim { text-align: center } td.out { white-space: normal }
td.what { white-space: normal; overflow-wrap: anywhere } th.n, td.n { text-align: right }
pre { background: #f4f4f4; padding: 1em; white-space: pre-wrap; overflow-wrap: anywhere } .kind { color: #666 }
p { overflow-wrap: anywhere } .key { line-height: 2 } .key span { white-space: nowrap; margin-right: 1em }
.key b { font-weight: normal; padding: .15em .6em; margin-right: .4em }
.free { background: #cdeccd } .mixes { background: #f6c7c3 } .halo, .causal, .reduction { background: #fbe3b5 }
.table { background: #d5e3f7 } .unknown { background: #ddd }
"""
_WORDS = {"free": "a row goes through by itself", "mixes": "a row reaches other rows",
          "halo": "a row reaches rows so far away", "causal": "a row reaches those behind it",
          "reduction": "other rows count by their sums alone",
          "table": "rows are made from extents or parameters",
          "unknown": "not understood, and counts as mixing"}


def page(found: Exploration, plan: "Optional[Union[Plan, Error]]" = None) -> str:
    """A line for every module, a column for every dim; the reason is shown where the mouse stands. `plan`: or why there
    is none."""
    dims = list(found.dims)
    sizes = ", ".join(f"{name} = {extent}{' (fixed)' if name in found.fixed else ''}"
                      for name, extent in found.dims.items())
    rows = []
    for name, module in found.modules.items():
        cells = "".join(_cell(module.dims.get(dim)) for dim in dims)
        depth, short = found.placed(name)
        kind = f' <span class="kind">{escape(module.kind)}</span>' if name else ""
        rows.append(f'<tr><td style="padding-left: {depth * 1.2 + .6}em" title="{escape(name)}">'
                    f'{escape(short or found.model)}{kind}</td>{cells}<td class="out">'
                    f"{escape(', '.join(module.out.values()))}</td></tr>")
    heads = "".join(f'<th class="dim">{escape(dim)}</th>' for dim in dims)
    parts = [f"<h1>{escape(found.model)}</h1>", f"<p>Dims: {escape(sizes)}</p>", _key(found),
             f"<table><tr><th>module</th>{heads}<th>result</th></tr>", *rows, "</table>",
             *(f"<p>{escape(note)}</p>" for note in found.notes), *(_of_plan(plan) if plan else [])]
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(found.model)}: which dims it '
            f"mixes</title><style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n")


def _key(found: Exploration) -> str:
    """What the words of this page say."""
    seen = {finding.kind for module in found.modules.values() for finding in module.dims.values()}
    words = "".join(f'<span><b class="{kind}">{kind}</b>{escape(said)}</span> ' for kind, said in _WORDS.items()
                    if kind in seen)
    return f'<p class="key">{words}</p><p>Hover over a word to see why.</p>'


def _cell(seen: Optional[Finding]) -> str:
    if seen is None:
        return "<td></td>"
    return f'<td class="dim {escape(seen.kind)}" title="{escape(seen.why)}">{escape(str(seen))}</td>'


def _of_plan(plan: "Union[Plan, Error]") -> List[str]:
    if isinstance(plan, Exception):
        return ["<h2>No plan</h2>", f"<p>{escape(str(plan))}</p>"]
    parts = ["<h2>Plan</h2>", f"<p>{escape(plan.why)}</p>"]
    if plan.stages:
        stages = "\n".join(line.strip() for line in plan.stages)
        parts.append(f"<pre>{escape(stages)}</pre>")
    parts += ["<p>The steps, for <code>heddle.torch.parallelize</code>:</p>", f"<pre>{escape(plan.code())}</pre>"]
    if plan.proof is not None:
        parts.append(f"<p>{escape(str(plan.proof))}</p>")
    if plan.proof and plan.proof.moves:
        parts += [f"<h2>What {plan.proof.ranks} ranks send in a forward</h2>",
                  '<table><tr><th>module</th><th>what</th><th class="n">bytes</th>'
                  '<th class="n">of the busiest rank</th></tr>',
                  *(f'<tr><td>{escape(move.module or "(model)")}</td><td class="what">{escape(move.what)}</td>'
                    f'<td class="n">{move.bytes_total}</td><td class="n">{move.bytes_per_rank_max}</td></tr>'
                    for move in plan.proof.moves), "</table>"]
    return parts
