"""Modules of backends' names, and the exchanges around attention, against one process."""
import pathlib

from ranks import fork
from test_torch_compat import COMMON

import heddle.torch.compat

FOLDER = pathlib.Path(heddle.torch.compat.__file__).parent
WORKS = {"__init__", "attend", "exchange", "groups", "handle", "heads", "layers", "side", "states"}


def test_modules_of_names_are_short_and_have_names_only():
    names = [path for path in FOLDER.glob("*.py") if path.stem not in WORKS]
    assert {"deepspeed", "diffusers", "yunchang", "yunchang_comm"} <= {path.stem for path in names}
    for path in names:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        assert lines[0].startswith('"""') and len(lines) <= 15, f"{path.name} has {len(lines)} lines"


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
    numbers = [0.0, 0.3, 0.05]  # Python's have the digits of float64
    o, wanted = hc.lasp(*(part(x.detach(), 2) for x in whole), numbers, sizes=lengths(n)), whole_process(
        *(x.detach() for x in whole), torch.tensor(numbers, dtype=torch.float64))
    assert o.numel() == 0 or (o - part(wanted, 2)).abs().max() <= 1e-12 * wanted.abs().max()
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
boundary(lambda x: hc.split(x, 1), lambda x: torch.cat(hw.all_gather(x), 1), 2 * size, 1)
for r, x in enumerate(hw.all_gather(torch.tensor(float(rank)))):
    assert x.shape == () and x == r
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
    x, w = whole.detach().flatten(0, 1).requires_grad_(), torch.ones((), requires_grad=True)  # [b t, s, c]
    rows = hv.split_from_second_dim(x, 2, group)
    mine = part(whole.detach(), 1) if rank < t else torch.ones(2, 1, s, 6)
    same(rows, mine.flatten(0, 1))
    y = hv.gather_from_second_dim(rows * w, 2, group)
    same(y, x)
    of_x, of_w = torch.autograd.grad(y, (x, w), gradient.flatten(0, 1))
    assert (of_x - gradient.flatten(0, 1)).abs().max() < 1e-6
    dist.all_reduce(of_w, op=dist.ReduceOp.SUM)  # "up" and "down": their mean over ranks is the whole
    assert abs(of_w / size - (gradient * whole).sum()) < 1e-4 * (gradient * whole).abs().sum()
even = draw(1, 2, 8, 4, 3)
same(hv.all_to_all_comm(part(even, 1), group), part(even, 2))
same(hv.gather_sequence(hv.split_sequence(even, group, 1), group, 1), even)
ended()
""", 4)


def test_attention_by_its_names(tmp_path):
    """Of one process what it is, also where heads do not divide; with gradients."""
    for ranks in (2, 3):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        fork(folder, COMMON + """
import heddle.torch.compat.xdit as hx
import heddle.torch.compat.yunchang as hy
from heddle.torch.compat.deepspeed import DistributedAttention
group = dist.group.WORLD

def one_process(q, k, v, causal=False, scale=None):  # [b, s, h, d]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale,
                                          enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)

def compare(call, wanted_of, kv, h, rows_in=1, form=lambda x: x):
    shapes = [[2, 4 * size, n, 8] for n in (h, kv, kv)]
    whole = [form(draw(i, *shape)).detach().requires_grad_() for i, shape in enumerate(shapes)]
    wanted = wanted_of(*whole)
    mine = [part(x.detach(), rows_in).clone().requires_grad_() for x in whole]
    found = call(*mine)
    d_o = draw(9, *wanted.shape)
    at = [found, *torch.autograd.grad(found, mine, part(d_o, rows_in))]
    for got, of in zip(at, [wanted, *torch.autograd.grad(wanted, whole, d_o)]):
        of = part(of, rows_in)
        assert got.shape == of.shape and (got - of).abs().max() <= 1e-5 * (1 + of.abs().max()), (got - of).abs().max()

def local(q, k, v, *more, scale=None):
    assert q.shape[1] == 4 * size and more in ((), ("mask",)), more
    return one_process(q, k, v, scale=scale)

