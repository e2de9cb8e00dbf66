"""Modules of backends' names, and the exchanges around attention, against one process."""
import pathlib

from ranks import fork
from test_torch_compat import COMMON

import heddle.torch.compat

FOLDER = pathlib.Path(heddle.torch.compat.__file__).parent
NAMES = ("deepspeed", "diffusers", "fastvideo", "opensora", "videosys", "wan", "xdit", "yunchang")


def test_modules_are_of_names_only():
    for name in NAMES:
        lines = [line for line in (FOLDER / f"{name}.py").read_text().splitlines() if line.strip()]
        assert lines[0].startswith('"""') and len(lines) <= 16, name


def test_rows_to_heads_and_back_as_one_exchange(tmp_path):
    for ranks in (2, 4):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        fork(folder, COMMON + """
for s, h, kv in ((16, 8, 8), (13, 8, 8), (16, 6, 6), (13, 7, 7), (16, 3, 3), (3, 8, 8), (16, 9, 3), (13, 8, 2)):
    whole, gradient = draw(s, 2, s, h + 2 * kv, 4), draw(h, 2, s, h + 2 * kv, 4)
    cut = [n * (h // kv) for n in lengths(kv)]
    x = part(whole, 1).clone().requires_grad_()
    q, k, v = x.split([h, kv, kv], 2)  # slices of one projection, as they are
    found = hc.qkv_to_heads(q, k, v, sizes=lengths(s))
    for y, of, sizes in zip(found, whole.split([h, kv, kv], 2), (cut, lengths(kv), lengths(kv))):
        same(y, part(of, 2, sizes))
    gradients = gradient.split([h, kv, kv], 2)
    torch.autograd.backward(found, [part(g, 2, sizes) for g, sizes in zip(gradients, (cut, lengths(kv), lengths(kv)))])
    same(x.grad, part(gradient, 1))
    o = part(whole[:, :, :h], 2, cut).transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    back = hc.heads_to_rows(o, sizes=lengths(s), heads=h if kv == h else cut)
    same(back, part(whole[:, :, :h], 1))
    back.backward(part(gradient[:, :, :h], 1))
    same(o.grad, part(gradient[:, :, :h], 2, cut))
refused(heddle.ArgumentError, "do not go together", hc.qkv_to_heads, q, k[:, :1], v)
refused(heddle.ArgumentError, "wanted a tensor [b, s, h, d]", hc.qkv_to_heads, q, k, v[0])
refused(heddle.ArgumentError, "a length of each", hc.qkv_to_heads, q, k, v, sizes=[1])

ended()
""", ranks)


def test_decayed_states(tmp_path):
    fork(tmp_path, COMMON + """
def whole_process(q, k, v, slopes):
    apart = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
    weights = torch.where(apart >= 0, torch.exp(-slopes.view(-1, 1, 1) * apart.clamp(min=0)), 0.0)
    return (q @ k.mT * weights) @ v

slopes = torch.tensor([0.0, 0.5, 0.03])
for n in (80, 61, 2):
    whole = [draw(seed, 2, 3, n, width, dtype=torch.float64).requires_grad_()
             for seed, width in ((1, 8), (2, 8), (3, 5))]
    gradient = draw(4, 2, 3, n, 5)
    wanted = whole_process(*whole, slopes.double())
    wanted.backward(gradient.double())
    for method in ("lasp", "lasp2", "scan"):
        mine = [part(x.detach(), 2).float().requires_grad_() for x in whole]
        o = hc.lasp(*mine, slopes[:, None, None], sizes=lengths(n), method=method)
        o.backward(part(gradient, 2))
        for got, of in ((o, wanted), *((x.grad, y.grad) for x, y in zip(mine, whole))):
            assert got.numel() == 0 or (got - part(of, 2)).abs().max() <= 3e-6 * of.abs().max()
ended()
""", 3)


