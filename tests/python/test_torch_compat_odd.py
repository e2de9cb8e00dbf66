"""Arguments that the names of backends do not know, and what local attentions may return."""
from ranks import fork
from test_torch_compat import COMMON


def test_a_rank_without_heads_knows_what_others_return(tmp_path):
    fork(tmp_path, COMMON + """
from heddle.torch.compat.deepspeed import DistributedAttention

def one(q, k, v):  # [b, s, h, d]
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)),
                                          enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)

forms = (lambda q, k, v: one(q, k, v).flatten(2), lambda q, k, v: one(q, k, v).double(),
         lambda q, k, v: one(q, k, v).flatten(2).to(torch.bfloat16), lambda q, k, v: one(q, k, v)[..., :3], one)
for h, kv in ((1, 1), (2, 2), (size - 1, size - 1), (6, 1), (4, 2)):  # heads for some ranks only
    for attend in forms:
        whole = [draw(i, 2, 7 * size, n, 8).requires_grad_() for i, n in enumerate((h, kv, kv))]
        wanted = attend(*whole)
        mine = [part(x.detach(), 1).clone().requires_grad_() for x in whole]
        for found in (hc.by_heads(attend, *mine), DistributedAttention(attend, None, 2, 1)(*mine)):
            of = part(wanted, 1)
            assert found.dtype == of.dtype and found.shape == of.shape, (found.dtype, found.shape, of.shape)
            assert (found - of).abs().max() < 1e-2 * (1 + of.abs().max())
            d_o = draw(9, *wanted.shape, dtype=wanted.dtype)
            got = torch.autograd.grad(found, mine, part(d_o, 1))
            for a, b in zip(got, torch.autograd.grad(wanted, whole, d_o, retain_graph=True)):
                assert (a - part(b, 1)).abs().max() < 1e-2 * (1 + b.abs().max())
flat = lambda q, k, v: one(*(x.movedim(0, 2) for x in (q, k, v))).movedim(2, 0)  # heads first: [h, b, s, d]
whole = [draw(i, 1, 2, 2 * size, 8) for i in range(3)]
same(hc.by_heads(flat, *(part(x, 2) for x in whole), None, 0, 2), part(flat(*whole), 2))
ended()
""", 3)


def test_an_attention_of_its_own_heads_alone(tmp_path):
    fork(tmp_path, COMMON + """
def of(q, k, v, slopes):  # [b, s, h, d]
    rows = torch.arange(q.shape[1])
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) - (rows[:, None] - rows).abs() * slopes[:, None, None]
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)

slopes = torch.tensor([0.5, 0.25])
own = slopes[rank:rank + 1]  # of 2 heads: none on rank 2

def strict(q, k, v):
    if q.shape[2] != len(own):
        raise RuntimeError(f"{q.shape[2]} heads, wanted {len(own)}")
    return of(q, k, v, own)

whole = [draw(i, 2, 4 * size, 2, d).requires_grad_() for i, d in enumerate((8, 8, 5))]
wanted, d_o = of(*whole, slopes), draw(9, 2, 4 * size, 2, 5)
for attend in (lambda q, k, v: of(q, k, v, own), strict):
    mine = [part(x.detach(), 1).clone().requires_grad_() for x in whole]
    found = hc.by_heads(attend, *mine)
    assert found.shape == part(wanted, 1).shape and (found - part(wanted, 1)).abs().max() < 1e-5
    for a, b in zip(torch.autograd.grad(found, mine, part(d_o, 1)),
                    torch.autograd.grad(wanted, whole, d_o, retain_graph=True)):
        assert (a - part(b, 1)).abs().max() < 1e-5
y = draw(1, 2, 4, size, 8)
refused(heddle.ArgumentError, "attend returned (2, 12, 0, 8) of 1 heads", hc.by_heads,
        lambda q, k, v: q[:, :, :0], y, y, y)
ended()
""", 3)