spread = lambda x: x.transpose(0, 1)  # [s, b, h, d], as it is by itself there
for h, kv in ((2 * size, 2 * size), (2 * size + 1, 2 * size + 1), (1, 1), (6, 3), (4, 2)):
    attention = DistributedAttention(local, group, 2, 1)
    compare(lambda q, k, v: attention(q, k, v), one_process, kv, h)
    compare(lambda q, k, v: attention(q, k, v, 0, None, "mask", scale=0.2),
            lambda q, k, v: one_process(q, k, v, scale=0.2), kv, h)
    compare(lambda q, k, v: attention(q, k, v, "mask"), one_process, kv, h)
    first = DistributedAttention(lambda q, k, v: spread(local(*map(spread, (q, k, v)))), group)
    compare(lambda q, k, v: first(q, k, v, batch_dim_idx=1),
            lambda q, k, v: spread(one_process(*map(spread, (q, k, v)))), kv, h, 0, spread)
    for causal in (False, True):
        compare(lambda q, k, v: hy.UlyssesAttention(group)(q, k, v, softmax_scale=0.2, causal=causal),
                lambda q, k, v: one_process(q, k, v, causal, 0.2), kv, h)
    for ulysses, ring in ((size, 1), (1, size)):
        hy.set_seq_parallel_pg(ulysses, ring, rank, size)
        assert [dist.get_world_size(x) for x in (hy.PROCESS_GROUP.ULYSSES_PG, hy.PROCESS_GROUP.RING_PG)] == \\
            [ulysses, ring]
        compare(lambda q, k, v: hy.LongContextAttention(ring_impl_type="basic")(q, k, v, 0.0, None, True),
                lambda q, k, v: one_process(q, k, v, True), kv, h)
        for causal in (False, True):
            compare(lambda q, k, v: hx.USP(q, k, v, is_causal=causal),
                    lambda *xs: one_process(*(x.transpose(1, 2) for x in xs), causal).transpose(1, 2), kv, h, 2,
                    lambda x: x.transpose(1, 2))
        compare(lambda q, k, v: hy.LongContextAttentionQKVPacked()(torch.stack([q, k, v], 2), 0.0, 0.2, True),
                lambda q, k, v: one_process(q, k, v, True, 0.2), h, h)
    compare(lambda q, k, v: hy.ring_flash_attn_qkvpacked_func(torch.stack([q, k, v], 2), causal=True),
            lambda q, k, v: one_process(q, k, v, True), h, h)
    compare(lambda q, k, v: hy.ring_flash_attn_kvpacked_func(q, torch.stack([k, v], 2), 0.0, 0.2, group=group),
            lambda q, k, v: one_process(q, k, v, False, 0.2), kv, h)
    compare(lambda q, k, v: hx.ring_attn(q, k, v, 0.0, True),
            lambda *xs: one_process(*(x.transpose(1, 2) for x in xs), True).transpose(1, 2), kv, h, 2,
            lambda x: x.transpose(1, 2))

flat = DistributedAttention(lambda q, k, v: one_process(q, k, v).flatten(2), group, 2, 1)  # [b, s, h d]
compare(lambda q, k, v: flat(q, k, v), lambda q, k, v: one_process(q, k, v).flatten(2), 2 * size + 1, 2 * size + 1)
angles = torch.outer(torch.arange(4.0 * size), 0.5 ** torch.arange(3))[:, None, None].repeat(1, 1, 1, 2)
turned = torch.view_as_complex(torch.stack([angles.cos(), angles.sin()], -1))[..., :3].transpose(0, 1)
def rotated(x):  # pairs 3 apart of the first 6 of 8
    pairs = torch.complex(x[..., :3], x[..., 3:6]) * turned
    return torch.cat((pairs.real, pairs.imag, x[..., 6:]), -1)
compare(lambda q, k, v: DistributedAttention(local, group, 2, 1)(q, k, v, 0, (angles.cos(), angles.sin())),
        lambda q, k, v: one_process(rotated(q), rotated(k), v), 4, 4)