EVEN = (
    """
from heddle.torch.compat.yunchang import SeqAllToAll4D, SeqAllToAll5D, all_to_all_4D, all_to_all_5D
calls = [lambda x: SeqAllToAll4D.apply(group, x, 2, 1), lambda x: all_to_all_4D(x, 2, 1, group=group)]
way_back = [lambda y: SeqAllToAll4D.apply(group, y, 1, 2, False), lambda y: all_to_all_4D(y, 1, 2, group, True)]
five = draw(5, 2, 4 * size, 3, size, 4)
same(SeqAllToAll5D.apply(group, part(five, 1), 3, 1), part(five, 3))
same(all_to_all_5D(part(five, 1), 3, 1, group=group), part(five, 3))
""",
    """
import heddle.torch.compat.opensora as ho
calls, way_back = [lambda x: ho.all_to_all(x, group, 2, 1)], [lambda y: ho.all_to_all(y, group, 1, 2)]
boundary(lambda x: ho.split_forward_gather_backward(x, group, 1, "down"),
         lambda x: ho.gather_forward_split_backward(x, group, 1, "up"), 2 * size, size)
boundary(lambda x: ho.split_forward_gather_backward_var_len(x, 1, group, lengths(13)),
         lambda x: ho.gather_forward_split_backward_var_len(x, 1, group, lengths(13)), 13, size)
""",
    """
import heddle.torch.compat.wan as hw
calls = [lambda x: hw.all_to_all(x, 2, 1), lambda x: hw.all_to_all(x, scatter_dim=2, gather_dim=1, group=group)]
way_back = [lambda y: hw.all_to_all(y, 1, 2)]
boundary(lambda x: hc.split(x, 1), lambda x: hw.gather_forward(x, dim=1), 2 * size, 1)
assert (hw.get_rank(), hw.get_world_size()) == (rank, size)
""",
    """
import heddle.torch.compat.fastvideo as hf
hf.set_sp_group(group)
calls = [lambda x: hf.sequence_model_parallel_all_to_all_4D(x, scatter_dim=2, gather_dim=1)]
way_back = [lambda y: hf.sequence_model_parallel_all_to_all_4D(y, 1, 2)]
boundary(lambda x: hf.sequence_model_parallel_shard(x, 1)[0],
         lambda x: hf.sequence_model_parallel_all_gather(x, dim=1), 2 * size, 1)
whole = draw(1, 2, 13, 3)
rows, length = hf.sequence_model_parallel_shard(whole, 1)
same(hf.sequence_model_parallel_all_gather_with_unpad(rows, length, dim=1), whole)
""",
    """
from heddle.torch.compat.deepspeed import _SeqAllToAll, single_all_to_all
calls = [lambda x: single_all_to_all(x, 2, 1, 0, group), lambda x: _SeqAllToAll.apply(group, x, 2, 1, 0)]
works = {}
def beside(x):
    single_all_to_all(x, 2, 1, 0, group, True, works, "q")
    return works["q_work"].wait()
calls.append(beside)
way_back = [lambda y: _SeqAllToAll.apply(group, y, 1, 2, 0, None, None, None, False)]
""",
    """
import heddle.torch.compat.diffusers as hd
calls = [lambda x: hd.SeqAllToAllDim.apply(group, x, 2, 1), lambda x: hd.all_to_all_single_any_qkv_async(x, group)()]
way_back = [lambda y: hd.SeqAllToAllDim.apply(group, y, scatter_id=1, gather_id=2)]
for s, h in ((13, 7), (3, 8), (16, 9), (16, 3)):
    whole = draw(s, 2, s, h, 4)
    y = hd.all_to_all_single_any_qkv_async(part(whole, 1), group)()
    same(y, part(whole, 2))
    same(hd.all_to_all_single_any_o_async(y, group, NUM_QO_HEAD=h, Q_S_LOCAL=lengths(s)[rank])(), part(whole, 1))
""",
    """
import heddle.torch.compat.xdit as hx
hx.set_ulysses_group(group)
calls = [lambda x: hx._ft_c_input_all_to_all(x.transpose(1, 2)).transpose(1, 2),
         lambda x: hx._combined_qkv_all_to_all(*[x.transpose(1, 2)] * 3)[2].transpose(1, 2) * 1.0]
way_back = [lambda y: hx._ft_c_output_all_to_all(y.transpose(1, 2)).transpose(1, 2)]
""",
)


def test_names(tmp_path):
    fork(tmp_path, COMMON + """
group = dist.group.WORLD

def boundary(split, gather, n, scale):
    whole = draw(n, 2, n, 3).requires_grad_()
    w = torch.ones((), requires_grad=True)
    y = split(whole)
    same(y, part(whole, 1))
    z = gather(y * w)
    same(z, whole)
    of_whole, of_w = torch.autograd.grad((z * z).sum(), (whole, w))
    assert (of_whole - 2 * whole).abs().max() < 1e-5
    mine = 2 * scale * part(whole, 1).square().sum()
    assert (of_w - mine).abs() <= 1e-4 * (1 + mine)

def exchanges(calls, way_back):
    whole, gradient = draw(1, 2, 4 * size, 2 * size, 4), draw(2, 2, 4 * size, 2 * size, 4)
    for call in calls:
        x = part(whole, 1).clone().requires_grad_()
        y = call(x)
        same(y, part(whole, 2))
        y.backward(part(gradient, 2))
        same(x.grad, part(gradient, 1))
    for call in way_back:
        same(call(part(whole, 2)), part(whole, 1))
""" + "exchanges(calls, way_back)\n".join([*EVEN, ""]) + "ended()\n", 3)


def test_names_of_videosys_padded_dims(tmp_path):
    fork(tmp_path, COMMON + """
import heddle.torch.compat.videosys as hv
group = dist.group.WORLD

def layers(x, switch, back):  # [b, t, s, c]: over s, then over t
    x = x + x.softmax(2).cumsum(2)
    x = switch(x)
    return back(x + x.cumsum(1))

for t, s in ((8, 32), (5, 63), (7, 25), (15, 15), (3, 25), (2, 4)):
    hv.set_pad("temporal", t, group)
    hv.set_pad("spatial", s, group)
    assert hv.get_pad("temporal") == -t % size and hv.get_pad("spatial") == -s % size
    whole, gradient = draw(t, 2, t, s, 6).requires_grad_(), draw(s, 2, t, s, 6)
    wanted = layers(whole, lambda x: x, lambda x: x)
    wanted.backward(gradient)
    x = whole.detach().clone().requires_grad_()
    rows = hv.split_sequence(x, group, 1, grad_scale="down", pad=hv.get_pad("temporal"))
    assert rows.shape[1] >= 1
    y = layers(rows,
               lambda x: hv.all_to_all_with_pad(x, group, 2, 1, hv.get_pad("spatial"), hv.get_pad("temporal")),
               lambda x: hv.all_to_all_with_pad(x, group, 1, 2, hv.get_pad("temporal"), hv.get_pad("spatial")))
    y = hv.gather_sequence(y, group, 1, grad_scale="up", pad=hv.get_pad("temporal"))
    assert (y - wanted).abs().max() <= 1e-5
    y.backward(gradient)
    assert (x.grad - whole.grad).abs().max() <= 1e-5 * whole.grad.abs().max()
even = draw(1, 2, 8, 4, 3)
same(hv.all_to_all_comm(part(even, 1), group), part(even, 2))
same(hv.gather_sequence(hv.split_sequence(even, group, 1), group, 1), even)
ended()
""", 4)