def test_lengths_and_numbers_in_whatever_has_them(tmp_path):
    fork(tmp_path, COMMON + """
world = dist.group.WORLD
by_rank = dict(enumerate(lengths(13)))
x = draw(1, 2, 13, 6, 8)
mine = part(x, 1)
for sizes in (by_rank.values(), dict.fromkeys((6, 4, 3)).keys()):
    plain = list(sizes)
    same(hc.split(x, 1, sizes=sizes), hc.split(x, 1, sizes=plain))
    rows = part(x, 1, plain)
    same(hc.gather(rows, 1, sizes=sizes), x)
    same(hc.all_to_all(rows, 2, 1, gather_sizes=sizes), hc.all_to_all(rows, 2, 1, gather_sizes=plain))
    same(hc.attention(rows, rows, rows, sizes=sizes), hc.attention(rows, rows, rows, sizes=plain))
    same(hc.attention(rows, rows, rows, None, world, ring_sizes=sizes),
         hc.attention(rows, rows, rows, None, world, ring_sizes=plain))
    rows = rows.transpose(1, 2)
    same(hc.lasp(rows, rows, rows, {h: h / 10 for h in range(6)}.values(), sizes=sizes),
         hc.lasp(rows, rows, rows, [h / 10 for h in range(6)], sizes=plain))
seen = draw(3, 2, 13) > -0.3
for scale in (torch.tensor(0.25), torch.tensor([0.25], dtype=torch.float64), torch.nn.Parameter(
        torch.tensor(0.25), requires_grad=False)):
    for ulysses, ring in ((world, None), (None, world)):
        for more in ({}, {"key_mask": part(seen, 1)}):
            given = dict(sizes=lengths(13)) if ring is None else dict(ring_sizes=lengths(13))
            a, b = (hc.attention(mine, mine, mine, ulysses, ring, scale=each, **given, **more)
                    for each in (scale, 0.25))
            same(a, b)
plan = hc.comm_of().attention(f"f32[b=2 s=13 h=6 d=8] on [sp={size}]: s@sp", "ring", scale=torch.tensor(0.25),
                              key_lengths={0: 13, 1: 5}.values())
assert plan.scale == 0.25 and plan.key_lengths == (13, 5)
ended()
""", 3)


