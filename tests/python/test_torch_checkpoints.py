"""Gradient checkpoints around what ranks do together, where the graphs of ranks are not alike: a rank without rows or
heads, one whose own operations save less, one that wants fewer gradients. Against one process without checkpoints."""
import pytest
import test_torch_attention
from ranks import fork

COMMON = test_torch_attention.COMMON + """
import itertools
from torch.utils.checkpoint import checkpoint
from heddle.torch import attention_op

library_takes = attention_op._is_of_library

def once(call, x, wants, by):
    x = [y.detach().clone().requires_grad_(w) for y, w in zip(x, wants)]
    o = call(*x) if by is None else checkpoint(call, *x, use_reentrant=by)
    found = torch.autograd.grad(o, [y for y in x if y.requires_grad], torch.cos(o.detach())) if by is None else None
    if by is not None:
        torch.autograd.backward(o, torch.cos(o.detach()))
        found = [y.grad for y in x if y.requires_grad]
    return [o.detach(), *found]

def saves_less(o, is_less):
    return o + 0 if is_less else o * o  # the gradient of a product keeps its factors

def same(call, x, wants):
    wanted = once(call, x, wants, None)
    for by in (False, True):
        for a, b in zip(once(call, x, wants, by), wanted):
            close(a, b, 1e-13)
"""
KINDS = ("lasp", "scan", "lasp2", "ring", "rsa", "ulysses", "gather-kv", "switch")


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_of_other_graphs(tmp_path, kind):
    fork(tmp_path, COMMON + f"""
kind = {kind!r}
""" + """
with heddle.Comm.open() as comm:
    uneven = ("f64[b=2 s=6 h=4 d=4] on [sp=3]: s@sp(0 4 2)", "f64[b=1 s=6 h=2 d=4] on [sp=3]: s@sp(4 2 0)")
    for by_library, line in itertools.product((True, False), uneven):
        if kind == "rsa" and not by_library:
            continue  # of the library only
        both = "h=2" in line
        attention_op._is_of_library = library_takes if by_library else lambda x: False
        if kind == "switch":
            there, back = comm.reshard(line + " -> h@sp"), comm.reshard(line.replace(": ", ": h@sp -> "))
            attend = lambda q, k, v: ht.switch(saves_less(ht.switch(q * k + v, there), comm.rank == 2), back)
            x = [torch.rand(there.src_shape, dtype=torch.float64) for _ in range(3)]
        elif kind in ("lasp", "scan", "lasp2"):
            plan = comm.linear_attention(line, kind, bidirectional=both, decay=[0.9] * (2 if "h=2" in line else 4))
            attend = lambda q, k, v: ht.linear_attention(q, k, v, plan)
        else:
            plan = comm.attention(line, kind, causal=both)
            attend = lambda q, k, v: ht.attention(q, k, v, plan)
        if kind != "switch":
            parts = zip(plan.line.src_slices(comm.rank), plan.line.shape)
            b, s, h, d = (len(range(*part.indices(n))) for part, n in parts)
            x = [torch.rand(b, h, s, d, dtype=torch.float64) for _ in range(3)]
        def once_and_again(q, k, v):
            o = saves_less(attend(q, k, v), comm.rank == 1)
            return saves_less(attend(o, k + o, v), comm.rank == 2)
        same(attend, x, (kind == "switch" or comm.rank != 0, True, True))
        same(once_and_again, x, (True, True, True))
print("ok")
""", 3)
