"""torch.compile of attention over a sharded sequence: one graph for all lengths, against the same uncompiled."""
import os

from ranks import fork
from test_torch_attention import COMMON

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no helpers of its own, which would be forked
import torch._inductor.compile_fx  # once for all ranks

COMMON += """
def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]

def slopes(function, inputs, plans):
    inputs = [x.clone().requires_grad_() for x in inputs]
    for x in inputs if inputs[0].dtype == torch.float16 else []:  # of many operations: rows alone are symbols
        torch._dynamo.mark_static(x, (0, 1, 3))
    results = function(*inputs, plans)
    grown = [torch.arange(y.numel(), dtype=y.dtype).view(y.shape).cos() for y in results]
    return [y.detach() for y in results] + list(torch.autograd.grad(results, inputs, grown))

def alike(function, planned, heads, kv, dtype, b=2, d=16):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for s in (25, 21, 29):  # the first has as many rows as nothing else: torch would take both for one number
        plans = planned(s)
        q, k, v = (rows(draw(seed, b, h, s, d, dtype=dtype), comm) for seed, h in ((1, heads), (2, kv), (3, kv)))
        for got, wanted in zip(slopes(compiled, (q, k, v), plans), slopes(function, (q, k, v), plans)):
            assert got.dtype == wanted.dtype and torch.equal(got, wanted), (s, (got - wanted).abs().max())
    assert graphs() == 1, graphs()

def attended(q, k, v, plans):
    found = []
    for plan in plans:
        o = ht.attention(q.sin(), k, v.cos(), plan)
        found += o if plan.log_sum_exp else [o]
    return found
"""


PLANNED = """
    def planned(kv, *methods):
        return lambda s: [comm.attention(f"f32[b=2 s={s} h=4 d=16] on {comm.mesh}: s@sp", method, kv_heads=kv,
                                         **options) for method, options in methods]
"""


ONE_EACH = """
compiled = torch.compile(attended, fullgraph=True, backend="aot_eager", dynamic=True)

def one_each(given):
    for again in range(2):  # which compiles nothing more
        for graph, (group, method, options) in enumerate(given, 1):
            plan = group.attention("f32[b=2 s=7 h=4 d=8] on [n=2]: s@n", method, **options)
            q, k, v = (rows(draw(seed + comm.rank // 2, 2, 4, 7, 8, dtype=torch.float32), group)
                       for seed in (1, 5, 9))
            assert torch.equal(compiled(q, k, v, [plan])[0], attended(q, k, v, [plan])[0]), (method, options)
            assert graphs() == (len(given) if again else graph), (graphs(), method, options)
    return q, k, v, plan
"""


def test_attentions_of_other_lengths_have_one_graph(tmp_path):
    fork(tmp_path, COMMON + """
with heddle.Comm.open(deadline_s=600) as comm:  # one compiles longer than another
""" + PLANNED + """
    alike(attended, planned(4, ("ulysses", {"causal": True, "scale": 0.25}), ("ring", {"causal": True}),
                            ("gather-kv", {"scale": 0.5})), 4, 4, torch.float32)
print("ok")
""", 2)


def test_attentions_by_torchs_operations_have_one_graph(tmp_path):
    fork(tmp_path, COMMON + """
with heddle.Comm.open(deadline_s=600) as comm:  # one compiles longer than another
""" + PLANNED + """
    alike(attended, planned(2, ("ulysses", {}), ("gather-kv", {"causal": True}), ("ring", {"log_sum_exp": True})), 4, 2,
          torch.float16)
print("ok")
""", 2)


def test_linear_attentions_of_other_lengths_have_one_graph(tmp_path):
    fork(tmp_path, COMMON + """
def linear(q, k, v, plans):
    return [ht.linear_attention(q.sin(), k, v.cos(), plan) for plan in plans]

with heddle.Comm.open(deadline_s=600) as comm:  # one compiles longer than another
    def planned(*methods, **options):
        return lambda s: [comm.linear_attention(f"f32[b=2 s={s} h=2 d=16] on {comm.mesh}: s@sp", method,
                                                decay=[0.9, 0.75], **options) for method in methods]
    alike(linear, planned("lasp2", "scan", bidirectional=True), 2, 2, torch.float32)
    alike(linear, planned("lasp2", "scan"), 2, 2, torch.float16)  # by torch's operations
print("ok")
""", 2)