def test_what_is_no_argument_is_refused_by_name(tmp_path):
    fork(tmp_path, COMMON + """
import heddle.torch.compat.deepspeed as hds
import heddle.torch.compat.diffusers as hd
import heddle.torch.compat.fastvideo as hf
import heddle.torch.compat.videosys as hv
import heddle.torch.compat.wan as hw
import heddle.torch.compat.xdit as hx
import heddle.torch.compat.yunchang as hy
world, y = dist.group.WORLD, draw(1, 2, 4, 6, 8)
attend = lambda q, k, v: q
folded, slopes = draw(2, 7, 4, 6), [0.1] * 4
comm = hc.comm_of()
problem = f"f32[b=2 s=8 h=6 d=8] on [sp={size}]: s@sp"

for words, call in (
        ("q is a NoneType, wanted three tensors", lambda: hc.by_heads(attend, None, y, y)),
        ("v is a str, wanted three tensors", lambda: hc.by_heads(attend, y, y, "v")),
        ("k is (4, 6, 8), wanted three tensors of as many", lambda: hc.by_heads(attend, y, y[0], y)),
        ("dim 7 of a tensor of 4 dims", lambda: hc.by_heads(attend, y, y, y, None, 7, 1)),
        ("dim a of a tensor", lambda: hc.by_heads(attend, y, y, y, None, "a", 1)),
        ("heads in dim 1, rows in dim 1: wanted two dims", lambda: hc.by_heads(attend, y, y, y, None, 1, 1)),
        ("key heads that divide those of q", lambda: hc.by_heads(attend, y, y[:, :, :4], y[:, :, :4])),
        ("key heads that divide those of q", lambda: hc.by_heads(attend, y, y, y[:, :, :3])),
        ("attend is a NoneType, wanted a function", lambda: hc.by_heads(None, y, y, y)),
        ("attend returned a NoneType of ", lambda: hc.by_heads(lambda q, k, v: None, y, y, y)),
        ("attend returned a tuple of ", lambda: hc.by_heads(lambda q, k, v: (q, k), y, y, y)),
        ("wanted a tensor with rows in dim 1 and heads in dim 2", lambda: hc.by_heads(lambda *q: q[0][0, 0], y, y, y)),
        ("wanted a tensor with rows in", lambda: hc.by_heads(lambda *q: torch.cat([q[0], q[0][:, :, :1]], 2), y, y, y)),
        ("dim 7 of a tensor", lambda: hds.DistributedAttention(attend, world, 7, 1)(y, y, y)),
        ("dim None of a tensor", lambda: hds.DistributedAttention(attend, world, 2, None)(y, y, y)),
        ("local_attention is a NoneType", lambda: hds.DistributedAttention(None, world)),
        ("wanted cos and sin", lambda: hds.DistributedAttention(attend, world, 2, 1)(y, y, y, 0, 3)),
        ("wanted cos and sin", lambda: hds.DistributedAttention(attend, world, 2, 1)(y, y, y, 0, (y,))),
        ("is 10 wide, wanted an even number up to 8", lambda: hds.DistributedAttention(attend, world, 2, 1)(
            y, y, y, 0, (torch.ones(12, 1, 1, 10),) * 2)),
        ("lasp: slopes is 'a'", lambda: hc.lasp(y, y, y, "a")),
        ("lasp: slopes is ['a']", lambda: hc.lasp(y, y, y, ["a"])),
        ("lasp: slopes is None", lambda: hc.lasp(y, y, y, None)),
        ("lasp: slopes is {}", lambda: hc.lasp(y, y, y, {})),
        ("slopes are torch.complex64 on cpu", lambda: hc.lasp(y, y, y, torch.ones(4) * 1j)),
        ("slopes are torch.float32 on meta", lambda: hc.lasp(y, y, y, torch.ones(4, device="meta"))),
        ("7 rows [b t] of a batch of 2", lambda: hv.split_from_second_dim(folded, 2, world)),
        ("7 rows [b t] of a batch of 2", lambda: hv.gather_from_second_dim(folded, 2, world)),
        ("of a batch of 0", lambda: hv.split_from_second_dim(folded, 0, world)),
        ("of a batch of 'a'", lambda: hv.split_from_second_dim(folded, "a", world)),
        ("a NoneType, wanted a tensor", lambda: hv.gather_from_second_dim(None, 2, world)),
        ("there is no pad of 'temporal': set_pad", lambda: hv.split_from_second_dim(draw(2, 8, 4, 6), 2, world)),
        ("the extent of 'spatial' is 'a'", lambda: hv.set_pad("spatial", "a", world)),
        ("the pad of dim 1 is 'a', wanted a number", lambda: hv.all_to_all_with_pad(y, world, 2, 1, 0, "a")),
        ("a NoneType, wanted a tensor", lambda: hv.all_to_all_with_pad(None, world)),
        ("dim 9 of a tensor", lambda: hv.gather_sequence(y, world, 9)),
        ("key_mask is a list, wanted torch.bool(2, 4)", lambda: hc.attention(y, y, y, key_mask=[1])),
        ("q: wanted a tensor [b, s, h, d], dense", lambda: hc.attention(y.to_sparse(), y, y)),
        ("the scale wants a gradient", lambda: hc.attention(y, y, y, scale=torch.ones((), requires_grad=True))),
        ("scale is tensor([1., 1.]), wanted a number", lambda: hc.attention(y, y, y, scale=torch.ones(2))),
        ("scale is 'a', wanted a number", lambda: comm.attention(problem, "ring", scale="a")),
        ("key_lengths is 3, wanted a list", lambda: comm.attention(problem, "ring", key_lengths=3)),
        ("decay is 'a', wanted a list", lambda: comm.linear_attention(problem, decay="a")),
        ("sizes is [True, 3, 0]", lambda: hc.split(y, 1, sizes=[True, 3, 0])),
        ("heads is 1.5, wanted a length of each", lambda: hc.heads_to_rows(y, heads=1.5)),
        ("groups of a and 1 ranks", lambda: hy.set_seq_parallel_pg("a", 1, rank, size)),
        ("a NoneType, wanted a tensor [b, h, s, d]", lambda: hx.USP(None, y, y)),
        ("(4, 6, 8), wanted a tensor [b, h, s, d]", lambda: hx.ring_attn(y, y[0], y)),
        ("a NoneType, wanted a tensor [b, h, s, d]", lambda: hx._combined_qkv_all_to_all(y, y, None)),
        ("a NoneType, wanted a tensor", lambda: hw.all_gather(None)),
        ("original_seq_len is a", lambda: hf.sequence_model_parallel_all_gather_with_unpad(y, "a", 1)),
        ("a NoneType, wanted a tensor", lambda: hd.all_to_all_single_any_qkv_async(None, world)),
        ("length is None", lambda: hd.all_to_all_single_any_o_async(y, world)),
        ("NUM_QO_HEAD is a", lambda: hd.all_to_all_single_any_o_async(y, world, Q_S_LOCAL=4, NUM_QO_HEAD="a"))):
    refused(heddle.ArgumentError, words, call)
for words, call in (
        ("floating numbers, not torch.int64", lambda: hc.attention(y.long(), y.long(), y.long())),
        ("window_size is 4", lambda: hy.UlyssesAttention(world)(y, y, y, window_size=4)),
        ("return_attn_probs is True", lambda: hy.UlyssesAttention(world)(y, y, y, return_attn_probs=True)),
        ("return_attn_probs is True", lambda: hy.LongContextAttention()(y, y, y, 0.0, None, False, (-1, -1), 0.0, None,
                                                                        False, True)),
        ("ring_impl_type is None", lambda: hy.LongContextAttention(ring_impl_type=None))):
    refused(heddle.UnsupportedError, words, call)
packed = torch.stack([y, y, y], 2)
for name, option in (("is_causal", True), ("scale", 3.0), ("softmaxscale", 3.0)):  # what would be left out unseen
    refused(TypeError, f"unexpected keyword argument '{name}'",
            lambda: hy.UlyssesAttention(world)(y, y, y, **{name: option}))
    refused(TypeError, f"unexpected keyword argument '{name}'",
            lambda: hy.LongContextAttentionQKVPacked()(packed, **{name: option}))
same(hy.UlyssesAttention(world)(y, y, y, deterministic=True), hy.UlyssesAttention(world)(y, y, y))
works = {}
hds.single_all_to_all(y, 2, 1, 0, world, True, works)
(work,) = works.values()
same(work.wait(), hc.all_to_all(y, 2, 1))  # and nothing is broken
ended()
""", 3)


