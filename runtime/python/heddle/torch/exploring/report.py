"""What was found of a model, and its plan, as one page of HTML that wants nothing else."""
from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, List, Optional

from .exploration import Exploration
from .probe import Finding

if TYPE_CHECKING:
    from ..planning.plan import Plan

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .15em .6em; text-align: left; white-space: nowrap }
th { border-bottom: 1px solid #888 } td.dim { text-align: center; border: 1px solid #fff }
pre { background: #f4f4f4; padding: 1em; overflow-x: auto } .kind { color: #777 }
.free { background: #cdeccd } .mixes { background: #f6c7c3 } .halo, .causal, .reduction { background: #fbe3b5 }
.table { background: #d5e3f7 } .unknown { background: #ddd }
"""


def page(found: Exploration, plan: "Optional[Plan]" = None) -> str:
    """A line for every module, a column for every dim; the reason is shown where the mouse stands."""
    dims = list(found.dims)
    sizes = ", ".join(f"{name} = {extent}{' (fixed)' if name in found.fixed else ''}"
                      for name, extent in found.dims.items())
    rows = []
    for name, module in found.modules.items():
        cells = "".join(_cell(module.dims.get(dim)) for dim in dims)
        depth = name.count(".") + 1 if name else 0
        rows.append(f'<tr><td style="padding-left: {depth * 1.2 + .4}em" title="{escape(name)}">'
                    f'{escape(name.rpartition(".")[2] or found.model)} <span class="kind">{escape(module.kind)}</span>'
                    f"</td>{cells}<td>{escape(', '.join(module.out.values()))}</td></tr>")
    heads = "".join(f"<th>{escape(dim)}</th>" for dim in dims)
    parts = [f"<h1>{escape(found.model)}</h1>", f"<p>Dims: {escape(sizes)}</p>",
             f"<table><tr><th>module</th>{heads}<th>result</th></tr>", *rows, "</table>",
             *(f"<p>{escape(note)}</p>" for note in found.notes), *(_of_plan(plan) if plan else [])]
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(found.model)}: which dims it '
            f"mixes</title><style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n")


def _cell(seen: Optional[Finding]) -> str:
    if seen is None:
        return "<td></td>"
    return f'<td class="dim {escape(seen.kind)}" title="{escape(seen.why)}">{escape(str(seen))}</td>'


def _of_plan(plan: "Plan") -> List[str]:
    parts = ["<h2>Plan</h2>", f"<pre>{escape(str(plan))}</pre>"]
    if plan.proof and plan.proof.moves:
        parts += [f"<h2>What {plan.proof.ranks} ranks send in a forward</h2>",
                  "<table><tr><th>module</th><th>what</th><th>bytes</th><th>of the busiest rank</th></tr>",
                  *(f"<tr><td>{escape(move.module)}</td><td>{escape(move.what)}</td><td>{move.bytes_total}</td>"
                    f"<td>{move.bytes_per_rank_max}</td></tr>" for move in plan.proof.moves), "</table>"]
    return parts