def test_attention_on_two_axes_with_lengths_of_keys_and_rows_of_ones(tmp_path):
    fork(tmp_path, COMMON + """
def rows(whole, comm):  # nested blocks of two axes
    outer = blocks(whole.shape[2], 2)
    lo, hi = outer[comm.rank // 2: comm.rank // 2 + 2]
    inner = blocks(hi - lo, 2)
    return whole[:, :, lo + inner[comm.rank % 2]: lo + inner[comm.rank % 2 + 1]]

with heddle.Comm.open(mesh="[dp=2 sp=2]", deadline_s=600) as comm:
    def planned(method, **options):
        return lambda s: [comm.attention(f"f32[b=2 s={s} h=4 d=16] on [dp=2 sp=2]: s@dp,s@sp", method, **options)]
    alike(attended, planned("usp"), 4, 4, torch.float32)
    alike(attended, planned("usp", log_sum_exp=True), 4, 4, torch.float16)
    hidden = lambda s: planned("ring", key_lengths=[s - 2, s - 4])(s)  # of every batch its own
    alike(attended, hidden, 4, 4, torch.float32)
    before = len(comm._families)
    hidden(19)
    assert len(comm._families) == before
print("ok")
""", 4)


def test_a_graph_of_attention_is_not_taken_for_a_plan_that_it_does_not_fit(tmp_path):
    """Another method, mask, scale, or number of keys."""
    fork(tmp_path, COMMON + ONE_EACH + """
with heddle.Comm.open(deadline_s=600) as comm:
    q, k, v, plan = one_each([(comm, "ring", {}), (comm, "gather-kv", {}), (comm, "gather-kv", {"scale": 0.5}),
                              (comm, "ring", {"causal": True}), (comm, "ring", {"key_lengths": [5, 3]})])
    q, k, v = (torch.cat([x, x[:, :, :1]], 2) for x in (q, k, v))
    refused(Exception, "wants f32", compiled, q, k, v, [plan])
print("ok")
""", 2)


def test_a_graph_of_attention_is_of_its_communicator(tmp_path):
    fork(tmp_path, COMMON + ONE_EACH + """
with heddle.Comm.open(mesh="[dp=2 sp=2]", deadline_s=600) as comm:
    one_each([(comm.axis(name), "ring", {}) for name in ("dp", "sp")])
print("ok")
""", 4)


def test_what_graphs_have_of_plans_is_kept_and_nothing_else(tmp_path):
    """Lengths of every block of their own are a graph's constants: plans that are let go leave nothing of them."""
    fork(tmp_path, COMMON + """
with heddle.Comm.open(deadline_s=600) as comm:
    comm.plans_max = 4
    def planned(s, method="ring"):
        return comm.attention(f"f32[b=2 s={s} h=2 d=8] on [sp=2]: s@sp({s - 2} 2)", method)
    for s in range(3, 20):
        planned(s)
    assert len(comm._families) <= 4, len(comm._families)
    compiled = torch.compile(attended, fullgraph=True, backend="aot_eager", dynamic=True)
    q, k, v = (draw(seed + comm.rank, 2, 2, 7 if comm.rank == 0 else 2, 8, dtype=torch.float32) for seed in (1, 5, 9))
    for again in range(2):
        for got, wanted in zip(*(slopes(function, (q, k, v), [planned(9)]) for function in (compiled, attended))):
            assert torch.equal(got, wanted), (got - wanted).abs().max()
        assert graphs() == 1, graphs()
        for s in range(20, 30):  # lets the plan go, of which there is a graph
            planned(s)
        assert len(comm._families) <= 5, len(comm._families)
print("ok")
""", 2)