def test_odd_arguments_are_right_or_refused_on_every_rank(tmp_path):
    for ranks in (1, 3):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        fork(folder, COMMON + """
import fractions
import numpy as np
import heddle.torch.compat.deepspeed as hds
import heddle.torch.compat.diffusers as hd
import heddle.torch.compat.videosys as hv
import heddle.torch.compat.xdit as hx
import heddle.torch.compat.yunchang as hy
world, y = dist.group.WORLD, draw(1, 2, 4, 6, 8)
h, mask, meta = y.transpose(1, 2), torch.ones(2, 4, dtype=torch.bool), torch.ones((), device="meta")
itself = []
itself.append(itself)
attend = lambda q, k, v: q
by = lambda **options: lambda: hc.attention(y, y, y, **options)

for words, call in (
        ("attention: scale: a Tensor shows no numbers", by(scale=meta)),
        ("attention: scale: a Tensor shows no numbers", by(scale=torch.ones(1).to_sparse())),
        ("attention: scale: a list shows no numbers", by(scale=itself)),
        *(("wanted a finite number", by(scale=scale, **more)) for scale in (
            float("nan"), float("inf"), 10 ** 400, fractions.Fraction(10 ** 400))
          for more in ({}, dict(key_mask=mask), dict(ring_group=world))),
        *(("causal is ", by(causal=causal)) for causal in (torch.ones(2), np.ones(2), "a", [True], meta)),
        ("return_lse is ", by(return_lse=torch.ones(2))),
        ("True chunks of 6 key heads", by(chunks=True)), ("2.0 chunks of 6 key heads", by(chunks=2.0)),
        *((f"saved_forwards is {forwards!r}", by(saved_forwards=forwards)) for forwards in (0, "a", [1], 1.5, True)),
        ("joint is torch.float32(1, 4, 6, 8) on cpu beside torch.float32(2, 4, 6, 8)", by(joint=(y[:1],) * 3)),
        ("joint is torch.float64(2, 4, 6, 8)", by(joint=(y.double(),) * 3)),
        ("on meta beside torch.float32", by(joint=(y.to("meta"),) * 3)),
        ("sizes: a Tensor shows no numbers", lambda: hc.split(y, 1, sizes=torch.ones(size, device="meta"))),
        ("rows in dim 2", lambda: hc.heads_to_rows(y, heads=5)),
        ("rows in dim 1", lambda: hc.split(y, 1, sizes=[5] * size)),
        ("rows in dim 1", lambda: hc.gather(y, 1, sizes=[5] * size)),
        ("rows in dim 1", lambda: hc.all_to_all(y, 1, 2, scatter_sizes=[5] * size, async_op=True)),
        ("empty is 3", lambda: hc.all_to_all(y, 1, 2, empty=3)), ("empty is ['rows']", lambda: hc.split(
            y, 1, empty=["rows"])),
        ("dim True of a tensor", lambda: hc.all_to_all(y, True, 2)),
        ("out is torch.float32", lambda: hc.all_to_all(y, 1, 2, out=y[:1])),
        ("out is torch.float64", lambda: hc.all_to_all(y, 1, 2, out=torch.empty(2, 4 // size, 6 * size, 8).double())),
        ("grad is ['sum']", lambda: hc.split(y, 1, grad=["sum"])),
        ("length is True", lambda: hc.sizes_of(True)),
        ("slopes are torch.float32 on cpu, torch.sparse_coo", lambda: hc.lasp(y, y, y, torch.ones(4).to_sparse())),
        ("groups of True and 1 ranks", lambda: hy.set_seq_parallel_pg(True, 1, rank, size)),
        ("joint_strategy is array", lambda: hx.USP_joint(h, h, h, h, h, h, np.array([1, 2]))),
        ("grad_scale is 'x'", lambda: hv.split_sequence(y, world, 1, grad_scale="x")),
        ("grad_scale is [1]", lambda: hv.gather_sequence(y, world, 1, grad_scale=[1])),
        ("grad_scale is 0.5", lambda: hv.gather_sequence(y, world, 1, grad_scale=0.5)),
        ("the pad of dim 1 is -3", lambda: hv.gather_sequence(y, world, 1, pad=-3)),
        ("no pad of ['a']", lambda: hv.get_pad(["a"])),
        ("the extent of ['a'] is 3", lambda: hv.set_pad(["a"], 3, world)),
        ("NUM_QO_HEAD is [3", lambda: hd.all_to_all_single_any_o_async(y, world, Q_S_LOCAL=4,
                                                                        NUM_QO_HEAD=np.array([3, 3, 3, 3]))),
        ("handle is a int, wanted a dict", lambda: hds.single_all_to_all(y, 2, 1, 0, world, True, 3)),
        ("rotary_pos_emb has 3 rows", lambda: hds.DistributedAttention(attend, world, 2, 1)(
            y, y, y, 0, (torch.ones(3, 1, 1, 8),) * 2)),
        *(("async_op is ", lambda on=on: hc.all_to_all(y, 2, 1, async_op=on))
          for on in (y, np.ones(2), "a", [1], meta)),
        ("async_op is 'x'", lambda: hds.single_all_to_all(y, 2, 1, 0, world, "x")),
        ("saved_forwards is 1000000000000", lambda: hc.attention(y, y, y, None, world, saved_forwards=10 ** 12)),
        ("wanted 1048576 at most", lambda: hc.attention(y, y, y, None, world, saved_forwards=10 ** 30)),
        ("go together: wanted [b, s, h, d] of one dtype", by(joint=(y, y.to("meta"), y.to("meta")))),
        ("go together", lambda: hc.qkv_to_heads(y, y.to("meta"), y.to("meta"))),
        *((f"a tensor of {x.layout}, wanted a dense one", lambda x=x, call=call: call(x))
          for x in (y.to_sparse(), y.to_mkldnn()) for call in (
              lambda x: hc.split(x, 1), lambda x: hc.all_to_all(x, 2, 1),
                  lambda x: hv.split_from_second_dim(x, 2, world), lambda x: hv.gather_from_second_dim(x, 2, world))),
        *((f"{name} is (2, 4, 6, 8), wanted ", lambda name=name, call=call: call(**{name: y.to_sparse()}))
          for name in "qkv" for call in (
              lambda q=y, k=y, v=y: hc.by_heads(attend, q, k, v), lambda q=y, k=y, v=y: hc.lasp(q, k, v, [.1] * 4))),
        *((f"the method is {method!r}, wanted a word", lambda method=method: hc.lasp(y, y, y, [.1] * 4, method=method))
          for method in (["lasp"], {}, None, 3)),
        ("attend returned a str", lambda: hc.by_heads(lambda *_: "x", y, y, y)),
        ("attend returned (2, 2, ", lambda: hc.by_heads(lambda q, k, v: q[:, :2], y, y, y))):
    refused(heddle.ArgumentError, words, call)
for words, call in (
        ("not torch.float8_e4m3fn, and those of 2", lambda: hc.attention(*(y.to(torch.float8_e4m3fn),) * 3)),
        ("window_size is ", lambda: hy.UlyssesAttention(world)(y, y, y, window_size=torch.tensor([3, 3]))),
        *(("scatter_idx and gather_idx are ", lambda dim=dim, kind=kind: kind(scatter_idx=dim))
          for dim in (y, np.array([2, 2]), "a", None, 2.0) for kind in (
              hy.LongContextAttention, hy.LongContextAttentionQKVPacked, hy.UlyssesAttention)),
        ("alibi_slopes is ", lambda: hy.UlyssesAttention(world)(y, y, y, alibi_slopes=np.zeros(4)))):
    refused(heddle.UnsupportedError, words, call)
plain = hc.attention(y, y, y)
swapped = hc.all_to_all(y, 2, 1)
for on in (torch.tensor(True), np.bool_(True), 1, np.array([True])):
    same(hc.all_to_all(y, 2, 1, async_op=on).wait(), swapped)
for off in (torch.tensor(False), None, 0):
    same(hc.all_to_all(y, 2, 1, async_op=off), swapped)
for more in (dict(chunks=np.int64(1)), dict(causal=None), dict(causal=np.bool_(False)),
             dict(causal=torch.tensor(False)), dict(saved_forwards=np.int64(2)),
             dict(scale=np.float64(8) ** -0.5), dict(sizes=np.array([4] * size))):
    same(hc.attention(y, y, y, **more), plain)
for window in (np.array([-1, -1]), torch.tensor([-1, -1]), [-1, -1], None):
    same(hy.UlyssesAttention(world)(y, y, y, window_size=window), plain)
same(hv.split_sequence(y, world, 1, grad_scale=None), hc.split(y, 1))
ended()
""", ranks)