def of_text(h, kv, l, strategy):  # a text that every rank has, [b, h, l, d], beside rows
    whole, text = ([draw(i + n, 2, heads, n, 8).requires_grad_() for i, heads in enumerate((h, kv, kv))]
                   for n in (4 * size, l))
    both = [torch.cat(pair, 2) for pair in zip(whole, text)]
    wanted = one_process(*(x.transpose(1, 2) for x in both)).transpose(1, 2)
    mine, joint = [part(x.detach(), 2).clone().requires_grad_() for x in whole], [x.detach().clone().requires_grad_()
                                                                                  for x in text]
    found = hx.USP_joint(*mine, *joint, strategy)
    rows = found.split([4, l] if strategy == "rear" else [l, 4], 2)[:: 1 if strategy == "rear" else -1]
    d_o = draw(9, *wanted.shape)
    at = [*rows, *torch.autograd.grad(rows, [*mine, *joint], [part(d_o[:, :, :4 * size], 2), d_o[:, :, 4 * size:]])]
    of = [part(wanted[:, :, : 4 * size], 2), wanted[:, :, 4 * size:],
          *(part(g, 2) if i < 3 else g for i, g in enumerate(torch.autograd.grad(wanted, [*whole, *text], d_o)))]
    for a, b in zip(at, of):
        assert a.shape == b.shape and (a - b).abs().max() <= 1e-5 * (1 + b.abs().max()), (strategy, (a - b).abs().max())

for ulysses, ring in ((size, 1), (1, size)):
    hy.set_seq_parallel_pg(ulysses, ring, rank, size)
    for h, kv, l in ((2 * size, 2 * size, 3), (1, 1, 5), (6, 3, 2)):
        for strategy in ("front", "rear"):
            of_text(h, kv, l, strategy)
x = draw(rank, 2, 4, 3, 8)
o, lse, none = hy.ring_flash_attn_func(x, x, x, return_attn_probs=True)
same(o, hy.ring_flash_attn_func(x, x, x))
assert lse.shape == (2, 3, 4) and none is None
x = draw(1, 2, 4, 3, 8)
refused(heddle.ArgumentError, "joint_strategy is 'both'", hx.USP_joint, x, x, x, x, x, x, "both")
refused(heddle.ArgumentError, "wanted a tensor [b, s, 3, h, d]", hy.LongContextAttentionQKVPacked(), x)
refused(heddle.UnsupportedError, "wanted 3 and 1", hy.LongContextAttentionQKVPacked, 2)
refused(heddle.UnsupportedError, "alibi_slopes", hy.ring_flash_attn_func, x, x, x, alibi_slopes=torch.ones(3))
refused(heddle.UnsupportedError, "dropout_p is 0.5", hx.USP, x, x, x, 0.5)
refused(heddle.UnsupportedError, "window_size is (4, 0)", hy.UlyssesAttention(group), x, x, x, window_size=(4, 0))
refused(heddle.UnsupportedError, "alibi_slopes", hy.UlyssesAttention(group), x, x, x, alibi_slopes=torch.ones(3))
refused(heddle.UnsupportedError, "ring_impl_type is 'zigzag'", hy.LongContextAttention, ring_impl_type="zigzag")
refused(heddle.UnsupportedError, "wanted 2 and 1", hy.UlyssesAttention, group, 1, 2)
refused(heddle.ArgumentError, "do not divide", hy.set_seq_parallel_pg, size, 2, rank, size)
short = draw(1, 2, 3 if rank == 1 else 4, 4, 8)
refused(heddle.MismatchError, "rank 1", DistributedAttention(local, group, 2, 1), short, short, short)
ended()
""", ranks)


def test_groups_of_ulysses_and_of_the_ring(tmp_path):
    fork(tmp_path, COMMON + """
import heddle.torch.compat.yunchang as hy
members = lambda: [dist.get_process_group_ranks(x) for x in (hy.PROCESS_GROUP.ULYSSES_PG, hy.PROCESS_GROUP.RING_PG)]
pair, across = [rank // 2 * 2, rank // 2 * 2 + 1], [rank % 2, rank % 2 + 2]
q, k, v = (draw(seed, 2, 12, 4, 8) for seed in (1, 2, 3))
wanted = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)
for low in (True, False):
    hy.set_seq_parallel_pg(2, 2, rank, size, use_ulysses_low=low)
    assert members() == ([pair, across] if low else [across, pair]), members()
    at = rank if low else rank % 2 * 2 + rank // 2  # the ring's blocks are one after another, each cut over ulysses
    found = hy.LongContextAttention()(*(part(x, 1, at=at) for x in (q, k, v)), causal=True)
    assert (found - part(wanted, 1, at=at)).abs().max() < 3e-6
ended()
""", 4)
