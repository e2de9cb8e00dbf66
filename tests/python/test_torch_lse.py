"""The log-sum-exp of attention by every method, with its gradient, against products of matrices in one process."""
import test_torch_attention
from ranks import fork

COMMON = test_torch_attention.COMMON + """
def judged(q, k, v, causal, key_lengths, scale):
    s, each = k.shape[2], q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(each, 1) for x in (k, v))
    seen = torch.ones(s, s, dtype=torch.bool).tril() if causal else torch.ones(s, s, dtype=torch.bool)
    seen = seen & (torch.arange(s) < torch.tensor(key_lengths or [s] * k.shape[0])[:, None, None, None])
    scores = (q @ k.mT * scale).masked_fill(~seen, -torch.inf)
    return scores.softmax(3) @ v, scores.logsumexp(3)

def part(whole, plan):  # [b, h, s, ...]
    return whole[:, :, plan.slices[1]]

def compare(comm, problem, dtype, within, kv, method, causal=False, key_lengths=None, scale=0.3, gradients=True):
    plan = comm.attention(f"f32[{problem}", method, kv_heads=kv, causal=causal, key_lengths=key_lengths, scale=scale,
                          log_sum_exp=True)
    b, s, h, d = plan.line.shape
    q, k, v, d_o = (draw(i, b, heads, s, d, dtype=dtype) for i, heads in enumerate((h, kv, kv, h)))
    d_lse = draw(5, b, h, s, dtype=torch.promote_types(dtype, torch.float32))
    given = [x.double().clone().requires_grad_() for x in (q, k, v)]
    o, lse = judged(*given, causal, key_lengths, scale)
    mine = [part(x, plan).clone().requires_grad_(gradients) for x in (q, k, v)]
    my_o, my_lse = ht.attention(*mine, plan)
    close(my_o, part(o, plan).to(dtype), within)
    close(my_lse, part(lse, plan).to(d_lse.dtype), min(within, 1e-2))
    assert my_lse.requires_grad == gradients, method
    if gradients:
        wanted = torch.autograd.grad((o, lse), given, (d_o.double(), d_lse.double()))
        for a, b in zip(torch.autograd.grad((my_o, my_lse), mine, (part(d_o, plan), part(d_lse, plan))), wanted):
            close(a, part(b, plan).to(dtype), within)
        alone = torch.autograd.grad(ht.attention(*mine, plan)[1], mine, part(d_lse, plan))
        wanted = torch.autograd.grad(judged(*given, causal, key_lengths, scale), given,
                                     (0 * d_o.double(), d_lse.double()))
        for a, b in zip(alone, wanted):
            close(a, part(b, plan).to(dtype), within)
"""


def test_every_method(tmp_path):
    for ranks in (1, 3):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        fork(folder, COMMON + """
with heddle.Comm.open() as comm:
    on = f"on [sp={comm.size}]: s@sp"
    for dtype, within in ((torch.float64, 1e-11), (torch.float32, 3e-6), (torch.bfloat16, 0.05), (torch.float16, 1e-2)):
        for causal in (False, True):
            for method in ("ring", "ulysses", "gather-kv"):
                compare(comm, f"b=2 s=11 h=6 d=8] {on}", dtype, within, 2, method, causal)
                compare(comm, f"b=2 s=2 h=2 d=8] {on}", dtype, within, 2, method, causal)
                compare(comm, f"b=2 s=11 h=4 d=8] {on}", dtype, within, 4, method, causal, (11, 3))
            if comm.size == 1:
                compare(comm, f"b=2 s=11 h=6 d=8] {on}", dtype, within, 2, "local", causal)
        if dtype is not torch.float16:
            for method in ("ring", "rsa", "gather-kv"):
                compare(comm, f"b=2 s=11 h=6 d=8] {on}", dtype, within, 2, method, True, gradients=False)
    plan = comm.attention(f"f32[b=1 s=6 h=2 d=8] {on}", "rsa", log_sum_exp=True)
    x = part(draw(1, 1, 2, 6, 8, dtype=torch.float32), plan).clone().requires_grad_()
    refused(heddle.UnsupportedError, "without gradients", ht.attention, x, x, x, plan)
    refused(heddle.ArgumentError, "sdpa is for ulysses and local", ht.attention, x, x, x, plan, sdpa=len)
    refused(heddle.ArgumentError, "with log_sum_exp empty is 'one'", ht.attention, x, x, x, plan, empty="one")
    numpy_x = x.detach().transpose(1, 2).contiguous().numpy()
    o, lse = plan(numpy_x, numpy_x, numpy_x)
    assert o.shape == plan.q_shape and lse.shape == plan.lse_shape
    twice = comm.attention(f"f32[b=1 s=6 h=2 d=8] {on}", "ulysses", log_sum_exp=True)
    own = lambda q, k, v: ((q @ k.mT).softmax(3) @ v, (q @ k.mT).logsumexp(3))
    y = draw(1, 1, 2, 6, 8, dtype=torch.float32)
    for a, b in zip(ht.attention(x, x, x, twice, sdpa=own), own(y, y, y)):
        close(a, part(b, plan), 1e-5)
print("ok")
""", ranks)


def test_two_axes(tmp_path):
    fork(tmp_path, COMMON + """
with heddle.Comm.open(mesh="[a=2 b=2]") as comm:
    for dtype, within in ((torch.float64, 1e-11), (torch.float32, 3e-6)):
        for causal in (False, True):
            for gradients in (False, True):
                compare(comm, f"b=2 s=11 h=6 d=8] on {comm.mesh}: s@a,s@b", dtype, within, 3, "usp", causal, None, 0.3,
                        gradients)
print("ok")
""", 4)