def test_what_an_attention_raises_is_told_to_ranks_without_heads(tmp_path):
    fork(tmp_path, COMMON + """
y = draw(1, 2, 4, 2, 8)  # of 2 heads none on rank 2

def all_of_them(q, k, v):
    raise ValueError("no attention today")

def those_with_heads(q, k, v):
    return q if rank == 2 else all_of_them(q, k, v)

def one(q, k, v):
    return all_of_them(q, k, v) if rank == 1 else q

for attend, raises in ((all_of_them, (0, 1)), (those_with_heads, (0, 1)), (one, (1,))):
    began = time.monotonic()
    if rank in raises:
        refused(ValueError, "no attention today", hc.by_heads, attend, y, y, y)
    else:
        refused(heddle.ArgumentError, f"attend raised ValueError: no attention today on rank {raises[0]}", hc.by_heads,
                attend, y, y, y)
    same(hc.by_heads(lambda q, k, v: q, y, y, y), y)  # and nothing is broken
ended()
""", 3)


def test_a_scale_that_a_compiler_has_as_a_tensor(tmp_path):
    fork(tmp_path, COMMON + """
import numpy
world, m = dist.group.WORLD, part(draw(1, 2, 12, 4, 8), 1)
more = ({}, dict(joint=(draw(2, 2, 3, 4, 8),) * 3), dict(key_mask=torch.ones(2, 6, dtype=torch.bool)))
for scale, given in ((torch.tensor(0.25), more), (torch.tensor([0.3], dtype=torch.float64), more[1:2]),
                     (numpy.float32(0.25), more[2:]), (0.25, more[:1])):
    for ulysses, ring in ((world, None), (None, world)):
        for each in given:
            torch._dynamo.reset()
            call = lambda q: hc.attention(q, q, q, ulysses, ring, scale=scale, **each)
            found, wanted = torch.compile(call, backend="eager", fullgraph=True)(m), call(m)
            for a, b in zip(found, wanted) if each.get("joint") else ((found, wanted),):
                assert (a - b).abs().max() < 1e-5
ended()
""", 2)
